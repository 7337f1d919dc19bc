package claims_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

func TestTracker_PinnedClaimKeepsItsCoresThroughItsWholeLife(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	r := request(moveOwner("i1", "m1", 1), pinned(huge, 2, 2), vfs(1)...)
	r.Context = &claims.MigrationContext{Migration: "m1", Instance: "i1", NewFlavor: topology.Flavor{Name: "f"}}
	preview := must[topology.Assignment](t)(b.Preview(r))
	c := must[claims.Claim](t)(b.Claim(ctx, r))
	if diff := cmp.Diff(preview, c.Assignment, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("preview and claim (-preview +claim):\n%s", diff)
	}
	if len(c.Assignment.Cells) != 2 || cpusOf(c.Assignment).Len() != 4 || len(c.Assignment.Devices) != 1 || c.Assignment.Cells[0].PageSize != topology.PageSize2M {
		t.Fatalf("assignment %+v", c.Assignment)
	}
	if x := c.Context.Apply(); cmp.Diff(x.NUMATopology.Cells, c.Assignment.Cells) != "" || cmp.Diff(x.PCIDevices, c.Assignment.Devices) != "" || x.Flavor.Name != "f" {
		t.Errorf("the context's new side is not the claim: %+v", x)
	}
	same := func(when string, c claims.Claim) {
		t.Helper()
		if diff := cmp.Diff(preview, c.Assignment, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-claimed +now):\n%s", when, diff)
		}
		if has, ok := b.ByOwner(c.Owner); !ok || cmp.Diff(has.Assignment, c.Assignment) != "" {
			t.Errorf("%s: its owner has %+v, %v", when, has.Assignment, ok)
		}
	}
	same("repeated", must[claims.Claim](t)(b.Claim(ctx, r)))
	b.restart()
	same("after a crash, repeated", must[claims.Claim](t)(b.Claim(ctx, r)))
	same("arriving", must[claims.Claim](t)(b.Arrive(ctx, r.Owner)))
	same("bound", must[claims.Claim](t)(b.Bind(ctx, r.Owner)))
	other := r
	other.Topology = pinned(huge, 3, 1)
	if _, err := b.Claim(ctx, other); !errors.Is(err, fault.Exists) {
		t.Errorf("the same owner with other cells: %v, want it to exist", err)
	}
	next := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i2"), pinned(huge, 4), vfs(3)...)))
	if cpusOf(next.Assignment).Intersects(cpusOf(c.Assignment)) {
		t.Errorf("both have %s", cpusOf(next.Assignment).Intersection(cpusOf(c.Assignment)))
	}
	if a := b.Audit(); !a.Agrees() || a.Claims != 2 {
		t.Errorf("audit %+v", a)
	}
}

func TestTracker_RefusalSaysWhyOfEachCell(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(0, 4, 5))))
	_, err := b.Claim(ctx, request(instanceOwner("i2"), pinned(huge, 3), pfs(3)...))
	wantKind(t, err, fault.DoesNotFit)
	named := map[int]bool{}
	for _, r := range fault.ReasonsOf(err) {
		if r.Cell != nil {
			named[*r.Cell] = true
		}
	}
	if !named[0] || !named[1] {
		t.Errorf("not every cell has its reason: %+v", fault.ReasonsOf(err))
	}
	if len(b.List()) != 1 || !b.Audit().Agrees() {
		t.Error("a refusal left something behind")
	}
}

func TestTracker_HugePagesAreNotOrdinaryMemory(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	float := func(name string, mb int64) error {
		_, err := b.Claim(ctx, claims.Request{Owner: instanceOwner(name), Resources: topology.Resources{VCPUs: 1, MemoryMB: mb}})
		return err
	}
	wantNil(t, float("a", 3000))
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("b"), shared(0, 1, 1024))))
	err := float("c", 73)
	wantKind(t, err, fault.DoesNotFit)
	if reasons := fault.ReasonsOf(err); len(reasons) != 1 || reasons[0].Code != claims.OrdinaryMemoryShort || reasons[0].Have != "72 MiB" {
		t.Errorf("reasons %+v", reasons)
	}
	wantNil(t, float("c", 72))
	// Pools are there still, for those who ask for them.
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("d"), shared(huge, 1, 2048))))

	// The host's reserve is kept once, whichever way it is told.
	kept := cells
	kept.Cells = slices.Clone(cells.Cells)
	kept.Reserved.MemoryMB = 512
	for _, inCells := range []int64{0, 256} {
		kept.Cells[0].Pages = slices.Clone(cells.Cells[0].Pages)
		kept.Cells[0].Pages[0].Reserved = inCells << 8 // pages of 4 KiB
		kept.Cells[0].Pages[1].Reserved = 100
		b = newBenchWith(t, "h", kept)
		wantKind(t, float("a", 4096-512+1), fault.DoesNotFit)
		wantNil(t, float("a", 4096-512))
	}

	// Within a cell it is the same: two guests of 1.5 GiB are more than its ordinary memory.
	one := cells
	one.Cells, one.Total.MemoryMB = cells.Cells[:1], 4096
	b = newBenchWith(t, "h", one)
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("a"), shared(0, 1, 1536))))
	_, err = b.Claim(ctx, request(instanceOwner("b"), shared(0, 1, 1536)))
	wantKind(t, err, fault.DoesNotFit)
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("b"), shared(0, 1, 512))))
}

func TestTracker_WhatIsOnItsWayIsNobodyElses(t *testing.T) {
	tracker, g := newGate(t)
	tracker.SetCapacity(cells)
	slow := make(chan error, 1)
	begin := func(f func() error) commit {
		go func() { slow <- f() }()
		return <-g.queued
	}
	o := instanceOwner("i1")
	first, second := request(o, pinned(huge, 6, 6), pfs(2)...), request(instanceOwner("i2"), pinned(huge, 1), vfs(1)...)
	claim := func() error { _, err := tracker.Claim(ctx, first); return err }
	room := func(when string, want bool) {
		t.Helper()
		if err := tracker.CheckClaim(second); (err == nil) != want || err != nil && !errors.Is(err, fault.DoesNotFit) {
			t.Errorf("%s: %v, want room: %v", when, err, want)
		}
		if d := tracker.Audit().Differences; len(d) != 0 {
			t.Errorf("%s: %v", when, d)
		}
	}
	room("empty", true)
	c := begin(claim)
	room("a claim is on its way", false)
	c.settle(errors.New("no room"))
	<-slow
	room("the claim has failed", true)
	g.pass(begin(claim))
	wantNil(t, <-slow)
	g.pass(begin(func() error { _, err := tracker.Bind(ctx, o); return err }))
	wantNil(t, <-slow)
	c = begin(func() error { return tracker.Release(ctx, o) })
	room("a release is on its way", false)
	c.settle(errors.New("no room"))
	<-slow
	room("the release has failed", false)
	// A claim that follows its guest holds both until it is durable.
	follow := func() error {
		_, err := tracker.Adopt(ctx, guest("i1"), claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}})
		return err
	}
	c = begin(follow)
	room("the guest lets go of its cores", false)
	tracker.SetCapacity(cells)
	room("the host was read again meanwhile", false)
	c.settle(errors.New("no room"))
	<-slow
	room("it has not", false)
	g.pass(begin(follow))
	wantNil(t, <-slow)
	room("it has", true)
	g.pass(begin(func() error { return tracker.Release(ctx, o) }))
	wantNil(t, <-slow)
	room("gone", true)
}

func TestTracker_ResizeOnItsOwnHostSeesItsOwnAsFree(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	old := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 5, 5), vfs(4)...)))
	must[claims.Claim](t)(b.Bind(ctx, old.Owner))
	larger := request(resizeOwner("i1", "m1"), pinned(huge, 6, 6), vfs(3)...)
	stranger := larger
	stranger.Owner = instanceOwner("i2")
	wantKind(t, b.CheckClaim(stranger), fault.DoesNotFit)
	next := must[claims.Claim](t)(b.Claim(ctx, larger))
	if got := cpusOf(next.Assignment); got.Len() != 12 {
		t.Errorf("resized to %s", got)
	}
	// The union: 12 CPUs, 4 VFs, and the pages once.
	u := b.Machine()
	if n := u.Cells[0].Pinned.Len() + u.Cells[1].Pinned.Len(); n != 12 || u.Cells[0].Pages[1].Used != 256 || len(u.Pools) != 1 {
		t.Errorf("%d CPUs, %d pages, pools %+v: want the union of old and new", n, u.Cells[0].Pages[1].Used, u.Pools)
	}
	wantUsed(t, b, topology.Resources{PCPUs: 12, MemoryMB: 1024})
	wantKind(t, b.CheckClaim(request(instanceOwner("i2"), shared(huge, 1, 64), vfs(1)...)), fault.DoesNotFit)
	b.restart()
	if a := b.Audit(); !a.Agrees() {
		t.Errorf("audit %+v", a)
	}
	// Reverted: only the old is held. Confirmed: only the new.
	must[claims.Claim](t)(b.Exchange(ctx, refOf(next.Owner, ""), claims.KindResize))
	wantNil(t, b.Release(ctx, next.Owner))
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i2"), shared(huge, 1, 64), vfs(1)...)))
	wantKind(t, b.CheckClaim(request(instanceOwner("i3"), pinned(huge, 1))), fault.DoesNotFit)
	if a := b.Audit(); !a.Agrees() {
		t.Errorf("audit %+v", a)
	}
}

func TestTracker_AFunctionAndItsPhysicalOneExcludeEachOther(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	one := func(name string, r []topology.PCIRequest) claims.Request {
		return claims.Request{Owner: instanceOwner(name), Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, PCI: r}
	}
	must[claims.Claim](t)(b.Claim(ctx, one("vf", vfs(1))))
	must[claims.Claim](t)(b.Claim(ctx, one("pf", pfs(1))))
	wantKind(t, b.CheckClaim(one("x", pfs(1))), fault.DoesNotFit)
	wantKind(t, b.CheckClaim(one("x", vfs(2))), fault.DoesNotFit)
	wantNil(t, b.CheckClaim(one("x", vfs(1))))
	wantNil(t, b.Abort(ctx, migration.Ref{Instance: "vf"}))
	wantNil(t, b.CheckClaim(one("x", pfs(1))))
	wantNil(t, b.CheckClaim(one("x", vfs(2))))
	wantKind(t, b.CheckClaim(one("x", vfs(3))), fault.DoesNotFit)
	wantNil(t, b.Abort(ctx, migration.Ref{Instance: "pf"}))
	wantNil(t, b.CheckClaim(one("x", vfs(4))))
}

func TestTracker_AdoptedGuestsMayDouble(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	found := func(pages int64, cpu int, d topology.PCIAddress) claims.Found {
		return claims.Found{
			Resources: topology.Resources{PCPUs: 1, MemoryMB: 2 * pages},
			Assignment: topology.Assignment{
				Cells:   []topology.AssignedCell{{HostCell: 0, MemoryMB: 2 * pages, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: cpu}}}},
				Devices: []topology.AssignedDevice{{Address: d}},
			},
		}
	}
	one := must[claims.Claim](t)(b.Adopt(ctx, guest("one"), found(600, 1, vf0)))
	two := must[claims.Claim](t)(b.Adopt(ctx, guest("two"), found(600, 1, pf0)))
	if one.Forced || !two.Forced {
		t.Errorf("forced: %v and %v, want the second", one.Forced, two.Forced)
	}
	cpu, cell0, both := 1, topology.CellID(0), []string{"one", "two"}
	want := []claims.Doubled{
		{CPU: &cpu, Cell: &cell0, Instances: both},
		{Device: &pf0, Instances: both}, {Device: &vf0, Instances: both},
		{Cell: &cell0, PageSize: topology.PageSize2M, Over: 176, Instances: both},
	}
	u := b.Usage()
	if diff := cmp.Diff(want, u.Doubled); diff != "" {
		t.Errorf("doubled (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"two"}, u.Forced); diff != "" {
		t.Errorf("forced (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("cpu 1 of cell 0: held by one and two", u.Doubled[0].String()); diff != "" {
		t.Error(diff)
	}
	if a := b.Audit(); len(a.Differences) != 0 || len(a.Doubled) != 4 || len(a.Forced) != 1 || a.Agrees() {
		t.Errorf("audit %+v", a)
	}
	if free := b.Machine().Cells[0].Pages[1].Free(); free != 0 {
		t.Errorf("%d pages free, want 0", free)
	}
	// When one has gone, the CPU is still the other's.
	wantNil(t, b.Release(ctx, one.Owner))
	if m := b.Machine(); !m.Cells[0].Pinned.Contains(1) {
		t.Error("cpu 1 is free, and held")
	}
	again := must[claims.Claim](t)(b.Adopt(ctx, guest("two"), found(600, 1, pf0)))
	if again.Forced || len(b.Usage().Doubled) != 0 {
		t.Errorf("looked at again: forced %v, %+v", again.Forced, b.Usage().Doubled)
	}
}

func TestTracker_WhatCannotBeReadIsNotTouched(t *testing.T) {
	broken := cells
	one := topology.CellID(1)
	broken.Unusable = []claims.Unusable{{Cell: &one, Reason: "node1/meminfo: input/output error"}, {Device: &vf0, Reason: "numa_node: input/output error"}}
	b := newBenchWith(t, "h", broken)
	c := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 4), vfs(1)...)))
	if c.Assignment.Cells[0].HostCell != 0 || c.Assignment.Devices[0].Address != (topology.PCIAddress{Bus: 0x10, Function: 2}) {
		t.Errorf("assignment %+v", c.Assignment)
	}
	_, err := b.Claim(ctx, request(instanceOwner("i2"), pinned(huge, 4), vfs(1)...))
	wantKind(t, err, fault.DoesNotFit)
	codes := map[string]string{}
	for _, r := range fault.ReasonsOf(err) {
		codes[r.Code] = r.Have
	}
	if codes[claims.CellUnusable] != "node1/meminfo: input/output error" || codes[claims.DeviceUnusable] == "" {
		t.Errorf("reasons %v", codes)
	}
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("i3"), Resources: small}))

	b = newBench(t, "h") // a host whose cells nobody knows
	_, err = b.Claim(ctx, request(instanceOwner("i1"), shared(0, 1, 64)))
	wantKind(t, err, fault.DoesNotFit)
	if r := fault.ReasonsOf(err); len(r) != 1 || r[0].Code != claims.CellsUnknown {
		t.Errorf("reasons %+v", r)
	}
}

func TestAudit_NamesWhatTheHostHasLostAndWhatWasMiscounted(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	c := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 4, 4), ask("10de", "1eb8", topology.PCITypeFunction, 1)...)))
	smaller := cells
	smaller.Cells, smaller.Devices = slices.Clone(cells.Cells[:1]), cells.Devices[:3]
	b.SetCapacity(smaller)
	a := b.Audit()
	gone, gpu := topology.CellID(1), topology.PCIAddress{Bus: 0x30}
	host1 := slices.IndexFunc(c.Assignment.Cells, func(a topology.AssignedCell) bool { return a.HostCell == 1 })
	want := []claims.Lost{
		{Instance: "i1", Cell: &gone}, {Instance: "i1", CPUs: c.Assignment.Cells[host1].Exclusive()}, {Instance: "i1", Device: &gpu},
	}
	if diff := cmp.Diff(want, a.Lost); diff != "" || len(a.Differences) != 0 {
		t.Errorf("lost (-want +got):\n%s\ndifferences %v", diff, a.Differences)
	}
	b.SetCapacity(cells)
	if a := b.Audit(); !a.Agrees() {
		t.Errorf("the cell is back: %+v", a)
	}
	b.Miscount()
	if a := b.Audit(); len(a.Differences) < 2 {
		t.Errorf("differences %q", a.Differences)
	}
}

func TestClaim_ExplainNamesWhatItHas(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	guest := pinned(huge, 2)
	guest.Emulator = topology.EmulatorIsolate
	c := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), guest, vfs(1)...)))
	e, ok := b.Explain(c.Owner)
	if !ok || len(e.Cells) != 1 || len(e.Devices) != 1 {
		t.Fatalf("explanation %+v", e)
	}
	x := e.Cells[0]
	if x.Pages != 256 || len(x.Pins) != 2 || x.Emulator.Len() != 1 || x.Asked.MemoryMB != 512 || e.Devices[0].Asked.Count != 1 {
		t.Errorf("cell %+v, device %+v", x, e.Devices[0])
	}
	u := b.CellUsage()
	at := slices.IndexFunc(u, func(u claims.CellUsage) bool { return u.ID == x.HostCell })
	if got := u[at]; got.Pinned.Len() != 2 || !got.Emulator.SameAs(x.Emulator) || got.Pages[1].Used != 256 || !slices.Equal(got.Instances, []string{"i1"}) {
		t.Errorf("usage of the cell %+v", got)
	}
}

// A ledger that was written before claims had cells.
func TestOpen_ReadsClaimsWithoutCells(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	old := `{"claim":"c1","owner":{"instance":"i1","migration":"m1","attempt":1,"kind":"live-migration"},"state":"arriving",` +
		`"resources":{"vcpus":2,"memory_mb":1024,"disk_gb":10},"ticket":"t","created_at":"2023-11-14T23:13:20Z","boot":"boot-1",` +
		`"context":{"migration":"m1","instance":"i1","source_compute":"a","dest_compute":"h","old_resources":{"vcpus":2,"memory_mb":1024,"disk_gb":10},` +
		`"new_resources":{"vcpus":2,"memory_mb":1024,"disk_gb":10},"old_flavor":{"name":"f","vcpus":2,"memory_mb":1024,"disk_gb":10},` +
		`"new_flavor":{"name":"f","vcpus":2,"memory_mb":1024,"disk_gb":10},"old_power_state":"running"}}`
	wantNil(t, b.store.Enqueue(store.Put("claims", "c1", []byte(old))).Wait())
	b.restart()
	c := must[claims.Claim](t)(b.Bind(ctx, moveOwner("i1", "m1", 1)))
	if !c.Assignment.IsZero() || c.Topology != nil || c.Resources != (topology.Resources{VCPUs: 2, MemoryMB: 1024, DiskGB: 10}) {
		t.Errorf("claim %+v", c)
	}
	wantUsed(t, b, c.Resources)
}
