package fit

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth/topology"
)

// TestPlace_ThreadRules holds hosts that random ones are seldom like against the
// rules of thread policies.
func TestPlace_ThreadRules(t *testing.T) {
	isolate, require := topology.ThreadPolicyIsolate, topology.ThreadPolicyRequire
	sets := func(lists ...[]int) []topology.CPUSet {
		var out []topology.CPUSet
		for _, l := range lists {
			out = append(out, l)
		}
		return out
	}
	for _, tt := range []struct {
		name   string
		cell   Cell
		vcpus  int
		policy topology.ThreadPolicy
		want   []string // codes
	}{
		{"isolate without SMT, the sets apart", Cell{Dedicated: topology.CPUSet{2, 3}, Shared: topology.CPUSet{0, 1}, Cores: sets([]int{0}, []int{1}, []int{2}, []int{3})}, 2, isolate, nil},
		{"isolate with SMT, the sets apart", Cell{Dedicated: topology.CPUSet{2, 3}, Shared: topology.CPUSet{0, 1}, Cores: sets([]int{0, 1}, []int{2, 3})}, 1, isolate, []string{ThreadsIsolate}},
		{"isolate with SMT, one set", Cell{Dedicated: topology.CPUSet{2, 3}, Shared: topology.CPUSet{2, 3}, Cores: sets([]int{2, 3})}, 1, isolate, nil},
		{"isolate on a core whose sibling is offline, beside whole ones", Cell{Dedicated: topology.CPUSet{0, 1, 2}, Shared: topology.CPUSet{0, 1, 2}, Cores: sets([]int{0, 1}, []int{2})}, 2, isolate, []string{ThreadsIsolate}},
		{"isolate on a core whose sibling is offline, the others busy", Cell{Dedicated: topology.CPUSet{0, 1, 2}, Shared: topology.CPUSet{0, 1, 2}, Pinned: topology.CPUSet{0}, Cores: sets([]int{0, 1}, []int{2})}, 1, isolate, []string{ThreadsIsolate}},
		{"isolate where every second thread is offline", Cell{Dedicated: topology.CPUSet{0, 2}, Shared: topology.CPUSet{8}, Cores: sets([]int{0}, []int{2})}, 2, isolate, nil},
		{"require without SMT", Cell{Dedicated: topology.CPUSet{0, 1}, Cores: sets([]int{0}, []int{1})}, 2, require, []string{ThreadsRequire}},
		{"require of cores that nobody tells", Cell{Dedicated: topology.CPUSet{0, 1}}, 2, require, []string{ThreadsRequire}},
		{"require with SMT 4 and offline siblings", Cell{Dedicated: topology.CPUSet{0, 1, 2, 4, 5}, Cores: sets([]int{0, 1, 2}, []int{4, 5})}, 4, require, nil},
		{"require of more than stand together", Cell{Dedicated: topology.CPUSet{0, 1, 2, 4, 5}, Cores: sets([]int{0, 1, 2}, []int{4, 5})}, 5, require, []string{ThreadsRequire}},
		{"no policy takes what there is", Cell{Dedicated: topology.CPUSet{0, 1, 2, 4, 8191}, Cores: sets([]int{0, 1, 2}, nil, []int{4})}, 5, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.cell.MemoryMB = 64
			a := Place(Request{Topology: guest(1, tt.vcpus, tt.policy)}, &Machine{Cells: []Cell{tt.cell}})
			var got []string
			for _, r := range a.Reasons {
				got = append(got, r.Code)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("refused for %v, want %v", a.Reasons, tt.want)
			}
		})
	}
}

// TestSearch_BoundsAreNeverExceeded: what the search gives up a node for, no set
// of host cells does better.
func TestSearch_BoundsAreNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, m := crowded(t)
		p := newPlacing(r, m, newDevices(r, m))
		if len(p.unplaced()) > 0 {
			return
		}
		weights := make([]float64, len(p.search.demands))
		for i := range weights {
			weights[i] = rapid.Float64Range(0.01, 30).Draw(t, "weight")
		}
		sum, _ := p.search.weighted(weights)
		asked := append(slices.Clone(p.search.demands), sum)
		nothing := newBitset(len(m.Cells))
		for i := range asked {
			x := &asked[i]
			_, bound, ok := p.search.most(nothing, nothing, x)
			if !ok {
				t.Fatal("the guest's cells have places, and none are found")
			}
			for mask := range uint64(1) << len(m.Cells) {
				set := bitset{mask}
				if !p.holdsExactly(set) {
					continue
				}
				if got := x.met(set, p.devices.socket); got > bound {
					t.Fatalf("demand %d of %d: cells %b bring %d, the bound is %d", i, len(asked), mask, got, bound)
				}
				all := true
				for j := range p.search.demands {
					all = all && p.search.demands[j].met(set, p.devices.socket) >= p.search.demands[j].need
				}
				if all && sum.met(set, p.devices.socket) < sum.need {
					t.Fatalf("cells %b meet every demand, and not their sum", mask)
				}
			}
		}
	})
}

// holdsExactly reports whether the guest's cells can be matched to this set.
func (p *placing) holdsExactly(set bitset) bool {
	if set.count() != p.search.guests {
		return false
	}
	p.search.m.empty()
	for h := range p.rooms {
		if set.has(h) && !p.search.m.add(h) {
			return false
		}
	}
	return true
}

// TestSignature_TellsCellsApart: cells stand in for each other only where nothing
// that a request can use tells them apart.
func TestSignature_TellsCellsApart(t *testing.T) {
	vf := func(at topology.CellID, count int, excludes ...int) Pool {
		p := nic(count, at)
		p.Excludes = excludes
		return p
	}
	pf := func(at topology.CellID, excludes ...int) Pool {
		p := vf(at, 1, excludes...)
		p.Type = topology.PCITypePF
		return p
	}
	for _, tt := range []struct {
		name  string
		pools []Pool
		alike bool
	}{
		{"nothing", nil, true},
		{"one has functions", []Pool{vf(0, 2)}, false},
		{"as many functions", []Pool{vf(0, 2), vf(1, 2)}, true},
		{"fewer functions", []Pool{vf(0, 2), vf(1, 1)}, false},
		{"a function apart from the others", []Pool{vf(0, 3), vf(1, 2), vf(1, 1)}, false},
		{"like cards", []Pool{pf(0, 1), vf(0, 4, 0), pf(1, 3), vf(1, 4, 2)}, true},
		{"cards with more VFs", []Pool{pf(0, 1), vf(0, 4, 0), pf(1, 3), vf(1, 5, 2)}, false},
		{"a PF beside VFs that it does not bar", []Pool{pf(0, 1), vf(0, 4, 0), pf(1), vf(1, 4)}, false},
		{"VFs of two kinds on like cards", []Pool{pf(0, 1, 2), vf(0, 4, 0), vf(0, 2, 0), pf(1, 4, 5), vf(1, 2, 3), vf(1, 4, 3)}, true},
		{"VFs on another cell than their PF", []Pool{pf(0, 1), vf(1, 1, 0)}, false},
		{"said on one side only", []Pool{pf(0, 1), vf(0, 4), pf(1, 3), vf(1, 4)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := plain(2, 2, 1)
			m.Pools = tt.pools
			r := Request{Topology: guest(1, 1, ""), PCI: append(device(1, topology.AffinityRequired),
				topology.PCIRequest{ID: "pf", Count: 1, Specs: []topology.PCISpec{{Type: topology.PCITypePF}}})}
			d := newDevices(r, m)
			if got := slices.Equal(d.signature(0), d.signature(1)); got != tt.alike {
				t.Errorf("alike %v, want %v", got, tt.alike)
			}
		})
	}
}

// TestPlace_ReachesASocketByTheCellThatLeavesRoom: functions of two sockets are
// wanted. Socket 0 can be reached by a cell for the first guest cell or by one for
// the second, socket 1 for the first only.
func TestPlace_ReachesASocketByTheCellThatLeavesRoom(t *testing.T) {
	m := plain(3, 4, 1)
	m.Cells[0].Pages[0].Used, m.Cells[2].Pages[0].Used = 480<<10, 480<<10 // 128 MiB are free
	m.Cells[1].Pinned = topology.NewCPUSet(4, 5, 6)
	m.Pools = []Pool{nic(1, 0), nic(1, 2)}
	g := guest(2, 4, "")
	g.Cells[1].DedicatedVCPUs, g.Cells[1].MemoryMB = topology.NewCPUSet(4), 1024
	a := Place(Request{Topology: g, PCI: device(2, topology.AffinitySocket)}, m)
	if !a.Fits() {
		t.Fatalf("refused: %v", a.Reasons)
	}
	if p := a.Placement.Cells; p[0].HostCell != 2 || p[1].HostCell != 1 {
		t.Errorf("placed on %d and %d, want 2 and 1", p[0].HostCell, p[1].HostCell)
	}
}

// TestPlace_NoSockets_ADeviceOfTheOwnCellIsOnItsSocket: a host that tells no sockets, or not all,
// gives a function of the instance's own cell to a request of affinity socket, and no other.
func TestPlace_NoSockets_ADeviceOfTheOwnCellIsOnItsSocket(t *testing.T) {
	for _, told := range []int{0, 1} {
		m := plain(2, 4, 1)
		for i := told; i < len(m.Cells); i++ {
			m.Cells[i].Socket = nil
		}
		m.Pools = []Pool{nic(1, 1)}
		a := Place(Request{Topology: guest(1, 1, ""), PCI: device(1, topology.AffinitySocket)}, m)
		if !a.Fits() || a.Placement.Cells[0].HostCell != 1 {
			t.Errorf("%d sockets told: %+v, %v; want cell 1", told, a.Placement, a.Reasons)
		}
		m.Cells[1].Pinned = topology.NewCPUSet(4, 5, 6, 7)
		g := guest(1, 1, "")
		g.Cells[0].DedicatedVCPUs = topology.NewCPUSet(0)
		if a := Place(Request{Topology: g, PCI: device(1, topology.AffinitySocket)}, m); a.Fits() {
			t.Errorf("%d sockets told: placed on cell %d, beside the device's", told, a.Placement.Cells[0].HostCell)
		}
	}
}
