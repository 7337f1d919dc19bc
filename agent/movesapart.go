package agent

import (
	"context"
	"errors"
	"strings"

	"berth/agent/api"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// whereabouts is a guest and the host that has it; host is empty for this one.
type whereabouts struct {
	uuid, name, host, state string
	flavor                  topology.Flavor
}

// locate finds a guest by name or uuid, here or on another host.
func (s migrationService) locate(ctx context.Context, doing, ref string) (whereabouts, error) {
	id, elsewhere, err := s.whereIs(ctx, doing, ref)
	if err != nil {
		return whereabouts{}, err
	}
	if elsewhere == "" {
		guest, err := s.a.host.Show(ctx, id)
		return whereabouts{uuid: id, name: guest.Name, state: guest.State, flavor: guest.Flavor}, err
	}
	peer, err := s.a.peers.client(elsewhere)
	if err != nil {
		return whereabouts{}, err
	}
	guest, err := peer.Instance(ctx, ref)
	if err != nil {
		return whereabouts{}, err
	}
	return whereabouts{uuid: guest.UUID, name: guest.Name, host: elsewhere, state: guest.State, flavor: guest.Flavor}, nil
}

// startApart starts a move between hosts that share nothing. It is conducted here, wherever
// the guest is, and never passed on: the right to ask for it is one of this host.
func (s migrationService) startApart(ctx context.Context, doing string, r api.Migrate) (migration.Migration, error) {
	doing += " between hosts that share nothing"
	if err := apartRequest(doing, &r); err != nil {
		return migration.Migration{}, err
	}
	if err := api.Demand(ctx, pki.RightShareNothing, api.Deed{Doing: doing, Migration: r.Migration}); err != nil {
		return migration.Migration{}, err
	}
	if m, known, err := s.begun(ctx, doing, r); known || err != nil {
		return m, err
	}
	if err := s.a.db.Room(); err != nil {
		return migration.Migration{}, err // its journal would have to wait in the middle
	}
	change, err := s.change(doing, r)
	if err != nil {
		return migration.Migration{}, err
	}
	guest, err := s.locate(ctx, doing, r.Instance)
	if err != nil {
		return migration.Migration{}, err
	}
	if off := string(driver.ShutOff); r.Offline && guest.state != off {
		return migration.Migration{}, notOff(doing, guest.name, guest.state)
	}
	if guest.host == "" {
		err = s.unconducted(doing, r.Instance, guest.uuid)
	} else {
		err = s.gives(ctx, doing, guest.host)
	}
	if err != nil {
		return migration.Migration{}, err
	}
	ask, err := s.request(doing, r, guest.uuid, r.MigrationType, guest.flavor)
	if err != nil {
		return migration.Migration{}, err
	}
	ask.Source, ask.Change, ask.By = guest.host, change, api.CallerWords(ctx)
	return s.a.conductor.Start(ctx, ask)
}

// gives refuses a guest of another host that only observes, knows no such moves, or lets
// this one conduct none.
func (s migrationService) gives(ctx context.Context, doing, name string) error {
	peer, err := s.a.peers.client(name)
	if err != nil {
		return err
	}
	d, err := peer.Describe(ctx)
	switch {
	case err != nil:
		return err
	case d.Mode == string(config.Observe):
		return fault.Refuse(fault.Forbidden, doing, observes(name))
	}
	// It connects to nobody for itself, and says no sooner to who may not ask.
	if err := operation.Reaches.Ask(ctx, peer, migration.Ref{}, migration.ReachRequest{Host: name}); errors.Is(err, fault.Forbidden) {
		return err
	}
	return nil
}

// unconducted refuses a guest of this host that is on a move which another host conducts.
func (s migrationService) unconducted(doing, instance, id string) error {
	if c, waits := s.a.awaitedElsewhere(id); waits {
		return fault.Refuse(fault.Busy, doing, s.a.unconfirmedBlocker(instance, c))
	}
	if c, on := s.a.conductedElsewhere(id); on {
		return fault.Refuse(fault.Busy, doing, movedElsewhere(c))
	}
	return nil
}

// movedElsewhere keeps a guest where it is while another host conducts a move of it.
func movedElsewhere(c conducted) fault.Reason {
	return fault.Reason{
		Code: "moving", Message: "the instance is moving: host " + c.host + " conducts migration " + c.migration, Have: c.migration,
		Change: "wait for it, or berth migration abort " + c.migration,
	}
}

// apartRequest refuses what makes no sense of a move between hosts that share nothing, with
// every reason, and fills in its type.
func apartRequest(doing string, r *api.Migrate) error {
	var reasons []fault.Reason
	bad := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	resizes := r.Flavor != nil || r.FlavorName != ""
	if r.MigrationType == "" {
		if r.MigrationType = migration.TypeMigration; resizes {
			r.MigrationType = migration.TypeResize
		}
	}
	switch r.MigrationType {
	case migration.TypeMigration, migration.TypeResize:
	case migration.TypeLiveMigration:
		bad("share_nothing", "a live migration needs the two hosts to reach each other: memory goes straight from one to the other", "move it cold, or leave out share_nothing")
	default:
		bad("share_nothing", "a "+r.MigrationType+" does not go to another host", "leave out share_nothing")
	}
	reasons = append(reasons, ofGuestsThatRun(*r)...)
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, doing, reasons...)
	}
	return nil
}

// mayDecide holds whoever confirms, reverts or aborts a move that is conducted here against
// its kind: one between hosts that share nothing needs the right for that too. Who asks
// another host is held against what that one says of him.
func (s migrationService) mayDecide(ctx context.Context, doing, id string) error {
	m, err := s.a.conductor.Get(ctx, id)
	if err != nil || !m.ShareNothing {
		return err
	}
	return api.Demand(ctx, pki.RightShareNothing, api.Deed{
		Doing: doing, Migration: m.UUID, Instance: m.InstanceUUID, Parties: []string{m.SourceCompute, m.DestCompute},
	})
}

// planApart plans a move that this host would conduct, whoever has the guest.
func (s planService) planApart(ctx context.Context, doing string, r api.PlanRequest) (migration.Plan, error) {
	doing += " between hosts that share nothing"
	if r.Kind == migration.PlanLive {
		return migration.Plan{}, fault.New(fault.Invalid, "%s: a live migration needs the two hosts to reach each other", doing)
	}
	guest, err := migrationService(s).locate(ctx, doing, r.Instance)
	if err != nil {
		return migration.Plan{}, err
	}
	ask := migration.PlanRequest{Kind: r.Kind, Named: r.Destination, ShareNothing: true}
	if ask.Kind == "" {
		ask.Kind = migration.PlanCold
	}
	name := guest.host
	if name == "" {
		name = s.a.name
	}
	if ask.Named == name {
		return migration.Plan{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "same_host", Message: "the guest is on " + name + " already", Have: name, Change: "name another host",
		})
	}
	source, err := s.a.peers.host(ctx, name)
	if err != nil {
		return migration.Plan{}, err
	}
	if ask.Source, err = source.Describe(ctx); err != nil {
		return migration.Plan{}, err
	}
	if name != s.a.name {
		if ask.Source.Mode == string(config.Observe) {
			ask.Blockers = append(ask.Blockers, observes(name))
		}
		if err := migrationService(s).gives(ctx, doing, name); err != nil && len(ask.Blockers) == 0 {
			return migration.Plan{}, err
		}
	}
	if ask.Guest, err = operation.Inspect.Ask(ctx, source, migration.Ref{Instance: guest.uuid}); err != nil {
		return migration.Plan{}, err
	}
	if err := s.planChange(ctx, source, doing, r, &ask); err != nil {
		return migration.Plan{}, err
	}
	// Who may not do it is told what a plan is for: what would have to change.
	if err := api.May(ctx, pki.RightShareNothing, api.Deed{Doing: doing, Instance: guest.uuid}); err != nil {
		ask.Blockers = append(ask.Blockers, fault.ReasonsOf(err)...)
	}
	s.standingBlockers(ctx, guest.uuid, strings.TrimSpace(r.Instance), &ask)
	return s.planner().Plan(ctx, ask)
}
