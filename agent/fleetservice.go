package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"berth/agent/api"
	"berth/agent/death"
	"berth/fleet"
	"berth/internal/fault"
)

type fleetService struct{ a *Agent }

var _ api.Fleet = fleetService{}

// Hosts implements api.Fleet.
func (s fleetService) Hosts(ctx context.Context) (api.FleetHosts, error) {
	out, err := s.hosts(ctx)
	return out, fault.Wrap(err, "list the hosts of the fleet's records")
}

func (s fleetService) hosts(ctx context.Context) (api.FleetHosts, error) {
	records, err := s.a.fleetRecords()
	if err != nil {
		return api.FleetHosts{}, err
	}
	out := api.FleetHosts{Store: s.a.keeper.kind, Hosts: []api.FleetHost{}}
	// passed notes what a list could not read, and gives any other error.
	passed := func(err error) error {
		keys, err := fleet.Unreadable(err)
		out.Unreadable = append(out.Unreadable, keys...)
		return err
	}
	hosts, err := records.Hosts(ctx)
	if err = passed(err); err != nil {
		return api.FleetHosts{}, fleet.StoreThere(err)
	}
	deaths, err := records.Deaths(ctx)
	if err = passed(err); err != nil {
		return api.FleetHosts{}, err
	}
	guests, err := records.Instances(ctx, "")
	if err = passed(err); err != nil {
		return api.FleetHosts{}, err
	}
	alive, leases := map[string]string{}, records.HasLeases()
	if leases {
		if alive, err = records.Alive(ctx); err != nil {
			return api.FleetHosts{}, err
		}
	}
	all := map[string]*api.FleetHost{}
	of := func(name string) *api.FleetHost {
		if all[name] == nil {
			all[name] = &api.FleetHost{Name: name, ToEvacuate: []api.FleetGuest{}, ToCleanUp: []fleet.Evacuated{}}
		}
		return all[name]
	}
	for _, h := range hosts {
		at := of(h.Name)
		at.Boot, at.UpdatedAt, at.SelfFence = h.Boot, h.UpdatedAt, h.SelfFence
		if h.SelfFence {
			at.Witnesses = h.Witnesses
		}
		if leases {
			at.Lease = api.LeaseExpired
		}
	}
	for _, key := range out.Unreadable {
		if !strings.HasPrefix(key, fleet.InstancesPrefix) {
			of(fleet.NameOf(key)) // there is such a host, of which more cannot be said
		}
	}
	for name := range alive {
		if all[name] != nil {
			all[name].Lease = api.LeaseHeld
		}
	}
	for _, d := range deaths {
		of(d.Host).Death = &d
	}
	for _, g := range guests {
		at := of(g.Host)
		at.Guests++
		if at.Death != nil {
			at.ToEvacuate = append(at.ToEvacuate, fleetGuest(g))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		left, err := records.Evacuated(ctx, name)
		if err = passed(err); err != nil {
			return api.FleetHosts{}, err
		}
		h.ToCleanUp = append(h.ToCleanUp, left...)
		if h.Death != nil && !h.Death.Forgotten && name != s.a.name {
			asking, cancel := s.a.rt.WithTimeout(ctx, peerPatience)
			list, err := unrecordedOn(asking, name, s.a.placement, records, guests, left, ledgersBut(s.a, name))
			cancel()
			if err != nil {
				h.WithoutRecordError = err.Error()
			}
			for _, u := range list {
				h.WithoutRecord = append(h.WithoutRecord, api.FleetUnrecorded{Instance: u.instance, Why: u.why})
			}
		}
		out.Hosts = append(out.Hosts, *h)
	}
	return out, nil
}

// Store implements api.Fleet.
func (s fleetService) Store(context.Context) (api.StoreSeen, error) {
	return s.a.leaseKeeper.StoreSeen(), nil
}

func fleetGuest(g fleet.Instance) api.FleetGuest {
	return api.FleetGuest{Instance: g.UUID, Name: g.Name, Moving: g.Moving}
}

// Instance implements api.Fleet.
func (s fleetService) Instance(ctx context.Context, ref string) (fleet.Instance, error) {
	doing := "look up instance " + ref + " in the fleet's records"
	records, err := s.a.fleetRecords()
	if err != nil {
		return fleet.Instance{}, fault.Wrap(err, "%s", doing)
	}
	if in, _, err := records.Instance(ctx, strings.ToLower(ref)); !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Invalid) || fault.HasReason(err, fleet.NoStore) {
		return in, fault.Wrap(fleet.StoreThere(err), "%s", doing)
	}
	all, unread := records.Instances(ctx, "")
	if _, err := fleet.Unreadable(unread); err != nil {
		return fleet.Instance{}, fault.Wrap(err, "%s", doing)
	}
	var found []fleet.Instance
	for _, in := range all {
		if in.Name == ref {
			found = append(found, in)
		}
	}
	switch len(found) {
	case 0:
		if unread != nil { // it may be one of those
			return fleet.Instance{}, fault.Wrap(unread, "%s", doing)
		}
		r := fault.Reason{
			Code: "record_unknown", Message: "the fleet's records have no instance " + ref, Want: ref, Change: "a host keeps records of its guests once its agent runs in mode manage",
		}
		if where := placedOn(ctx, s.a.placement, ref); where != "" {
			r.Message += ", so that nobody knows its definition; Placement counts it on " + where
			r.Have, r.Change = where, death.UnrecordedAdvice
		}
		return fleet.Instance{}, fault.Refuse(fault.NotFound, doing, r)
	case 1:
		return found[0], nil
	}
	var reasons []fault.Reason
	for _, in := range found {
		reasons = append(reasons, fault.Reason{Code: "name_ambiguous", Message: in.UUID + " of host " + in.Host + " is called " + ref, Have: in.UUID, Change: "say the uuid"})
	}
	return fleet.Instance{}, fault.Refuse(fault.Exists, doing, reasons...)
}

// Forget implements api.Fleet.
func (s fleetService) Forget(ctx context.Context, host string, abandon bool, by string) (api.Forgotten, error) {
	out, err := s.forget(ctx, host, abandon, by)
	return out, fault.Wrap(err, "forget host %s", host)
}

// forget gives up, in this order, each safe to repeat: the halves of evacuations, the records of
// guests that are abandoned, what is left of the host in Placement, and the host's own records. A
// host that comes back in between takes its death away, and the last step is refused; what was
// given up of it by then it counts again by itself.
func (s fleetService) forget(ctx context.Context, host string, abandon bool, by string) (api.Forgotten, error) {
	a, out := s.a, api.Forgotten{Host: host, Evacuations: []string{}, Abandoned: []api.FleetGuest{}}
	records, err := a.fleetRecords()
	if err != nil {
		return out, err
	}
	if host == a.name {
		return out, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: "host_is_here", Message: "host " + host + " is the one that is asked, and lives", Change: "ask another host"})
	}
	death, _, err := records.Dead(ctx, host)
	if errors.Is(err, fault.NotFound) && !fault.HasReason(err, fleet.NoStore) {
		return out, fault.Refuse(fault.Forbidden, "", fleet.NotDead(host))
	} else if err != nil {
		return out, fleet.StoreThere(err)
	}
	guests, err := records.Instances(ctx, host)
	if err != nil {
		return out, err
	}
	if len(guests) > 0 && !abandon {
		var reasons []fault.Reason
		for _, g := range guests {
			r := fault.Reason{
				Code: "guest_not_evacuated", Message: "guest " + cmp.Or(g.Name, g.UUID) + " is still recorded there", Have: g.UUID,
				Change: "berth evacuate " + cmp.Or(g.Name, g.UUID) + "; or give all of them up: --abandon-guests",
			}
			if g.Moving != "" {
				r.Message += ", on migration " + g.Moving
				r.Change = "berth migration settle " + g.Moving + ` --guest-is-at HOST --reason "what you have checked"; or give all of them up: --abandon-guests`
			}
			reasons = append(reasons, r)
		}
		return out, fault.Refuse(fault.Forbidden, "", reasons...)
	}
	a.log.Warn("forget a host that never returns", "host", host, "by", by, "proof", death.Proof, "because", death.Because, "abandon_guests", abandon, "guests", len(guests))
	if err := s.endHalves(ctx, records, host, &out); err != nil {
		return out, err
	}
	h, err := records.Host(ctx, host)
	if errors.Is(err, fault.NotFound) {
		h.ProviderUUID, err = a.placement.HostProvider(ctx, host)
	}
	if err != nil {
		return out, err
	}
	for _, g := range guests {
		out.Abandoned = append(out.Abandoned, fleetGuest(g))
	}
	if h.ProviderUUID != "" {
		if out.ProviderKept, err = a.allocations().endProvider(ctx, h.ProviderUUID, host, uuidsOf(guests)); err != nil {
			return out, err
		}
		out.ProviderRemoved = out.ProviderKept == ""
	} else {
		out.ProviderKept = "its record does not say which it is"
	}
	for _, g := range guests {
		if err := records.DropInstance(ctx, g.UUID, host, g.Epoch); err != nil {
			return out, err
		}
	}
	err = records.Forget(ctx, host)
	if errors.Is(err, fault.Busy) { // guests were evacuated meanwhile; none can be any more
		if err = s.endHalves(ctx, records, host, &out); err == nil {
			err = records.Forget(ctx, host)
		}
	}
	return out, err
}

// endHalves gives up what evacuations keep of a host.
func (s fleetService) endHalves(ctx context.Context, records *fleet.Records, host string, out *api.Forgotten) error {
	left, err := records.Evacuated(ctx, host)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := s.a.allocations().endConsumer(ctx, e.Migration); err != nil {
			return err
		}
		if err := records.CleanedUp(ctx, e); err != nil {
			return err
		}
		out.Evacuations = append(out.Evacuations, e.Migration)
	}
	return nil
}

func uuidsOf(guests []fleet.Instance) map[string]bool {
	out := map[string]bool{}
	for _, g := range guests {
		out[g.UUID] = true
	}
	return out
}
