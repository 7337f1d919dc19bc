package pci_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth/claims/pci"
	"berth/topology"
)

// show prints pools as "1565 type-VF@0[tags]: addresses -excludes".
func show(pools []pci.Pool) []string {
	var out []string
	for _, p := range pools {
		text := fmt.Sprintf("%s %s@%d:", p.Product, p.Type, p.Cell)
		for _, a := range p.Addresses {
			text += " " + a.String()[5:]
		}
		if len(p.Excludes) > 0 {
			text += fmt.Sprintf(" -%v", p.Excludes)
		}
		out = append(out, text)
	}
	return out
}

func TestPools(t *testing.T) {
	two := append(card(t, "0000:3b:00.0", 2), card(t, "0000:5e:00.0", 3)...)
	onlyVFs := []pci.Spec{{ProductID: "1565"}}
	all := []pci.Spec{{}}
	// Three functions of one group, two of another, one alone.
	grouped := []topology.PCIDevice{}
	for i, g := range []int{1, 1, 1, 2, 2, 3} {
		f := function(t, "0000:01:00.0", "10de:2330")
		f.Address.Device, f.IOMMUGroup = uint8(i), &g
		grouped = append(grouped, f)
	}
	for _, tt := range []struct {
		name  string
		pci   []topology.PCIDevice
		specs []pci.Spec
		taken map[string]string
		guest string
		want  []string
	}{
		{"VFs alone are one pool", two, onlyVFs, nil, "",
			[]string{"1565 type-VF@0: 3b:00.1 3b:00.2 5e:00.1 5e:00.2 5e:00.3"}},
		{"the PF most used is filled first", two, onlyVFs, map[string]string{"0000:5e:00.2": "a"}, "",
			[]string{"1565 type-VF@0: 5e:00.1 5e:00.3 3b:00.1 3b:00.2"}},
		{"however its VFs came to be given", two, []pci.Spec{{Address: "0000:3b:00.0"}, onlyVFs[0]}, map[string]string{"0000:3b:00.1": "a", "0000:5e:00.1": "a", "0000:5e:00.2": "a"}, "",
			[]string{"1565 type-VF@0: 5e:00.3 3b:00.2"}},
		{"a PF whose VFs are switched off is one", card(t, "0000:3b:00.0", 0), all, nil, "", []string{"1563 type-PF@0: 3b:00.0"}},
		{"a PF that is taken takes its VFs along", two, onlyVFs, map[string]string{"0000:3b:00.0": "a"}, "",
			[]string{"1565 type-VF@0: 5e:00.1 5e:00.2 5e:00.3"}},
		{"PFs beside their VFs", two, all, nil, "", []string{
			"1563 type-PF@0: 3b:00.0 -[2]", "1563 type-PF@0: 5e:00.0 -[3]",
			"1565 type-VF@0: 3b:00.1 3b:00.2 -[0]", "1565 type-VF@0: 5e:00.1 5e:00.2 5e:00.3 -[1]",
		}},
		{"a VF takes its PF away", two, all, map[string]string{"0000:5e:00.3": "a"}, "", []string{
			"1563 type-PF@0: 3b:00.0 -[2]", "1565 type-VF@0: 5e:00.1 5e:00.2", "1565 type-VF@0: 3b:00.1 3b:00.2 -[0]",
		}},
		{"a VF that no spec means still takes its PF away", two, []pci.Spec{{ProductID: "1563"}}, map[string]string{"0000:5e:00.3": "a"}, "",
			[]string{"1563 type-PF@0: 3b:00.0"}},
		{"PFs without VFs in pools are one pool", two, []pci.Spec{{ProductID: "1563"}}, nil, "",
			[]string{"1563 type-PF@0: 3b:00.0 5e:00.0"}},
		{"one card's VFs by two specs", card(t, "0000:3b:00.0", 2), []pci.Spec{{Address: "*:*:*.1", PhysicalNetwork: "a"}, {}}, nil, "", []string{
			"1563 type-PF@0: 3b:00.0 -[1 2]", "1565 type-VF@0: 3b:00.1 -[0]", "1565 type-VF@0: 3b:00.2 -[0]",
		}},
		{"a group of another guest", grouped, all, map[string]string{"0000:01:01.0": "a"}, "b",
			[]string{"2330 type-PCI@0: 01:03.0 01:04.0 01:05.0"}},
		{"a group of the guest's own", grouped, all, map[string]string{"0000:01:01.0": "b"}, "b",
			[]string{"2330 type-PCI@0: 01:00.0 01:02.0 01:03.0 01:04.0 01:05.0"}},
		{"nobody is not somebody", grouped, all, map[string]string{"0000:01:01.0": ""}, "",
			[]string{"2330 type-PCI@0: 01:03.0 01:04.0 01:05.0"}},
		{"function zero of bus zero is a function like others", []topology.PCIDevice{function(t, "0000:00:00.0", "1:2"), two[0], two[1]}, all, nil, "", []string{
			"2 type-PCI@0: 00:00.0", "1563 type-PF@0: 3b:00.0 -[2]", "1565 type-VF@0: 3b:00.1 -[1]",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			taken := map[topology.PCIAddress]string{}
			for a, g := range tt.taken {
				taken[at(t, a)] = g
			}
			devices, _ := pci.Devices(&topology.Host{PCI: tt.pci}, tt.specs)
			if diff := cmp.Diff(tt.want, show(pci.Pools(devices, taken, tt.guest))); diff != "" {
				t.Errorf("pools (-want +got):\n%s", diff)
			}
		})
	}
}

// hosts are hosts of cards with some VFs and of plain functions, in IOMMU groups
// of one or more.
func hosts(t *testing.T) *rapid.Generator[*topology.Host] {
	return rapid.Custom(func(r *rapid.T) *topology.Host {
		h := &topology.Host{}
		groups := rapid.Bool().Draw(r, "iommu")
		for i := range rapid.IntRange(1, 5).Draw(r, "cards") {
			vfs := rapid.IntRange(-1, 4).Draw(r, "vfs") // -1 is no PF
			functions := card(t, fmt.Sprintf("0000:%02x:00.0", 0x10+i), max(0, vfs))
			if vfs < 0 {
				functions[0].TotalVFs = 0
			}
			cell := topology.CellID(rapid.IntRange(-1, 1).Draw(r, "cell"))
			for j := range functions {
				functions[j].NUMANode = cell
				if groups {
					g := rapid.IntRange(0, 6).Draw(r, "group")
					functions[j].IOMMUGroup = &g
				}
			}
			h.PCI = append(h.PCI, functions...)
		}
		return h
	})
}

// mayHave says by the letter of the rules, apart from the package's own way,
// whether a guest may have a function.
func mayHave(h *topology.Host, taken map[topology.PCIAddress]string, guest string, f *topology.PCIDevice) bool {
	for a, owner := range taken {
		other, _ := h.Device(a)
		switch {
		case a == f.Address,
			f.PhysFn != nil && *f.PhysFn == a,
			other.PhysFn != nil && *other.PhysFn == f.Address,
			f.IOMMUGroup != nil && *f.IOMMUGroup == *other.IOMMUGroup && owner != guest:
			return false
		}
	}
	return true
}

// TestPools_OfferWhatIsFreeAfterAnyOrderOfTakesAndReturns: whatever is taken and
// returned, in any order, the pools offer each free function once and nothing
// else, exclusions stand on both sides, and what is returned is offered again.
func TestPools_OfferWhatIsFreeAfterAnyOrderOfTakesAndReturns(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		h := hosts(t).Draw(r, "host")
		specs := rapid.SampledFrom([][]pci.Spec{{{}}, {{ProductID: "1565"}}, {{ProductID: "1563"}}, {{Address: "*:*:*.1", PhysicalNetwork: "n"}, {}}}).Draw(r, "specs")
		devices, _ := pci.Devices(h, specs)
		meant := map[topology.PCIAddress]bool{}
		for _, d := range devices {
			meant[d.Address] = true
		}
		taken := map[topology.PCIAddress]string{}
		empty := pci.Pools(devices, taken, "g0")
		check := func(guest string) []pci.Pool {
			pools := pci.Pools(devices, taken, guest)
			offered := map[topology.PCIAddress]int{}
			for i, p := range pools {
				if p.Count != len(p.Addresses) || p.Count == 0 {
					r.Fatalf("pool %d counts %d of %v", i, p.Count, p.Addresses)
				}
				for _, a := range p.Addresses {
					if _, twice := offered[a]; twice {
						r.Fatalf("%s is offered twice: %v", a, show(pools))
					}
					offered[a] = i
				}
			}
			for i := range h.PCI {
				f := &h.PCI[i]
				_, is := offered[f.Address]
				if want := meant[f.Address] && mayHave(h, taken, guest, f); is != want {
					r.Fatalf("%s offered %v, want %v; taken %v, pools %v", f.Address, is, want, taken, show(pools))
				}
			}
			want := make([][]int, len(pools))
			for _, f := range h.PCI {
				if f.PhysFn == nil {
					continue
				}
				vf, ok := offered[f.Address]
				pf, both := offered[*f.PhysFn]
				if ok && both {
					if vf == pf || pools[pf].Count != 1 {
						r.Fatalf("PF %s does not stand alone: %v", f.PhysFn, show(pools))
					}
					want[vf], want[pf] = append(want[vf], pf), append(want[pf], vf)
				}
			}
			for i := range pools {
				slices.Sort(want[i])
				if w := slices.Compact(want[i]); !slices.Equal(w, pools[i].Excludes) {
					r.Fatalf("pool %d excludes %v, want %v: %v", i, pools[i].Excludes, w, show(pools))
				}
			}
			return pools
		}
		for range rapid.IntRange(1, 25).Draw(r, "steps") {
			guest := rapid.SampledFrom([]string{"g0", "g1", "g2"}).Draw(r, "guest")
			pools := check(guest)
			if held := slices.SortedFunc(maps.Keys(taken), topology.PCIAddress.Compare); len(held) > 0 && rapid.Bool().Draw(r, "return") {
				delete(taken, rapid.SampledFrom(held).Draw(r, "returned"))
				continue
			}
			if len(pools) == 0 {
				continue
			}
			p := rapid.SampledFrom(pools).Draw(r, "pool")
			if len(p.Addresses) != p.Count {
				r.Fatalf("a pool of %d has %d functions", p.Count, len(p.Addresses))
			}
			for _, a := range p.Addresses[:rapid.IntRange(1, p.Count).Draw(r, "count")] {
				taken[a] = guest
			}
		}
		check("g0")
		clear(taken)
		if diff := cmp.Diff(empty, pci.Pools(devices, taken, "g0")); diff != "" {
			r.Errorf("after everything was returned (-before +after):\n%s", diff)
		}
	})
}

// TestPools_LeaveWholePFsFree: as many VFs as there are on one PF open no
// second one.
func TestPools_LeaveWholePFsFree(t *testing.T) {
	h := &topology.Host{PCI: slices.Concat(card(t, "0000:3b:00.0", 4), card(t, "0000:5e:00.0", 4), card(t, "0000:86:00.0", 4))}
	devices, _ := pci.Devices(h, []pci.Spec{{ProductID: "1565"}})
	taken := map[topology.PCIAddress]string{at(t, "0000:5e:00.3"): "first"}
	opened := map[uint8]bool{0x5e: true}
	for i := range 7 {
		best := pci.Pools(devices, taken, "")[0].Addresses[0]
		taken[best] = fmt.Sprint(i)
		opened[best.Bus] = true
		if want := 1 + (i+1)/4; len(opened) != want {
			t.Fatalf("%d VFs stand on %d PFs, want %d", i+2, len(opened), want)
		}
	}
}

func BenchmarkPools(b *testing.B) {
	h := &topology.Host{}
	for i := range 32 {
		h.PCI = append(h.PCI, card(b, fmt.Sprintf("0000:%02x:00.0", i), 7)...)
	}
	devices, _ := pci.Devices(h, []pci.Spec{{ProductID: "1565"}})
	taken := map[topology.PCIAddress]string{devices[5].Address: "g"}
	b.ReportAllocs()
	for b.Loop() {
		if len(pci.Pools(devices, taken, "")) != 1 {
			b.Fatal("not one pool")
		}
	}
}
