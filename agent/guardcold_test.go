package agent

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host/change"
	"berth/claims"
	"berth/internal/config"
	"berth/migration"
	"berth/topology"
)

// coldClaim is a claim for the guarded guest, of a cold move from one host to another.
func (b *guardBench) coldClaim(kind claims.Kind, from, to string) claims.Owner {
	b.Helper()
	o := claims.Owner{Instance: guarded, Migration: moved, Attempt: 1, Kind: kind}
	_, err := b.a.tracker.Claim(b.Context(), claims.Request{
		Owner: o, Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Context: &claims.MigrationContext{Migration: moved, Instance: guarded, Source: from, Destination: to},
	})
	b.must(err)
	return o
}

func (b *guardBench) refused(when string, op guard.Operation, code string) {
	b.Helper()
	if _, codes := b.ask(op, guardDocument(1, true, ""), false); !slices.Equal(codes, []string{code}) {
		b.Errorf("%s, %s: reasons %v, want %s", when, op, codes, code)
	}
}

func (b *guardBench) wantOwner(when string, want guard.OwnerState) {
	b.Helper()
	if got := b.owner(); got != want {
		b.Errorf("%s: owner file %q, want %q", when, got, want)
	}
}

// A guest that is resized away may not be started where it was; what is kept of it there
// lets no stream in either.
func TestGuardian_AtTheSourceOfAResize(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	ctx, ref := t.Context(), migration.Ref{Migration: moved, Instance: guarded, Attempt: 1, Step: "record_context"}
	b.adopt()
	b.must(b.a.tracker.RecordContext(ctx, ref, claims.MigrationContext{Migration: moved, Instance: guarded, Source: "host-t", Destination: "host-b"}))
	b.refused("before it is handed over", guard.Start, "moving")
	_, err := b.a.tracker.ReleaseHeldOwnership(ctx, ref, claims.KindResize, "host-b", "running")
	b.must(err)
	for _, op := range []guard.Operation{guard.Prepare, guard.Start, guard.Restore} {
		b.refused("it waits there", op, "token_elsewhere")
	}
	b.refused("it waits there", guard.Migrate, "instance_is_moving")
	b.wantOwner("it waits there", guard.OwnerGone)

	ref.Attempt, ref.Step = 2, "await_return"
	_, err = b.a.tracker.AwaitReturn(ctx, ref, claims.KindResize)
	b.must(err)
	b.refused("it is to come back", guard.Start, "arriving")
	b.refused("it is to come back", guard.Migrate, "other_migration")
}

// Where a guest comes by a resize nothing but the agent starts it, and no stream brings
// it; once it is there it is started like any other, until it is taken back.
func TestGuardian_AtTheDestinationOfAResize(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	ctx := t.Context()
	o := b.coldClaim(claims.KindResize, "host-b", "host-t")
	for _, op := range []guard.Operation{guard.Start, guard.Restore} {
		b.refused("it is to come", op, "arriving")
	}
	b.refused("it is to come", guard.Migrate, "other_migration")
	_, err := b.a.tracker.Arrive(ctx, o)
	b.must(err)
	b.refused("it comes", guard.Migrate, "other_migration")
	b.must(b.a.tracker.AcceptToken(ctx, migration.Commit{Instance: guarded, Migration: moved, Attempt: 1, Epoch: 2, From: "host-b", To: "host-t"}, claims.Instance{UUID: guarded, Name: "web"}))
	b.refused("its token is here", guard.Start, "moving")
	_, err = b.a.tracker.Bind(ctx, o)
	b.must(err)
	b.ask(guard.Start, guardDocument(1, true, ""), true)
	b.refused("it lives here", guard.Migrate, "instance_lives_here")
	b.wantOwner("it lives here", guard.OwnerHere)

	// As agent/host notes that it is powered off for a later attempt.
	off := migration.Ref{Migration: moved, Instance: guarded, Attempt: 2, Step: "powered_off"}
	b.must(b.a.tracker.Remember(ctx, off, struct{}{}))
	b.refused("it is taken back", guard.Start, "moving")
	b.wantOwner("it is taken back", guard.OwnerMoving)
	b.must(b.a.tracker.Unremember(ctx, off))
	b.must(b.a.tracker.DropContext(ctx, migration.Ref{Migration: moved, Instance: guarded, Attempt: 1}))
	b.ask(guard.Start, guardDocument(1, true, ""), true)
	b.wantOwner("it is confirmed", guard.OwnerHere)
}

// A guest that is changed where it is is the agent's to start until that is done.
func TestGuardian_OfAChangeInPlace(t *testing.T) {
	t.Parallel()
	for _, kind := range []claims.Kind{claims.KindResize, claims.KindRebuild} {
		b := newGuardBench(t, config.Manage)
		ctx := t.Context()
		b.adopt()
		o := b.coldClaim(kind, "host-t", "host-t")
		b.refused("before the change", guard.Start, "moving")
		b.wantOwner("before the change", guard.OwnerMoving)
		ref := migration.Ref{Migration: moved, Instance: guarded, Attempt: 1}
		_, err := b.a.tracker.Exchange(ctx, ref, kind)
		b.must(err)
		// A rebuild is not over: nothing is confirmed. A resize may still have the old definition.
		b.refused("changed", guard.Start, "moving")
		if kind == claims.KindResize {
			ref.Step = change.Memory
			b.must(b.a.tracker.Remember(ctx, ref, change.Record{Started: true}))
			b.ask(guard.Start, guardDocument(1, true, ""), true)
			b.wantOwner("it waits to be confirmed", guard.OwnerHere)
		}
		b.must(b.a.tracker.Release(ctx, o))
		b.ask(guard.Start, guardDocument(1, true, ""), true)
		b.wantOwner("it is over", guard.OwnerHere)
	}
}

// What a migration is of is recorded in as many places as its hosts are, and as long.
func TestParties_SayWhoseMigrationItIs(t *testing.T) {
	t.Parallel()
	b := newGuardBench(t, config.Manage)
	ctx, ref := t.Context(), migration.Ref{Migration: moved, Instance: guarded, Attempt: 1, Step: "record_context"}
	want := api.Between{Source: "host-t", Destination: "host-b", Conductor: "host-c", Instance: guarded}
	is := func(when string) {
		b.Helper()
		got, known := parties{b.a.tracker}.Parties(moved, "")
		if diff := cmp.Diff(want, got); !known || diff != "" {
			b.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	b.adopt()
	b.must(b.a.tracker.RecordContext(ctx, ref, claims.MigrationContext{Migration: moved, Instance: guarded, Source: "host-t", Destination: "host-b", Conductor: "host-c"}))
	is("of its context")
	b.must(b.a.tracker.DropContext(ctx, ref))
	is("of what is left of that")
	_, err := b.a.tracker.ReleaseOwnership(ctx, migration.Ref{Migration: moved, Instance: guarded, Attempt: 2}, "host-b")
	b.must(err)
	is("of the guest's own leave")
}
