package admission

import (
	"context"
	"fmt"
	"slices"

	"berth/agent/host/disks"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

// Files are those of this host's images.
type Files interface {
	Layer(ctx context.Context, path, format string) (disks.Layer, error)
	Resolve(path string) (string, error)
}

// Gate asks this host for what Check and the like hold domain XMLs against. It writes nothing.
type Gate struct {
	Host   string   // this host's name
	Images []string // folders of images, beside the system's own
	Driver driver.Driver
	Files  Files
	// VolumePath is the file or device by which this host has a volume; network of a pool whose
	// volumes other hosts have too.
	VolumePath func(ctx context.Context, pool, volume string) (path string, network bool, err error)
	Allowed    func() Allowed      // nil for nothing
	LastNode   func() *driver.Node // what the hypervisor said the last time, nil while it has not; nil to ask it
}

// ReadImages has a policy read images by this host's files and volumes. What it answers is set to an
// error as soon as one of them does not answer.
func (g *Gate) ReadImages(ctx context.Context, p *Policy) *error {
	return readImages(ctx, g.Files, g.VolumePath, p)
}

// Admit gives every reason why an instance of another host may not come here with these domain
// XMLs, of which empty ones are left out. The first is held against what is claimed, amounts
// included: what the others have at the next start is claimed then. It asks the hypervisor for
// what other instances use.
func (g *Gate) Admit(ctx context.Context, instance string, claimed Claimed, texts ...string) ([]fault.Reason, error) {
	return g.AdmitAs(ctx, instance, nil, claimed, texts...)
}

// AdmitAs is Admit, of domain XMLs that are to be defined by the name that is recorded; nil for
// none.
func (g *Gate) AdmitAs(ctx context.Context, instance string, name *string, claimed Claimed, texts ...string) ([]fault.Reason, error) {
	node, err := g.Driver.Node(ctx)
	if err != nil {
		return nil, err
	}
	others, err := Others(ctx, g.Driver, instance)
	if err != nil {
		return nil, err
	}
	policy := g.policy(node)
	silent := g.ReadImages(ctx, &policy)
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
		reasons := Check(doc, policy, claimed, others)
		if name != nil {
			reasons = append(reasons, Identity(doc, g.Host, instance, *name, others)...)
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
func readImages(ctx context.Context, files Files, volumePath func(ctx context.Context, pool, volume string) (string, bool, error), p *Policy) *error {
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
		path, network, err = volumePath(ctx, pool, volume)
		return path, network, note(err)
	}
	return silent
}

// AdmitImages refuses an instance that came from another host, or is about to, for what its images
// stand on now. Its domain XMLs were admitted before.
func (g *Gate) AdmitImages(ctx context.Context, instance string, texts ...string) error {
	node, err := g.Driver.Node(ctx)
	if err != nil {
		return err
	}
	others, err := Others(ctx, g.Driver, instance)
	if err != nil {
		return err
	}
	policy := g.policy(node)
	silent := g.ReadImages(ctx, &policy)
	var no fault.Refusal
	for _, text := range texts {
		if text == "" {
			continue
		}
		doc, err := domainxml.Parse(text)
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		no.Add(fault.Forbidden, CheckImages(doc, policy, others)...)
	}
	if *silent != nil {
		return *silent
	}
	return no.Err("")
}

// CloseImages is AdmitImages of the domain XML by which libvirt is to take an instance in. It gives
// that with what its images stand on, as they were admitted: their headers can change until libvirt
// opens them, and it reads none of an image of which the domain XML says all.
func (g *Gate) CloseImages(ctx context.Context, instance, text string) (string, error) {
	node, err := g.Driver.Node(ctx)
	if err != nil {
		return "", err
	}
	others, err := Others(ctx, g.Driver, instance)
	if err != nil {
		return "", err
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", fault.New(fault.Invalid, "%w", err)
	}
	policy := g.policy(node)
	silent := g.ReadImages(ctx, &policy)
	reasons := Close(doc, policy, others, false)
	if *silent != nil {
		return "", *silent
	}
	if len(reasons) > 0 {
		return "", fault.Refuse(fault.Forbidden, "", reasons...)
	}
	return doc.String(), nil
}

// AdmitCarried refuses disks that an instance was given on another host, and is to come back with.
// kept is its definition here: beside its disks it may have others.
func (g *Gate) AdmitCarried(ctx context.Context, kept string, elements []string) error {
	if len(elements) == 0 {
		return nil
	}
	own, err := domainxml.Parse(kept)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	node, err := g.Driver.Node(ctx)
	if err != nil {
		return err
	}
	others, err := Others(ctx, g.Driver, own.UUID())
	if err != nil {
		return err
	}
	policy := g.policy(node)
	silent := g.ReadImages(ctx, &policy)
	var no fault.Refusal
	for _, element := range elements {
		// It is one element, as its caller has read it.
		doc, err := domainxml.Parse(fmt.Sprintf("<domain><name>carried</name><uuid>%s</uuid><memory>1</memory><vcpu>1</vcpu><devices>%s</devices></domain>", own.UUID(), element))
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		no.Add(fault.Forbidden, CheckDisk(doc, own, policy, others)...)
	}
	if *silent != nil {
		return *silent
	}
	return no.Err("")
}

// AdmitUnasked refuses the domain XML of an instance that libvirt is about to take in. It does
// not ask libvirt, which waits: what other instances use is not known. What its images stand on is
// written into it, as by CloseImages.
func (g *Gate) AdmitUnasked(ctx context.Context, doc *domainxml.Doc, resources topology.Resources) error {
	var node driver.Node
	if g.LastNode == nil {
		n, err := g.Driver.Node(ctx)
		if err != nil {
			return err
		}
		node = n
	} else if last := g.LastNode(); last != nil {
		node = *last
	} else {
		return fault.New(fault.Unavailable, "libvirt has not said yet what it has on %s", g.Host)
	}
	policy := g.policy(node)
	silent := readImages(ctx, g.Files, nil, &policy)
	names := policy
	names.Layer = nil // Close reads the images
	reasons := Check(doc, names, Claimed{Resources: resources, AnyDevice: true}, nil)
	for _, r := range Close(doc, policy, nil, true) {
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

// policy is what this host allows instances of other hosts.
func (g *Gate) policy(node driver.Node) Policy {
	p := Policy{Host: g.Host, Images: g.Images, Emulators: node.Emulators, Resolve: g.Files.Resolve}
	p.AnyEmulator = node.Hypervisor != "QEMU" // the test driver runs no program
	if node.Capabilities != nil {
		p.Loaders = node.Capabilities.Loaders
	}
	if u := node.GuestUser; u != nil {
		p.Labels = []string{fmt.Sprintf("dac:+%d:+%d", u.UID, u.GID), fmt.Sprintf("dac:%d:%d", u.UID, u.GID)}
	}
	if g.Allowed != nil {
		p.Allowed = g.Allowed()
	}
	return p
}

// Unclaimed is of a check without a claim: amounts and devices are those of another host.
var Unclaimed = Claimed{AnyAmount: true, AnyDevice: true}
