package agent

import (
	"context"

	"berth/agent/api"
	"berth/agent/lease"
	"berth/internal/fault"
	"berth/internal/watchdog"
)

// leased is by what this agent keeps its host's lease.
func leased(a *Agent) lease.Options {
	return lease.Options{
		Host: a.name, Boot: a.rt.Boot().ID, Fleet: a.config().Fleet, Memory: a.db, Runtime: a.rt, Logger: a.log,
		Open: lease.Opening(watchdog.Open), Reopen: lease.Opening(watchdog.Reopen),
		Records: func() (lease.Records, error) {
			records, err := a.fleetRecords()
			switch {
			case err != nil:
				return nil, err
			case a.observing():
				return nil, fault.Refuse(fault.Forbidden, "keep this host's lease", observes(a.name))
			case !records.HasLeases():
				return nil, fault.New(fault.Forbidden, "keep this host's lease: the store has none")
			}
			return records, nil
		},
		Ask: func(ctx context.Context, host string) (api.StoreSeen, error) {
			client, err := a.peers.client(host)
			if err != nil {
				return api.StoreSeen{}, err
			}
			return client.FleetStore(ctx)
		},
		MayArm: func() bool {
			select {
			case <-a.recognised: // a copied machine must not speak in the other's name
				return a.estranged() == nil
			default:
				return false
			}
		},
	}
}
