package host

import (
	"context"
	"errors"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// The phases of a rebuild that a tool runs by itself on the guest's own host.
const (
	PhasePreRebuild      = "pre-rebuild-instance"
	PhasePostRebuild     = "post-rebuild-instance"
	PhaseRollbackRebuild = "rollback-rebuild-instance"
)

// memoryRebuild is what a tool has said of its rebuild.
const memoryRebuild = "foreign_rebuild"

// foreignRebuild is its record.
type foreignRebuild struct {
	Instance  string `json:"instance"`
	DomainXML string `json:"domain_xml"` // that the guest is to have, placed
}

func (r foreignRebuild) phase(h *Host, phase string) phases.Request {
	return phases.Request{Phase: phase, Kind: migration.TypeRebuild, Source: h.o.Name, Destination: h.o.Name, XML: r.DomainXML}
}

// hookRebuild answers the phases of a rebuild.
func (h *Host) hookRebuild(ctx context.Context, ref migration.Ref, phase string, r HookRequest, a *HookAnswer) error {
	ref.Attempt = attemptAway
	rec, found, err := memory.Recall[foreignRebuild](h.memory, ref, memoryRebuild)
	if err != nil {
		return err
	}
	if found {
		if r.Instance != "" && r.Instance != rec.Instance {
			return fault.New(fault.Invalid, "it is a rebuild of instance %s", rec.Instance)
		}
		ref.Instance = rec.Instance
	}
	bound, done := h.attempts.BoundBy(h.refOfBound(ref))
	done = done && bound.BoundFrom.Kind == claims.KindRebuild
	switch {
	case done && !found && phase == PhasePostRebuild:
		a.Claim = bound.ID
		return nil
	case done && phase != PhasePostRebuild:
		return fault.New(fault.Forbidden, "the guest was rebuilt already")
	case phase == PhasePreRebuild:
		return h.hookPreRebuild(ctx, ref, rec, r, a)
	case phase == PhaseRollbackRebuild:
		return h.hookRollbackRebuild(ctx, ref, rec, found)
	case !found:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "no_claim", Message: "no claim on " + h.o.Name + " names this rebuild", Change: "claim before: berth external " + PhasePreRebuild,
		})
	}
	return h.hookPostRebuild(ctx, ref, rec, a)
}

func (h *Host) hookPreRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, r HookRequest, a *HookAnswer) error {
	if err := h.managing(""); err != nil {
		return err
	}
	comes, err := h.arrivalOf(ctx, r.DomainXML)
	if err != nil {
		return err
	}
	if ref.Instance = comes.inst.UUID; r.Instance != "" && r.Instance != comes.inst.UUID {
		return fault.New(fault.Invalid, "the document is of instance %s, not of %s", comes.inst.UUID, r.Instance)
	}
	if m, moving := h.attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return h.still(ref.Instance)
	}
	inst, known := h.tracker.Instance(ref.Instance)
	own, bound := h.attempts.ClaimOf(ref.Instance)
	if !known || !bound {
		return fault.New(fault.NotFound, "instance %s is not in the ledger of %s", ref.Instance, h.o.Name)
	}
	wanted, err := h.wantedBy(&comes, r.Flavor)
	if err != nil {
		return err
	}
	mc := comes.context(h.o.Name, h.o.Name)
	mc.OldResources, mc.OldFlavor, mc.OldTopology, mc.OldAssignment, mc.OldPCIRequests = own.Resources, inst.Flavor, own.Topology, own.Assignment, own.PCI
	mc.NewResources, mc.NewFlavor, mc.NewTopology, mc.NewPCIRequests = wanted.Resources, inst.Flavor, wanted.Topology, wanted.PCIRequests
	g := comes.guest(r.DomainXML)
	// Its claim is leased, and asking again renews it.
	claim, err := h.claimForeign(ctx, ref, migration.ClaimRequest{Guest: g, Context: mc, Lease: hookPatience, Kind: migration.TypeRebuild}, nil)
	if err != nil {
		return err
	}
	if claim.State == claims.Pending {
		if claim, err = h.tracker.Renew(ctx, claim.Owner); err != nil {
			return err
		}
	}
	rec.Instance = ref.Instance
	inst.Token.Epoch-- // placed writes the next one, which is here already
	rec.DomainXML, err = h.placed(ref, r.DomainXML, inst, claim)
	if err == nil {
		err = h.memory.Remember(ctx, ref, memoryRebuild, rec)
	}
	if err == nil {
		err = h.phaseAlone(ctx, ref, rec.phase(h, hooks.PreRebuildInstance))
	}
	if err != nil {
		undo, cancel := h.rt.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, h.hookRollbackRebuild(undo, ref, rec, true))
	}
	_, expires := h.patience(hookPatience)
	a.Claim, a.DestinationXML, a.ExpiresAt = claim.ID, rec.DomainXML, &expires
	return nil
}

// phaseAlone is phase for a caller that has not the instance's turn.
func (h *Host) phaseAlone(ctx context.Context, ref migration.Ref, r phases.Request) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	return h.phases.Run(ctx, ref, r)
}

// hookPostRebuild gives up what the guest held before.
func (h *Host) hookPostRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, a *HookAnswer) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	own, err := h.tracker.Exchange(ctx, memory.At(ref, operation.StepClaim), claims.KindRebuild)
	if errors.Is(err, fault.NotFound) {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "claim_ended", Message: "the claim of this rebuild has ended", Change: "ask for another, with another uuid: berth external " + PhasePreRebuild,
		})
	}
	if err != nil {
		return err
	}
	a.Claim = own.ID
	if err := h.tracker.Release(ctx, attempts.OwnerOf(ref, claims.KindRebuild)); err != nil {
		return err
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PostRebuildInstance)); err != nil {
		return err
	}
	if err := h.countArrived(ctx, ref); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// hookRollbackRebuild is the undo of hookPreRebuild.
func (h *Host) hookRollbackRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, found bool) error {
	if !found && ref.Instance == "" {
		// Its tombstone is all there is to do; it is kept under the migration.
		ref.Instance = ref.Migration
		return h.tracker.Bury(ctx, memory.At(ref, operation.StepClaim))
	}
	if err := h.tracker.Bury(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if found {
		if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.RollbackRebuildInstance)); err != nil {
			return err
		}
	}
	if err := h.tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}
