package fit

import (
	"fmt"
	"math/bits"
	"testing"

	"pgregory.net/rapid"

	"berth/topology"
)

// crowded is a host and a guest with several kinds of devices and networks, so
// that demands pull the guest's cells to different host cells.
func crowded(t *rapid.T) (Request, *Machine) {
	hosts := rapid.IntRange(1, 8).Draw(t, "host cells")
	m := bigMachine(hosts, 4, 0)
	kinds := rapid.IntRange(1, 4).Draw(t, "kinds of device")
	for h := range m.Cells {
		socket := h / rapid.IntRange(1, 3).Draw(t, "cells on a socket")
		m.Cells[h].Socket = &socket
		m.Cells[h].Pages[1].Used = rapid.Int64Range(0, 30).Draw(t, "pages used")
		m.Cells[h].Pinned = m.Cells[h].Dedicated[:rapid.IntRange(0, 7).Draw(t, "CPUs taken")]
		for k := range kinds {
			if n := rapid.IntRange(-2, 3).Draw(t, "functions"); n > 0 {
				m.Pools = append(m.Pools, Pool{Vendor: "8086", Product: fmt.Sprint(1000 + k), Type: topology.PCITypeVF, Cell: m.Cells[h].ID, Count: n})
			}
		}
	}
	for p := range m.Pools {
		if rapid.IntRange(0, 5).Draw(t, "excludes") == 0 {
			m.Pools[p].Excludes = []int{rapid.IntRange(0, len(m.Pools)-1).Draw(t, "pool")}
		}
	}
	m.Limits = &Limits{Network: &Network{}}
	for n := range rapid.IntRange(0, 2).Draw(t, "networks") {
		name := fmt.Sprint("physnet", n)
		m.Limits.Network.Physical = append(m.Limits.Network.Physical, name)
		for h := range m.Cells {
			if rapid.IntRange(0, 2).Draw(t, "near") == 0 {
				if m.Cells[h].Network == nil {
					m.Cells[h].Network = &Network{}
				}
				m.Cells[h].Network.Physical = append(m.Cells[h].Network.Physical, name)
			}
		}
	}
	r := Request{Topology: pinnedGuest(rapid.IntRange(1, hosts).Draw(t, "guest cells"), 2, 1024)}
	for g := range r.Topology.Cells {
		// Much memory or many CPUs: host cells then hold different guest cells, and
		// not the one ever more than the other.
		r.Topology.Cells[g].MemoryMB = rapid.Int64Range(1, 24).Draw(t, "memory") << 10
		r.Topology.Cells[g].DedicatedVCPUs = topology.CPUSet{8 * g, 8*g + 1, 8*g + 2, 8*g + 3, 8*g + 4, 8*g + 5}[:rapid.IntRange(1, 6).Draw(t, "vcpus")]
	}
	for q := range rapid.IntRange(0, 4).Draw(t, "requests") {
		req := topology.PCIRequest{
			ID: fmt.Sprint("r", q), Count: rapid.IntRange(1, 5).Draw(t, "count"),
			Affinity: rapid.SampledFrom([]topology.PCIAffinity{"required", "legacy", "socket", "preferred"}).Draw(t, "affinity"),
		}
		for range rapid.IntRange(1, 2).Draw(t, "alternatives") {
			req.Specs = append(req.Specs, topology.PCISpec{Vendor: "8086", Product: fmt.Sprint(1000 + rapid.IntRange(0, kinds-1).Draw(t, "kind"))})
		}
		r.PCI = append(r.PCI, req)
	}
	return r, m
}

// anySet tries every set of host cells.
func anySet(r Request, m *Machine) bool {
	p := newPlacing(r, m, newDevices(r, m))
	for mask := range uint64(1) << len(m.Cells) {
		if bits.OnesCount64(mask) != len(r.Topology.Cells) {
			continue
		}
		chosen := bitset{mask}
		p.search.m.empty()
		matched := true
		for h := range m.Cells {
			if chosen.has(h) && !p.search.m.add(h) {
				matched = false
			}
		}
		for _, x := range networkDemands(m) {
			matched = matched && x.met(chosen, nil) > 0
		}
		steps := 0
		if !matched {
			continue
		}
		if _, ok := p.devices.draw(chosen, &steps, 1<<30); ok {
			return true
		}
	}
	return false
}

func TestPlace_FitsExactlyWhenSomeSetOfCellsDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, m := crowded(t)
		a, want := Place(r, m), anySet(r, m)
		if a.Undecided || a.Fits() != want {
			t.Fatalf("fits %t (undecided %t), want %t: %+v", a.Fits(), a.Undecided, want, a.Reasons)
		}
	})
}
