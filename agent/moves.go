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
	"berth/internal/fault"
	"berth/migration"
)

type migrationService struct{ a *Agent }

// Start implements api.Migrations.
func (s migrationService) Start(ctx context.Context, r api.Migrate) (migration.Migration, error) {
	if s.a.observing() {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, "migrate "+r.Instance, observes(s.a.name))
	}
	id, elsewhere, err := s.whereIs(ctx, "migrate "+r.Instance, r.Instance)
	if err != nil {
		return migration.Migration{}, err
	}
	if elsewhere == "" {
		if err := s.a.db.Room(); err != nil {
			return migration.Migration{}, err // its journal would have to wait in the middle
		}
		return s.a.conductor.LiveMigrate(ctx, migration.Request{
			Instance: id, Destination: r.Destination, Migration: r.Migration, Options: s.defaults(r.Options),
		})
	}
	peer, err := s.a.peers.client(elsewhere)
	if err != nil {
		return migration.Migration{}, err
	}
	s.a.log.Info("migrate passed on to the host that runs the guest", "instance", r.Instance, "host", elsewhere)
	return peer.Migrate(ctx, r)
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
	if from, relayed := api.FromHost(ctx); relayed {
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

// defaults fills in what the request leaves to the host.
func (s migrationService) defaults(o migration.Options) migration.Options {
	c := s.a.config().Migration
	if o.Bandwidth == 0 {
		o.Bandwidth = uint64(c.Bandwidth)
	}
	if o.MaxDowntime == 0 {
		o.MaxDowntime = c.MaxDowntime.D()
	}
	if o.Timeout == 0 {
		o.Timeout = c.Timeout.D()
	}
	if o.StallTimeout == 0 {
		o.StallTimeout = c.StallTimeout.D()
	}
	return o
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
func (s migrationService) Get(ctx context.Context, uuid string) (migration.Migration, error) {
	m, err := s.a.conductor.Get(ctx, uuid)
	if !errors.Is(err, fault.NotFound) {
		return m, err
	}
	for _, w := range s.a.waitingArrivals() {
		if w.UUID == uuid {
			return w, nil
		}
	}
	return m, err
}

// Abort implements api.Migrations.
func (s migrationService) Abort(ctx context.Context, uuid string) (migration.Migration, error) {
	if err := s.a.conductor.Abort(ctx, uuid); err != nil {
		return migration.Migration{}, err
	}
	return s.a.conductor.Get(ctx, uuid)
}

// Watch implements api.Migrations.
func (s migrationService) Watch(ctx context.Context, uuid string) (<-chan migration.Migration, error) {
	return s.a.conductor.Watch(ctx, uuid)
}
