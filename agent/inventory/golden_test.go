package inventory_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/claims/pci"
	"berth/test/shared"
	"berth/topology"
)

var update = flag.Bool("update", false, "write the golden trees anew; read the difference before committing it")

// show prints a tree, indented by depth, each class and the traits on lines of
// their own.
func show(r inventory.Report) string {
	var b strings.Builder
	depth := map[string]int{}
	for _, p := range r.Tree.Providers {
		at := 0
		if p.Parent != "" {
			at = depth[p.Parent] + 1
		}
		depth[p.UUID] = at
		in := strings.Repeat("    ", at)
		fmt.Fprintf(&b, "%s%s %s\n", in, p.Name, p.UUID)
		for _, class := range slices.Sorted(maps.Keys(p.Inventories)) {
			i := p.Inventories[class]
			fmt.Fprintf(&b, "%s  %s %d, reserved %d, units %d to %d by %d, ratio %v\n", in, class, i.Total, i.Reserved, i.MinUnit, i.MaxUnit, i.StepSize, i.AllocationRatio)
		}
		fmt.Fprintf(&b, "%s  %s\n", in, strings.Join(p.Traits, " "))
	}
	return b.String()
}

func fixture(t *testing.T, name string) *topology.Host {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "hwdiscovery", "testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var h topology.Host
	if err := json.Unmarshal(data, &h); err != nil {
		t.Fatal(err)
	}
	return &h
}

// TestCompute_Trees are whole trees, to be read.
func TestCompute_Trees(t *testing.T) {
	for _, tt := range []struct {
		name, fixture string
		change        func(*inventory.Input)
	}{
		{"sriov-flat", "sriov", func(in *inventory.Input) {}},
		{"sriov-nested", "sriov", func(in *inventory.Input) { in.Shape = inventory.Nested }},
		{"sparse-nested", "sparse-cells", func(in *inventory.Input) {
			in.Shape, in.Disabled, in.Sharing = inventory.Nested, true, "5213b75d-9260-42a6-b236-f39b0fd10561"
			in.Cells.Dedicated = in.Host.Cells[len(in.Host.Cells)-1].CPUs
			in.Cells.Shared = in.Host.CPUs().Difference(in.Cells.Dedicated)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := fixture(t, tt.fixture)
			in := input(h)
			in.Devices, _ = pci.Devices(h, []pci.Spec{
				{Address: "0000:3b:00.0", PhysicalNetwork: "physnet1", Traits: "HW_NIC_SRIOV_TRUSTED,rack-7", LiveMigratable: "yes"}, {ProductID: "a80a", ResourceClass: "nvme"},
			})
			in.Mdev = []inventory.EnabledMdev{{Type: "nvidia-222"}}
			tt.change(&in)
			r := inventory.Compute(in, nil)
			valid(t, r.Tree)
			file, got := filepath.Join("testdata", tt.name+".txt"), show(r)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestCompute_OfTheSharedMachines: real machines in both shapes, with every function
// given that may be.
func TestCompute_OfTheSharedMachines(t *testing.T) {
	files, err := filepath.Glob(shared.Path(t, "hosts") + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d machines: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var h topology.Host
			if err := json.Unmarshal(data, &h); err != nil {
				t.Fatal(err)
			}
			for _, c := range h.Cells {
				h.PageSizes = slices.AppendSeq(h.PageSizes, maps.Keys(c.Pages))
			}
			h.PageSizes = sorted(h.PageSizes)
			in := input(&h)
			in.Devices, _ = pci.Devices(&h, []pci.Spec{{VendorID: "*"}})
			cpus := h.CPUs()
			in.Cells = inventory.CellOptions{Shared: cpus[:len(cpus)/2], Dedicated: cpus[len(cpus)/2:]}
			flat := inventory.Compute(in, nil)
			in.Shape = inventory.Nested
			nested := inventory.Compute(in, standing(flat.Tree))
			valid(t, flat.Tree)
			valid(t, nested.Tree)
			if diff := cmp.Diff(sums(flat.Tree, total), sums(nested.Tree, total)); diff != "" {
				t.Errorf("totals (-flat +nested):\n%s", diff)
			}
			if len(nested.Tree.Cells) != len(h.Cells) || !nested.Reshapes() {
				t.Errorf("%d cells of %d, reshape %v", len(nested.Tree.Cells), len(h.Cells), nested.Reshapes())
			}
			if len(in.Devices) > 0 && len(flat.Tree.Providers) < 2 {
				t.Errorf("%d devices, and no provider of them", len(in.Devices))
			}
			again := inventory.Compute(in, standing(nested.Tree))
			for i, s := range standing(nested.Tree) {
				if inv, traits := again.Tree.Providers[i].Equal(s); !inv || !traits {
					t.Errorf("%s is not the same again", s.Provider.Name)
				}
			}
		})
	}
}
