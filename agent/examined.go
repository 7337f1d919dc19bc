package agent

import (
	"context"
	"time"

	"berth/agent/api"
	"berth/agent/doctor"
	"berth/migration/drain"
	"berth/topology"
)

// examined is what the doctor asks of this agent.
func examined(a *Agent) doctor.Options {
	return doctor.Options{
		Host: a.name, Observing: a.observing(), Config: a.config, Runtime: a.rt,
		Records: func() (doctor.Records, error) {
			r, err := a.fleetRecords()
			if err != nil {
				return nil, err
			}
			return r, nil
		},
		FenceHooks: func() ([]string, error) { return a.deaths.FenceHooks() },
		Told:       func() []api.Condition { return a.leaseKeeper.Conditions() },
		Lock:       a.shutdowns.lock,
		Estimate: func(ctx context.Context) (time.Duration, int, error) {
			list, err := drained{a}.Guests(ctx, drain.Request{Kind: drain.KindDrain, Host: a.name})
			if err != nil {
				return 0, 0, err
			}
			var guests []drain.Guest
			for _, p := range list {
				if !p.Off {
					guests = append(guests, drain.Guest{State: drain.Waiting, How: drain.HowLive, SizeMB: p.SizeMB})
				}
			}
			return drain.Estimate(a.movesTook(), guests, 0, a.drainLimits().Outbound), len(guests), nil
		},
		Hardware: func() (*topology.Host, []api.HostCell, []api.HostDevice) {
			cells, loose := a.cellViews()
			return a.believed(), cells, loose
		},
		Hypervisor: a.driver, Guard: a.guardian.state, Placement: a.placement,
		Reported: func() (api.Condition, error) { return a.health.placement(), a.reporter.Status().Err },
		Identity: a.identity, NoIdentity: a.noPeers, NoFiles: a.noFiles,
		Meet: func(ctx context.Context, host string) (api.Meeting, error) {
			c, err := a.peers.client(host)
			if err != nil {
				return api.Meeting{}, err
			}
			return c.Meet(ctx)
		},
	}
}
