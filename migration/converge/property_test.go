package converge

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// decider is See, or something that is nearly See.
type decider func(State, Sample, Plan) (State, []Action, Estimate)

// trial is one job by chance under one plan, watched.
type trial struct {
	plan  Plan
	looks []look
	links []float64 // bytes a second at each look
}

// try plays a seed. What the job meets does not depend on the decider but by its actions.
func try(seed uint64, see decider) trial {
	r := rand.New(rand.NewPCG(seed, 1))
	j, p := drawn(r), drawnPlan(r)
	if r.IntN(10) == 0 {
		p = Plan{}
	}
	every := []time.Duration{20 * time.Millisecond, quarter, quarter, 900 * time.Millisecond, 3 * time.Second}[r.IntN(5)]
	if j.ceiling = p.FirstDowntime(); j.ceiling == 0 {
		j.ceiling = hypervisorDowntime
	}
	t := trial{plan: p}
	var s State
	after := 0 // looks after its end: what was asked for may take a while
	for j.at < 3*time.Minute && after < 20 {
		l := look{x: j.sample()}
		s, l.due, l.est = see(s, l.x, p)
		l.s = s
		t.looks, t.links = append(t.looks, l), append(t.links, j.link(j.at))
		for _, a := range l.due {
			j.do(a)
		}
		if j.ended {
			break
		}
		if j.over() {
			after++
			j.at += every
			continue
		}
		j.run(every)
	}
	return t
}

// broken is the first property that a trial breaks; empty for none.
func broken(t trial) string {
	p := t.plan
	ceiling := p.FirstDowntime()
	if ceiling == 0 {
		ceiling = hypervisorDowntime
	}
	over, suspendedAt := false, time.Duration(-1)
	var since uint64 // iterations since the schedule's last action
	taken := map[int]bool{}
	last := -1 // index of the last step that was taken and is no downtime
	cut := 0 * time.Second
	for i, l := range t.looks {
		at := l.x.Elapsed
		if i > 0 {
			if l.x.Iteration > t.looks[i-1].x.Iteration {
				since++
			}
			if t.links[i] == 0 && t.links[i-1] == 0 {
				cut += l.x.At - t.looks[i-1].x.At
			} else {
				cut = 0
			}
		}
		e := l.est
		switch {
		case e.Never && e.Remaining != 0, e.Remaining < 0, e.Downtime < 0, e.Stalls < 0:
			return fmt.Sprintf("at %s the estimate is %+v", at, e)
		case len(l.due) > 1:
			return fmt.Sprintf("at %s there are %d actions at once", at, len(l.due))
		}
		over = over || l.x.postCopy()
		for _, a := range l.due {
			say := func(what string) string { return fmt.Sprintf("at %s: %s: %+v", at, what, a) }
			switch {
			case p.Schedule == nil && p.Deadline == 0 && !p.ladder():
				return say("an action though nothing is set")
			case over:
				return say("an action after the last")
			case a.Message == "" || a.Do == ActAbort && (a.Want == "" || a.Have == "" || a.Change == ""):
				return say("without words")
			case a.Observed != (p.Observe && a.Why == WhyStalled):
				return say("wrongly marked as observed")
			case a.Do == ActPostCopy && !p.PostCopyAllowed:
				return say("post-copy is not permitted")
			case a.Do == ActDowntime && a.Downtime <= ceiling:
				return say(fmt.Sprintf("no more than %s", ceiling))
			}
			if a.Do == ActSuspend && suspendedAt >= 0 {
				return say("it stands still")
			}
			switch a.Why {
			case WhyStalled:
				k := slices.IndexFunc(p.Schedule, func(s Step) bool { return s.Do == a.Do && s.Downtime == a.Downtime })
				switch {
				case k < 0 || taken[k]:
					return say("not a step that is left")
				case a.Do != ActDowntime && k < last:
					return say("out of order")
				case since < uint64(min(p.Schedule[k].After, evidence)) || a.Do != ActDowntime && since < uint64(p.Schedule[k].After):
					return say(fmt.Sprintf("after %d passes", since))
				case l.x.Phase == "disk" || l.x.Phase == "setup" || l.x.Suspended || suspendedAt >= 0:
					return say("not the time for it")
				case cut > 2500*time.Millisecond:
					return say("the link is down")
				}
				taken[k], since = true, 0
				if a.Do != ActDowntime {
					last = k
				}
			case WhyLadder:
				if !p.ladder() || a.Downtime > p.MaxDowntime || at < p.StepDelay*time.Duration(p.DataGiB) {
					return say("not on the ladder")
				}
			case WhyDeadline:
				if p.Deadline == 0 || at < p.Deadline || a.Do == ActAbort && p.atDeadline() != ActAbort && at < p.Deadline+p.Overtime() {
					return say("before its time")
				}
			default:
				return say("for no reason")
			}
			if a.Observed {
				continue
			}
			switch a.Do {
			case ActDowntime:
				ceiling = a.Downtime
			case ActSuspend:
				suspendedAt = at
			case ActAbort, ActPostCopy:
				over = true
			}
		}
		late := p.Deadline
		if p.atDeadline() != ActAbort {
			late += p.Overtime()
		}
		if p.Deadline > 0 && at >= late && !over {
			return fmt.Sprintf("at %s it is past %s and nothing was done", at, late)
		}
	}
	return ""
}

// rounds is how many trials the properties are held to.
const rounds = 400

func TestSee_KeepsItsPromises(t *testing.T) {
	acted := map[Act]int{}
	for seed := range uint64(rounds) {
		a := try(seed, State.See)
		if what := broken(a); what != "" {
			t.Fatalf("seed %d, plan %+v: %s", seed, a.plan, what)
		}
		for _, l := range a.looks {
			for _, d := range l.due {
				acted[d.Do]++
			}
		}
	}
	for _, do := range []Act{ActDowntime, ActSuspend, ActPostCopy, ActAbort} {
		if acted[do] < rounds/100 {
			t.Errorf("%s was asked for %d times in %d trials: they prove nothing", do, acted[do], rounds)
		}
	}
	t.Log(acted)
}

func TestSee_IsAFunction(t *testing.T) {
	for seed := range uint64(rounds / 10) {
		a := try(seed, State.See)
		// The same samples again, from states that are copies.
		var s State
		for i, l := range a.looks {
			before := s
			again, due, est := s.See(l.x, a.plan)
			s, _, _ = before.See(l.x, a.plan)
			if s != again || s != l.s || !slices.Equal(due, l.due) || est != l.est {
				t.Fatalf("seed %d, look %d: another answer", seed, i)
			}
		}
	}
}

// Near misses, each of which the properties must notice.
func TestProperties_NoticeBrokenDeciders(t *testing.T) {
	mutants := map[string]decider{
		"an action is repeated at the next look": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			if due != nil {
				n.next, n.left, n.over, n.suspended = s.next, s.left, s.over, s.suspended
			}
			if due != nil {
				n.stalls = s.stalls + 1
			}
			return n, due, e
		},
		"it goes on after post-copy": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			s.left = false
			x.Phase = "memory"
			return s.See(x, p)
		},
		"it goes on after an abort": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			s.over = false
			return s.See(x, p)
		},
		"the schedule begins anew": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			if s.next == len(p.Schedule) {
				s.next, s.asked = 0, 0
			}
			return s.See(x, p)
		},
		"a look counts as a pass": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			s.stalls += 2
			return s.See(x, p)
		},
		"what is observed is not marked": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			for i := range due {
				due[i].Observed = false
			}
			return n, due, e
		},
		"disks count as passes": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			if x.Phase == "disk" {
				x.Phase, x.MemoryTotal, x.MemoryRemaining, x.Iteration = "memory", 1, 1, uint64(x.At/time.Second)
				n, due, e := s.See(x, p)
				return n, due, e
			}
			return s.See(x, p)
		},
		"a guest that stands still is judged": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			x.Suspended, s.suspended = false, false
			return s.See(x, p)
		},
		"post-copy is asked for whoever may": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			p.PostCopyAllowed = true
			return s.See(x, p)
		},
		"a downtime is lowered": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			s.asked, s.ceiling = 0, min(s.ceiling, 100*time.Millisecond)
			return s.See(x, p)
		},
		"the deadline is early": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			p.Deadline -= p.Deadline / 10
			return s.See(x, p)
		},
		"the deadline is late": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			p.Deadline += p.Deadline / 10
			return s.See(x, p)
		},
		"the switch-over may last for ever": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			if len(due) > 0 && due[0].Do == ActAbort && due[0].Why == WhyDeadline && p.atDeadline() != ActAbort {
				return s, nil, e
			}
			return n, due, e
		},
		"a link that is down is the guest's fault": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			s.meter.slow = false
			if s.begun && x.MemoryProcessed == s.last.MemoryProcessed && !s.still() && x.At-s.first > 10*time.Second {
				s.stalls++
				s.last.Iteration, s.pass.iteration = 0, 0
				s.judged = 0
			}
			return s.See(x, p)
		},
		"the ladder goes on above its top": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			p.MaxDowntime *= 2
			return s.See(x, p)
		},
		"actions come in pairs": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			return n, append(due, due...), e
		},
		"an abort says nothing": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			for i := range due {
				due[i].Change = ""
			}
			return n, due, e
		},
		"steps are taken backwards": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			p.Schedule = slices.Clone(p.Schedule)
			slices.Reverse(p.Schedule)
			return s.See(x, p)
		},
		"never with a time": func(s State, x Sample, p Plan) (State, []Action, Estimate) {
			n, due, e := s.See(x, p)
			e.Remaining++
			return n, due, e
		},
	}
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(rounds) {
				if what := broken(try(seed, m)); what != "" {
					t.Logf("seed %d: %s", seed, what)
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
}
