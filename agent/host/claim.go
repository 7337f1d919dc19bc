package host

import (
	"context"

	"berth/agent/host/allocation"
	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/agent/host/streams"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// claimKind is the kind of the claims of a move of this type. What a guest holds where it
// came from is kept for it until a cold migration is confirmed, as that of a resize.
func claimKind(migrationType string) (claims.Kind, error) {
	switch migrationType {
	case "", migration.TypeLiveMigration:
		return claims.KindLiveMigration, nil
	case migration.TypeMigration, migration.TypeResize:
		return claims.KindResize, nil
	case migration.TypeRebuild:
		return claims.KindRebuild, nil
	case migration.TypeEvacuation:
		return claims.KindEvacuation, nil
	}
	return "", fault.New(fault.Invalid, "migration_type %q is unknown", migrationType)
}

// claimAny does operation.Claim.
func (h *Host) claimAny(ctx context.Context, ref migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	if !h.attempts.InPlace(c.Context.Source, c.Context.Destination) {
		c.Context.NewResources = withAllMemory(c.Context.NewResources, c.Kind, c.Guest, c.Context.NewFlavor, c.Context.NewTopology)
	}
	a, err := h.claim(ctx, ref, c, nil)
	return a, wrap(err, "claim %s on %s", c.Guest.Name, h.o.Name)
}

// countClaim adds where a claim is counted. Without the instance's lock, and after the claim: what it holds
// is what it was given.
func (h *Host) countClaim(ctx context.Context, ref migration.Ref, c migration.ClaimRequest, a migration.ClaimAnswer) (migration.ClaimAnswer, error) {
	var err error
	a.Allocations, err = h.countedOn(ctx, allocation.Allocation{Consumer: ref.Instance, Resources: a.Resources, Assignment: a.Assignment})
	return a, wrap(err, "claim %s on %s", c.Guest.Name, h.o.Name)
}

// claim holds what is asked for, in the place that is found where the guest runs
// already; nil for one that is chosen. The caller has the instance's lock.
func (h *Host) claim(ctx context.Context, ref migration.Ref, c migration.ClaimRequest, found *topology.Assignment) (migration.ClaimAnswer, error) {
	kind, err := claimKind(c.Kind)
	if err != nil {
		return migration.ClaimAnswer{}, err
	}
	if err := h.claimable(ref, kind, c.Context); err != nil {
		return migration.ClaimAnswer{}, err
	}
	bound := 0
	if c.Queued && h.o.MaxInbound != nil {
		bound = h.o.MaxInbound()
	}
	mc := ledgerContext(ref, c.Context)
	got, err := h.tracker.Claim(ctx, claims.Request{
		Owner: attempts.OwnerOf(ref, kind), Resources: c.Context.NewResources, Topology: c.Context.NewTopology, PCI: c.Context.NewPCIRequests,
		Found: found, Step: operation.StepClaim, Context: &mc, Lease: c.Lease, MaxInbound: bound,
	})
	if err != nil {
		return migration.ClaimAnswer{}, err
	}
	a := migration.ClaimAnswer{Claim: got.ID, Resources: got.Resources, Ticket: got.Ticket, Assignment: got.Assignment}
	if got.Lease != nil {
		a.Lease = got.Lease.Length
	}
	return a, nil
}

// claimable refuses a claim for a guest whose token is not where its move says.
func (h *Host) claimable(ref migration.Ref, kind claims.Kind, c migration.Context) error {
	inst, known := h.tracker.Instance(ref.Instance)
	here := known && inst.Token.State == claims.TokenHere
	if kind != claims.KindLiveMigration && h.attempts.InPlace(c.Source, c.Destination) {
		if !known {
			return fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
		}
		return h.tokenHere(inst)
	}
	if kind == claims.KindEvacuation && c.Source == h.o.Name {
		return fault.New(fault.Invalid, "an evacuation takes a guest from another host; its context is from %s", c.Source)
	}
	if kind == claims.KindRebuild {
		return fault.New(fault.Invalid, "a rebuild stays on its host; its context is from %s to %s", c.Source, c.Destination)
	}
	if here {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "token_here", Message: "the ledger of " + h.o.Name + " says that it owns " + inst.Name + " itself",
		})
	}
	return nil
}

// renewClaim does operation.RenewClaim. A claim that is past its pending state needs no renewal,
// and asking is no fault.
func (h *Host) renewClaim(ctx context.Context, ref migration.Ref) error {
	o := h.attempts.Owner(ref)
	if c, ok := h.tracker.ByOwner(o); ok && c.State != claims.Pending {
		if o.Kind == claims.KindLiveMigration {
			h.streams.KeepArrival(ctx, ref, streams.Lease)
		}
		return nil
	}
	_, err := h.tracker.Renew(ctx, o)
	return wrap(err, "renew claim of migration %s on %s", ref.Migration, h.o.Name)
}

// abortClaim does operation.AbortClaim.
func (h *Host) abortClaim(ctx context.Context, ref migration.Ref) error {
	if h.changes(ref) {
		return h.abortChange(ctx, ref)
	}
	if h.arrived(ref) {
		return fault.New(fault.Forbidden, "the guest has arrived: its token is here")
	}
	// HasTombstone before the lock: a claim that is being made meanwhile is aborted
	// below, and none can follow it.
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	c, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
	if ok {
		if c.State == claims.Bound || h.arrived(ref) {
			return fault.New(fault.Forbidden, "the guest has arrived: its token is here")
		}
		if err := h.streams.End(ctx, ref); err != nil {
			return err
		}
		// Nothing can arrive any more: the job's end is the source's to see and
		// comes first in the order of undos; that no copy is left is seen here.
		if _, exists, err := h.domain(ctx, ref.Instance); err != nil {
			return err
		} else if exists && c.State == claims.Arriving {
			return fault.New(fault.Busy, "a copy of the guest is still here: roll back %s first", operation.StepPreLiveMigration)
		}
		if err := h.tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
			return err
		}
	}
	return nil
}

// changes reports whether a claim of the attempt is for a guest that stays on this host.
func (h *Host) changes(ref migration.Ref) bool {
	c, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
	return ok && c.Context != nil && h.attempts.InPlace(c.Context.Source, c.Context.Destination)
}

// abortChange gives up what a change on this host has claimed, and with it all that is
// remembered of the change: it is its last undo, and the end of its revert. Refused while
// the guest uses it.
func (h *Host) abortChange(ctx context.Context, ref migration.Ref) error {
	// HasTombstone before the lock: see abortClaim.
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if _, used := h.attempts.BoundBy(ref); used {
		return fault.New(fault.Forbidden, "the guest uses it: take the change back first")
	}
	// Before the claim: while it is here a repeated undo comes this way.
	if err := h.tracker.ForgetMigration(ctx, ref.Migration); err != nil {
		return err
	}
	return h.tracker.Abort(ctx, memory.At(ref, operation.StepClaim))
}

// arrived reports whether the token is here and this migration has, or may have,
// to do with it: it came by it, or something of this attempt is still here beside
// it. A host that owns the guest by other ways, and has nothing of this attempt,
// refused it: there is nothing to undo.
func (h *Host) arrived(ref migration.Ref) bool {
	inst, ok := h.tracker.Instance(ref.Instance)
	if !ok || inst.Token.State != claims.TokenHere {
		return false
	}
	_, bound := h.attempts.BoundBy(ref)
	_, claimed := h.tracker.ByOwner(h.attempts.Owner(ref))
	// A record that cannot be read is one that is there.
	_, prepared, err := memory.Recall[preparation](h.memory, ref, memoryPrepared)
	_, preparedCold, coldErr := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	_, evacuated, evacuatedErr := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	return inst.Token.Migration == ref.Migration || bound || claimed || prepared || err != nil || preparedCold || coldErr != nil || evacuated || evacuatedErr != nil
}

// recordContext does operation.RecordContext.
func (h *Host) recordContext(ctx context.Context, ref migration.Ref, c migration.Context) error {
	inst, ok := h.tracker.Instance(ref.Instance)
	if !ok {
		return fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	// Before the guest may leave: while no agent answers, nothing may start it here
	// by an old word.
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	return h.tracker.RecordContext(ctx, memory.At(ref, operation.StepContext), ledgerContext(ref, c))
}

// dropContext does operation.DropContext. It is the last undo on a source, and takes along what the
// stream of this attempt remembered.
func (h *Host) dropContext(ctx context.Context, ref migration.Ref) error {
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, operation.StepContext)); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if c, ok := h.tracker.Committed(ref.Migration); ok {
		return fault.New(fault.Forbidden, "its token has left to %s", c.To)
	}
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	// Nobody asks for a stream without a context, so nothing writes these again.
	if err := h.streams.Forget(ctx, ref); err != nil {
		return err
	}
	return h.tracker.DropContext(ctx, memory.At(ref, operation.StepContext))
}
