package converge

import (
	"testing"
	"time"
)

// byHand watches a job to its end, or for so long, of which somebody changes something at a
// moment.
func byHand(j *job, p Plan, at, most time.Duration, change func(*job, State) State) []look {
	j.ceiling = hypervisorDowntime
	var s State
	var out []look
	for j.at < most && !j.over() {
		if at >= 0 && j.at >= at {
			s, at = change(j, s), -1
		}
		l := look{x: j.sample()}
		s, l.due, l.est = s.See(l.x, p)
		l.s = s
		out = append(out, l)
		for _, a := range l.due {
			j.do(a)
		}
		j.run(quarter)
	}
	return out
}

// What a person sets on the way has its time: stalls are counted from it on, as from any action.
func TestState_WhatIsSetByHandIsGivenTime(t *testing.T) {
	p := Plan{Schedule: schedule(t, "3:abort")}
	const end = 16500 * time.Millisecond // where nobody does anything
	if told := told(byHand(steady(64, 60), p, -1, time.Minute, nil)); told != "16.5s abort stalled" {
		t.Fatalf("left alone: %s", told)
	}
	for name, c := range map[string]struct {
		change func(*job, State) State
		want   string
		ends   bool
	}{
		"a downtime that helps": {func(j *job, s State) State {
			j.ceiling = 4 * time.Second
			return s.WithDowntime(j.ceiling)
		}, "", true},
		"a downtime that does not": {func(j *job, s State) State {
			j.ceiling = time.Second
			return s.WithDowntime(j.ceiling)
		}, "20s abort stalled", false},
		"a bandwidth that helps": {func(j *job, s State) State {
			j.link = always(200 * mib)
			return s.WithBandwidth()
		}, "", true},
		"a bandwidth that does not": {func(j *job, s State) State {
			j.link = always(22 * mib)
			return s.WithBandwidth()
		}, "21.5s abort stalled", false},
	} {
		j := steady(64, 60)
		if got := told(byHand(j, p, end-time.Second, time.Minute, c.change)); got != c.want || j.ended != c.ends {
			t.Errorf("%s: %q, want %q; it ended: %t", name, got, c.want, j.ended)
		}
	}
}

// A bound that somebody sets is no link that has broken down: what is foretold goes by it at once.
func TestState_ALowerBandwidthIsNoTrouble(t *testing.T) {
	const set = 10 * time.Second
	looks := byHand(&job{total: 512 * mib, dirty: writes(512, 1), link: always(20 * mib)}, Plan{}, set, time.Minute, func(j *job, s State) State {
		j.link = always(4 * mib)
		return s.WithBandwidth()
	})
	for _, l := range looks {
		if l.x.Elapsed > set && l.s.meter.slow {
			t.Fatalf("at %s the link counts as broken down", l.x.Elapsed)
		}
	}
}
