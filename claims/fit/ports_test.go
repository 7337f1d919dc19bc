package fit

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth/topology"
)

// unlike is cards of which no two have as many VFs, so that none stands for another.
func unlike(cells, n int) *Machine {
	m := cards(cells, n, 0)
	for i := range n {
		m.Pools[2*i+1].Count = 7 + (i*i*5+i*3)%61
	}
	return m
}

// mostVFs is how many VFs can be had beside so many PFs on some set of so many cells:
// every set is tried, and on each the cards with the fewest VFs go as PFs.
func mostVFs(m *Machine, guests, pfs int) int {
	best := -1
	for set := range uint(1) << len(m.Cells) {
		if bits.OnesCount(set) != guests {
			continue
		}
		var vfs []int
		for p := 1; p < len(m.Pools); p += 2 {
			if set>>m.Pools[p].Cell&1 == 1 {
				vfs = append(vfs, m.Pools[p].Count)
			}
		}
		slices.Sort(vfs)
		if sum := 0; len(vfs) >= pfs {
			for _, n := range vfs[pfs:] {
				sum += n
			}
			best = max(best, sum)
		}
	}
	return best
}

// TestPlace_UnlikeCards_AreDecidedWithinTheBudget: each card may go as a PF or as
// VFs, 2^48 ways of which no two are the same. It took a second and was undecided,
// also where there was a place.
func TestPlace_UnlikeCards_AreDecidedWithinTheBudget(t *testing.T) {
	for _, tt := range []struct {
		cells, cards, guests, pfs int
	}{{2, 24, 0, 8}, {2, 48, 0, 24}, {2, 48, 2, 24}, {2, 48, 1, 8}, {8, 48, 4, 8}, {16, 64, 4, 2}} {
		m, affinity, on := unlike(tt.cells, tt.cards), topology.AffinityRequired, tt.guests
		r := Request{}
		if tt.guests > 0 {
			r.Topology = pinnedGuest(tt.guests, tt.guests, 1024)
		} else {
			affinity, on = topology.AffinityLegacy, tt.cells
		}
		most := mostVFs(m, on, tt.pfs)
		for _, beside := range []int{-40, -8, -1, 0, 1, 8, 100} {
			r.PCI = wantsCards(tt.pfs, most+beside, affinity)
			a := Place(r, m)
			if a.Undecided || a.Fits() != (beside <= 0) {
				t.Errorf("%+v, %d VFs beside the most: fits %v, undecided %v after %d steps", tt, beside, a.Fits(), a.Undecided, a.Steps)
			}
		}
	}
}

// possible tries every set of host cells, every way to use each card, and every way
// to deal out what that leaves.
func possible(r Request, m *Machine) bool {
	guests := len(r.Topology.Cells)
	var deal func(k int, left []int, set uint) bool
	deal = func(k int, left []int, set uint) bool {
		if k == len(r.PCI) {
			return true
		}
		var give func(p, want int) bool
		give = func(p, want int) bool {
			if want == 0 {
				return deal(k+1, left, set)
			}
			if p == len(left) {
				return false
			}
			far := r.PCI[k].Affinity == topology.AffinityPreferred
			for n := range min(want, left[p]) + 1 {
				if n > 0 && (!m.Pools[p].Answers(r.PCI[k]) || !far && set>>m.Pools[p].Cell&1 == 0) {
					break
				}
				left[p] -= n
				ok := give(p+1, want-n)
				left[p] += n
				if ok {
					return true
				}
			}
			return false
		}
		return give(0, r.PCI[k].Count)
	}
	for set := range uint(1) << len(m.Cells) {
		if bits.OnesCount(set) != guests {
			continue
		}
		for ways := range uint(1) << (len(m.Pools) / 2) {
			left := make([]int, len(m.Pools))
			for p := range left {
				if ways>>(p/2)&1 == uint(p&1) {
					left[p] = m.Pools[p].Count
				}
			}
			if deal(0, left, set) {
				return true
			}
		}
	}
	return false
}

// TestPlace_CardsOfSeveralKinds_FitExactlyWhenSomeWayDoes holds cards of two products
// against every way, with the steps of the near draw used up and not.
func TestPlace_CardsOfSeveralKinds_FitExactlyWhenSomeWayDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.IntRange(1, 3).Draw(t, "cells")
		n := rapid.IntRange(1, 5).Draw(t, "cards")
		m := cards(hosts, n, 0)
		for i := range n {
			m.Pools[2*i+1].Count = rapid.IntRange(0, 3).Draw(t, "vfs")
			m.Pools[2*i].Cell = m.Cells[rapid.IntRange(0, hosts-1).Draw(t, "cell")].ID
			m.Pools[2*i+1].Cell = m.Pools[2*i].Cell
			if rapid.Bool().Draw(t, "other product") {
				m.Pools[2*i].Product, m.Pools[2*i+1].Product = "1593", "1889"
			}
		}
		r := Request{Topology: pinnedGuest(rapid.IntRange(1, hosts).Draw(t, "guest cells"), hosts, 1024)}
		for q := range rapid.IntRange(1, 3).Draw(t, "requests") {
			req := topology.PCIRequest{
				ID: fmt.Sprint("r", q), Count: rapid.IntRange(1, 4).Draw(t, "count"),
				Affinity: rapid.SampledFrom([]topology.PCIAffinity{"required", "preferred"}).Draw(t, "affinity"),
			}
			for range rapid.IntRange(1, 2).Draw(t, "alternatives") {
				req.Specs = append(req.Specs, rapid.SampledFrom([]topology.PCISpec{
					{Product: "1572", Type: topology.PCITypePF}, {Product: "154c"}, {Product: "1593", Type: topology.PCITypePF}, {Product: "1889"}, {Type: topology.PCITypeVF},
				}).Draw(t, "spec"))
			}
			r.PCI = append(r.PCI, req)
		}
		want := possible(r, m)
		if a := Place(r, m); a.Undecided || a.Fits() != want {
			t.Fatalf("fits %v (undecided %v), want %v: %v", a.Fits(), a.Undecided, want, a.Reasons)
		}
		d := newDevices(r, m)
		for set := range uint64(1) << hosts {
			chosen, near, ported := bitset{set}, 0, 0
			_, inTurn := d.drawWithout(chosen, newBitset(len(m.Pools)), &near, 1<<30)
			uses, byPort, decided := d.drawByPort(chosen, &ported, 1<<30)
			if !decided || inTurn != byPort {
				t.Fatalf("cells %b: in turn %v, by port %v (decided %v)", set, inTurn, byPort, decided)
			}
			taken := make([]int, len(m.Pools))
			for _, u := range uses {
				if taken[u.Pool] += u.Count; taken[u.Pool] > m.Pools[u.Pool].Count || taken[u.Pool^1] > 0 {
					t.Fatalf("cells %b: %+v", set, uses)
				}
			}
		}
	})
}
