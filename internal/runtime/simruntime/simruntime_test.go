package simruntime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/internal/runtime/simruntime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func never() bool { return false }

// trace runs three actors that note their turns.
func trace(t *testing.T, seed uint64) string {
	s := simruntime.New(seed)
	p := s.Process("p", "boot")
	var b strings.Builder
	for i := range 3 {
		p.Go(fmt.Sprint(i), func() {
			for range 4 {
				fmt.Fprintf(&b, "%d@%s ", i, s.Elapsed())
				p.Yield()
				if err := p.Sleep(context.Background(), time.Duration(i)*time.Second); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if err := s.Run(time.Hour, never); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSimulation_OneSeedIsOneOrder(t *testing.T) {
	if a, b := trace(t, 7), trace(t, 7); a != b {
		t.Errorf("the same seed gave two runs:\n%s\n%s", a, b)
	}
	orders := map[string]bool{}
	for seed := range uint64(20) {
		orders[trace(t, seed)] = true
	}
	if len(orders) < 10 {
		t.Errorf("20 seeds gave %d orders", len(orders))
	}
}

func TestSleep_EndsWithItsContextsCause(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	var got, deadline error
	var after time.Duration
	p.Go("sleeper", func() {
		got = p.Sleep(ctx, time.Hour)
		short, stop := p.WithTimeout(context.Background(), 3*time.Second)
		defer stop()
		began := s.Elapsed()
		deadline = p.Sleep(short, time.Hour)
		after = s.Elapsed() - began
	})
	p.Go("canceller", func() {
		_ = p.Sleep(context.Background(), time.Minute)
		cancel(cause)
	})
	if err := s.Run(2*time.Hour, never); err != nil {
		t.Fatal(err)
	}
	if got != cause || deadline != context.DeadlineExceeded || after != 3*time.Second {
		t.Errorf("got %v, then %v after %s", got, deadline, after)
	}
}

func TestKill_EndsActorsWhereTheyWait(t *testing.T) {
	s := simruntime.New(1)
	victim, other := s.Process("victim", "boot"), s.Process("other", "boot")
	reached, deferred, lived := false, false, false
	victim.Go("waits", func() {
		defer func() { deferred = true }()
		_ = victim.Sleep(context.Background(), time.Hour)
		reached = true
	})
	victim.Go("late", func() {
		_ = victim.Sleep(context.Background(), time.Minute)
		victim.Go("never", func() { reached = true })
	})
	other.Go("kills", func() {
		_ = other.Sleep(context.Background(), time.Second)
		victim.Kill()
		_ = other.Sleep(context.Background(), time.Second)
		lived = true
	})
	if err := s.Run(time.Hour, never); err != nil {
		t.Fatal(err)
	}
	if reached || !deferred || !lived || s.Elapsed() != 2*time.Second {
		t.Errorf("reached %v, deferred %v, other lived %v, at %s", reached, deferred, lived, s.Elapsed())
	}
}

func TestRun_NamesWhatDoesNotComeToRest(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	p.Go("clock", func() {
		for {
			_ = p.Sleep(context.Background(), time.Minute)
		}
	})
	if err := s.Run(time.Hour, never); err == nil || !strings.Contains(err.Error(), "p/clock") {
		t.Errorf("got %v, want an error that names p/clock", err)
	}
	s.Shutdown()
}

func TestSkip_WakesAllWhoSleepAndLeavesTheLimitAlone(t *testing.T) {
	s := simruntime.New(1)
	p := s.Process("p", "boot")
	var woken []time.Duration
	for _, d := range []time.Duration{time.Minute, time.Hour, 30 * time.Hour} {
		p.Go("sleeps", func() {
			_ = p.Sleep(context.Background(), d)
			woken = append(woken, s.Elapsed())
		})
	}
	p.Go("skips", func() { s.Skip(24 * time.Hour) })
	if err := s.Run(12*time.Hour, never); err != nil {
		t.Fatal(err)
	}
	if want := []time.Duration{24 * time.Hour, 24 * time.Hour, 30 * time.Hour}; !slices.Equal(woken, want) {
		t.Errorf("woken at %v, want %v", woken, want)
	}
}
