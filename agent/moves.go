package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

type migrationService struct{ a *Agent }

// Start implements api.Migrations.
func (s migrationService) Start(ctx context.Context, r api.Migrate) (migration.Migration, error) {
	doing := doingOf(r) + " " + r.Instance
	if s.a.observing() {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, doing, observes(s.a.name))
	}
	if r.DiscardSavedState && (r.ShareNothing || r.MigrationType == migration.TypeEvacuation) {
		return migration.Migration{}, fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "discard_saved_state", Message: "saved memory is discarded by the host that has it, in a move that it conducts",
			Change: "virsh managedsave-remove " + r.Instance + " there, and leave --discard-saved-state out",
		})
	}
	if r.ShareNothing {
		return s.startApart(ctx, doing, r)
	}
	if m, known, err := s.begun(ctx, doing, r); known || err != nil {
		return m, err
	}
	if r.MigrationType == migration.TypeEvacuation {
		return s.startEvacuation(ctx, doing, r)
	}
	id, elsewhere, err := s.whereIs(ctx, doing, r.Instance)
	if err != nil {
		return migration.Migration{}, err
	}
	if from := s.beganAt(ctx, r.Migration); from != "" {
		elsewhere = from
	}
	if elsewhere == "" {
		return s.startHere(ctx, doing, id, r)
	}
	peer, err := s.a.peers.client(elsewhere)
	if err != nil {
		return migration.Migration{}, err
	}
	s.a.log.Info("move passed on to the host that has the guest", "instance", r.Instance, "type", r.MigrationType, "host", elsewhere)
	return peer.Migrate(ctx, r)
}

// begun gives the move that an earlier request with the same uuid has made here: whoever
// asks again, since the answer was lost, must not move the guest once more, wherever it is
// by now.
func (s migrationService) begun(ctx context.Context, doing string, r api.Migrate) (migration.Migration, bool, error) {
	if r.Migration == "" {
		return migration.Migration{}, false, nil
	}
	m, err := s.a.conductor.Get(ctx, r.Migration)
	if err != nil || r.Instance != m.InstanceUUID && r.Instance != m.InstanceName {
		return migration.Migration{}, false, nil
	}
	change := migration.Change{Flavor: r.Flavor, Image: r.Image}
	switch {
	case r.FlavorName != "" && r.Flavor != nil:
		return migration.Migration{}, false, twoFlavors(doing)
	case r.FlavorName != "":
		// By its name alone: what is called so may have changed since.
		change.Flavor = &topology.Flavor{Name: r.FlavorName}
	}
	ask := conductor.Request{
		Instance: m.InstanceUUID, Type: r.MigrationType, Destination: r.Destination, Alternates: r.Alternates, Migration: r.Migration, Change: change, ShareNothing: r.ShareNothing,
		Stopped: r.Stopped, AcceptLoss: r.AcceptLoss,
	}
	if r.ShareNothing || r.MigrationType == migration.TypeEvacuation {
		ask.Source = m.SourceCompute // wherever the guest is by now
	}
	return s.a.conductor.Begun(ask)
}

// beganAt is the other host at which a move with a uuid began, by what is recorded here;
// empty for none, and in a request that was passed on already.
func (s migrationService) beganAt(ctx context.Context, id string) string {
	if id == "" {
		return ""
	}
	p, known := parties{s.a.tracker}.Parties(id, "")
	if _, relayed := api.PassedOn(ctx); !known || relayed || p.Conductor == s.a.name {
		return ""
	}
	return p.Conductor
}

// doingOf is what is asked for, in the words of commands.
func doingOf(r api.Migrate) string {
	switch r.MigrationType {
	case migration.TypeResize, migration.TypeRebuild:
		return r.MigrationType
	case migration.TypeEvacuation:
		return "evacuate"
	}
	return "migrate"
}

// startHere starts a move of a guest of this host.
func (s migrationService) startHere(ctx context.Context, doing, id string, r api.Migrate) (migration.Migration, error) {
	if err := s.a.db.Room(); err != nil {
		return migration.Migration{}, err // its journal would have to wait in the middle
	}
	if err := s.unconducted(doing, r.Instance, id); err != nil {
		return migration.Migration{}, err
	}
	change, err := s.change(doing, r)
	if err != nil {
		return migration.Migration{}, err
	}
	kind, err := s.kind(ctx, doing, id, r)
	if err != nil {
		return migration.Migration{}, err
	}
	ask, err := s.request(doing, r, id, kind, s.a.flavorOf(id))
	if err != nil {
		return migration.Migration{}, err
	}
	ask.Change, ask.By = change, api.CallerWords(ctx)
	if r.DiscardSavedState {
		if err := s.a.host.DiscardSavedState(ctx, id); err != nil {
			return migration.Migration{}, err
		}
	}
	return s.a.conductor.Start(ctx, ask)
}

// request is what the conductor is asked for, with what the guest's flavor and this host are
// set to where it is left open.
func (s migrationService) request(doing string, r api.Migrate, instance, kind string, f topology.Flavor) (conductor.Request, error) {
	o, from, err := s.options(doing, kind, f, r.Options)
	if err != nil {
		return conductor.Request{}, err
	}
	ask := conductor.Request{
		Instance: instance, Type: kind, Destination: r.Destination, Alternates: r.Alternates, ShareNothing: r.ShareNothing, Migration: r.Migration, Priority: int(r.Priority),
		Options: o, OptionsFrom: from, ConfirmWindow: r.ConfirmWindow, ShutdownTimeout: r.ShutdownTimeout,
	}
	if ask.ConfirmWindow == nil {
		// As it is now, not as it was when the conductor was made.
		window := s.a.config().Migration.ResizeConfirmWindow.D()
		ask.ConfirmWindow = &window
	}
	return ask, nil
}

// kind is the type of a move: as asked for, by its options too, or live where the guest has its
// memory.
func (s migrationService) kind(ctx context.Context, doing, id string, r api.Migrate) (string, error) {
	live := r.MigrationType == migration.TypeLiveMigration
	cold := r.MigrationType == "" || r.MigrationType == migration.TypeMigration || r.MigrationType == migration.TypeResize
	var reasons []fault.Reason
	bad := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	if live && (r.ConfirmWindow != nil || r.ShutdownTimeout != nil || r.Offline) {
		bad("migration_type", "a live migration shuts nothing down and waits for no confirmation", "ask for a cold migration, or leave out confirm_window, shutdown_timeout and offline")
	}
	if r.Offline && !live && !cold {
		bad("offline", "offline is of cold migrations and resizes", "leave it out")
	}
	running := ofGuestsThatRun(r)
	if r.MigrationType != "" && !live || r.Offline {
		reasons = append(reasons, running...)
	}
	if len(reasons) > 0 {
		return "", fault.Refuse(fault.Invalid, doing, reasons...)
	}
	if len(running) > 0 {
		return migration.TypeLiveMigration, nil // as it is asked for; one that is off is refused
	}
	if r.MigrationType != "" && !r.Offline {
		return r.MigrationType, nil
	}
	guest, err := s.a.host.Show(ctx, id)
	if err != nil {
		return "", err
	}
	off := guest.State == string(driver.ShutOff)
	switch {
	case r.Offline && !off:
		return "", notOff(doing, guest.Name, guest.State)
	case r.MigrationType != "":
		return r.MigrationType, nil
	case off:
		return migration.TypeMigration, nil
	}
	return migration.TypeLiveMigration, nil
}

// notOff refuses a guest that was to be moved only where it is shut off.
func notOff(doing, name, state string) error {
	return fault.Refuse(fault.Forbidden, doing, fault.Reason{
		Code: "guest_runs", Message: "the guest is " + state + ", and was to be moved only where it is shut off", Have: state, Want: string(driver.ShutOff),
		Change: "berth instance stop " + name + "; or leave out --offline, and it is shut down for it",
	})
}

func twoFlavors(doing string) error {
	return fault.New(fault.Invalid, "%s: flavor and flavor_name: say one of them", doing)
}

// change is what a resize or a rebuild makes of the guest.
func (s migrationService) change(doing string, r api.Migrate) (migration.Change, error) {
	out := migration.Change{Flavor: r.Flavor, Image: r.Image}
	switch {
	case r.FlavorName != "" && r.Flavor != nil:
		return out, twoFlavors(doing)
	case r.FlavorName != "":
		f, known := (*s.a.flavors.Load())[r.FlavorName]
		if !known {
			return out, s.a.noFlavor(doing, r.FlavorName)
		}
		out.Flavor = &f
	}
	if out.Flavor != nil {
		if err := out.Flavor.Validate(); err != nil {
			return out, fault.New(fault.Invalid, "%s: flavor: %w", doing, err)
		}
	}
	return out, nil
}

// noFlavor refuses the name of a flavor that no file has.
func (a *Agent) noFlavor(doing, name string) error {
	return fault.Refuse(fault.Invalid, doing, fault.Reason{
		Code: "flavor_unknown", Message: "this host has no flavor " + name, Want: name,
		Change: "write " + a.config().Agent.FlavorsDir + "/" + name + ".toml and reload the agent",
	})
}

// whereIs gives the uuid of a guest of this host, or the name of the host that runs
// it.
func (s migrationService) whereIs(ctx context.Context, doing, ref string) (id, elsewhere string, err error) {
	id, err = s.a.host.Resolve(ctx, ref)
	if err == nil {
		if inst, ok := s.a.tracker.Instance(id); ok && inst.Token.State == claims.TokenSurrendered {
			elsewhere = inst.Token.Holder
		}
		if elsewhere == "" {
			return id, "", nil
		}
	} else if !errors.Is(err, fault.NotFound) {
		return "", "", err
	}
	// Passed on once only: two hosts that each believe the guest to be with the
	// other would pass it on for ever.
	if from, relayed := api.PassedOn(ctx); relayed {
		return "", "", fault.Refuse(fault.NotFound, doing, fault.Reason{
			Code: "instance_unknown", Message: "host " + s.a.name + " does not run it, though " + from + " believes so", Change: "berth instance list on each host",
		})
	}
	if elsewhere != "" {
		return "", elsewhere, nil
	}
	elsewhere, err = s.find(ctx, doing, ref)
	return "", elsewhere, err
}

// find looks for the host that runs a guest: by Placement's allocations where
// the guest is named by uuid, then by asking the peers.
func (s migrationService) find(ctx context.Context, doing, ref string) (string, error) {
	ctx, cancel := s.a.rt.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if _, err := uuid.Parse(ref); err == nil {
		if held, err := s.a.placement.Allocations(ctx, ref); err == nil {
			for _, provider := range slices.Sorted(maps.Keys(held.Allocations)) {
				if !lives(held.Allocations[provider]) {
					continue
				}
				p, err := s.a.placement.Provider(ctx, provider)
				if err == nil && !p.IsRoot() {
					p, err = s.a.placement.Provider(ctx, p.RootProviderUUID)
				}
				if err == nil && p.Name != s.a.name {
					return p.Name, nil
				}
			}
		}
	}
	hosts, err := agentService(s).Hosts(ctx)
	if err != nil {
		return "", err
	}
	var silent []fault.Reason
	var found []string
	for _, h := range hosts {
		if h.Local {
			continue
		}
		if !h.Reachable {
			silent = append(silent, fault.Reason{Code: "host_silent", Message: "host " + h.Name + " could not be asked: " + h.Error, Change: "name the guest by its uuid, or ask the host that runs it with -c"})
			continue
		}
		peer, err := s.a.peers.client(h.Name)
		if err != nil {
			return "", err
		}
		inst, err := peer.Instance(ctx, ref)
		switch {
		case err == nil && inst.Managed && inst.Token.State == claims.TokenHere:
			found = append(found, h.Name)
		case err != nil && !errors.Is(err, fault.NotFound):
			silent = append(silent, fault.Reason{Code: "host_silent", Message: "host " + h.Name + ": " + err.Error()})
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fault.New(fault.Invalid, "%s: several hosts have a guest of that name (%v): name it by its uuid", doing, found)
	case len(silent) > 0:
		return "", fault.Refuse(fault.Unavailable, "find the host that runs "+ref, silent...)
	}
	return "", fault.Refuse(fault.NotFound, doing, fault.Reason{
		Code: "instance_unknown", Message: "no host has an instance " + ref, Want: ref, Change: "berth instance list, with -c for other hosts",
	})
}

// List implements api.Migrations.
func (s migrationService) List(ctx context.Context) ([]migration.Migration, error) {
	list, err := s.a.conductor.List(ctx)
	out := make([]migration.Migration, 0, len(list))
	out = append(append(out, list...), s.a.waitingArrivals()...)
	slices.Reverse(out)
	return out, err
}

// Get implements api.Migrations.
func (s migrationService) Get(ctx context.Context, ref string) (migration.Migration, error) {
	if m, ok := s.a.conductedHere(ctx, ref); ok {
		return m, nil
	}
	for _, w := range s.a.waitingArrivals() {
		if w.UUID == ref {
			return w, nil
		}
	}
	at, err := s.near(ctx, "show migration "+ref, ref)
	if errors.Is(err, fault.NotFound) {
		return s.past(ctx, ref, err)
	}
	if err != nil {
		return migration.Migration{}, err
	}
	if at.host == "" {
		return s.a.conductor.Get(ctx, at.migration)
	}
	peer, err := s.a.peers.client(at.host)
	if err != nil {
		return migration.Migration{}, err
	}
	m, err := peer.Migration(ctx, at.migration)
	return m, at.silent("show migration "+ref, err)
}

// Abort implements api.Migrations.
func (s migrationService) Abort(ctx context.Context, ref string) (migration.Migration, error) {
	return s.decide(ctx, "abort migration "+ref, ref, s.whoConducts, (*api.Client).AbortMigration, func(ctx context.Context, id string) (migration.Migration, error) {
		if err := s.a.conductor.Abort(ctx, id); err != nil {
			return migration.Migration{}, err
		}
		return s.a.conductor.Get(ctx, id)
	})
}

// Confirm implements api.Migrations.
func (s migrationService) Confirm(ctx context.Context, ref string) (migration.Migration, error) {
	return s.decide(ctx, "confirm the resize of "+ref, ref, s.whoConducts, (*api.Client).ConfirmMigration, s.a.conductor.Confirm)
}

// Revert implements api.Migrations.
func (s migrationService) Revert(ctx context.Context, ref string) (migration.Migration, error) {
	return s.decide(ctx, "revert the resize of "+ref, ref, s.whoConducts, (*api.Client).RevertMigration, s.a.conductor.Revert)
}

// decide does something with a move where it is conducted: here, or passed on to there.
func (s migrationService) decide(ctx context.Context, doing, ref string, find func(ctx context.Context, doing, ref string) (conducted, error),
	there func(*api.Client, context.Context, string) (migration.Migration, error),
	here func(context.Context, string) (migration.Migration, error)) (migration.Migration, error) {
	at, err := find(ctx, doing, ref)
	if err != nil {
		return migration.Migration{}, err
	}
	if at.host == "" {
		if err := s.mayDecide(ctx, doing, at.migration); err != nil {
			return migration.Migration{}, err
		}
		return here(ctx, at.migration)
	}
	peer, err := s.a.peers.client(at.host)
	if err != nil {
		return migration.Migration{}, err
	}
	s.a.log.Info("request passed on to the host that conducts the move", "request", doing, "migration", at.migration, "host", at.host)
	m, err := there(peer, ctx, at.migration)
	return m, at.silent(doing, err)
}

// Watch implements api.Migrations.
func (s migrationService) Watch(ctx context.Context, ref string) (<-chan migration.Migration, error) {
	at, err := s.near(ctx, "watch migration "+ref, ref)
	if err != nil {
		return nil, err
	}
	if at.host == "" {
		return s.a.conductor.Watch(ctx, at.migration)
	}
	peer, err := s.a.peers.client(at.host)
	if err != nil {
		return nil, err
	}
	// The first record says whether it is known there; an error can be answered no more
	// once records flow.
	first, err := peer.Migration(ctx, at.migration)
	if err != nil {
		return nil, at.silent("watch migration "+ref, err)
	}
	out := make(chan migration.Migration, 1)
	out <- first
	s.a.rt.Go("watch of migration "+at.migration, func() {
		defer close(out)
		// What ends it ends the channel, and the caller's stream with it.
		_ = peer.WatchMigration(ctx, at.migration, watchPatience, func(m migration.Migration) error {
			select {
			case out <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	return out, nil
}

// watchPatience is how long the host that conducts a watched move may be away. Arbitrary.
const watchPatience = 2 * time.Minute

// Stories implements api.Migrations.
func (s migrationService) Stories() []migration.Story { return conductor.Stories() }
