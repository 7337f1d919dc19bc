package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// arriving makes a destination's claim that waits for a token.
func arriving(t *testing.T, b *bench, o claims.Owner) {
	t.Helper()
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small}))
	must[claims.Claim](t)(b.Arrive(ctx, o))
}

func TestTracker_TokenMovesOnce(t *testing.T) {
	a, b := newBench(t, "host-a"), newBench(t, "host-b")
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	o := moveOwner("i1", "m1", 1)
	arriving(t, b, o)

	want := migration.Commit{Instance: "i1", Migration: "m1", Attempt: 1, Epoch: 2, From: "host-a", To: "host-b"}
	for range 2 {
		got := must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(o, "commit"), "host-b"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("commit (-want +got):\n%s", diff)
		}
		a.restart()
	}
	if c, ok := a.Committed("m1"); !ok || c != want {
		t.Errorf("committed: %+v, %v", c, ok)
	}
	wantKind(t, a.RefuseCommit(ctx, refOf(o, "")), fault.Forbidden)
	_, err := a.ReleaseOwnership(ctx, refOf(o, "commit"), "host-c")
	wantKind(t, err, fault.Forbidden)
	_, err = a.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m2", 1), "commit"), "host-b")
	wantKind(t, err, fault.Forbidden)
	_, err = a.Own(ctx, guest("i1"))
	wantKind(t, err, fault.Forbidden)
	wantKind(t, a.DeleteInstance(ctx, "i1"), fault.Forbidden)

	for range 2 {
		wantNil(t, b.AcceptToken(ctx, want, guest("i1")))
		b.restart()
	}
	must[claims.Claim](t)(b.Bind(ctx, o))
	wantNil(t, b.AcceptToken(ctx, want, guest("i1"))) // also after bind
	i, _ := b.Instance("i1")
	if diff := cmp.Diff(claims.Token{Epoch: 2, State: claims.TokenHere, Holder: "host-b", Migration: "m1"}, i.Token); diff != "" {
		t.Errorf("token at the receiver (-want +got):\n%s", diff)
	}
	wantKind(t, b.Forget(ctx, "i1"), fault.Forbidden)
	for range 2 {
		wantNil(t, a.Forget(ctx, "i1"))
	}
	if _, ok := a.Instance("i1"); ok || len(a.List()) > 0 {
		t.Error("the giver kept the record or the claim")
	}
	if c := must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(o, "commit"), "host-b")); c != want {
		t.Errorf("a late repetition after Forget: %+v", c)
	}
}

func TestTracker_TokenComesBackWithAHigherEpoch(t *testing.T) {
	a, b := newBench(t, "host-a"), newBench(t, "host-b")
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	there, back := moveOwner("i1", "m1", 1), moveOwner("i1", "m2", 1)
	arriving(t, b, there)
	first := must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(there, ""), "host-b"))
	wantNil(t, b.AcceptToken(ctx, first, guest("i1")))
	must[claims.Claim](t)(b.Bind(ctx, there))
	if c, gave := a.GaveAway("i1"); !gave || c != first {
		t.Errorf("gave away: %+v, %v", c, gave)
	}

	// Before the source has cleaned up the guest cannot come back.
	_, err := a.Claim(ctx, claims.Request{Owner: back, Resources: small})
	wantKind(t, err, fault.Exists)
	wantNil(t, a.Release(ctx, instanceOwner("i1")))
	arriving(t, a, back)
	second := must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(back, ""), "host-a"))
	if second.Epoch != 3 {
		t.Errorf("epoch %d, want 3", second.Epoch)
	}
	wantNil(t, a.AcceptToken(ctx, second, guest("i1")))
	must[claims.Claim](t)(a.Bind(ctx, back))
	if c, gave := a.GaveAway("i1"); gave {
		t.Errorf("given away, though it has come back: %+v", c)
	}
	if c, gave := b.GaveAway("i1"); !gave || c != second {
		t.Errorf("gave away: %+v, %v", c, gave)
	}
	wantKind(t, b.AcceptToken(ctx, first, guest("i1")), fault.Forbidden) // late
	wantKind(t, a.Forget(ctx, "i1"), fault.Forbidden)                    // late clean-up of m1
	wantKind(t, a.RefuseCommit(ctx, refOf(there, "")), fault.Forbidden)  // m1 has committed
	if len(a.List()) != 1 {
		t.Error("the late clean-up took the claim of the guest that came back")
	}
}

func TestTracker_AcceptTokenNeedsItsClaim(t *testing.T) {
	c := migration.Commit{Instance: "i1", Migration: "m1", Attempt: 2, Epoch: 2, From: "host-a", To: "host-b"}
	for name, tt := range map[string]struct {
		prepare func(b *bench)
		commit  func(*migration.Commit)
		want    fault.Kind
	}{
		"its claim":         {func(b *bench) { arriving(t, b, moveOwner("i1", "m1", 2)) }, nil, ""},
		"no claim":          {func(*bench) {}, nil, fault.Forbidden},
		"another attempt's": {func(b *bench) { arriving(t, b, moveOwner("i1", "m1", 1)) }, nil, fault.Forbidden},
		"another move's":    {func(b *bench) { arriving(t, b, moveOwner("i1", "m2", 2)) }, nil, fault.Forbidden},
		"an aborted one": {func(b *bench) {
			arriving(t, b, moveOwner("i1", "m1", 2))
			wantNil(t, b.Abort(ctx, refOf(moveOwner("i1", "m1", 2), "")))
		}, nil, fault.Forbidden},
		"to another host": {func(b *bench) { arriving(t, b, moveOwner("i1", "m1", 2)) },
			func(c *migration.Commit) { c.To = "host-c" }, fault.Forbidden},
		"of no epoch": {func(b *bench) { arriving(t, b, moveOwner("i1", "m1", 2)) },
			func(c *migration.Commit) { c.Epoch = 1 }, fault.Invalid},
	} {
		b, c := newBench(t, "host-b"), c
		tt.prepare(b)
		if tt.commit != nil {
			tt.commit(&c)
		}
		err := b.AcceptToken(ctx, c, guest("i1"))
		if got := fault.KindOf(err); got != tt.want {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if _, ok := b.Instance("i1"); ok != (tt.want == "") {
			t.Errorf("%s: record written: %v", name, ok)
		}
	}
}

func TestTracker_RefuseCommitAndSurrenderExcludeEachOther(t *testing.T) {
	b := newBench(t, "host-a")
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	for range 2 {
		wantNil(t, b.RefuseCommit(ctx, refOf(moveOwner("i1", "m1", 2), "")))
		b.restart()
	}
	for attempt, refused := range map[int]bool{1: true, 2: true} {
		_, err := b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m1", attempt), ""), "host-b")
		wantKind(t, err, fault.Forbidden)
		if b.CommitRefused("m1", attempt) != refused {
			t.Errorf("attempt %d refused: %v", attempt, !refused)
		}
	}
	if b.CommitRefused("m1", 3) {
		t.Error("a later attempt is refused")
	}
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m1", 3), ""), "host-b"))
	for _, attempt := range []int{2, 3, 4} { // nil would let the caller resume the guest
		wantKind(t, b.RefuseCommit(ctx, refOf(moveOwner("i1", "m1", attempt), "")), fault.Forbidden)
	}
	wantKind(t, b.RefuseCommit(ctx, refOf(moveOwner("i1", "m9", 1), "")), fault.Forbidden)
	wantKind(t, b.RefuseCommit(ctx, refOf(moveOwner("unknown", "m9", 1), "")), fault.NotFound)
}

func TestTracker_OwnTakesTheEpochFromMetadata(t *testing.T) {
	b := newBench(t, "h")
	i := guest("i1")
	i.Token.Epoch = 7
	got := must[claims.Instance](t)(b.Own(ctx, i))
	if got.Token != (claims.Token{Epoch: 8, State: claims.TokenHere, Holder: "h"}) || got.CreatedAt.IsZero() {
		t.Errorf("owned: %+v", got)
	}
	i.Token.Epoch = 70
	again := must[claims.Instance](t)(b.Own(ctx, i))
	if diff := cmp.Diff(got, again); diff != "" {
		t.Errorf("owned again (-first +second):\n%s", diff)
	}
}

func TestTracker_NamesAreUniqueAmongTheLiving(t *testing.T) {
	b := newBench(t, "host-a")
	one, two := guest("i1"), guest("i2")
	two.Name = one.Name
	must[claims.Instance](t)(b.Own(ctx, one))
	_, err := b.Own(ctx, two)
	wantKind(t, err, fault.Exists)
	_, err = b.Adopt(ctx, two, claims.Found{Resources: small})
	wantKind(t, err, fault.Exists)
	two.Name = "other"
	must[claims.Instance](t)(b.Own(ctx, two))
	two.Name = one.Name
	_, err = b.PutInstance(ctx, two)
	wantKind(t, err, fault.Exists)
	if i, ok := b.InstanceByName(one.Name); !ok || i.UUID != "i1" {
		t.Errorf("by name: %+v", i)
	}
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m1", 1), ""), "host-b"))
	got := must[claims.Instance](t)(b.PutInstance(ctx, two)) // the name left with its guest
	if got.Token.Epoch != 1 || got.Token.State != claims.TokenHere {
		t.Errorf("PutInstance touched the token: %+v", got.Token)
	}
	if i, ok := b.InstanceByName(one.Name); !ok || i.UUID != "i2" {
		t.Errorf("by name after the move: %+v", i)
	}
	b.restart()
	if got := b.Instances(); len(got) != 2 {
		t.Errorf("instances: %+v", got)
	}
	_, err = b.PutInstance(ctx, guest("unknown"))
	wantKind(t, err, fault.NotFound)
}

func TestTracker_DeleteInstanceTakesItsClaimWithIt(t *testing.T) {
	b := newBench(t, "h")
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	ref := refOf(moveOwner("i1", "m1", 1), "record-context")
	wantNil(t, b.RecordContext(ctx, ref, claims.MigrationContext{Migration: "m1", Instance: "i1"}))
	wantKind(t, b.DeleteInstance(ctx, "i1"), fault.Busy)
	wantNil(t, b.DropContext(ctx, ref))
	for range 2 {
		commits := b.store.Commits()
		wantNil(t, b.DeleteInstance(ctx, "i1"))
		if n := b.store.Commits() - commits; n > 1 {
			t.Errorf("%d commits, want one", n)
		}
		b.restart()
	}
	if _, ok := b.Instance("i1"); ok || len(b.List()) > 0 {
		t.Error("something is left")
	}
}

func TestTracker_ValuesAreTheCallersOwn(t *testing.T) {
	b := newBench(t, "h")
	i := guest("i1")
	owned := must[claims.Instance](t)(b.Own(ctx, i))
	i.Flavor.ExtraSpecs["a"], owned.Flavor.ExtraSpecs["a"] = "changed", "changed"
	got, _ := b.Instance("i1")
	if got.Flavor.ExtraSpecs["a"] != "b" {
		t.Error("a caller's map is the ledger's")
	}
	got.Flavor.ExtraSpecs["a"] = "changed"
	if again, _ := b.Instance("i1"); again.Flavor.ExtraSpecs["a"] != "b" {
		t.Error("a reader's map is the ledger's")
	}
}

// Requests of a finished move, held up on the way, must not make a second owner
// after the guest has gone on.
func TestTracker_LateVerbsOfAFinishedMoveAreRefused(t *testing.T) {
	a, b := newBench(t, "host-a"), newBench(t, "host-b")
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	there, back := moveOwner("i1", "m1", 1), moveOwner("i1", "m2", 1)
	arriving(t, b, there)
	first := must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(there, ""), "host-b"))
	wantNil(t, b.AcceptToken(ctx, first, guest("i1")))
	must[claims.Claim](t)(b.Bind(ctx, there))
	wantNil(t, a.Forget(ctx, "i1"))
	arriving(t, a, back)
	second := must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(back, ""), "host-a"))
	wantNil(t, a.AcceptToken(ctx, second, guest("i1")))
	must[claims.Claim](t)(a.Bind(ctx, back))
	wantNil(t, b.Forget(ctx, "i1"))
	b.restart()

	_, err := b.Claim(ctx, claims.Request{Owner: there, Resources: small})
	wantKind(t, err, fault.Forbidden)
	wantKind(t, b.AcceptToken(ctx, first, guest("i1")), fault.Forbidden)
	_, err = a.ReleaseOwnership(ctx, refOf(there, ""), "host-b")
	wantKind(t, err, fault.Forbidden)
}

func TestTracker_AcceptTokenRefusesAnOlderEpoch(t *testing.T) {
	b := newBench(t, "host-b")
	i := guest("i1")
	i.Token.Epoch = 3
	must[claims.Instance](t)(b.Own(ctx, i))
	left := must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m1", 1), ""), "host-a")) // epoch 5
	o := moveOwner("i1", "m2", 1)
	arriving(t, b, o)
	for epoch, want := range map[uint64]fault.Kind{left.Epoch - 1: fault.Forbidden, left.Epoch: fault.Forbidden} {
		err := b.AcceptToken(ctx, migration.Commit{Instance: "i1", Migration: "m2", Attempt: 1, Epoch: epoch, To: "host-b"}, i)
		wantKind(t, err, want)
	}
	wantNil(t, b.AcceptToken(ctx, migration.Commit{Instance: "i1", Migration: "m2", Attempt: 1, Epoch: left.Epoch + 1, To: "host-b"}, i))
}

// The same where the guest went on before its claim was bound.
func TestTracker_ATokenIsAcceptedOnceByAMigration(t *testing.T) {
	b := newBench(t, "host-b")
	o := moveOwner("i1", "m1", 1)
	arriving(t, b, o)
	c := migration.Commit{Instance: "i1", Migration: "m1", Attempt: 1, Epoch: 2, From: "host-a", To: "host-b"}
	wantNil(t, b.AcceptToken(ctx, c, guest("i1")))
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m2", 1), ""), "host-a"))
	wantNil(t, b.Forget(ctx, "i1"))
	wantKind(t, b.AcceptToken(ctx, c, guest("i1")), fault.Forbidden)
}
