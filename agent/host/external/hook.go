package external

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// The phases of a migration that a tool runs by itself, as `berth external` names
// them (design section 12).
const (
	PhasePreLive               = "pre-live-migration"
	PhasePostAtDestination     = "post-live-migration-at-destination"
	PhaseRollbackAtDestination = "rollback-live-migration-at-destination"
	PhasePost                  = "post-live-migration"
	PhaseRollback              = "rollback-live-migration"
)

// Phases are all of them, in the order of their stories.
func Phases() []string {
	return slices.Concat([]string{PhasePreLive, PhasePostAtDestination, PhasePost, PhaseRollbackAtDestination, PhaseRollback}, coldPhases, rebuildPhases)
}

var (
	coldPhases = []string{
		PhasePrepResize, PhaseResizeInstance, PhaseFinishResize, PhaseConfirmResize, PhaseRollbackPrepResize, PhaseRevertResize, PhaseFinishRevertResize,
	}
	rebuildPhases = []string{PhasePreRebuild, PhasePostRebuild, PhaseRollbackRebuild}
)

// HookRequest is what a tool says about its migration.
type HookRequest struct {
	// Instance is needed before the move only; afterwards it may be left out.
	Instance string `json:"instance,omitempty"`
	// Source is the host that the guest comes from; before the move.
	Source string `json:"source_compute,omitempty"`
	// Destination is the host that the guest goes to; asked of its source before the move,
	// where it moves while it is off.
	Destination string `json:"dest_compute,omitempty"`
	// DomainXML is the guest's migratable document, of a guest that moves while it is off
	// its definition, and of a rebuild what it is to be; before the move.
	DomainXML string `json:"domain_xml,omitempty"`
	// Flavor is what a resize makes of the guest; or by FlavorName a flavor of the host that
	// is asked. Before the move.
	Flavor     *topology.Flavor `json:"flavor,omitempty"`
	FlavorName string           `json:"flavor_name,omitempty"`
}

// HookAnswer is what a tool is told.
type HookAnswer struct {
	Migration string `json:"migration"`
	Claim     string `json:"claim,omitempty"`
	// DestinationXML is what to send the guest with, placed as its claim says, and
	// MigrateURI where to; empty leaves that to libvirt.
	DestinationXML string `json:"destination_xml,omitempty"`
	MigrateURI     string `json:"migrate_uri,omitempty"`
	// ExpiresAt is when the claim goes, unless the guest has come or it is asked for
	// again; nil for a claim that stays.
	ExpiresAt *time.Time     `json:"expires_at,omitempty"`
	Reasons   []fault.Reason `json:"reasons"`
}

// Hook answers a tool that runs a migration of its own. Every phase is safe to
// repeat; pre-live-migration is refused once its rollback was asked for, whatever
// came first.
func (x *Migrations) Hook(ctx context.Context, id, phase string, r HookRequest) (HookAnswer, error) {
	a := HookAnswer{Migration: id, Reasons: []fault.Reason{}}
	err := x.hook(ctx, id, phase, r, &a)
	return a, fault.Wrap(err, "%s of migration %s on %s", phase, id, x.o.Host)
}

func (x *Migrations) hook(ctx context.Context, id, phase string, r HookRequest, a *HookAnswer) error {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.String() != id {
		return fault.New(fault.Invalid, "%q is not a uuid in lower case", id)
	}
	ref := migration.Ref{Migration: id, Instance: r.Instance, Attempt: attemptAway}
	cold := slices.Contains(coldPhases, phase)
	if rec, found, err := x.foreignRecord(claims.Owner{Migration: id}); err != nil {
		return err
	} else if cold && found && rec.Kind != "" {
		return x.hookCold(ctx, ref, phase, r, a)
	}
	rebuild := slices.Contains(rebuildPhases, phase)
	if _, found, err := memory.Recall[foreignRebuild](x.o.Memory, ref, memoryRebuild); rebuild && (found || err != nil) {
		return cmp.Or(err, x.hookRebuild(ctx, ref, phase, r, a))
	}
	// A tool speaks of its own migrations; Berth's have their conductor.
	mine, err := x.foreignClaim(id)
	if err != nil {
		return err
	}
	switch {
	case cold:
		return x.hookCold(ctx, ref, phase, r, a)
	case rebuild:
		return x.hookRebuild(ctx, ref, phase, r, a)
	}
	if mine != nil {
		if r.Instance != "" && r.Instance != mine.Instance {
			return fault.New(fault.Invalid, "it is a migration of instance %s", mine.Instance)
		}
		ref.Instance = mine.Instance
	}
	switch phase {
	case PhasePreLive:
		if err := x.o.Managing(""); err != nil {
			return err
		}
		return x.hookPreLive(ctx, ref, r, a)
	case PhasePostAtDestination:
		return x.hookArrived(ctx, ref, mine, a)
	case PhaseRollbackAtDestination:
		return x.hookRollback(ctx, ref, mine)
	case PhasePost:
		return x.hookPost(ctx, ref, a)
	case PhaseRollback:
		return x.hookKeep(ctx, ref)
	}
	return fault.New(fault.Invalid, "there is no such phase: want one of %v", Phases())
}

// foreignClaim gives the owner of the claim that a tool's migration has here, or
// had when it was bound; nil for none. A migration of Berth's own is refused.
func (x *Migrations) foreignClaim(id string) (*claims.Owner, error) {
	own := fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "own_migration", Message: "migration " + id + " is Berth's own", Change: "berth migration show " + id,
	})
	if _, moving := x.o.Tracker.Context(id); moving {
		return nil, own
	}
	list := x.o.Tracker.ByMigration(id)
	if len(list) == 0 {
		return nil, nil
	}
	c := list[0] // a migration has one claim on a host
	if c.BoundFrom != nil && c.BoundFrom.Migration == id {
		return c.BoundFrom, nil
	}
	if _, found, err := x.foreignRecord(c.Owner); err != nil || !found {
		return nil, cmp.Or(err, own)
	}
	return &c.Owner, nil
}

func (x *Migrations) hookPreLive(ctx context.Context, ref migration.Ref, r HookRequest, a *HookAnswer) error {
	comes, err := x.arrivalOf(ctx, r.DomainXML)
	if err != nil {
		return err
	}
	inst := comes.inst
	if ref.Instance = inst.UUID; r.Instance != "" && r.Instance != inst.UUID {
		return fault.New(fault.Invalid, "the document is of instance %s, not of %s", inst.UUID, r.Instance)
	}
	if r.Source == x.o.Host {
		return fault.New(fault.Invalid, "the guest is to come from another host, not from %s", r.Source)
	}
	g := comes.guest(r.DomainXML)
	claim, err := x.claimForeign(ctx, ref, migration.ClaimRequest{Guest: g, Context: comes.context(r.Source, x.o.Host)}, nil)
	if err != nil {
		return err
	}
	if claim.State == claims.Bound {
		return fault.New(fault.Forbidden, "the guest has arrived already")
	}
	rec := foreignArrival{Source: r.Source, Guest: inst}
	rec.Until, rec.Expires = x.patience(hookPatience)
	if err := x.o.Memory.Remember(ctx, ref, memoryForeign, rec); err != nil {
		return err
	}
	p, err := operation.PreLiveMigration.Ask(ctx, x.o.Self, ref, migration.PreLiveRequest{Guest: g, Source: r.Source})
	if err != nil {
		// Nothing half-made stays; the tool may ask again with another uuid.
		undo, cancel := x.o.Runtime.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, x.hookRollback(undo, ref, &claim.Owner))
	}
	if x.o.Owners != nil {
		x.o.Owners.Kick()
	}
	a.Claim, a.DestinationXML, a.MigrateURI, a.ExpiresAt = claim.ID, p.DestinationXML, p.MigrateURI, &rec.Expires
	return nil
}

// claimForeign makes the claim of a foreign migration by the verb that a
// conductor would use. Placement is not asked: libvirt may wait for the answer.
func (x *Migrations) claimForeign(ctx context.Context, ref migration.Ref, r migration.ClaimRequest, found *topology.Assignment) (claims.Claim, error) {
	if err := x.o.Memory.Alone(ctx, ref.Instance, func(ctx context.Context) error {
		err := x.o.Managing("")
		if err == nil {
			err = x.o.Memory.Late(ref, operation.StepClaim)
		}
		if err == nil {
			_, err = x.o.Arrivals.Claim(ctx, ref, r, found)
		}
		return err
	}); err != nil {
		return claims.Claim{}, fault.Wrap(err, "claim %s on %s", r.Guest.Name, x.o.Host)
	}
	c, ok := x.o.Tracker.ByOwner(x.o.Attempts.Owner(ref))
	if !ok {
		if c, ok = x.o.Attempts.BoundBy(ref); !ok {
			return claims.Claim{}, fault.New(fault.Unavailable, "its claim has ended again: ask once more")
		}
	}
	return c, nil
}

// hookArrived settles what has come, without waiting for the next look.
func (x *Migrations) hookArrived(ctx context.Context, ref migration.Ref, mine *claims.Owner, a *HookAnswer) error {
	if mine == nil {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "no_claim", Message: "no claim on " + x.o.Host + " names this migration", Change: "claim before the guest moves: berth external " + PhasePreLive,
		})
	}
	if err := x.FollowArrival(ctx, ref); err != nil {
		return err
	}
	c, bound := x.o.Attempts.BoundBy(ref)
	if !bound {
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "not_arrived", Message: "the guest has not arrived on " + x.o.Host, Change: "ask again when it has, or berth external " + PhaseRollbackAtDestination,
		})
	}
	a.Claim = c.ID
	return nil
}

// hookRollback is the undo of hookPreLive. A guest that runs here is not ended for
// it: a tool that takes its migration for failed can be wrong.
func (x *Migrations) hookRollback(ctx context.Context, ref migration.Ref, mine *claims.Owner) error {
	if mine == nil {
		// Its tombstone is all there is to do; it is kept under the migration.
		ref.Instance = cmp.Or(ref.Instance, ref.Migration)
		return errors.Join(x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)), x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepPreLiveMigration)))
	}
	if _, bound := x.o.Attempts.BoundBy(ref); bound {
		return attempts.TooLate(x.o.Host)
	}
	if err := x.o.Tracker.WriteTombstone(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	x.o.Memory.Stop(ref)
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if x.o.Instances.Arrived(ref) {
		return attempts.TooLate(x.o.Host)
	}
	d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance)
	if err != nil {
		return err
	}
	if exists && d.Active() {
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "runs_here", Message: "the guest is " + string(d.State) + " (" + string(d.Reason) + ") on " + x.o.Host + ", and is not ended for a rollback",
			Change: "abort the migration first (virsh domjobabort " + fault.Quote(d.Name) + " on its source); if the guest did arrive, berth external " + PhasePostAtDestination,
		})
	}
	return x.endForeign(ctx, ref)
}

// hookPost lets go, on the source, of a guest that has left. The token goes when
// the destination asks for it.
func (x *Migrations) hookPost(ctx context.Context, ref migration.Ref, a *HookAnswer) error {
	c, left := x.o.Tracker.Committed(ref.Migration)
	if !left {
		a.Reasons = append(a.Reasons, fault.Reason{
			Code: "not_asked_yet", Message: "no host has asked " + x.o.Host + " for the guest's ownership token yet",
			Change: "berth external " + PhasePostAtDestination + " on the destination, which asks for it",
		})
		return nil
	}
	if inst, known := x.o.Tracker.Instance(c.Instance); known && inst.Token.State == claims.TokenSurrendered {
		return x.followLeft(ctx, inst)
	}
	return nil
}

// hookKeep is the source's word that the guest stays: nobody gets its token by
// this migration any more.
func (x *Migrations) hookKeep(ctx context.Context, ref migration.Ref) error {
	if c, left := x.o.Tracker.Committed(ref.Migration); left {
		return tokenHasLeft(c, "it lives there; move it back with another migration")
	}
	ref.Instance = cmp.Or(ref.Instance, ref.Migration)
	return x.o.Tracker.WriteTombstone(ctx, memory.At(ref, memoryLeft))
}

// finishForeign runs what an operator wants to run for a guest that has come, and
// drops the records of its migration.
func (x *Migrations) finishForeign(ctx context.Context, ref migration.Ref) error {
	if err := x.o.Arrivals.RunArrivedHooks(ctx, ref); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}
