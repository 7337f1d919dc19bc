package agent

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration/drain"
)

// inALine is a condition in a line.
func inALine(c api.Condition, is bool) string {
	if !is {
		return "nothing"
	}
	out := c.Name + " " + string(c.Health)
	for _, r := range c.Reasons {
		out += " [" + r.Code + "] " + r.Message + " | " + r.Change
	}
	return out
}

func TestPlacementSilent_SinceTheLastAnswer(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		what            string
		asked, answered time.Time
		want            string
	}{
		{"never asked", time.Time{}, time.Time{}, "nothing"},
		{"it has answered", time.Time{}, now.Add(-time.Hour), "nothing"},
		{"asked a moment ago", now.Add(-time.Second), now.Add(-time.Hour), "nothing"},
		{"asked for long", now.Add(-30 * time.Second), now.Add(-time.Minute), "not answered since 2026-05-06T11:59:00Z"},
		{"asked for long, and never answered", now.Add(-30 * time.Second), time.Time{}, "not answered since 2026-05-06T11:59:30Z"},
	} {
		if got := inALine(placementSilent(c.asked, c.answered, now)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

func TestStuckDrains_NothingBeganOrEnded(t *testing.T) {
	now := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	guest := func(state drain.GuestState, begun, ended time.Duration) drain.Guest {
		g := drain.Guest{Name: "web", State: state, Reasons: []fault.Reason{{Code: "no_room", Message: "no host has room"}}}
		if begun > 0 {
			g.BegunAt = now.Add(-begun)
		}
		if ended > 0 {
			g.EndedAt = now.Add(-ended)
		}
		return g
	}
	for _, c := range []struct {
		what  string
		state drain.State
		begun time.Duration
		list  []drain.Guest
		want  string
	}{
		{"just begun", drain.Running, time.Minute, []drain.Guest{guest(drain.Waiting, 0, 0)}, "nothing"},
		{"over", drain.Incomplete, 9 * time.Hour, []drain.Guest{guest(drain.Failed, 0, 0)}, "nothing"},
		{"all wait", drain.Running, time.Hour, []drain.Guest{guest(drain.Waiting, 0, 0)}, "since 2026-05-06T11:00:00Z; 0 instances move, 1 wait; web: no host has room"},
		{"one ended of late", drain.Running, time.Hour, []drain.Guest{guest(drain.Moved, time.Hour, time.Minute), guest(drain.Waiting, 0, 0)}, "nothing"},
		{"one failed of late", drain.Running, time.Hour, []drain.Guest{guest(drain.Failed, time.Hour, time.Minute)}, "nothing"},
		{"one moves", drain.Running, time.Hour, []drain.Guest{guest(drain.Moving, 30*time.Minute, 0), guest(drain.Waiting, 0, 0)}, "nothing"},
		{"one moves for ever", drain.Running, 5 * time.Hour, []drain.Guest{guest(drain.Moving, 3*time.Hour, 0), guest(drain.Waiting, 0, 0)}, "since 2026-05-06T09:00:00Z; 1 instances move, 1 wait"},
		{"an abort that does not end", drain.Aborting, 5 * time.Hour, []drain.Guest{guest(drain.Moving, 3*time.Hour, 0)}, "drain_stuck"},
	} {
		d := drain.Drain{Request: drain.Request{Host: "host-a"}, State: c.state, BegunAt: now.Add(-c.begun), Guests: c.list}
		if got := inALine(stuckDrains([]drain.Drain{d}, now)); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
}

type someDeaths struct {
	deaths []fleet.Death
	has    map[string][]fleet.Instance
	err    error
	asked  []string
}

func (s *someDeaths) Deaths(context.Context) ([]fleet.Death, error) { return s.deaths, s.err }
func (s *someDeaths) Instances(_ context.Context, host string) ([]fleet.Instance, error) {
	s.asked = append(s.asked, host)
	return s.has[host], s.err
}

func TestLostHosts_NamesWhatNobodyEvacuated(t *testing.T) {
	at := time.Date(2026, 5, 6, 12, 0, 0, 0, time.UTC)
	r := &someDeaths{
		deaths: []fleet.Death{{Host: "host-a", At: at}, {Host: "host-b", At: at}, {Host: "host-c", At: at}, {Host: "host-d", At: at, Forgotten: true}},
		has:    map[string][]fleet.Instance{"host-a": {{Name: "own"}}, "host-b": {{Name: "web"}, {Name: "db"}}, "host-d": {{Name: "given up"}}},
	}
	hosts, err := lostHosts(t.Context(), r, "host-a")
	if err != nil {
		t.Fatal(err)
	}
	want := "evacuation degraded [not_evacuated] host host-b counts as dead since 2026-05-06T12:00:00Z, and nobody has evacuated its instances: web, db | berth evacuate --host host-b, on any host; or bring host-b back"
	if got := inALine(lostCondition(hosts)); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := inALine(lostCondition(nil)); got != "nothing" {
		t.Error(got)
	}
	r.err = fault.New(fault.Unavailable, "silent")
	if _, err := lostHosts(t.Context(), r, "host-a"); err == nil {
		t.Error("a store that is silent is a fleet without deaths")
	}
}

func TestCertificateNotTaken_UntilARestart(t *testing.T) {
	p := newPapers(t, 6*365*24*time.Hour)
	p.issue(p.before, 0)
	p.begin(0)
	paths, used := p.a.config().PKI, p.a.identity
	if err := certificateNotTaken(paths, used, p.now); err != nil {
		t.Errorf("the files are those in use: %v", err)
	}
	p.issue(p.before, 0)
	err := certificateNotTaken(paths, used, p.now)
	if rs := fault.ReasonsOf(err); len(rs) != 1 || rs[0].Code != "certificate_not_taken" || !strings.Contains(rs[0].Change, "systemctl restart berth") {
		t.Errorf("other files: %v", err)
	}
	if err := os.Truncate(paths.Key, 3); err != nil {
		t.Fatal(err)
	}
	if err := certificateNotTaken(paths, used, p.now); err == nil || !strings.Contains(err.Error(), "not good") {
		t.Errorf("half a key: %v", err)
	}
	if err := certificateNotTaken(paths, nil, p.now); err != nil {
		t.Errorf("none in use: %v", err)
	}
}
