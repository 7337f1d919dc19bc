package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"berth/agent/api"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
)

// planService plans from this host: nothing it asks of itself, of Placement or of
// other hosts changes anything. It does so in mode observe too, where it says that
// nothing would move.
type planService struct{ a *Agent }

// Plan implements api.Plans.
func (s planService) Plan(ctx context.Context, r api.PlanRequest) (migration.Plan, error) {
	doing := "plan where " + r.Instance + " could go"
	resizes := r.Flavor != nil || r.FlavorName != ""
	switch {
	case r.Instance == "" && !resizes:
		return migration.Plan{}, fault.New(fault.Invalid, "plan: name an instance, a flavor for a new one, or both for a resize")
	case r.Instance == "" && r.ShareNothing:
		return migration.Plan{}, fault.New(fault.Invalid, "plan: share_nothing is of a guest that is there: name it")
	case r.Instance == "":
		return s.planNew(ctx, r)
	case resizes && r.Kind == "":
		r.Kind = migration.PlanResize
	}
	if r.Kind == migration.PlanEvacuation && !resizes && !r.ShareNothing {
		return s.planEvacuation(ctx, r)
	}
	switch {
	case resizes != (r.Kind == migration.PlanResize):
		return migration.Plan{}, fault.New(fault.Invalid, "%s: kind %q: a resize names a flavor, and nothing else does", doing, r.Kind)
	case r.Kind != "" && !slices.Contains([]migration.PlanKind{migration.PlanLive, migration.PlanCold, migration.PlanResize}, r.Kind):
		return migration.Plan{}, fault.New(fault.Invalid, "%s: kind %q: want %s, %s or %s", doing, r.Kind, migration.PlanLive, migration.PlanCold, migration.PlanResize)
	}
	if r.ShareNothing {
		return s.planApart(ctx, doing, r)
	}
	id, elsewhere, err := migrationService(s).whereIs(ctx, doing, r.Instance)
	if err != nil {
		return migration.Plan{}, err
	}
	if elsewhere != "" {
		peer, err := s.a.peers.client(elsewhere)
		if err != nil {
			return migration.Plan{}, err
		}
		return peer.Plan(ctx, r)
	}
	ask := migration.PlanRequest{Kind: r.Kind, Named: r.Destination}
	if ask.Source, err = s.a.host.Describe(ctx); err != nil {
		return migration.Plan{}, err
	}
	if ask.Guest, err = operation.Inspect.Ask(ctx, s.a.host, migration.Ref{Instance: id}); err != nil {
		return migration.Plan{}, err
	}
	if ask.Kind == "" {
		if ask.Kind = migration.PlanLive; ask.Guest.PowerState == migration.PowerShutOff {
			ask.Kind = migration.PlanCold
		}
	}
	if ask.Named == s.a.name && !resizes {
		return migration.Plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "same_host", Message: "the guest is on " + s.a.name + " already", Have: s.a.name, Change: "name another host",
		})
	}
	if ask.Kind != migration.PlanLive {
		if err := s.planChange(ctx, s.a.host, doing, r, &ask); err != nil {
			return migration.Plan{}, err
		}
	}
	s.standingBlockers(ctx, id, r.Instance, &ask)
	if ask.Kind == migration.PlanLive {
		// What they cannot be together keeps the guest where it is too.
		ask.Options, ask.OptionsFrom, err = migrationService(s).options(doing, migration.TypeLiveMigration, ask.Guest.Flavor, migration.Options{})
		ask.Blockers = append(ask.Blockers, fault.ReasonsOf(err)...)
	}
	return s.planner().Plan(ctx, ask)
}

// planChange asks the guest's host what it would become.
func (s planService) planChange(ctx context.Context, source migration.Host, doing string, r api.PlanRequest, ask *migration.PlanRequest) error {
	change, err := migrationService(s).change(doing, api.Migrate{Flavor: r.Flavor, FlavorName: r.FlavorName})
	if err != nil {
		return err
	}
	w, err := operation.PlanChange.Ask(ctx, source, migration.Ref{Instance: ask.Guest.UUID}, change)
	switch {
	case err == nil:
		ask.Wanted = &w
	case fault.KindOf(err) == fault.Unavailable || len(fault.ReasonsOf(err)) == 0:
		return err
	default:
		ask.Blockers = append(ask.Blockers, fault.ReasonsOf(err)...)
	}
	return nil
}

// standingBlockers adds what keeps this host from conducting a move of a guest now; it is
// called instance by who asks.
func (s planService) standingBlockers(ctx context.Context, id, instance string, ask *migration.PlanRequest) {
	if s.a.observing() {
		ask.Blockers = append(ask.Blockers, observes(s.a.name))
	}
	switch m, known := s.a.conductedHere(ctx, id); {
	case known && m.Stage == migration.StageFinished:
		ask.Blockers = append(ask.Blockers, s.a.unconfirmedBlocker(instance, claims.MigrationContext{Migration: m.UUID}))
	case known:
		ask.Blockers = append(ask.Blockers, fault.Reason{
			Code: "moving", Message: "the instance is moving: migration " + m.UUID, Have: m.UUID, Change: "wait for it, or berth migration abort " + m.UUID,
		})
	}
	if c, waits := s.a.awaitedElsewhere(id); waits {
		ask.Blockers = append(ask.Blockers, s.a.unconfirmedBlocker(instance, c))
	} else if c, on := s.a.conductedElsewhere(id); on {
		ask.Blockers = append(ask.Blockers, movedElsewhere(c))
	}
}

// unconfirmedBlocker keeps a guest where it is until its resize is confirmed or reverted.
func (a *Agent) unconfirmedBlocker(instance string, c claims.MigrationContext) fault.Reason {
	return fault.Reason{
		Code: "migration_unfinished", Message: "migration " + c.Migration + " is finished and neither confirmed nor reverted", Have: c.Migration,
		Change: strings.Join(a.host.NextOf(c, instance), ", or "),
	}
}

// planNew plans for a guest that is not there yet.
func (s planService) planNew(ctx context.Context, r api.PlanRequest) (migration.Plan, error) {
	if r.Flavor != nil && r.FlavorName != "" {
		return migration.Plan{}, fault.New(fault.Invalid, "plan for a flavor: flavor and flavor_name: say one of them")
	}
	if r.Kind != "" && r.Kind != migration.PlanNew {
		return migration.Plan{}, fault.New(fault.Invalid, "plan for a flavor: kind %q is of guests that are there", r.Kind)
	}
	if r.Flavor == nil {
		f, known := (*s.a.flavors.Load())[r.FlavorName]
		if !known {
			return migration.Plan{}, s.a.noFlavor("plan for flavor "+r.FlavorName, r.FlavorName)
		}
		r.Flavor = &f
	}
	if err := r.Flavor.Validate(); err != nil {
		return migration.Plan{}, fault.New(fault.Invalid, "flavor: %w", err)
	}
	room, err := s.a.host.Demand(*r.Flavor)
	if err != nil {
		return migration.Plan{}, err
	}
	return s.planner().Plan(ctx, migration.PlanRequest{Kind: migration.PlanNew, Room: room, Named: r.Destination})
}

// Room implements api.Plans.
func (s planService) Room(ctx context.Context, r migration.RoomRequest) (migration.RoomAnswer, error) {
	return s.a.host.Room(ctx, r)
}

func (s planService) planner() conductor.Planner {
	return conductor.Planner{
		Placement: s.a.placement, Runtime: s.a.rt, Local: s.a.name, Known: slices.Sorted(maps.Keys(s.a.config().Peers)),
		NearWeight: s.a.nearWeight(),
		Hosts:      s.a.peers.host,
		Room: func(ctx context.Context, name string, r migration.RoomRequest) (migration.RoomAnswer, error) {
			if name == s.a.name {
				return s.a.host.Room(ctx, r)
			}
			if _, err := s.a.peers.host(ctx, name); err != nil {
				return migration.RoomAnswer{}, err // nobody calls a name that somebody made up
			}
			peer, err := s.a.peers.client(name)
			if err != nil {
				return migration.RoomAnswer{}, err
			}
			return peer.Room(ctx, r)
		},
	}
}

func observes(name string) fault.Reason {
	return fault.Reason{
		Code: "mode_observe", Message: "host " + name + " only observes", Have: "observe", Want: "manage",
		Change: `set [agent] mode = "manage" on ` + name,
	}
}
