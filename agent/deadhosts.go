package agent

import (
	"context"

	"berth/agent/death"
	"berth/agent/host/hooks"
	"berth/systemd"
)

// provenDead is by what this agent declares other hosts dead: its hooks, its peers and Placement.
func provenDead(a *Agent) death.Options {
	return death.Options{
		Host: a.name, Records: a.fleetRecords, Answers: a.heard, Notes: a.db, Runtime: a.rt, Logger: a.log,
		Hooks: &hooks.Runner{
			Dir: a.config().Agent.HooksDir, Manager: systemd.Manager(), Runtime: a.rt, Logger: a.log,
			Setting: func(hook string) hooks.Setting { return hooks.Setting{Timeout: a.config().Hooks[hook].Timeout.D()} },
		},
		Known: func(ctx context.Context, host string) (string, error) {
			if a.keeper.remembers(host) {
				return "host " + a.name + ", which has seen its record before", nil
			}
			provider, err := a.placement.HostProvider(ctx, host)
			if provider == "" {
				return "", err
			}
			return "Placement, as provider " + provider, nil
		},
	}
}

// heard asks another host's agent whether it is there: nil where it is. An agent that refuses
// or fails has answered. A connection that is refused is no answer of an agent's.
func (a *Agent) heard(ctx context.Context, host string) error {
	client, err := a.peers.client(host)
	if err != nil {
		return err
	}
	ctx, cancel := a.rt.WithTimeout(ctx, death.AnswerTimeout)
	defer cancel()
	_, err = client.Status(ctx)
	if death.Silent(err) {
		return err
	}
	return nil
}
