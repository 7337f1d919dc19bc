package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// TestTracker_ResizeKeepsTheLargerOfEachAmount: until one of a resized guest's
// two claims ends, its cells keep of pages, memory and shared vCPUs the larger,
// whichever claim that is of.
func TestTracker_ResizeKeepsTheLargerOfEachAmount(t *testing.T) {
	type cell struct {
		Shared         int
		MemoryMB, Huge int64 // MiB; pages
	}
	use := func(b *bench) []cell {
		var out []cell
		for _, u := range b.CellUsage() {
			out = append(out, cell{u.SharedVCPUs, u.MemoryMB, u.Pages[1].Used})
		}
		return out
	}
	for _, tt := range []struct {
		name                    string
		old, next               *topology.GuestTopology
		both, onlyOld, onlyNext []cell
	}{
		{"more of all", shared(huge, 1, 100), shared(huge, 2, 200), []cell{{2, 200, 100}, {}}, []cell{{1, 100, 50}, {}}, []cell{{2, 200, 100}, {}}},
		{"less of all", shared(huge, 2, 200), shared(huge, 1, 100), []cell{{2, 200, 100}, {}}, []cell{{2, 200, 100}, {}}, []cell{{1, 100, 50}, {}}},
		{"other pages", shared(huge, 1, 200), shared(0, 1, 300), []cell{{1, 300, 100}, {}}, []cell{{1, 200, 100}, {}}, []cell{{1, 300, 0}, {}}},
		{"ordinary to huge", shared(0, 1, 300), shared(huge, 1, 200), []cell{{1, 300, 100}, {}}, []cell{{1, 300, 0}, {}}, []cell{{1, 200, 100}, {}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, confirm := range []bool{false, true} {
				b := newBenchWith(t, "h", cells)
				old := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), tt.old)))
				must[claims.Claim](t)(b.Bind(ctx, old.Owner))
				next := must[claims.Claim](t)(b.Claim(ctx, request(resizeOwner("i1", "m1"), tt.next)))
				if old.Assignment.Cells[0].HostCell != 0 || next.Assignment.Cells[0].HostCell != 0 {
					t.Fatalf("placed on %+v and %+v: this test wants both on cell 0", old.Assignment, next.Assignment)
				}
				if diff := cmp.Diff(tt.both, use(b)); diff != "" {
					t.Errorf("both (-want +got):\n%s", diff)
				}
				want := tt.onlyOld
				if confirm {
					must[claims.Claim](t)(b.Exchange(ctx, refOf(next.Owner, ""), claims.KindResize))
					wantNil(t, b.Release(ctx, next.Owner))
					want = tt.onlyNext
				} else {
					wantNil(t, b.Abort(ctx, refOf(next.Owner, claims.StepClaim)))
				}
				if diff := cmp.Diff(want, use(b)); diff != "" {
					t.Errorf("confirmed %v (-want +got):\n%s", confirm, diff)
				}
			}
		})
	}
}

// TestTracker_AFoundGuestMayHaveTwoCellsOnOne: what it has there is counted
// together, in whatever order its cells stand.
func TestTracker_AFoundGuestMayHaveTwoCellsOnOne(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	f := claims.Found{Resources: topology.Resources{VCPUs: 6, MemoryMB: 600}}
	f.Assignment.Cells = []topology.AssignedCell{
		{HostCell: 1, MemoryMB: 100, Shared: 1, PageSize: topology.PageSize2M},
		{HostCell: 0, MemoryMB: 200, Shared: 2},
		{HostCell: 1, MemoryMB: 300, Shared: 3, PageSize: topology.PageSize2M},
	}
	must[claims.Claim](t)(b.Adopt(ctx, guest("one"), f))
	u := b.CellUsage()
	if u[0].SharedVCPUs != 2 || u[0].MemoryMB != 200 || u[1].SharedVCPUs != 4 || u[1].MemoryMB != 400 || u[1].Pages[1].Used != 200 {
		t.Errorf("counted %+v", u)
	}
	wantNil(t, b.Release(ctx, instanceOwner("one")))
	if a := b.Audit(); !a.Agrees() {
		t.Errorf("audit %+v", a)
	}
}

// TestTracker_RebuildSeesItsOwnAsFree: a rebuild needs no second place.
func TestTracker_RebuildSeesItsOwnAsFree(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	old := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 6, 6), pfs(2)...)))
	must[claims.Claim](t)(b.Bind(ctx, old.Owner))
	again := request(claims.Owner{Instance: "i1", Migration: "m1", Attempt: 1, Kind: claims.KindRebuild}, pinned(huge, 6, 6), pfs(2)...)
	must[claims.Claim](t)(b.Claim(ctx, again))
	wantUsed(t, b, topology.Resources{PCPUs: 12, MemoryMB: 1024})
}

// TestTracker_AGroupIsOneGuests: of an IOMMU group one guest has all that is
// given, and whoever was found with the rest is named.
func TestTracker_AGroupIsOneGuests(t *testing.T) {
	grouped := cells
	grouped.Devices = card(0x10, 0)
	grouped.Devices[1].Group = []topology.PCIAddress{grouped.Devices[2].Address}
	grouped.Devices[2].Group = []topology.PCIAddress{grouped.Devices[1].Address}
	b := newBenchWith(t, "h", grouped)
	one := func(name string, n int) error {
		_, err := b.Claim(ctx, claims.Request{Owner: instanceOwner(name), Resources: small, PCI: vfs(n)})
		return err
	}
	wantNil(t, one("i1", 1))
	if one("i2", 1) == nil {
		t.Error("two guests have functions of one group")
	}
	held := b.List()[0].Assignment.Devices[0].Address
	other := grouped.Devices[1].Address
	if other == held {
		other = grouped.Devices[2].Address
	}
	found := claims.Found{Resources: small, Assignment: topology.Assignment{Devices: []topology.AssignedDevice{{Address: other}}}}
	if c := must[claims.Claim](t)(b.Adopt(ctx, guest("i3"), found)); !c.Forced || len(b.Usage().Doubled) != 2 {
		t.Errorf("forced %v, doubled %v", c.Forced, b.Usage().Doubled)
	}
	wantNil(t, b.Abort(ctx, migration.Ref{Instance: "i1"}))
	wantNil(t, b.Release(ctx, instanceOwner("i3")))
	wantNil(t, one("i2", 2))
}

// TestTracker_ACellThatCannotBeReadTakesItsDevicesAlong: neither its CPUs nor its
// devices are given to anybody.
func TestTracker_ACellThatCannotBeReadTakesItsDevicesAlong(t *testing.T) {
	broken, one := cells, topology.CellID(1)
	broken.Unusable = []claims.Unusable{{Cell: &one, Reason: "node1/meminfo: input/output error"}}
	b := newBenchWith(t, "h", broken)
	must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 6))))
	wantKind(t, b.CheckClaim(request(instanceOwner("i2"), pinned(huge, 1))), fault.DoesNotFit)
	wantKind(t, b.CheckClaim(claims.Request{Owner: instanceOwner("i2"), Resources: small, PCI: vfs(3)}), fault.DoesNotFit)
	wantNil(t, b.CheckClaim(claims.Request{Owner: instanceOwner("i2"), Resources: small, PCI: vfs(2)}))
}

// TestTracker_OrdinaryMemoryOfACellKeepsToTheRatio: 2048 MiB of it, 1.1 times,
// are 2252 whole MiB, although the host has 409 left in both cells together.
func TestTracker_OrdinaryMemoryOfACellKeepsToTheRatio(t *testing.T) {
	dense := cells
	dense.RAMRatio = 1.1
	b := newBenchWith(t, "h", dense)
	for _, name := range []string{"i1", "i2"} {
		must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner(name), shared(0, 1, 2048))))
	}
	wantKind(t, b.CheckClaim(request(instanceOwner("i3"), shared(0, 1, 205))), fault.DoesNotFit)
	wantNil(t, b.CheckClaim(request(instanceOwner("i3"), shared(0, 1, 204))))
}

// TestTracker_AHeldClaimFollowsItsGuestAndStaysHeld: adoption looks at the guest
// while its resize waits to be confirmed.
func TestTracker_AHeldClaimFollowsItsGuestAndStaysHeld(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	must[claims.Claim](t)(b.Adopt(ctx, guest("one"), claims.Found{Resources: small}))
	must[claims.Claim](t)(b.Hold(ctx, instanceOwner("one")))
	more := small
	more.MemoryMB++
	c := must[claims.Claim](t)(b.Adopt(ctx, guest("one"), claims.Found{Resources: more}))
	if c.State != claims.Held || c.Resources != more {
		t.Errorf("%s with %s, want held with %s", c.State, c.Resources, more)
	}
}
