package host

import (
	"context"
	"errors"

	"berth/agent/host/admission"
	"berth/agent/host/evacuation"
	"berth/internal/fault"
	"berth/migration"
)

// checkEvacuation is CheckDestination of a guest whose host is dead. Nothing is asked of that
// host: what it was stands in its own last description, and what it ran of the guest counts for
// nothing, since no memory of it is sent. That a disk cannot be had, or would lose its data, is
// told by the answer; who conducts the move knows whether that may be.
func (h *Host) checkEvacuation(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	none := migration.CheckAnswer{}
	g, own, err := asItWas(c.Guest)
	if err != nil {
		return none, err
	}
	var image *migration.Image
	if c.Wanted != nil {
		image = c.Wanted.Image
	}
	var no refusal
	node, err := h.driver.Node(ctx)
	if err != nil {
		return none, err
	}
	here := h.description(node)
	if here.Mode == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	w := evacuated(g)
	w.Resources = withAllMemory(w.Resources, c.Kind, g, w.Flavor, w.Topology)
	place, text, err := h.checkColdRoom(&no, ref, g, w, false)
	if err != nil {
		return none, err
	}
	doc, err := parseDocument(text)
	if err != nil {
		return none, err
	}
	no.add(fault.Forbidden, sameHost(c.Source, here)...)
	no.add(fault.Forbidden, deadPairReasons(c.Source, here)...)
	for _, r := range own.bound(g.Assignment) {
		// Nothing can be detached on a host that is dead.
		r.Change = "bring " + c.Source.Name + " back, or create it anew from a domain XML without that: berth instance create " + g.Name + " --xml FILE"
		no.add(fault.Forbidden, r)
	}
	no.add(fault.Forbidden, startReasons(doc, node, h.o.Name)...)
	unadmitted, err := h.gate.Admit(ctx, g.UUID, admission.Unclaimed, g.Definition)
	if err != nil {
		return none, err
	}
	no.add(fault.Forbidden, unadmitted...)
	if err := h.checkStartCPU(ctx, &no, doc, node, text); err != nil {
		return none, err
	}
	if err := h.checkFiles(&no, doc); err != nil {
		return none, err
	}
	if err := h.checkConnections(ctx, &no, text); err != nil {
		return none, err
	}
	if err := h.checkNames(ctx, &no, g, ""); err != nil {
		return none, err
	}
	answer := migration.CheckAnswer{Destination: here, Kind: c.Kind}
	if answer.Disks, err = h.viewLost(&no, own, g); err != nil {
		return none, err
	}
	of, _ := migration.EvacuateDisks(g, answer.Disks, image, true)
	if err := evacuation.CheckMade(ctx, h.files, &no.Refusal, g, of.Made, image, h.o.Name, h.placeForDisk); err != nil {
		return none, err
	}
	if err := no.err(""); err != nil {
		return none, err
	}
	if ref.Migration == "" {
		room := h.wouldClaim(ctx, g.UUID, demand{Resources: w.Resources}, place)
		answer.WouldClaim = &room
	}
	return answer, nil
}

// deadPairReasons hold this host against what is known of a dead one. Which versions that one
// had hinders nobody; of one that left no description nothing is known.
func deadPairReasons(source, here migration.Description) []fault.Reason {
	if source.Hypervisor == "" {
		source.Hypervisor, source.Arch = here.Hypervisor, here.Arch
	}
	source.HypervisorVersion, source.LibvirtVersion = here.HypervisorVersion, here.LibvirtVersion
	var out []fault.Reason
	for _, r := range pairReasons(source, here, false) {
		// Both have this host's versions now: what is too old is told once, of this one.
		if r.Code != "qemu_too_old" && r.Code != "libvirt_too_old" || len(out) == 0 || out[len(out)-1].Code != r.Code {
			out = append(out, r)
		}
	}
	return out
}

// viewLost looks at the places of a lost guest's disks on this host, and of the file of its
// firmware variables. Media that are only read count as shared by their names, as libvirt takes
// them.
func (h *Host) viewLost(no *refusal, doc document, g migration.Guest) ([]migration.DiskView, error) {
	var views []migration.DiskView
	for _, d := range g.Disks {
		var told refusal
		view, what, err := h.viewDisk(&told, doc, d)
		if err != nil {
			return nil, err
		}
		if what == leave && d.Path != "" && !d.Network {
			view.Shared = true
		}
		views = append(views, view)
		if d.ReadOnly && d.Image != nil {
			told = refusal{} // it can be made
		}
		for _, r := range evacuation.Unreachable(told.Reasons) {
			kind := fault.Forbidden
			if r.Code == "disk_exists" {
				kind = fault.Exists
			}
			no.add(kind, r)
		}
		if view.Shared {
			if err := h.checkChain(no, d); err != nil {
				return nil, err
			}
		}
	}
	if err := checkVariablesDevice(no, h.files, doc, g, h.o.Name); err != nil {
		return nil, err
	}
	variables, err := h.viewLostVariables(no, doc, g)
	if err != nil || variables == nil {
		return views, err
	}
	return append(views, *variables), nil
}

// viewLostVariables looks for a lost guest's firmware variables; nil where it has none. Where
// this host has none libvirt makes them from their template at the next start: what the guest had
// chosen to boot is forgotten, which the answer tells. A file that is not the guest's is in the way.
func (h *Host) viewLostVariables(no *refusal, doc document, g migration.Guest) (*migration.DiskView, error) {
	path := doc.firmware().Variables
	if path == "" || doc.firmware().OnDevice {
		return nil, nil
	}
	id, err := h.files.Identity(path)
	switch {
	case errors.Is(err, fault.NotFound):
		return &migration.DiskView{Target: migration.FirmwareVariables}, nil
	case err != nil && !errors.Is(err, fault.Invalid):
		return nil, err
	case id == "" || id != g.Variables:
		no.add(fault.Exists, variablesInTheWay(path, h.o.Name))
		return nil, nil
	}
	return &migration.DiskView{Target: migration.FirmwareVariables, Filesystem: id, Shared: true}, nil
}
