package host

import (
	"errors"
	"slices"

	demands "berth/agent/host/demand"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// demand is what a guest asks of a host beyond disks.
type demand = demands.Demand

func (h *Host) aliases() []flavor.Alias {
	if h.o.Aliases == nil {
		return nil
	}
	return h.o.Aliases()
}

// sharedCPUs are the host's CPUs that guests share; empty where the operator
// keeps none apart.
func (h *Host) sharedCPUs() topology.CPUSet {
	if h.o.SharedCPUs == nil {
		return nil
	}
	return h.o.SharedCPUs()
}

func (h *Host) hardware() *topology.Host {
	if h.o.Hardware == nil {
		return nil
	}
	return h.o.Hardware()
}

// place is what documents name of this host for a guest with that topology and
// assignment.
func (h *Host) place(t *topology.GuestTopology, a topology.Assignment) domainxml.Place {
	p := domainxml.Place{Topology: t, Assignment: a, SharedCPUs: h.sharedCPUs()}
	if t == nil {
		return p
	}
	p.SharedByCell = map[topology.CellID]topology.CPUSet{}
	for _, c := range h.tracker.Machine().Cells {
		p.SharedByCell[c.ID] = c.Shared
	}
	if hw := h.hardware(); hw != nil {
		p.BasePageSize = hw.BasePageSize
	}
	return p
}

func (h *Host) placeOf(c claims.Claim) domainxml.Place { return h.place(c.Topology, c.Assignment) }

// immovable names the devices of a guest that a live migration cannot take
// along: those that its claim does not hold, and those that nobody said can be
// migrated (Nova's live_migratable).
func (d document) immovable(a topology.Assignment) []fault.Reason {
	var out []fault.Reason
	for _, k := range d.kept() {
		if k.Stays && k.Element == keptHostDevice {
			out = append(out, notMovable(k.What, k.Change))
		}
	}
	held := make(map[string]topology.AssignedDevice, len(a.Devices))
	for _, dev := range a.Devices {
		held[dev.Address.String()] = dev
	}
	for _, dev := range d.Devices.Hostdevs {
		if dev.Type != "pci" && dev.Type != "mdev" {
			continue // kept
		}
		at := ""
		if dev.Source != nil {
			at = dev.Source.where()
		}
		given, ok := held[at]
		switch {
		case !ok:
			out = append(out, notMovable(dev.Type+" host device "+at, "detach it, or move the guest shut off"))
		case !given.LiveMigratable:
			out = append(out, notMovable(dev.Type+" host device "+at, "say live_migratable in [pci] device_spec if its driver can, or move the guest shut off"))
		}
	}
	return out
}

const deviceNotMigratable = "device_not_migratable"

func notMovable(what, change string) fault.Reason {
	return fault.Reason{Code: deviceNotMigratable, Message: what + " cannot be live-migrated", Have: what, Change: change}
}

// foundIn reads from a guest's document what it has of this host, whoever gave
// it that, with remarks on what had to be guessed. uses are its amounts.
func (h *Host) foundIn(doc *domainxml.Doc, uses topology.Resources) (claims.Found, []fault.Reason) {
	t, a, doubts := doc.Assignment(h.hardware(), h.sharedCPUs())
	f := claims.Found{Resources: demands.UsesOf(t, uses), Topology: t, Assignment: a}
	for _, d := range a.Devices {
		// What it would ask of another host: one more like it.
		f.PCI = append(f.PCI, topology.PCIRequest{
			ID: d.Request, Count: 1, Affinity: topology.AffinityPreferred,
			Specs: []topology.PCISpec{{Vendor: d.Vendor, Product: d.Product, Type: d.Type}},
		})
	}
	var remarks []fault.Reason
	for _, text := range doubts {
		remarks = append(remarks, fault.Reason{Code: "placement_doubtful", Message: doc.Name() + ": " + text})
	}
	return f, remarks
}

// room asks whether a claim could be had now, and adds every reason why not.
func (h *Host) room(no *refusal, d demand) (topology.Assignment, error) {
	a, err := h.tracker.Room(d.Resources, d.Topology, d.PCI)
	return a, no.takeRoom(err)
}

// takeRoom is take for the tracker's word on room: no new claims for now is a reason among
// others, not an unknown.
func (r *refusal) takeRoom(err error) error {
	if errors.Is(err, fault.Unavailable) && len(fault.ReasonsOf(err)) > 0 {
		r.add(fault.Forbidden, fault.ReasonsOf(err)...)
		return nil
	}
	return r.take(err)
}

// checkRoom asks for a guest that would come, and writes its documents once for
// the case that they cannot be written: a move must not find that out later. The
// place is the one that a claim would have now.
func (h *Host) checkRoom(no *refusal, ref migration.Ref, g migration.Guest) (topology.Assignment, error) {
	before := len(no.Reasons)
	a, err := h.room(no, demand{Resources: g.Resources, Topology: g.Topology, PCI: g.PCIRequests})
	if err != nil || len(no.Reasons) > before {
		return a, err
	}
	if slices.ContainsFunc(no.Reasons, func(r fault.Reason) bool { return r.Code == deviceNotMigratable }) {
		return a, nil // its document says the same again
	}
	_, err = h.documents(ref, g, claims.Claim{Topology: g.Topology, Assignment: a})
	if err != nil {
		no.add(fault.Forbidden, reasonsOf("document_does_not_fit", errors.Unwrap(err))...)
	}
	return a, nil
}

// ledgerContext maps a context from the wire to the ledger's.
func ledgerContext(ref migration.Ref, c migration.Context) claims.MigrationContext {
	side := func(r topology.Resources, f topology.Flavor, t *topology.GuestTopology, a topology.Assignment, pci []topology.PCIRequest) claims.Holding {
		return claims.Claim{Resources: r, Topology: t, Assignment: a, PCI: pci}.Holding(f)
	}
	return claims.MigrationContext{
		Migration: ref.Migration, Instance: ref.Instance, Source: c.Source, Destination: c.Destination, Conductor: c.Conductor, OldPowerState: c.PowerState,
	}.
		WithOld(side(c.OldResources, c.OldFlavor, c.OldTopology, c.OldAssignment, c.OldPCIRequests)).
		WithNew(side(c.NewResources, c.NewFlavor, c.NewTopology, c.NewAssignment, c.NewPCIRequests))
}

// WireContext maps a context of the ledger to the wire's: what ledgerContext
// made of it, told back.
func WireContext(m claims.MigrationContext) migration.Context {
	old, now := m.Revert(), m.Apply()
	c := migration.Context{
		Source: m.Source, Destination: m.Destination, Conductor: m.Conductor, PowerState: m.OldPowerState,
		OldResources: old.Resources, OldFlavor: old.Flavor, OldPCIRequests: old.PCIRequests,
		NewResources: now.Resources, NewFlavor: now.Flavor, NewPCIRequests: now.PCIRequests,
	}
	c.OldTopology, c.OldAssignment = given(old)
	c.NewTopology, c.NewAssignment = given(now)
	return c
}

// given takes a side of a context apart into what was asked and what was given.
func given(h claims.Holding) (*topology.GuestTopology, topology.Assignment) {
	a := topology.Assignment{Devices: h.PCIDevices}
	if h.NUMATopology == nil {
		return nil, a
	}
	a.Cells = h.NUMATopology.Cells
	return h.NUMATopology.Guest, a
}
