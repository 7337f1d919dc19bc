package counted

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/allocation"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
	"berth/topology"
)

// TestAllocations_AMoveWithoutItsConductor is settled by each of its two hosts, in any order
// and again: the guest is counted once, where it is, and the migration holds nothing.
func TestAllocations_AMoveWithoutItsConductor(t *testing.T) {
	const (
		source   = "33333333-3333-4333-8333-333333333330"
		dest     = "33333333-3333-4333-8333-333333333331"
		instance = "11111111-1111-4111-8111-111111111111"
		move     = "22222222-2222-4222-8222-222222222222"
	)
	type held = map[string]placementclient.Resources
	client, ctx := clientOf(t, servedPlacement(t, inventories{source: machine, dest: machine}), 0), t.Context()
	at := func(root string) Allocations { return on(client, root, root) }
	old, larger := placementclient.Resources{"VCPU": 1, "MEMORY_MB": 64}, placementclient.Resources{"VCPU": 2, "MEMORY_MB": 128}
	swapped := func() {
		t.Helper()
		set := map[string]placementclient.Allocations{}
		for consumer, want := range map[string]placementclient.Allocations{
			instance: {Allocations: held{dest: larger}, ConsumerType: placementclient.ConsumerInstance},
			move:     {Allocations: held{source: old}, ConsumerType: placementclient.ConsumerMigration},
		} {
			now, err := client.Allocations(ctx, consumer)
			if err != nil {
				t.Fatal(err)
			}
			want.ProjectID, want.UserID, want.ConsumerGeneration = "p", "u", now.ConsumerGeneration
			set[consumer] = want
		}
		if err := client.PostAllocations(ctx, set); err != nil {
			t.Fatal(err)
		}
	}
	here := func(root string, r topology.Resources) func() error {
		return func() error {
			return at(root).SettleHere(ctx, allocation.Allocation{Consumer: instance, Resources: r, ProjectID: "p", UserID: "u"}, move)
		}
	}
	keep, take := topology.Resources{VCPUs: 1, MemoryMB: 64}, topology.Resources{VCPUs: 2, MemoryMB: 128}
	back := func() error { return at(dest).SettleBack(ctx, instance, move, keep) }
	there := func() error { return at(source).SettleThere(ctx, instance, move) }
	for name, tt := range map[string]struct {
		settle []func() error
		want   held
		gone   bool // the source sees that it was settled elsewhere
	}{
		"nobody":                       {nil, held{dest: larger}, false},
		"the source keeps it":          {[]func() error{here(source, keep)}, held{source: old}, false},
		"and the destination gives":    {[]func() error{back, here(source, keep)}, held{source: old}, false},
		"in the other order":           {[]func() error{here(source, keep), back}, held{source: old}, false},
		"the destination gives alone":  {[]func() error{back, back}, held{source: old}, false},
		"the destination has it":       {[]func() error{here(dest, take)}, held{dest: larger}, true},
		"and the source gives":         {[]func() error{there, here(dest, take)}, held{dest: larger}, true},
		"the source gives alone":       {[]func() error{there, there}, held{dest: larger}, true},
		"the destination has it, late": {[]func() error{here(dest, take), there, here(dest, take)}, held{dest: larger}, true},
	} {
		t.Run(name, func(t *testing.T) {
			swapped()
			for _, side := range tt.settle {
				if err := side(); err != nil {
					t.Fatal(err)
				}
			}
			inst, err := client.Allocations(ctx, instance)
			if err != nil {
				t.Fatal(err)
			}
			mig, err := client.Allocations(ctx, move)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, inst.Allocations); diff != "" {
				t.Errorf("instance (-want +got):\n%s", diff)
			}
			if (len(mig.Allocations) == 0) != (len(tt.settle) > 0) {
				t.Errorf("migration holds %v", mig.Allocations)
			}
			switch gone, err := at(source).SettledElsewhere(ctx, instance, move); {
			case err != nil:
				t.Error(err)
			case gone != tt.gone:
				t.Errorf("settled elsewhere: %v, want %v", gone, tt.gone)
			}
			for _, root := range []string{source, dest} {
				if here, err := at(root).CountedHere(ctx, instance); err != nil || here != (tt.want[root] != nil) {
					t.Errorf("counted at %s: %v, %v", root, here, err)
				}
			}
		})
	}
	none := Allocations{client, func() (*inventory.Tree, bool) { return nil, false }}
	if _, err := none.SettledElsewhere(ctx, instance, move); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without a tree: %v", err)
	}
	if err := none.SettleThere(ctx, instance, move); !errors.Is(err, fault.Unavailable) {
		t.Errorf("settle without a tree: %v", err)
	}
}

// TestAllocations_AMoveHomeKeepsASharedDisk, which is counted once, and so not by the
// migration's consumer.
func TestAllocations_AMoveHomeKeepsASharedDisk(t *testing.T) {
	const (
		source, dest, nfs = "33333333-3333-4333-8333-333333333330", "33333333-3333-4333-8333-333333333331", "33333333-3333-4333-8333-333333333332"
		instance, move    = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	)
	type held = map[string]placementclient.Resources
	client := clientOf(t, servedPlacement(t, inventories{
		source: {"VCPU": {Total: 8}}, dest: {"VCPU": {Total: 8}}, nfs: {"DISK_GB": {Total: 100}},
	}), 0)
	ctx := t.Context()
	if err := client.PostAllocations(ctx, map[string]placementclient.Allocations{
		instance: {Allocations: held{dest: {"VCPU": 2}, nfs: {"DISK_GB": 20}}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance},
		move:     {Allocations: held{source: {"VCPU": 1}}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerMigration},
	}); err != nil {
		t.Fatal(err)
	}
	p := on(client, dest, nfs)
	for range 2 {
		if err := p.SettleBack(ctx, instance, move, topology.Resources{VCPUs: 1, DiskGB: 10}); err != nil {
			t.Fatal(err)
		}
		got, err := client.Allocations(ctx, instance)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(held{source: {"VCPU": 1}, nfs: {"DISK_GB": 10}}, got.Allocations); diff != "" {
			t.Errorf("instance (-want +got):\n%s", diff)
		}
		if kept, err := p.Kept(ctx, move); kept || err != nil {
			t.Errorf("the migration holds something: %v, %v", kept, err)
		}
	}
}
