package claims_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
)

// copied is a host at which a claim and a hidden copy wait for i1 by migration m1.
func copied(t *testing.T) (*bench, claims.Owner, claims.Instance) {
	t.Helper()
	b, o := newBench(t, "host-b"), resizeOwner("i1", "m1")
	x := claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", Conductor: "host-c"}
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: o, Resources: small, Context: &x}))
	i := guest("i1")
	i.ProjectID, i.UserID, i.Autostart = "project", "user", true
	i.Token = claims.Token{Epoch: 1, State: claims.TokenSurrendered, Holder: "host-a", Migration: "m1"}
	for range 2 {
		wantNil(t, b.PutCopy(ctx, refOf(o, "copy"), i))
		b.restart()
	}
	return b, o, i
}

func copyIs(t *testing.T, when string, b *bench, want bool) {
	t.Helper()
	b.restart()
	if _, got := b.CopyOf("i1"); got != want {
		t.Errorf("%s: copy here is %v, want %v", when, got, want)
	}
}

func TestCopy_IsNoGuestOfThisHost(t *testing.T) {
	b, o, i := copied(t)
	if c, ok := b.CopyOf("i1"); !ok || c.Migration != "m1" || c.Attempt != 1 || !c.Instance.Hidden || c.Instance.Autostart != i.Autostart {
		t.Errorf("copy %+v, %v", c, ok)
	}
	if got, known := b.Instance("i1"); known {
		t.Errorf("the ledger knows it as an instance: %+v", got)
	}
	if _, known := b.InstanceByName(i.Name); known || len(b.Instances()) != 0 {
		t.Error("it is among the instances")
	}
	if epoch, holder := b.Epoch("i1"); epoch != 0 {
		t.Errorf("the ledger says that it knows epoch %d of %s", epoch, holder)
	}
	_, err := b.ReleaseOwnership(ctx, refOf(o, ""), "host-c")
	wantKind(t, err, fault.NotFound)
	wantKind(t, b.DeleteInstance(ctx, "i1"), fault.Busy)
	wantNil(t, b.Forget(ctx, "i1"))
	copyIs(t, "after verbs about instances", b, true)

	other := guest("i2")
	other.Name = i.Name
	_, err = b.Own(ctx, other)
	wantKind(t, err, fault.Exists) // its name is its own already
	wantNil(t, b.RemoveCopy(ctx, refOf(o, "copy")))
	must[claims.Instance](t)(b.Own(ctx, other))
}

func TestCopy_BecomesTheInstanceHiddenUntilShown(t *testing.T) {
	b, o, i := copied(t)
	must[claims.Claim](t)(b.Arrive(ctx, o))
	commit := migration.Commit{Instance: "i1", Migration: "m1", Attempt: 1, Epoch: 2, From: "host-a", To: "host-b"}
	bare := guest("i1")
	bare.Name = bare.UUID // as of a preparation that was lost
	for range 2 {
		wantNil(t, b.AcceptToken(ctx, commit, bare))
		copyIs(t, "accepted", b, false)
	}
	got, _ := b.Instance("i1")
	want := i
	want.Token, want.Hidden, want.CreatedAt = has(2, "host-b"), true, got.CreatedAt
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if got := b.HiddenInstances(); len(got) != 1 {
		t.Errorf("hidden: %+v", got)
	}
	if c := b.Conductor("m1"); c != "host-c" {
		t.Errorf("conductor %q", c)
	}
	wantKind(t, b.RemoveCopy(ctx, refOf(o, "copy")), fault.Forbidden)
	wantNil(t, b.PutCopy(ctx, refOf(o, "copy"), i)) // a late one
	for range 2 {
		wantNil(t, b.SetHidden(ctx, "i1", "m1", false))
		b.restart()
	}
	if got, _ := b.Instance("i1"); got.Hidden || len(b.HiddenInstances()) != 0 {
		t.Error("it is hidden still")
	}
	wantKind(t, b.SetHidden(ctx, "i1", "m1", true), fault.Forbidden)
}

func TestCopy_EndsWithWhatItWasMadeFor(t *testing.T) {
	for name, end := range map[string]func(*bench, claims.Owner) error{
		"its undo":        func(b *bench, o claims.Owner) error { return b.RemoveCopy(ctx, refOf(o, "copy")) },
		"its claim":       func(b *bench, o claims.Owner) error { return b.Abort(ctx, refOf(o, "")) },
		"its migration":   func(b *bench, _ claims.Owner) error { return b.ForgetMigration(ctx, "m1") },
		"the guest lives": func(b *bench, _ claims.Owner) error { _, err := b.Own(ctx, guest("i1")); return err },
		"its lease": func(b *bench, _ claims.Owner) error {
			b.clock.advance(time.Hour)
			_, err := b.Expire(ctx)
			return err
		},
	} {
		b, o, _ := copied(t)
		wantNil(t, end(b, o))
		copyIs(t, name, b, false)
	}
}

func TestCopy_NeedsItsClaimAndComesNotLate(t *testing.T) {
	b, o, i := copied(t)
	later := refOf(o, "copy")
	later.Attempt = 2
	wantKind(t, b.PutCopy(ctx, later, i), fault.Forbidden) // that attempt has no claim here
	wantNil(t, b.RemoveCopy(ctx, refOf(o, "copy")))
	b.restart()
	wantKind(t, b.PutCopy(ctx, refOf(o, "copy"), i), fault.Forbidden)

	c := newBench(t, "host-c")
	wantNil(t, c.RemoveCopy(ctx, refOf(o, "copy"))) // what never came
	must[claims.Claim](t)(c.Claim(ctx, claims.Request{Owner: o, Resources: small}))
	wantKind(t, c.PutCopy(ctx, refOf(o, "copy"), i), fault.Forbidden)

	lives := newBench(t, "host-d")
	must[claims.Claim](t)(lives.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	wantKind(t, lives.PutCopy(ctx, refOf(o, "copy"), i), fault.Exists)
	named := newBench(t, "host-e")
	other := guest("i2")
	other.Name = i.Name
	must[claims.Claim](t)(named.Adopt(ctx, other, claims.Found{Resources: small}))
	must[claims.Claim](t)(named.Claim(ctx, claims.Request{Owner: o, Resources: small}))
	wantKind(t, named.PutCopy(ctx, refOf(o, "copy"), i), fault.Exists)
}

// A ledger that was put together again may have a copy without its claim.
func TestCopy_SweptWhereNothingWaitsForIt(t *testing.T) {
	b, o, _ := copied(t)
	if gone := must[[]claims.Copy](t)(b.SweepCopies(ctx)); len(gone) != 0 {
		t.Fatalf("swept one that its claim waits for: %+v", gone)
	}
	claim, _ := b.ByOwner(o)
	wantNil(t, b.store.Enqueue(store.Delete("claims", claim.ID)).Wait())
	b.restart()
	if d := b.Audit().Differences; len(d) != 1 || !strings.Contains(d[0], "copy of instance i1") {
		t.Errorf("differences %q, want the copy named", d)
	}
	b.failCommits(storetest.Fail)
	if _, err := b.SweepCopies(ctx); err == nil {
		t.Error("a commit that failed is no error")
	}
	b.healCommits()
	if gone := must[[]claims.Copy](t)(b.SweepCopies(ctx)); len(gone) != 1 {
		t.Errorf("swept %+v, want the one", gone)
	}
	copyIs(t, "swept", b, false)
	if d := b.Audit().Differences; len(d) != 0 {
		t.Errorf("differences %q when it was swept", d)
	}
}

func TestCopy_SourcesRecordIsHiddenUntilTheGuestIsBack(t *testing.T) {
	a, b, _ := resized(t)
	wantNil(t, a.SetHidden(ctx, "i1", "m2", true)) // of another move
	if i, _ := a.Instance("i1"); i.Hidden {
		t.Error("another move has hidden it")
	}
	wantNil(t, a.SetHidden(ctx, "i1", "m1", true))
	a.restart()
	i, _ := a.Instance("i1")
	if !i.Hidden {
		t.Error("it is not hidden")
	}
	back := attempt(2)
	must[claims.Claim](t)(a.AwaitReturn(ctx, refOf(back, "await"), claims.KindResize))
	c := must[migration.Commit](t)(b.ReleaseHeldOwnership(ctx, refOf(back, "hand_back"), claims.KindResize, "host-a", "running"))
	wantNil(t, a.AcceptToken(ctx, c, i))
	a.restart()
	if i, _ := a.Instance("i1"); i.Hidden {
		t.Error("the guest is back, and hidden")
	}
}

func TestCopy_TakenBackByAWordIsShown(t *testing.T) {
	a, _, left := resized(t)
	wantNil(t, a.SetHidden(ctx, "i1", "m1", true))
	wantNil(t, a.NoteWord(ctx, claims.Word{Instance: "i1", Migration: "m1", Attempt: left.Attempt, GuestIsAt: "host-a", Why: "it burned"}))
	wantNil(t, a.Retake(ctx, migration.Ref{Instance: "i1", Migration: "m1", Attempt: left.Attempt}))
	if i, _ := a.Instance("i1"); i.Hidden {
		t.Error("the guest is back, and hidden")
	}
}

func TestConductor_IsKnownAfterTheContext(t *testing.T) {
	a := newBench(t, "host-a")
	must[claims.Claim](t)(a.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	ref := migration.Ref{Instance: "i1", Migration: "m1", Attempt: 1, Step: "record_context"}
	x := claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", Conductor: "host-a"}
	wantNil(t, a.RecordContext(ctx, ref, x))
	if c := a.Conductor("m1"); c != "" {
		t.Errorf("the source conducts itself, and the conductor is %q", c)
	}
	ref.Attempt, x.Conductor = 2, "host-c"
	wantNil(t, a.RecordContext(ctx, ref, x))
	wantNil(t, a.DropContext(ctx, ref))
	a.restart()
	if c := a.Conductor("m1"); c != "host-c" {
		t.Errorf("conductor %q after the context, want host-c", c)
	}
}
