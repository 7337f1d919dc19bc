package reporter_test

import (
	"testing"

	"berth/agent/reporter/reportertest"
	"berth/placementclient"
)

// pool makes a provider that shares disks by an aggregate, and gives its uuid and
// that of the aggregate, in which the host is not yet.
func pool(b *reportertest.Bench, name string) (id, aggregate string) {
	b.Helper()
	id, aggregate = b.ID(name), b.ID("aggregate")
	_, err := b.Theirs.CreateProvider(b.Context(), placementclient.NewProvider{UUID: id, Name: b.Name + "-" + name})
	b.Must(err)
	b.PutInventory(id, placementclient.ClassDiskGB, placementclient.Inventory{Total: 1000})
	b.AddTraits(id, placementclient.TraitMiscSharesViaAggregate)
	b.PutAggregates(id, aggregate)
	return id, aggregate
}

// disksOf requires the host's disks to be of a provider after some intervals.
func disksOf(b *reportertest.Bench, want string, intervals int) {
	b.Helper()
	for range intervals {
		b.Sync()
	}
	_, onRoot := b.Inventories(b.Root)[placementclient.ClassDiskGB]
	if s := b.R.Status(); s.Disk != want || onRoot != (want == b.Root) {
		b.Fatalf("disks are of %s, and the root has some: %t; want %s", s.Disk, onRoot, want)
	}
}

// TestReporter_DisksStayWhereTheyAreWhileAGuestMoves: by what the host knows, and by
// a migration consumer alone.
func TestReporter_DisksStayWhereTheyAreWhileAGuestMoves(t *testing.T) {
	b := newBench(t)
	b.Sync()
	b.Place(b.ID("guest"), reportertest.Claimed(1, 64, 5))
	move := b.ID("move")
	b.Give(move, placementclient.ConsumerMigration, map[string]placementclient.Resources{b.Root: {placementclient.ClassDiskGB: 1}})
	shared, aggregate := pool(b, "pool")
	b.PutAggregates(b.Root, aggregate)
	for _, holding := range []bool{true, false} {
		b.In.Holding, b.Moving[move] = holding, !holding
		disksOf(b, b.Root, 9)
		if w := b.R.Status().Waiting; w == nil || w.Reason.Code != "reshape_move" {
			t.Errorf("waiting is %+v", w)
		}
	}
	delete(b.Moving, move)
	disksOf(b, shared, 9)
	if b.Holds(b.ID("guest"))[shared][placementclient.ClassDiskGB] != 5 || b.Holds(move)[shared][placementclient.ClassDiskGB] != 1 {
		t.Errorf("guest holds %v, migration %v", b.Holds(b.ID("guest")), b.Holds(move))
	}
	// Another that shares does not take over: the one that is used stays.
	pool(b, "another")
	disksOf(b, shared, 20)
	if w := b.R.Status().Waiting; w == nil || w.Reason.Code != "sharing_ambiguous" {
		t.Errorf("waiting is %+v", w)
	}
	b.Restart()
	disksOf(b, shared, 1)
}

// TestReporter_APoolThatComesToTheAggregateLaterIsFound: nothing of the host's tree
// tells of it.
func TestReporter_APoolThatComesToTheAggregateLaterIsFound(t *testing.T) {
	b := newBench(t)
	b.Sync()
	b.PutAggregates(b.Root, b.ID("aggregate"))
	disksOf(b, b.Root, 9)
	shared, _ := pool(b, "pool")
	disksOf(b, shared, 4*4)
}

// TestReporter_AHostThatSharesItsDisksIsNoPoolOfItsOwn: alone it keeps them, and
// beside a pool nothing is ambiguous.
func TestReporter_AHostThatSharesItsDisksIsNoPoolOfItsOwn(t *testing.T) {
	b := newBench(t)
	b.Sync()
	b.AddTraits(b.Root, placementclient.TraitMiscSharesViaAggregate)
	b.PutAggregates(b.Root, b.ID("aggregate"))
	disksOf(b, b.Root, 20)
	if w := b.R.Status().Waiting; w != nil {
		t.Errorf("waiting is %+v", w)
	}
	shared, _ := pool(b, "pool")
	disksOf(b, shared, 20)
	if w := b.R.Status().Waiting; w != nil {
		t.Errorf("beside a pool, waiting is %+v", w)
	}
}
