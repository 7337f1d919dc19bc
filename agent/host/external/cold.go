package external

import (
	"berth/agent/host/allocation"
	demands "berth/agent/host/demand"

	"cmp"
	"context"
	"errors"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// The phases of a cold migration or a resize that a tool runs by itself, as `berth external`
// names them. Of its two hosts the one that is asked knows by the ledger which it is.
const (
	PhasePrepResize         = "prep-resize"
	PhaseResizeInstance     = "resize-instance"
	PhaseFinishResize       = "finish-resize"
	PhaseRollbackPrepResize = "rollback-prep-resize"
	PhaseConfirmResize      = "confirm-resize"
	PhaseRevertResize       = "revert-resize"
	PhaseFinishRevertResize = "finish-revert-resize"
)

// A tool's cold move has the states of one of Berth's own, and goes by the same verbs:
//
//	asked                        of           token                         claims
//	prep-resize                  destination  at the source                 arriving there
//	resize-instance              source       may be given away             none
//	finish-resize                destination  comes, by what the source     bound there, the source's held
//	                                          surrenders for a guest that
//	                                          is off and may be given
//	rollback-prep-resize         destination  at the source                 aborted there
//	confirm-resize               both         at the destination            the source's released
//	revert-resize                destination  leaves for the source         released there
//	finish-revert-resize         source       comes back; before it left    bound there again
//	                                          it may not be given any more
//
// Leaving is the first attempt, coming back the second.
const (
	attemptAway = 1
	attemptBack = 2
)

// attemptOf is the attempt in which a step of awayBy or backBy is asked.
func attemptOf(step string) int {
	if step == hooks.FinishRevertResize {
		return attemptBack
	}
	return attemptAway
}

// awayBy is the ref of a tool's migration as its guest leaves, backBy as it comes back.
// The step tells the other host which rules its surrender goes by.
func awayBy(ref migration.Ref) migration.Ref {
	ref.Attempt, ref.Step = attemptAway, hooks.FinishResize
	return ref
}

func backBy(ref migration.Ref) migration.Ref {
	ref.Attempt, ref.Step = attemptBack, hooks.FinishRevertResize
	return ref
}

// coldRecord is what a tool has said of its cold migration here; false where nothing is
// known of it.
func (x *Migrations) coldRecord(id string) (foreignArrival, bool, error) {
	rec, found, err := memory.Recall[foreignArrival](x.o.Memory, migration.Ref{Migration: id, Attempt: attemptAway}, memoryForeign)
	return rec, found && rec.Kind != "", err
}

// hookCold answers the phases of a cold migration.
func (x *Migrations) hookCold(ctx context.Context, ref migration.Ref, phase string, r HookRequest, a *HookAnswer) error {
	rec, found, err := x.coldRecord(ref.Migration)
	if err != nil {
		return err
	}
	if found {
		if r.Instance != "" && r.Instance != rec.Guest.UUID {
			return fault.New(fault.Invalid, "it is a migration of instance %s", rec.Guest.UUID)
		}
		ref.Instance = rec.Guest.UUID
	}
	switch phase {
	case PhasePrepResize:
		return x.hookPrepResize(ctx, ref, r, a)
	case PhaseResizeInstance:
		return x.hookResizeInstance(ctx, ref, r)
	}
	c, left := x.o.Tracker.Committed(ref.Migration)
	if left {
		ref.Instance = c.Instance
	}
	came := x.o.Tracker.Accepted(ref.Migration)
	switch phase {
	case PhaseRollbackPrepResize:
		return x.hookRollbackPrep(ctx, awayBy(ref), found)
	case PhaseConfirmResize:
		switch {
		case left && c.Attempt == attemptAway && came == attemptBack, left && c.Attempt == attemptBack:
			return fault.New(fault.Forbidden, "it was reverted")
		case left:
			return operation.ConfirmSource.Ask(ctx, x.o.Self, awayBy(ref))
		case came == attemptAway && !found:
			return nil // done before
		case came == attemptAway:
			return operation.ConfirmDestination.Ask(ctx, x.o.Self, awayBy(ref))
		}
	case PhaseRevertResize:
		switch {
		case left && c.Attempt == attemptBack:
			return operation.CleanUpReverted.Ask(ctx, x.o.Self, backBy(ref))
		case found && came == attemptAway:
			return x.hookRevert(ctx, ref, rec)
		}
	case PhaseFinishRevertResize:
		switch {
		case came == attemptBack && !found:
			return nil // done before
		case found && left && c.Attempt == attemptAway:
			return x.hookFinishRevert(ctx, ref, c.To)
		case !left && came == 0:
			if given, ok, err := x.given.taken(ref); ok || err != nil {
				return cmp.Or(err, x.hookTakeBack(ctx, given))
			}
		}
	case PhaseFinishResize:
		switch {
		case found && !left && rec.Source != x.o.Host:
			return x.hookFinishResize(ctx, ref, rec, a)
		case came == attemptAway && !left:
			if bound, ok := x.o.Attempts.BoundBy(x.refOfBound(ref)); ok {
				a.Claim = bound.ID // done before, and confirmed since
				return nil
			}
		}
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "no_claim", Message: "nothing on " + x.o.Host + " waits for " + phase + " of this migration",
		Change: "claim before the guest moves: berth external " + PhasePrepResize + " on its destination",
	})
}

// refOfBound completes a ref by the claim that came by its migration.
func (x *Migrations) refOfBound(ref migration.Ref) migration.Ref {
	for _, c := range x.o.Tracker.ByMigration(ref.Migration) {
		if c.BoundFrom != nil {
			return attempts.RefOf(*c.BoundFrom)
		}
	}
	return ref
}

// wantedBy is what a guest is to be: as the document says, or of another flavor.
func (x *Migrations) wantedBy(comes *arrival, f *topology.Flavor) (migration.Wanted, error) {
	if f != nil {
		var no fault.Refusal
		comes.demand = demands.Of(*f, nil, x.aliases(), &no)
		if err := no.Err("read flavor %s", f.Name); err != nil {
			return migration.Wanted{}, err
		}
		comes.inst.Flavor, comes.inst.Adopted = *f, false
	}
	d := comes.demand
	return migration.Wanted{Flavor: comes.inst.Flavor, Resources: d.Resources, Topology: d.Topology, PCIRequests: d.PCI}, nil
}

func (x *Migrations) hookPrepResize(ctx context.Context, ref migration.Ref, r HookRequest, a *HookAnswer) error {
	if err := x.o.Managing(""); err != nil {
		return err
	}
	ref = awayBy(ref)
	comes, err := x.arrivalOf(ctx, r.DomainXML)
	if err != nil {
		return err
	}
	if ref.Instance = comes.inst.UUID; r.Instance != "" && r.Instance != comes.inst.UUID {
		return fault.New(fault.Invalid, "the document is of instance %s, not of %s", comes.inst.UUID, r.Instance)
	}
	if r.Source == "" || r.Source == x.o.Host {
		return fault.New(fault.Invalid, "name the host that the guest comes from; it is another than %s", x.o.Host)
	}
	g := comes.guest(r.DomainXML)
	g.Definition = r.DomainXML
	mc := comes.context(r.Source, x.o.Host)
	mc.PowerState = migration.PowerShutOff
	wanted, err := x.wantedBy(&comes, r.Flavor)
	if err != nil {
		return err
	}
	mc.NewResources, mc.NewFlavor, mc.NewTopology, mc.NewPCIRequests = wanted.Resources, wanted.Flavor, wanted.Topology, wanted.PCIRequests
	kind := migration.TypeMigration
	if r.Flavor != nil {
		kind = migration.TypeResize
	}
	if err := x.o.Arrivals.CheckConnections(ctx, r.DomainXML); err != nil {
		return err
	}
	claim, err := x.claimForeign(ctx, ref, migration.ClaimRequest{Guest: g, Context: mc, Kind: kind}, nil)
	if err != nil {
		return err
	}
	if claim.State == claims.Bound {
		return fault.New(fault.Forbidden, "the guest has arrived already")
	}
	rec := foreignArrival{Source: r.Source, Guest: comes.inst, Kind: kind}
	rec.Until, rec.Expires = x.patience(hookPatience)
	err = x.o.Memory.Remember(ctx, ref, memoryForeign, rec)
	if err == nil {
		_, err = operation.PrepResize.Ask(ctx, x.o.Self, ref, migration.PrepRequest{Kind: kind, Guest: g, Wanted: wanted, Source: r.Source})
	}
	if err != nil {
		// Nothing half-made stays; the tool may ask again with another uuid.
		undo, cancel := x.o.Runtime.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, x.hookRollbackPrep(undo, ref, true))
	}
	definition, _, err := x.o.Arrivals.ColdDefinition(ref)
	if err != nil {
		return err
	}
	if x.o.Owners != nil {
		x.o.Owners.Kick()
	}
	a.Claim, a.DestinationXML, a.ExpiresAt = claim.ID, definition, &rec.Expires
	return nil
}

// hookRollbackPrep gives all back; a guest that is defined here is the tool's to remove.
func (x *Migrations) hookRollbackPrep(ctx context.Context, ref migration.Ref, known bool) error {
	if !known {
		// Its tombstones are all there is to do; they are kept under the migration.
		ref.Instance = cmp.Or(ref.Instance, ref.Migration)
		return errors.Join(x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)), x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepPrepResize)))
	}
	if d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance); err != nil {
		return err
	} else if exists && d.Active() {
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "runs_here", Message: "the guest is " + string(d.State) + " (" + string(d.Reason) + ") on " + x.o.Host + ", and is not ended for a rollback",
			Change: "end it first; if it did arrive, berth external " + PhaseFinishResize,
		})
	}
	if err := operation.RollbackPrepResize.Ask(ctx, x.o.Self, ref); err != nil {
		return err
	}
	if err := operation.AbortClaim.Ask(ctx, x.o.Self, ref); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}

// hookFinishResize makes a guest this host's that the tool has defined here.
func (x *Migrations) hookFinishResize(ctx context.Context, ref migration.Ref, rec foreignArrival, a *HookAnswer) error {
	ref = awayBy(ref)
	if !x.o.Attempts.Accepted(ref) {
		d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance)
		if err != nil {
			return err
		}
		if !exists || !d.Persistent {
			return fault.Refuse(fault.Busy, "", fault.Reason{
				Code: "not_arrived", Message: "the guest is not defined on " + x.o.Host,
				Change: "virsh define FILE, of what " + PhasePrepResize + " answered, or berth external " + PhaseRollbackPrepResize,
			})
		}
		if err := x.keepDefinition(ctx, ref, rec); err != nil {
			return err
		}
		if err := x.takeCold(ctx, ref, rec.Source); err != nil {
			return err
		}
	}
	if err := operation.FinishResize.Ask(ctx, x.o.Self, ref); err != nil {
		return err
	}
	bound, _ := x.o.Attempts.BoundBy(ref)
	a.Claim = bound.ID
	return x.countArrived(ctx, ref)
}

// takeCold brings the token here from the host that holds it.
func (x *Migrations) takeCold(ctx context.Context, ref migration.Ref, from string) error {
	none := fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "no_owner", Message: "no host gives " + x.o.Host + " the ownership token of this guest", Want: from,
		Change: "adopt it on the host that it comes from, or here: berth instance adopt",
	})
	if x.o.Fleet == nil {
		return none
	}
	c, given, err := x.o.Fleet.TakeToken(ctx, ref, from)
	if err != nil {
		return err
	}
	if !given {
		return none
	}
	return operation.AcceptHanded.Ask(ctx, x.o.Self, ref, c)
}

// keepDefinition makes what the tool has defined the guest's definition, placed as its
// claim says: its disks may have other paths here.
func (x *Migrations) keepDefinition(ctx context.Context, ref migration.Ref, rec foreignArrival) error {
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	_, found, err := x.o.Arrivals.ColdDefinition(ref)
	if err != nil || !found {
		return err
	}
	claim, ok := x.o.Tracker.ByOwner(x.o.Attempts.Owner(ref))
	if !ok {
		return fault.New(fault.Forbidden, "its claim has ended")
	}
	text, err := driver.Definition(ctx, x.o.Driver, ref.Instance)
	if err != nil {
		return err
	}
	if text, err = x.placed(ref, text, rec.Guest, claim); err != nil {
		return err
	}
	return x.o.Arrivals.SetColdDefinition(ctx, ref, text)
}

// countArrived writes the allocation of a guest that has come or come back.
func (x *Migrations) countArrived(ctx context.Context, ref migration.Ref) error {
	if x.o.Owners != nil {
		x.o.Owners.Kick()
	}
	inst, known := x.o.Tracker.Instance(ref.Instance)
	claim, bound := x.o.Attempts.ClaimOf(ref.Instance)
	if !known || !bound || inst.Token.State != claims.TokenHere || x.o.Fleet == nil {
		return nil
	}
	return fault.Wrap(x.o.Fleet.TakeAllocation(ctx, allocation.Of(inst, claim)), "guest %s is on %s, and its allocation could not be written", inst.Name, x.o.Host)
}

// hookRevert gives the guest and all that it has here back.
func (x *Migrations) hookRevert(ctx context.Context, ref migration.Ref, rec foreignArrival) error {
	ref = backBy(ref)
	if _, err := x.surrenderCold(ctx, ref, rec.Source, migration.TypeResize); err != nil {
		return err
	}
	return operation.CleanUpReverted.Ask(ctx, x.o.Self, ref)
}

// hookFinishRevert takes the guest back that its destination has given back.
func (x *Migrations) hookFinishRevert(ctx context.Context, ref migration.Ref, from string) error {
	ref = backBy(ref)
	if !x.o.Attempts.Accepted(ref) {
		if err := operation.AwaitReturn.Ask(ctx, x.o.Self, ref); err != nil {
			return err
		}
		if err := x.takeCold(ctx, ref, from); err != nil {
			return err
		}
	}
	if err := operation.FinishRevert.Ask(ctx, x.o.Self, ref); err != nil {
		return err
	}
	return x.countArrived(ctx, ref)
}

// followCold ends the claims of tools' cold migrations for which nobody has asked again
// and of whose guests nothing is defined here, what is left of rebuilds whose claims have
// ended, and words of which nothing can come.
func (x *Migrations) followCold(ctx context.Context) {
	x.followGiven(ctx)
	for _, c := range x.o.Tracker.List() {
		ref := attempts.RefOf(c.Owner)
		if c.Owner.Kind != claims.KindResize || c.State != claims.Pending && c.State != claims.Arriving || ref.Attempt != attemptAway {
			continue
		}
		rec, found, err := x.coldRecord(ref.Migration)
		if err != nil || !found || rec.Source == x.o.Host || !rec.over(x.o.Runtime.Boot()) {
			continue
		}
		all, err := x.o.Driver.Domains(ctx)
		if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == ref.Instance }) {
			continue
		}
		x.o.Logger.Info("a tool's cold migration brought nothing: its claim ends", "instance", ref.Instance, "migration", ref.Migration)
		x.progress.note(ctx, ref.Instance, x.hookRollbackPrep(ctx, ref, true))
	}
	for _, r := range x.o.Tracker.Remembering(memoryRebuild) {
		rec, found, err := memory.Recall[foreignRebuild](x.o.Memory, r, memoryRebuild)
		ref := migration.Ref{Migration: r.Migration, Instance: rec.Instance, Attempt: r.Attempt}
		if _, claimed := x.o.Tracker.ByOwner(attempts.OwnerOf(ref, claims.KindRebuild)); err != nil || !found || claimed {
			continue
		}
		if _, bound := x.o.Attempts.BoundBy(ref); !bound {
			x.progress.note(ctx, ref.Instance, x.hookRollbackRebuild(ctx, ref, rec, true)) // its lease is over
		}
	}
}
