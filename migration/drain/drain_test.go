package drain_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
)

var ask = drain.Request{Kind: drain.KindDrain, By: "operator:alice"}

func TestDrain_EmptiesTheHostWithinItsLimit(t *testing.T) {
	w := newWorld(t, 1, "g1", "g2", "g3", "g4", "g5")
	w.begin(ask)
	w.run(15 * time.Second)
	if d := w.get(); d.State != drain.Running || d.Left < 10*time.Second || d.Left > 30*time.Second {
		t.Errorf("after 15 s it is %s, and takes another %s; want some 25 s", d.State, d.Left)
	}
	d := w.until()
	if d.State != drain.Done || w.most != 2 {
		t.Errorf("state %s with %d moves at once, want done with 2", d.State, w.most)
	}
	if took := w.sim.Elapsed(); took > 35*time.Second {
		t.Errorf("5 moves of 10 s, two at a time, took %s", took)
	}
	slices.Sort(w.began[:2]) // they begin at once
	slices.Sort(w.began[2:4])
	if diff := cmp.Diff([]string{"g1", "g2", "g3", "g4", "g5"}, w.began); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if w.door != d.UUID {
		t.Errorf("the host is not closed after its drain: %q", w.door)
	}
	if g := guestOf(d, "g3"); g.Took < 10*time.Second || g.Took > 12*time.Second || g.To != "b" || g.Attempts != 0 {
		t.Errorf("guest %+v", g)
	}
}

func TestDrain_PriorityGoesFirstAndFailedOnesGoLast(t *testing.T) {
	w := newWorld(t, 2, "g1", "g2", "g3", "g4", "g5")
	w.limits.Outbound = 1
	w.guests["g4"].ends = []func(*migration.Migration){failing("memory_short")}
	r := ask
	r.Priorities = map[string]int{"g4": 9, "g3": 1}
	w.begin(r)
	d := w.until()
	if diff := cmp.Diff([]string{"g4", "g3", "g1", "g2", "g5", "g4", "g4"}, w.began); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	g := guestOf(d, "g4")
	if d.State != drain.Incomplete || g.State != drain.Failed || g.Attempts != 3 || len(g.Reasons) != 1 || g.Reasons[0].Code != "memory_short" {
		t.Errorf("state %s, guest %+v", d.State, g)
	}
}

func TestDrain_APriorityOfAGuestThatIsNotThereIsRefused(t *testing.T) {
	w := newWorld(t, 21, "g1", "g2")
	r := ask
	r.Priorities = map[string]int{"g1": 1, "g-2": 1, "z": 2}
	w.do(func(ctx context.Context) {
		_, planned := w.drainer.Plan(ctx, r)
		_, begun := w.drainer.Begin(ctx, r)
		for _, err := range []error{planned, begun} {
			if reasons := fault.ReasonsOf(err); fault.KindOf(err) != fault.Invalid || len(reasons) != 2 || reasons[0].Want != "g-2" || reasons[1].Want != "z" {
				t.Errorf("%v", err)
			}
		}
	})
	if len(w.store.data) != 0 {
		t.Errorf("written: %v", w.store.data)
	}
}

func TestDrain_MoreDestinationsThanAMoveTakesAreRefused(t *testing.T) {
	w := newWorld(t, 23, "g1")
	r := ask
	for i := range conductor.MostAlternates + 1 {
		r.To = append(r.To, fmt.Sprint("host-", i))
	}
	w.do(func(ctx context.Context) {
		if _, err := w.drainer.Begin(ctx, r); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%d destinations: %v", len(r.To), err)
		}
		r.To = r.To[1:]
		if _, err := w.drainer.Begin(ctx, r); err != nil {
			t.Errorf("%d destinations: %v", len(r.To), err)
		}
	})
}

// TestDrain_WatchersHearOfProgressOnceInAWhile: a view is of all guests, and a stream tells its
// progress many times in a second.
func TestDrain_WatchersHearOfProgressOnceInAWhile(t *testing.T) {
	w := newWorld(t, 22, "g1")
	w.tells = 10 * time.Millisecond
	w.begin(ask)
	views := 0
	w.process.Go("watch", func() {
		ch, err := w.drainer.Watch(context.Background(), "")
		for open := err == nil; open; views++ {
			_, open, _ = runtime.Receive(context.Background(), w.process, ch)
		}
	})
	if d := w.until(); d.State != drain.Done || views < 10 || views > 60 {
		t.Errorf("state %s after %d views in %s", d.State, views, w.sim.Elapsed())
	}
}

func TestDrain_ABusyDestinationIsNoAttempt(t *testing.T) {
	w := newWorld(t, 3, "g1")
	g := w.guests["g1"]
	for range 8 {
		g.ends = append(g.ends, full)
	}
	g.ends = append(g.ends, nil)
	w.begin(ask)
	d := w.until()
	if got := guestOf(d, "g1"); d.State != drain.Done || got.Attempts != 0 || len(w.began) != 9 {
		t.Errorf("state %s after %d moves, guest %+v", d.State, len(w.began), got)
	}
}

func TestDrain_WhoWaitsForASlotTriesAsSoonAsOneIsFree(t *testing.T) {
	w := newWorld(t, 17, "g1", "g2")
	w.guests["g1"].ends, w.guests["g1"].takes = []func(*migration.Migration){full, full, full, full, nil}, time.Second
	w.guests["g2"].takes = 20 * time.Second
	w.begin(ask)
	// By its own pauses it would be tried after 34 s.
	if d := w.until(); d.State != drain.Done || w.sim.Elapsed() > 30*time.Second {
		t.Errorf("state %s after %s", d.State, w.sim.Elapsed())
	}
}

func TestDrain_NamesWhatStays(t *testing.T) {
	w := newWorld(t, 4, "device", "stranger", "unconfirmed")
	w.guests["device"].way = drain.Way{How: drain.HowStays, Reasons: []fault.Reason{{Code: "device_not_migratable"}}}
	w.guests["stranger"].present.Blocked = []fault.Reason{{Code: "not_managed"}}
	w.guests["unconfirmed"].present.Blocked = []fault.Reason{{Code: "migration_unfinished"}}
	var plan drain.Plan
	w.do(func(ctx context.Context) {
		var err error
		if plan, err = w.drainer.Plan(ctx, ask); err != nil {
			t.Errorf("Plan: %v", err)
		}
	})
	want := map[string]string{"device": "device_not_migratable", "stranger": "not_managed", "unconfirmed": "migration_unfinished"}
	got := map[string]string{}
	for _, g := range plan.Guests {
		if g.State == drain.Stays && len(g.Reasons) == 1 {
			got[g.Name] = g.Reasons[0].Code
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	if len(w.store.data) != 0 || w.door != "" {
		t.Errorf("a plan has written %v, and the host is closed by %q", w.store.data, w.door)
	}
	w.begin(ask)
	if d := w.until(); d.State != drain.Incomplete || len(w.began) != 0 {
		t.Errorf("state %s, moved %v", d.State, w.began)
	}
}

func TestDrain_FollowsWhatChangesMeanwhile(t *testing.T) {
	w := newWorld(t, 5, "slow", "deleted", "stranger", "moved")
	w.guests["slow"].takes = 5 * time.Minute
	w.limits.Outbound = 1
	r := ask
	r.Priorities = map[string]int{"slow": 1}
	w.guests["stranger"].present.Blocked = []fault.Reason{{Code: "not_managed"}}
	w.guests["moved"].present.Waits = []fault.Reason{{Code: "moving"}}
	w.begin(r)
	w.run(30 * time.Second)
	if got := guestOf(w.get(), "moved"); got.State != drain.Waiting || len(got.Reasons) != 1 || got.Reasons[0].Code != "moving" {
		t.Errorf("a guest on a move of somebody else's: %+v", got)
	}
	w.add("arrived")
	w.guests["deleted"].here, w.guests["moved"].here = false, false
	w.guests["stranger"].present.Blocked = nil // adopted
	d := w.until()
	want := map[string]drain.GuestState{"slow": drain.Moved, "deleted": drain.Gone, "moved": drain.Gone, "stranger": drain.Moved, "arrived": drain.Moved}
	if diff := cmp.Diff(want, states(d)); diff != "" || d.State != drain.Done {
		t.Errorf("state %s; guests (-want +got):\n%s", d.State, diff)
	}
}

func TestDrain_BeginsBeforeAllIsPlannedAndAsksAgain(t *testing.T) {
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("g%02d", i))
	}
	w := newWorld(t, 16, names...)
	w.planTakes = 3 * time.Second
	w.guests["g00"].unasked = 2
	w.begin(ask)
	w.run(5 * time.Second)
	if len(w.moves) != 2 {
		t.Errorf("%d moves are under way after 5 s, want 2", len(w.moves))
	}
	if g := guestOf(w.get(), "g00"); g.State != drain.Waiting || len(g.Reasons) == 0 || g.Reasons[0].Code != "unavailable" {
		t.Errorf("a guest whose way could not be asked: %+v", g)
	}
	if d := w.until(); d.State != drain.Done || w.guests["g00"].asked != 3 {
		t.Errorf("state %s; asked %d times", d.State, w.guests["g00"].asked)
	}
}

func TestDrain_APowerChangeIsPlannedAnew(t *testing.T) {
	w := newWorld(t, 6, "slow", "g")
	w.limits.Outbound = 1
	w.guests["slow"].takes = time.Minute
	r := ask
	r.Priorities = map[string]int{"slow": 1}
	w.begin(r)
	w.run(5 * time.Second)
	g := w.guests["g"]
	g.present.Power, g.present.Off, g.way = "shut off", true, drain.Way{How: drain.HowCold, To: "b"}
	if got := guestOf(w.until(), "g"); got.How != drain.HowCold || g.asked < 2 {
		t.Errorf("guest %+v, asked %d times", got, g.asked)
	}
}

func TestDrain_AbortGivesUpWhatCanBeAndOpensTheHost(t *testing.T) {
	for _, door := range []string{"", "operator:bob"} {
		t.Run("was "+door, func(t *testing.T) {
			w := newWorld(t, 7, "early", "past", "waits")
			w.door = door
			w.guests["past"].takes = time.Minute
			w.begin(ask)
			w.run(5 * time.Second)
			for _, m := range w.moves {
				m.past = m.guest == "past"
			}
			w.do(func(ctx context.Context) {
				if d, err := w.drainer.Abort(ctx, "", "operator:alice"); err != nil || d.State != drain.Aborting {
					t.Errorf("Abort: %s, %v", d.State, err)
				}
			})
			d := w.until()
			want := map[string]drain.GuestState{"early": drain.Waiting, "past": drain.Moved, "waits": drain.Waiting}
			if diff := cmp.Diff(want, states(d)); diff != "" || d.State != drain.Aborted {
				t.Errorf("state %s; guests (-want +got):\n%s", d.State, diff)
			}
			if w.door != door || !d.Reopened {
				t.Errorf("the host is closed by %q, want %q", w.door, door)
			}
			w.do(func(ctx context.Context) {
				if _, err := w.drainer.Abort(ctx, "", "operator:alice"); !errors.Is(err, fault.Forbidden) {
					t.Errorf("a second abort: %v", err)
				}
			})
		})
	}
}

func TestDrain_AMoveThatSomebodyAbortsIsNotBegunAgain(t *testing.T) {
	w := newWorld(t, 8, "g1", "g2")
	w.begin(ask)
	w.run(5 * time.Second)
	for id, m := range w.moves {
		if m.guest == "g1" {
			w.do(func(ctx context.Context) { _ = w.Abort(ctx, id) })
		}
	}
	d := w.until()
	if g := guestOf(d, "g1"); g.State != drain.Failed || g.Reasons[0].Code != "move_aborted" || !slices.Equal(w.began, []string{"g1", "g2"}) {
		t.Errorf("guest %+v, began %v", g, w.began)
	}
}

func TestDrain_AMoveInDoubtHoldsUpNobody(t *testing.T) {
	w := newWorld(t, 9, "doubt", "g1", "g2")
	w.limits.Outbound = 1
	w.guests["doubt"].ends = []func(*migration.Migration){func(m *migration.Migration) {
		m.Outcome, m.Status = migration.OutcomeInDoubt, migration.StatusError
	}}
	w.begin(ask)
	d := w.until()
	want := map[string]drain.GuestState{"doubt": drain.Failed, "g1": drain.Moved, "g2": drain.Moved}
	if diff := cmp.Diff(want, states(d)); diff != "" || d.State != drain.Incomplete || guestOf(d, "doubt").Reasons[0].Code != "in_doubt" {
		t.Errorf("state %s, doubt %+v; guests (-want +got):\n%s", d.State, guestOf(d, "doubt"), diff)
	}
}

func TestDrain_AMomentsDoubtGivesItsPlaceToNobody(t *testing.T) {
	w := newWorld(t, 9, "g1", "g2", "g3")
	w.limits.Outbound = 1
	w.guests["g1"].takes, w.guests["g1"].silent = 2*time.Minute, [2]time.Duration{30 * time.Second, 40 * time.Second}
	w.begin(ask)
	w.run(50 * time.Second)
	if g := guestOf(w.get(), "g1"); g.State != drain.Moving || len(g.Reasons) != 1 || g.Reasons[0].Code != "in_doubt" {
		t.Errorf("in its doubt: %+v", g)
	}
	if d := w.until(); d.State != drain.Done || w.most != 1 {
		t.Errorf("state %s with %d moves at once, want done with 1", d.State, w.most)
	}
}

func TestDrain_AMoveThatWaitsForItsTurnSaysSoAndTakesNoTime(t *testing.T) {
	w := newWorld(t, 9, "g1", "g2", "g3")
	w.guests["g2"].takes, w.guests["g2"].queued = 40*time.Second, 30*time.Second
	w.begin(ask)
	w.run(25 * time.Second)
	if g := guestOf(w.get(), "g2"); g.State != drain.Moving || len(g.Reasons) != 1 || g.Reasons[0].Code != migration.CodeOutboundLimit {
		t.Errorf("in the queue: %+v", g)
	}
	d := w.until()
	if g := guestOf(d, "g2"); d.State != drain.Done || w.most != 2 || g.Took < 10*time.Second || g.Took > 12*time.Second {
		t.Errorf("state %s with %d moves at once; %+v", d.State, w.most, g)
	}
}

func TestDrain_OneIsActiveAndARepeatIsTheSame(t *testing.T) {
	w := newWorld(t, 10, "g1")
	r := ask
	r.UUID = "7d4e1b1a-53f1-4f0f-a6b4-24dd33a0ce5b"
	w.begin(r)
	w.begin(r)
	w.do(func(ctx context.Context) {
		if _, err := w.drainer.Begin(ctx, ask); !errors.Is(err, fault.Exists) {
			t.Errorf("a second drain: %v", err)
		}
		if _, err := w.drainer.Begin(ctx, drain.Request{Kind: drain.KindEvacuate, Host: "dead", By: "x"}); err != nil {
			t.Errorf("one of another host: %v", err)
		}
		bad := drain.Request{Kind: drain.KindDrain, Host: "b", Stopped: true, To: []string{"c", "c"}, UUID: "1"}
		if _, err := w.drainer.Begin(ctx, bad); !errors.Is(err, fault.Invalid) || len(fault.ReasonsOf(err)) != 4 {
			t.Errorf("one that makes no sense: %v", err)
		}
	})
	if d := w.until(); len(w.began) != 1 || d.State != drain.Done {
		t.Errorf("moves %v, state %s", w.began, d.State)
	}
}

func TestDrain_HistoryIsBounded(t *testing.T) {
	w := newWorld(t, 11)
	for range 4 {
		w.begin(ask)
		w.until()
		w.run(time.Second)
	}
	if n := len(w.drainer.List(context.Background())); n != 2 || len(w.store.data) != 2 {
		t.Errorf("%d drains are kept in %d records, want 2", n, len(w.store.data))
	}
}

func TestDrain_ShutdownIsOverWithItsBoot(t *testing.T) {
	for _, cut := range []time.Duration{5 * time.Second, time.Minute} {
		t.Run(fmt.Sprint("cut after ", cut), func(t *testing.T) {
			w := newWorld(t, 12, "g1", "off")
			w.guests["off"].present.Off, w.guests["off"].present.Power = true, "shut off"
			w.begin(drain.Request{Kind: drain.KindDrain, By: "shutdown", Shutdown: true})
			w.run(cut)
			w.process.Kill()
			for _, m := range w.moves {
				m.over = true
			}
			w.boot++
			w.start()
			w.run(5 * time.Second)
			d := w.get()
			want := drain.Incomplete
			if cut == time.Minute {
				want = drain.Done
			}
			if d.State != want || w.door != "" || len(w.began) != 1 {
				t.Errorf("state %s, want %s; closed by %q, moves %v", d.State, want, w.door, w.began)
			}
		})
	}
}

func TestDrain_AShutdownThatIsCalledOffOpensTheHost(t *testing.T) {
	for _, after := range []time.Duration{5 * time.Second, time.Minute} {
		t.Run(fmt.Sprint("after ", after), func(t *testing.T) {
			w := newWorld(t, 14, "g1")
			w.begin(drain.Request{Kind: drain.KindDrain, By: "shutdown", Shutdown: true})
			w.run(after)
			w.do(func(ctx context.Context) {
				if err := w.drainer.CallOff(ctx, "shutdown"); err != nil {
					t.Errorf("CallOff: %v", err)
				}
			})
			w.until()
			if w.door != "" {
				t.Errorf("the host is closed by %q", w.door)
			}
		})
	}
	w := newWorld(t, 15, "g1")
	d := w.begin(ask)
	w.do(func(ctx context.Context) { _ = w.drainer.CallOff(ctx, "shutdown") })
	if w.until(); w.door != d.UUID {
		t.Error("a drain that an operator asked for was called off")
	}
}

// TestDrain_SurvivesADeathAtEveryWrite ends the process before and after each write of a drain,
// and has another go on.
func TestDrain_SurvivesADeathAtEveryWrite(t *testing.T) {
	points := 0
	for at := 1; ; at++ {
		died := false
		for _, after := range []bool{false, true} {
			w := newWorld(t, uint64(at), "g1", "g2", "g3")
			w.guests["g2"].ends = []func(*migration.Migration){full, nil}
			w.guests["g3"].ends = []func(*migration.Migration){failing("x"), nil}
			w.store.at, w.store.after = at, after
			r := ask
			r.UUID = "7d4e1b1a-53f1-4f0f-a6b4-24dd33a0ce5b"
			w.do(func(ctx context.Context) { _, _ = w.drainer.Begin(ctx, r) })
			if !w.process.Dead() {
				w.run(5 * time.Minute)
			}
			if w.process.Dead() {
				died = true
				points++
				w.start()
				w.run(time.Second)
				w.begin(r) // whoever had no answer asks again
			}
			d := w.until()
			want := map[string]drain.GuestState{"g1": drain.Moved, "g2": drain.Moved, "g3": drain.Moved}
			if diff := cmp.Diff(want, states(d)); diff != "" || d.State != drain.Done {
				t.Fatalf("death at write %d, after %v: state %s; guests (-want +got):\n%s", at, after, d.State, diff)
			}
			if n := len(w.began); n != 5 {
				t.Errorf("death at write %d, after %v: %d moves were begun, want 5: %v", at, after, n, w.began)
			}
			if w.most > 2 {
				t.Errorf("death at write %d, after %v: %d moves at once", at, after, w.most)
			}
			w.sim.Shutdown()
		}
		if !died {
			break
		}
	}
	if points < 20 {
		t.Errorf("only %d points of death: the drain writes less than it did", points)
	}
}

func TestDrain_WatchEndsWithTheDrain(t *testing.T) {
	w := newWorld(t, 13, "g1")
	w.begin(ask)
	var ch <-chan drain.Drain
	w.do(func(ctx context.Context) {
		var err error
		if ch, err = w.drainer.Watch(ctx, "a"); err != nil {
			t.Errorf("Watch: %v", err)
		}
	})
	w.until()
	var last drain.Drain
	for d := range ch {
		last = d
	}
	if last.State != drain.Done {
		t.Errorf("the last view is %s", last.State)
	}
	w.do(func(ctx context.Context) {
		if _, err := w.drainer.Watch(ctx, "elsewhere"); !errors.Is(err, fault.NotFound) {
			t.Errorf("of a host that was never drained: %v", err)
		}
	})
}
