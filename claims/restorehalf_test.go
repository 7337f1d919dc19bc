package claims_test

import (
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// What the two hosts of a guest that waits to be confirmed had, put back by the word of
// the other: it can be confirmed, and taken back.
func TestTracker_RestoresTheHalvesOfAResize(t *testing.T) {
	whole, other, left := resized(t)
	source, destination := whole.side(), other.side()
	x, _ := whole.Context("m1")
	a, b := newBench(t, "host-a"), newBench(t, "host-b")
	from, to := guest("i1"), guest("i1")
	from.Token, to.Token = source.Token, destination.Token
	kept := claims.Restored{Instance: from, Found: claims.Found{Resources: small}, Move: attempt(1), Context: &x, Left: &left}
	lives := claims.Restored{Instance: to, Found: claims.Found{Resources: larger}, Move: attempt(1), Context: &x, Accepted: true, Finished: true}
	for range 2 {
		wantNil(t, a.Restore(ctx, kept))
		wantNil(t, b.Restore(ctx, lives))
		wantSide(t, "restored", a, source)
		wantSide(t, "restored", b, destination)
	}
	if c, _ := a.Committed("m1"); c != left {
		t.Errorf("left by %+v, want %+v", c, left)
	}
	wantUsed(t, a, small)
	wantUsed(t, b, larger)
	must[claims.Claim](t)(b.Bind(ctx, attempt(1))) // as asked again

	must[claims.Claim](t)(a.AwaitReturn(ctx, refOf(attempt(2), ""), claims.KindResize))
	back := must[migration.Commit](t)(b.ReleaseHeldOwnership(ctx, refOf(attempt(2), ""), claims.KindResize, "host-a", ""))
	wantNil(t, a.AcceptToken(ctx, back, guest("i1")))
	must[claims.Claim](t)(a.Bind(ctx, attempt(2)))
	wantSide(t, "back", a, side{has(3, "host-a"), only(instanceOwner("i1"), claims.Bound), "host-b"})

	kept.Context = nil
	wantKind(t, newBench(t, "host-a").Restore(ctx, kept), fault.Invalid)
}

// Of a guest that was changed where it is, the record of what it uses is lost and that of
// what it had before is not.
func TestTracker_RestoresWhatAChangedGuestUses(t *testing.T) {
	b := newBench(t, "h")
	o := resizeOwner("i1", "m1")
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small}))
	must[claims.Claim](t)(b.Hold(ctx, o))
	i := guest("i1")
	i.Token = claims.Token{Epoch: 1, State: claims.TokenHere, Holder: "h"}
	for range 2 {
		wantNil(t, b.Restore(ctx, claims.Restored{Instance: i, Found: claims.Found{Resources: larger}}))
		b.restart()
	}
	if got := b.ByInstance("i1"); len(got) != 2 {
		t.Errorf("claims %+v", got)
	}
	wantUsed(t, b, larger)
}
