package host

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"berth/agent/host/admission"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// isCold reports whether a move of this type has its guest while it is off.
func isCold(migrationType string) bool {
	return migrationType != "" && migrationType != migration.TypeLiveMigration
}

// checkColdDestination is CheckDestination of a guest that is off when it comes, or is
// changed here. No memory of it is sent: what counts is its definition, as it is to be,
// and whether this host can start that.
func (h *Host) checkColdDestination(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	none := migration.CheckAnswer{}
	if _, err := claimKind(c.Kind); err != nil {
		return none, err
	}
	if c.Wanted == nil {
		return none, fault.New(fault.Invalid, "check for a %s: what the guest is to be is not said", c.Kind)
	}
	var no refusal
	g, w := c.Guest, *c.Wanted
	if g.Definition == "" {
		return none, fault.Refuse(fault.Forbidden, "", notPersistent(g.Name))
	}
	node, err := h.driver.Node(ctx)
	if err != nil {
		return none, err
	}
	here := h.description(node)
	if here.Mode == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	stays := c.Source.Name == here.Name && c.Kind != migration.TypeMigration
	if !stays {
		w.Resources = withAllMemory(w.Resources, c.Kind, g, w.Flavor, w.Topology)
	}
	place, text, err := h.checkColdRoom(&no, ref, g, w, stays)
	if err != nil {
		return none, err
	}
	doc, err := parseDocument(text)
	if err != nil {
		return none, err
	}
	no.add(fault.Forbidden, startReasons(doc, node, h.o.Name)...)
	if err := h.checkStartCPU(ctx, &no, doc, node, text); err != nil {
		return none, err
	}
	if err := h.checkFiles(&no, doc); err != nil {
		return none, err
	}
	if err := h.checkConnections(ctx, &no, text); err != nil {
		return none, err
	}
	answer := migration.CheckAnswer{Destination: here, Kind: c.Kind}
	if !stays {
		own, err := parseDocument(g.Definition)
		if err != nil {
			return none, err
		}
		no.add(fault.Forbidden, sameHost(c.Source, here)...)
		no.add(fault.Forbidden, coldPairReasons(c.Source, here)...)
		no.add(fault.Forbidden, own.bound(g.Assignment)...)
		shipped := admission.Unclaimed
		shipped.Below = below(g.Disks)
		unadmitted, err := h.gate.Admit(ctx, g.UUID, shipped, g.Definition)
		if err != nil {
			return none, err
		}
		no.add(fault.Forbidden, unadmitted...)
		if err := h.checkNames(ctx, &no, g, c.Source.Name); err != nil {
			return none, err
		}
		if answer.Disks, err = h.checkColdDisks(ctx, &no, ref, own, g, w); err != nil {
			return none, err
		}
		if err := checkVariablesDevice(&no, h.files, own, g, h.o.Name); err != nil {
			return none, err
		}
		variables, err := h.variablesView(&no, own)
		if err != nil {
			return none, err
		}
		answer.Disks = append(answer.Disks, variables...)
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

// checkColdRoom asks for what the guest is to be, and writes its definition for the place
// that a claim would have now: a move must not find out later that it cannot be written.
// The definition is the guest's old one where there is no such place.
func (h *Host) checkColdRoom(no *refusal, ref migration.Ref, g migration.Guest, w migration.Wanted, stays bool) (topology.Assignment, string, error) {
	before := len(no.Reasons)
	var a topology.Assignment
	var err error
	if stays {
		a, err = h.tracker.RoomBeside(g.UUID, w.Resources, w.Topology, w.PCIRequests)
		err = no.takeRoom(err)
	} else {
		a, err = h.room(no, demand{Resources: w.Resources, Topology: w.Topology, PCI: w.PCIRequests})
	}
	if err != nil || len(no.Reasons) > before {
		return a, g.Definition, err
	}
	meta := domainxml.Metadata{Name: g.Name, Flavor: w.Flavor, Epoch: g.Epoch + 1, Migration: ref.Migration}
	text, err := h.resizedDocument(g, w, claims.Claim{Topology: w.Topology, PCI: w.PCIRequests, Assignment: a}, meta, !stays)
	if errors.Is(err, fault.Invalid) {
		cause := err
		if inner := errors.Unwrap(err); inner != nil {
			cause = inner
		}
		no.add(fault.Forbidden, reasonsOf("document_does_not_fit", cause)...)
		return a, g.Definition, nil
	}
	return a, text, err
}

// startReasons are the reasons why a host could not start a guest of that definition. What
// depends on the features of its CPU alone is no hindrance to one that brings no memory.
func startReasons(doc document, node driver.Node, host string) []fault.Reason {
	return slices.DeleteFunc(hypervisorReasons(doc, node, host), func(r fault.Reason) bool { return r.Code == "cpu_unknown" })
}

// checkStartCPU refuses a guest whose CPU model is named and is not one that this host
// can give: it would not start. One that takes its host's CPU takes this one's.
func (h *Host) checkStartCPU(ctx context.Context, no *refusal, doc document, node driver.Node, text string) error {
	if doc.CPU.Mode != "custom" || !accelerated(doc, node) {
		return nil
	}
	live, err := driver.LiveMigration(h.driver, node)
	if err != nil {
		return nil // who cannot migrate is not asked; libvirt itself says it at the start
	}
	return no.take(live.CheckCPU(ctx, text))
}

// coldPairReasons hold two hosts against each other, for a guest of which no memory is
// sent: what it runs in there may be older.
func coldPairReasons(source, dest migration.Description) []fault.Reason {
	return slices.DeleteFunc(pairReasons(source, dest, false), func(r fault.Reason) bool { return r.Code == "qemu_older" })
}

// bound lists every device and property that keeps a guest on its host though it is off:
// what no claim holds, and is not a thing that another host has too.
func (d document) bound(a topology.Assignment) []fault.Reason {
	out := d.neverMoves()
	if d.unread != nil {
		return out
	}
	held := func(at string) bool {
		return slices.ContainsFunc(a.Devices, func(d topology.AssignedDevice) bool { return d.Address.String() == at })
	}
	unclaimed := func(what, at string) {
		out = append(out, notMovableOff(what+" "+at, "no claim holds it, and so none finds another on the other host", "detach it, or ask for it by an alias in the flavor"))
	}
	for _, dev := range d.Devices.Hostdevs {
		if dev.Type != "pci" && dev.Type != "mdev" || dev.Source == nil {
			continue // kept
		}
		if at := dev.Source.where(); !held(at) {
			unclaimed(dev.Type+" host device", at)
		}
	}
	for _, nic := range d.Devices.Interface {
		if at := nic.Source.where(); nic.Type == "hostdev" && !held(at) {
			unclaimed("interface of a PCI host device", at)
		}
	}
	return out
}

// neverMoves lists what keeps a guest on its host whether it runs or not, and whatever its claim
// holds: disks that are the host's own before all.
func (d document) neverMoves() []fault.Reason {
	if d.unread != nil {
		return []fault.Reason{notMovableOff("a guest whose definition cannot be read ("+d.unread.Error()+")", "", "correct it: virsh edit "+fault.Quote(d.Name))}
	}
	var out []fault.Reason
	for _, k := range d.kept() {
		if k.Stays && !k.Off {
			out = append(out, notMovableOff(k.What, k.Why, k.Change))
		}
	}
	return out
}

func notMovableOff(what, why, change string) fault.Reason {
	message := what + " stays on its host"
	if why != "" {
		message += ": " + why
	}
	return fault.Reason{Code: "device_stays", Message: message, Have: what, Change: change}
}

// variablesView is what this host has at the path of a guest's firmware variables, for
// the source, which knows whether it has any. What is here and cannot be the guest's own
// is in the way.
func (h *Host) variablesView(no *refusal, doc document) ([]migration.DiskView, error) {
	path := doc.firmware().Variables
	if path == "" || doc.firmware().OnDevice {
		return nil, nil
	}
	id, err := h.files.Identity(path)
	switch {
	case errors.Is(err, fault.NotFound):
		if r, bad := h.placeForDisk(path); bad {
			no.add(fault.Forbidden, r)
		}
		return []migration.DiskView{{Target: migration.FirmwareVariables}}, nil
	case err != nil && !errors.Is(err, fault.Invalid):
		return nil, err
	case id == "":
		no.add(fault.Exists, variablesInTheWay(path, h.o.Name))
		return nil, nil
	}
	return []migration.DiskView{{Target: migration.FirmwareVariables, Filesystem: id}}, nil
}

// checkVariablesDevice refuses a guest whose firmware variables are on a block device, unless
// this host has the very device that its source named. QEMU writes them where it arrives, and
// another device of that name would lose what is on it.
func checkVariablesDevice(no *refusal, files Files, doc document, g migration.Guest, here string) error {
	path := doc.firmware().Variables
	if !doc.firmware().OnDevice {
		return nil
	}
	id, err := files.Identity(path)
	if err != nil && !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Invalid) {
		return err
	}
	if err != nil || id == "" || id != g.Variables {
		no.add(fault.Forbidden, fault.Reason{
			Code: "firmware_variables_block", Message: "the firmware variables are on the block device " + path + ", and nothing shows that " + here + " has the same device",
			Want: path, Change: "give both hosts the same device, and run the same version of Berth on both",
		})
	}
	return nil
}

func variablesInTheWay(path, host string) fault.Reason {
	return fault.Reason{
		Code: "firmware_variables_exist", Message: "the guest's firmware variables are in " + path + ", and " + host + " has another file of that name",
		Want: path, Change: "remove it there, if nobody needs it",
	}
}

// shipsVariables reports whether a guest's firmware variables are to be shipped with its
// disks: the source has them, and they are not on storage of both hosts.
func (h *Host) shipsVariables(no *refusal, doc document, a migration.CheckAnswer) (bool, error) {
	path := doc.firmware().Variables
	i := slices.IndexFunc(a.Disks, func(v migration.DiskView) bool { return v.Target == migration.FirmwareVariables })
	if path == "" || i < 0 {
		return false, nil
	}
	id, err := h.files.Identity(path)
	none := errors.Is(err, fault.NotFound)
	switch there := a.Disks[i].Filesystem; {
	case err != nil && !none:
		return false, err
	case there != "" && id == there:
		return false, nil
	case there != "":
		no.add(fault.Exists, variablesInTheWay(path, a.Destination.Name))
		return false, nil
	}
	return !none, nil // one that never ran has none: its first start makes them
}

// withVariables gives a guest's disks with its firmware variables as one of them, where
// they are to be shipped.
func withVariables(g migration.Guest, targets []string) (migration.Guest, error) {
	if !slices.Contains(targets, migration.FirmwareVariables) {
		return g, nil
	}
	doc, err := parseDocument(g.Definition)
	if err != nil {
		return g, err
	}
	g.Disks = append(slices.Clone(g.Disks), migration.Disk{Target: migration.FirmwareVariables, Path: doc.firmware().Variables, Format: "raw"})
	return g, nil
}

// checkColdDisks looks at each disk's place on this host: shared, or to be shipped here.
func (h *Host) checkColdDisks(ctx context.Context, no *refusal, ref migration.Ref, doc document, g migration.Guest, w migration.Wanted) ([]migration.DiskView, error) {
	var views []migration.DiskView
	var ship, shared []string
	for _, d := range g.Disks {
		view, what, err := h.viewDisk(no, doc, d)
		if err != nil {
			return nil, err
		}
		views = append(views, view)
		switch {
		case what == copied:
			ship = append(ship, d.Target)
		case view.Shared:
			shared = append(shared, d.Target)
			if err := h.checkChain(no, d); err != nil {
				return nil, err
			}
		}
	}
	if err := h.checkGrown(no, g, shared, w.Grow); err != nil {
		return nil, err
	}
	return views, h.dock.Check(ctx, &no.Refusal, ref, g, ship, w.Grow)
}

// checkChain refuses a shared disk that stands on a file which is not here, or has its data
// in one.
func (h *Host) checkChain(no *refusal, d migration.Disk) error {
	below := []string{d.BackingFile}
	for _, b := range d.Chain {
		below = append(below, b.Path)
	}
	slices.Sort(below)
	if err := h.checkBeside(no, d, slices.Compact(below), "backing_file_missing", "backing file"); err != nil {
		return err
	}
	return h.checkBeside(no, d, d.Outside, "data_file_missing", "data file")
}

// checkBeside refuses a shared disk that needs a file which is not here.
func (h *Host) checkBeside(no *refusal, d migration.Disk, paths []string, code, what string) error {
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			continue
		}
		there, err := h.files.Exists(path)
		if err != nil {
			return err
		}
		if !there {
			no.add(fault.Forbidden, fault.Reason{
				Code: code, Message: "disk " + d.Target + " is shared, its " + what + " " + path + " is not on " + h.o.Name,
				Want: path, Change: "mount its folder on both hosts",
			})
		}
	}
	return nil
}

// checkColdSource is CheckSource of a guest that is powered off before it goes.
func (h *Host) checkColdSource(ctx context.Context, ref migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	var ans migration.SourceAnswer
	var no refusal
	if h.o.Mode() == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	g, err := h.inspect(ctx, ref.Instance)
	if err != nil {
		return ans, err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return ans, err
	}
	if !exists {
		return ans, gone("libvirt on " + h.o.Name + " has no such domain any more")
	}
	if err := no.take(h.mayPowerOff(ctx, ref, d, exists)); err != nil {
		return ans, err
	}
	if g.Definition == "" || h.attempts.InPlace(h.o.Name, a.Destination.Name) {
		return ans, no.err("")
	}
	own, err := parseDocument(g.Definition)
	if err != nil {
		return ans, err
	}
	no.add(fault.Busy, otherDisks(g, own)...)
	ans = answerDisks(&no, own, g.Disks, a)
	// The destination cannot read them before they have been shipped, and would be the first to say so then.
	if err := h.shippable(ctx, &no, g, ans.CopyDisks, a.Destination.Name); err != nil {
		return ans, err
	}
	ships, err := h.shipsVariables(&no, own, a)
	if err != nil {
		return ans, err
	}
	if ships {
		ans.CopyDisks = append(ans.CopyDisks, migration.FirmwareVariables)
	}
	return ans, no.err("")
}

// shippable refuses disks of which the destination could not tell, once it has them, which files
// they need: one in a format with a header in the network, say. Which files it allows is the
// destination's to say.
func (h *Host) shippable(ctx context.Context, no *refusal, g migration.Guest, targets []string, destination string) error {
	doc, err := domainxml.Parse(g.Definition)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	for _, d := range doc.Disks() {
		if !slices.Contains(targets, d.Target) {
			if err := doc.DetachDisk(d.Target); err != nil {
				return fault.New(fault.Invalid, "%w", err)
			}
		}
	}
	policy := admission.Policy{Host: destination, Allowed: admission.Allowed{Paths: []string{"/"}}}
	silent := h.gate.ReadImages(ctx, &policy)
	for _, r := range admission.CheckImages(doc, policy, nil) {
		if r.Code == "image_unread" {
			no.add(fault.Forbidden, r)
		}
	}
	return *silent
}

// otherDisks names disks that a running guest has and its definition has not, or the
// other way round: it would be another guest after the move, and which one its user
// wants is not known.
func otherDisks(g migration.Guest, definition document) []fault.Reason {
	var out []fault.Reason
	reason := func(target, where, change string) {
		out = append(out, fault.Reason{
			Code: "definition_differs", Message: "disk " + target + " is only in " + where, Have: target, Change: change,
		})
	}
	for _, d := range g.Disks {
		if !slices.ContainsFunc(definition.Devices.Disks, func(e diskElement) bool { return e.Target.Dev == d.Target && (d.Path == "" || e.path() == d.Path) }) {
			reason(d.Target, "the running guest", "attach it with --config too, or detach it")
		}
	}
	for _, e := range definition.Devices.Disks {
		if !slices.ContainsFunc(g.Disks, func(d migration.Disk) bool { return d.Target == e.Target.Dev }) {
			reason(e.Target.Dev, "the definition", "attach it to the running guest too, or detach it with --config")
		}
	}
	return out
}
