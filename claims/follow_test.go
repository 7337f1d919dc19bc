package claims_test

import (
	"fmt"
	"slices"
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/topology"
)

// sees is a document that shows these amounts, and a placement and devices by name.
func sees(r topology.Resources, placement, devices string) claims.Seen {
	return claims.Seen{Resources: r, Placement: placement, Devices: devices}
}

func TestFollow_KeepsWhatTheDocumentDoesNotChange(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	asked := topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 10}
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: asked}))
	follow := func(shows, want topology.Resources, changes bool) {
		t.Helper()
		c, changed, err := b.Follow(ctx, "i1", sees(shows, "floats", ""), claims.Found{Resources: shows})
		wantNil(t, err)
		if c.Resources != want || changed != changes || c.Forced {
			t.Errorf("a document of %s: claim of %s, changed %t, forced %t; want %s, %t", shows, c.Resources, changed, c.Forced, want, changes)
		}
	}
	less := topology.Resources{VCPUs: 1, MemoryMB: 512, DiskGB: 2}
	follow(less, asked, false) // more was asked for than the document uses
	commits := b.store.Commits()
	follow(less, asked, false)
	if b.store.Commits() != commits {
		t.Error("the same sighting again wrote something")
	}
	less.MemoryMB = 600
	follow(less, topology.Resources{VCPUs: 2, MemoryMB: 600, DiskGB: 10}, true)
	b.restart()
	follow(less, topology.Resources{VCPUs: 2, MemoryMB: 600, DiskGB: 10}, false)
	less.VCPUs, less.DiskGB = 3, 20
	follow(less, topology.Resources{VCPUs: 3, MemoryMB: 600, DiskGB: 20}, true)
	if c := b.ByInstance("i1")[0]; !c.ByHand {
		t.Error("the claim does not say that it was changed by hand")
	}
	// A first sighting of more than the claim has is a change, too.
	must[claims.Claim](t)(b.Adopt(ctx, guest("i2"), claims.Found{Resources: small}))
	more := small.Add(topology.Resources{VCPUs: 1})
	if c, changed, err := b.Follow(ctx, "i2", sees(more, "floats", ""), claims.Found{Resources: more}); err != nil || !changed || c.Resources != more {
		t.Errorf("first seen with %s: %s, %t, %v", more, c.Resources, changed, err)
	}
}

func TestFollow_ForcesWhatDoublesAndRelaxesWhatFits(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	pinned := func(cpu int, mb int64) claims.Found {
		return foundOn(topology.Resources{PCPUs: 1, MemoryMB: mb}, topology.AssignedCell{MemoryMB: mb, Pins: []topology.Pin{{CPU: cpu}}})
	}
	seen := func(cpu int, mb int64) claims.Seen {
		return sees(topology.Resources{PCPUs: 1, MemoryMB: mb}, fmt.Sprint("on ", cpu, mb), "")
	}
	follow := func(instance string, cpu int, mb int64, forced bool) {
		t.Helper()
		c, _, err := b.Follow(ctx, instance, seen(cpu, mb), pinned(cpu, mb))
		wantNil(t, err)
		if c.Forced != forced {
			t.Errorf("%s on CPU %d with %d MiB: forced %t", instance, cpu, mb, c.Forced)
		}
		if d := b.Audit().Differences; len(d) > 0 {
			t.Errorf("%v", d)
		}
	}
	for i, id := range []string{"i1", "i2"} {
		must[claims.Claim](t)(b.Adopt(ctx, guest(id), pinned(i+1, 512)))
		follow(id, i+1, 512, false)
	}
	follow("i2", 1, 512, true)
	if u := b.Usage(); len(u.Doubled) != 1 || *u.Doubled[0].CPU != 1 || !slices.Equal(u.Doubled[0].Instances, []string{"i1", "i2"}) {
		t.Errorf("doubled: %v", u.Doubled)
	}
	follow("i1", 1, 256, false) // it shrinks: the other is at fault
	follow("i2", 2, 512, false)
	follow("i2", 1, 512, true)
	follow("i1", 3, 256, false)
	if got := must[[]string](t)(b.Relax(ctx)); !slices.Equal(got, []string{"i2"}) || b.ByInstance("i2")[0].Forced {
		t.Errorf("relaxed %v", got)
	}
	if got := must[[]string](t)(b.Relax(ctx)); len(got) > 0 {
		t.Errorf("relaxed again %v", got)
	}
}

func TestFollow_NotWhatMovesOrIsNotHere(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	see := func(instance string) error {
		_, _, err := b.Follow(ctx, instance, sees(small, "", ""), claims.Found{Resources: small})
		return err
	}
	wantKind(t, see("nobody"), fault.NotFound)
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("made"), Resources: small}))
	wantKind(t, see("made"), fault.NotFound)
	must[claims.Claim](t)(b.Adopt(ctx, guest("moves"), claims.Found{Resources: small}))
	wantNil(t, b.RecordContext(ctx, claims.Ref{Migration: "m1", Instance: "moves", Attempt: 1}, claims.MigrationContext{Migration: "m1", Instance: "moves", Source: "h", Destination: "o"}))
	wantKind(t, see("moves"), fault.Busy)
}

func TestStrangers_AreNobodyElsesRoom(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	one := topology.Resources{PCPUs: 1, MemoryMB: 128}
	on := func(cpu int) claims.Found {
		return foundOn(one, topology.AssignedCell{MemoryMB: 128, Pins: []topology.Pin{{CPU: cpu}}}, vf0)
	}
	before := b.Usage().Free
	lawful := func(when string) {
		t.Helper()
		if d := b.Audit().Differences; len(d) > 0 {
			t.Errorf("%s: %v", when, d)
		}
	}
	b.SetStrangers(map[string]claims.Found{"wild": on(1)})
	if got := b.Usage(); got.Free != before.Sub(one) || !got.Used.IsZero() {
		t.Errorf("free %s, used %s", got.Free, got.Used)
	}
	lawful("counted")
	b.SetCapacity(cells)
	b.SetStrangers(map[string]claims.Found{"wild": on(1)})
	if got := b.Usage().Free; got != before.Sub(one) {
		t.Errorf("counted anew: free %s", got)
	}
	// Six CPUs of cell 0 less one, and not the card of its function.
	for i := range 5 {
		c := must[claims.Claim](t)(b.Adopt(ctx, guest(fmt.Sprint("i", i)), claims.Found{Resources: one, Assignment: topology.Assignment{
			Cells: []topology.AssignedCell{{MemoryMB: 128, Pins: []topology.Pin{{CPU: []int{2, 3, 9, 10, 11}[i]}}}},
		}}))
		if c.Forced {
			t.Errorf("guest %d is forced", i)
		}
	}
	r := request(instanceOwner("new"), pinned(topology.PagesDefault, 1), pfs(2)...)
	_, err := b.Claim(ctx, r)
	wantKind(t, err, fault.DoesNotFit)
	r.PCI = nil
	if c := must[claims.Claim](t)(b.Claim(ctx, r)); c.Assignment.Cells[0].HostCell != 1 {
		t.Errorf("the CPU of a guest without a claim was given away: %+v", c.Assignment)
	}
	// It does not stand in its own way, and is counted once when it has its claim.
	wantNil(t, b.CheckFound("wild", on(1)))
	lawful("asked")
	if c := must[claims.Claim](t)(b.Adopt(ctx, guest("wild"), on(1))); c.Forced {
		t.Error("adopted with force beside itself")
	}
	lawful("adopted")
	b.SetStrangers(map[string]claims.Found{"wild": on(1)})
	if s := b.Strangers(); len(s) > 0 {
		t.Errorf("one with a claim is counted twice: %v", s)
	}
	// One that cannot be adopted for another is named with it.
	must[claims.Claim](t)(b.Adopt(ctx, guest("forced"), foundOn(one, topology.AssignedCell{MemoryMB: 128, Pins: []topology.Pin{{CPU: 2}}})))
	b.SetStrangers(map[string]claims.Found{"thief": foundOn(one, topology.AssignedCell{MemoryMB: 128, Pins: []topology.Pin{{CPU: 2}}})})
	if u := b.Usage(); len(u.Doubled) != 1 || !slices.Equal(u.Doubled[0].Instances, []string{"forced", "i0", "thief"}) {
		t.Errorf("doubled: %v", u.Doubled)
	}
	b.SetStrangers(nil)
	lawful("gone")
}
