package host

import (
	"context"
	"time"

	demands "berth/agent/host/demand"

	"github.com/google/uuid"

	"berth/agent/host/allocation"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Demand reads what a flavor asks of a host, by this host's aliases:
// fault.Invalid with every reason for one that nobody could serve.
func (h *Host) Demand(f topology.Flavor) (migration.RoomRequest, error) {
	var no refusal
	d := demands.Of(f, nil, h.aliases(), &no.Refusal)
	return migration.RoomRequest{Flavor: f, Resources: d.Resources, Topology: d.Topology, Devices: d.PCI}, no.err("flavor %s", f.Name)
}

// Room answers what this host would claim now for a guest, and changes nothing.
// Disks, networks and files are not looked at. A refusal lists every reason;
// fault.Invalid is for what could be asked of no host.
func (h *Host) Room(ctx context.Context, r migration.RoomRequest) (migration.RoomAnswer, error) {
	var no refusal
	if h.o.Mode() == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	d := demand{Resources: r.Resources, Topology: r.Topology, PCI: r.Devices}
	if r.Instance == "" {
		d = demands.Of(r.Flavor, nil, h.aliases(), &no.Refusal)
	} else if uuid.Validate(r.Instance) != nil {
		return migration.RoomAnswer{}, fault.New(fault.Invalid, "room on %s: instance %q: want a uuid", h.o.Name, r.Instance)
	}
	var place topology.Assignment
	if !d.Refused {
		var err error
		if place, err = h.room(&no, d); err != nil {
			return migration.RoomAnswer{}, wrap(err, "look for room on %s", h.o.Name)
		}
	}
	if err := no.err("room on %s", h.o.Name); err != nil {
		return migration.RoomAnswer{}, err
	}
	return h.wouldClaim(ctx, r.Instance, d, place), nil
}

// placeTime bounds the question where a claim would be counted, which asks
// Placement for some guests: a plan is good without it.
const placeTime = 3 * time.Second

// wouldClaim is a claim that was not made.
func (h *Host) wouldClaim(ctx context.Context, instance string, d demand, place topology.Assignment) migration.RoomAnswer {
	out := migration.RoomAnswer{Resources: d.Resources, Assignment: place}
	if instance == "" {
		instance = h.newUUID() // one that holds nothing
	}
	ctx, cancel := h.rt.WithTimeout(ctx, placeTime)
	defer cancel()
	on, err := h.countedOn(ctx, allocation.Allocation{Consumer: instance, Resources: d.Resources, Assignment: place})
	if err != nil {
		h.log.Debug("where a claim would be counted is not known", "instance", instance, "error", err)
		return out
	}
	out.Allocations = on
	return out
}
