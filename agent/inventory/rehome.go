package inventory

import (
	"cmp"
	"maps"
	"slices"

	"berth/placementclient"
)

// Rehome gives what a consumer that no claim is known of shall hold in this tree,
// from what it holds, now, of the tree as it stood: the same sums of each class. It
// stays on providers of this tree that have the class; the rest goes to those that
// have it, where there is room first (see Beside), memory into ordinary pages
// before whole huge ones. What no provider has stays where it is on one of the
// tree's, and goes to the root otherwise.
func (t *Tree) Rehome(now map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := byProvider{}
	homeless := placementclient.Resources{}
	for rp, r := range now {
		for class, n := range r {
			if t.has(rp, class) || len(t.having(class)) == 0 && t.Uses(rp) {
				give(out, rp, class, n)
			} else {
				homeless[class] += n
			}
		}
	}
	if t.Shape == Nested {
		floats := placementclient.Resources{}
		for _, class := range []string{placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB} {
			if n := min(homeless[class], t.allRoom(class, out)); n > 0 {
				floats[class] = n
				homeless[class] -= n
			}
		}
		t.spread(out, floats, "")
	}
	for _, class := range slices.Sorted(maps.Keys(homeless)) {
		left := homeless[class]
		on := t.having(class)
		for _, rp := range on {
			n := min(left, t.room(rp, class, out))
			give(out, rp, class, n)
			left -= n
		}
		on = append(on, t.Root())
		give(out, on[0], class, left)
	}
	return out
}

// allRoom is the room for floating amounts of a class on all providers together.
func (t *Tree) allRoom(class string, placed byProvider) int64 {
	var sum int64
	for _, rp := range t.floatsOn(class) {
		sum += t.room(rp, class, placed)
	}
	return sum
}

// has reports whether a provider that guests of this host use has a class. What
// the sharing provider has is not the tree's to know, beside disk.
func (t *Tree) has(rp, class string) bool {
	if rp == t.Disk && !t.Owns(rp) {
		return class == placementclient.ClassDiskGB
	}
	p, ok := t.provider(rp)
	return ok && p.Inventories[class].Total > 0
}

// having are the providers that have a class, in the tree's order.
func (t *Tree) having(class string) []string {
	if class == placementclient.ClassDiskGB && t.Disk != "" {
		return []string{t.Disk}
	}
	var out []string
	for _, p := range t.Providers {
		if p.Inventories[class].Total > 0 {
			out = append(out, p.UUID)
		}
	}
	return out
}

// Consumer is one consumer of a host, to be settled in its tree.
type Consumer struct {
	UUID string
	Held *Held // what its claim holds; nil where no claim is known
	Now  map[string]placementclient.Resources
}

// Settle places all consumers of a host at once, each exactly (Place, Rehome), so
// that those that float take what the others leave. It gives what each shall hold
// of this tree, by consumer. It is for a tree that changes its shape, and for one
// in which guests that float are counted in the way of one that is bound. others is
// what consumers that are not named hold; nil for nothing.
func (t *Tree) Settle(consumers []Consumer, others map[string]placementclient.Resources) map[string]map[string]placementclient.Resources {
	used := byProvider{}
	count := func(placed byProvider) {
		for rp, r := range placed {
			for class, n := range r {
				give(used, rp, class, n)
			}
		}
	}
	count(others)
	out := map[string]map[string]placementclient.Resources{}
	beside := t.Beside(used)
	// The bound first, then the floating, the largest first; both in an order that
	// depends on nothing else.
	rank := func(c Consumer) int {
		switch {
		case c.Held == nil:
			return 2
		case len(c.Held.Assignment.Cells) == 0:
			return 1
		}
		return 0
	}
	size := func(c Consumer) (n int64) {
		if c.Held != nil {
			return c.Held.Resources.MemoryMB
		}
		for _, r := range c.Now {
			n += r[placementclient.ClassMemoryMB]
		}
		return n
	}
	order := slices.Clone(consumers)
	slices.SortFunc(order, func(a, b Consumer) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(size(b), size(a)), cmp.Compare(a.UUID, b.UUID))
	})
	for _, c := range order {
		var placed byProvider
		switch {
		case c.Held == nil:
			placed = beside.Rehome(c.Now)
		default:
			placed = beside.Place(*c.Held, beside.roomFor(c.Now))
		}
		count(placed)
		out[c.UUID] = placed
	}
	return out
}

// roomFor is now where all of it still has room, else nothing.
func (t *Tree) roomFor(now byProvider) byProvider {
	for rp, r := range now {
		for _, class := range []string{placementclient.ClassVCPU, placementclient.ClassPCPU, placementclient.ClassMemoryMB} {
			if n := r[class]; n > 0 && t.has(rp, class) && t.room(rp, class, nil) < n {
				return nil
			}
		}
	}
	return now
}
