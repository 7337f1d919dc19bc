package conductor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/converge"
	"berth/migration/options"
	"berth/migration/task"
)

// controls are the rows of what was done about a transfer: action, whether it was done, who
// asked.
func controls(m migration.Migration) (out []string) {
	for _, c := range m.Control {
		out = append(out, fmt.Sprintf("%s %v %s", c.Action.Do, c.Done, c.By))
	}
	return out
}

// TestPostCopy_TellsItsStory: statuses and steps of a guest that does not converge and leaves by
// post-copy, and of one whose options permit it and that does not need it.
func TestPostCopy_TellsItsStory(t *testing.T) {
	for _, busy := range []bool{true, false} {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: busy, want: completed}, faults{})
		w.latency = 100 * time.Millisecond
		var seen, phases []string
		w.watch = func(m migration.Migration) {
			if s := string(m.Status); len(seen) == 0 || seen[len(seen)-1] != s {
				seen = append(seen, s)
			}
			if m.Status == migration.StatusPostCopy && !slices.Contains(phases, m.Progress.Phase) {
				phases = append(phases, m.Progress.Phase)
			}
		}
		last := w.run()
		w.report("story")
		seen = slices.DeleteFunc(seen, func(s string) bool { return s == "accepted" })
		want := []string{"preparing", "running", "post-migrating", "completed"}
		var rows []string
		if busy {
			want = []string{"preparing", "running", "running (post-copy)", "post-migrating", "completed"}
			rows = []string{"post-copy true "}
			if !slices.Contains(phases, "post-copy") {
				t.Errorf("phases in post-copy: %v", phases)
			}
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("busy %v: statuses (-want +got):\n%s", busy, diff)
		}
		if diff := cmp.Diff(rows, controls(last)); diff != "" {
			t.Errorf("busy %v: what was done (-want +got):\n%s", busy, diff)
		}
		used := slices.ContainsFunc(last.Steps, func(s migration.StepRecord) bool { return s.Name == migration.StepPostCopy })
		if used != busy || (last.HandoverDowntime == 0) != busy {
			t.Errorf("busy %v: post-copy in its journal %v, hand-over %s", busy, used, last.HandoverDowntime)
		}
		if busy && last.Progress.PageRequests == 0 {
			t.Errorf("progress at the end: %+v", last.Progress)
		}
	}
}

// TestPostCopy_CostsNothingWhereItIsOnlyPermitted: no call, no look and no write more, so that
// the guest stands still for no longer.
func TestPostCopy_CostsNothingWhereItIsOnlyPermitted(t *testing.T) {
	var traces [][]string
	for _, o := range []migration.Options{{}, postCopyPermitted} {
		w := newWorld(t, 1, script{options: o, want: completed}, faults{})
		w.run()
		w.report("permitted")
		traces = append(traces, w.trace)
	}
	if diff := cmp.Diff(traces[0], traces[1]); diff != "" {
		t.Errorf("calls and writes (-without +permitted):\n%s", diff)
	}
}

// TestPostCopy_IsMadeWholeForAsLongAsItTakes: a link that is away for minutes is in doubt, in an
// operator's words, and nothing is taken back; the same where the job stands and nobody says so.
func TestPostCopy_IsMadeWholeForAsLongAsItTakes(t *testing.T) {
	for name, sc := range map[string]script{
		"broken": {breakAt: 2},
		"stands": {standsAt: 2},
	} {
		t.Run(name, func(t *testing.T) {
			sc.options, sc.busy, sc.brokenFor, sc.want = postCopyAfterStalls, true, 5*time.Minute, completed
			w := newWorld(t, 1, sc, faults{})
			doubts := 0
			w.watch = func(m migration.Migration) {
				if m.Outcome != migration.OutcomeInDoubt {
					return
				}
				doubts++
				if !errors.Is(m.Err(), fault.InDoubt) || !slices.Equal(codes(m.Err()), []string{"post_copy_broken"}) || m.Phase != task.Doing {
					t.Errorf("in doubt, %s: %v", m.Phase, m.Err())
				}
			}
			m := w.run()
			w.report(name)
			tries := 0
			for _, what := range w.trace {
				if what == "before RecoverPostCopy on a" {
					tries++
				}
			}
			// Patience is a minute of five; the pauses grow to half a minute.
			if doubts < 60 || tries < 8 || tries > 40 || m.Outcome != migration.OutcomeCompleted {
				t.Errorf("in doubt at %d looks, %d tries, %s", doubts, tries, m.Outcome)
			}
		})
	}
}

// takesWords has the source be one that takes words on a move.
func (w *world) takesWords() {
	w.configure = func(c *conductor.Config) {
		hosts := c.Hosts
		c.Hosts = func(ctx context.Context, name string) (migration.Host, error) {
			h, err := hosts(ctx, name)
			if err != nil || name != "a" {
				return h, err
			}
			return settling{h.(hostWire)}, nil
		}
	}
}

// TestPostCopy_OfAGuestThatEndsMeanwhile: its user has shut it down where it runs. It is the
// destination's, off, and nothing waits for memory that nobody needs; over restarts too.
func TestPostCopy_OfAGuestThatEndsMeanwhile(t *testing.T) {
	points := 0
	for crash := -1; crash < points; crash += max(1, stride/2) {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, endsAt: 2, want: completed}, faults{crash: map[int]bool{crash: true}})
		w.takesWords()
		var from int
		w.watch = func(m migration.Migration) {
			if from == 0 && m.Progress.Phase == "post-copy failed" {
				from = w.points
			}
		}
		m := w.run()
		w.report(fmt.Sprintf("crash at %d", crash))
		b := w.hosts["b"]
		if m.Outcome != migration.OutcomeCompleted || !b.owns() || b.domain == nil || b.domain.state != "shut off" || w.hosts["a"].domain != nil {
			t.Fatalf("crash at %d: %s, %v; there %v, here %v", crash, m.Outcome, m.Err(), b.domain, w.hosts["a"].domain)
		}
		if crash < 0 {
			crash, points = from-1, w.points
		}
	}
}

// TestPostCopy_StartedAgainAtItsDestination_NeedsNoMemory: the destination lost its power in
// post-copy, and somebody started the instance there again. A new process waits for no memory, so the
// move ends there. Where the hypervisor of the destination says less, an operator decides.
func TestPostCopy_StartedAgainAtItsDestination_NeedsNoMemory(t *testing.T) {
	for _, c := range []struct {
		there simDomain
		told  bool // an operator has to say it
	}{
		{simDomain{"running", "booted"}, false}, {simDomain{"running", "unpaused"}, true}, {simDomain{"paused", "user"}, true},
	} {
		t.Run(c.there.state+", "+c.there.reason, func(t *testing.T) {
			w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, breakAt: 2, brokenFor: time.Hour, want: completed}, faults{})
			w.takesWords()
			broken := func(m migration.Migration) bool { return m.Progress.Phase == "post-copy failed" }
			w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
				asked := move
				asked.Options = w.script.options
				if _, err := c.LiveMigrate(context.Background(), asked); err != nil {
					t.Fatal(err)
				}
				until(t, p, c, "broken", broken)
			})
			*w.hosts["b"].domain = c.there
			settled := c.told
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				if settled {
					until(t, p, c, "in doubt", func(m migration.Migration) bool {
						return m.Outcome == migration.OutcomeInDoubt && slices.Equal(codes(m.Err()), []string{"post_copy_not_awaited"})
					})
					if a := w.hosts["a"].domain; a == nil || !a.half() {
						t.Fatalf("nobody has said it, and the source has %v", a)
					}
					*w.hosts["b"].domain = simDomain{"running", "unpaused"}
					if _, err := c.Settle(context.Background(), moveUUID, migration.Settlement{GuestIsAt: "b", Why: "it was started there", By: "ops"}); err != nil {
						t.Fatal(err)
					}
				}
				if m := until(t, p, c, "done", migration.Migration.Done); m.Outcome != migration.OutcomeCompleted || !w.hosts["b"].owns() || w.hosts["a"].domain != nil {
					t.Errorf("%s, %v; here %v", m.Outcome, m.Err(), w.hosts["a"].domain)
				}
			})
			w.report("started again")
		})
	}
}

// TestPostCopy_MadeWholeWithTheBandwidthThatWasSet, not with the one that it began with.
func TestPostCopy_MadeWholeWithTheBandwidthThatWasSet(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, breakAt: 4, want: completed}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		asked := move
		asked.Options = w.script.options
		if _, err := c.LiveMigrate(context.Background(), asked); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "post-copy", func(m migration.Migration) bool { return m.Step == migration.StepFollowPostCopy })
		for _, b := range []uint64{1 << 20, 7 << 20} {
			if err := c.Tune(context.Background(), moveUUID, migration.Tuning{Bandwidth: b}, "ops"); err != nil {
				t.Fatal(err)
			}
		}
		until(t, p, c, "done", migration.Migration.Done)
	})
	w.report("bandwidth")
	if diff := cmp.Diff([]uint64{7 << 20}, w.hosts["a"].recovered); diff != "" {
		t.Errorf("made whole with (-want +got):\n%s", diff)
	}
}

// TestPostCopy_HandedOverBeforeIt: a second job that ended before it was post-copy let the guest
// run at the destination, and the source's libvirtd died before it heard of that. The guest does
// not go on here, nor is its copy there ended, before a person has looked.
func TestPostCopy_HandedOverBeforeIt(t *testing.T) {
	for _, ends := range []string{"a", "b"} {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, secondHeld: true}, faults{})
		w.takesWords()
		doubt := func(m migration.Migration) bool { return m.Outcome == migration.OutcomeInDoubt }
		w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
			asked := move
			asked.Options = w.script.options
			if _, err := c.LiveMigrate(context.Background(), asked); err != nil {
				t.Fatal(err)
			}
			until(t, p, c, "in doubt", doubt)
			if err := c.Abort(context.Background(), moveUUID); err != nil {
				t.Fatal(err)
			}
		})
		w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
			until(t, p, c, "in doubt after an abort and a restart", doubt)
			if a, b := w.hosts["a"].domain, w.hosts["b"].domain; a.state != "paused" || b == nil || b.state != "running" {
				t.Fatalf("the guest is %v here, %v there", a, b)
			}
			want := migration.OutcomeUndone
			if ends == "b" {
				w.hosts["b"].domain = nil
			} else {
				*w.hosts["a"].domain = simDomain{"shut off", "destroyed"}
				want = migration.OutcomeCompleted
				if _, err := c.Settle(context.Background(), moveUUID, migration.Settlement{GuestIsAt: "b", Why: "it runs there", By: "ops"}); err != nil {
					t.Fatal(err)
				}
				w.hosts["a"].seen = true // it commits by the word
			}
			if m := until(t, p, c, "done", migration.Migration.Done); m.Outcome != want {
				t.Errorf("its copy on %s ended: %s, %v", ends, m.Outcome, m.Err())
			}
		})
		w.report("the copy ends on " + ends)
	}
}

// TestPostCopy_WhoseOtherHalfIsLostIsAnOperators: nothing is guessed, over a restart of the agent
// either, until he has ended what cannot run.
func TestPostCopy_WhoseOtherHalfIsLostIsAnOperators(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, halfDiesAt: 3, want: completed}, faults{})
	w.takesWords()
	lost := func(m migration.Migration) bool {
		return m.Outcome == migration.OutcomeInDoubt && slices.Equal(codes(m.Err()), []string{"post_copy_lost"})
	}
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		asked := move
		asked.Options = w.script.options
		if _, err := c.LiveMigrate(context.Background(), asked); err != nil {
			t.Fatal(err)
		}
		m := until(t, p, c, "lost", lost)
		if m.Progress.Phase != "post-copy failed" || m.Status != migration.StatusError {
			t.Errorf("status %s, phase %s", m.Status, m.Progress.Phase)
		}
		if err := c.Abort(context.Background(), moveUUID); !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"post_copy_began"}) {
			t.Errorf("abort: %v", err)
		}
	})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		until(t, p, c, "lost after a restart", lost)
		_, err := c.Settle(context.Background(), moveUUID, migration.Settlement{GuestIsAt: "a", Why: "it was there", By: "ops"})
		if !slices.Equal(codes(err), []string{"destination_not_named"}) {
			t.Errorf("settled at the source: %v", err)
		}
		_, err = c.Settle(context.Background(), moveUUID, migration.Settlement{GuestIsAt: "b", Why: "it runs there", By: "ops"})
		if !slices.Equal(codes(err), []string{"half_there"}) {
			t.Errorf("settled at the destination: %v", err)
		}
		*w.hosts["b"].domain = simDomain{"shut off", "destroyed"}
		if m := until(t, p, c, "done", migration.Migration.Done); m.Outcome != migration.OutcomeCompleted || !w.hosts["b"].owns() {
			t.Errorf("outcome %s: %v", m.Outcome, m.Err())
		}
	})
	w.report("lost")
}

// TestPostCopy_EndsByItselfWhereTheDestinationSaysThatItIsWhole: a source whose libvirtd has
// forgotten why the domain is off is not asked for what it cannot say.
func TestPostCopy_EndsByItselfWhereTheDestinationSaysThatItIsWhole(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, halfDiesAt: 3, want: completed}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		asked := move
		asked.Options = w.script.options
		if _, err := c.LiveMigrate(context.Background(), asked); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "in doubt", func(m migration.Migration) bool { return m.Outcome == migration.OutcomeInDoubt })
		*w.hosts["b"].domain = simDomain{"running", "booted"} // somebody has reset it
		if m := until(t, p, c, "done", migration.Migration.Done); m.Outcome != migration.OutcomeCompleted {
			t.Errorf("outcome %s: %v", m.Outcome, m.Err())
		}
	})
	w.report("reset")
}

// TestAbort_AtEveryMomentOfPostCopy aborts in steps around the end of the first job and the
// beginning of post-copy: undone before it, forward from it on, refused in words, and never
// half a guest in two places.
func TestAbort_AtEveryMomentOfPostCopy(t *testing.T) {
	first, last := 12*time.Second, time.Duration(0)
	w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, want: completed}, faults{})
	w.latency = 30 * time.Millisecond
	w.watch = func(m migration.Migration) {
		if m.Step == migration.StepStream {
			first = w.sim.Elapsed()
		}
		if m.Step == migration.StepAcceptToken || m.Step == migration.StepFollowPostCopy && last == 0 {
			last = w.sim.Elapsed()
		}
	}
	w.run()
	outcomes := map[migration.Outcome]int{}
	var refused int
	for d := first - 500*time.Millisecond; d < last+500*time.Millisecond; d += 20 * time.Millisecond * time.Duration(min(stride, 10)) {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, abortAfter: d}, faults{})
		w.latency = 30 * time.Millisecond
		w.aborted = func(err error) {
			if err == nil {
				return
			}
			refused++
			if got := codes(err); !slices.Equal(got, []string{"post_copy_began"}) || !errors.Is(err, fault.Forbidden) {
				t.Errorf("abort at %s: %v", d, err)
			}
		}
		m := w.run()
		w.report(fmt.Sprintf("abort at %s", d))
		outcomes[m.Outcome]++
		if (m.Status == migration.StatusCancelled) != (m.Outcome == migration.OutcomeUndone) {
			t.Errorf("abort at %s: status %s, outcome %s", d, m.Status, m.Outcome)
		}
	}
	if outcomes[migration.OutcomeCompleted] == 0 || outcomes[migration.OutcomeUndone] == 0 || refused == 0 || len(outcomes) != 2 {
		t.Errorf("from %s to %s: outcomes %v, %d refused", first, last, outcomes, refused)
	}
}

// TestForceComplete_AtEveryMoment: a wish that meets a schedule's own action, the end of the first
// job or the second one is the same move.
func TestForceComplete_AtEveryMoment(t *testing.T) {
	for d := 2 * time.Second; d < 14*time.Second; d += 500 * time.Millisecond * time.Duration(min(stride, 10)) {
		for _, o := range []migration.Options{postCopyAfterStalls, {Schedule: "2:suspend"}} {
			w := newWorld(t, 1, script{options: o, busy: true, forceAfter: d, want: completed}, faults{})
			w.latency = 30 * time.Millisecond
			m := w.run()
			w.report(fmt.Sprintf("forced at %s, %s", d, o.Schedule))
			done := 0
			for _, c := range m.Control {
				if c.Done {
					done++
				}
			}
			if done == 0 {
				t.Errorf("forced at %s: nothing was done: %+v", d, m.Control)
			}
		}
	}
}

func TestForceComplete_IsRefusedInWords(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyPermitted, busy: true, want: completed}, faults{})
	w.latency = 50 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		refused := func(when, code string) {
			t.Helper()
			err := c.ForceComplete(ctx, moveUUID, "ops")
			if !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{code}) || fault.ReasonsOf(err)[0].Change == "" {
				t.Errorf("%s: %v", when, err)
			}
		}
		if err := c.ForceComplete(ctx, moveUUID, "ops"); !errors.Is(err, fault.NotFound) {
			t.Errorf("of nothing: %v", err)
		}
		asked := move
		asked.Options = w.script.options
		if _, err := c.LiveMigrate(ctx, asked); err != nil {
			t.Fatal(err)
		}
		refused("before the stream", "not_streaming")
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		for range 3 {
			if err := c.ForceComplete(ctx, moveUUID, "ops"); err != nil {
				t.Errorf("while it streams: %v", err)
			}
		}
		until(t, p, c, "in post-copy", func(m migration.Migration) bool { return m.Step == migration.StepFollowPostCopy })
		refused("in post-copy", "post_copy_began")
		m := until(t, p, c, "done", migration.Migration.Done)
		refused("after the end", "not_streaming")
		if diff := cmp.Diff([]string{"post-copy true ops"}, controls(m)); diff != "" {
			t.Errorf("what was done (-want +got):\n%s", diff)
		}
	})
	w.report("forced")
}

// TestTune_InEveryPart: both bounds of a stream, the bandwidth alone of a post-copy, none before
// and after; each is a row, and is still there when the agent has been started anew.
func TestTune_InEveryPart(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyPermitted, busy: true, want: completed}, faults{})
	ctx := context.Background()
	downtime, bandwidth := migration.Tuning{MaxDowntime: 700 * time.Millisecond}, migration.Tuning{Bandwidth: 1 << 27}
	tune := func(c *conductor.Conductor, when string, tuning migration.Tuning, want ...string) {
		t.Helper()
		if err := c.Tune(ctx, moveUUID, tuning, "ops"); !slices.Equal(codes(err), want) || (err == nil) != (len(want) == 0) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
	w.inProcessThen(func(p *simruntime.Process, c *conductor.Conductor) {
		asked := move
		asked.Options = w.script.options
		if _, err := c.LiveMigrate(ctx, asked); err != nil {
			t.Fatal(err)
		}
		tune(c, "before the stream", bandwidth, "not_streaming")
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		tune(c, "streaming", migration.Tuning{MaxDowntime: downtime.MaxDowntime, Bandwidth: bandwidth.Bandwidth})
		if err := c.Tune(ctx, moveUUID, migration.Tuning{Suspend: true}, "ops"); !errors.Is(err, fault.Invalid) {
			t.Errorf("suspended by tuning: %v", err)
		}
		_ = p.Sleep(ctx, time.Second) // the next look writes it
	})
	rows := []string{"bandwidth true ops", "max-downtime true ops"}
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		m := until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		if diff := cmp.Diff(rows, controls(m)); diff != "" {
			t.Errorf("after a restart (-want +got):\n%s", diff)
		}
		if err := c.ForceComplete(ctx, moveUUID, "ops"); err != nil {
			t.Error(err)
		}
		until(t, p, c, "in post-copy", func(m migration.Migration) bool { return m.Step == migration.StepFollowPostCopy })
		tune(c, "downtime in post-copy", downtime, "post_copy_began")
		tune(c, "bandwidth in post-copy", bandwidth)
		m = until(t, p, c, "done", migration.Migration.Done)
		tune(c, "after the end", bandwidth, "not_streaming")
		if diff := cmp.Diff(append(rows, "post-copy true ops", "bandwidth true ops"), controls(m)); diff != "" {
			t.Errorf("at the end (-want +got):\n%s", diff)
		}
	})
	w.report("tuned")
	if got := w.hosts["a"].tuned; len(got) != 2 || got[0].MaxDowntime != downtime.MaxDowntime || got[1] != bandwidth {
		t.Errorf("the jobs were tuned with %+v", got)
	}
}

// TestSchedule_IsDoneInOrderAndTold: downtime, then the abort whose reason is the move's.
func TestSchedule_IsDoneInOrderAndTold(t *testing.T) {
	o := migration.Options{Schedule: "2:max-downtime=800ms, 2:abort"}
	w := newWorld(t, 1, script{options: o, busy: true, want: undone}, faults{})
	m := w.run()
	w.report("abort by schedule")
	if got := codes(m.Err()); m.Status != migration.StatusFailed || len(got) != 1 || !strings.Contains(m.Err().Error(), "memory") {
		t.Errorf("status %s: %v with %v", m.Status, m.Err(), got)
	}
	if got := controls(m); len(got) == 0 || got[len(got)-1] != "abort true " {
		t.Errorf("what was done: %v", got)
	}

	o.Observe = options.On
	o.Timeout = time.Minute
	w = newWorld(t, 1, script{options: o, busy: true, want: undone}, faults{})
	m = w.run()
	w.report("observed")
	for i, c := range m.Control {
		if c.Action.Do == converge.ActAbort && c.Done && i < len(m.Control)-1 || c.Action.Do == converge.ActDowntime && c.Done {
			t.Errorf("row %d was done, though it is only observed: %+v", i, c)
		}
	}
	if got := codes(m.Err()); !slices.Equal(got, []string{"timeout"}) || len(m.Control) < 2 {
		t.Errorf("%v with %v; %v", m.Err(), got, controls(m))
	}
}

// TestSteer_AsksAgainWhatCouldNotBeDone: a hypervisor that is silent for a moment does not lose
// an action, and it is told once.
func TestSteer_AsksAgainWhatCouldNotBeDone(t *testing.T) {
	reference := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, want: completed}, faults{})
	reference.run()
	i := slices.Index(reference.trace, "before EndStream on a")
	if i < 0 {
		t.Fatal("no stream was ended")
	}
	for _, f := range []faults{{requests: map[int]bool{i: true}}, {answers: map[int]bool{i: true}}} {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, want: completed}, f)
		m := w.run()
		w.report("EndStream lost")
		if got := controls(m); got[len(got)-1] != "post-copy true " || len(got) > 2 {
			t.Errorf("what was done: %v", got)
		}
	}
}

// TestPostCopy_IsDroppedForAGuestThatCannot, and says so; one who asked for it by name is
// refused before anything has moved.
func TestPostCopy_IsDroppedForAGuestThatCannot(t *testing.T) {
	why := fault.Reason{Code: "vfio", Message: "a device of the host is the guest's own"}
	for _, from := range []options.From{options.FromConfig, options.FromRequest} {
		w := newWorld(t, 1, script{options: postCopyPermitted, busy: true, forceAfter: 5 * time.Second}, faults{})
		w.drops = &why
		w.script.request.OptionsFrom = map[string]options.From{"post_copy": from}
		m := w.run()
		w.report(string(from))
		want, outcome := []string{"post-copy false ", "suspend true ops"}, migration.OutcomeCompleted
		if from == options.FromRequest {
			want, outcome = nil, migration.OutcomeUndone
		}
		if diff := cmp.Diff(want, controls(m)[:min(len(want), len(m.Control))]); diff != "" || m.Outcome != outcome {
			t.Errorf("from %s: outcome %s (%v), what was done (-want +got):\n%s", from, m.Outcome, m.Err(), diff)
		}
		if from == options.FromRequest && !slices.Equal(codes(m.Err()), []string{"vfio"}) {
			t.Errorf("refused: %v", m.Err())
		}
		if from == options.FromConfig && (m.Control[0].Action.Why != "vfio" || m.Control[0].Error == "") {
			t.Errorf("dropped: %+v", m.Control[0])
		}
		if slices.ContainsFunc(w.trace, func(what string) bool { return strings.Contains(what, "StartPostCopy") }) {
			t.Errorf("from %s: it went by post-copy", from)
		}
	}
}

// TestPostCopy_HasTheAttemptsTime: what is over in the second job is undone, and in post-copy
// only forward is left, whatever the time.
func TestPostCopy_HasTheAttemptsTime(t *testing.T) {
	outcomes := map[migration.Outcome]int{}
	for d := 6 * time.Second; d < 20*time.Second; d += 500 * time.Millisecond * time.Duration(min(stride, 8)) {
		w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true}, faults{})
		w.configure = func(c *conductor.Config) { c.AttemptTimeout = d }
		m := w.run()
		w.report(fmt.Sprintf("a time of %s", d))
		outcomes[m.Outcome]++
		if m.Outcome == migration.OutcomeUndone && !slices.Equal(codes(m.Err()), []string{"attempt_deadline"}) {
			t.Errorf("a time of %s: %v", d, m.Err())
		}
	}
	if outcomes[migration.OutcomeCompleted] == 0 || outcomes[migration.OutcomeUndone] == 0 || len(outcomes) != 2 {
		t.Errorf("outcomes %v", outcomes)
	}
}

// TestPostCopy_KeepsTheClaimThroughASlowSecondJob: its lease is renewed until the token is
// accepted.
func TestPostCopy_KeepsTheClaimThroughASlowSecondJob(t *testing.T) {
	w := newWorld(t, 1, script{options: postCopyAfterStalls, busy: true, secondTakes: 50 * time.Second, want: completed}, faults{})
	w.configure = func(c *conductor.Config) { c.Lease = 15 * time.Second }
	w.run()
	w.report("slow second job")
	begun, renewed := slices.Index(w.trace, "before StartPostCopy on a"), 0
	for _, what := range w.trace[max(begun, 0):slices.Index(w.trace, "before AcceptToken on b")] {
		if what == "before RenewClaim on b" {
			renewed++
		}
	}
	if begun < 0 || renewed < 5 {
		t.Errorf("the claim was renewed %d times in the second job", renewed)
	}
}
