package inventory

import (
	"fmt"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/placementclient"
	"berth/topology"
)

const cellSuffix = "NUMA"

// pageSizeTraits begins the traits of providers of memory; see placementclient.
const pageSizeTraits = placementclient.CustomPrefix + "MEMORY_PAGE_SIZE_"

// cellShare is what one cell has of the host's amounts, in Placement's units. The
// shares add up to the amounts of the flat shape.
type cellShare struct {
	vcpus, pcpus, reservedVCPUs int64
	pages                       []pageShare // ascending by size; the first is ordinary memory
}

type pageShare struct {
	size            topology.PageSize
	total, reserved int64 // MiB
}

// share parts the host's amounts among its cells; what belongs to none is under
// UnknownCell. In the nested shape the claim lock is told of the parts of the
// reserve.
func (b *builder) share(reservedVCPUs, reservedMB int64) {
	h := b.in.Host
	dedicated, shared := b.in.Cells.cpus(h)
	cells := b.fitCells()
	b.shares = map[topology.CellID]cellShare{}
	outside := cellShare{vcpus: int64(shared.Len()), pcpus: int64(dedicated.Len())}
	var bytes, kept int64
	ordinary := make([]int64, len(cells)) // MiB that are not reserved as pages
	for i, c := range cells {
		s := cellShare{vcpus: int64(c.Shared.Len()), pcpus: int64(c.Dedicated.Len())}
		outside.vcpus -= s.vcpus
		outside.pcpus -= s.pcpus
		// Whole MiB are parted so that they add up to the host's: each cell gets what it
		// makes the sum grow by.
		before := bytes / mib
		bytes += h.Cells[i].MemoryBytes
		s.pages = pageShares(h, c, bytes/mib-before)
		if len(s.pages) > 0 {
			kept += s.pages[0].reserved
			ordinary[i] = s.pages[0].total - s.pages[0].reserved
		}
		b.shares[c.ID] = s
	}
	b.shares[topology.UnknownCell] = outside

	// What is reserved of ordinary pages is part of the host's reserve (see claims'
	// sum of ordinary memory); the rest of it each cell keeps by its size.
	for i, more := range parts(reservedMB-kept, ordinary) {
		if more <= 0 {
			continue
		}
		id := cells[i].ID
		b.shares[id].pages[0].reserved += more
		if b.tree.Shape != Nested || len(cells[i].Pages) == 0 {
			continue
		}
		pool := cells[i].Pages[0]
		if count := min(more*mib/int64(pool.Size), pool.Total-pool.Reserved); count > 0 {
			b.report.Cells.Pages = append(slices.Clip(b.report.Cells.Pages), ReservedPages{Cell: id, Size: pool.Size, Count: count})
		}
	}

	weights := []int64{outside.vcpus}
	for _, c := range cells {
		weights = append(weights, b.shares[c.ID].vcpus)
	}
	for i, n := range parts(reservedVCPUs, weights) {
		id := topology.UnknownCell
		if i > 0 {
			id = cells[i-1].ID
		}
		s := b.shares[id]
		s.reservedVCPUs = n
		b.shares[id] = s
	}
}

// pageShares parts the memory of a cell: its pools of huge pages, and what they
// leave.
func pageShares(h *topology.Host, c fit.Cell, memoryMB int64) []pageShare {
	left := memoryMB
	var huge []pageShare
	for i := len(c.Pages) - 1; i > 0; i-- {
		p := c.Pages[i]
		if p.Total <= 0 {
			continue
		}
		s := pageShare{size: p.Size, total: min(p.Total*int64(p.Size)/mib, left)}
		s.reserved = min(p.Reserved*int64(p.Size)/mib, s.total)
		left -= s.total
		huge = append(huge, s)
	}
	slices.Reverse(huge)
	small := pageShare{size: h.BasePageSize, total: left}
	if len(c.Pages) > 0 {
		small.size = c.Pages[0].Size
		small.reserved = min(c.Pages[0].Reserved*int64(small.size)/mib, small.total)
	}
	if small.size == 0 {
		small.size = topology.PageSize4K // of a host whose reading does not tell
	}
	if memoryMB <= 0 {
		return nil
	}
	return append([]pageShare{small}, huge...)
}

// parts gives each weight its part of n, in whole numbers that add up to n, or to
// all weights where n is more. The largest fractions are rounded up, of like ones
// the first.
func parts(n int64, weights []int64) []int64 {
	out := make([]int64, len(weights))
	var sum int64
	for _, w := range weights {
		sum += w
	}
	if n = min(n, sum); n <= 0 {
		return out
	}
	left := n
	order := make([]int, len(weights))
	rest := make([]int64, len(weights))
	for i, w := range weights {
		// Of hosts with 2^40 MiB the product would overflow; there are none.
		out[i], rest[i], order[i] = n*w/sum, n*w%sum, i
		left -= out[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case rest[a] > rest[b]:
			return -1
		case rest[a] < rest[b]:
			return 1
		}
		return 0
	})
	for _, i := range order[:left] {
		out[i]++
	}
	return out
}

// cells adds the cells that have CPUs or memory, and their memory. Where a ratio
// promises more than there is, one allocation may be as large as the host, as in
// the flat shape: Placement parts no class of a guest that floats, and the claim
// lock does not hold it against a cell.
func (b *builder) cells() {
	const vcpu, pcpu = placementclient.ClassVCPU, placementclient.ClassPCPU
	ratios := &b.report.Capacity.Ratios
	cpu, ram := b.sibling(vcpu, b.in.Initial.CPU), b.sibling(placementclient.ClassMemoryMB, b.in.Initial.RAM)
	least := func(to *float64, r float64) {
		if *to == 0 || r < *to {
			*to = r // claims have one ratio for the host
		}
	}
	for _, c := range b.in.Host.Cells {
		s := b.shares[c.ID]
		if s.vcpus+s.pcpus == 0 && len(s.pages) == 0 {
			continue
		}
		suffix := fmt.Sprintf("%s%d", cellSuffix, c.ID)
		rp := ChildUUID(b.in.UUID, suffix)
		now := b.standing[rp].Inventories
		inventories := b.base(rp, vcpu, pcpu)
		stood, stands := now[vcpu]
		if r := b.put(inventories, amount{class: vcpu, total: s.vcpus, reserved: s.reservedVCPUs, most: int64(b.report.Capacity.Total.VCPUs), fixed: b.in.Fixed.CPU, initial: cpu}, stood, stands); s.vcpus > 0 {
			least(&ratios.CPU, r)
		}
		stood, stands = now[pcpu]
		b.put(inventories, amount{class: pcpu, total: s.pcpus, fixed: 1}, stood, stands)
		traits := append(b.foreignTraits(rp, func(t string) bool { return t == placementclient.TraitHWNUMARoot }), placementclient.TraitHWNUMARoot)
		b.child(b.in.UUID, suffix, inventories, traits)

		cell := TreeCell{ID: c.ID, Provider: rp, Pages: map[topology.PageSize]string{}}
		for i, p := range s.pages {
			if i == 0 {
				cell.Ordinary = p.size
			}
			if p.total > 0 {
				var r float64
				cell.Pages[p.size], r = b.memory(rp, suffix, p, i > 0, ram)
				if i == 0 {
					least(&ratios.RAM, r)
				}
			}
		}
		b.tree.Cells = append(b.tree.Cells, cell)
	}
	if ratios.CPU == 0 {
		ratios.CPU = ratio(b.in.Fixed.CPU, cpu)
	}
	if ratios.RAM == 0 {
		ratios.RAM = ratio(b.in.Fixed.RAM, ram)
	}
}

// memory adds a cell's memory in pages of one size. Its inventory is Berth's alone.
func (b *builder) memory(cell, of string, p pageShare, huge bool, initial float64) (rp string, ratio float64) {
	suffix := of + "_" + p.size.String()
	rp = ChildUUID(b.in.UUID, suffix)
	a := amount{class: placementclient.ClassMemoryMB, total: p.total, reserved: p.reserved, fixed: b.in.Fixed.RAM, initial: initial}
	size := placementclient.TraitPageSizeSmall
	if !huge {
		a.most = b.report.Capacity.Total.MemoryMB
	} else {
		// A page is in nobody's hands or in one guest's, and a guest has whole ones.
		a.fixed, a.unit, size = 1, b.wholePages(p), placementclient.TraitPageSizeLarge
	}
	inventories := map[string]placementclient.Inventory{}
	stood, stands := b.standing[rp].Inventories[a.class]
	ratio = b.put(inventories, a, stood, stands)
	traits := b.foreignTraits(rp, func(t string) bool { return strings.HasPrefix(t, pageSizeTraits) })
	return b.child(cell, suffix, inventories, append(traits, size, placementclient.TraitPageSize(int64(p.size)))), ratio
}

// wholePages is the unit of a pool's allocations, a page in MiB. A guest that was
// found with an odd amount of memory in such pages could never be counted by it:
// for as long as there is one the unit is 1, and whole pages are left to the claim
// lock.
func (b *builder) wholePages(p pageShare) int64 {
	unit := min(int64(p.size)/mib, p.total)
	for _, h := range b.in.Held {
		for _, c := range h.Assignment.Cells {
			if c.PageSize == p.size && unit > 1 && c.MemoryMB%unit != 0 {
				return 1
			}
		}
	}
	return unit
}

// ordinary tells the suffix of a provider of memory in the smallest pages.
func (b *builder) ordinary(suffix string) bool {
	cell, size, _ := strings.Cut(suffix, "_")
	for id, s := range b.shares {
		if len(s.pages) > 0 && fmt.Sprintf("%s%d", cellSuffix, id) == cell && s.pages[0].size.String() == size {
			return true
		}
	}
	return false
}

// parentOf is whose child a device of a cell is.
func (b *builder) parentOf(id topology.CellID) string {
	if c, ok := b.tree.cell(id); ok {
		return c.Provider
	}
	return b.in.UUID
}
