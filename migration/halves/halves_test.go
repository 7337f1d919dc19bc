package halves_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/halves"
	"berth/migration/halves/halvestest"
	"berth/placement"
	"berth/placementclient"
)

func TestMove_InTheEmbeddedPlacement(t *testing.T) {
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(func() {
		web.Close()
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	halvestest.Suite(t, web.URL, nil)
}

// held draws what a consumer may hold: of a few providers and classes, so that two of
// them often share some.
func held() *rapid.Generator[halves.Amounts] {
	return rapid.Custom(func(t *rapid.T) halves.Amounts {
		out := halves.Amounts{}
		for _, rp := range []string{"a", "b", "shared"} {
			r := placementclient.Resources{}
			for _, class := range []string{"VCPU", "MEMORY_MB", "DISK_GB"} {
				if n := rapid.Int64Range(-2, 6).Draw(t, rp+" "+class); n > 0 {
					r[class] = n
				}
			}
			if len(r) > 0 {
				out[rp] = r
			}
		}
		return out
	})
}

func TestSplit_UsesTheGreaterOfBothAndGoesBackExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := held().Draw(t, "old"), held().Draw(t, "next")
		kept, stayed := halves.Split(old, next), halves.Stayed(old, next)
		if back := halves.Sum(kept, stayed); !halves.Same(back, old) {
			t.Errorf("back again is %v, want %v", back, old)
		}
		for name, a := range map[string]halves.Amounts{"kept": kept, "stayed": stayed} {
			for rp, r := range a {
				if old[rp] == nil || len(r) == 0 {
					t.Errorf("%s has %v of %s, of which nothing was held", name, r, rp)
				}
				for class, n := range r {
					if n <= 0 || n > old[rp][class] {
						t.Errorf("%s has %d of %s of %s, of which %d was held", name, n, class, rp, old[rp][class])
					}
				}
			}
		}
		during := halves.Sum(kept, next)
		for _, rp := range []string{"a", "b", "shared"} {
			for _, class := range []string{"VCPU", "MEMORY_MB", "DISK_GB"} {
				if got, want := during[rp][class], max(old[rp][class], next[rp][class]); got != want {
					t.Errorf("during the move %d of %s of %s is used, want %d", got, class, rp, want)
				}
			}
		}
	})
}

// ledger is Placement's allocations in memory, with generations.
type ledger map[string]placementclient.Allocations

func (l ledger) Allocations(_ context.Context, consumer string) (placementclient.Allocations, error) {
	return l[consumer].Clone(), nil
}

func (l ledger) PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error {
	return l.PostAllocations(ctx, map[string]placementclient.Allocations{consumer: a})
}

func (l ledger) PostAllocations(_ context.Context, set map[string]placementclient.Allocations) error {
	for consumer, a := range set {
		if have := l[consumer].ConsumerGeneration; (have == nil) != (a.ConsumerGeneration == nil) || have != nil && *have != *a.ConsumerGeneration {
			return fmt.Errorf("consumer %s has generation %v, not %v", consumer, have, a.ConsumerGeneration)
		}
	}
	for consumer, a := range set {
		next := 1
		if a.ConsumerGeneration != nil {
			next = *a.ConsumerGeneration + 1
		}
		if a = a.Clone(); len(a.Allocations) == 0 {
			delete(l, consumer)
			continue
		}
		a.ConsumerGeneration = &next
		l[consumer] = a
	}
	return nil
}

func (l ledger) DeleteAllocations(_ context.Context, consumer string) error {
	delete(l, consumer)
	return nil
}

// TestMove_UndoRestoresAndConfirmLeaves moves anything to anything.
func TestMove_UndoRestoresAndConfirmLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := held().Draw(t, "old"), held().Draw(t, "next")
		if len(old) == 0 || len(next) == 0 {
			t.Skip("a guest uses something")
		}
		ctx := context.Background()
		l := ledger{"instance": {Allocations: old, ConsumerGeneration: placementclient.Generation(1)}}
		m := halves.Move{Placement: l, Instance: "instance", Migration: "migration"}
		u := halves.Undo{Start: halves.Start{Held: l["instance"].Clone()}, Next: next, Guest: func(context.Context) (halves.Whereabouts, halves.Amounts, error) { return halves.Here, nil, nil }}
		if _, err := m.Swap(ctx, u.Start, next); err != nil {
			t.Fatal(err)
		}
		want := next
		var err error
		if rapid.Bool().Draw(t, "undone") {
			want, err = old, m.Back(ctx, u)
		} else {
			err = m.Finish(ctx, u, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, l["instance"].Allocations); d != "" || len(l) != 1 {
			t.Errorf("%d consumers are left, and the instance holds (-want +got):\n%s", len(l), d)
		}
	})
}

// sleepless is the machine's runtime without its pauses.
type sleepless struct{ runtime.System }

func (*sleepless) Sleep(context.Context, time.Duration) error { return nil }

// refusing answers each write with the next of its words.
type refusing struct {
	halves.Placement
	held placementclient.Allocations
	says []error
}

func (r *refusing) Allocations(_ context.Context, consumer string) (placementclient.Allocations, error) {
	if consumer == "m" {
		return placementclient.Allocations{}, nil
	}
	return r.held, nil
}

func (r *refusing) PostAllocations(context.Context, map[string]placementclient.Allocations) error {
	says := r.says[0]
	r.says = r.says[1:]
	return says
}

// TestSwap_SaysThatNothingWasWrittenOnlyWhenItKnows: a copy whose answer did not come
// may land after the refusal of the next.
func TestSwap_SaysThatNothingWasWrittenOnlyWhenItKnows(t *testing.T) {
	race := &placementclient.APIError{Status: 409, Conflict: placementclient.ConflictServerRace}
	for _, c := range []struct {
		name string
		says []error
		want bool
	}{
		{"refused", []error{fault.DoesNotFit}, true},
		{"forbidden", []error{&placementclient.APIError{Status: 403}}, true},
		{"no sense to Placement", []error{&placementclient.APIError{Status: 400}}, true},
		{"forbidden after a lost answer", []error{fault.InDoubt, fault.Forbidden}, false},
		{"another actor wrote, and then forbidden", []error{fault.GenerationConflict, fault.Forbidden}, false},
		{"refused after the server lost a race", []error{race, fault.DoesNotFit}, true},
		{"refused after a lost answer", []error{fault.InDoubt, fault.DoesNotFit}, false},
		{"refused after silence", []error{fault.Unavailable, fault.DoesNotFit}, false},
		{"refused after silence and a race", []error{fault.Unavailable, race, fault.DoesNotFit}, false},
		{"refused after a lost answer, whose copy lost a race", []error{&fault.Error{Kind: fault.InDoubt, Err: race}, fault.DoesNotFit}, false},
		{"refused, a copy in doubt", append([]error{&fault.Error{Kind: fault.InDoubt, Err: fault.DoesNotFit}}, slices.Repeat([]error{fault.DoesNotFit}, 9)...), false},
		{"in doubt", slices.Repeat([]error{fault.InDoubt}, 9), false},
	} {
		held := placementclient.Allocations{Allocations: halves.Amounts{"a": {"VCPU": 1}}, ConsumerGeneration: placementclient.Generation(1)}
		m := halves.Move{
			Placement: &refusing{held: held, says: c.says}, Runtime: &sleepless{}, Jitter: func(time.Duration) time.Duration { return 0 },
			Instance: "i", Migration: "m",
		}
		_, err := m.Swap(t.Context(), halves.Start{Held: held}, halves.Amounts{"b": {"VCPU": 1}})
		if err == nil || errors.Is(err, halves.ErrNothingWritten) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// The way back by what both consumers hold, and by no more of the beginning than how much the
// guest held: a disk that both hosts share is not lost.
func TestHome_IsWhatTheGuestHeldBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := held().Draw(t, "old"), held().Draw(t, "next")
		delete(old, "b")
		delete(next, "a")
		sum := placementclient.Resources{}
		for _, r := range old {
			for class, n := range r {
				sum[class] += n
			}
		}
		got := halves.Home(next, halves.Split(old, next), sum, func(rp string) bool { return rp == "b" })
		if diff := cmp.Diff(old, got); diff != "" {
			t.Errorf("home (-want +got):\n%s", diff)
		}
	})
}
