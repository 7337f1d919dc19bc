package inventory

import (
	"cmp"
	"hash/fnv"
	"maps"
	"slices"

	"berth/placementclient"
	"berth/topology"
)

// byProvider is what one consumer holds, by provider.
type byProvider = map[string]placementclient.Resources

// Place gives what a claim holds, by provider: exactly what Placement shall say.
// The sums of VCPU, PCPU, MEMORY_MB and DISK_GB are the claim's Resources, and each
// device counts one of its class. Classes of nothing are left out, as Placement
// knows no allocation of zero.
//
//	what                                 flat      nested
//	vCPUs on shared CPUs                 root      VCPU of their cell
//	pinned vCPUs, isolated emulator      root      PCPU of their cell
//	memory                               root      MEMORY_MB of its page size in its cell
//	disk                                 Disk      Disk
//	PCI and mediated devices             their provider
//	what is in no cell of the tree       root      see below
//
// A guest without cells floats over a nested tree, and so does what was given of a
// cell that the host has no more. It stays where now, which is what its consumer
// holds already (nil for nothing), has it, as long as the sums are right and no
// memory is in huge pages. Else it is put whole on one cell with room, or, where
// none has so much, on several; see Beside for what room is.
//
// A claim of a host that tells no PCPU counts its pinned vCPUs as VCPU: Resources
// decide how many of each there are, the Assignment where.
//
// A device that the tree does not know is left out, since it has no provider;
// Unknown names it. Compute knows every device that a claim of its Input has.
func (t *Tree) Place(h Held, now map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := byProvider{}
	if t.Shape == Nested && len(t.Cells) > 0 {
		t.spread(out, t.placeInCells(out, h, now), h.Consumer)
	} else {
		give(out, t.Root(), placementclient.ClassVCPU, int64(h.Resources.VCPUs))
		give(out, t.Root(), placementclient.ClassPCPU, int64(h.Resources.PCPUs))
		give(out, t.Root(), placementclient.ClassMemoryMB, h.Resources.MemoryMB)
	}
	disk := t.Disk
	if disk == "" {
		disk = t.Root()
	}
	give(out, disk, placementclient.ClassDiskGB, h.Resources.DiskGB)
	for _, d := range h.Assignment.Devices {
		if home, known := t.Devices[d.Address]; known {
			give(out, home.Provider, home.Class, 1)
		}
	}
	for _, uuid := range h.Assignment.Mdevs {
		if home, known := t.Mdevs[uuid]; known {
			give(out, home.Provider, home.Class, 1)
		}
	}
	return out
}

// Unknown names the devices of a claim that the tree does not know, PCI addresses
// and uuids of mediated devices, so that they are counted nowhere.
func (t *Tree) Unknown(h Held) []string {
	var out []string
	for _, d := range h.Assignment.Devices {
		if _, known := t.Devices[d.Address]; !known {
			out = append(out, d.Address.String())
		}
	}
	for _, uuid := range h.Assignment.Mdevs {
		if _, known := t.Mdevs[uuid]; !known {
			out = append(out, uuid)
		}
	}
	return out
}

// Agrees reports whether what a consumer holds of this host, now, is what its claim
// stands for. However a floating guest is spread agrees. What it holds of others'
// providers is not looked at.
func (t *Tree) Agrees(h Held, now map[string]placementclient.Resources) bool {
	mine := maps.Clone(now)
	maps.DeleteFunc(mine, func(rp string, r placementclient.Resources) bool { return !t.Uses(rp) || len(r) == 0 })
	return maps.EqualFunc(t.Place(h, mine), mine, maps.Equal[placementclient.Resources])
}

// Beside gives a tree that knows what other consumers hold: used is by provider,
// and the consumer that is to be placed is not in it. What floats is then put where
// room is left: on the cell with most of it. Without it the room of a cell is all
// that it has, and the consumer's uuid decides between cells.
func (t *Tree) Beside(used map[string]placementclient.Resources) *Tree {
	out := *t
	if out.used = used; used == nil {
		out.used = byProvider{}
	}
	return &out
}

// Undecided are the providers whose usage decides where Place puts what floats of a
// claim; nil where nothing floats, or all of it stays where now has it. Who asks for
// their usages, and gives them to Beside, gets a place with room.
func (t *Tree) Undecided(h Held, now map[string]placementclient.Resources) []string {
	if t.Shape != Nested || len(t.Cells) == 0 || len(t.placeInCells(byProvider{}, h, now)) == 0 {
		return nil
	}
	out := slices.Concat(t.floatsOn(placementclient.ClassVCPU), t.floatsOn(placementclient.ClassPCPU), t.floatsOn(placementclient.ClassMemoryMB))
	return sortedSet(out)
}

func give(to byProvider, rp, class string, n int64) {
	if n <= 0 {
		return
	}
	if to[rp] == nil {
		to[rp] = placementclient.Resources{}
	}
	to[rp][class] += n
}

// piece is an amount of one class on one provider.
type piece struct {
	rp string
	n  int64
}

// placeInCells counts CPUs and memory in a nested tree, and gives what of them is to
// be put anywhere.
func (t *Tree) placeInCells(out byProvider, h Held, now byProvider) (floats placementclient.Resources) {
	var shared, pinned, memory []piece
	for _, a := range h.Assignment.Cells {
		cell, there := t.cell(a.HostCell)
		if !there {
			continue
		}
		shared = append(shared, piece{cell.Provider, int64(a.Shared)})
		pinned = append(pinned, piece{cell.Provider, int64(len(a.Pins) + a.Emulator.Len())})
		if rp, has := cell.memory(a.PageSize); has {
			memory = append(memory, piece{rp, a.MemoryMB})
		}
	}
	// Pinned vCPUs that Resources count as shared stay on their cells.
	pinned, over := cut(pinned, int64(h.Resources.PCPUs))
	shared, _ = cut(append(shared, over...), int64(h.Resources.VCPUs))
	memory, _ = cut(memory, h.Resources.MemoryMB)

	floats = placementclient.Resources{}
	for _, c := range []struct {
		class string
		fixed []piece
		want  int64
	}{
		{placementclient.ClassVCPU, shared, int64(h.Resources.VCPUs)},
		{placementclient.ClassPCPU, pinned, int64(h.Resources.PCPUs)},
		{placementclient.ClassMemoryMB, memory, h.Resources.MemoryMB},
	} {
		fixed := placementclient.Resources{} // by provider
		left := c.want
		for _, p := range c.fixed {
			fixed[p.rp] += p.n
			left -= p.n
		}
		if left > 0 && t.stays(c.class, c.want, fixed, now) {
			for _, rp := range t.floatsOn(c.class) {
				give(out, rp, c.class, now[rp][c.class]-fixed[rp])
			}
			left = 0
		}
		for rp, n := range fixed {
			give(out, rp, c.class, n)
		}
		if left > 0 {
			floats[c.class] = left
		}
	}
	return floats
}

// memory is who has a cell's memory in pages of a size, 0 for ordinary memory. A
// pool that is no more is ordinary memory.
func (c *TreeCell) memory(size topology.PageSize) (string, bool) {
	if rp, has := c.Pages[size]; has && size != 0 {
		return rp, true
	}
	rp, has := c.Pages[c.Ordinary]
	return rp, has
}

// cut shortens pieces, the last first, until they are no more than most; over is
// what was cut off.
func cut(pieces []piece, most int64) (kept, over []piece) {
	for _, p := range pieces {
		n := min(p.n, most)
		most -= n
		kept = append(kept, piece{p.rp, n})
		if p.n > n {
			over = append(over, piece{p.rp, p.n - n})
		}
	}
	return kept, over
}

// stays reports whether a consumer holds all that it shall of a class, at least
// what is fixed on each provider, and nothing where nothing of the class floats.
func (t *Tree) stays(class string, want int64, fixed placementclient.Resources, now byProvider) bool {
	floats := t.floatsOn(class)
	var sum int64
	for rp, r := range now {
		n := r[class]
		if n == 0 || !t.Uses(rp) {
			continue
		}
		if sum += n; n > fixed[rp] && !slices.Contains(floats, rp) {
			return false
		}
	}
	for rp, n := range fixed {
		if now[rp][class] < n {
			return false
		}
	}
	return sum == want
}

// floatsOn are the providers on which a class of floating guests may be counted:
// each cell's, for memory that of its ordinary pages, and the root's CPUs that are
// in no cell.
func (t *Tree) floatsOn(class string) []string {
	var out []string
	for i := range t.Cells {
		c := &t.Cells[i]
		switch rp, has := c.memory(0); {
		case class != placementclient.ClassMemoryMB:
			out = append(out, c.Provider)
		case has:
			out = append(out, rp)
		}
	}
	if class != placementclient.ClassMemoryMB {
		out = append(out, t.Root())
	}
	return slices.DeleteFunc(out, func(rp string) bool {
		p, ok := t.provider(rp)
		return !ok || p.Inventories[class].Total <= 0
	})
}

// room is how much more of a class one consumer may get of a provider; placed is
// what it gets already.
func (t *Tree) room(rp, class string, placed byProvider) int64 {
	p, ok := t.provider(rp)
	if !ok {
		return 0
	}
	inv, has := p.Inventories[class]
	if !has {
		return 0
	}
	mine := placed[rp][class]
	room := max(0, min(inv.Capacity()-t.used[rp][class]-mine, inv.MaxUnit-mine))
	return room - room%max(inv.StepSize, 1)
}

// spread puts amounts that belong to no cell: together on the first cell that has
// room for all of them, else of each class as much as there is room on each in
// turn. What has room nowhere goes to the first provider of its class, for
// Placement to judge.
func (t *Tree) spread(out byProvider, amounts placementclient.Resources, consumer string) {
	if len(amounts) == 0 {
		return
	}
	order := t.order(out, consumer)
	for _, c := range order {
		whole := true
		for class, n := range amounts {
			whole = whole && t.room(c.of(class), class, out) >= n
		}
		if whole {
			for class, n := range amounts {
				give(out, c.of(class), class, n)
			}
			return
		}
	}
	for _, class := range slices.Sorted(maps.Keys(amounts)) {
		left := amounts[class]
		var first string
		on := make([]string, 0, len(order)+1)
		for _, c := range order {
			on = append(on, c.of(class))
		}
		allowed := t.floatsOn(class)
		for _, rp := range append(on, t.Root()) {
			if !slices.Contains(allowed, rp) {
				continue
			}
			if first == "" {
				first = rp
			}
			n := min(left, t.room(rp, class, out))
			give(out, rp, class, n)
			left -= n
		}
		if first == "" {
			first = t.Root() // no provider of the tree has the class
		}
		give(out, first, class, left)
	}
}

// of is the provider of a cell's class, in which floating guests are counted.
func (c *TreeCell) of(class string) string {
	if class != placementclient.ClassMemoryMB {
		return c.Provider
	}
	rp, _ := c.memory(0)
	return rp
}

// order is the cells in the order in which floating guests take them: where usage
// is known those with most memory free first, then with most CPUs; else by a number
// made of consumer and cell, so that consumers take different ones.
func (t *Tree) order(placed byProvider, consumer string) []*TreeCell {
	type ranked struct {
		*TreeCell
		memory, cpus int64
		hash         uint64
	}
	var all []ranked
	for i := range t.Cells {
		c := &t.Cells[i]
		r := ranked{TreeCell: c}
		if t.used != nil {
			r.memory = t.room(c.of(placementclient.ClassMemoryMB), placementclient.ClassMemoryMB, placed)
			r.cpus = t.room(c.Provider, placementclient.ClassVCPU, placed)
		} else {
			f := fnv.New64a()
			// Writing into a hash does not fail.
			_, _ = f.Write([]byte(consumer + "/" + c.Provider))
			r.hash = f.Sum64()
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.memory, a.memory), cmp.Compare(b.cpus, a.cpus), cmp.Compare(a.hash, b.hash))
	})
	out := make([]*TreeCell, len(all))
	for i, r := range all {
		out[i] = r.TreeCell
	}
	return out
}
