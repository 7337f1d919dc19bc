package agent

import (
	"context"

	"berth/agent/api"
	"berth/agent/death"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

// lostGuests are the fleet's records as the conductor of an evacuation asks them.
func (a *Agent) lostGuests() death.Evacuations {
	return death.Evacuations{Records: a.fleetRecords, Prove: a.deaths.Prove, Ready: func(source string) error { return a.keeper.ready(source) }, Provider: a.placement.HostProvider, Elsewhere: a.notElsewhere, Self: a.name}
}

// startEvacuation has this host conduct the evacuation of a guest whose host is dead, by the
// fleet's records. It is passed on to nobody: any host can conduct it.
func (s migrationService) startEvacuation(ctx context.Context, doing string, r api.Migrate) (migration.Migration, error) {
	if err := s.a.db.Room(); err != nil {
		return migration.Migration{}, err // its journal would have to wait in the middle
	}
	if r.Offline || r.ConfirmWindow != nil || r.ShutdownTimeout != nil || r.FlavorName != "" {
		return migration.Migration{}, fault.New(fault.Invalid, "%s: offline, shutdown_timeout, confirm_window and flavor_name are of other moves", doing)
	}
	if bad := ofGuestsThatRun(r); len(bad) > 0 {
		return migration.Migration{}, fault.Refuse(fault.Invalid, doing, bad...)
	}
	in, err := fleetService(s).Instance(ctx, r.Instance)
	if err != nil {
		return migration.Migration{}, err
	}
	s.a.log.Info("evacuation asked for", "instance", in.UUID, "source", in.Host, "destination", r.Destination, "migration", r.Migration,
		"by", api.CallerWords(ctx), "accept_data_loss", r.AcceptLoss, "stopped", r.Stopped)
	o, from, err := s.options(doing, r.MigrationType, topology.Flavor{}, r.Options)
	if err != nil {
		return migration.Migration{}, err
	}
	return s.a.conductor.Start(ctx, conductor.Request{
		Instance: in.UUID, Source: in.Host, Type: migration.TypeEvacuation, Destination: r.Destination, Alternates: r.Alternates, Migration: r.Migration,
		Options: o, OptionsFrom: from, Change: migration.Change{Flavor: r.Flavor, Image: r.Image}, Stopped: r.Stopped, AcceptLoss: r.AcceptLoss,
		By: api.CallerWords(ctx),
	})
}

// planEvacuation plans that. It is asked of any host.
func (s planService) planEvacuation(ctx context.Context, r api.PlanRequest) (migration.Plan, error) {
	in, err := fleetService(s).Instance(ctx, r.Instance)
	if err != nil {
		return migration.Plan{}, err
	}
	plan, err := s.planner().Evacuation(ctx, s.a.lostGuests(), conductor.EvacuationPlan{Instance: in.UUID, Named: r.Destination, Image: r.Image, AcceptLoss: r.AcceptLoss})
	if err != nil {
		return migration.Plan{}, err
	}
	if plan.InstanceName == "" { // of a host that is not known to be dead no more than this is read
		plan.InstanceName, plan.Source = in.Name, in.Host
	}
	if s.a.observing() {
		plan.Blockers = append(plan.Blockers, observes(s.a.name))
		plan.Chosen = ""
	}
	if m, known := s.a.conductedHere(ctx, in.UUID); known && !m.Done() {
		plan.Blockers = append(plan.Blockers, fault.Reason{
			Code: "moving", Message: "the instance is on a move: migration " + m.UUID, Have: m.UUID, Change: "wait for it, or berth migration abort " + m.UUID,
		})
		plan.Chosen = ""
	}
	return plan, nil
}
