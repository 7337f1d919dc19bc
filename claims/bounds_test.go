package claims_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

// beyond are requests that no instance can make, by the code that refuses each and
// a word that names what is wrong.
var beyond = map[string]struct {
	spoil func(r *claims.Request)
	code  string
	names string
}{
	"two PCI requests past int64": {func(r *claims.Request) {
		r.PCI = append(ask("8086", "1565", topology.PCITypeVF, math.MaxInt), ask("8086", "1565", topology.PCITypeVF, math.MaxInt)...)
		r.PCI[0].ID, r.PCI[1].ID = "first", "second"
	}, claims.PCIOutOfRange, `"second"`},
	"PCI requests of too many together": {func(r *claims.Request) {
		r.PCI = append(vfs(topology.MaxPCIFunctions), vfs(1)...)
		r.PCI[1].ID = "second"
	}, claims.PCIOutOfRange, "65537"},
	"too many PCI requests": {func(r *claims.Request) {
		for i := range topology.MaxPCIRequests + 1 {
			r.PCI = append(r.PCI, vfs(1)...)
			r.PCI[i].ID = fmt.Sprint(i)
		}
	}, claims.PCIOutOfRange, "257 PCI requests"},
	"a PCI request twice": {func(r *claims.Request) { r.PCI = append(vfs(1), vfs(1)...) }, claims.PCIOutOfRange, "once"},
	"cell memory past int64": {func(r *claims.Request) {
		r.Topology = pinned(0, 1, 1)
		r.Resources = topology.Resources{PCPUs: 2, MemoryMB: math.MinInt64 + 1 + 1<<20}
		r.Topology.Cells[0].MemoryMB, r.Topology.Cells[1].MemoryMB = math.MaxInt64, 1+1<<20
	}, claims.CellMemoryOutOfRange, "guest cell 0"},
	"cells that wrap round to the amount": {func(r *claims.Request) {
		r.Topology = pinned(0, 1, 1, 1)
		r.Resources = topology.Resources{PCPUs: 3, MemoryMB: 1024}
		for i, mb := range []int64{math.MaxInt64, math.MaxInt64, 1026} {
			r.Topology.Cells[i].MemoryMB = mb
		}
	}, claims.CellMemoryOutOfRange, "guest cell 1"},
	"130,000 guest cells": {func(r *claims.Request) {
		r.Topology = &topology.GuestTopology{Cells: make([]topology.GuestCell, 130000)}
	}, claims.CellsOutOfRange, "130000 guest cells"},
	"vcpus past the end":      {func(r *claims.Request) { r.Resources.VCPUs, r.Resources.PCPUs = math.MaxInt, math.MaxInt }, claims.ResourcesOutOfRange, "vcpus"},
	"memory past the end":     {func(r *claims.Request) { r.Resources.MemoryMB = topology.MaxMemoryMB + 1 }, claims.ResourcesOutOfRange, "MiB"},
	"disk past the end":       {func(r *claims.Request) { r.Resources.DiskGB = math.MaxInt64 }, claims.ResourcesOutOfRange, "GiB"},
	"a lease that never ends": {func(r *claims.Request) { r.Lease = math.MaxInt64 }, claims.LeaseOutOfRange, "lease"},
}

func TestClaim_AmountsNoInstanceCanHave_AreRefusedByName(t *testing.T) {
	for name, tt := range beyond {
		t.Run(name, func(t *testing.T) {
			b := newBenchWith(t, "h", cells)
			r := claims.Request{Owner: moveOwner("i1", "m1", 1), Resources: small}
			tt.spoil(&r)
			_, err := b.Claim(ctx, r)
			wantRefused(t, "claim", err, tt.code, tt.names)
			if tt.code != claims.LeaseOutOfRange {
				_, err = b.Room(r.Resources, r.Topology, r.PCI)
				wantRefused(t, "room", err, tt.code, tt.names)
				_, err = b.RoomBeside("i1", r.Resources, r.Topology, r.PCI)
				wantRefused(t, "room beside", err, tt.code, tt.names)
			}
			r = claims.Request{Owner: instanceOwner("i2"), Resources: small}
			must[claims.Claim](t)(b.Claim(ctx, r))
			wantAudit(t, b)
		})
	}
}

func wantRefused(t *testing.T, what string, err error, code, names string) {
	t.Helper()
	wantKind(t, err, fault.Invalid)
	for _, r := range fault.ReasonsOf(err) {
		if r.Code == code && strings.Contains(err.Error(), names) && r.Change != "" {
			return
		}
	}
	t.Errorf("%s: %v (%v), want %s with %q and a remedy", what, err, fault.ReasonsOf(err), code, names)
}

func wantAudit(t *testing.T, b *bench) {
	t.Helper()
	if a := b.Audit(); len(a.Differences) > 0 {
		t.Errorf("audit: %q", a.Differences)
	}
}

func TestFound_PlacesNoInstanceCanHave_AreRefused(t *testing.T) {
	for name, a := range map[string]topology.Assignment{
		"a CPU past the end":   {Cells: []topology.AssignedCell{{MemoryMB: 1, Pins: []topology.Pin{{CPU: math.MaxInt}}}}},
		"a CPU below 0":        {Cells: []topology.AssignedCell{{MemoryMB: 1, Pins: []topology.Pin{{CPU: math.MinInt}}}}},
		"memory past the end":  {Cells: []topology.AssignedCell{{MemoryMB: math.MaxInt64}}},
		"memory below 0":       {Cells: []topology.AssignedCell{{MemoryMB: -1}}},
		"pages of no size":     {Cells: []topology.AssignedCell{{MemoryMB: 1, PageSize: -4096}}},
		"too many cells":       {Cells: make([]topology.AssignedCell, topology.MaxCells+1)},
		"an emulator's CPU":    {Cells: []topology.AssignedCell{{MemoryMB: 1, Emulator: topology.CPUSet{topology.MaxCPU + 1}}}},
		"too many shared CPUs": {Cells: []topology.AssignedCell{{MemoryMB: 1, Shared: math.MaxInt}}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBenchWith(t, "h", cells)
			f := claims.Found{Resources: small, Assignment: a}
			wantRefused(t, "check", b.CheckFound("i1", f), claims.AssignmentOutOfRange, "")
			_, err := b.Adopt(ctx, guest("i1"), f)
			wantRefused(t, "adopt", err, claims.AssignmentOutOfRange, "")
			for _, absent := range []bool{false, true} {
				wantRefused(t, "restore", b.Restore(ctx, claims.Restored{Instance: guest("i1"), Found: f, Absent: absent}), claims.AssignmentOutOfRange, "")
			}
			_, err = b.Claim(ctx, claims.Request{Owner: instanceOwner("i1"), Resources: small, Found: &a})
			wantRefused(t, "claim", err, claims.AssignmentOutOfRange, "")
			wantAudit(t, b)
		})
	}
}

// panicky is a store that panics when it is told to: what a plan has counted by
// then must not stay.
type panicky struct {
	claims.Store
	due bool
}

func (s *panicky) Enqueue(m ...store.Mutation) *store.Pending {
	if s.due {
		s.due = false
		panic("injected")
	}
	return s.Store.Enqueue(m...)
}

func TestTracker_PanicUnderTheLock_IsOneInternalErrorAndChangesNothing(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	s := &panicky{Store: b.store}
	tracker, err := claims.Open(ctx, claims.Options{Store: s, Runtime: b.clock, Host: b.host, Capacity: b.capacity, Random: seeded{b.ids}})
	wantNil(t, err)
	b.Tracker = tracker
	one := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 2), vfs(1)...)))
	before := b.Machine()
	r := request(moveOwner("i2", "m2", 1), pinned(huge, 2, 2), vfs(1)...)
	s.due = true
	_, err = b.Claim(ctx, r)
	wantKind(t, err, fault.Internal)
	s.due = true
	_, err = b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}) // it follows: old and new are counted together
	wantKind(t, err, fault.Internal)
	done := make(chan struct{})
	go func() {
		defer close(done)
		wantAudit(t, b)
		if got := b.List(); len(got) != 1 || got[0].ID != one.ID {
			t.Errorf("claims %+v, want the first alone", got)
		}
		if diff := cmp.Diff(before, b.Machine(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("machine (-before +after):\n%s", diff)
		}
		must[claims.Claim](t)(b.Claim(ctx, r))
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the claim lock is still held")
	}
}

// Questions work on a copy: beside claims that come and go they neither change
// what is counted nor, under the race detector, touch it.
func TestRoom_BesideClaims_WorksOnACopy(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	var work sync.WaitGroup
	work.Go(func() {
		for range 100 {
			c := must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 2), vfs(1)...)))
			wantNil(t, b.Abort(ctx, migration.Ref{Instance: c.Owner.Instance}))
		}
	})
	work.Go(func() {
		for range 200 {
			r := request(instanceOwner("i2"), pinned(huge, 1, 1), vfs(2)...)
			must[topology.Assignment](t)(b.Room(r.Resources, r.Topology, r.PCI))
			must[topology.Assignment](t)(b.RoomBeside("i1", r.Resources, r.Topology, r.PCI))
			wantNil(t, b.CheckFound("i3", claims.Found{Resources: small}))
		}
	})
	work.Wait()
	wantAudit(t, b)
}
