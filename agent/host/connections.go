package host

import (
	"context"
	"errors"
	"slices"
	"strings"

	"berth/agent/host/memory"
	"berth/agent/host/networks"
	"berth/agent/host/volumes"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// memoryConnections is under which a host remembers what it prepared connections over.
const memoryConnections = "connections"

// connectionsRecord is what was found here before a guest's networks and volumes were
// prepared. A guest for which there is nothing to prepare has none.
type connectionsRecord struct {
	Networks []networks.Made `json:"networks,omitempty"`
	Volumes  []volumes.Made  `json:"volumes,omitempty"`
}

// connections is what a guest is connected to, and what serves it here.
type connections struct {
	nics     []networks.NIC
	disks    []volumes.Disk
	networks []networks.Network
	volumes  []volumes.Volume
}

// connectionsOf reads a document. The hypervisor is asked whether it can tell of its
// networks and pools only where the guest has any.
func (h *Host) connectionsOf(ctx context.Context, text string) (connections, error) {
	var c connections
	var err error
	if c.nics, err = networks.Of(text); err != nil {
		return c, err
	}
	if c.disks, err = volumes.Of(text); err != nil {
		return c, err
	}
	var connector driver.Connector
	if slices.ContainsFunc(c.nics, networks.LibvirtNetworks{}.Serves) || slices.ContainsFunc(c.disks, volumes.Pools{}.Serves) ||
		slices.ContainsFunc(c.disks, volumes.Secrets{}.Serves) {
		if connector, err = h.connector(ctx); err != nil {
			return c, err
		}
	}
	by := h.connectedBy(connector)
	c.networks, c.volumes = by.networks, by.volumes
	return c, nil
}

// connectedBy is what serves guests here. connector is nil where the hypervisor does not
// tell, or need not be asked.
func (h *Host) connectedBy(connector driver.Connector) connections {
	if connector == nil {
		return connections{networks: networks.All(nil, h.o.Links, h.o.OpenVSwitch), volumes: volumes.All(nil, h.files, nil)}
	}
	return connections{networks: networks.All(connector, h.o.Links, h.o.OpenVSwitch), volumes: volumes.All(connector, h.files, startedPools{h})}
}

// connector is nil where the hypervisor does not tell of such things: then libvirt's own
// start of the guest decides.
func (h *Host) connector(ctx context.Context) (driver.Connector, error) {
	node, err := h.driver.Node(ctx)
	if err != nil {
		return nil, err
	}
	c, err := driver.Connections(h.driver, node)
	if errors.Is(err, fault.Forbidden) {
		return nil, nil
	}
	return c, err
}

// checkConnections refuses a guest whose networks or volumes this host cannot give it,
// with every reason. It changes nothing.
func (h *Host) checkConnections(ctx context.Context, no *refusal, text string) error {
	c, err := h.connectionsOf(ctx, text)
	if err != nil {
		return err
	}
	here := func(reasons []fault.Reason, err error) error {
		for _, r := range reasons {
			r.Message = "on " + h.o.Name + ": " + r.Message
			no.add(fault.Forbidden, r)
		}
		return no.take(err)
	}
	for _, n := range c.nics {
		for _, kind := range c.networks {
			if !kind.Serves(n) {
				continue
			}
			if err := here(kind.Check(ctx, n)); err != nil {
				return err
			}
		}
	}
	for _, d := range c.disks {
		for _, kind := range c.volumes {
			if !kind.Serves(d) {
				continue
			}
			if err := here(kind.Check(ctx, d)); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepareConnections makes ready, before the guest's domain is started here, what it is
// connected to. What was found before is on record first: a repeated call keeps to it,
// and undoConnections restores it. The caller has the instance's turn.
//
// While its source still runs it, nothing of that is a second one of the guest: no port
// with its interface id is added (libvirt does, when the domain starts), so its networks
// bind it where it runs; and no disk is opened, a pool is only a way to it. So these are
// Nova's inactive port bindings and empty volume attachments; where they live elsewhere,
// in Neutron and Cinder, the hooks of the phase make them.
func (h *Host) prepareConnections(ctx context.Context, ref migration.Ref, text string) error {
	c, err := h.connectionsOf(ctx, text)
	if err != nil {
		return err
	}
	rec, found, err := memory.Recall[connectionsRecord](h.memory, ref, memoryConnections)
	if err != nil {
		return err
	}
	if !found {
		if rec, err = c.plan(ctx, ref.Instance); err != nil {
			return err
		}
		if len(rec.Networks) == 0 && len(rec.Volumes) == 0 {
			return nil
		}
		if err := h.memory.Remember(ctx, ref, memoryConnections, rec); err != nil {
			return err
		}
	}
	for _, m := range rec.Networks {
		if kind := c.networkOf(m.Kind); kind != nil {
			if err := kind.Prepare(ctx, ref.Instance, m); err != nil {
				return err
			}
		}
	}
	for _, m := range rec.Volumes {
		if kind := c.volumeOf(m.Kind); kind != nil {
			if err := kind.Prepare(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c connections) plan(ctx context.Context, guest string) (connectionsRecord, error) {
	var rec connectionsRecord
	for _, n := range c.nics {
		for _, kind := range c.networks {
			if !kind.Serves(n) {
				continue
			}
			m, err := kind.Plan(ctx, guest, n)
			if err != nil {
				return rec, err
			}
			if m != nil {
				rec.Networks = append(rec.Networks, *m)
			}
		}
	}
	for _, d := range c.disks {
		for _, kind := range c.volumes {
			if !kind.Serves(d) {
				continue
			}
			m, err := kind.Plan(ctx, d)
			if err != nil {
				return rec, err
			}
			if m != nil {
				rec.Volumes = append(rec.Volumes, *m)
			}
		}
	}
	return rec, nil
}

func (c connections) networkOf(name string) networks.Network {
	i := slices.IndexFunc(c.networks, func(n networks.Network) bool { return n.Kind() == name })
	if i < 0 {
		return nil
	}
	return c.networks[i]
}

func (c connections) volumeOf(name string) volumes.Volume {
	i := slices.IndexFunc(c.volumes, func(v volumes.Volume) bool { return v.Kind() == name })
	if i < 0 {
		return nil
	}
	return c.volumes[i]
}

// activateConnections is for a guest that is this host's now, before it starts: its
// volumes must be there, and its interfaces are the only ones of their names. Safe to
// repeat, also while it runs.
func (h *Host) activateConnections(ctx context.Context, ref migration.Ref, text string) error {
	c, err := h.connectionsOf(ctx, text)
	if err != nil {
		return err
	}
	if err := c.activateNetworks(ctx, ref.Instance); err != nil {
		return err
	}
	for _, d := range c.disks {
		for _, kind := range c.volumes {
			if !kind.Serves(d) {
				continue
			}
			if err := kind.Activate(ctx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c connections) activateNetworks(ctx context.Context, guest string) error {
	for _, n := range c.nics {
		for _, kind := range c.networks {
			if !kind.Serves(n) {
				continue
			}
			if err := kind.Activate(ctx, guest, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// connectArrived is activateConnections for a guest that came running: nothing of it
// fails that guest, and what its disks stand on is in use.
func (h *Host) connectArrived(ctx context.Context, ref migration.Ref, text string) {
	c, err := h.connectionsOf(ctx, text)
	if err == nil {
		err = c.activateNetworks(ctx, ref.Instance)
	}
	if err != nil {
		h.log.Error("the networks of a guest that has arrived could not be looked at", "instance", ref.Instance, "migration", ref.Migration, "error", err)
	}
}

// undoConnections restores what prepareConnections found, after a half-done one too.
// The guest's domain is gone here; where it runs, in a change of one host, its ports are
// in use and stay.
func (h *Host) undoConnections(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[connectionsRecord](h.memory, ref, memoryConnections)
	if err != nil || !found {
		return err
	}
	connector, err := h.connector(ctx)
	if err != nil {
		return err
	}
	c := h.connectedBy(connector)
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	if !exists || !d.Active() {
		for _, m := range slices.Backward(rec.Networks) {
			if kind := c.networkOf(m.Kind); kind != nil {
				if err := kind.Undo(ctx, ref.Instance, m); err != nil {
					return err
				}
			}
		}
	}
	for _, m := range slices.Backward(rec.Volumes) {
		if kind := c.volumeOf(m.Kind); kind != nil {
			if err := kind.Undo(ctx, m, func(p driver.Pool) (bool, error) { return h.poolInUse(ctx, p, driver.Domain.Active) }); err != nil {
				return err
			}
		}
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryConnections))
}

// poolInUse reports whether one of the guests that counts has a disk in a pool, by
// whichever name.
func (h *Host) poolInUse(ctx context.Context, p driver.Pool, counts func(driver.Domain) bool) (bool, error) {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if !counts(d) {
			continue
		}
		text, err := h.driver.XML(ctx, d.UUID, driver.Live)
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return false, err
		}
		list, err := volumes.Of(text)
		if err != nil {
			return false, wrap(err, "domain %s", d.Name)
		}
		if slices.ContainsFunc(list, func(d volumes.Disk) bool {
			return d.Pool == p.Name || p.Path != "" && strings.HasPrefix(d.Path, strings.TrimSuffix(p.Path, "/")+"/")
		}) {
			return true, nil
		}
	}
	return false, nil
}
