package conductor_test

import (
	"context"
	"errors"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
	"berth/placementclient"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(800) // runs are short and their memory is small
	goleak.VerifyTestMain(m)
}

// codes are the reasons' codes, in order.
func codes(err error) []string {
	var out []string
	for _, r := range fault.ReasonsOf(err) {
		out = append(out, r.Code)
	}
	return out
}

// TestLiveMigrate_RefusalsLeaveNothing: a refusal says every reason, and there is
// no record, journal, claim, allocation or domain more than before.
func TestLiveMigrate_RefusalsLeaveNothing(t *testing.T) {
	ask := func(dest string) conductor.Request {
		return conductor.Request{Instance: guestUUID, Destination: dest, Migration: moveUUID}
	}
	for _, tt := range []struct {
		name    string
		request conductor.Request
		prepare func(*world)
		kind    fault.Kind
		codes   []string
	}{
		{"no memory on the destination", ask("b"), func(w *world) { w.hosts["b"].capacity.MemoryMB = 1000 }, fault.DoesNotFit, []string{"memory_short"}},
		{"two reasons at once", ask("b"), func(w *world) {
			w.hosts["b"].capacity.MemoryMB = 1000
			w.hosts["b"].domain = &simDomain{"shut off", "unknown"}
		}, fault.DoesNotFit, []string{"memory_short", "domain_exists"}},
		{"no room anywhere", ask(""), func(w *world) { w.placement.full["rp-b"] = true }, fault.DoesNotFit, []string{"no_candidate"}},
		{"the same host", ask("a"), nil, fault.Forbidden, []string{"same_host"}},
		{"the same host, and stopped", ask("a"), func(w *world) { *w.hosts["a"].domain = simDomain{"shut off", "shutdown"} },
			fault.Forbidden, []string{"guest_not_running", "same_host"}},
		{"the same host under another name", ask("b"), func(w *world) { w.hosts["b"].provider = "rp-a" }, fault.Forbidden, []string{"same_host"}},
		{"a stopped guest", ask("b"), func(w *world) { *w.hosts["a"].domain = simDomain{"shut off", "shutdown"} }, fault.Forbidden, []string{"guest_not_running"}},
		{"a host that does not exist", ask("nowhere"), nil, fault.NotFound, nil},
		{"a guest that does not exist", conductor.Request{Instance: strings.Replace(guestUUID, "1", "9", 1), Destination: "b", Migration: moveUUID}, nil, fault.NotFound, []string{migration.ReasonGuestGone}},
		{"a peer that does not answer", ask("b"), func(w *world) { w.hosts["b"].cut = true }, fault.Unavailable, nil},
		{"a Placement that is down, named", ask("b"), func(w *world) { w.placement.down = true }, fault.Unavailable, nil},
		{"a Placement that is down", ask(""), func(w *world) { w.placement.down = true }, fault.Unavailable, nil},
		{"libvirt that does not answer", ask("b"), func(w *world) { w.hosts["a"].deaf = true }, fault.Unavailable, nil},
		{"an action that is not known", conductor.Request{Instance: guestUUID, Migration: moveUUID, Options: migration.Options{TimeoutAction: "explode", Timeout: -1}},
			nil, fault.Invalid, []string{"option_value", "option_value"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, script{}, faults{})
			if tt.prepare != nil {
				tt.prepare(w)
			}
			before := w.picture()
			var err error
			w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
				_, err = c.LiveMigrate(context.Background(), tt.request)
				if all, _ := c.List(context.Background()); len(all) > 0 {
					t.Errorf("a record is left: %+v", all)
				}
			})
			if !errors.Is(err, tt.kind) {
				t.Errorf("error %v of kind %s, want %s", err, fault.KindOf(err), tt.kind)
			}
			if diff := cmp.Diff(tt.codes, codes(err)); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, w.picture()); diff != "" {
				t.Errorf("something is left (-before +after):\n%s", diff)
			}
		})
	}
}

// picture is everything durable of a world, to compare.
func (w *world) picture() map[string][]string {
	out := map[string][]string{}
	for name, h := range w.hosts {
		out[name] = append(slices.Sorted(maps.Keys(h.claims)), slices.Sorted(maps.Keys(h.made))...)
		if h.domain != nil {
			out[name] = append(out[name], h.domain.state)
		}
	}
	out["consumers"] = slices.Sorted(maps.Keys(w.placement.consumers))
	for bucket, b := range w.store.data {
		if len(b) > 0 {
			out[bucket] = slices.Sorted(maps.Keys(b))
		}
	}
	return out
}

// inProcess runs f as an actor of a conductor that Run drives, and ends both.
func (w *world) inProcess(f func(*simruntime.Process, *conductor.Conductor)) {
	w.t.Helper()
	w.inProcessThen(f)
	w.sim.Shutdown()
}

// inProcessThen kills the conductor's process after f, and leaves the world as it is
// then.
func (w *world) inProcessThen(f func(*simruntime.Process, *conductor.Conductor)) {
	w.t.Helper()
	w.asked = true
	w.boot()
	done := false
	w.process.Go("test", func() {
		_ = w.process.Sleep(context.Background(), time.Second)
		f(w.process, w.conductor)
		done = true
	})
	if err := w.sim.Run(time.Hour, func() bool { return done }); err != nil {
		w.t.Error(err)
	}
	w.process.Kill()
}

// restart starts the conductor, again after each crash, until it has come to an end.
func (w *world) restart(over func(*conductor.Conductor) bool) {
	w.t.Helper()
	w.asked = true
	w.boot()
	w.init.Go("time", func() {
		for {
			_ = w.init.Sleep(context.Background(), 250*time.Millisecond)
			if w.process.Dead() {
				w.boot()
			}
		}
	})
	var rest time.Duration
	if err := w.sim.Run(time.Hour, func() bool {
		if w.process.Dead() || !over(w.conductor) {
			rest = 0
		} else if rest == 0 {
			rest = w.sim.Elapsed()
		}
		return rest > 0 && w.sim.Elapsed() > rest+2*time.Second // its journal goes after its end is told
	}); err != nil {
		w.t.Error(err)
	}
	w.sim.Shutdown()
}

// until sleeps until the migration is as asked, or fails.
func until(t *testing.T, p *simruntime.Process, c *conductor.Conductor, what string, is func(migration.Migration) bool) migration.Migration {
	t.Helper()
	var m migration.Migration
	for range 10_000 {
		var err error
		if m, err = c.Get(context.Background(), moveUUID); err == nil && is(m) {
			return m
		}
		_ = p.Sleep(context.Background(), 20*time.Millisecond)
	}
	t.Errorf("never %s: status %s, step %s, error %v", what, m.Status, m.Step, m.Error)
	return m
}

var move = conductor.Request{Instance: guestUUID, Migration: moveUUID}

func TestLiveMigrate_OneAtATime(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		first, err := c.LiveMigrate(context.Background(), move)
		if err != nil || first.Status != migration.StatusAccepted || first.InstanceName != "vm1" {
			t.Fatalf("%+v, %v", first, err)
		}
		if again, err := c.LiveMigrate(context.Background(), move); err != nil || again.UUID != first.UUID {
			t.Errorf("the same request again: %v, %v; want the migration it made", again.UUID, err)
		}
		_, err = c.LiveMigrate(context.Background(), conductor.Request{Instance: guestUUID})
		if !errors.Is(err, fault.Busy) || !strings.Contains(err.Error(), moveUUID) {
			t.Errorf("a second request: %v, want busy that names %s", err, moveUUID)
		}
		until(t, p, c, "done", migration.Migration.Done)
		if _, err = c.LiveMigrate(context.Background(), conductor.Request{Instance: guestUUID}); errors.Is(err, fault.Busy) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestMigration_TellsItsStory(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.latency = 100 * time.Millisecond
	var seen []string
	var last migration.Migration
	w.watch = func(m migration.Migration) {
		if s := string(m.Status); len(seen) == 0 || seen[len(seen)-1] != s {
			seen = append(seen, s)
		}
	}
	last = w.run()
	w.report("story")
	seen = slices.DeleteFunc(seen, func(s string) bool { return s == "accepted" }) // too short to be seen each time
	if diff := cmp.Diff([]string{"preparing", "running", "post-migrating", "completed"}, seen); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	var names []string
	for _, s := range last.Steps {
		if names = append(names, s.Name); s.State != task.StepEnded || s.Ended.Before(s.Begun) {
			t.Errorf("step %+v", s)
		}
	}
	want := []string{"inspect_source", "choose_destination", "check_destination", "claim", "swap_allocations", "check_source", "record_context",
		"pre_live_migration", "stream", "commit", "accept_token", "finish_destination", "clean_up_source", "delete_migration_allocation"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	// Two verbs, and no look in between.
	if d := last.HandoverDowntime; d != 2*w.latency {
		t.Errorf("hand-over took %s, want two verbs of %s", d, w.latency)
	}
	if last.SourceCompute != "a" || last.DestCompute != "b" || last.MigrationType != "live-migration" || last.Err() != nil || last.Progress.MemoryProcessed == 0 {
		t.Errorf("record %+v", last)
	}
}

func TestMigration_HoldsTwoConsumersWhileItRuns(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.LiveMigrate(context.Background(), move); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		inst, mig := w.placement.consumers[guestUUID], w.placement.consumers[moveUUID]
		if inst == nil || mig == nil || inst.Allocations["rp-b"] == nil || mig.Allocations["rp-a"] == nil || mig.ConsumerType != placementclient.ConsumerMigration {
			t.Errorf("instance %+v, migration %+v; want the instance on b and the migration on a", inst, mig)
		}
		until(t, p, c, "done", migration.Migration.Done)
	})
}

func TestLive_HealsTheAllocationOrRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		have map[string]placementclient.Resources
		want migration.Outcome
	}{
		{"absent", nil, migration.OutcomeCompleted},
		{"other amounts", map[string]placementclient.Resources{"rp-a": {"VCPU": 1}}, migration.OutcomeCompleted},
		{"doubled", map[string]placementclient.Resources{"rp-a": {"VCPU": 2}, "rp-b": {"VCPU": 2}}, migration.OutcomeCompleted},
		{"on nobody's provider", map[string]placementclient.Resources{"rp-c": {"VCPU": 2}}, migration.OutcomeRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 1, script{}, faults{})
			if tt.have == nil {
				delete(w.placement.consumers, guestUUID)
			} else {
				w.placement.consumers[guestUUID].Allocations = tt.have
			}
			m := w.run()
			if m.Outcome != tt.want {
				t.Errorf("outcome %s (%v), want %s", m.Outcome, m.Error, tt.want)
			}
			if tt.want == migration.OutcomeCompleted {
				w.report(tt.name)
			} else if got := codes(m.Err()); !slices.Equal(got, []string{"allocation_elsewhere", "provider_unknown"}) {
				t.Errorf("reasons %v", got)
			}
		})
	}
}

func TestLive_TellsAllRefusalsTogether(t *testing.T) {
	w := newWorld(t, 1, script{hosts: []string{"a", "b", "c"}, refuse: []string{"b", "c"}}, faults{})
	m := w.run()
	w.report("refusals")
	if got := codes(m.Err()); !slices.Equal(got, []string{"pages_short", "pages_short"}) || !errors.Is(m.Err(), fault.DoesNotFit) {
		t.Errorf("%v with reasons %v, want both hosts'", m.Err(), got)
	}
	if text := m.Err().Error(); !strings.Contains(text, ": b: ") || !strings.Contains(text, "; c: ") {
		t.Errorf("%q does not name both hosts", text)
	}
	if len(m.Refusals) != 2 || m.Refusals[0].DestCompute != "b" {
		t.Errorf("refusals %+v", m.Refusals)
	}
}

func TestLive_LosesTheRaceForRoomAndTriesTheNext(t *testing.T) {
	w := newWorld(t, 1, script{hosts: []string{"a", "b", "c"}}, faults{})
	// Placement gives b as a candidate, and has no room there when the swap comes.
	w.placement.lateFull = "rp-b"
	m := w.run()
	w.report("race")
	if m.Outcome != migration.OutcomeCompleted || m.DestCompute != "c" || m.Attempt != 2 {
		t.Errorf("outcome %s at %s in attempt %d, want completed at c in 2 (%v)", m.Outcome, m.DestCompute, m.Attempt, m.Error)
	}
}

// TestLive_ASourceThatTakesNoWriteEndsTheMove: Placement refuses all that touches a
// source of which an operator took back what its guests hold, the undo's write too. No
// other destination would help.
func TestLive_ASourceThatTakesNoWriteEndsTheMove(t *testing.T) {
	w := newWorld(t, 1, script{hosts: []string{"a", "b", "c"}}, faults{})
	w.placement.lateFull = "rp-a"
	m := w.run()
	w.report("overfull")
	if m.Outcome != migration.OutcomeUndone || m.Attempt != 1 || len(m.Error.Reasons) == 0 || m.Error.Reasons[0].Code != "source_overfull" {
		t.Errorf("outcome %s in attempt %d: %+v", m.Outcome, m.Attempt, m.Error)
	}
}

// TestAbort_NeverEndsTheOnlyWholeCopy aborts a move of which nobody can say
// whether the guest has left: its source is off for no known reason, and a whole
// copy is at the destination. To keep the guest at the source would end that copy.
func TestAbort_NeverEndsTheOnlyWholeCopy(t *testing.T) {
	w := newWorld(t, 1, script{unseen: true}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.LiveMigrate(ctx, move); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "in doubt", func(m migration.Migration) bool { return m.Outcome == migration.OutcomeInDoubt })
		if err := c.Abort(ctx, moveUUID); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "in doubt while it is undone", func(m migration.Migration) bool {
			return m.Done() || m.Phase == task.Undoing && m.Status == migration.StatusError
		})
		if d := w.hosts["b"].domain; d == nil || d.state != "paused" {
			t.Fatalf("the copy at the destination: %+v", d)
		}
		w.hosts["a"].seen = true // an operator has looked, and says so
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.Outcome != migration.OutcomeCompleted {
			t.Errorf("outcome %s: %v", m.Outcome, m.Err())
		}
	})
}

func TestLive_SaysWhatItWaitsFor(t *testing.T) {
	t.Run("source silent", func(t *testing.T) {
		w := newWorld(t, 1, script{deaf: [2]time.Duration{4 * time.Second, 3 * time.Minute}, want: completed}, faults{})
		doubts := 0
		w.watch = func(m migration.Migration) {
			if m.Outcome == migration.OutcomeInDoubt {
				doubts++
				if m.Status != migration.StatusError || !errors.Is(m.Err(), fault.InDoubt) || !strings.Contains(m.Err().Error(), "does not answer") {
					t.Errorf("status %s: %v", m.Status, m.Err())
				}
			}
		}
		w.run()
		w.report("silent source")
		if doubts < 60 {
			t.Errorf("in doubt at %d looks, want for about two minutes", doubts)
		}
	})
	t.Run("undo cannot be done", func(t *testing.T) {
		w := newWorld(t, 1, script{failAt: 2, cut: map[string][2]time.Duration{"b": {2 * time.Second, 40 * time.Second}}, want: undone}, faults{})
		stuck := 0
		w.watch = func(m migration.Migration) {
			if m.Phase == task.Undoing && m.Status == migration.StatusError {
				stuck++
				if w.hosts["a"].domain.state != "running" || w.placement.consumers[guestUUID].Allocations["rp-a"] == nil {
					t.Error("the guest and its allocation wait for the peer")
				}
				if !errors.Is(m.Err(), fault.InDoubt) || !strings.Contains(m.Err().Error(), "no route to host") {
					t.Errorf("error %v", m.Err())
				}
			}
		}
		m := w.run()
		w.report("stuck undo")
		if stuck < 60 || !errors.Is(m.Err(), fault.Undone) {
			t.Errorf("stuck at %d looks, then %v", stuck, m.Err())
		}
	})
}

func TestAbort_IsRefusedWhenTheGuestHasLeft(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.latency = 50 * time.Millisecond
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if err := c.Abort(ctx, moveUUID); !errors.Is(err, fault.NotFound) {
			t.Errorf("abort of nothing: %v", err)
		}
		if _, err := c.LiveMigrate(ctx, move); err != nil {
			t.Fatal(err)
		}
		if err := c.Tune(ctx, moveUUID, migration.Tuning{Bandwidth: 1}, "ops"); !errors.Is(err, fault.Forbidden) {
			t.Errorf("tune before the stream: %v", err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		if err := c.Tune(ctx, moveUUID, migration.Tuning{Bandwidth: 1}, "ops"); err != nil {
			t.Errorf("tune: %v", err)
		}
		until(t, p, c, "at the commit", func(m migration.Migration) bool { return m.Step == migration.StepCommit })
		err := c.Abort(ctx, moveUUID)
		if !errors.Is(err, fault.Forbidden) || !slices.Equal(codes(err), []string{"past_point_of_no_return"}) {
			t.Errorf("abort at the commit: %v", err)
		}
		m := until(t, p, c, "done", migration.Migration.Done)
		if m.AbortRequested || m.Outcome != migration.OutcomeCompleted {
			t.Errorf("abort requested %v, outcome %s", m.AbortRequested, m.Outcome)
		}
		if err := c.Abort(ctx, moveUUID); !errors.Is(err, fault.Forbidden) {
			t.Errorf("abort after the end: %v", err)
		}
	})
}

func TestLiveMigrate_RefusesAUUIDThatIsSomebodyElses(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		for _, tt := range []struct {
			uuid string
			kind fault.Kind
		}{
			{guestUUID, fault.Exists}, // its end would delete the instance's allocation
			{"my-move", fault.Invalid},
		} {
			asked := move
			asked.Migration = tt.uuid
			if _, err := c.LiveMigrate(ctx, asked); fault.KindOf(err) != tt.kind {
				t.Errorf("migration %s: %v, want %s", tt.uuid, err, tt.kind)
			}
		}
		// One consumer would be both.
		held := w.placement.consumers[guestUUID]
		delete(w.placement.consumers, guestUUID)
		if _, err := c.LiveMigrate(ctx, conductor.Request{Instance: guestUUID, Migration: guestUUID}); !errors.Is(err, fault.Exists) {
			t.Errorf("by the uuid of an instance that holds nothing yet: %v", err)
		}
		w.placement.consumers[guestUUID] = held
		if _, err := c.LiveMigrate(ctx, move); err != nil {
			t.Fatal(err)
		}
		other := move
		other.Instance = "99999999-9999-4999-8999-999999999999"
		if _, err := c.LiveMigrate(ctx, other); !errors.Is(err, fault.Exists) {
			t.Errorf("another instance by the same uuid: %v", err)
		}
		if m, err := c.LiveMigrate(ctx, move); err != nil || m.UUID != moveUUID {
			t.Errorf("the same request again: %s, %v", m.UUID, err)
		}
		until(t, p, c, "done", migration.Migration.Done)
	})
}

func TestWatch_GivesTheNewestAndEnds(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx, cancel := context.WithCancel(context.Background())
		if _, err := c.Watch(ctx, moveUUID); !errors.Is(err, fault.NotFound) {
			t.Errorf("watch of nothing: %v", err)
		}
		if _, err := c.LiveMigrate(ctx, move); err != nil {
			t.Fatal(err)
		}
		slow, err := c.Watch(ctx, moveUUID)
		if err != nil {
			t.Fatal(err)
		}
		if m := <-slow; m.Status != migration.StatusAccepted {
			t.Errorf("first state %s", m.Status)
		}
		until(t, p, c, "done", migration.Migration.Done)
		// The slow reader was asleep all the time.
		if m, open := <-slow; !open || m.Status != migration.StatusCompleted {
			t.Errorf("newest state %s (open %v), want completed", m.Status, open)
		}
		if _, open := <-slow; open {
			t.Error("the channel goes on after the end")
		}
		late, err := c.Watch(ctx, moveUUID)
		if err != nil {
			t.Fatal(err)
		}
		if m := <-late; !m.Done() {
			t.Errorf("watched after the end: %s", m.Status)
		}
		if _, open := <-late; open {
			t.Error("the channel of a migration that is over stays open")
		}
		cancel()
	})
}

func TestRun_StopsWithoutTouchingTheMove(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	ctx, stop := context.WithCancel(context.Background())
	var ran error
	stopped := false
	w.asked = true
	w.boot()
	// A conductor of its own, whose Run can be stopped.
	p := w.sim.Process("agent", "boot")
	w.process.Kill()
	w.process = p
	c := conductor.New(conductor.Config{Runtime: p, Store: storeWire{w, p}, Local: "a", Placement: placementWire{w, p},
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return hostWire{w, p, w.hosts[name]}, nil
		}})
	w.conductor = c
	p.Go("run", func() { ran = c.Run(ctx); stopped = true })
	p.Go("test", func() {
		_ = p.Sleep(context.Background(), time.Second)
		if _, err := c.LiveMigrate(context.Background(), move); err != nil {
			t.Error(err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
		stop()
	})
	if err := w.sim.Run(time.Hour, func() bool { return stopped }); err != nil {
		t.Fatal(err)
	}
	if ran != nil {
		t.Errorf("Run: %v, want nil when told to stop", ran)
	}
	if !w.hosts["a"].job.running || len(w.store.data["tasks"]) != 1 {
		t.Errorf("job in flight %v, %d journals; want the move left as it is", w.hosts["a"].job.running, len(w.store.data["tasks"]))
	}
	// The next agent adopts the job and finishes.
	p.Kill()
	m := w.run()
	w.report("after a graceful stop")
	if m.Outcome != migration.OutcomeCompleted {
		t.Errorf("outcome %s", m.Outcome)
	}
}

func TestRun_KeepsABrokenJournalAside(t *testing.T) {
	w := newWorld(t, 1, script{}, faults{})
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		if _, err := c.LiveMigrate(context.Background(), move); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "streaming", func(m migration.Migration) bool { return m.Step == migration.StepStream })
	})
	w2 := newWorld(t, 1, script{}, faults{})
	w2.store.data = w.store.data
	for id := range w2.store.data["tasks"] {
		w2.store.data["tasks"][id] = []byte(`{"id":"`)
	}
	w2.inProcess(func(_ *simruntime.Process, c *conductor.Conductor) {
		m, err := c.Get(context.Background(), moveUUID)
		if err != nil || m.Outcome != migration.OutcomeInDoubt || !errors.Is(m.Err(), fault.InDoubt) {
			t.Errorf("%+v, %v; want in doubt", m, err)
		}
		if _, err := c.LiveMigrate(context.Background(), conductor.Request{Instance: guestUUID}); !errors.Is(err, fault.Busy) {
			t.Errorf("another migration of a guest whose last one is not known: %v", err)
		}
	})
}

func TestList_KeepsTheNewestFinished(t *testing.T) {
	w := newWorld(t, 1, script{refuse: []string{"b"}}, faults{})
	w.configure = func(c *conductor.Config) { c.KeepFinished = 3 }
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		for range 5 {
			m, err := c.LiveMigrate(context.Background(), conductor.Request{Instance: guestUUID})
			if err != nil {
				t.Fatal(err)
			}
			for !m.Done() {
				_ = p.Sleep(context.Background(), time.Second)
				if m, err = c.Get(context.Background(), m.UUID); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = p.Sleep(context.Background(), time.Second)
		if all, _ := c.List(context.Background()); len(all) != 3 || len(w.store.data["migrations"]) != 3 {
			t.Errorf("%d records, %d stored; want 3", len(all), len(w.store.data["migrations"]))
		}
	})
}
