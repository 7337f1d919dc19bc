package inventory

import (
	"maps"
	"slices"
	"strings"

	"berth/claims/fit"
	"berth/placementclient"
	"berth/topology"
)

// builder makes one Report.
type builder struct {
	in       Input
	standing map[string]Standing // by uuid
	own      map[string]string   // of those that are Berth's children: uuid → suffix
	report   Report
	tree     *Tree
	shares   map[topology.CellID]cellShare // the cells as providers, in either shape
	ofSpec   map[string][]string           // provider → traits that device_spec gives it
}

func newBuilder(in Input, standing []Standing) *builder {
	if in.Shape == "" {
		in.Shape = Flat
	}
	b := &builder{in: in, standing: map[string]Standing{}, own: map[string]string{}, ofSpec: map[string][]string{}, tree: &Tree{Shape: in.Shape}}
	for _, s := range standing {
		b.standing[s.Provider.UUID] = s
		if suffix, ours := suffixOf(in.UUID, s.Provider); ours {
			b.own[s.Provider.UUID] = suffix
		}
	}
	b.report = Report{Tree: b.tree, Wanted: in.Shape, Standing: b.standingShape(), Cells: in.Cells}
	if b.report.Reshapes() && in.Holding {
		b.tree.Shape = b.report.Standing
	}
	return b
}

// standingShape tells the shape by where memory and CPUs are. A tree with both was
// left so by somebody else: whatever is wanted, it takes a reshape.
func (b *builder) standingShape() Shape {
	flat := b.standing[b.in.UUID].Inventories[placementclient.ClassMemoryMB].Total > 0
	nested := false
	for rp, suffix := range b.own {
		inv := b.standing[rp].Inventories
		nested = nested || strings.HasPrefix(suffix, cellSuffix) &&
			inv[placementclient.ClassMemoryMB].Total+inv[placementclient.ClassVCPU].Total+inv[placementclient.ClassPCPU].Total > 0
	}
	switch {
	case flat && nested && b.in.Shape == Flat, nested && !flat:
		return Nested
	case flat:
		return Flat
	}
	return ""
}

// amount is what a provider shall have of one class.
type amount struct {
	class           string
	total, reserved int64
	unit            int64   // of allocations; 0 for 1
	most            int64   // of one allocation; 0 for the total
	fixed           float64 // ratio; 0 keeps what stands
	initial         float64
}

// put gives what shall stand of a class, beside what stands of it.
func (b *builder) put(into map[string]placementclient.Inventory, a amount, now placementclient.Inventory, stands bool) float64 {
	r := ratio(a.fixed, now.AllocationRatio, a.initial)
	if a.total <= 0 {
		// Placement knows no inventory of nothing. A class that went away is taken out;
		// Placement refuses that while it is allocated.
		delete(into, a.class)
		return r
	}
	unit := max(a.unit, 1)
	total := min(a.total, placementclient.MaxInt)
	want := placementclient.Inventory{
		Total: total, Reserved: min(a.reserved, total),
		MinUnit: unit, MaxUnit: max(total, min(a.most, placementclient.MaxInt)), StepSize: unit, AllocationRatio: r,
	}
	if b.in.Holding && stands {
		want = loosest(want, now)
	}
	into[a.class] = want
	return want.AllocationRatio
}

// base is what stands of a provider that others may add classes to, without those
// that Berth gave it and may no longer want.
func (b *builder) base(rp string, owned ...string) map[string]placementclient.Inventory {
	out := maps.Clone(b.standing[rp].Inventories)
	if out == nil {
		out = map[string]placementclient.Inventory{}
	}
	for _, class := range slices.Concat(owned, b.in.Applied.Providers[rp].Classes) {
		delete(out, class)
	}
	return out
}

// foreignTraits are those that stand on a provider and were not given by Berth.
func (b *builder) foreignTraits(rp string, owned func(string) bool) []string {
	given := b.in.Applied.Providers[rp].Traits
	return slices.DeleteFunc(slices.Clone(b.standing[rp].Traits), func(t string) bool { return owned(t) || slices.Contains(given, t) })
}

// child adds a child of the tree and gives its uuid.
func (b *builder) child(parent, suffix string, inventories map[string]placementclient.Inventory, traits []string) string {
	p := Provider{UUID: ChildUUID(b.in.UUID, suffix), Name: childName(b.in.UUID, b.in.Name, suffix), Parent: parent, Inventories: inventories, Traits: sortedSet(traits)}
	b.tree.Providers = append(b.tree.Providers, p)
	return p.UUID
}

func sortedSet(names []string) []string {
	out := slices.Clone(names)
	slices.Sort(out)
	return slices.Compact(out)
}

// root adds the root provider, and the capacity.
func (b *builder) root() {
	in := b.in
	dedicated, shared := in.Cells.cpus(in.Host)
	total := topology.Resources{
		VCPUs:    shared.Len(),
		PCPUs:    dedicated.Len(),
		MemoryMB: in.Host.MemoryBytes() / mib,
		DiskGB:   in.DiskGB,
	}
	// Placement refuses a reserve above the total; so much is reserved, then, that
	// nothing is left.
	reserved := topology.Resources{
		VCPUs:    min(in.Reserved.VCPUs, total.VCPUs),
		MemoryMB: min(in.Reserved.MemoryMB, total.MemoryMB),
		DiskGB:   min(in.Reserved.DiskGB, total.DiskGB),
	}
	c := &b.report.Capacity
	c.Total, c.Reserved = total, reserved

	const vcpu, pcpu, memory, disk = placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB, placementclient.ClassDiskGB
	now := b.standing[in.UUID].Inventories
	inventories := b.base(in.UUID, vcpu, pcpu, memory, disk)
	put := func(a amount) float64 {
		stood, stands := now[a.class]
		return b.put(inventories, a, stood, stands)
	}
	b.share(int64(reserved.VCPUs), reserved.MemoryMB)
	b.tree.Disk = in.UUID
	if in.Sharing != "" && in.Sharing != in.UUID {
		// The other provider is its owner's to write; what it promises is what claims
		// may count on.
		b.tree.Disk = in.Sharing
		c.Ratios.Disk = ratio(in.Fixed.Disk, b.standing[in.Sharing].Inventories[disk].AllocationRatio, in.Initial.Disk)
	} else {
		c.Ratios.Disk = put(amount{class: disk, total: total.DiskGB, reserved: reserved.DiskGB, fixed: in.Fixed.Disk, initial: in.Initial.Disk})
	}
	if b.tree.Shape == Nested {
		out := b.shares[topology.UnknownCell]
		put(amount{class: vcpu, total: out.vcpus, reserved: out.reservedVCPUs, most: int64(total.VCPUs), fixed: in.Fixed.CPU, initial: b.sibling(vcpu, in.Initial.CPU)})
		put(amount{class: pcpu, total: out.pcpus, fixed: 1})
	} else {
		c.Ratios.CPU = put(amount{class: vcpu, total: int64(total.VCPUs), reserved: int64(reserved.VCPUs), fixed: in.Fixed.CPU, initial: b.sibling(vcpu, in.Initial.CPU)})
		// A dedicated CPU is given away once, whatever stands in Placement.
		put(amount{class: pcpu, total: int64(total.PCPUs), fixed: 1})
		c.Ratios.RAM = put(amount{class: memory, total: total.MemoryMB, reserved: reserved.MemoryMB, fixed: in.Fixed.RAM, initial: b.sibling(memory, in.Initial.RAM)})
	}
	kept := b.foreignTraits(in.UUID, func(string) bool { return false })
	if disabled := placementclient.TraitComputeStatusDisabled; in.Disabled && !slices.Contains(kept, disabled) {
		// Where somebody else has set it, it is theirs, and stays when Berth's operator
		// enables the host.
		kept = append(kept, disabled)
		b.gave(in.UUID, nil, []string{disabled})
	}
	b.tree.Providers = append(b.tree.Providers, Provider{
		UUID: in.UUID, Name: in.Name, Inventories: inventories, Traits: traits(in, kept),
	})
}

// sibling is the ratio with which a class begins on a provider that does not have
// it yet: the one that stands for it elsewhere in the tree, which is the host's
// before it changed its shape or got another cell.
func (b *builder) sibling(class string, initial float64) float64 {
	from := []string{b.in.UUID}
	for _, rp := range slices.Sorted(maps.Keys(b.own)) {
		suffix := b.own[rp]
		if strings.HasPrefix(suffix, cellSuffix) && (class != placementclient.ClassMemoryMB || b.ordinary(suffix)) {
			from = append(from, rp)
		}
	}
	for _, rp := range from {
		if inv, stands := b.standing[rp].Inventories[class]; stands {
			return inv.AllocationRatio
		}
	}
	return initial
}

// retire lists the own providers that stand and are no more.
func (b *builder) retire() {
	for rp := range b.own {
		if _, is := b.tree.provider(rp); is {
			continue
		}
		s := b.standing[rp]
		p := Provider{UUID: rp, Name: s.Provider.Name, Parent: s.Provider.ParentProviderUUID, Inventories: map[string]placementclient.Inventory{}, Traits: sortedSet(s.Traits)}
		for class, inv := range s.Inventories {
			inv.Reserved = inv.Total
			p.Inventories[class] = inv
		}
		b.tree.Retired = append(b.tree.Retired, p)
	}
	depth := func(p Provider) int {
		n := 0
		for at := p.Parent; at != ""; n++ {
			s, known := b.standing[at]
			if !known || n > len(b.standing) {
				break
			}
			at = s.Provider.ParentProviderUUID
		}
		return n
	}
	slices.SortFunc(b.tree.Retired, func(p, q Provider) int {
		if d := depth(q) - depth(p); d != 0 {
			return d
		}
		return strings.Compare(p.UUID, q.UUID)
	})
}

// fitCells are the cells as claims/fit has them, with the pages that the operator
// reserves.
func (b *builder) fitCells() []fit.Cell {
	cells, _ := FitCells(b.in.Host, b.in.Cells)
	return cells
}
