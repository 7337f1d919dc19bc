package simruntime_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/internal/runtime"
	"berth/internal/runtime/simruntime"
)

// run runs f as an actor, and all that it starts, to the end.
func run(t *testing.T, seed uint64, f func(s *simruntime.Simulation, p *simruntime.Process)) {
	t.Helper()
	s := simruntime.New(seed)
	p := s.Process("p", "boot")
	p.Go("main", func() { f(s, p) })
	if err := s.Run(time.Hour, never); err != nil {
		t.Error(err)
	}
	if left := s.Waiting(); len(left) > 0 {
		t.Errorf("still waiting: %v", left)
	}
	s.Shutdown()
}

func TestAwait_WakesWhenTheChannelIsClosedOrTheContextEnds(t *testing.T) {
	var woken time.Duration
	var late error
	run(t, 1, func(s *simruntime.Simulation, p *simruntime.Process) {
		done := make(chan struct{})
		p.Go("closes", func() {
			_ = p.Sleep(context.Background(), time.Minute)
			close(done)
		})
		if err := runtime.Await(context.Background(), p, done); err != nil {
			t.Error(err)
		}
		woken = s.Elapsed()
		short, cancel := p.WithTimeout(context.Background(), time.Second)
		defer cancel()
		late = runtime.Await(short, p, make(chan struct{}))
		if at, ok := short.Deadline(); !ok || !at.Equal(p.Now()) {
			t.Errorf("deadline %v %v, ended at %v", at, ok, p.Now())
		}
	})
	if woken != time.Minute || late != context.DeadlineExceeded {
		t.Errorf("woken at %s, then %v", woken, late)
	}
}

func TestReceive_TakesEachValueOnceAndSeesTheEnd(t *testing.T) {
	for seed := range uint64(10) {
		var got []int
		run(t, seed, func(_ *simruntime.Simulation, p *simruntime.Process) {
			ch := make(chan int, 2)
			p.Go("sends", func() {
				for i := range 2 {
					ch <- i
					p.Yield()
				}
				close(ch)
			})
			for {
				v, open, err := runtime.Receive(context.Background(), p, ch)
				if err != nil {
					t.Error(err)
				}
				if !open {
					return
				}
				got = append(got, v)
			}
		})
		if !slices.Equal(got, []int{0, 1}) {
			t.Errorf("seed %d: got %v", seed, got)
		}
	}
}

func TestLock_HeldWhileItsHolderWaits(t *testing.T) {
	firsts := map[int]bool{}
	for seed := range uint64(20) {
		var l runtime.Lock
		inside, order := 0, []int{}
		run(t, seed, func(_ *simruntime.Simulation, p *simruntime.Process) {
			var g runtime.Group
			for i := range 3 {
				g.Go(p, fmt.Sprint(i), func() {
					if err := l.Lock(context.Background(), p); err != nil {
						t.Error(err)
					}
					defer l.Unlock()
					if inside++; inside != 1 {
						t.Errorf("seed %d: %d hold the lock", seed, inside)
					}
					_ = p.Sleep(context.Background(), time.Second)
					inside--
					order = append(order, i)
				})
			}
			g.Wait(p)
			if len(order) != 3 {
				t.Errorf("seed %d: the group was waited for, and %v are over", seed, order)
			}
		})
		firsts[order[0]] = true
	}
	if len(firsts) != 3 {
		t.Errorf("only %v ever came first", firsts)
	}
}

func TestLock_GivesUpWithItsContext(t *testing.T) {
	run(t, 1, func(_ *simruntime.Simulation, p *simruntime.Process) {
		var l runtime.Lock
		if err := l.Lock(context.Background(), p); err != nil {
			t.Error(err)
		}
		short, cancel := p.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := l.Lock(short, p); err != context.DeadlineExceeded {
			t.Errorf("got %v", err)
		}
		l.Unlock()
		if err := l.Lock(context.Background(), p); err != nil {
			t.Error(err)
		}
	})
}

func TestSystem_WaitsForReal(t *testing.T) {
	var rt runtime.System
	var l runtime.Lock
	var g runtime.Group
	ctx, n := context.Background(), 0
	for range 8 {
		g.Go(&rt, "adds", func() {
			if err := l.Lock(ctx, &rt); err != nil {
				t.Error(err)
			}
			defer l.Unlock()
			n++
		})
	}
	g.Wait(&rt)
	done, cancel := context.WithCancel(ctx)
	cancel()
	if err := runtime.Await(done, &rt, make(chan struct{})); err != context.Canceled || n != 8 {
		t.Errorf("got %v, %d added", err, n)
	}
	ch := make(chan int, 1)
	ch <- 7
	if v, open, err := runtime.Receive(ctx, &rt, ch); v != 7 || !open || err != nil {
		t.Errorf("got %d %v %v", v, open, err)
	}
}

func TestKill_EndsWhoAwaitsAlsoOnAnothersRuntime(t *testing.T) {
	s := simruntime.New(1)
	victim, server := s.Process("victim", "boot"), s.Process("server", "boot")
	reached := 0
	victim.Go("awaits", func() {
		_ = runtime.Await(context.Background(), victim, make(chan struct{}))
		reached++
	})
	victim.Go("calls", func() {
		_ = server.Sleep(context.Background(), time.Hour) // inside of the server's answer
		reached++
	})
	victim.Go("dies", func() {
		_ = victim.Sleep(context.Background(), time.Second)
		victim.Die()
		reached++
	})
	if err := s.Run(2*time.Hour, never); err != nil {
		t.Fatal(err)
	}
	if reached != 0 || len(s.Waiting()) != 0 || s.Elapsed() != time.Second {
		t.Errorf("%d went on, %v wait, at %s", reached, s.Waiting(), s.Elapsed())
	}
}

func TestRun_RestsWhenAllWaitForWhatNobodyBrings(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	p.Go("waits", func() { _ = runtime.Await(context.Background(), p, make(chan struct{})) })
	if err := s.Run(time.Hour, never); err != nil {
		t.Fatal(err)
	}
	if got := s.Waiting(); !slices.Equal(got, []string{"p/waits"}) {
		t.Errorf("waiting: %v", got)
	}
	s.Shutdown()
	if got := s.Waiting(); len(got) != 0 {
		t.Errorf("after the shutdown: %v", got)
	}
}

func TestStepClock_MovesTheWallClockAlone(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	p.StepClock(-time.Hour)
	if got := p.Now().Sub(simruntime.Epoch); got != -time.Hour || p.Boot().Since != 0 {
		t.Errorf("wall clock %s, boot clock %s", got, p.Boot().Since)
	}
}
