package claims_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store/storetest"
	"berth/topology"
)

// changing is a guest with a claim of its own and one of a change on its host.
func changing(t *testing.T, b *bench, o claims.Owner, now, next *topology.GuestTopology, devices ...topology.PCIRequest) (own, change claims.Claim) {
	t.Helper()
	r := request(instanceOwner(o.Instance), now, devices...)
	must[claims.Claim](t)(b.Claim(ctx, r))
	own = must[claims.Claim](t)(b.Bind(ctx, r.Owner))
	must[claims.Instance](t)(b.Own(ctx, guest(o.Instance)))
	r = request(o, next, devices...)
	r.Context = &claims.MigrationContext{Migration: o.Migration, Instance: o.Instance, Source: b.host, Destination: b.host, NewFlavor: topology.Flavor{Name: "larger"}}
	must[claims.Claim](t)(b.Claim(ctx, r))
	return own, must[claims.Claim](t)(b.Hold(ctx, o))
}

// halves is who holds which claim, and how.
type halves struct {
	Own, Change string // uuid of the claim
	OwnState    claims.State
	ChangeState claims.State
	Context     string // uuid of the claim that has it
}

func (b *bench) halves(o claims.Owner) halves {
	var h halves
	for _, c := range b.ByInstance(o.Instance) {
		switch c.Owner {
		case instanceOwner(o.Instance):
			h.Own, h.OwnState = c.ID, c.State
		case o:
			h.Change, h.ChangeState = c.ID, c.State
		}
		if c.Context != nil {
			h.Context += c.ID
		}
	}
	return h
}

func TestTracker_ExchangeThereAndBack(t *testing.T) {
	for _, kind := range []claims.Kind{claims.KindResize, claims.KindRebuild} {
		b := newBenchWith(t, "h", cells)
		o := claims.Owner{Instance: "i1", Migration: "m1", Attempt: 1, Kind: kind}
		old, next := changing(t, b, o, pinned(huge, 5, 5), pinned(huge, 6, 6), vfs(2)...)
		ref := refOf(o, "apply_change")
		both := b.Machine()
		want := func(when string, want halves) {
			t.Helper()
			b.restart()
			if diff := cmp.Diff(want, b.halves(o)); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", kind, when, diff)
			}
			if diff := cmp.Diff(both, b.Machine(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s %s: counted (-before +now):\n%s", kind, when, diff)
			}
			if a := b.Audit(); len(a.Differences)+len(a.Doubled) != 0 {
				t.Errorf("%s %s: audit %+v", kind, when, a)
			}
		}
		before := halves{Own: old.ID, OwnState: claims.Bound, Change: next.ID, ChangeState: claims.Held, Context: next.ID}
		after := halves{Own: next.ID, OwnState: claims.Bound, Change: old.ID, ChangeState: claims.Held, Context: old.ID}
		want("claimed", before)
		must[claims.Claim](t)(b.ExchangeBack(ctx, refOf(o, ""), kind)) // nothing was exchanged
		want("exchanged back too early", before)
		for range 2 {
			if c := must[claims.Claim](t)(b.Exchange(ctx, ref, kind)); c.ID != next.ID || c.Ticket != "" {
				t.Errorf("%s: the guest uses %s", kind, c.ID)
			}
			want("exchanged", after)
		}
		// Late verbs do nothing to what the guest uses now.
		wantKind(t, b.Abort(ctx, refOf(o, "")), fault.Forbidden)
		must[claims.Claim](t)(b.Renew(ctx, o))
		_, err := b.Hold(ctx, o)
		wantKind(t, err, fault.Forbidden)
		if c := must[claims.Claim](t)(b.Bind(ctx, o)); c.ID != next.ID {
			t.Errorf("%s: a late bind gave %s", kind, c.ID)
		}
		wantKind(t, b.DeleteInstance(ctx, "i1"), fault.Busy)
		want("after late verbs", after)
		for range 2 {
			if c := must[claims.Claim](t)(b.ExchangeBack(ctx, ref, kind)); c.ID != old.ID {
				t.Errorf("%s: the guest uses %s after the exchange back", kind, c.ID)
			}
			want("exchanged back", before)
		}
		_, err = b.Exchange(ctx, ref, kind)
		wantKind(t, err, fault.Forbidden) // late
		want("after a late exchange", before)
		wantNil(t, b.Abort(ctx, refOf(o, "")))
		if c := b.ByInstance("i1"); len(c) != 1 || c[0].ID != old.ID || c[0].BoundFrom != nil {
			t.Errorf("%s: after the abort %+v", kind, c)
		}
	}
}

func TestTracker_ExchangedAndConfirmed(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	o := resizeOwner("i1", "m1")
	_, next := changing(t, b, o, pinned(huge, 6, 6), pinned(huge, 2))
	must[claims.Claim](t)(b.Exchange(ctx, refOf(o, "apply_change"), claims.KindResize))
	wantKind(t, b.CheckClaim(request(instanceOwner("i2"), pinned(huge, 6))), fault.DoesNotFit)
	for range 2 {
		wantNil(t, b.Release(ctx, o))
		b.restart()
	}
	wantNil(t, b.CheckClaim(request(instanceOwner("i2"), pinned(huge, 6))))
	_, err := b.ExchangeBack(ctx, refOf(o, "apply_change"), claims.KindResize)
	wantKind(t, err, fault.Forbidden)
	if c := must[claims.Claim](t)(b.Exchange(ctx, refOf(o, "apply_change"), claims.KindResize)); c.ID != next.ID {
		t.Errorf("repeated after the confirmation: %s", c.ID)
	}
	// A claim of the next change is another one.
	must[claims.Claim](t)(b.Claim(ctx, request(resizeOwner("i1", "m2"), pinned(huge, 3))))
}

func TestTracker_ExchangeRefuses(t *testing.T) {
	o := resizeOwner("i1", "m1")
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, b *bench)
		want    fault.Kind
	}{
		"nothing claimed": {func(t *testing.T, b *bench) {
			must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 1))))
		}, fault.NotFound},
		"no claim of its own": {func(t *testing.T, b *bench) {
			must[claims.Claim](t)(b.Claim(ctx, request(o, pinned(huge, 1))))
		}, fault.NotFound},
		"its own is not bound": {func(t *testing.T, b *bench) {
			must[claims.Claim](t)(b.Claim(ctx, request(instanceOwner("i1"), pinned(huge, 1))))
			must[claims.Claim](t)(b.Claim(ctx, request(o, pinned(huge, 1))))
		}, fault.Forbidden},
		"undone": {func(t *testing.T, b *bench) {
			changing(t, b, o, pinned(huge, 1), pinned(huge, 2))
			wantNil(t, b.WriteTombstone(ctx, refOf(o, "apply_change")))
		}, fault.Forbidden},
		"the claim was aborted": {func(t *testing.T, b *bench) {
			changing(t, b, o, pinned(huge, 1), pinned(huge, 2))
			wantNil(t, b.Abort(ctx, refOf(o, "")))
		}, fault.Forbidden},
		"the disk fails": {func(t *testing.T, b *bench) {
			changing(t, b, o, pinned(huge, 1), pinned(huge, 2))
			b.failCommits(storetest.Fail)
		}, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBenchWith(t, "h", cells)
			tt.prepare(t, b)
			before := b.List()
			_, err := b.Exchange(ctx, refOf(o, "apply_change"), claims.KindResize)
			wantKind(t, err, tt.want)
			if diff := cmp.Diff(before, b.List(), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
	b := newBench(t, "h")
	_, err := b.Exchange(ctx, refOf(o, ""), claims.KindLiveMigration)
	wantKind(t, err, fault.Invalid)
	_, err = b.ExchangeBack(ctx, refOf(o, ""), claims.KindInstance)
	wantKind(t, err, fault.Invalid)
}

// A pinned guest on a host with no free CPU grows its memory where it is.
func TestTracker_ResizeOnAFullHost(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	full := b.Machine().Cells
	n := full[0].Dedicated.Len() / 2
	larger := func() *topology.GuestTopology {
		g := pinned(huge, n)
		g.Cells[0].MemoryMB *= 2
		return g
	}
	tiny := func() *topology.GuestTopology {
		g := pinned(topology.PagesDefault, 1)
		g.Cells[0].MemoryMB = 64
		return g
	}
	o := resizeOwner("i1", "m1")
	r := request(instanceOwner("i1"), pinned(huge, n), vfs(1)...)
	old := must[claims.Claim](t)(b.Claim(ctx, r))
	must[claims.Claim](t)(b.Bind(ctx, r.Owner))
	for i := 0; ; i++ { // until no CPU is free
		if _, err := b.Claim(ctx, request(instanceOwner(fmt.Sprint("other-", i)), tiny())); err != nil {
			wantKind(t, err, fault.DoesNotFit)
			break
		}
	}
	for i, c := range b.Machine().Cells {
		if !c.Pinned.ContainsAll(c.Dedicated) {
			t.Fatalf("cell %d has free CPUs: %s of %s", i, c.Pinned, c.Dedicated)
		}
	}
	next := must[claims.Claim](t)(b.Claim(ctx, request(o, larger(), vfs(1)...)))
	if was, is := cpusOf(old.Assignment), cpusOf(next.Assignment); !was.SameAs(is) {
		t.Errorf("CPUs %s, want those that it has: %s", is, was)
	}
	used := b.Machine()
	must[claims.Claim](t)(b.Exchange(ctx, refOf(o, ""), claims.KindResize))
	if diff := cmp.Diff(used, b.Machine(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("counted (-before +after the exchange):\n%s", diff)
	}
	if a := b.Audit(); len(a.Doubled)+len(a.Differences)+len(a.Forced) != 0 {
		t.Errorf("audit %+v", a)
	}
	// What both halves have is nobody else's while one of them stands.
	wantNil(t, b.Release(ctx, o))
	wantKind(t, b.CheckClaim(request(instanceOwner("x"), tiny())), fault.DoesNotFit)
	if got := b.Machine().Cells[0].Pinned; !got.ContainsAll(cpusOf(next.Assignment).Intersection(full[0].Dedicated)) {
		t.Errorf("cell 0 has %s pinned, the guest %s", got, cpusOf(next.Assignment))
	}
	if got := b.Machine().Pools; cmp.Diff(used.Pools, got) != "" {
		t.Errorf("devices free %+v, want %+v", got, used.Pools)
	}
}

// A guest that came by one move is changed by another: a late word of the first does
// nothing to what it came with.
func TestTracker_ALateBindLeavesWhatIsPutAside(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	came := moveOwner("i1", "m0", 1)
	must[claims.Claim](t)(b.Claim(ctx, request(came, pinned(huge, 2))))
	old := must[claims.Claim](t)(b.Bind(ctx, came))
	o := resizeOwner("i1", "m1")
	must[claims.Claim](t)(b.Claim(ctx, request(o, pinned(huge, 3))))
	next := must[claims.Claim](t)(b.Exchange(ctx, refOf(o, ""), claims.KindResize))
	_, err := b.Bind(ctx, came)
	wantKind(t, err, fault.NotFound)
	want := halves{Own: next.ID, OwnState: claims.Bound, Change: old.ID, ChangeState: claims.Held}
	if diff := cmp.Diff(want, b.halves(o)); diff != "" {
		t.Errorf("after a late bind (-want +got):\n%s", diff)
	}
	if got := b.ByMigration("m0"); len(got) != 0 {
		t.Errorf("of the move that brought it: %+v", got)
	}
	must[claims.Claim](t)(b.ExchangeBack(ctx, refOf(o, ""), claims.KindResize))
	if c := must[claims.Claim](t)(b.Bind(ctx, came)); c.ID != old.ID {
		t.Errorf("bound again %s, want %s", c.ID, old.ID)
	}
}
