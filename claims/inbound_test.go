package claims_test

import (
	"errors"
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

func TestTracker_AQueuedMoveWaitsForThoseOnTheirWay(t *testing.T) {
	b := newBench(t, "host-b")
	comes := func(instance string, kind claims.Kind, source string, most int) error {
		o := claims.Owner{Instance: instance, Migration: "m-" + instance, Attempt: 1, Kind: kind}
		mc := &claims.MigrationContext{Migration: o.Migration, Instance: instance, Source: source, Destination: "host-b", NewResources: topology.Resources{VCPUs: 1, MemoryMB: 100, DiskGB: 1}}
		_, err := b.Claim(ctx, claims.Request{Owner: o, Resources: topology.Resources{VCPUs: 1, MemoryMB: 100, DiskGB: 1}, Context: mc, MaxInbound: most})
		return err
	}
	wantNil(t, comes("live", claims.KindLiveMigration, "host-a", 2))
	must[claims.Claim](t)(b.Adopt(ctx, guest("stays"), claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 100, DiskGB: 1}}))
	wantNil(t, comes("stays", claims.KindResize, "host-b", 0)) // changes here, and is no arrival
	wantNil(t, comes("cold", claims.KindResize, "host-a", 2))
	err := comes("lost", claims.KindEvacuation, "host-a", 2)
	wantKind(t, err, fault.Busy)
	if r := fault.ReasonsOf(err); len(r) != 1 || r[0].Code != claims.ReasonInboundLimit || r[0].Want != "fewer than 2" || r[0].Have != "2" {
		t.Errorf("reasons %+v, want the limit and what is there", r)
	}
	// What is refused holds nothing, and a repetition of what was given is given again.
	if _, held := b.ByOwner(claims.Owner{Instance: "lost", Migration: "m-lost", Attempt: 1, Kind: claims.KindEvacuation}); held || b.Inbound() != 2 {
		t.Errorf("the refused guest holds a claim (%v), or %d are on their way, want 2", held, b.Inbound())
	}
	wantNil(t, comes("cold", claims.KindResize, "host-a", 2))
	wantNil(t, comes("alone", claims.KindLiveMigration, "host-a", 0))
	// One that has come makes room.
	for _, i := range []string{"live", "alone"} {
		o := claims.Owner{Instance: i, Migration: "m-" + i, Attempt: 1, Kind: claims.KindLiveMigration}
		must[claims.Claim](t)(b.Bind(ctx, o))
	}
	wantNil(t, comes("lost", claims.KindEvacuation, "host-a", 2))
}

// TestTracker_AGuestIsOnItsWayUntilItIsBound: with post-copy it runs here long before all of its
// memory is there.
func TestTracker_AGuestIsOnItsWayUntilItIsBound(t *testing.T) {
	b := newBench(t, "host-b")
	o := claims.Owner{Instance: "i1", Migration: "m1", Attempt: 1, Kind: claims.KindLiveMigration}
	mc := &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", NewResources: small}
	counts := func(when string, want int) {
		t.Helper()
		if all, a, c := b.Inbound(), b.InboundFrom("host-a"), b.InboundFrom("host-c"); all != want || a != want || c != 0 {
			t.Errorf("%s: %d on their way, %d from host-a, %d from host-c; want %d and none from host-c", when, all, a, c, want)
		}
	}
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: mc}))
	counts("claimed", 1)
	must[claims.Claim](t)(b.Arrive(ctx, o))
	counts("arriving", 1)
	wantNil(t, b.AcceptToken(ctx, migration.Commit{Instance: "i1", Migration: "m1", Attempt: 1, Epoch: 2, From: "host-a", To: "host-b", Power: "running"}, guest("i1")))
	b.restart()
	counts("accepted", 1)
	must[claims.Claim](t)(b.Bind(ctx, o))
	counts("bound", 0)
}

func TestTracker_AcceptsAGuestOfADeadHost(t *testing.T) {
	b := newBench(t, "host-b")
	o := claims.Owner{Instance: "i1", Migration: "m1", Attempt: 2, Kind: claims.KindEvacuation}
	mc := &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", Conductor: "host-c", NewResources: small}
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: mc}))
	must[claims.Claim](t)(b.Arrive(ctx, o))
	c := migration.Commit{Instance: "i1", Migration: "m1", Attempt: 2, Epoch: 7, From: "host-a", To: "host-b", Power: "running"}
	inst := guest("i1")
	inst.Images = map[string]claims.Image{"vda": {Path: "/images/a.qcow2", Format: "qcow2"}}
	for range 2 {
		wantNil(t, b.AcceptToken(ctx, c, inst))
	}
	must[claims.Claim](t)(b.Bind(ctx, o))
	b.restart()
	got, _ := b.Instance("i1")
	if got.Token.Epoch != 7 || got.Token.State != claims.TokenHere || got.Images["vda"] != inst.Images["vda"] {
		t.Errorf("instance %+v, want the token with epoch 7 and its image", got)
	}
	if b.Conductor("m1") != "host-c" {
		t.Errorf("conductor %q, want host-c: it goes on asking", b.Conductor("m1"))
	}
	// What its dead host holds in Placement is not this host's to give up.
	if e := b.Ended(); len(e) != 0 {
		t.Errorf("ended: %+v, want none", e)
	}
	wantNil(t, b.Remember(ctx, migration.Ref{Migration: "m1", Instance: "i1", Attempt: 2, Step: "s"}, 1))
	if gone, err := b.ForgetEnded(ctx); err != nil || len(gone) != 0 {
		t.Errorf("forgot %v (%v), want nothing: the guest may not be finished", gone, err)
	}
}

func TestTracker_AnEvacuationThatIsGivenUpIsCountedBack(t *testing.T) {
	b := newBench(t, "host-b")
	o := claims.Owner{Instance: "i1", Migration: "m1", Attempt: 1, Kind: claims.KindEvacuation}
	mc := &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", Conductor: "host-c", OldResources: small, NewResources: small}
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: mc}))
	must[claims.Claim](t)(b.Arrive(ctx, o))
	wantNil(t, b.Abort(ctx, refOf(o, "")))
	e := b.Ended()
	if len(e) != 1 || e[0].Conductor != "host-c" || e[0].Other != "host-a" || e[0].Old == nil || *e[0].Old != small {
		t.Errorf("ended: %+v, want what the guest held on host-a", e)
	}
	if _, err := b.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: mc}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a late claim: %v, want forbidden", err)
	}
}
