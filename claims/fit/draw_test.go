package fit

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"berth/topology"
)

// cards is a host of some cells with PFs and their VFs, any of which may be
// given away, one card after the other on the next cell.
func cards(cells, n, vfs int) *Machine {
	m := bigMachine(cells, 4, 0)
	for i := range n {
		pf, at := len(m.Pools), m.Cells[i%cells].ID
		m.Pools = append(m.Pools,
			Pool{Vendor: "8086", Product: "1572", Type: topology.PCITypePF, Cell: at, Count: 1, Excludes: []int{pf + 1}},
			Pool{Vendor: "8086", Product: "154c", Type: topology.PCITypeVF, Cell: at, Count: vfs, Excludes: []int{pf}})
	}
	return m
}

func wantsCards(pfs, vfs int, affinity topology.PCIAffinity) []topology.PCIRequest {
	return []topology.PCIRequest{
		{ID: "pf", Count: pfs, Affinity: affinity, Specs: []topology.PCISpec{{Product: "1572", Type: topology.PCITypePF}}},
		{ID: "vf", Count: vfs, Affinity: affinity, Specs: []topology.PCISpec{{Product: "154c"}}},
	}
}

// TestPlace_DecidesLikeCardsAtOnce: each card may go as a PF or as VFs, which
// makes 2^32 ways of giving 32 cards away, all but 33 of them the same.
func TestPlace_DecidesLikeCardsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		cells, guests, pfs, vfs int
		affinity                topology.PCIAffinity
		want                    bool
	}{
		{2, 0, 16, 128, "", true},
		{2, 0, 16, 129, "", false},
		{2, 1, 16, 129, topology.AffinityPreferred, false},
		{2, 2, 16, 128, topology.AffinityRequired, true},
		{2, 2, 16, 129, topology.AffinityRequired, false},
		{16, 4, 4, 32, topology.AffinityRequired, true},
		{16, 4, 4, 33, topology.AffinityRequired, false},
		{32, 8, 4, 33, topology.AffinityRequired, false},
	} {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			r := Request{PCI: wantsCards(tt.pfs, tt.vfs, tt.affinity)}
			if tt.guests > 0 {
				r.Topology = pinnedGuest(tt.guests, tt.guests, 1024)
			}
			a := Place(r, cards(tt.cells, 32, 8))
			if a.Undecided || a.Fits() != tt.want {
				t.Errorf("fits %v, undecided %v after %d steps, want %v", a.Fits(), a.Undecided, a.Steps, tt.want)
			}
		})
	}
}

// TestPlace_GivesACardAsOneOrAsVFs holds cards that are partly alike against all
// ways of giving each away as a PF or as VFs.
func TestPlace_GivesACardAsOneOrAsVFs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "cards")
		m := cards(1, n, 0)
		for i := range n {
			m.Pools[2*i+1].Count = rapid.IntRange(1, 3).Draw(t, "vfs")
		}
		pfs, vfs := rapid.IntRange(0, n).Draw(t, "want pfs"), rapid.IntRange(0, 2*n).Draw(t, "want vfs")
		want := false
		for asPF := range 1 << n {
			gotPFs, gotVFs := 0, 0
			for i := range n {
				if asPF>>i&1 == 1 {
					gotPFs++
				} else {
					gotVFs += m.Pools[2*i+1].Count
				}
			}
			want = want || gotPFs >= pfs && gotVFs >= vfs
		}
		a := Place(Request{PCI: wantsCards(pfs, vfs, "")}, m)
		if a.Fits() != want {
			t.Fatalf("fits %v, want %v: %v", a.Fits(), want, a.Reasons)
		}
		taken := make([]int, len(m.Pools))
		for _, u := range a.Placement.PCI {
			taken[u.Pool] += u.Count
		}
		for p, count := range taken {
			if count > m.Pools[p].Count || count > 0 && taken[p^1] > 0 {
				t.Fatalf("pool %d gives %d of %d, its card's other half %d", p, count, m.Pools[p].Count, taken[p^1])
			}
		}
	})
}

// TestPlace_LetsOneRequestDrawElsewhere: the first request takes the nearest
// pool, the only one that the second can use, and has to let it go again.
func TestPlace_LetsOneRequestDrawElsewhere(t *testing.T) {
	m := bigMachine(2, 4, 0)
	m.Pools = []Pool{
		{Vendor: "8086", Product: "1572", Type: topology.PCITypeVF, Cell: m.Cells[0].ID, Count: 1},
		{Vendor: "8086", Product: "154c", Type: topology.PCITypeVF, Cell: m.Cells[0].ID, Count: 1},
	}
	a := Place(Request{PCI: []topology.PCIRequest{
		{ID: "either", Count: 1, Specs: []topology.PCISpec{{Vendor: "8086"}}},
		{ID: "first", Count: 1, Specs: []topology.PCISpec{{Product: "1572"}}},
	}}, m)
	if !a.Fits() || len(a.Placement.PCI) != 2 || a.Placement.PCI[0] != (PoolUse{Request: 0, Pool: 1, Count: 1}) {
		t.Errorf("placed %+v, refused %v", a.Placement.PCI, a.Reasons)
	}
}
