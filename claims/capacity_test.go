package claims_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth/claims"
	"berth/claims/fit"
	"berth/internal/fault"
	"berth/topology"
)

// becomes are hosts that the host of the tests may turn into while guests are on
// it: dedicated CPUs become shared ones or go offline, pools of pages shrink, a
// card goes, cells go, and all comes back.
func becomes() map[string]claims.Capacity {
	with := func(change func(*claims.Capacity)) claims.Capacity {
		c := cells
		c.Cells = slices.Clone(cells.Cells)
		for i := range c.Cells {
			c.Cells[i].Pages = slices.Clone(cells.Cells[i].Pages)
		}
		change(&c)
		return c
	}
	return map[string]claims.Capacity{
		"as it was": cells,
		"CPUs become shared": with(func(c *claims.Capacity) {
			c.Cells[0].Dedicated, c.Cells[0].Shared = topology.NewCPUSet(1, 9), topology.NewCPUSet(0, 2, 3, 8, 10, 11)
		}),
		"CPUs go offline": with(func(c *claims.Capacity) {
			c.Cells[1].Dedicated, c.Cells[1].Cores = topology.NewCPUSet(5, 6), []topology.CPUSet{topology.NewCPUSet(5), topology.NewCPUSet(6)}
		}),
		"CPUs change cells": with(func(c *claims.Capacity) {
			c.Cells[0].Dedicated, c.Cells[1].Dedicated = c.Cells[1].Dedicated, c.Cells[0].Dedicated
			c.Cells[0].Cores, c.Cells[1].Cores = c.Cells[1].Cores, c.Cells[0].Cores
		}),
		"pools shrink": with(func(c *claims.Capacity) {
			c.Cells[0].Pages[1].Total, c.Cells[1].Pages[1].Reserved = 100, 1000
		}),
		"a card goes":      with(func(c *claims.Capacity) { c.Devices = c.Devices[3:] }),
		"a cell goes":      with(func(c *claims.Capacity) { c.Cells = c.Cells[1:] }),
		"nothing is known": {Total: cells.Total},
	}
}

// TestTracker_WhateverTheHostBecomesNothingIsGivenTwice: claims that were made
// stay, whatever of the host goes; what is given out beside them is there, and is
// nobody else's.
func TestTracker_WhateverTheHostBecomesNothingIsGivenTwice(t *testing.T) {
	hosts := becomes()
	rapid.Check(t, func(t *rapid.T) {
		b := newBenchWith(t, "h", cells)
		names := rapid.SampledFrom([]string{"i1", "i2", "i3", "i4", "i5", "i6"})
		given := kept{}
		t.Repeat(map[string]func(*rapid.T){
			"become": func(t *rapid.T) {
				b.capacity = hosts[rapid.SampledFrom([]string{"as it was", "CPUs become shared", "CPUs go offline", "CPUs change cells", "pools shrink", "a card goes", "a cell goes", "nothing is known"}).Draw(t, "host")]
				b.SetCapacity(b.capacity)
			},
			"claim": func(t *rapid.T) {
				r := guests().Draw(t, "guest")
				r.Owner = instanceOwner(names.Draw(t, "instance"))
				if rapid.IntRange(0, 2).Draw(t, "resize") == 0 {
					r.Owner = resizeOwner(r.Owner.Instance, r.Owner.Instance+"-resize")
				}
				if _, has := b.ByOwner(r.Owner); has {
					return
				}
				before := b.List()
				c, err := b.Claim(ctx, r)
				if err != nil {
					return
				}
				given.note(t, c)
				soundlyGiven(t, b.capacity, before, c)
			},
			"bind": func(t *rapid.T) {
				if c := b.ByInstance(names.Draw(t, "instance")); len(c) > 0 {
					// Of two claims one is bound already, or a change that Exchange binds.
					if _, err := b.Bind(ctx, c[len(c)-1].Owner); err != nil && !errors.Is(err, fault.Exists) {
						t.Fatal(err)
					}
				}
			},
			"release": func(t *rapid.T) {
				for _, c := range b.ByInstance(names.Draw(t, "instance")) {
					switch err := b.Release(ctx, c.Owner); {
					case err == nil:
						return
					case !errors.Is(err, fault.Forbidden):
						t.Fatal(err)
					}
				}
			},
			"restart": func(*rapid.T) { b.restart() },
			"": func(t *rapid.T) {
				for _, c := range b.List() {
					given.note(t, c)
				}
				if d := b.Audit().Differences; len(d) != 0 {
					t.Fatalf("%v", d)
				}
			},
		})
	})
}

// soundlyGiven holds a claim that was just made against the host as it is and
// what the others have.
func soundlyGiven(t *rapid.T, host claims.Capacity, others []claims.Claim, c claims.Claim) {
	others = slices.DeleteFunc(others, func(o claims.Claim) bool { return o.Owner.Instance == c.Owner.Instance })
	for _, a := range c.Assignment.Cells {
		i := slices.IndexFunc(host.Cells, func(h fit.Cell) bool { return h.ID == a.HostCell })
		if i < 0 || !host.Cells[i].Dedicated.ContainsAll(a.Exclusive()) {
			t.Fatalf("given %s of cell %d, which are not there", a.Exclusive(), a.HostCell)
		}
		pages := map[string]int64{} // of each instance: of two claims it uses one
		for _, o := range append(others, c) {
			if o.ID != c.ID && cpusOf(o.Assignment).Intersects(a.Exclusive()) {
				t.Fatalf("CPUs %s are given to %s, and some are %s's", a.Exclusive(), c.Owner.Instance, o.Owner.Instance)
			}
			for _, other := range o.Assignment.Cells {
				if other.HostCell == a.HostCell && other.PageSize == a.PageSize {
					pages[o.Owner.Instance] = max(pages[o.Owner.Instance], other.MemoryMB/2)
				}
			}
		}
		sum := int64(0)
		for _, n := range pages {
			sum += n
		}
		if p := host.Cells[i].Pages[1]; a.PageSize == p.Size && sum > p.Total-p.Reserved {
			t.Fatalf("cell %d: %d of %d pages given", a.HostCell, sum, p.Total-p.Reserved)
		}
	}
	for _, d := range c.Assignment.Devices {
		for _, o := range others {
			for _, other := range o.Assignment.Devices {
				card := other.Address.Bus == d.Address.Bus && (other.Type == topology.PCITypePF || d.Type == topology.PCITypePF)
				if other.Address == d.Address || card {
					t.Fatalf("%s is given to %s, and %s has %s", d.Address, c.Owner.Instance, o.Owner.Instance, other.Address)
				}
			}
		}
	}
}
