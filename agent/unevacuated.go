package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/fleet"
	"berth/internal/fault"
)

// unevacuated looks for dead hosts that still have instances by the fleet's records: nobody has
// evacuated them. It asks for the deaths once in a while, and for instances only of a dead host.
type unevacuated struct {
	a *Agent

	// mu guards what follows; nothing is called under it.
	mu    sync.Mutex
	hosts []deadHost // by the last look that was answered
}

// deadHost is a host that counts as dead and has instances.
type deadHost struct {
	death fleet.Death
	names []string
}

// deadEvery is how often the deaths are read. It is a list of what is hardly ever there.
const deadEvery = time.Minute

// deadRecords are the fleet's records as a look asks them.
type deadRecords interface {
	Deaths(ctx context.Context) ([]fleet.Death, error)
	Instances(ctx context.Context, host string) ([]fleet.Instance, error)
}

// run looks until ctx ends. Without records there is nothing to look at.
func (u *unevacuated) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if records, err := u.a.fleetRecords(); err == nil && !u.a.observing() {
			u.look(ctx, records)
		}
		_ = u.a.rt.Sleep(ctx, deadEvery) // its end is looked at in the loop
	}
	return nil
}

// look reads the deaths, and the instances of each dead host.
func (u *unevacuated) look(ctx context.Context, records deadRecords) {
	ctx, cancel := u.a.rt.WithTimeout(ctx, roundLimit)
	defer cancel()
	hosts, err := lostHosts(ctx, records, u.a.name)
	if err != nil && !errors.Is(err, fault.NotFound) { // a Placement that keeps no records has no deaths
		return // what was known stands; that the records are silent is the condition of the fleet
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = hosts
}

// lostHosts gives the dead hosts that still have instances, but for this one.
func lostHosts(ctx context.Context, records deadRecords, self string) ([]deadHost, error) {
	deaths, err := records.Deaths(ctx)
	if err != nil {
		return nil, err
	}
	var out []deadHost
	for _, d := range deaths {
		if d.Host == self || d.Forgotten {
			continue
		}
		list, err := records.Instances(ctx, d.Host)
		if _, err = fleet.Unreadable(err); err != nil {
			return nil, err
		}
		if len(list) == 0 {
			continue
		}
		h := deadHost{death: d}
		for _, in := range list {
			h.names = append(h.names, in.Name)
		}
		out = append(out, h)
	}
	return out, nil
}

// condition names the dead hosts with instances; false for none.
func (u *unevacuated) condition() (api.Condition, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return lostCondition(u.hosts)
}

// mostNames are told of one dead host.
const mostNames = 5

func lostCondition(hosts []deadHost) (api.Condition, bool) {
	if len(hosts) == 0 {
		return api.Condition{}, false
	}
	var reasons []fault.Reason
	for _, h := range hosts {
		names := strings.Join(h.names[:min(len(h.names), mostNames)], ", ")
		if more := len(h.names) - mostNames; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		reasons = append(reasons, fault.Reason{
			Code: "not_evacuated", Have: names, Want: h.death.Host,
			Message: fmt.Sprintf("host %s counts as dead since %s, and nobody has evacuated its instances: %s", h.death.Host, h.death.At.UTC().Format(time.RFC3339), names),
			Change:  "berth evacuate --host " + h.death.Host + ", on any host; or bring " + h.death.Host + " back",
		})
	}
	return bad("evacuation", reasons[0].Message, reasons...), true
}
