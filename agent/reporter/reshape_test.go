package reporter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/agent/reporter/reportertest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
)

// refusing is a Placement that has no room for a reshape.
type refusing struct {
	reporter.Placement
	why   error
	tries int
	asked func() // nil for nobody
}

func (p *refusing) Reshape(ctx context.Context, r placementclient.Reshape) error {
	p.tries++
	if p.asked != nil {
		p.asked()
	}
	if p.why != nil {
		return p.why
	}
	return p.Placement.Reshape(ctx, r)
}

// TestReporter_ARefusedReshapeLeavesTheStandingShapeEqual: and is tried seldom, since
// each try makes children and deletes them.
func TestReporter_ARefusedReshapeLeavesTheStandingShapeEqual(t *testing.T) {
	b := newBench(t)
	p := &refusing{Placement: b.Client, why: fault.New(fault.DoesNotFit, "no room on cell 1")}
	b.Options.Placement = p
	b.Restart()
	b.Sync()
	b.Place(b.ID("one"), reportertest.Claimed(1, 64, 1))
	b.In.Shape = inventory.Nested
	refused := 0
	for range 100 {
		if err := b.R.Sync(t.Context()); err != nil {
			refused++
			continue
		}
		s := b.R.Status()
		if s.Waiting == nil || s.Waiting.Reason.Code != "reshape_refused" || !strings.Contains(s.Waiting.Reason.Message, "no room on cell 1") || s.Shape != inventory.Flat || !s.InSync {
			t.Fatalf("status %+v", s)
		}
	}
	if p.tries != refused || p.tries < 2 || p.tries > 6 {
		t.Errorf("%d tries in 100 intervals, %d of them told as errors", p.tries, refused)
	}
	if got := b.Names(); !slices.Equal(got, []string{""}) {
		t.Errorf("left over: %v", got)
	}
	p.why = nil
	for range 70 {
		b.Sync()
	}
	if s := b.R.Status(); s.Waiting != nil || s.Shape != inventory.Nested {
		t.Errorf("with room: %+v", s)
	}
	b.Equal()
}

// TestReporter_NobodyIsToldWhereClaimsAreCountedWhileAReshapeIsOnItsWay: whoever went by
// the old tree then would find every guest counted elsewhere.
func TestReporter_NobodyIsToldWhereClaimsAreCountedWhileAReshapeIsOnItsWay(t *testing.T) {
	b := newBench(t)
	p := &refusing{Placement: b.Client, why: fault.New(fault.DoesNotFit, "no room on cell 1")}
	b.Options.Placement = p
	b.Restart()
	b.Sync()
	b.Place(b.ID("one"), reportertest.Claimed(1, 64, 1))
	p.asked = func() {
		if tree, known := b.R.Tree(); known || b.R.Status().InSync {
			t.Errorf("known %t, in sync %t: %v", known, b.R.Status().InSync, tree)
		}
	}
	b.In.Shape = inventory.Nested
	if err := b.R.Sync(t.Context()); !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("%v, want %v", err, fault.DoesNotFit)
	}
	if tree, known := b.R.Tree(); !known || tree.Shape != inventory.Flat {
		t.Errorf("after a refusal: known %t, %v", known, tree)
	}
	p.why = nil
	for range 40 {
		b.Sync()
	}
	if tree, known := b.R.Tree(); !known || tree.Shape != inventory.Nested || p.tries < 2 {
		t.Errorf("after %d tries: known %t, %v", p.tries, known, tree)
	}
}

func TestReporter_ARootThatSomebodyHungBelowAnotherIsNamed(t *testing.T) {
	b := newBench(t)
	for _, p := range []placementclient.NewProvider{{UUID: b.ID("other"), Name: "rack-7"}, {UUID: b.Root, Name: b.Name, ParentProviderUUID: b.ID("other")}} {
		_, err := b.Theirs.CreateProvider(t.Context(), p)
		b.Must(err)
	}
	err := b.R.Sync(t.Context())
	if _, writes, _ := b.Wire.Count(); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), b.ID("other")) || writes != 0 {
		t.Errorf("error %v after %d writes, want %v and none", err, writes, fault.Forbidden)
	}
}

// TestReporter_AChildOfOursInAnotherPlaceOrUnderAnotherNameIsPutBack needs
// microversion 1.37.
func TestReporter_AChildOfOursInAnotherPlaceOrUnderAnotherNameIsPutBack(t *testing.T) {
	b := newBench(t)
	b.In.Shape = inventory.Nested
	b.Sync()
	memory := b.Child("NUMA1_4KiB")
	_, err := b.Theirs.PlaceProvider(t.Context(), memory, "mine_NUMA1_4KiB", b.Root)
	b.Must(err)
	for range 4 {
		b.Sync()
	}
	p, err := b.Theirs.Provider(t.Context(), memory)
	if err != nil || p.Name != b.Name+"_NUMA1_4KiB" || p.ParentProviderUUID != b.Child("NUMA1") {
		t.Errorf("the child is %+v, %v", p, err)
	}
	b.Steady(5)
}

// TestReporter_AReshapeReadsEachGuestOnce: there may be hundreds, and in a second
// look at all of them others could have moved again.
func TestReporter_AReshapeReadsEachGuestOnce(t *testing.T) {
	b := newBench(t)
	b.Sync()
	const guests = 20
	for i := range guests {
		b.Place(b.ID(fmt.Sprint(i)), reportertest.Claimed(0, 16, 1))
	}
	b.In.Shape = inventory.Nested
	b.Wire.Count()
	b.Sync()
	_, _, calls := b.Wire.Count()
	n := 0
	for _, c := range calls {
		if strings.HasPrefix(c, "GET /allocations/") {
			n++
		}
	}
	if n != guests || b.R.Status().Shape != inventory.Nested {
		t.Errorf("%d reads of what %d guests hold, status %+v", n, guests, b.R.Status())
	}
}

// TestReporter_AChildThatCannotBePutBackStaysWhileItIsHeld: below microversion 1.37
// nobody gets another parent.
func TestReporter_AChildThatCannotBePutBackStaysWhileItIsHeld(t *testing.T) {
	b := reportertest.New(t, embedded(t), 30)
	b.In.Shape = inventory.Nested
	b.Sync()
	memory := b.Child("NUMA1_4KiB")
	_, err := b.Theirs.PlaceProvider(t.Context(), memory, b.Name+"_NUMA1_4KiB", b.Root)
	b.Must(err)
	b.Give(b.ID("guest"), placementclient.ConsumerInstance, map[string]placementclient.Resources{memory: {placementclient.ClassMemoryMB: 64}})
	for range 4 {
		b.Sync()
	}
	b.Steady(9)
	b.Must(b.Theirs.DeleteAllocations(t.Context(), b.ID("guest")))
	b.Restart()
	b.Sync()
	if p, err := b.Theirs.Provider(t.Context(), memory); err != nil || p.ParentProviderUUID != b.Child("NUMA1") {
		t.Errorf("nobody holds the child, and it is %+v, %v", p, err)
	}
}

// TestReporter_WithoutAReshaperNothingIsGivenTwice while both shapes stand.
func TestReporter_WithoutAReshaperNothingIsGivenTwice(t *testing.T) {
	b := reportertest.New(t, embedded(t), 28)
	b.Sync()
	b.Wire.Disturb(nil, func(r *http.Request) error {
		list, err := b.Theirs.ProvidersInTree(b.Context(), b.Root)
		b.Must(err)
		free := placementclient.Resources{}
		for _, p := range list {
			for class, i := range b.Inventories(p.UUID) {
				free[class] += i.Total - i.Reserved
			}
		}
		if free[placementclient.ClassVCPU] > 4 || free[placementclient.ClassMemoryMB] > 8192 {
			t.Errorf("after %s %s anybody could have %v", r.Method, r.URL.Path, free)
		}
		return nil
	})
	for _, shape := range []inventory.Shape{inventory.Nested, inventory.Flat} {
		b.In.Shape = shape
		b.Sync()
		if got := b.R.Status().Shape; got != shape {
			t.Errorf("the shape is %s, want %s", got, shape)
		}
	}
}

// TestReporter_AReshapeChangesNoSum, also where a claim says otherwise; and says of
// consumers of whom nobody told what they are.
func TestReporter_AReshapeChangesNoSum(t *testing.T) {
	b := newBench(t)
	guest, move, other := b.ID("guest"), b.ID("move"), b.ID("other")
	b.Options.Migration = func(consumer string) bool { return consumer != other }
	b.Restart()
	b.Sync()
	b.Held[guest] = reportertest.Claimed(3, 2048, 9)
	holds := placementclient.Resources{placementclient.ClassVCPU: 1, placementclient.ClassMemoryMB: 64}
	for _, id := range []string{guest, move, other} {
		b.Must(b.Older.PutAllocations(t.Context(), id, placementclient.Allocations{
			Allocations: map[string]placementclient.Resources{b.Root: holds}, ProjectID: "p", UserID: "u",
		}))
	}
	b.In.Shape = inventory.Nested
	b.Sync()
	for id, kind := range map[string]string{guest: placementclient.ConsumerInstance, move: placementclient.ConsumerMigration, other: placementclient.ConsumerInstance} {
		got, err := b.Theirs.Allocations(t.Context(), id)
		b.Must(err)
		if sum := b.Sum(id); !maps.Equal(sum, holds) || got.ConsumerType != kind || len(got.Allocations[b.Root]) > 0 {
			t.Errorf("a consumer holds %v and is %s, want %v below the root and %s", got.Allocations, got.ConsumerType, holds, kind)
		}
	}
}

// TestReporter_AGuestThatComesWhileThereIsNoReshaperKeepsTheShape: in one comparison.
func TestReporter_AGuestThatComesWhileThereIsNoReshaperKeepsTheShape(t *testing.T) {
	b := reportertest.New(t, embedded(t), 28)
	b.Options.Runtime = instant{&runtime.System{}}
	b.Restart()
	b.Sync()
	b.In.Shape = inventory.Nested
	cells, guest := 0, b.ID("guest")
	b.Wire.Disturb(nil, func(r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
			if cells++; cells == 1 {
				b.Give(guest, placementclient.ConsumerInstance, map[string]placementclient.Resources{b.Root: {placementclient.ClassVCPU: 1}})
			}
		}
		return nil
	})
	b.Sync()
	b.Wire.Disturb(nil, nil)
	for range 4 {
		b.Sync()
	}
	if s := b.R.Status(); s.Shape != inventory.Flat || s.Waiting == nil || s.Waiting.Reason.Code != "reshaper_missing" || len(b.Names()) != 1 {
		t.Errorf("status %+v, providers %v", s, b.Names())
	}
}

// TestReporter_AProviderWithSomebodysChildStaysForAsLong, named, and is not asked
// about in each interval.
func TestReporter_AProviderWithSomebodysChildStaysForAsLong(t *testing.T) {
	b := newBench(t)
	b.In.Shape = inventory.Nested
	b.Sync()
	_, err := b.Theirs.CreateProvider(t.Context(), placementclient.NewProvider{UUID: b.ID("foreign"), Name: b.Name + "-fpga", ParentProviderUUID: b.Child("NUMA0")})
	b.Must(err)
	b.In.Shape = inventory.Flat
	b.Sync()
	if s := b.R.Status(); s.Shape != inventory.Flat || !s.InSync || !slices.Equal(s.Kept, []string{b.Name + "_NUMA0"}) {
		t.Errorf("status %+v", s)
	}
	b.Steady(6)
	b.Must(b.Theirs.DeleteProvider(t.Context(), b.ID("foreign")))
	for range 2 {
		b.Sync()
	}
	if got := b.Names(); !slices.Equal(got, []string{""}) {
		t.Errorf("left over: %v", got)
	}
}
