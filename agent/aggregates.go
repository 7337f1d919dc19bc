package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration/conductor"
	"berth/placementclient"
)

// nearWeight is what it counts now that a host is near.
func (a *Agent) nearWeight() conductor.NearWeight {
	m := a.config().Migration
	return conductor.NearWeight{Multiplier: m.NearWeight, ByAggregate: m.NearWeightByAggregate}
}

// aggregateTries is how often a change of aggregates is tried of which somebody else has
// changed the provider meanwhile. Arbitrary; the reporter of this agent writes it too.
const aggregateTries = 5

// Aggregates implements api.Agent.
func (s agentService) Aggregates(ctx context.Context) (api.HostAggregates, error) {
	got, err := s.a.readAggregates(ctx)
	return api.HostAggregates{Name: s.a.name, ProviderUUID: s.a.uuid, Aggregates: got.Aggregates}, err
}

// ChangeAggregates implements api.Agent. They are Placement's alone: nothing of them is
// kept here, and the reporter leaves them as they are.
func (s agentService) ChangeAggregates(ctx context.Context, r api.ChangeAggregates) (api.HostAggregates, error) {
	a := s.a
	doing := "change aggregates of host " + a.name
	if err := r.Validate(); err != nil {
		return api.HostAggregates{}, fmt.Errorf("%s: %w", doing, err)
	}
	if a.observing() {
		return api.HostAggregates{}, fault.Refuse(fault.Forbidden, doing, observes(a.name))
	}
	for try := 1; ; try++ {
		had, err := a.readAggregates(ctx)
		if err != nil {
			return api.HostAggregates{}, fmt.Errorf("%s: %w", doing, err)
		}
		want := r.Of(had.Aggregates)
		if !slices.Equal(want, had.Aggregates) {
			_, err = a.placement.PutAggregates(ctx, a.uuid, placementclient.Aggregates{Generation: had.Generation, Aggregates: want})
		}
		switch {
		case err == nil:
			a.log.Info("aggregates of this host changed", "by", api.CallerName(ctx), "add", r.Add, "remove", r.Remove)
			return api.HostAggregates{Name: a.name, ProviderUUID: a.uuid, Aggregates: want}, nil
		case !errors.Is(err, fault.GenerationConflict) || try == aggregateTries:
			return api.HostAggregates{}, fmt.Errorf("%s: %w", doing, err)
		}
		if err := a.rt.Sleep(ctx, time.Duration(try)*50*time.Millisecond); err != nil {
			return api.HostAggregates{}, fmt.Errorf("%s: %w", doing, err)
		}
	}
}

// readAggregates reads those of this host's own provider, the root of its tree.
func (a *Agent) readAggregates(ctx context.Context) (placementclient.Aggregates, error) {
	got, err := a.placement.Aggregates(ctx, a.uuid)
	if errors.Is(err, fault.NotFound) {
		return got, fault.Refuse(fault.NotFound, "read aggregates of host "+a.name, fault.Reason{
			Code: "provider_missing", Message: "Placement has no provider for host " + a.name + " yet", Have: a.uuid,
			Change: "look at berth status: the agent makes the provider as soon as it manages the host and Placement answers",
		})
	}
	return got, err
}
