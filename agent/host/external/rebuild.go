package external

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

func (r foreignRebuild) phase(host, phase string) phases.Request {
	return phases.Request{Phase: phase, Kind: migration.TypeRebuild, Source: host, Destination: host, XML: r.DomainXML}
}

// hookRebuild answers the phases of a rebuild.
func (x *Migrations) hookRebuild(ctx context.Context, ref migration.Ref, phase string, r HookRequest, a *HookAnswer) error {
	ref.Attempt = attemptAway
	rec, found, err := memory.Recall[foreignRebuild](x.o.Memory, ref, memoryRebuild)
	if err != nil {
		return err
	}
	if found {
		if r.Instance != "" && r.Instance != rec.Instance {
			return fault.New(fault.Invalid, "it is a rebuild of instance %s", rec.Instance)
		}
		ref.Instance = rec.Instance
	}
	bound, done := x.o.Attempts.BoundBy(x.refOfBound(ref))
	done = done && bound.BoundFrom.Kind == claims.KindRebuild
	switch {
	case done && !found && phase == PhasePostRebuild:
		a.Claim = bound.ID
		return nil
	case done && phase != PhasePostRebuild:
		return fault.New(fault.Forbidden, "the guest was rebuilt already")
	case phase == PhasePreRebuild:
		return x.hookPreRebuild(ctx, ref, rec, r, a)
	case phase == PhaseRollbackRebuild:
		return x.hookRollbackRebuild(ctx, ref, rec, found)
	case !found:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "no_claim", Message: "no claim on " + x.o.Host + " names this rebuild", Change: "claim before: berth external " + PhasePreRebuild,
		})
	}
	return x.hookPostRebuild(ctx, ref, rec, a)
}

func (x *Migrations) hookPreRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, r HookRequest, a *HookAnswer) error {
	if err := x.o.Managing(""); err != nil {
		return err
	}
	comes, err := x.arrivalOf(ctx, r.DomainXML)
	if err != nil {
		return err
	}
	if ref.Instance = comes.inst.UUID; r.Instance != "" && r.Instance != comes.inst.UUID {
		return fault.New(fault.Invalid, "the document is of instance %s, not of %s", comes.inst.UUID, r.Instance)
	}
	if m, moving := x.o.Attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return x.o.Instances.Still(ref.Instance)
	}
	inst, known := x.o.Tracker.Instance(ref.Instance)
	own, bound := x.o.Attempts.ClaimOf(ref.Instance)
	if !known || !bound {
		return fault.New(fault.NotFound, "instance %s is not in the ledger of %s", ref.Instance, x.o.Host)
	}
	wanted, err := x.wantedBy(&comes, r.Flavor)
	if err != nil {
		return err
	}
	mc := comes.context(x.o.Host, x.o.Host)
	mc.OldResources, mc.OldFlavor, mc.OldTopology, mc.OldAssignment, mc.OldPCIRequests = own.Resources, inst.Flavor, own.Topology, own.Assignment, own.PCI
	mc.NewResources, mc.NewFlavor, mc.NewTopology, mc.NewPCIRequests = wanted.Resources, inst.Flavor, wanted.Topology, wanted.PCIRequests
	g := comes.guest(r.DomainXML)
	// Its claim is leased, and asking again renews it.
	claim, err := x.claimForeign(ctx, ref, migration.ClaimRequest{Guest: g, Context: mc, Lease: hookPatience, Kind: migration.TypeRebuild}, nil)
	if err != nil {
		return err
	}
	if claim.State == claims.Pending {
		if claim, err = x.o.Tracker.Renew(ctx, claim.Owner); err != nil {
			return err
		}
	}
	rec.Instance = ref.Instance
	inst.Token.Epoch-- // placed writes the next one, which is here already
	rec.DomainXML, err = x.placed(ref, r.DomainXML, inst, claim)
	if err == nil {
		err = x.o.Memory.Remember(ctx, ref, memoryRebuild, rec)
	}
	if err == nil {
		err = x.phaseAlone(ctx, ref, rec.phase(x.o.Host, hooks.PreRebuildInstance))
	}
	if err != nil {
		undo, cancel := x.o.Runtime.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, x.hookRollbackRebuild(undo, ref, rec, true))
	}
	_, expires := x.patience(hookPatience)
	a.Claim, a.DestinationXML, a.ExpiresAt = claim.ID, rec.DomainXML, &expires
	return nil
}

// phaseAlone is phase for a caller that has not the instance's turn.
func (x *Migrations) phaseAlone(ctx context.Context, ref migration.Ref, r phases.Request) error {
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	return x.o.Phases.Run(ctx, ref, r)
}

// hookPostRebuild gives up what the guest held before.
func (x *Migrations) hookPostRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, a *HookAnswer) error {
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	own, err := x.o.Tracker.Exchange(ctx, memory.At(ref, operation.StepClaim), claims.KindRebuild)
	if errors.Is(err, fault.NotFound) {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "claim_ended", Message: "the claim of this rebuild has ended", Change: "ask for another, with another uuid: berth external " + PhasePreRebuild,
		})
	}
	if err != nil {
		return err
	}
	a.Claim = own.ID
	if err := x.o.Tracker.Release(ctx, attempts.OwnerOf(ref, claims.KindRebuild)); err != nil {
		return err
	}
	if err := x.o.Phases.Run(ctx, ref, rec.phase(x.o.Host, hooks.PostRebuildInstance)); err != nil {
		return err
	}
	if err := x.countArrived(ctx, ref); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}

// hookRollbackRebuild is the undo of hookPreRebuild.
func (x *Migrations) hookRollbackRebuild(ctx context.Context, ref migration.Ref, rec foreignRebuild, found bool) error {
	if !found && ref.Instance == "" {
		// Its tombstone is all there is to do; it is kept under the migration.
		ref.Instance = ref.Migration
		return x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim))
	}
	if err := x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if found {
		if err := x.o.Phases.Run(ctx, ref, rec.phase(x.o.Host, hooks.RollbackRebuildInstance)); err != nil {
			return err
		}
	}
	if err := x.o.Tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}
