package counted

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/allocation"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// TestAllocations_ADiskOnASharingProvider goes with its guest, and stays where the
// guest lives on another host that shares it.
func TestAllocations_ADiskOnASharingProvider(t *testing.T) {
	tree := &inventory.Tree{Shape: inventory.Flat, Providers: []inventory.Provider{{UUID: "here"}, {UUID: "gpu", Parent: "here"}}, Disk: "pool"}
	type held = map[string]placementclient.Resources
	cpu, disk, both := placementclient.Resources{"VCPU": 1}, placementclient.Resources{"DISK_GB": 5}, placementclient.Resources{"VCPU": 1, "DISK_GB": 5}
	for _, tt := range []struct {
		name      string
		has, left held
		elsewhere bool
	}{
		{"here alone", held{"here": cpu, "gpu": {"VGPU": 1}, "pool": disk}, held{}, false},
		{"on another that shares it", held{"there": cpu, "pool": disk}, held{"there": cpu, "pool": disk}, true},
		{"doubled, on another that shares it", held{"here": cpu, "there": cpu, "pool": disk}, held{"there": cpu, "pool": disk}, true},
		{"doubled, on another with disks of its own", held{"here": cpu, "there": both, "pool": disk}, held{"there": both}, true},
		{"a disk that was left", held{"pool": disk}, held{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.left, without(tree, tt.has)); diff != "" {
				t.Errorf("what stays (-want +got):\n%s", diff)
			}
			if got := len(NotOf(tree, tt.has)) > 0; got != tt.elsewhere {
				t.Errorf("elsewhere: %t, want %t", got, tt.elsewhere)
			}
		})
	}
}

func TestAllocations_WaitForTheTree(t *testing.T) {
	a := Allocations{nil, func() (*inventory.Tree, bool) { return nil, false }}
	_, err := a.Place(t.Context(), allocation.Allocation{Consumer: "i"})
	if !errors.Is(err, fault.Unavailable) || len(fault.ReasonsOf(err)) != 1 || a.Providers() != nil {
		t.Errorf("without a tree: %v, %v; want that it is not available, and why", err, a.Providers())
	}
}

// served answers requests by a server, without a network.
type served struct{ http.Handler }

func (s served) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Body == nil {
		q.Body = http.NoBody // as a server's request always has one
	}
	r := httptest.NewRecorder()
	s.ServeHTTP(r, q)
	return r.Result(), nil
}

// inventories are those of root providers, by their uuids.
type inventories map[string]map[string]placementclient.Inventory

var machine = map[string]placementclient.Inventory{"VCPU": {Total: 8}, "MEMORY_MB": {Total: 8192}}

// servedPlacement is an empty Placement but for these providers.
func servedPlacement(t *testing.T, have inventories) *placement.Server {
	t.Helper()
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, server, 0)
	for uuid, inventory := range have {
		p, err := client.CreateProvider(t.Context(), placementclient.NewProvider{Name: uuid, UUID: uuid})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.PutInventories(t.Context(), uuid, placementclient.Inventories{Generation: p.Generation, Inventories: inventory}); err != nil {
			t.Fatal(err)
		}
	}
	return server
}

// clientOf asks a server with microversions up to one; 0 for all.
func clientOf(t *testing.T, server *placement.Server, most placementclient.Microversion) *placementclient.Client {
	t.Helper()
	client, err := placementclient.New(placementclient.Config{URL: "http://127.0.0.1:8778", Token: "admin", Transport: served{server}, MaxVersion: most})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// on is what a host with a flat tree counts, its disks on a provider.
func on(client *placementclient.Client, root, disk string) Allocations {
	return Allocations{client, func() (*inventory.Tree, bool) {
		return &inventory.Tree{Shape: inventory.Flat, Providers: []inventory.Provider{{UUID: root}}, Disk: disk}, true
	}}
}

// TestAllocations_LeaveAloneWhatIsAnotherHosts is a guest that was moved by hand,
// with virsh: its old host, which finds it gone, must not take its allocation
// away, nor one that has a leftover of it overwrite it.
func TestAllocations_LeaveAloneWhatIsAnotherHosts(t *testing.T) {
	const (
		here     = "33333333-3333-4333-8333-333333333330"
		there    = "33333333-3333-4333-8333-333333333331"
		instance = "11111111-1111-4111-8111-111111111111"
	)
	server := servedPlacement(t, inventories{here: machine, there: machine})
	client, ctx := clientOf(t, server, 0), t.Context()
	at := func(root string) Allocations { return on(client, root, root) }
	wants := allocation.Allocation{Consumer: instance, Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, ProjectID: "p", UserID: "u"}
	held := func(what string, want map[string]placementclient.Resources) {
		t.Helper()
		got, err := client.Allocations(ctx, instance)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Allocations); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	amounts := placementclient.Resources{"VCPU": 1, "MEMORY_MB": 64}
	if err := at(there).PutAllocation(ctx, wants); err != nil {
		t.Fatal(err)
	}
	if err := at(here).PutAllocation(ctx, wants); !errors.Is(err, fault.Forbidden) || len(fault.ReasonsOf(err)) != 1 {
		t.Errorf("put over another host's: %v, want a refusal that names it", err)
	}
	if err := at(here).DeleteAllocation(ctx, instance); err != nil {
		t.Errorf("delete what is not here: %v", err)
	}
	held("after the old host's clean-up", map[string]placementclient.Resources{there: amounts})
	for range 2 {
		if err := at(there).DeleteAllocation(ctx, instance); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	held("after the delete", map[string]placementclient.Resources{})
	if err := at(here).PutAllocation(ctx, wants); err != nil {
		t.Errorf("put after a delete: %v", err)
	}
	held("after the put", map[string]placementclient.Resources{here: amounts})

	// Written before there were types, it reads as of one that cannot be written.
	older := clientOf(t, server, 37)
	if err := client.DeleteAllocations(ctx, instance); err != nil {
		t.Fatal(err)
	}
	if err := older.PutAllocations(ctx, instance, placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{here: amounts, there: amounts}, ProjectID: "p", UserID: "u",
	}); err != nil {
		t.Fatal(err)
	}
	if err := at(here).DeleteAllocation(ctx, instance); err != nil {
		t.Errorf("delete what was written without a type: %v", err)
	}
	held("after the delete of one without a type", map[string]placementclient.Resources{there: amounts})
}

// TestAllocations_AFloatingGuestIsCountedWhereRoomIs: in a nested tree, of which one
// cell is full.
func TestAllocations_AFloatingGuestIsCountedWhereRoomIs(t *testing.T) {
	const root, full, instance = "33333333-3333-4333-8333-333333333330", "11111111-1111-4111-8111-111111111110", "11111111-1111-4111-8111-111111111111"
	client := clientOf(t, servedPlacement(t, nil), 0)
	ctx := t.Context()
	cell := func(id topology.CellID) topology.Cell {
		return topology.Cell{ID: id, CPUs: topology.NewCPUSet(int(id)), MemoryBytes: 1 << 30, Pages: topology.Pages{4096: 1 << 18}}
	}
	tree := inventory.Compute(inventory.Input{
		UUID: root, Name: "a", Shape: inventory.Nested, Initial: inventory.Ratios{CPU: 8},
		Host: &topology.Host{Cells: []topology.Cell{cell(0), cell(1)}, PageSizes: []topology.PageSize{4096}, BasePageSize: 4096},
	}, nil).Tree
	for _, p := range tree.Providers {
		made, err := client.CreateProvider(ctx, placementclient.NewProvider{Name: p.Name, UUID: p.UUID, ParentProviderUUID: p.Parent})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.PutInventories(ctx, p.UUID, placementclient.Inventories{Generation: made.Generation, Inventories: p.Inventories}); err != nil {
			t.Fatal(err)
		}
	}
	p := Allocations{client, func() (*inventory.Tree, bool) { return tree, true }}
	wants := allocation.Allocation{Consumer: instance, Resources: topology.Resources{VCPUs: 1, MemoryMB: 600}, ProjectID: "p", UserID: "u"}
	for _, c := range tree.Cells {
		other := wants
		other.Consumer = full
		other.Assignment.Cells = []topology.AssignedCell{{HostCell: c.ID, Shared: 1, MemoryMB: 600}}
		if err := p.PutAllocation(ctx, other); err != nil {
			t.Fatal(err)
		}
		placed, err := p.Place(ctx, wants)
		if err != nil {
			t.Fatal(err)
		}
		if n := placed[c.Pages[4096]]["MEMORY_MB"]; n != 0 || len(placed) != 2 {
			t.Errorf("cell %d is full, and gets %d MiB: %v", c.ID, n, placed)
		}
		if err := p.PutAllocation(ctx, wants); err != nil {
			t.Errorf("beside a full cell %d: %v", c.ID, err)
		}
		if err := p.DeleteAllocation(ctx, instance); err != nil {
			t.Fatal(err)
		}
	}
}
