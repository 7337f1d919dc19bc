package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

func TestTracker_ContextOfASource(t *testing.T) {
	b := newBench(t, "host-a")
	first := refOf(moveOwner("i1", "m1", 1), "record-context")
	second := refOf(moveOwner("i1", "m1", 2), "record-context")
	c := claims.MigrationContext{Migration: "m1", Instance: "i1", Source: "host-a", Destination: "host-b", NewFlavor: guest("i1").Flavor}
	for range 2 {
		wantNil(t, b.RecordContext(ctx, first, c))
		b.restart()
	}
	if got, ok := b.Context("m1"); !ok || !cmp.Equal(c, got) {
		t.Errorf("context: %+v, %v", got, ok)
	}
	c2 := c
	c2.Destination = "host-c"
	wantNil(t, b.RecordContext(ctx, second, c2))
	wantKind(t, b.RecordContext(ctx, first, c), fault.Forbidden) // late
	wantNil(t, b.DropContext(ctx, first))                        // late: must not take the second's
	if got := b.Contexts(); len(got) != 1 || got[0].Destination != "host-c" {
		t.Errorf("contexts: %+v", got)
	}
	for range 2 {
		wantNil(t, b.DropContext(ctx, second))
	}
	b.restart()
	wantKind(t, b.RecordContext(ctx, second, c2), fault.Forbidden)
	if got := b.Contexts(); len(got) != 0 {
		t.Errorf("contexts after the drop: %+v", got)
	}
	wantKind(t, b.RecordContext(ctx, first, claims.MigrationContext{Migration: "m2", Instance: "i1"}), fault.Invalid)
}

func TestTracker_BuriedAtOrBelow(t *testing.T) {
	b := newBench(t, "h")
	wantNil(t, b.WriteTombstone(ctx, migration.Ref{Migration: "m1", Instance: "i1", Attempt: 3, Step: "prepare"}))
	wantNil(t, b.WriteTombstone(ctx, migration.Ref{Migration: "m1", Instance: "i1", Attempt: 2, Step: "prepare"})) // must not lower it
	b.restart()
	for _, tt := range []struct {
		ref  migration.Ref
		want bool
	}{
		{migration.Ref{Migration: "m1", Instance: "i1", Attempt: 1, Step: "prepare"}, true},
		{migration.Ref{Migration: "m1", Instance: "i1", Attempt: 3, Step: "prepare"}, true},
		{migration.Ref{Migration: "m1", Instance: "i1", Attempt: 4, Step: "prepare"}, false},
		{migration.Ref{Migration: "m1", Instance: "i1", Attempt: 1, Step: "stream"}, false},
		{migration.Ref{Migration: "m2", Instance: "i1", Attempt: 1, Step: "prepare"}, false},
	} {
		if got := b.HasTombstone(tt.ref); got != tt.want {
			t.Errorf("%+v: %v", tt.ref, got)
		}
	}
}

func TestTracker_VerbsAreRemembered(t *testing.T) {
	type made struct{ Files []string }
	b := newBench(t, "h")
	ref := migration.Ref{Migration: "m1", Instance: "i1", Attempt: 1, Step: "prepare"}
	other := ref
	other.Attempt = 2
	if ok, err := b.Recall(ref, &made{}); ok || err != nil {
		t.Errorf("recall of nothing: %v, %v", ok, err)
	}
	wantNil(t, b.Remember(ctx, ref, made{[]string{"one"}}))
	wantNil(t, b.Remember(ctx, ref, made{[]string{"one", "two"}}))
	wantNil(t, b.Remember(ctx, other, made{}))
	wantKind(t, b.Remember(ctx, ref, func() {}), fault.Invalid)
	b.restart()
	wantNil(t, b.WriteTombstone(ctx, ref))
	var got made
	if ok, err := b.Recall(ref, &got); !ok || err != nil || !cmp.Equal(made{[]string{"one", "two"}}, got) {
		t.Errorf("recall by the undo: %+v, %v, %v", got, ok, err)
	}
	wantKind(t, b.Remember(ctx, ref, made{}), fault.Forbidden)
	for range 2 {
		wantNil(t, b.Unremember(ctx, ref))
	}
	if ok, _ := b.Recall(ref, &got); ok {
		t.Error("still remembered")
	}
	for range 2 {
		wantNil(t, b.ForgetMigration(ctx, "m1"))
	}
	b.restart()
	if ok, _ := b.Recall(other, &got); ok {
		t.Error("remembered after the migration was forgotten")
	}
	if !b.HasTombstone(ref) {
		t.Error("the tombstone went too early")
	}
}

func TestTracker_TombstonesArePrunedWhenPastUse(t *testing.T) {
	b := newBench(t, "host-a")
	must[claims.Claim](t)(b.Adopt(ctx, guest("i1"), claims.Found{Resources: small}))
	ref := refOf(moveOwner("i1", "m1", 1), "prepare")
	wantNil(t, b.WriteTombstone(ctx, ref))
	made := refOf(moveOwner("i3", "m3", 1), "prepared")
	wantNil(t, b.WriteTombstone(ctx, refOf(moveOwner("i3", "m3", 1), "claim")))
	wantNil(t, b.Remember(ctx, made, "a disk"))
	leaving := refOf(moveOwner("i1", "m2", 1), "commit")
	must[migration.Commit](t)(b.ReleaseOwnership(ctx, leaving, "host-b"))
	b.clock.reboot()
	b.clock.advance(claims.TombstoneKeep - 1)
	b.restart() // the time runs from here: the boot is another one
	b.clock.advance(claims.TombstoneKeep - 1)
	wantNil(t, b.Prune(ctx))
	if !b.HasTombstone(ref) {
		t.Error("gone before its time")
	}
	b.clock.advance(claims.TombstoneKeep)
	wantNil(t, b.Prune(ctx))
	if b.HasTombstone(ref) {
		t.Error("kept past its use")
	}
	if made.Step = "claim"; !b.HasTombstone(made) {
		t.Error("a tombstone went while a verb of its migration is remembered")
	}
	if _, ok := b.Committed("m2"); !ok {
		t.Error("a commit went while its guest was not forgotten")
	}
	wantNil(t, b.Forget(ctx, "i1"))
	wantNil(t, b.Prune(ctx))
	b.restart()
	if _, ok := b.Committed("m2"); ok || b.HasTombstone(ref) {
		t.Error("kept past its use")
	}
}
