package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
	"berth/migration/task"
	"berth/placementclient"
)

// Mutants are all of them, in the order in which they are listed.
func Mutants() []Mutant {
	return append([]Mutant{
		{Name: "claim-visible-early", What: "a claim is told before its commit is durable",
			Ledger: func(a *agent, s ledger) claims.Store { return hasty{s, "claims"} }},
		{Name: "token-visible-early", What: "a token is accepted, and the guest resumed, before its commit is durable",
			Ledger: func(a *agent, s ledger) claims.Store { return hasty{s, "instances"} }},
		{Name: "effect-before-journal", What: "a step begins before its intent is in the journal",
			Journal: func(a *agent, s ledger) task.Store { return hasty{s, "tasks"} }},
		{Name: "undo-claim-skipped", What: "the undo of the claim does nothing",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return noAbortClaim{h} }},
		{Name: "undo-context-skipped", What: "the undo of the context does nothing",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return noDropContext{h} }},
		{Name: "undo-prepare-skipped", Rare: true, What: "the undo of pre_live_migration does nothing",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return noRollback{h} }},
		{Name: "reclaim-taken-for-granted", Rare: true, What: "a refused reclaim counts as one",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return boldReclaim{h} }},
		{Name: "swap-in-two-calls", Rare: true, What: "the allocations are swapped in two writes",
			Asks: func(_ *agent, p conductor.Placement) conductor.Placement { return twoWrites{p} }},
		{Name: "placement-undo-by-read", What: "a swap whose outcome is unknown is undone by a read where nothing is seen",
			Asks: func(_ *agent, p conductor.Placement) conductor.Placement { return readOnly{p} }},
		{Name: "allocation-left", What: "the migration's allocation is not deleted",
			Asks: func(_ *agent, p conductor.Placement) conductor.Placement { return noDelete{p} }},
		{Name: "second-stream", What: "a restarted agent begins the stream again in place of adopting it",
			Verbs: func(a *agent, h migration.Host) migration.Host { return secondStream{h, a} }},
		{Name: "expired-ticket", What: "a stream is let in without a claim that awaits it", NoGate: true,
			Verbs: func(a *agent, h migration.Host) migration.Host { return slowStart{h, a} }},
		{Name: "resume-without-commit", What: "the destination gets the guest without the source's commit",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return noCommit{h} }},
		{Name: "commit-unseen", Rare: true, What: "the source commits when the job has ended, without having seen its domain leave",
			Verbs: func(a *agent, h migration.Host) migration.Host { return blindCommit{h, a} }},
		{Name: "resume-before-accept", What: "the destination resumes the guest before it has accepted the token",
			Verbs: func(a *agent, h migration.Host) migration.Host { return earlyResume{h, a} }},
		{Name: "token-accepted-twice", What: "a commit that was accepted before is accepted again",
			Verbs: func(a *agent, h migration.Host) migration.Host { return acceptAll{h, a} }},
		{Name: "release-on-read-error", Rare: true, What: "a domain that cannot be read counts as gone",
			Calls: func(_ *agent, l libvirt) driver.Driver { return blind{l} }},
		{Name: "no-tombstone", Rare: true, What: "an undo leaves no tombstone, and a late verb is accepted",
			Verbs: func(a *agent, h migration.Host) migration.Host { return noTombstone{h, a} }},
		{Name: "late-prepare", Rare: true, What: "a late pre_live_migration is obeyed",
			Verbs: func(a *agent, h migration.Host) migration.Host { return latePrepare{h, a} }},
		{Name: "arriving-lease", What: "an arriving claim has a lease and ends with it",
			Verbs: func(a *agent, h migration.Host) migration.Host { return arrivingLease{h, a} }},
		{Name: "context-dropped-early", What: "the source drops its context when the stream begins",
			Verbs: func(a *agent, h migration.Host) migration.Host { return earlyDrop{h, a} }},
		{Name: "claim-released-early", What: "the source releases its claim at the commit, before the destination is bound",
			Verbs: func(a *agent, h migration.Host) migration.Host { return earlyRelease{h, a} }},
		{Name: "source-not-cleaned", What: "the clean-up of the source does nothing",
			Verbs: func(_ *agent, h migration.Host) migration.Host { return noCleanUp{h} }},
		{Name: "commit-forgotten", Rare: true, What: "the answer to a repeated commit is a refusal",
			Verbs: func(a *agent, h migration.Host) migration.Host { return onceCommit{h, a} }},
	}, slices.Concat(coldMutants(), apartMutants(), evacuationMutants(), lostStoreMutants(), unloadedMutants(), drainMutants(), liveMutants(), uniqueMutants())...)
}

// hasty says that writes of a bucket are durable a while before they are.
type hasty struct {
	ledger
	bucket string
}

func (s hasty) Enqueue(mutations ...store.Mutation) *store.Pending {
	if len(mutations) == 0 || mutations[0].Bucket != s.bucket {
		return s.ledger.Enqueue(mutations...)
	}
	p, settle := store.NewPending(nil)
	settle(nil)
	a := s.a
	a.process.Go("late commit", func() {
		_ = a.process.Sleep(context.Background(), 20*time.Millisecond)
		_ = s.ledger.Enqueue(mutations...).Wait()
	})
	return p
}

func (s hasty) Put(_ context.Context, bucket, key string, value []byte) error {
	return s.Enqueue(store.Put(bucket, key, value)).Wait()
}

type noAbortClaim struct{ migration.Host }

func (noAbortClaim) AbortClaim(context.Context, migration.Ref) error { return nil }

type noDropContext struct{ migration.Host }

func (noDropContext) DropContext(context.Context, migration.Ref) error { return nil }

type noRollback struct{ migration.Host }

func (noRollback) RollbackPreLiveMigration(context.Context, migration.Ref) error { return nil }

type boldReclaim struct{ migration.Host }

func (h boldReclaim) Reclaim(ctx context.Context, ref migration.Ref) error {
	err := operation.Reclaim.Ask(ctx, h.Host, ref)
	if errors.Is(err, fault.Forbidden) {
		return nil
	}
	return err
}

type twoWrites struct{ conductor.Placement }

func (p twoWrites) PostAllocations(ctx context.Context, set map[string]placementclient.Allocations) error {
	for _, kind := range []string{placementclient.ConsumerMigration, placementclient.ConsumerInstance} {
		for consumer, a := range set {
			if a.ConsumerType == kind {
				if err := p.PutAllocations(ctx, consumer, a); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

type readOnly struct{ conductor.Placement }

func (p readOnly) PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error {
	if now, err := p.Allocations(ctx, consumer); err == nil && now.SameResources(a) {
		return nil
	}
	return p.Placement.PutAllocations(ctx, consumer, a)
}

func (p readOnly) PostAllocations(ctx context.Context, set map[string]placementclient.Allocations) error {
	for consumer, a := range set {
		if now, err := p.Allocations(ctx, consumer); len(set) == 1 && err == nil && now.SameResources(a) {
			return nil
		}
	}
	return p.Placement.PostAllocations(ctx, set)
}

type noDelete struct{ conductor.Placement }

func (noDelete) DeleteAllocations(context.Context, string) error { return nil }

type secondStream struct {
	migration.Host
	a *agent
}

func (h secondStream) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	var was any
	if asked, _ := h.a.tracker.Recall(migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt, Step: "stream_asked"}, &was); asked {
		l := libvirt{h.a.w.fleet.Host(h.a.m.name), h.a}
		_ = l.Migrate(ctx, ref.Instance, driver.Migration{
			DestinationURI: s.Prepared.LibvirtURI, DestinationXML: s.Prepared.DestinationXML, PersistentXML: s.Prepared.PersistentXML, Paused: true,
		})
	}
	return operation.StartStream.Ask(ctx, h.Host, ref, s)
}

// slowStart asks for the stream once more after a while, as an agent would that hung.
type slowStart struct {
	migration.Host
	a *agent
}

func (h slowStart) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	err := operation.StartStream.Ask(ctx, h.Host, ref, s)
	if err == nil {
		l := h.a.w.fleet.Host(h.a.m.name)
		h.a.w.later(20*time.Second, "a stream that hung", func() {
			_ = l.Migrate(context.Background(), ref.Instance, driver.Migration{
				DestinationURI: s.Prepared.LibvirtURI, DestinationXML: s.Prepared.DestinationXML, PersistentXML: s.Prepared.PersistentXML, Paused: true,
			})
		})
	}
	return err
}

type noCommit struct{ migration.Host }

func (h noCommit) Commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	g, err := operation.Inspect.Ask(ctx, h, migration.Ref{Instance: ref.Instance})
	if err != nil {
		return operation.Commit.Ask(ctx, h.Host, ref)
	}
	d, err := h.Describe(ctx)
	return migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: g.Epoch + 1, From: d.Name, To: otherThan(d.Name, h), Power: migration.PowerRunning,
	}, err
}

// otherThan finds where a guest goes: the only claim that awaits it.
func otherThan(name string, _ noCommit) string {
	if name == "a" {
		return "b"
	}
	return "a"
}

type blindCommit struct {
	migration.Host
	a *agent
}

func (h blindCommit) StreamStatus(ctx context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	st, err := operation.StreamStatus.Ask(ctx, h.Host, ref)
	if err == nil && !st.InFlight && st.Domain.Exists {
		st.Left, st.Domain.State, st.Domain.Reason = true, "shut off", "migrated"
	}
	return st, err
}

func (h blindCommit) Commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	c, err := operation.Commit.Ask(ctx, h.Host, ref)
	if !errors.Is(err, fault.Forbidden) {
		return c, err
	}
	mc, ok := h.a.tracker.Context(ref.Migration)
	if !ok {
		return c, err
	}
	s, err := h.a.tracker.ReleaseOwnership(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt}, mc.Destination)
	return migration.Commit{
		Instance: s.Instance, Migration: s.Migration, Attempt: s.Attempt, Epoch: s.Epoch, From: s.From, To: s.To, Power: migration.PowerRunning,
	}, err
}

type earlyResume struct {
	migration.Host
	a *agent
}

func (h earlyResume) AcceptToken(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	if c.Power != migration.PowerPaused {
		_ = libvirt{h.a.w.fleet.Host(h.a.m.name), h.a}.Resume(ctx, ref.Instance)
	}
	return operation.AcceptToken.Ask(ctx, h.Host, ref, c)
}

type acceptAll struct {
	migration.Host
	a *agent
}

// AcceptToken takes a commit, and once more when it comes again, as a network that
// repeats messages brings it.
func (h acceptAll) AcceptToken(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	err := operation.AcceptToken.Ask(ctx, h.Host, ref, c)
	a := h.a
	if err == nil {
		a.process.Go("the commit again", func() {
			_ = a.process.Sleep(context.Background(), 15*time.Second)
			if _, known := a.tracker.Instance(ref.Instance); !known {
				_, _ = a.tracker.Own(context.Background(), claims.Instance{UUID: ref.Instance, Name: ref.Instance})
			}
		})
	}
	return err
}

type blind struct{ libvirt }

func (l blind) Domain(ctx context.Context, uuid string) (driver.Domain, error) {
	d, err := l.libvirt.Domain(ctx, uuid)
	if errors.Is(err, fault.Unavailable) {
		err = fault.New(fault.NotFound, "domain %s", uuid)
	}
	return d, err
}

func (l blind) Domains(ctx context.Context) ([]driver.Domain, error) {
	all, err := l.libvirt.Domains(ctx)
	if errors.Is(err, fault.Unavailable) {
		err = nil
	}
	return all, err
}

type noTombstone struct {
	migration.Host
	a *agent
}

func (h noTombstone) AbortClaim(ctx context.Context, ref migration.Ref) error {
	return h.a.tracker.Abort(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt, Step: "elsewhere"})
}

type latePrepare struct {
	migration.Host
	a *agent
}

func (h latePrepare) PreLiveMigration(ctx context.Context, ref migration.Ref, p migration.PreLiveRequest) (migration.Prepared, error) {
	prepared, err := operation.PreLiveMigration.Ask(ctx, h.Host, ref, p)
	if errors.Is(err, fault.Forbidden) {
		_ = h.a.tracker.Remember(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt, Step: "prepared"}, p.Source)
	}
	return prepared, err
}

type arrivingLease struct {
	migration.Host
	a *agent
}

func (h arrivingLease) PreLiveMigration(ctx context.Context, ref migration.Ref, p migration.PreLiveRequest) (migration.Prepared, error) {
	prepared, err := operation.PreLiveMigration.Ask(ctx, h.Host, ref, p)
	if err == nil {
		a := h.a
		a.process.Go("lease of an arriving claim", func() {
			_ = a.process.Sleep(context.Background(), 1500*time.Millisecond)
			_ = a.tracker.Abort(context.Background(), migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt, Step: "elsewhere"})
		})
	}
	return prepared, err
}

type earlyDrop struct {
	migration.Host
	a *agent
}

func (h earlyDrop) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	err := operation.StartStream.Ask(ctx, h.Host, ref, s)
	if err == nil {
		_ = h.a.tracker.DropContext(ctx, migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: ref.Attempt})
	}
	return err
}

type earlyRelease struct {
	migration.Host
	a *agent
}

func (h earlyRelease) Commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	c, err := operation.Commit.Ask(ctx, h.Host, ref)
	if err == nil {
		_ = h.a.tracker.Release(ctx, claims.Owner{Instance: ref.Instance, Kind: claims.KindInstance})
	}
	return c, err
}

type noCleanUp struct{ migration.Host }

func (noCleanUp) CleanUpSource(context.Context, migration.Ref) error { return nil }

type onceCommit struct {
	migration.Host
	a *agent
}

func (h onceCommit) Commit(ctx context.Context, ref migration.Ref) (migration.Commit, error) {
	if c, ok := h.a.tracker.Committed(ref.Migration); ok {
		return migration.Commit{}, fault.New(fault.Forbidden, "it has been committed to %s", c.To)
	}
	return operation.Commit.Ask(ctx, h.Host, ref)
}
