package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

func wordOn(o claims.Owner, at, tell string) claims.Word {
	return claims.Word{
		Instance: o.Instance, Migration: o.Migration, Attempt: o.Attempt, GuestIsAt: at, Tell: tell, Gone: []string{tell}, By: "ann", Why: "host-b burnt down",
	}
}

// gave is a source whose token has left by an attempt, and the commit.
func gave(t *testing.T, o claims.Owner) (*bench, migration.Commit) {
	t.Helper()
	a := newBench(t, "host-a")
	must[claims.Claim](t)(a.Adopt(ctx, guest(o.Instance), claims.Found{Resources: small}))
	return a, must[migration.Commit](t)(a.ReleaseOwnershipAs(ctx, refOf(o, "commit"), "host-b", "paused"))
}

func TestTracker_RetakeNeedsAnOperatorsWordAndRaisesTheEpoch(t *testing.T) {
	o := moveOwner("i1", "m1", 1)
	a, c := gave(t, o)
	if c.Power != "paused" {
		t.Errorf("the commit does not say that its user had paused the guest: %+v", c)
	}
	wantKind(t, a.Retake(ctx, refOf(o, "")), fault.Forbidden)
	wantNil(t, a.NoteWord(ctx, wordOn(o, "host-b", ""))) // of another host
	wantKind(t, a.Retake(ctx, refOf(o, "")), fault.Forbidden)
	wantNil(t, a.NoteWord(ctx, wordOn(o, "host-a", "host-b")))
	wantKind(t, a.Retake(ctx, refOf(moveOwner("i1", "m1", 2), "")), fault.Forbidden)
	for range 2 {
		wantNil(t, a.Retake(ctx, refOf(o, "")))
		a.restart()
	}
	i, _ := a.Instance("i1")
	if diff := cmp.Diff(claims.Token{Epoch: 3, State: claims.TokenHere, Holder: "host-a", Migration: "m1"}, i.Token); diff != "" {
		t.Errorf("token (-want +got):\n%s", diff)
	}
	if _, left := a.Committed("m1"); left || !a.CommitRefused("m1", 1) {
		t.Error("the attempt may still commit")
	}

	// The receiver comes back with what it had, and gives way; only to the higher epoch.
	b := newBench(t, "host-b")
	arriving(t, b, o)
	wantNil(t, b.AcceptToken(ctx, c, guest("i1")))
	for _, tt := range []struct {
		epoch  uint64
		yields bool
	}{{1, false}, {2, false}, {3, true}, {3, true}, {2, false}} {
		got, err := b.Yield(ctx, refOf(o, ""), tt.epoch, "host-a")
		wantNil(t, err)
		if got != tt.yields {
			t.Errorf("epoch %d: gives way %v, want %v", tt.epoch, got, tt.yields)
		}
		b.restart()
	}
	if i, _ := b.Instance("i1"); i.Token.State != claims.TokenSurrendered || i.Token.Holder != "host-a" || i.Token.Epoch != 3 {
		t.Errorf("token of the host that gave way: %+v", i.Token)
	}
	if err := b.AcceptToken(ctx, c, guest("i1")); err == nil {
		t.Error("the old commit gave the token back")
	}
}

func TestTracker_YieldOfASourceThatHadReclaimed(t *testing.T) {
	a := newBench(t, "host-a")
	o := moveOwner("i1", "m1", 2)
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	wantNil(t, a.RefuseCommit(ctx, refOf(o, "")))
	yields, err := a.Yield(ctx, refOf(o, ""), 2, "host-b")
	wantNil(t, err)
	c, left := a.Committed("m1")
	if !yields || !left || c.Attempt != 2 || c.To != "host-b" || a.CommitRefused("m1", 2) || !a.CommitRefused("m1", 1) {
		t.Errorf("yields %v, commit %+v, refused %v", yields, c, a.CommitRefused("m1", 2))
	}
	wantKind(t, a.RefuseCommit(ctx, refOf(o, "")), fault.Forbidden)
	if yields, err := a.Yield(ctx, refOf(moveOwner("stranger", "m1", 2), ""), 9, "host-b"); yields || err != nil {
		t.Errorf("gave what it does not have: %v, %v", yields, err)
	}
}

func TestTracker_WordIsKeptUntilTheOtherHostHasHeard(t *testing.T) {
	o := moveOwner("i1", "m1", 1)
	a, _ := gave(t, o)
	wantNil(t, a.NoteWord(ctx, wordOn(o, "host-a", "host-b")))
	wantNil(t, a.Retake(ctx, refOf(o, "")))
	a.clock.advance(3 * claims.TombstoneKeep)
	wantNil(t, a.Prune(ctx))
	a.restart()
	if w := a.Untold(); len(w) != 1 || w[0].By != "ann" || w[0].Tell != "host-b" {
		t.Errorf("to be told: %+v", w)
	}
	wantNil(t, a.WordTold(ctx, "m1"))
	a.restart()
	if w, ok := a.Word("m1"); len(a.Untold()) != 0 || !ok || w.Why == "" {
		t.Errorf("told already, yet %+v; the word itself %+v", a.Untold(), w)
	}
	a.clock.advance(3 * claims.TombstoneKeep)
	wantNil(t, a.Prune(ctx))
	if _, ok := a.Word("m1"); ok {
		t.Error("kept past its use")
	}
	wantKind(t, a.NoteWord(ctx, claims.Word{Instance: "i1", Migration: "m1", Attempt: 1, GuestIsAt: "host-a"}), fault.Invalid)
}

// The other host may come back after weeks, and find nobody who tells it that the guest,
// which has gone on meanwhile, is not its own.
func TestTracker_WordIsKeptOfAGuestThatHasGoneOn(t *testing.T) {
	o := moveOwner("i1", "m1", 1)
	a, _ := gave(t, o)
	wantNil(t, a.NoteWord(ctx, wordOn(o, "host-a", "host-b")))
	wantNil(t, a.Retake(ctx, refOf(o, "")))
	must[migration.Commit](t)(a.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m2", 1), ""), "host-c"))
	wantNil(t, a.Forget(ctx, "i1"))
	a.clock.advance(3 * claims.TombstoneKeep)
	wantNil(t, a.Prune(ctx))
	epoch, holder := a.Epoch("i1")
	if w := a.Untold(); len(w) != 1 || w[0].Tell != "host-b" || epoch != 4 || holder != "host-c" {
		t.Errorf("to be told: %+v, epoch %d at %q", w, epoch, holder)
	}
	wantNil(t, a.WordTold(ctx, "m1"))
	a.clock.advance(3 * claims.TombstoneKeep)
	wantNil(t, a.Prune(ctx))
	if epoch, _ := a.Epoch("i1"); epoch != 0 {
		t.Errorf("kept past its use: epoch %d", epoch)
	}
}

func TestTracker_CameAndPeerOutliveClaimAndContext(t *testing.T) {
	o := moveOwner("i1", "m1", 1)
	a, c := gave(t, o)
	ref := refOf(o, "record_context")
	wantNil(t, a.RecordContext(ctx, ref, claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b"}))
	wantNil(t, a.DropContext(ctx, ref))
	a.restart()
	if got, whose := a.Peer("m1"); got != "host-b" || whose != "i1" {
		t.Errorf("peer %q, of %q", got, whose)
	}
	b := newBench(t, "host-b")
	arriving(t, b, o)
	wantNil(t, b.AcceptToken(ctx, c, guest("i1")))
	must[claims.Claim](t)(b.Bind(ctx, o))
	b.restart()
	if got, ok := b.Came("m1"); !ok || got != c {
		t.Errorf("came by %+v, %v; want %+v", got, ok, c)
	}
}

func TestTracker_RememberingFindsTheVerbsOfAStep(t *testing.T) {
	b := newBench(t, "h")
	for _, ref := range []migration.Ref{
		{Migration: "m2", Instance: "i2", Attempt: 3, Step: "prepared"}, {Migration: "m1", Instance: "i1", Attempt: 1, Step: "prepared"},
		{Migration: "m1", Instance: "i1", Attempt: 1, Step: "other"},
	} {
		wantNil(t, b.Remember(ctx, ref, "x"))
	}
	b.restart()
	want := []migration.Ref{{Migration: "m1", Attempt: 1, Step: "prepared"}, {Migration: "m2", Attempt: 3, Step: "prepared"}}
	if diff := cmp.Diff(want, b.Remembering("prepared")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTracker_EpochIsTheHighestThatIsKnown(t *testing.T) {
	o := moveOwner("i1", "m1", 1)
	a, c := gave(t, o)
	check := func(b *bench, epoch uint64, holder string) {
		t.Helper()
		if e, h := b.Epoch("i1"); e != epoch || h != holder {
			t.Errorf("epoch %d at %q, want %d at %q", e, h, epoch, holder)
		}
	}
	check(a, 2, "host-b")
	wantNil(t, a.Forget(ctx, "i1"))
	a.restart()
	check(a, 2, "host-b") // by the commit that is kept
	b := newBench(t, "host-b")
	check(b, 0, "")
	arriving(t, b, o)
	wantNil(t, b.AcceptToken(ctx, c, guest("i1")))
	check(b, 2, "host-b")
	must[claims.Claim](t)(b.Bind(ctx, o))
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, refOf(moveOwner("i1", "m2", 1), ""), "host-c"))
	check(b, 3, "host-c")
}
