package halves_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/internal/fault"
	"berth/migration/halves"
	"berth/placementclient"
)

// lostMove is the move of a guest of the dead host a, whose root is a.
func lostMove(l ledger) (halves.Move, halves.Source) {
	m := halves.Move{
		Placement: l, Runtime: &sleepless{}, Jitter: func(time.Duration) time.Duration { return 0 }, Instance: "instance", Migration: "migration",
	}
	return m, halves.Source{Root: "a", Uses: func(rp string) bool { return rp == "a" || rp == "shared" }}
}

func holding(a halves.Amounts) placementclient.Allocations {
	return placementclient.Allocations{Allocations: a, ConsumerGeneration: placementclient.Generation(3)}
}

// TestWithdraw_IsTheUndoOfASwapOfALostGuest, of anything to anything, and a copy of the swap
// that lands after it does nothing.
func TestWithdraw_IsTheUndoOfASwapOfALostGuest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		old, next := held().Draw(t, "old"), held().Draw(t, "next")
		delete(old, "b")
		delete(next, "a")
		if old["a"] == nil || next["b"] == nil {
			t.Skip("both hosts have something of a guest")
		}
		ctx := context.Background()
		l := ledger{"instance": holding(old)}
		m, source := lostMove(l)
		start, err := m.Lost(ctx, source)
		if err != nil {
			t.Fatal(err)
		}
		late := map[string]placementclient.Allocations{
			"instance": {Allocations: next, ConsumerGeneration: start.Held.ConsumerGeneration}, "migration": {Allocations: halves.Split(old, next)},
		}
		if rapid.Bool().Draw(t, "landed") {
			if _, err := m.Swap(ctx, start, next); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Withdraw(ctx, start, next); err != nil {
			t.Fatal(err)
		}
		if l.PostAllocations(ctx, late) == nil {
			t.Error("a copy of the swap landed after its undo")
		}
		if d := cmp.Diff(old, l["instance"].Allocations); d != "" || len(l) != 1 {
			t.Errorf("%d consumers are left, and the instance holds (-want +got):\n%s", len(l), d)
		}
	})
}

// TestWithdraw_LeavesWhatOthersWrote: two that evacuate one guest do not disturb each other.
func TestWithdraw_LeavesWhatOthersWrote(t *testing.T) {
	on := func(rp string) halves.Amounts { return halves.Amounts{rp: {"VCPU": 2}} }
	for _, tt := range []struct {
		name  string
		start halves.Amounts // that the instance holds at first
		then  ledger         // what stands when the undo comes
		want  map[string]halves.Amounts
	}{
		{"another has swapped first", on("a"), ledger{"instance": holding(on("c")), "other": holding(on("a"))},
			map[string]halves.Amounts{"instance": on("c"), "other": on("a")}},
		{"another has swapped what this one had", on("a"), ledger{"instance": holding(on("c")), "migration": holding(on("a"))},
			map[string]halves.Amounts{"instance": on("c")}},
		{"its host has counted it back", on("a"), ledger{"instance": holding(on("a")), "migration": holding(on("a"))},
			map[string]halves.Amounts{"instance": on("a")}},
		{"it was deleted", on("a"), ledger{"migration": holding(on("a"))}, map[string]halves.Amounts{}},
		{"it was deleted, and nothing is left", on("a"), ledger{}, map[string]halves.Amounts{}},
		{"what was left over elsewhere was swapped", on("c"), ledger{"instance": holding(on("b"))}, map[string]halves.Amounts{"instance": on("c")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, source := lostMove(ledger{"instance": holding(tt.start)})
			source.Leftover = func(context.Context, []string) error { return nil }
			start, err := m.Lost(t.Context(), source)
			if err != nil {
				t.Fatal(err)
			}
			m.Placement = tt.then
			if err := m.Withdraw(t.Context(), start, on("b")); err != nil {
				t.Fatal(err)
			}
			got := map[string]halves.Amounts{}
			for id, c := range tt.then {
				got[id] = c.Allocations
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if c, there := tt.then["instance"]; there && *c.ConsumerGeneration <= 3 {
				t.Errorf("the instance's generation is %d still", *c.ConsumerGeneration)
			}
		})
	}
}

func TestLost_TakesOnlyWhatIsOnItsDeadHost(t *testing.T) {
	a, c := placementclient.Resources{"VCPU": 2}, placementclient.Resources{"VCPU": 1}
	no := fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "guest_there", Message: "it runs there"})
	for _, tt := range []struct {
		name     string
		have     halves.Amounts
		leftover error
		held     halves.Amounts
		codes    []string
	}{
		{"its host's", halves.Amounts{"a": a, "shared": c}, no, halves.Amounts{"a": a, "shared": c}, nil},
		{"doubled, the other half proven to be left over", halves.Amounts{"a": a, "c": c}, nil, halves.Amounts{"a": a}, nil},
		{"elsewhere, proven to be left over", halves.Amounts{"c": c}, nil, halves.Amounts{}, nil},
		{"elsewhere, where it is", halves.Amounts{"c": c}, no, nil, []string{"allocation_elsewhere", "guest_there"}},
		{"nothing", nil, nil, nil, []string{"allocation_missing"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := ledger{}
			if tt.have != nil {
				l["instance"] = holding(tt.have)
			}
			m, source := lostMove(l)
			source.ProjectID, source.Leftover = "project", func(context.Context, []string) error { return tt.leftover }
			start, err := m.Lost(t.Context(), source)
			var codes []string
			for _, r := range fault.ReasonsOf(err) {
				codes = append(codes, r.Code)
			}
			if !slices.Equal(codes, tt.codes) || err != nil && !errors.Is(err, fault.Forbidden) {
				t.Errorf("%v", err)
			}
			if diff := cmp.Diff(tt.held, start.Held.Allocations); diff != "" || err == nil && start.Held.ProjectID != "project" {
				t.Errorf("project %q, held (-want +got):\n%s", start.Held.ProjectID, diff)
			}
			if d := cmp.Diff(tt.have, l["instance"].Allocations); d != "" {
				t.Errorf("written (-before +after):\n%s", d)
			}
		})
	}
}
