package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// resized is a guest that has moved from a to b and waits there to be confirmed.
func resized(t *testing.T) (a, b *bench, left migration.Commit) {
	t.Helper()
	a, b = newBench(t, "host-a"), newBench(t, "host-b")
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	o := resizeOwner("i1", "m1")
	x := claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", OldResources: small}
	wantNil(t, a.RecordContext(ctx, refOf(o, "record_context"), x))
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: larger, Context: &x}))
	must[claims.Claim](t)(b.Arrive(ctx, o))
	left = must[migration.Commit](t)(a.ReleaseHeldOwnership(ctx, refOf(o, "hand_over"), claims.KindResize, "host-b", "running"))
	wantNil(t, b.AcceptToken(ctx, left, guest("i1")))
	must[claims.Claim](t)(b.Bind(ctx, o))
	return a, b, left
}

var larger = topology.Resources{VCPUs: 2, MemoryMB: 2048, DiskGB: 10}

// side is what one host has of the guest i1 and the move m1.
type side struct {
	Token   claims.Token
	Claims  map[claims.Owner]claims.State
	Context string // the other host of it
}

func (b *bench) side() side {
	s := side{Claims: map[claims.Owner]claims.State{}}
	if i, ok := b.Instance("i1"); ok {
		s.Token = i.Token
	}
	for _, c := range b.ByInstance("i1") {
		s.Claims[c.Owner] = c.State
	}
	if x, ok := b.Context("m1"); ok {
		if s.Context = x.Destination; s.Context == b.host {
			s.Context = x.Source
		}
	}
	return s
}

func wantSide(t *testing.T, when string, b *bench, want side) {
	t.Helper()
	b.restart()
	if diff := cmp.Diff(want, b.side()); diff != "" {
		t.Errorf("%s, %s (-want +got):\n%s", when, b.host, diff)
	}
}

func attempt(n int) claims.Owner {
	o := resizeOwner("i1", "m1")
	o.Attempt = n
	return o
}

func given(epoch uint64, to string) claims.Token {
	return claims.Token{Epoch: epoch, State: claims.TokenSurrendered, Holder: to, Migration: "m1"}
}

func has(epoch uint64, host string) claims.Token {
	return claims.Token{Epoch: epoch, State: claims.TokenHere, Holder: host, Migration: "m1"}
}

func only(o claims.Owner, s claims.State) map[claims.Owner]claims.State {
	return map[claims.Owner]claims.State{o: s}
}

func TestTracker_ResizedGuestWaitsToBeConfirmed(t *testing.T) {
	a, b, left := resized(t)
	source := side{given(2, "host-b"), only(attempt(1), claims.Held), "host-b"}
	destination := side{has(2, "host-b"), only(instanceOwner("i1"), claims.Bound), "host-a"}
	wantSide(t, "finished", a, source)
	wantSide(t, "finished", b, destination)
	ofA, whose := a.Peer("m1")
	if ofB, too := b.Peer("m1"); ofA != "host-b" || ofB != "host-a" || whose != "i1" || too != "i1" {
		t.Errorf("peers %s and %s, of %s and %s", ofA, ofB, whose, too)
	}

	// Repeated and late verbs leave it so.
	if c := must[migration.Commit](t)(a.ReleaseHeldOwnership(ctx, refOf(attempt(1), "hand_over"), claims.KindResize, "host-b", "paused")); c != left {
		t.Errorf("repeated: %+v, want %+v", c, left)
	}
	_, err := a.Bind(ctx, attempt(1))
	wantKind(t, err, fault.Forbidden)
	wantKind(t, a.Abort(ctx, refOf(attempt(1), "")), fault.Forbidden)
	wantKind(t, a.Forget(ctx, "i1"), fault.Busy)
	_, err = a.Claim(ctx, claims.Request{Owner: attempt(1), Resources: small})
	wantKind(t, err, fault.Forbidden)
	_, err = a.Claim(ctx, claims.Request{Owner: moveOwner("i1", "m2", 1), Resources: small})
	wantKind(t, err, fault.Busy)
	must[claims.Claim](t)(b.Bind(ctx, attempt(1)))
	wantKind(t, b.DeleteInstance(ctx, "i1"), fault.Busy)
	_, err = b.Claim(ctx, claims.Request{Owner: resizeOwner("i1", "m2"), Resources: larger})
	wantKind(t, err, fault.Busy)
	_, _, err = b.Follow(ctx, "i1", claims.Seen{Resources: larger}, claims.Found{Resources: larger})
	wantKind(t, err, fault.Busy)
	wantSide(t, "after late verbs", a, source)
	wantSide(t, "after late verbs", b, destination)

	// Confirmed.
	for range 2 {
		wantNil(t, a.Release(ctx, attempt(1)))
		wantNil(t, a.Forget(ctx, "i1"))
		wantNil(t, b.DropContext(ctx, refOf(attempt(1), "confirm_destination")))
	}
	must[claims.Claim](t)(b.Bind(ctx, attempt(1)))
	wantSide(t, "confirmed", a, side{Claims: map[claims.Owner]claims.State{}})
	destination.Context = ""
	wantSide(t, "confirmed", b, destination)
	wantUsed(t, a, topology.Resources{})
	wantUsed(t, b, larger)
}

func TestTracker_ResizedGuestComesBack(t *testing.T) {
	a, b, left := resized(t)
	_, err := a.AwaitReturn(ctx, refOf(attempt(1), "await_return"), claims.KindResize)
	wantKind(t, err, fault.Forbidden) // it left by that one

	// A return that is given up, then one that is not.
	must[claims.Claim](t)(a.AwaitReturn(ctx, refOf(attempt(2), "await_return"), claims.KindResize))
	_, err = a.AwaitReturn(ctx, refOf(attempt(3), "await_return"), claims.KindResize)
	wantKind(t, err, fault.Busy)
	wantKind(t, a.Release(ctx, attempt(2)), fault.Forbidden)
	wantKind(t, a.Abort(ctx, refOf(attempt(2), "")), fault.Forbidden)
	for range 2 {
		wantNil(t, a.CancelReturn(ctx, refOf(attempt(2), "await_return"), claims.KindResize))
		wantSide(t, "cancelled", a, side{given(2, "host-b"), only(attempt(1), claims.Held), "host-b"})
	}
	_, err = a.AwaitReturn(ctx, refOf(attempt(2), "await_return"), claims.KindResize)
	wantKind(t, err, fault.Forbidden) // late
	for range 2 {
		must[claims.Claim](t)(a.AwaitReturn(ctx, refOf(attempt(3), "await_return"), claims.KindResize))
		wantSide(t, "awaited", a, side{given(2, "host-b"), only(attempt(3), claims.Arriving), "host-b"})
	}
	wantNil(t, a.CancelReturn(ctx, refOf(attempt(2), "await_return"), claims.KindResize)) // late: not the third's

	back := must[migration.Commit](t)(b.ReleaseHeldOwnership(ctx, refOf(attempt(3), "hand_back"), claims.KindResize, "host-a", ""))
	if back.Epoch != 3 {
		t.Errorf("epoch %d, want 3", back.Epoch)
	}
	wantSide(t, "handed back", b, side{given(3, "host-a"), only(attempt(3), claims.Held), "host-a"})
	if half, ok := b.ByOwner(attempt(3)); !ok || half.BoundFrom != nil {
		t.Errorf("what is held after the guest has gone back: %v %+v, want nothing of the move that brought it", ok, half)
	}
	for range 2 {
		wantNil(t, a.AcceptToken(ctx, back, guest("i1")))
		wantSide(t, "accepted", a, side{has(3, "host-a"), only(attempt(3), claims.Arriving), "host-b"})
	}
	wantKind(t, a.CancelReturn(ctx, refOf(attempt(3), "await_return"), claims.KindResize), fault.Forbidden)
	for range 2 {
		if c := must[claims.Claim](t)(a.Bind(ctx, attempt(3))); c.Resources != small || *c.BoundFrom != attempt(3) {
			t.Errorf("bound %+v", c)
		}
		wantSide(t, "bound", a, side{has(3, "host-a"), only(instanceOwner("i1"), claims.Bound), "host-b"})
	}
	must[claims.Claim](t)(a.AwaitReturn(ctx, refOf(attempt(3), "await_return"), claims.KindResize)) // repeated

	// What was said of the way there is past.
	_, err = a.ReleaseHeldOwnership(ctx, refOf(attempt(1), "hand_over"), claims.KindResize, "host-b", "")
	wantKind(t, err, fault.Forbidden)
	wantKind(t, a.RefuseCommit(ctx, refOf(attempt(1), "")), fault.Forbidden)
	wantKind(t, b.AcceptToken(ctx, left, guest("i1")), fault.Forbidden)
	if c, ok := a.Committed("m1"); ok || !a.CommitRefused("m1", 1) {
		t.Errorf("committed: %+v", c)
	}
	if c, ok := a.Left("m1"); !ok || c != left {
		t.Errorf("left by %+v", c)
	}
	if c, _ := a.Came("m1"); c != back {
		t.Errorf("came by %+v", c)
	}

	for range 2 {
		wantNil(t, b.Release(ctx, attempt(3)))
		wantNil(t, b.Forget(ctx, "i1"))
		wantNil(t, a.DropContext(ctx, refOf(attempt(3), "finish_revert")))
	}
	wantSide(t, "reverted", b, side{Claims: map[claims.Owner]claims.State{}})
	wantSide(t, "reverted", a, side{has(3, "host-a"), only(instanceOwner("i1"), claims.Bound), ""})
	wantUsed(t, a, small)
	wantUsed(t, b, topology.Resources{})
	// It is free to move again.
	must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m2", 1), ""), "host-b"))
}

func TestTracker_KeptGuestIsNotHandedBack(t *testing.T) {
	_, b, _ := resized(t)
	wantNil(t, b.RefuseCommit(ctx, refOf(attempt(2), "")))
	_, err := b.ReleaseHeldOwnership(ctx, refOf(attempt(2), "hand_back"), claims.KindResize, "host-a", "")
	wantKind(t, err, fault.Forbidden)
	must[migration.Commit](t)(b.ReleaseHeldOwnership(ctx, refOf(attempt(3), "hand_back"), claims.KindResize, "host-a", ""))
}

func TestTracker_SurrenderHeldNeedsOneBoundClaim(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, b *bench)
		want    fault.Kind
	}{
		"no claim": {func(t *testing.T, b *bench) { wantNil(t, b.Release(ctx, instanceOwner("i1"))) }, fault.NotFound},
		"held":     {func(t *testing.T, b *bench) { must[claims.Claim](t)(b.Hold(ctx, instanceOwner("i1"))) }, fault.Forbidden},
		"changed on its host": {func(t *testing.T, b *bench) {
			must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: resizeOwner("i1", "m2"), Resources: small}))
		}, fault.Busy},
		"undone": {func(t *testing.T, b *bench) { wantNil(t, b.WriteTombstone(ctx, refOf(attempt(1), "hand_over"))) }, fault.Forbidden},
	} {
		b := newBench(t, "host-a")
		must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
		tt.prepare(t, b)
		_, err := b.ReleaseHeldOwnership(ctx, refOf(attempt(1), "hand_over"), claims.KindResize, "host-b", "")
		if got := fault.KindOf(err); got != tt.want {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if k := b.side().Token; k.State != claims.TokenHere {
			t.Errorf("%s: the token left: %+v", name, k)
		}
	}
}

// The destination is no more, and an operator says so: the guest is whole at its source.
func TestTracker_RetakenGuestHasItsClaimBack(t *testing.T) {
	a, _, _ := resized(t)
	wantNil(t, a.NoteWord(ctx, claims.Word{Instance: "i1", Migration: "m1", Attempt: 1, GuestIsAt: "host-a", Gone: []string{"host-b"}, Why: "it burned"}))
	for range 2 {
		wantNil(t, a.Retake(ctx, refOf(attempt(1), "")))
		wantSide(t, "retaken", a, side{has(3, "host-a"), only(instanceOwner("i1"), claims.Bound), "host-b"})
	}
}

// A cold arrival is refused where something of the guest stands, whatever its kind.
func TestTracker_ResizeFromElsewhereNeedsAFreshHost(t *testing.T) {
	from := func(source string) *claims.MigrationContext {
		return &claims.MigrationContext{Migration: "m1", Instance: "i1", Source: source, Destination: "host-b"}
	}
	b := newBench(t, "host-b")
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	wantKind(t, b.CheckClaim(claims.Request{Owner: attempt(1), Resources: small, Context: from("host-a")}), fault.Exists)
	wantNil(t, b.CheckClaim(claims.Request{Owner: attempt(1), Resources: small, Context: from("host-b")}))
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m0", 1), ""), "host-a"))
	wantKind(t, b.CheckClaim(claims.Request{Owner: attempt(1), Resources: small, Context: from("host-a")}), fault.Exists)
	wantKind(t, b.CheckClaim(claims.Request{Owner: attempt(1), Resources: small}), fault.Exists)
	wantNil(t, b.Forget(ctx, "i1"))
	wantNil(t, b.CheckClaim(claims.Request{Owner: attempt(1), Resources: small, Context: from("host-a")}))
}
