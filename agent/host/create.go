package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	demands "berth/agent/host/demand"

	"berth/agent/host/allocation"
	"berth/agent/host/disks"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// CreateRequest is a new guest.
type CreateRequest struct {
	Name      string          `json:"name"`
	UUID      string          `json:"uuid,omitempty"` // a new one when empty
	Flavor    topology.Flavor `json:"flavor"`
	ProjectID string          `json:"project_id,omitempty"`
	UserID    string          `json:"user_id,omitempty"`
	Autostart bool            `json:"autostart,omitempty"` // start it after the host's reboots

	Kernel  string `json:"kernel,omitempty"` // boots directly; else the first disk boots
	Initrd  string `json:"initrd,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`

	Disks      []CreateDisk `json:"disks,omitempty"`
	Network    string       `json:"network,omitempty"`     // libvirt network; or
	Bridge     string       `json:"bridge,omitempty"`      // bridge of the host
	SerialFile string       `json:"serial_file,omitempty"` // where the console's output goes; a terminal when empty
	Machine    string       `json:"machine,omitempty"`     // q35 when empty
	CPU        string       `json:"cpu,omitempty"`         // see domainxml.Spec
	// VirtType is kvm or qemu (without hardware virtualization), as Nova's
	// [libvirt] virt_type; kvm where the host has it when empty. A /dev/kvm that
	// is there need not work: nested virtualization can lack what QEMU asks for.
	VirtType string `json:"virt_type,omitempty"`

	// XML is a whole domain document, used as it is with Berth's metadata added,
	// in place of all from Kernel down but Disks, which are made for it where
	// they are to be made. Its name and uuid are the guest's.
	XML string `json:"xml,omitempty"`

	Start  bool `json:"start,omitempty"`
	Paused bool `json:"paused,omitempty"` // start it with its CPUs stopped
}

// CreateDisk is one disk of a new guest. With SizeGB or Image it is made, and
// its place must be free; without both it is there already.
type CreateDisk struct {
	Path        string `json:"path,omitempty"`    // NAME-vdX.FORMAT in the first images folder when empty
	SizeGB      int64  `json:"size_gb,omitempty"` // GiB; the image's own size when 0
	Image       string `json:"image,omitempty"`   // copied into the disk
	ImageFormat string `json:"image_format,omitempty"`
	Format      string `json:"format,omitempty"` // qcow2 when made, raw else
}

// createLease is how long a creation may take, image copies included. After a
// crash Settle ends it sooner.
const createLease = time.Hour

const memoryCreate = "made"

// madeDisk is a disk of a creation on record.
type madeDisk struct {
	disks.Made
	Format string `json:"format"`
	Size   int64  `json:"size"` // bytes; the image's when 0
	Image  string `json:"image,omitempty"`
	From   string `json:"image_format,omitempty"`
	own    int64  // bytes of the image
}

// Create makes a guest: claim, allocation, disks, definition, token, in this
// order, and starts it when asked to. On any failure everything is undone in
// reverse; nothing is left. A refusal lists every reason.
func (h *Host) Create(ctx context.Context, req CreateRequest) (InstanceView, error) {
	if err := h.managing("create instance " + req.Name); err != nil {
		return InstanceView{}, err
	}
	plan, err := h.planCreate(ctx, req)
	if err != nil {
		return InstanceView{}, wrap(err, "create instance %s", req.Name)
	}
	unlock, err := h.memory.Lock(ctx, plan.inst.UUID)
	if err != nil {
		return InstanceView{}, wrap(err, "create instance %s", req.Name)
	}
	defer unlock()
	c := creating{h: h, plan: plan}
	if err := c.run(ctx); err != nil {
		// The caller may have gone; what was made goes all the same.
		undo, cancel := h.rt.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return InstanceView{}, errors.Join(wrap(err, "create instance %s", plan.inst.Name), c.undo(undo))
	}
	d, _, err := h.domain(ctx, plan.inst.UUID)
	if err != nil {
		d = driver.Domain{State: StateUnknown}
	}
	inst, _ := h.tracker.Instance(plan.inst.UUID)
	return h.look(inst, d), nil
}

// createPlan is what a request comes to.
type createPlan struct {
	inst   claims.Instance
	wants  demand
	req    CreateRequest
	kvm    bool
	make   []madeDisk
	start  bool
	paused bool
}

// planCreate reads and computes, and collects every reason why not.
func (h *Host) planCreate(ctx context.Context, req CreateRequest) (createPlan, error) {
	var no refusal
	node, err := h.driver.Node(ctx)
	if err != nil {
		return createPlan{}, err
	}
	if err := h.describe(&req); err != nil {
		return createPlan{}, err
	}
	req.ProjectID, req.UserID = cmp.Or(req.ProjectID, h.o.ProjectID), cmp.Or(req.UserID, h.o.UserID)
	p := createPlan{
		inst: claims.Instance{
			UUID: req.UUID, Name: req.Name, Flavor: req.Flavor, ProjectID: req.ProjectID, UserID: req.UserID, Autostart: req.Autostart,
		},
		start: req.Start || req.Paused, paused: req.Paused,
	}
	bytes, err := h.planDisks(ctx, &no, &req, &p)
	if err != nil {
		return createPlan{}, err
	}
	p.wants = demands.Of(req.Flavor, nil, h.aliases(), &no.Refusal)
	if err := h.documentDemand(&no, req, &p.wants); err != nil {
		return createPlan{}, err
	}
	p.wants.Resources.DiskGB = max(p.wants.Resources.DiskGB, (bytes+1<<30-1)>>30)
	p.kvm = req.VirtType == "kvm" || req.VirtType == "" && !node.Emulated
	switch {
	case req.VirtType != "" && req.VirtType != "kvm" && req.VirtType != "qemu":
		no.add(fault.Invalid, fault.Reason{Code: "virt_type", Message: "virt_type " + req.VirtType + ": want kvm or qemu", Have: req.VirtType})
	case p.kvm && node.Emulated:
		no.add(fault.Forbidden, fault.Reason{Code: "no_kvm", Message: h.o.Name + " has no hardware virtualization", Want: "kvm", Have: "qemu"})
	}
	p.req = req
	if err := h.planPlace(&no, p); err != nil {
		return createPlan{}, err
	}
	for _, path := range []string{req.Kernel, req.Initrd} {
		if path == "" || !filepath.IsAbs(path) {
			continue // said by the document's own validation
		}
		there, err := h.files.Exists(path)
		if err != nil {
			return createPlan{}, err
		}
		if !there {
			no.add(fault.NotFound, fault.Reason{Code: "file_missing", Message: path + " does not exist on " + h.o.Name, Want: path})
		}
	}
	if err := h.checkNames(ctx, &no, migration.Guest{UUID: req.UUID, Name: req.Name}, ""); err != nil {
		return createPlan{}, err
	}
	if err := no.take(h.witness.Off(req.UUID, req.Name, nil)); err != nil {
		return createPlan{}, err
	}
	other, taken := h.tracker.InstanceByName(req.Name)
	if taken && other.UUID != req.UUID && !slices.ContainsFunc(no.Reasons, func(r fault.Reason) bool { return r.Have == other.UUID }) {
		no.add(fault.Exists, fault.Reason{Code: "name_exists", Message: "an instance named " + req.Name + " is in the ledger, with uuid " + other.UUID, Have: other.UUID})
	}
	return p, no.err("")
}

// describe fills in what a request leaves open: from its document, or anew.
func (h *Host) describe(req *CreateRequest) error {
	if req.XML == "" {
		if req.UUID == "" {
			req.UUID = h.newUUID()
		}
		return nil
	}
	doc, err := domainxml.Parse(req.XML)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	var no refusal
	if req.Name != "" && req.Name != doc.Name() {
		no.add(fault.Invalid, fault.Reason{Code: "name_differs", Message: "the document is of " + doc.Name() + ", not " + req.Name, Want: req.Name, Have: doc.Name()})
	}
	if req.UUID != "" && req.UUID != doc.UUID() {
		no.add(fault.Invalid, fault.Reason{Code: "uuid_differs", Message: "the document's uuid is " + doc.UUID() + ", not " + req.UUID, Want: req.UUID, Have: doc.UUID()})
	}
	uses := doc.Resources()
	if req.Flavor.Name == "" && req.Flavor.VCPUs == 0 {
		req.Flavor = topology.Flavor{Name: "document", VCPUs: uses.VCPUs, MemoryMB: uses.MemoryMB}
	}
	if req.Flavor.VCPUs < uses.VCPUs || req.Flavor.MemoryMB < uses.MemoryMB {
		no.add(fault.Invalid, fault.Reason{
			Code: "flavor_too_small", Message: fmt.Sprintf("the document uses %s, the flavor %s has %s", uses, req.Flavor.Name, req.Flavor.Resources()),
			Want: uses.String(), Have: req.Flavor.Resources().String(),
		})
	}
	req.Name, req.UUID = doc.Name(), doc.UUID()
	return no.err("")
}

// planDisks completes the request's disks and says which are to be made, and
// what all may grow to.
func (h *Host) planDisks(ctx context.Context, no *refusal, req *CreateRequest, p *createPlan) (bytes int64, err error) {
	for i := range req.Disks {
		d := &req.Disks[i]
		toMake := d.SizeGB > 0 || d.Image != ""
		if d.Format == "" {
			d.Format = map[bool]string{true: "qcow2", false: "raw"}[toMake]
		}
		if d.Format != "raw" && d.Format != "qcow2" {
			no.add(fault.Invalid, fault.Reason{Code: "disk_format", Message: "disk format " + d.Format + ": want raw or qcow2", Have: d.Format})
			continue
		}
		if d.Path == "" && toMake && len(h.o.ImagesDirs) > 0 {
			d.Path = filepath.Join(h.o.ImagesDirs[0], fmt.Sprintf("%s-vd%c.%s", req.Name, 'a'+i%26, d.Format))
		}
		if !filepath.IsAbs(d.Path) {
			no.add(fault.Invalid, fault.Reason{Code: "disk_path", Message: fmt.Sprintf("disk %d: path %q: want an absolute path", i+1, d.Path)})
			continue
		}
		if !toMake {
			img, err := h.files.Image(ctx, d.Path, d.Format)
			if err := no.take(err); err != nil {
				return 0, err
			}
			bytes += img.VirtualSize
			continue
		}
		size, err := h.planNewDisk(ctx, no, d, p)
		if err != nil {
			return 0, err
		}
		bytes += size
	}
	return growToFlavor(p.make, req.Flavor.DiskGB<<30, bytes), nil
}

// growToFlavor gives the first disk that is made from an image, and of which no size was
// said, what the flavor's disk has left: the instance gets what its claim holds. It answers
// what all disks have then, bytes.
func growToFlavor(made []madeDisk, flavor, bytes int64) int64 {
	i := slices.IndexFunc(made, func(m madeDisk) bool { return m.Image != "" && m.Size == 0 })
	if i < 0 || bytes >= flavor {
		return bytes
	}
	made[i].Size = made[i].own + flavor - bytes
	return flavor
}

func (h *Host) planNewDisk(ctx context.Context, no *refusal, d *CreateDisk, p *createPlan) (int64, error) {
	if r, bad := h.placeForDisk(d.Path); bad {
		no.add(fault.Forbidden, r)
	}
	there, err := h.files.Exists(d.Path)
	if err != nil {
		return 0, err
	}
	if there {
		no.add(fault.Exists, fault.ReasonsOf(disks.Occupied(d.Path))...)
	}
	m := madeDisk{Format: d.Format, Size: d.SizeGB << 30, Image: d.Image, From: d.ImageFormat}
	m.Path = d.Path
	size := m.Size
	if d.Image != "" {
		if m.From == "" {
			// By its name, not by its contents: a guest may have written those.
			m.From = map[bool]string{true: "qcow2", false: "raw"}[strings.HasSuffix(d.Image, ".qcow2")]
		}
		img, err := h.files.Image(ctx, d.Image, m.From)
		if taken := no.take(err); taken != nil {
			return 0, taken
		}
		if size > 0 && size < img.VirtualSize {
			no.add(fault.Invalid, fault.Reason{
				Code: "image_too_large", Message: fmt.Sprintf("image %s is larger than the disk: %s, want at most %s", d.Image, mib(img.VirtualSize), mib(size)),
			})
		}
		if err == nil {
			if err := no.take(disks.Whole(d.Image, m.From, img)); err != nil {
				return 0, err
			}
		}
		size = max(size, img.VirtualSize)
	}
	m.own = size
	p.make = append(p.make, m)
	return size, nil
}

func reasonsOf(code string, err error) []fault.Reason { return fault.ReasonPerLine(code, err) }

// creating is a creation under way; its flags say what its undo has to look at.
type creating struct {
	h    *Host
	plan createPlan

	claimed, allocated, defined, started bool
	// had is that the file of firmware variables was there before the start: it is not this creation's.
	had bool
}

func (c *creating) owner() claims.Owner {
	return claims.Owner{Instance: c.plan.inst.UUID, Kind: claims.KindInstance}
}

// run sets each flag before its effect: a call that failed may have happened.
func (c *creating) run(ctx context.Context) error {
	h, uuid := c.h, c.plan.inst.UUID
	if _, ok := h.tracker.ByOwner(c.owner()); ok {
		return fault.New(fault.Exists, "instance %s has a claim already", uuid)
	}
	claim, err := h.tracker.Claim(ctx, claims.Request{
		Owner: c.owner(), Resources: c.plan.wants.Resources, Topology: c.plan.wants.Topology, PCI: c.plan.wants.PCI, Lease: createLease,
	})
	if err != nil {
		return err
	}
	c.claimed = true
	xml, err := h.writeDocument(c.plan, claim.Topology, claim.Assignment)
	if err != nil {
		return err
	}
	if h.o.Placement != nil {
		c.allocated = true
		if err := h.o.Placement.PutAllocation(ctx, allocation.Of(c.plan.inst, claim)); err != nil {
			return wrap(err, "write its allocation")
		}
	}
	if err := c.makeDisks(ctx); err != nil {
		return err
	}
	if err := noteDefining(ctx, h, c.plan.inst); err != nil {
		return err
	}
	c.defined = true
	if err := h.driver.Define(ctx, xml); err != nil {
		return err
	}
	if err := h.driver.SetAutostart(ctx, uuid, false); err != nil {
		return err
	}
	c.plan.inst.Images = imagesIn(xml, c.plan.make)
	if _, err := h.tracker.Own(ctx, c.plan.inst); err != nil {
		return err
	}
	if _, err := h.tracker.Bind(ctx, c.owner()); err != nil {
		return err
	}
	if err := h.vanished.Whole(ctx, driver.Domain{UUID: uuid, Name: c.plan.inst.Name, Persistent: true}); err != nil {
		return err
	}
	if c.plan.start {
		// The disks are not asked about: a child of this agent may hold the one that was just
		// written for the moment between fork and exec.
		if err := h.witness.Off(uuid, c.plan.inst.Name, nil); err != nil {
			return err
		}
		text, err := h.driver.XML(ctx, uuid, driver.Live)
		if err != nil {
			return err
		}
		there, err := h.variables(text)
		if err != nil {
			return err
		}
		c.started, c.had = true, len(there) > 0
		if err := h.driver.Start(ctx, uuid, c.plan.paused); err != nil {
			return err
		}
	}
	for _, m := range c.plan.make {
		h.files.Keep(m.Made)
	}
	return h.tracker.ForgetMigration(ctx, creation(uuid).Migration)
}

// imagesIn says from what each disk of a document was made that a creation has made: whoever
// makes it anew, should this host be lost, has nobody else to ask.
func imagesIn(text string, made []madeDisk) map[string]claims.Image {
	doc, err := domainxml.Parse(text)
	if err != nil {
		return nil // it is libvirt's by now, and nothing else hangs on this
	}
	var out map[string]claims.Image
	for _, d := range doc.Disks() {
		i := slices.IndexFunc(made, func(m madeDisk) bool { return m.Path == d.Source })
		if i < 0 {
			continue
		}
		if out == nil {
			out = map[string]claims.Image{}
		}
		image := claims.Image{Path: made[i].Image}
		if image.Path != "" {
			image.Format = made[i].From
		}
		out[d.Target] = image
	}
	return out
}

// makeDisks makes the disks, on record before each effect.
func (c *creating) makeDisks(ctx context.Context) error {
	h, ref := c.h, creation(c.plan.inst.UUID)
	if len(c.plan.make) == 0 {
		return nil
	}
	for i := range c.plan.make {
		m := &c.plan.make[i]
		made, err := h.files.Plan(ref.Migration, fmt.Sprint(i), m.Path)
		if err != nil {
			return err
		}
		m.Made = made
	}
	if err := h.memory.Remember(ctx, ref, memoryCreate, c.plan.make); err != nil {
		return err
	}
	for i := range c.plan.make {
		m := &c.plan.make[i]
		if err := h.files.BuildFrom(ctx, &m.Made, m.Format, m.Size, m.Image, m.From); err != nil {
			return err
		}
	}
	if err := h.memory.Remember(ctx, ref, memoryCreate, c.plan.make); err != nil {
		return err
	}
	for _, m := range c.plan.make {
		if err := h.files.Publish(m.Made); err != nil {
			return err
		}
	}
	return nil
}

// undo takes everything back, the last first, and goes on past what fails. What
// it cannot take back keeps its claim, so that Settle comes back to it.
func (c *creating) undo(ctx context.Context) error {
	h, uuid := c.h, c.plan.inst.UUID
	var errs []error
	var variables []copiedDisk
	if c.defined {
		// libvirt makes the file of firmware variables at the start. Best effort: a
		// document that cannot be read now leaves a small file behind.
		if text, err := h.driver.XML(ctx, uuid, driver.Live); err == nil && c.started && !c.had {
			variables, _ = h.variables(text)
		}
		err := h.driver.Destroy(ctx, uuid)
		if err == nil && c.started {
			err = h.ended(ctx, driver.Domain{UUID: uuid, Name: c.plan.inst.Name})
		}
		if err == nil || errors.Is(err, fault.NotFound) {
			err = h.driver.Undefine(ctx, uuid)
		}
		if err != nil && !errors.Is(err, fault.NotFound) {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		_, err := h.removeMoved(ctx, creation(uuid), variables)
		errs = append(errs, err)
		for _, m := range slices.Backward(c.plan.make) {
			if m.Part != "" { // planned
				errs = append(errs, h.files.Unmake(m.Made))
			}
		}
		errs = append(errs, h.tracker.ForgetMigration(ctx, creation(uuid).Migration))
	}
	if errors.Join(errs...) == nil && c.allocated {
		errs = append(errs, h.o.Placement.DeleteAllocation(ctx, uuid))
	}
	if errors.Join(errs...) == nil && c.claimed {
		// Record, token and claim, whether the claim is bound by now or pending.
		errs = append(errs, h.tracker.DeleteInstance(ctx, uuid))
	}
	return wrap(errors.Join(errs...), "undo the creation of %s", c.plan.inst.Name)
}
