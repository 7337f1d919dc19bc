package host

import (
	"context"
	"fmt"
	"slices"

	"berth/agent/host/admission"
	"berth/agent/host/attempts"
	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/agent/host/volumes"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// Allowed is package admission's, by this one's name.
type Allowed = admission.Allowed

// admit gives every reason why an instance of another host may not come here with these domain
// XMLs, of which empty ones are left out. The first is held against what is claimed, amounts
// included: what the others have at the next start is claimed then. It asks the hypervisor for
// what other instances use.
func (h *Host) admit(ctx context.Context, instance string, claimed admission.Claimed, texts ...string) ([]fault.Reason, error) {
	return h.admitAs(ctx, instance, nil, claimed, texts...)
}

// admitAs is admit, of domain XMLs that are to be defined by the name that is recorded; nil for
// none.
func (h *Host) admitAs(ctx context.Context, instance string, name *string, claimed admission.Claimed, texts ...string) ([]fault.Reason, error) {
	node, err := h.driver.Node(ctx)
	if err != nil {
		return nil, err
	}
	others, err := admission.Others(ctx, h.driver, instance)
	if err != nil {
		return nil, err
	}
	policy := h.admissionPolicy(node)
	silent := readImages(ctx, h.files, h.volumePath, &policy)
	var out []fault.Reason
	for i, text := range texts {
		if text == "" {
			continue
		}
		doc, err := domainxml.Parse(text)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%w", err)
		}
		claimed.AnyAmount = claimed.AnyAmount || i > 0
		reasons := admission.Check(doc, policy, claimed, others)
		if name != nil {
			reasons = append(reasons, admission.Identity(doc, h.o.Name, instance, *name, others)...)
		}
		for _, r := range reasons {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	return out, *silent
}

// readImages has a policy read images by files and volumes. What it answers is set to an error as
// soon as one of them does not answer. volumes is nil where libvirt is not to be asked.
func readImages(ctx context.Context, files Files, volumePath func(context.Context, volumes.Disk) (string, bool, error), p *admission.Policy) *error {
	silent := new(error)
	note := func(err error) error {
		if fault.KindOf(err) == fault.Unavailable && *silent == nil {
			*silent = err
		}
		return err
	}
	p.Layer = func(path, format string) (disks.Layer, error) {
		l, err := files.Layer(ctx, path, format)
		return l, note(err)
	}
	p.Volume = func(pool, volume string) (path string, network bool, err error) {
		if volumePath == nil {
			return "", false, nil
		}
		path, network, err = volumePath(ctx, volumes.Disk{Pool: pool, Volume: volume})
		return path, network, note(err)
	}
	return silent
}

// admitImages refuses an instance that came from another host, or is about to, for what its images
// stand on now. Its domain XMLs were admitted before.
func (h *Host) admitImages(ctx context.Context, instance string, texts ...string) error {
	node, err := h.driver.Node(ctx)
	if err != nil {
		return err
	}
	others, err := admission.Others(ctx, h.driver, instance)
	if err != nil {
		return err
	}
	policy := h.admissionPolicy(node)
	silent := readImages(ctx, h.files, h.volumePath, &policy)
	var no refusal
	for _, text := range texts {
		if text == "" {
			continue
		}
		doc, err := domainxml.Parse(text)
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		no.add(fault.Forbidden, admission.CheckImages(doc, policy, others)...)
	}
	if *silent != nil {
		return *silent
	}
	return no.err("")
}

// closeImages is admitImages of the domain XML by which libvirt is to take an instance in. It gives
// that with what its images stand on, as they were admitted: their headers can change until libvirt
// opens them, and it reads none of an image of which the domain XML says all.
func (h *Host) closeImages(ctx context.Context, instance, text string) (string, error) {
	node, err := h.driver.Node(ctx)
	if err != nil {
		return "", err
	}
	others, err := admission.Others(ctx, h.driver, instance)
	if err != nil {
		return "", err
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	policy := h.admissionPolicy(node)
	silent := readImages(ctx, h.files, h.volumePath, &policy)
	reasons := admission.Close(doc, policy, others, false)
	if *silent != nil {
		return "", *silent
	}
	if len(reasons) > 0 {
		return "", fault.Refuse(fault.Forbidden, "", reasons...)
	}
	return doc.String(), nil
}

// admitPrepared refuses the domain XMLs that were prepared for a claim. The source may have asked
// for no check. name is the instance's, as it is recorded when it comes, below what its disks stand on
// that are shipped here.
func (h *Host) admitPrepared(ctx context.Context, c claims.Claim, name string, below map[string][]string, texts ...string) error {
	claimed := admission.Claimed{Resources: c.Resources, Below: below}
	for _, d := range c.Assignment.Devices {
		claimed.Devices = append(claimed.Devices, d.Address.String())
	}
	reasons, err := h.admitAs(ctx, c.Owner.Instance, &name, claimed, texts...)
	if err != nil {
		return err
	}
	written, err := writtenHere(ctx, h, c.Owner.Instance, texts...)
	if err != nil {
		return err
	}
	reasons = append(reasons, written...)
	// A check refuses these too, and a peer may have asked for none.
	for _, text := range texts {
		if text == "" {
			continue
		}
		doc, err := parseDocument(text)
		if err != nil {
			return err
		}
		for _, r := range doc.neverMoves() {
			if !slices.Contains(reasons, r) {
				reasons = append(reasons, r)
			}
		}
	}
	if other, there := h.tracker.InstanceByName(name); there && other.UUID != c.Owner.Instance {
		reasons = append(reasons, fault.Reason{
			Code: "name_taken", Message: fmt.Sprintf("the name %q is taken by instance %s of %s", name, other.UUID, h.o.Name), Want: name, Have: other.UUID, Change: "virsh domrename " + fault.Quote(name) + " NEW, of one of the two",
		})
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", reasons...)
}

// admitCarried refuses disks that an instance was given on another host, and is to come back with.
// kept is its definition here: beside its disks it may have others.
func (h *Host) admitCarried(ctx context.Context, kept string, elements []string) error {
	if len(elements) == 0 {
		return nil
	}
	own, err := domainxml.Parse(kept)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	node, err := h.driver.Node(ctx)
	if err != nil {
		return err
	}
	others, err := admission.Others(ctx, h.driver, own.UUID())
	if err != nil {
		return err
	}
	policy := h.admissionPolicy(node)
	silent := readImages(ctx, h.files, h.volumePath, &policy)
	var no refusal
	for _, element := range elements {
		// It is one element, as mayCarry has read it.
		doc, err := domainxml.Parse(fmt.Sprintf("<domain><name>carried</name><uuid>%s</uuid><memory>1</memory><vcpu>1</vcpu><devices>%s</devices></domain>", own.UUID(), element))
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		no.add(fault.Forbidden, admission.CheckDisk(doc, own, policy, others)...)
	}
	if *silent != nil {
		return *silent
	}
	return no.err("")
}

// admitForeign refuses the domain XML of an instance that libvirt is about to take in. It does
// not ask libvirt, which waits: what other instances use is not known. What its images stand on is
// written into it, as by closeImages.
func (h *Host) admitForeign(ctx context.Context, doc *domainxml.Doc, resources topology.Resources) error {
	var node driver.Node
	if h.o.LastNode == nil {
		n, err := h.driver.Node(ctx)
		if err != nil {
			return err
		}
		node = n
	} else if last := h.o.LastNode(); last != nil {
		node = *last
	} else {
		return fault.New(fault.Unavailable, "libvirt has not said yet what it has on %s", h.o.Name)
	}
	policy := h.admissionPolicy(node)
	silent := readImages(ctx, h.files, nil, &policy)
	names := policy
	names.Layer = nil // Close reads the images
	reasons := admission.Check(doc, names, admission.Claimed{Resources: resources, AnyDevice: true}, nil)
	for _, r := range admission.Close(doc, policy, nil, true) {
		if !slices.Contains(reasons, r) {
			reasons = append(reasons, r)
		}
	}
	if *silent != nil {
		return *silent
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", reasons...)
}

// admissionPolicy is what this host allows instances of other hosts.
func (h *Host) admissionPolicy(node driver.Node) admission.Policy {
	p := admission.Policy{Host: h.o.Name, Images: h.o.ImagesDirs, Emulators: node.Emulators, Resolve: h.files.Resolve}
	p.AnyEmulator = node.Hypervisor != "QEMU" // the test driver runs no program
	if node.Capabilities != nil {
		p.Loaders = node.Capabilities.Loaders
	}
	if u := node.GuestUser; u != nil {
		p.Labels = []string{fmt.Sprintf("dac:+%d:+%d", u.UID, u.GID), fmt.Sprintf("dac:%d:%d", u.UID, u.GID)}
	}
	if h.o.Allowed != nil {
		p.Allowed = h.o.Allowed()
	}
	return p
}

// unclaimed is of a check without a claim: amounts and devices are those of another host.
var unclaimed = admission.Claimed{AnyAmount: true, AnyDevice: true}

// below is on which files disks stand, as their source tells them, by target.
func below(disks []migration.Disk) map[string][]string {
	out := map[string][]string{}
	for _, d := range disks {
		for _, b := range d.Chain {
			out[d.Target] = append(out[d.Target], b.Path)
		}
	}
	return out
}

// PreparedXML is the domain XML that this host prepared for an instance that comes live by a
// migration of Berth's. It reads the ledger alone. fault.Forbidden where nothing is prepared.
func (h *Host) PreparedXML(instance, id string) (string, error) {
	for _, c := range h.tracker.ByInstance(instance) {
		if c.Owner.Kind != claims.KindLiveMigration || c.Owner.Migration != id {
			continue
		}
		rec, found, err := memory.Recall[preparation](h.memory, attempts.RefOf(c.Owner), memoryPrepared)
		if err != nil {
			return "", err
		}
		if found && rec.Prepared != nil {
			return rec.Prepared.DestinationXML, nil
		}
	}
	return "", fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "not_prepared", Message: "this host has prepared nothing for migration " + id + " of instance " + instance, Change: "wait for that migration's own stream, or berth migration abort " + id,
	})
}
