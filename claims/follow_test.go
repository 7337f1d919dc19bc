package claims_test

import (
	"fmt"
	"slices"
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
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

// TestFollow_FirstSeenWithMoreOfOnePartKeepsTheOthers: a disk that nobody claimed says
// nothing of the memory that was asked for, nor of pins and devices.
func TestFollow_FirstSeenWithMoreOfOnePartKeepsTheOthers(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	pinned := func(cpu int, r topology.Resources) claims.Found {
		return foundOn(r, topology.AssignedCell{MemoryMB: r.MemoryMB, Pins: []topology.Pin{{CPU: cpu}}})
	}
	floats := func(r topology.Resources) claims.Found { return claims.Found{Resources: r} }
	for i, c := range []struct {
		claimed, found claims.Found
		want           topology.Resources
	}{
		{floats(topology.Resources{VCPUs: 2, MemoryMB: 1024}), floats(topology.Resources{VCPUs: 1, MemoryMB: 128, DiskGB: 1}), topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 1}},
		{floats(topology.Resources{VCPUs: 2, MemoryMB: 128, DiskGB: 5}), floats(topology.Resources{VCPUs: 1, MemoryMB: 256, DiskGB: 1}), topology.Resources{VCPUs: 2, MemoryMB: 256, DiskGB: 5}},
		{floats(topology.Resources{VCPUs: 1, MemoryMB: 1024, DiskGB: 5}), floats(topology.Resources{VCPUs: 2, MemoryMB: 128, DiskGB: 1}), topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 5}},
		{pinned(1, topology.Resources{PCPUs: 1, MemoryMB: 512}), pinned(1, topology.Resources{PCPUs: 1, MemoryMB: 256, DiskGB: 1}), topology.Resources{PCPUs: 1, MemoryMB: 512, DiskGB: 1}},
		{pinned(2, topology.Resources{PCPUs: 1, MemoryMB: 512, DiskGB: 5}), pinned(3, topology.Resources{PCPUs: 1, MemoryMB: 256, DiskGB: 1}), topology.Resources{PCPUs: 1, MemoryMB: 256, DiskGB: 5}},
	} {
		id := fmt.Sprint("i", i)
		before := must[claims.Claim](t)(b.Adopt(ctx, guest(id), c.claimed))
		after, changed, err := b.Follow(ctx, id, sees(c.found.Resources, "placed", ""), c.found)
		if err != nil || !changed || after.Resources != c.want {
			t.Errorf("claim of %s, found %s: %s, changed %t, %v; want %s", before.Resources, c.found.Resources, after.Resources, changed, err, c.want)
		}
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

// Devices that stay are as they were claimed, with their requests; new ones get
// requests of their own; and what the document shows as before is left alone.
func TestFollow_DevicesComeAndGo(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	spec := []topology.PCISpec{{Vendor: "8086", Product: "1889", Type: topology.PCITypeVF}}
	device := func(request string, function uint8) topology.AssignedDevice {
		return topology.AssignedDevice{Request: request, Address: topology.PCIAddress{Bus: 0x10, Function: function}, Type: topology.PCITypeVF}
	}
	vf1, vf2, vf3 := device("hostdev0", 1), device("hostdev1", 2), device("hostdev1", 3)
	found := func(mdevs []string, devices ...topology.AssignedDevice) claims.Found {
		f := claims.Found{Resources: small, Assignment: topology.Assignment{Devices: devices, Mdevs: mdevs}}
		for _, d := range devices {
			f.PCI = append(f.PCI, topology.PCIRequest{ID: d.Request, Count: 1, Specs: spec})
		}
		return f
	}
	asked := device("nics", 1)
	asked.LiveMigratable = true
	asked2 := asked
	asked2.Address = vf2.Address
	claimed := claims.Found{Resources: small, PCI: []topology.PCIRequest{{ID: "nics", Count: 2, Specs: spec}}, Assignment: topology.Assignment{Devices: []topology.AssignedDevice{asked, asked2}}}
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claimed))
	follow := func(seen string, f claims.Found, changes bool) claims.Claim {
		t.Helper()
		c, changed, err := b.Follow(ctx, "i1", sees(small, "floats", seen), f)
		wantNil(t, err)
		if changed != changes {
			t.Errorf("%s: changed %t", seen, changed)
		}
		return c
	}
	if c := follow("1 2", found(nil, vf1, vf2), false); !slices.Equal(c.Assignment.Devices, claimed.Assignment.Devices) {
		t.Errorf("as claimed: %+v", c.Assignment.Devices)
	}
	// The second goes, a third comes.
	c := follow("1 3", found([]string{"m"}, vf1, vf3), true)
	fresh := vf3
	fresh.Request = "by-hand-0000:10:00.3"
	if !slices.Equal(c.Assignment.Devices, []topology.AssignedDevice{asked, fresh}) || !slices.Equal(c.Assignment.Mdevs, []string{"m"}) {
		t.Errorf("devices %+v, mdevs %q", c.Assignment.Devices, c.Assignment.Mdevs)
	}
	if len(c.PCI) != 2 || c.PCI[0].ID != "nics" || c.PCI[0].Count != 1 || c.PCI[1].ID != fresh.Request {
		t.Errorf("requests %+v", c.PCI)
	}
	// What shows the same is not read anew, whatever it comes to by now.
	c = follow("1 3", found(nil), false)
	if len(c.Assignment.Devices) != 2 || !c.ByHand {
		t.Errorf("%+v", c)
	}
	if c, _, err := b.Follow(ctx, "i1", sees(small, "bound", "1 3"), foundOn(small, topology.AssignedCell{MemoryMB: small.MemoryMB, Shared: small.VCPUs})); err != nil || len(c.Assignment.Cells) != 1 || len(c.Assignment.Devices) != 2 {
		t.Errorf("bound to a cell: %+v, %v", c.Assignment, err)
	}
}

func TestRelax_LeavesWhatIsForcedStill(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	one := topology.Resources{PCPUs: 1, MemoryMB: 128}
	on := foundOn(one, topology.AssignedCell{MemoryMB: 128, Pins: []topology.Pin{{CPU: 1}}})
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), on))
	must[claims.Claim](t)(b.Adopt(ctx, guest("i2"), on))
	if got := must[[]string](t)(b.Relax(ctx)); len(got) > 0 || !b.ByInstance("i2")[0].Forced {
		t.Errorf("relaxed %v", got)
	}
	// A mark that is due stays where the claim does not grow.
	if c, _, err := b.Follow(ctx, "i2", sees(one, "on 1", ""), on); err != nil || !c.Forced {
		t.Errorf("forced %t, %v", c.Forced, err)
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
	wantNil(t, b.RecordContext(ctx, migration.Ref{Migration: "m1", Instance: "moves", Attempt: 1}, claims.MigrationContext{Migration: "m1", Instance: "moves", Source: "h", Destination: "o"}))
	wantKind(t, see("moves"), fault.Busy)
	// A second claim of the same guest here: it is being changed.
	must[claims.Claim](t)(b.Adopt(ctx, guest("grows"), claims.Found{Resources: small}))
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: claims.Owner{Instance: "grows", Migration: "m2", Attempt: 1, Kind: claims.KindResize}, Resources: small}))
	wantKind(t, see("grows"), fault.Busy)
	// One that has left by other hands: its claim is here for as long as its domain.
	must[claims.Claim](t)(b.Adopt(ctx, guest("left"), claims.Found{Resources: small}))
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, migration.Ref{Migration: "m3", Instance: "left", Attempt: 1}, "o"))
	wantKind(t, see("left"), fault.NotFound)
}

func TestFollow_WhatWasSeenIsTheLedgersOwn(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	_, _, err := b.Follow(ctx, "i1", sees(small, "floats", ""), claims.Found{Resources: small})
	wantNil(t, err)
	b.ByInstance("i1")[0].Seen.Placement = "scribbled over"
	if got := b.ByInstance("i1")[0].Seen.Placement; got != "floats" {
		t.Errorf("the ledger has %q", got)
	}
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
	// And beside a claim that nobody forced.
	b.SetStrangers(map[string]claims.Found{"thief": foundOn(one, topology.AssignedCell{MemoryMB: 128, Pins: []topology.Pin{{CPU: 3}}})})
	wantNil(t, b.Release(ctx, instanceOwner("forced")))
	if u := b.Usage(); len(u.Forced) > 0 || len(u.Doubled) != 1 || !slices.Equal(u.Doubled[0].Instances, []string{"i1", "thief"}) {
		t.Errorf("nobody forced %v, doubled: %v", u.Forced, u.Doubled)
	}
	b.SetStrangers(nil)
	lawful("gone")
}

// A claim for a guest that is counted already is of what it uses, and takes the
// place of that.
func TestStrangers_AreNotInTheWayOfTheirOwnClaim(t *testing.T) {
	b := newBench(t, "h")
	all := topology.Resources{VCPUs: 1, MemoryMB: b.Usage().Free.MemoryMB}
	b.SetStrangers(map[string]claims.Found{"wild": {Resources: small}})
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("wild"), Resources: all}))
	if d := b.Audit().Differences; len(d) > 0 || len(b.Strangers()) > 0 || b.Usage().Free.MemoryMB != 0 {
		t.Errorf("%v, strangers %v, free %s", d, b.Strangers(), b.Usage().Free)
	}
}
