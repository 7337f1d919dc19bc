package host

import (
	demands "berth/agent/host/demand"
	"berth/claims/flavor"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

// documentDemand adds what a whole document asks for where its flavor asks for
// no topology: pins, memory nodes and pages that its author wrote are wishes,
// and get the CPUs, nodes and pages of the claim.
func (h *Host) documentDemand(no *refusal, req CreateRequest, d *demand) error {
	if req.XML == "" {
		return nil
	}
	doc, err := domainxml.Parse(req.XML)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	t, a, _ := doc.Assignment(h.hardware(), h.sharedCPUs())
	for _, dev := range a.Devices {
		no.add(fault.Invalid, fault.Reason{
			Code: "document_device", Message: "the document names PCI device " + dev.Address.String() + " of the host, which no claim would hold",
			Have: dev.Address.String(), Change: "ask for it with pci_passthrough:alias in the flavor",
		})
	}
	for _, uuid := range a.Mdevs {
		no.add(fault.Invalid, fault.Reason{
			Code: "document_device", Message: "the document names mediated device " + uuid + " of the host, which no claim would hold",
			Have: uuid, Change: "attach it when the guest is there",
		})
	}
	if t == nil || d.Topology != nil {
		return nil
	}
	d.Topology, d.Resources = t, demands.UsesOf(t, d.Resources)
	return nil
}

// planPlace asks for room, and writes the document once with the place that a
// claim would have now, for the case that it cannot be written. The claim may
// choose another place by then.
func (h *Host) planPlace(no *refusal, p createPlan) error {
	t, a := p.wants.Topology, topology.Assignment{}
	before := len(no.Reasons)
	if !p.wants.Refused {
		var err error
		if a, err = h.room(no, p.wants); err != nil {
			return err
		}
	}
	if p.wants.Refused || len(no.Reasons) > before {
		t, a = nil, topology.Assignment{} // what else is wrong with it is told all the same
	}
	_, err := h.writeDocument(p, t, a)
	no.add(fault.Invalid, reasonsOf("request_invalid", err)...)
	return nil
}

// writeDocument gives the guest's document for its place here, with Berth's
// metadata.
func (h *Host) writeDocument(p createPlan, t *topology.GuestTopology, a topology.Assignment) (string, error) {
	req := p.req
	meta := domainxml.Metadata{Name: req.Name, Flavor: req.Flavor, Epoch: 1}
	if req.XML != "" {
		doc, err := domainxml.Parse(req.XML)
		if err != nil {
			return "", err
		}
		doc.SetMetadata(meta)
		if t == nil && p.wants.Topology != nil {
			return doc.String(), nil // no place was found; that is said already
		}
		if err := doc.Rebind(domainxml.Binding{Place: h.place(t, a)}); err != nil {
			return "", err
		}
		return doc.String(), nil
	}
	spec := domainxml.Spec{
		Name: req.Name, UUID: req.UUID, Flavor: req.Flavor, Metadata: &meta, KVM: p.kvm, Machine: req.Machine, CPU: req.CPU,
		Kernel: req.Kernel, Initrd: req.Initrd, Cmdline: req.Cmdline, SerialFile: req.SerialFile,
		Place: h.place(t, a), LockedMemory: p.wants.Locked,
	}
	if hw := h.hardware(); hw != nil {
		spec.Cores = hw.Cores
	}
	if t != nil {
		// With dedicated CPUs disks must not be served beside a vCPU.
		spec.IOThreads = flavor.IOThreads
	}
	for _, d := range req.Disks {
		spec.Disks = append(spec.Disks, domainxml.SpecDisk{Path: d.Path, Format: d.Format})
	}
	if req.Network != "" || req.Bridge != "" {
		spec.Networks = []domainxml.SpecNetwork{{Network: req.Network, Bridge: req.Bridge}}
	}
	return domainxml.Build(spec)
}
