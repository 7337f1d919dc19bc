package inventory_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/placementclient"
	"berth/topology"
)

// twoCells has cells 0 and 1 of four CPUs and 4 GiB, of which a GiB of cell 1 is in
// pages of 2 MiB.
func twoCells() *topology.Host {
	return &topology.Host{
		Cells: []topology.Cell{
			{ID: 0, CPUs: set("0-3"), MemoryBytes: 4 << 30, Pages: topology.Pages{4096: 1 << 20}},
			{ID: 1, CPUs: set("4-7"), MemoryBytes: 4 << 30, Pages: topology.Pages{4096: 3 << 18, 2 << 20: 512}},
		},
		Cores:     []topology.CPUSet{set("0-1"), set("2-3"), set("4-5"), set("6-7")},
		PageSizes: []topology.PageSize{4096, 2 << 20}, BasePageSize: 4096,
	}
}

func nestedInput() inventory.Input {
	in := input(twoCells())
	in.Shape = inventory.Nested
	in.Cells = inventory.CellOptions{Dedicated: set("2-3,6-7"), Shared: set("0-1,4-5")}
	return in
}

// named gives what is held by providers' names.
func named(tree *inventory.Tree, held map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	for rp, r := range held {
		for _, p := range tree.Providers {
			if p.UUID == rp {
				rp = p.Name
			}
		}
		out[rp] = r
	}
	return out
}

// of is the other way round.
func of(tree *inventory.Tree, held map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := map[string]placementclient.Resources{}
	for name, r := range held {
		for _, p := range tree.Providers {
			if p.Name == name {
				name = p.UUID
			}
		}
		out[name] = r
	}
	return out
}

func TestTree_PlacesAClaimInItsCells(t *testing.T) {
	const root, numa0, numa1, small0, small1, huge1 = "compute1", "compute1_NUMA0", "compute1_NUMA1", "compute1_NUMA0_4KiB", "compute1_NUMA1_4KiB", "compute1_NUMA1_2MiB"
	type held = map[string]placementclient.Resources
	pins := []topology.Pin{{VCPU: 0, CPU: 2}, {VCPU: 1, CPU: 3}}
	for _, tt := range []struct {
		name      string
		resources topology.Resources
		cells     []topology.AssignedCell
		now       held
		want      held
	}{
		{"shared vCPUs, ordinary memory and disk", topology.Resources{VCPUs: 2, MemoryMB: 100, DiskGB: 5},
			[]topology.AssignedCell{{HostCell: 1, Shared: 2, MemoryMB: 100}}, nil,
			held{root: {"DISK_GB": 5}, numa1: {"VCPU": 2}, small1: {"MEMORY_MB": 100}}},
		{"pins, the emulator's CPU, and a sibling that stays empty", topology.Resources{PCPUs: 3, MemoryMB: 100},
			[]topology.AssignedCell{{HostCell: 0, Pins: pins, Emulator: set("1"), Idle: set("0"), MemoryMB: 100}}, nil,
			held{numa0: {"PCPU": 3}, small0: {"MEMORY_MB": 100}}},
		{"huge pages of one cell, the smallest asked for in the other", topology.Resources{VCPUs: 1, PCPUs: 2, MemoryMB: 300},
			[]topology.AssignedCell{{HostCell: 1, Shared: 1, MemoryMB: 200, PageSize: 2 << 20}, {HostCell: 0, Pins: pins, MemoryMB: 100, PageSize: 4096}}, nil,
			held{numa1: {"VCPU": 1}, huge1: {"MEMORY_MB": 200}, numa0: {"PCPU": 2}, small0: {"MEMORY_MB": 100}}},
		{"pins that are counted as VCPU", topology.Resources{VCPUs: 2, MemoryMB: 100},
			[]topology.AssignedCell{{HostCell: 0, Pins: pins, MemoryMB: 100}}, nil,
			held{numa0: {"VCPU": 2}, small0: {"MEMORY_MB": 100}}},
		{"where it is counted matters not, bound", topology.Resources{VCPUs: 2, MemoryMB: 100},
			[]topology.AssignedCell{{HostCell: 1, Shared: 2, MemoryMB: 100}}, held{numa0: {"VCPU": 2}, small0: {"MEMORY_MB": 100}},
			held{numa1: {"VCPU": 2}, small1: {"MEMORY_MB": 100}}},
		{"a pool that is no more is ordinary memory", topology.Resources{VCPUs: 2, MemoryMB: 1024},
			[]topology.AssignedCell{{HostCell: 0, Shared: 2, MemoryMB: 1024, PageSize: 1 << 30}}, nil,
			held{numa0: {"VCPU": 2}, small0: {"MEMORY_MB": 1024}}},

		{"a guest that floats stays where it is counted", topology.Resources{VCPUs: 2, MemoryMB: 100}, nil,
			held{numa0: {"VCPU": 1}, numa1: {"VCPU": 1}, small1: {"MEMORY_MB": 100}},
			held{numa0: {"VCPU": 1}, numa1: {"VCPU": 1}, small1: {"MEMORY_MB": 100}}},
		{"but not where its sums are wrong", topology.Resources{VCPUs: 3, MemoryMB: 100}, nil,
			held{numa1: {"VCPU": 2}, small1: {"MEMORY_MB": 100}},
			held{numa0: {"VCPU": 3}, small1: {"MEMORY_MB": 100}}},
		{"nor in huge pages", topology.Resources{VCPUs: 2, MemoryMB: 100}, nil,
			held{numa1: {"VCPU": 2}, huge1: {"MEMORY_MB": 100}},
			held{numa1: {"VCPU": 2}, small0: {"MEMORY_MB": 100}}},
		{"a new one goes to one cell", topology.Resources{VCPUs: 3, MemoryMB: 100}, nil, nil,
			held{numa0: {"VCPU": 3}, small0: {"MEMORY_MB": 100}}},
		{"to one that has room for all", topology.Resources{VCPUs: 3, MemoryMB: 3600}, nil, nil,
			held{numa0: {"VCPU": 3}, small0: {"MEMORY_MB": 3600}}},
		{"a large one to both", topology.Resources{VCPUs: 3, MemoryMB: 5000}, nil, nil,
			held{numa0: {"VCPU": 3}, small0: {"MEMORY_MB": 3803}, small1: {"MEMORY_MB": 1197}}},
		{"what has room nowhere stands all the same", topology.Resources{VCPUs: 40, MemoryMB: 100}, nil, nil,
			held{numa0: {"VCPU": 36}, numa1: {"VCPU": 4}, small0: {"MEMORY_MB": 100}}},
		{"so does what was given of a cell that is gone", topology.Resources{VCPUs: 1, PCPUs: 1, MemoryMB: 100},
			[]topology.AssignedCell{{HostCell: 7, Shared: 1, Pins: pins[:1], MemoryMB: 100}}, nil,
			held{numa0: {"VCPU": 1, "PCPU": 1}, small0: {"MEMORY_MB": 100}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := inventory.Compute(nestedInput(), nil).Tree.Beside(nil)
			h := inventory.Held{Resources: tt.resources, Assignment: topology.Assignment{Cells: tt.cells}}
			got := tree.Place(h, of(tree, tt.now))
			if diff := cmp.Diff(tt.want, named(tree, got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !tree.Agrees(h, got) {
				t.Errorf("%v does not agree with itself", got)
			}
			others := map[string]placementclient.Resources{"5213b75d-9260-42a6-b236-f39b0fd10561": {"VCPU": 1}}
			for rp, r := range got {
				others[rp] = r
			}
			if !tree.Agrees(h, others) {
				t.Error("what it holds of others is looked at")
			}
			if tree.Agrees(h, nil) {
				t.Error("nothing agrees with it")
			}
		})
	}
}

// TestTree_FloatingGuestsTakeDifferentCells: where no usage is known, since cells
// that all guests begin with are full first.
func TestTree_FloatingGuestsTakeDifferentCells(t *testing.T) {
	tree := inventory.Compute(nestedInput(), nil).Tree
	on := map[string]int{}
	for _, c := range "0123456789abcdef" {
		h := inventory.Held{Resources: topology.Resources{VCPUs: 1, MemoryMB: 1}, Consumer: "00000000-0000-4000-8000-00000000000" + string(c)}
		for rp := range tree.Place(h, nil) {
			on[rp]++
		}
	}
	if len(on) != 4 {
		t.Errorf("16 guests are counted on %v, want both cells", on)
	}
}

// TestTree_FloatingGuestsGoWhereRoomIs: beside what others hold.
func TestTree_FloatingGuestsGoWhereRoomIs(t *testing.T) {
	tree := inventory.Compute(nestedInput(), nil).Tree
	used := of(tree, map[string]placementclient.Resources{"compute1_NUMA0_4KiB": {"MEMORY_MB": 3800}, "compute1_NUMA1": {"VCPU": 7}})
	got := named(tree, tree.Beside(used).Place(inventory.Held{Resources: topology.Resources{VCPUs: 2, MemoryMB: 100}}, nil))
	// Neither cell has room for all of it.
	want := map[string]placementclient.Resources{"compute1_NUMA1": {"VCPU": 1}, "compute1_NUMA0": {"VCPU": 1}, "compute1_NUMA1_4KiB": {"MEMORY_MB": 100}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTree_UndecidedAreTheCellsOfAGuestThatFloatsAnew, and nobody else's.
func TestTree_UndecidedAreTheCellsOfAGuestThatFloatsAnew(t *testing.T) {
	tree := inventory.Compute(nestedInput(), nil).Tree
	floating := inventory.Held{Resources: topology.Resources{VCPUs: 1, MemoryMB: 10}}
	names := func(rps []string) map[string]placementclient.Resources {
		out := map[string]placementclient.Resources{}
		for _, rp := range rps {
			out[rp] = placementclient.Resources{}
		}
		return named(tree, out)
	}
	want := map[string]placementclient.Resources{"compute1_NUMA0": {}, "compute1_NUMA1": {}, "compute1_NUMA0_4KiB": {}, "compute1_NUMA1_4KiB": {}}
	if diff := cmp.Diff(want, names(tree.Undecided(floating, nil))); diff != "" {
		t.Errorf("a new one (-want +got):\n%s", diff)
	}
	bound := floating
	bound.Assignment.Cells = []topology.AssignedCell{{HostCell: 0, Shared: 1, MemoryMB: 10}}
	flat := inventory.Compute(input(twoCells()), nil).Tree
	for what, got := range map[string][]string{
		"bound": tree.Undecided(bound, nil), "counted already": tree.Undecided(floating, tree.Place(floating, nil)), "flat": flat.Undecided(floating, nil),
	} {
		if len(got) > 0 {
			t.Errorf("%s: %v, want none", what, got)
		}
	}
}

// TestTree_SettleMakesRoomForTheBound: floating guests fill cell 0, and a guest
// comes that is bound to it.
func TestTree_SettleMakesRoomForTheBound(t *testing.T) {
	tree := inventory.Compute(nestedInput(), nil).Tree
	floating := inventory.Held{Resources: topology.Resources{VCPUs: 1, MemoryMB: 3000}}
	bound := inventory.Held{
		Resources:  topology.Resources{VCPUs: 1, MemoryMB: 2000},
		Assignment: topology.Assignment{Cells: []topology.AssignedCell{{HostCell: 0, Shared: 1, MemoryMB: 2000}}},
	}
	stands := of(tree, map[string]placementclient.Resources{"compute1_NUMA0": {"VCPU": 1}, "compute1_NUMA0_4KiB": {"MEMORY_MB": 3000}})
	got := tree.Settle([]inventory.Consumer{{UUID: "floating", Held: &floating, Now: stands}, {UUID: "bound", Held: &bound}}, nil)
	want := map[string]map[string]placementclient.Resources{
		"bound":    {"compute1_NUMA0": {"VCPU": 1}, "compute1_NUMA0_4KiB": {"MEMORY_MB": 2000}},
		"floating": {"compute1_NUMA1": {"VCPU": 1}, "compute1_NUMA1_4KiB": {"MEMORY_MB": 2853}, "compute1_NUMA0_4KiB": {"MEMORY_MB": 147}},
	}
	for consumer := range want {
		if diff := cmp.Diff(want[consumer], named(tree, got[consumer])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", consumer, diff)
		}
	}
	if wrong := over(tree, got); len(wrong) > 0 {
		t.Error(wrong)
	}
}

func TestTree_DisksOfASharingProvider(t *testing.T) {
	const sharing = "5213b75d-9260-42a6-b236-f39b0fd10561"
	in := input(twoCells())
	before := inventory.Compute(in, nil)
	in.Sharing = sharing
	stands := append(standing(before.Tree), inventory.Standing{
		Provider: placementclient.ResourceProvider{UUID: sharing, Name: "nfs"}, Inventories: map[string]placementclient.Inventory{"DISK_GB": {Total: 1000, AllocationRatio: 2}},
	})
	r := inventory.Compute(in, stands)
	if inv, has := r.Tree.Providers[0].Inventories["DISK_GB"]; has || len(r.Tree.Providers) != 1 {
		t.Errorf("the root has %+v, of %d providers; want the sharing one to have it, and nobody to write that", inv, len(r.Tree.Providers))
	}
	if r.Capacity.Total.DiskGB != 100 || r.Capacity.Ratios.Disk != 2 {
		t.Errorf("capacity %+v, want the filesystem's size by the sharing provider's ratio", r.Capacity)
	}
	h := inventory.Held{Resources: topology.Resources{VCPUs: 1, MemoryMB: 10, DiskGB: 5}}
	want := map[string]placementclient.Resources{rootUUID: {"VCPU": 1, "MEMORY_MB": 10}, sharing: {"DISK_GB": 5}}
	if diff := cmp.Diff(want, r.Tree.Place(h, nil)); diff != "" {
		t.Errorf("placed (-want +got):\n%s", diff)
	}
	if !r.Tree.Uses(sharing) || r.Tree.Owns(sharing) {
		t.Errorf("uses %v, owns %v; want true, false", r.Tree.Uses(sharing), r.Tree.Owns(sharing))
	}
	if diff := cmp.Diff(want, r.Tree.Rehome(before.Tree.Place(h, nil))); diff != "" {
		t.Errorf("rehomed (-want +got):\n%s", diff)
	}
}

// TestCompute_ChangesItsShape both ways, with ratios that somebody set.
func TestCompute_ChangesItsShape(t *testing.T) {
	in := nestedInput()
	in.Shape = inventory.Flat
	flat := inventory.Compute(in, nil)
	stands := standing(flat.Tree)
	vcpu, memory := stands[0].Inventories["VCPU"], stands[0].Inventories["MEMORY_MB"]
	vcpu.AllocationRatio, memory.AllocationRatio = 16, 1.5
	stands[0].Inventories["VCPU"], stands[0].Inventories["MEMORY_MB"] = vcpu, memory

	in.Shape, in.Holding = inventory.Nested, true
	held := inventory.Compute(in, stands)
	if held.Tree.Shape != inventory.Flat || held.Wanted != inventory.Nested || held.Reshapes() || len(held.Tree.Providers) != 1 {
		t.Errorf("while a move is held: %s of %d providers, wanted %s, reshape %v", held.Tree.Shape, len(held.Tree.Providers), held.Wanted, held.Reshapes())
	}
	in.Holding = false
	nested := inventory.Compute(in, stands)
	if nested.Tree.Shape != inventory.Nested || nested.Standing != inventory.Flat || !nested.Reshapes() {
		t.Errorf("after it: %s, standing %s, reshape %v", nested.Tree.Shape, nested.Standing, nested.Reshapes())
	}
	want := inventory.Ratios{CPU: 16, RAM: 1.5, Disk: 1}
	if nested.Capacity.Ratios != want {
		t.Errorf("ratios %+v, want %+v as they stood", nested.Capacity.Ratios, want)
	}

	// Half of the children were made when the agent was killed.
	half := append(slices.Clone(stands), standing(nested.Tree)[1:4]...)
	for i := range half[1:] {
		half[i+1].Inventories = nil
	}
	if again := inventory.Compute(in, half); again.Standing != inventory.Flat || !again.Reshapes() {
		t.Errorf("with half of the children made: standing %s, reshape %v", again.Standing, again.Reshapes())
	}

	in.Shape = inventory.Flat
	back := inventory.Compute(in, standing(nested.Tree))
	if !back.Reshapes() || back.Capacity.Ratios != want || len(back.Tree.Providers) != 1 {
		t.Errorf("back: reshape %v, ratios %+v, %d providers", back.Reshapes(), back.Capacity.Ratios, len(back.Tree.Providers))
	}
	var retired []string
	for _, p := range back.Tree.Retired {
		retired = append(retired, p.Name)
	}
	if len(retired) != 5 || slices.Index(retired, "compute1_NUMA0") < 3 || slices.Index(retired, "compute1_NUMA1") < 3 {
		t.Errorf("retired are %v, want the memory before its cells", retired)
	}

	// Both stand: whatever is wanted takes a reshape.
	both := append(slices.Clone(stands), standing(nested.Tree)[1:]...)
	for _, shape := range []inventory.Shape{inventory.Flat, inventory.Nested} {
		if in.Shape = shape; !inventory.Compute(in, both).Reshapes() {
			t.Errorf("both stand, %s is wanted: no reshape", shape)
		}
	}
}

// TestCompute_KnowsItsChildrenByTheirUUIDs: of a host that was renamed, and beside
// somebody else's of the same name.
func TestCompute_KnowsItsChildrenByTheirUUIDs(t *testing.T) {
	in := nestedInput()
	stands := standing(inventory.Compute(in, nil).Tree)
	foreign := stands[1]
	foreign.Provider.UUID, foreign.Provider.Name = "5213b75d-9260-42a6-b236-f39b0fd10561", "compute1_NUMA9"
	in.Name = "compute_1.example"
	r := inventory.Compute(in, append(stands, foreign))
	if len(r.Tree.Retired) != 0 || len(r.Tree.Providers) != len(stands) || r.Tree.Owns(foreign.Provider.UUID) {
		t.Fatalf("%d providers, %d retired; want %d and none", len(r.Tree.Providers), len(r.Tree.Retired), len(stands))
	}
	for i, p := range r.Tree.Providers {
		if p.UUID != stands[i].Provider.UUID {
			t.Errorf("%s has uuid %s, want %s as before", p.Name, p.UUID, stands[i].Provider.UUID)
		}
	}
	if got := r.Tree.Providers[1].Name; got != "compute_1.example_NUMA0" {
		t.Errorf("the cell is named %s", got)
	}
	// Placement was restored: the same uuids come out of nothing.
	if got, want := inventory.ChildUUID(rootUUID, "NUMA0"), "b2e4e3cf-4d26-5464-aaee-bd087a74c470"; got != want {
		t.Errorf("uuid of NUMA0 is %s, was ever %s", got, want)
	}
}

// TestCompute_NamesOfALongHostFit: Placement takes 200 characters.
func TestCompute_NamesOfALongHostFit(t *testing.T) {
	in := nestedInput()
	in.Name = strings.Repeat("x", 190) // "_NUMA1" fits behind it, "_NUMA1_2MiB" does not
	other := in
	other.UUID = "5213b75d-9260-42a6-b236-f39b0fd10561"
	r := inventory.Compute(in, nil)
	valid(t, r.Tree)
	var long int
	for i, p := range r.Tree.Providers {
		if len(p.Name) > 200 {
			t.Errorf("%s has %d characters", p.Name, len(p.Name))
		}
		if p.Parent == "" || strings.HasPrefix(p.Name, in.Name+"_") {
			continue
		}
		long++
		if same := inventory.Compute(other, nil).Tree.Providers[i].Name; same == p.Name {
			t.Errorf("two hosts that differ in the ends of their names have %s", same)
		}
	}
	if again := inventory.Compute(in, standing(r.Tree)); long == 0 || len(again.Tree.Retired) > 0 || again.Tree.Providers[2].Name != r.Tree.Providers[2].Name {
		t.Errorf("%d names are cut, %d are retired", long, len(again.Tree.Retired))
	}
	// The uuids do not tell, so a renamed host keeps them.
	in.Name = "compute1"
	if short := inventory.Compute(in, standing(r.Tree)); len(short.Tree.Retired) > 0 {
		t.Errorf("renamed: %d are retired", len(short.Tree.Retired))
	}
}

// TestCompute_ReservesPagesAndMemory: the host's reserve is of ordinary memory,
// reserved ordinary pages are part of it, and the claim lock keeps the same.
func TestCompute_ReservesPagesAndMemory(t *testing.T) {
	in := nestedInput()
	in.Reserved.MemoryMB = 700
	in.Cells.Pages = []inventory.ReservedPages{{Cell: 0, Size: 4096, Count: 100 << 8}, {Cell: 1, Size: 2 << 20, Count: 12}}
	r := inventory.Compute(in, nil)
	want := map[string][2]int64{"compute1_NUMA0_4KiB": {4096, 100 + 339}, "compute1_NUMA1_4KiB": {3072, 261}, "compute1_NUMA1_2MiB": {1024, 24}}
	got := map[string][2]int64{}
	for _, p := range r.Tree.Providers {
		if m, has := p.Inventories["MEMORY_MB"]; has {
			got[p.Name] = [2]int64{m.Total, m.Reserved}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("total and reserved (-want +got):\n%s", diff)
	}
	cells, reasons := inventory.FitCells(in.Host, r.Cells)
	if len(reasons) > 0 {
		t.Errorf("%+v", reasons)
	}
	for i, mb := range []int64{439, 261} {
		if kept := cells[i].Pages[0].Reserved * 4096 >> 20; kept != mb {
			t.Errorf("the claim lock keeps %d MiB of cell %d, want %d", kept, i, mb)
		}
	}
	in.Shape = inventory.Flat
	if diff := cmp.Diff(in.Cells, inventory.Compute(in, nil).Cells); diff != "" {
		t.Errorf("flat, cells are kept as they are (-want +got):\n%s", diff)
	}
}

// TestCompute_AnOddGuestInHugePagesCanBeCounted: found so, with half a page.
func TestCompute_AnOddGuestInHugePagesCanBeCounted(t *testing.T) {
	in := nestedInput()
	of := func() placementclient.Inventory {
		for _, p := range inventory.Compute(in, nil).Tree.Providers {
			if p.Name == "compute1_NUMA1_2MiB" {
				return p.Inventories["MEMORY_MB"]
			}
		}
		return placementclient.Inventory{}
	}
	if got := of(); got.StepSize != 2 || got.MinUnit != 2 {
		t.Errorf("whole pages: %+v", got)
	}
	in.Held = []inventory.Held{{
		Resources:  topology.Resources{VCPUs: 1, MemoryMB: 101},
		Assignment: topology.Assignment{Cells: []topology.AssignedCell{{HostCell: 1, Shared: 1, MemoryMB: 101, PageSize: 2 << 20}}},
	}}
	if got := of(); got.StepSize != 1 || got.MinUnit != 1 {
		t.Errorf("beside an odd guest: %+v", got)
	}
}

// TestCompute_Disabled: Berth takes away what it has set, and not what somebody
// else has.
func TestCompute_Disabled(t *testing.T) {
	const disabled = "COMPUTE_STATUS_DISABLED"
	in := input(twoCells())
	in.Disabled = true
	r := compute(in, nil, nil)
	if !slices.Contains(r.Traits, disabled) {
		t.Errorf("disabled: %v", r.Traits)
	}
	in.Applied = r.Applied
	if r = compute(in, r.Inventories, r.Traits); !slices.Contains(r.Traits, disabled) {
		t.Errorf("computed again: %v", r.Traits)
	}
	in.Disabled, in.Applied = false, r.Applied
	if r = compute(in, r.Inventories, r.Traits); slices.Contains(r.Traits, disabled) {
		t.Errorf("enabled again: %v", r.Traits)
	}
	in.Applied = inventory.Applied{}
	for _, in.Disabled = range []bool{true, false} {
		if r = compute(in, nil, []string{disabled}); !slices.Contains(r.Traits, disabled) {
			t.Errorf("somebody else's, Disabled %v: %v", in.Disabled, r.Traits)
		}
		in.Applied = r.Applied
	}
}
