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
	"berth/migration"
	"berth/migration/conductor"
)

func TestTurns_LimitsHoldUnderManyRequestsAtOnce(t *testing.T) {
	const n = 20
	for _, c := range []struct {
		name                       string
		outbound, perLink, inbound int
		want                       map[string]int // at once
	}{
		{"none", 0, 0, 0, map[string]int{"out": n, "to b": n / 2}},
		{"outbound", 3, 0, 0, map[string]int{"out": 3}},
		{"per link", 0, 2, 0, map[string]int{"out": 4, "to b": 2, "to c": 2}},
		{"inbound", 0, 0, 2, map[string]int{"out": 4, "in b": 2, "in c": 2}},
		{"all", 3, 2, 1, map[string]int{"out": 2, "in b": 1, "in c": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoad(t, 1)
			r.outbound, r.perLink, r.inbound, r.takes = c.outbound, c.perLink, c.inbound, 5*time.Second
			r.boot()
			r.do(func(ctx context.Context) {
				for i := range n {
					if _, err := r.ask(ctx, i, conductor.Request{Destination: []string{"b", "c"}[i%2]}); err != nil {
						t.Error(err)
					}
				}
			})
			r.over(n)
			for k, want := range c.want {
				if r.most[k] != want {
					t.Errorf("%s: %d at once, want %d (%v)", k, r.most[k], want, r.most)
				}
			}
			for i := range n {
				if m := r.get(i); m.Outcome != migration.OutcomeCompleted || m.Attempt != 1 || len(m.Waits) > 0 {
					t.Errorf("guest %d: %s in attempt %d, waits %v: %v", i, m.Outcome, m.Attempt, m.Waits, m.Error)
				}
			}
			if c.outbound > 0 && r.get(n-1).Waited < 10*time.Second {
				t.Errorf("the last has waited for %s", r.get(n-1).Waited)
			}
			r.sim.Shutdown()
		})
	}
}

func TestTurns_OneThatWaitsIsShownWithItsReason(t *testing.T) {
	r := newRoad(t, 2)
	r.outbound = 1
	r.boot()
	var first, second migration.Migration
	r.do(func(ctx context.Context) {
		first, _ = r.ask(ctx, 0, conductor.Request{})
		second, _ = r.ask(ctx, 1, conductor.Request{})
		_, _ = r.ask(ctx, 2, conductor.Request{})
	})
	if first.Status != migration.StatusAccepted || first.Priority != migration.PriorityUser {
		t.Errorf("the first: %s with priority %d", first.Status, first.Priority)
	}
	if second.Status != migration.StatusQueued || len(second.Waits) != 1 || second.Waits[0].Code != "outbound_limit" || !second.Deadline.IsZero() || second.Phase != "doing" {
		t.Errorf("the second: %s, waits %+v, deadline %s", second.Status, second.Waits, second.Deadline)
	}
	r.pass(5 * time.Second)
	if m := r.get(2); m.Status != migration.StatusQueued || m.Step != "" || !strings.Contains(m.Waits[0].Message, "1 move waits before it") || len(r.quick.data["tasks"]) != 1 {
		t.Errorf("the third: %s at step %q, waits %+v; %d tasks", m.Status, m.Step, m.Waits, len(r.quick.data["tasks"]))
	}
	r.pass(8 * time.Second)
	if m := r.get(2); !strings.Contains(m.Waits[0].Message, "it is the next") {
		t.Errorf("the third, later: %+v", m.Waits)
	}
	if m := r.get(1); m.Status != migration.StatusRunning || m.Waits != nil || m.Deadline.IsZero() {
		t.Errorf("the second, later: %s, waits %v", m.Status, m.Waits)
	}
	r.over(3)
	r.sim.Shutdown()
}

func TestTurns_PriorityThenAge(t *testing.T) {
	r := newRoad(t, 3)
	r.outbound = 1
	r.boot()
	asks := []conductor.Request{{}, {Priority: migration.PriorityMaintenance}, {}, {Queue: "drain"}, {Priority: migration.PriorityUrgent}, {Queue: "drain", Priority: 50}}
	r.do(func(ctx context.Context) {
		for i, a := range asks {
			if _, err := r.ask(ctx, i, a); err != nil {
				t.Error(err)
			}
			_ = r.process.Sleep(ctx, time.Second)
		}
		for _, p := range []int{-1, 1001} {
			if _, err := r.ask(ctx, 99, conductor.Request{Priority: p}); !errors.Is(err, fault.Invalid) || codes(err)[0] != "priority" {
				t.Errorf("priority %d: %v", p, err)
			}
		}
	})
	r.over(len(asks))
	want := []string{instance(0), instance(4), instance(3), instance(2), instance(5), instance(1)}
	if diff := cmp.Diff(want, r.begun); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	r.sim.Shutdown()
}

func TestTurns_AnAbortOfOneThatWaitsIsPromptAndUndoesNothing(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(*road)
		code    string
		asked   int // claims
	}{
		{"for its turn", func(r *road) { r.outbound = 1 }, "outbound_limit", 0},
		{"for its link", func(r *road) { r.perLink = 1 }, "link_limit", 0},
		{"for room", func(r *road) { r.inbound = 1 }, "inbound_limit", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRoad(t, 4)
			c.prepare(r)
			r.boot()
			r.do(func(ctx context.Context) {
				_, _ = r.ask(ctx, 0, conductor.Request{})
				_, _ = r.ask(ctx, 1, conductor.Request{})
			})
			r.pass(time.Second)
			if m := r.get(1); m.Status != migration.StatusQueued || !slices.Equal(codesWaited(m), []string{c.code}) {
				t.Fatalf("%s, waits %+v", m.Status, m.Waits)
			}
			began := r.sim.Elapsed()
			r.do(func(ctx context.Context) {
				if err := r.c.Abort(ctx, id(1)); err != nil {
					t.Error(err)
				}
			})
			r.until("it is over", func() bool { return r.get(1).Done() })
			if took := r.sim.Elapsed() - began; took > time.Second {
				t.Errorf("it took %s", took)
			}
			if m := r.get(1); m.Status != migration.StatusCancelled || m.Outcome != migration.OutcomeUndone || m.Waits != nil || r.asked[id(1)] != c.asked || len(r.claims["b"]) != 1 {
				t.Errorf("%s/%s, waits %v; asked for %d claims, %d held", m.Status, m.Outcome, m.Waits, r.asked[id(1)], len(r.claims["b"]))
			}
			r.over(2)
			r.sim.Shutdown()
		})
	}
}

// TestTurns_WhoWaitsForRoomHoldsNothing: while a destination has moves wait, others go, and the
// first alone asks again.
func TestTurns_WhoWaitsForRoomHoldsNothing(t *testing.T) {
	r := newRoad(t, 5)
	r.outbound, r.inbound, r.takes = 3, 1, 80*time.Second
	r.boot()
	r.do(func(ctx context.Context) {
		for i := range 6 {
			_, _ = r.ask(ctx, i, conductor.Request{}) // all to b
			_ = r.process.Sleep(ctx, 100*time.Millisecond)
		}
		_, _ = r.ask(ctx, 6, conductor.Request{Destination: "c"})
	})
	r.pass(time.Minute)
	if m := r.get(6); m.Status != migration.StatusRunning {
		t.Errorf("the one to another host: %s, waits %+v", m.Status, m.Waits)
	}
	if n := r.status(6); n[migration.StatusQueued] != 5 || len(r.claims["b"]) != 1 {
		t.Errorf("statuses %v; claims %v", n, r.claims["b"])
	}
	// 2 s, 4 s, 8 s, then 15 s and a little more.
	if n := r.asked[id(1)]; n < 4 || n > 8 {
		t.Errorf("the first that waits asked %d times in a minute", n)
	}
	for i := 2; i < 6; i++ {
		if n := r.asked[id(i)]; n > 1 {
			t.Errorf("guest %d asked %d times, though another one waits before it", i, n)
		}
	}
	r.over(7)
	if diff := cmp.Diff([]string{instance(0), instance(6), instance(1), instance(2), instance(3), instance(4), instance(5)}, r.begun); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.most["out"] != 2 || r.most["in b"] != 1 {
		t.Errorf("at once: %v", r.most)
	}
	r.sim.Shutdown()
}

func TestTurns_AQueuesMoveIsBusyInsteadOfWaitingForRoomOrLink(t *testing.T) {
	for code, prepare := range map[string]func(*road){
		"inbound_limit": func(r *road) { r.inbound = 1 },
		"link_limit":    func(r *road) { r.perLink = 1 },
	} {
		r := newRoad(t, 6)
		prepare(r)
		r.boot()
		r.do(func(ctx context.Context) {
			_, _ = r.ask(ctx, 0, conductor.Request{})
			_ = r.process.Sleep(ctx, time.Second)
			_, _ = r.ask(ctx, 1, conductor.Request{Queue: "drain"})
		})
		r.pass(3 * time.Second)
		if m := r.get(1); m.Outcome != migration.OutcomeRefused || !errors.Is(m.Err(), fault.Busy) || !slices.Contains(codes(m.Err()), code) {
			t.Errorf("%s: %s/%s: %v", code, m.Status, m.Outcome, m.Err())
		}
		r.over(2)
		r.sim.Shutdown()
	}
}

// TestTurns_WhereAHostIsFullTheNextOneIsTried: a move waits only once no host is left that may
// take its guest at once.
func TestTurns_WhereAHostIsFullTheNextOneIsTried(t *testing.T) {
	for code, prepare := range map[string]func(*road){
		"inbound_limit": func(r *road) { r.inbound = 1 },
		"link_limit":    func(r *road) { r.perLink = 1 },
	} {
		for how, ask := range map[string]conductor.Request{"nobody named": {Destination: anywhere}, "an alternate": {Alternates: []string{"c"}}} {
			t.Run(code+", "+how, func(t *testing.T) {
				r := newRoad(t, 13)
				prepare(r)
				r.takes = 15 * time.Second
				r.boot()
				r.do(func(ctx context.Context) {
					for i, more := range []conductor.Request{{}, ask, ask} {
						_, _ = r.ask(ctx, i, more)
						_ = r.process.Sleep(ctx, time.Second)
					}
				})
				r.pass(2 * time.Second)
				if m := r.get(1); m.Status != migration.StatusRunning || m.DestCompute != "c" || len(m.Refusals) != 1 || m.Refusals[0].DestCompute != "b" || m.Refusals[0].Reasons[0].Code != code {
					t.Errorf("the second is %s, to %q, refusals %+v", m.Status, m.DestCompute, m.Refusals)
				}
				if m := r.get(2); m.Status != migration.StatusQueued || !slices.Equal(codesWaited(m), []string{code}) || len(m.Refusals) != 1 {
					t.Errorf("the third is %s, waits %+v, refusals %+v", m.Status, m.Waits, m.Refusals)
				}
				r.over(3)
				for i := range 3 {
					if m := r.get(i); m.Outcome != migration.OutcomeCompleted || m.Attempt > 2 {
						t.Errorf("guest %d: %s in attempt %d: %v", i, m.Outcome, m.Attempt, m.Error)
					}
				}
				r.sim.Shutdown()
			})
		}
	}
}

// TestTurns_BackToAHostThatWasOnlyFull: that the others refuse ends no move that could have
// waited.
func TestTurns_BackToAHostThatWasOnlyFull(t *testing.T) {
	r := newRoad(t, 14)
	r.inbound, r.silent["c"] = 1, true
	r.boot()
	r.do(func(ctx context.Context) {
		_, _ = r.ask(ctx, 0, conductor.Request{})
		_ = r.process.Sleep(ctx, time.Second)
		_, _ = r.ask(ctx, 1, conductor.Request{Destination: anywhere})
	})
	r.pass(5 * time.Second)
	if m := r.get(1); m.Status != migration.StatusQueued || m.DestCompute != "b" || m.Attempt != 3 || len(m.Refusals) != 2 {
		t.Errorf("%s at %q in attempt %d, refusals %+v", m.Status, m.DestCompute, m.Attempt, m.Refusals)
	}
	r.silent["c"] = false
	r.over(2)
	if m := r.get(1); m.Outcome != migration.OutcomeCompleted {
		t.Errorf("%s: %v", m.Outcome, m.Error)
	}
	r.sim.Shutdown()
}

func TestTurns_LimitsAreReadAnew(t *testing.T) {
	r := newRoad(t, 7)
	r.outbound, r.takes = 4, time.Minute
	r.boot()
	r.do(func(ctx context.Context) {
		for i := range 10 {
			_, _ = r.ask(ctx, i, conductor.Request{})
		}
	})
	r.pass(time.Second)
	if n := r.status(10); n[migration.StatusRunning] != 4 {
		t.Errorf("of 4: %v", n)
	}
	r.outbound = 6
	r.pass(10 * time.Second)
	if n := r.status(10); n[migration.StatusRunning] != 6 {
		t.Errorf("of 6: %v", n)
	}
	// The four are over after 60 s, and the two still go on: none may follow.
	r.outbound = 2
	r.pass(52 * time.Second)
	if n := r.status(10); n[migration.StatusRunning] != 2 || n[migration.StatusCompleted] != 4 || n[migration.StatusQueued] != 4 {
		t.Errorf("of 2: %v", n)
	}
	if m := r.get(9); !strings.Contains(m.Waits[0].Message, "leave a (limit 2)") {
		t.Errorf("the last waits for %+v", m.Waits)
	}
	r.over(10)
	if r.most["out"] != 6 {
		t.Errorf("at once: %v", r.most)
	}
	r.sim.Shutdown()
}

func TestTurns_WhatComesTheOtherWayIsOnTheSameLink(t *testing.T) {
	r := newRoad(t, 8)
	r.perLink, r.incoming["b"] = 2, 2
	r.boot()
	r.do(func(ctx context.Context) { _, _ = r.ask(ctx, 0, conductor.Request{}) })
	r.pass(30 * time.Second)
	if m := r.get(0); !slices.Equal(codesWaited(m), []string{"link_limit"}) {
		t.Errorf("%s, waits %+v", m.Status, m.Waits)
	}
	r.incoming["b"] = 1
	r.over(1)
	r.sim.Shutdown()
}

// TestTurns_TwoThatSetOutTowardsEachOther: a guest comes from the destination in the moment in
// which one has its claim there. Only a later look can tell, and the move begins anew.
func TestTurns_TwoThatSetOutTowardsEachOther(t *testing.T) {
	r := newRoad(t, 8)
	r.perLink, r.meets = 1, true
	r.boot()
	r.do(func(ctx context.Context) { _, _ = r.ask(ctx, 0, conductor.Request{}) })
	r.pass(30 * time.Second)
	if m := r.get(0); m.Attempt != 2 || m.Status != migration.StatusQueued || !slices.Equal(codesWaited(m), []string{"link_limit"}) || len(m.Refusals) != 0 || len(r.claims["b"]) != 0 {
		t.Errorf("attempt %d: %s, waits %+v, refusals %+v, claims %v", m.Attempt, m.Status, m.Waits, m.Refusals, r.claims["b"])
	}
	r.incoming["b"] = 0
	r.over(1)
	if m := r.get(0); m.Outcome != migration.OutcomeCompleted {
		t.Errorf("%s: %v", m.Outcome, m.Error)
	}
	r.sim.Shutdown()
}

// TestTurns_TimeInTheQueueIsNoneOfTheAttempt: the deadline begins with the turn, and anew with
// a claim that was waited for; but for a claim nobody waits longer than an attempt may take.
func TestTurns_TimeInTheQueueIsNoneOfTheAttempt(t *testing.T) {
	r := newRoad(t, 9)
	r.outbound, r.takes, r.timeout = 1, 40*time.Second, time.Minute
	r.boot()
	r.do(func(ctx context.Context) {
		for i := range 4 {
			_, _ = r.ask(ctx, i, conductor.Request{})
		}
	})
	r.over(4)
	for i := range 4 {
		if m := r.get(i); m.Outcome != migration.OutcomeCompleted {
			t.Errorf("guest %d: %s: %v", i, m.Outcome, m.Error)
		}
	}
	r.sim.Shutdown()

	r = newRoad(t, 9)
	r.inbound, r.takes, r.timeout = 1, 40*time.Second, time.Minute
	r.boot()
	r.do(func(ctx context.Context) {
		for i := range 3 {
			_, _ = r.ask(ctx, i, conductor.Request{})
			_ = r.process.Sleep(ctx, time.Second)
		}
	})
	r.over(3)
	if m := r.get(1); m.Outcome != migration.OutcomeCompleted || m.Waited < 30*time.Second {
		t.Errorf("the second: %s after a wait of %s: %v", m.Outcome, m.Waited, m.Error)
	}
	if m := r.get(2); m.Outcome != migration.OutcomeUndone || !slices.Equal(codes(m.Err()), []string{"attempt_deadline", "inbound_limit"}) {
		t.Errorf("the third: %s: %v", m.Outcome, m.Err())
	}
	r.sim.Shutdown()
}

// TestTurns_WhatLagsHoldsUpNobody: a turn ends with the stream, not with the tidying up at a
// host that is silent.
func TestTurns_WhatLagsHoldsUpNobody(t *testing.T) {
	r := newRoad(t, 10)
	r.outbound, r.perLink = 1, 1
	r.boot()
	r.do(func(ctx context.Context) {
		_, _ = r.ask(ctx, 0, conductor.Request{})
		_, _ = r.ask(ctx, 1, conductor.Request{Destination: "c"})
		_, _ = r.ask(ctx, 2, conductor.Request{Destination: "c"})
	})
	r.pass(5 * time.Second)
	r.silent["b"] = true
	r.pass(10 * time.Second)
	if a, b := r.get(0), r.get(1); a.Done() || a.Status != migration.StatusPostMigrating || b.Status != migration.StatusRunning {
		t.Errorf("the first is %s, the second %s", a.Status, b.Status)
	}
	// Aborted in its stream, to a host that is silent then: undone, and tidied up later.
	r.silent[id(1)] = true
	r.do(func(ctx context.Context) { _ = r.c.Abort(ctx, id(1)) })
	r.pass(3 * time.Second)
	if b, c := r.get(1), r.get(2); b.Done() || c.Status != migration.StatusRunning {
		t.Errorf("the second is %s, the third %s, waits %+v", b.Status, c.Status, c.Waits)
	}
	r.silent["b"], r.silent[id(1)] = false, false
	r.over(3)
	r.sim.Shutdown()
}

// TestTurns_AfterARestart: what has begun holds its turns first, above a lowered limit too, and
// the others wait in their order.
func TestTurns_AfterARestart(t *testing.T) {
	r := newRoad(t, 11)
	r.outbound, r.takes = 3, time.Minute
	r.boot()
	r.do(func(ctx context.Context) {
		for i := range 6 {
			_, _ = r.ask(ctx, i, conductor.Request{})
			_ = r.process.Sleep(ctx, time.Second)
		}
		_, _ = r.ask(ctx, 6, conductor.Request{Priority: migration.PriorityUrgent})
	})
	r.pass(10 * time.Second)
	r.process.Kill()
	r.outbound = 1
	r.pass(5 * time.Second)
	r.boot()
	r.do(func(ctx context.Context) { _ = r.process.Sleep(ctx, time.Second) })
	if n := r.status(7); n[migration.StatusRunning] != 3 || n[migration.StatusQueued] != 4 {
		t.Errorf("after the restart: %v", n)
	}
	r.over(7)
	if diff := cmp.Diff([]string{instance(0), instance(1), instance(2), instance(6), instance(3), instance(4), instance(5)}, r.begun); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.most["out"] != 3 {
		t.Errorf("at once: %v", r.most)
	}
	r.sim.Shutdown()
}

// TestTurns_AnAbortBeforeAMoveIsTakenUpAgain: what was on its way keeps its turn until its stream
// is known to be over, also where somebody asks before its actor does.
func TestTurns_AnAbortBeforeAMoveIsTakenUpAgain(t *testing.T) {
	for seed := range uint64(4) {
		r := newRoad(t, seed)
		r.outbound, r.takes = 1, 10*time.Second
		r.boot()
		r.do(func(ctx context.Context) {
			_, _ = r.ask(ctx, 0, conductor.Request{})
			_, _ = r.ask(ctx, 1, conductor.Request{Destination: "c"})
		})
		r.pass(3 * time.Second)
		r.process.Kill()
		r.boot()
		r.process.Go("user", func() {
			for !r.c.Running() {
				r.process.Yield()
			}
			if m := r.get(0); m.Phase != "doing" || len(m.Steps) == 0 || m.Status != migration.StatusRunning {
				t.Errorf("seed %d: the first is %s, %q with %d steps", seed, m.Status, m.Phase, len(m.Steps))
			}
			_ = r.c.Abort(context.Background(), id(0))
		})
		r.over(2)
		if r.most["out"] != 1 {
			t.Errorf("seed %d: at once %v", seed, r.most)
		}
		r.sim.Shutdown()
	}
}

// TestTurns_EveryCrashPoint stops the conductor at every write and every verb of moves that wait
// for turns, links and room, one of which is aborted, and starts it again.
func TestTurns_EveryCrashPoint(t *testing.T) {
	const n = 4
	drive := func(crash int) *road {
		r := newRoad(t, 12)
		r.outbound, r.perLink, r.inbound, r.crashAt = 2, 2, 1, crash
		r.takes = 4 * time.Second
		r.boot()
		r.init.Go("user", func() {
			for i := 0; i < n; {
				_ = r.init.Sleep(context.Background(), 200*time.Millisecond)
				if r.process.Dead() || !r.c.Running() {
					continue
				}
				if _, err := r.ask(context.Background(), i, conductor.Request{Destination: []string{"b", "b", "c", "b"}[i]}); err == nil {
					i++
				}
			}
			for aborted := false; !aborted; {
				_ = r.init.Sleep(context.Background(), 200*time.Millisecond)
				err := r.c.Abort(context.Background(), id(n-1))
				aborted = err == nil || errors.Is(err, fault.Forbidden)
			}
		})
		r.init.Go("machine", func() {
			for {
				_ = r.init.Sleep(context.Background(), 300*time.Millisecond)
				if r.process.Dead() {
					r.boot()
				}
			}
		})
		r.over(n)
		return r
	}
	reference := drive(-1)
	if m := reference.get(n - 1); m.Status != migration.StatusCancelled {
		t.Fatalf("the last is %s", m.Status)
	}
	reference.sim.Shutdown()
	for point := range reference.points {
		if point%stride != 0 {
			continue
		}
		r := drive(point)
		if r.most["out"] > 2 || r.most["to b"] > 2 || r.most["in b"] > 1 || r.most["in c"] > 1 {
			t.Errorf("crash at point %d: at once %v", point, r.most)
		}
		for i := range n - 1 {
			if m := r.get(i); m.Outcome != migration.OutcomeCompleted && !(m.Outcome == migration.OutcomeUndone && r.lives > 1) {
				t.Errorf("crash at point %d: guest %d: %s: %v", point, i, m.Outcome, m.Error)
			}
		}
		r.sim.Shutdown()
		if t.Failed() {
			t.Fatal(fmt.Sprint("crash at point ", point))
		}
	}
	t.Logf("%d points", reference.points)
}
