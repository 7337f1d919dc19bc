package host

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"berth/agent/host/admission"
	"berth/agent/host/disks"
	"berth/agent/host/streams"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// refusal collects every reason before anybody is told of one.
type refusal struct{ fault.Refusal }

func (r *refusal) add(kind fault.Kind, reasons ...fault.Reason) { r.Add(kind, reasons...) }
func (r *refusal) take(err error) error                         { return r.Take(err) }
func (r *refusal) err(format string, args ...any) error         { return r.Err(format, args...) }

// checkAnyDestination does operation.CheckDestination.
func (h *Host) checkAnyDestination(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	check := h.checkDestination
	switch {
	case c.Kind == migration.TypeEvacuation:
		check = h.checkEvacuation
	case isCold(c.Kind):
		check = h.checkColdDestination
	}
	a, err := check(ctx, ref, c)
	return a, wrap(err, "check destination %s for %s", h.o.Name, c.Guest.Name)
}

func (h *Host) checkDestination(ctx context.Context, ref migration.Ref, c migration.CheckRequest) (migration.CheckAnswer, error) {
	var no refusal
	g := c.Guest
	g.Resources = withAllMemory(g.Resources, c.Kind, g, g.Flavor, g.Topology)
	doc, err := parseDocument(g.XML)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	node, err := h.driver.Node(ctx)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	here := h.description(node)
	if here.Mode == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	live, err := driver.LiveMigration(h.driver, node)
	if err := no.take(err); err != nil {
		return migration.CheckAnswer{}, err
	}
	no.add(fault.Forbidden, sameHost(c.Source, here)...)
	no.add(fault.Forbidden, pairReasons(c.Source, here, doc.emulated())...)
	no.add(fault.Forbidden, streams.Differ(c.Source, here)...)
	if here.Transport == migration.TransportStream {
		no.add(fault.Forbidden, userReasons(doc, node, h.o.Name)...)
	}
	no.add(fault.Forbidden, doc.unmovable()...)
	no.add(fault.Forbidden, doc.immovable(g.Assignment)...)
	onlyThere, err := definedNeverMoves(doc, g.Definition)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	no.add(fault.Forbidden, onlyThere...)
	no.add(fault.Forbidden, hypervisorReasons(doc, node, h.o.Name)...)
	if live != nil && accelerated(doc, node) {
		reasons, err := judged(ctx, live, g.XML, passthroughReasons(doc, c.Source, here))
		if err != nil {
			return migration.CheckAnswer{}, err
		}
		no.add(fault.DoesNotFit, reasons...)
		text, err := withCPU(g)
		if err != nil {
			return migration.CheckAnswer{}, err
		}
		if err := no.take(live.CheckCPU(ctx, text)); err != nil {
			return migration.CheckAnswer{}, err
		}
	}
	place, err := h.checkRoom(&no, ref, g)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	if err := h.checkNames(ctx, &no, g, c.Source.Name); err != nil {
		return migration.CheckAnswer{}, err
	}
	views, err := h.checkDisks(&no, doc, g.Disks)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	if err := checkVariablesDevice(&no, h.files, doc, g, h.o.Name); err != nil {
		return migration.CheckAnswer{}, err
	}
	if err := h.checkFiles(&no, doc); err != nil {
		return migration.CheckAnswer{}, err
	}
	if err := h.checkConnections(ctx, &no, g.XML); err != nil {
		return migration.CheckAnswer{}, err
	}
	unadmitted, err := h.gate.Admit(ctx, g.UUID, admission.Unclaimed, g.XML, g.Definition)
	if err != nil {
		return migration.CheckAnswer{}, err
	}
	no.add(fault.Forbidden, unadmitted...)
	dropped := h.checkOptionsHere(&no, c, doc, node)
	if err := no.err(""); err != nil {
		return migration.CheckAnswer{}, err
	}
	answer := migration.CheckAnswer{Destination: here, Disks: views, Dropped: dropped, Options: c.Options, PostCopyAsked: c.PostCopyAsked}
	if answer.Definition, err = viewDefined(h.files, doc, g.Definition); err != nil {
		return migration.CheckAnswer{}, err
	}
	if ref.Migration == "" {
		room := h.wouldClaim(ctx, g.UUID, demand{Resources: g.Resources}, place)
		answer.WouldClaim = &room
	}
	return answer, nil
}

// checkFiles refuses a guest whose files beside disks are not here, firmware before
// all. The destination's document names them as the source's does.
func (h *Host) checkFiles(no *refusal, doc document) error {
	reason := func(path, code, message, change string) error {
		if path == "" {
			return nil
		}
		there, err := h.files.Exists(path)
		if err == nil && !there {
			no.add(fault.Forbidden, fault.Reason{Code: code, Message: message + ", which " + h.o.Name + " does not have", Want: path, Change: change})
		}
		return err
	}
	for _, path := range doc.files() {
		if err := reason(path, "file_missing", "the guest boots from "+path, "put the same file there"); err != nil {
			return err
		}
	}
	return reason(doc.Devices.Emulator, "emulator_missing", "the guest runs in "+doc.Devices.Emulator,
		"install QEMU at that path there, or change the guest's emulator")
}

// checkNames refuses what another guest has here. from is the host that the guest comes from;
// empty where it comes from none that could have got it from here.
func (h *Host) checkNames(ctx context.Context, no *refusal, g migration.Guest, from string) error {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		switch {
		case d.UUID == g.UUID:
			left, err := h.external.LeftBehind(d, from)
			if err != nil {
				return err
			}
			if left {
				if err := h.mayReplaceLeft(ctx, no, d); err != nil {
					return err
				}
				continue
			}
			no.add(fault.Exists, fault.Reason{
				Code: "domain_exists", Message: fmt.Sprintf("%s has a domain with uuid %s already (%s, %s)", h.o.Name, d.UUID, d.Name, d.State),
				Have: d.Name, Change: "look whose it is; if it is a leftover, virsh undefine " + fault.Quote(d.Name),
			})
		case d.Name == g.Name:
			no.add(fault.Exists, fault.Reason{
				Code: "name_exists", Message: fmt.Sprintf("%s has a domain named %s already, with uuid %s", h.o.Name, d.Name, d.UUID),
				Have: d.UUID, Change: "rename one of the two",
			})
		}
	}
	if inst, ok := h.tracker.Instance(g.UUID); ok && inst.Token.State == claims.TokenHere {
		no.add(fault.Forbidden, fault.Reason{
			Code: "token_here", Message: "the ledger of " + h.o.Name + " says that it owns " + inst.Name + " itself",
		})
	}
	return nil
}

// fate is what becomes of one disk in a move.
type fate int

const (
	leave   fate = iota // nothing to do: shared, network, empty, or read-only and there
	copied              // libvirt copies it into a file made here
	stopped             // it stops the move; the reason says why
)

// diskFate decides about one disk, given what the destination sees.
func diskFate(d migration.Disk, block, shared, exists bool, dest string) (fate, fault.Reason) {
	refuse := func(code, why, change string) (fate, fault.Reason) {
		return stopped, fault.Reason{Code: code, Message: "disk " + d.Target + " (" + d.Path + ") " + why, Want: d.Path, Change: change}
	}
	switch {
	case d.Network || d.Path == "" || shared:
		return leave, fault.Reason{}
	case d.ReadOnly && exists:
		// By its name, as libvirt takes it too: install media are copies of one image.
		return leave, fault.Reason{}
	case d.ReadOnly:
		return refuse("disk_missing", "is read-only, is not copied, and "+dest+" does not have it", "put the same file there, or eject it")
	case d.Shareable:
		return refuse("disk_shareable", "is shared with other guests but not with "+dest, "mount its storage on both hosts")
	case block:
		return refuse("disk_block", "is a block device that "+dest+" does not share", "give both hosts the same device")
	case d.Format != "raw" && d.Format != "qcow2":
		return refuse("disk_format", "has format "+d.Format+", which is not copied", "convert it to qcow2 or raw")
	case exists:
		return stopped, fault.ReasonsOf(disks.Occupied(d.Path))[0]
	}
	return copied, fault.Reason{}
}

// viewDisk looks at the place of one disk on this host, and decides about it.
func (h *Host) viewDisk(no *refusal, doc document, d migration.Disk) (view migration.DiskView, what fate, err error) {
	view.Target = d.Target
	exists := false
	if d.Path != "" && !d.Network {
		id, err := h.files.Identity(d.Path)
		switch {
		case errors.Is(err, fault.NotFound):
		case errors.Is(err, fault.Invalid):
			exists = true // a folder or a socket: occupied
		case err != nil:
			return view, what, err
		default:
			exists, view.Filesystem = true, id
			view.Shared = id != "" && id == d.Filesystem
		}
	}
	what, reason := diskFate(d, doc.isBlock(d.Target), view.Shared, exists, h.o.Name)
	switch {
	case what == stopped && reason.Code == "disk_exists":
		no.add(fault.Exists, reason)
	case what == stopped:
		no.add(fault.Forbidden, reason)
	}
	return view, what, nil
}

// checkDisks looks at each disk's place on this host, and whether what must be
// copied has room.
func (h *Host) checkDisks(no *refusal, doc document, list []migration.Disk) ([]migration.DiskView, error) {
	var views []migration.DiskView
	need := map[string]int64{} // by filesystem
	room := map[string]int64{}
	for _, d := range list {
		view, what, err := h.viewDisk(no, doc, d)
		if err != nil {
			return nil, err
		}
		views = append(views, view)
		if what == copied {
			if doc.isEncrypted(d.Target) {
				// The file that is made for it would be plain, and QEMU opens it with the secret.
				no.add(fault.Forbidden, fault.Reason{
					Code: "disk_encrypted", Message: "disk " + d.Target + " (" + d.Path + ") is encrypted, and a live copy makes a plain file", Have: d.Path,
					Change: "move it while it is off, which ships the file as it is: berth migrate " + doc.Name + " " + h.o.Name + " --cold",
				})
				continue
			}
			if r, bad := h.placeForDisk(d.Path); bad {
				no.add(fault.Forbidden, r)
				continue
			}
			space, err := h.files.Space(d.Path)
			if err != nil {
				return nil, err
			}
			// What it occupies now, not its virtual size: that much is needed for
			// certain. What was promised of DISK_GB is the claim's.
			need[space.Device] += min(d.ActualSize, max(d.VirtualSize, 0))
			room[space.Device] = space.Bytes
			if need[space.Device] > room[space.Device] {
				no.add(fault.DoesNotFit, fault.Reason{
					Code:    "disk_room_short",
					Message: fmt.Sprintf("disk %s: no room for %s on %s: want %s, %s free", d.Target, d.Path, h.o.Name, mib(need[space.Device]), mib(space.Bytes)),
					Want:    mib(need[space.Device]), Have: mib(space.Bytes), Change: "free space on that filesystem",
				})
			}
		}
		if view.Shared {
			if err := h.checkChain(no, d); err != nil {
				return nil, err
			}
		}
	}
	return views, nil
}

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", (bytes+1<<20-1)>>20) }

// isEncrypted reports whether the disk of a target is opened with a secret.
func (d document) isEncrypted(target string) bool {
	return slices.ContainsFunc(d.Devices.Disks, func(e diskElement) bool { return e.Target.Dev == target && e.encrypted() })
}

// isBlock reports whether a target is a block device on the source.
func (d document) isBlock(target string) bool {
	i := slices.IndexFunc(d.Devices.Disks, func(e diskElement) bool { return e.Target.Dev == target })
	return i >= 0 && d.Devices.Disks[i].Type == "block"
}

// systemDirs are where no disk of a guest is ever made, whoever asks.
var systemDirs = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root/.ssh", "/sbin", "/sys", "/usr"}

// placeForDisk refuses a path outside the folders for disks: the path comes
// from another host.
func (h *Host) placeForDisk(path string) (fault.Reason, bool) {
	below := func(dirs []string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") })
	}
	ok := filepath.IsAbs(path) && filepath.Clean(path) == path && !below(systemDirs)
	if ok && (len(h.o.ImagesDirs) == 0 || below(h.o.ImagesDirs)) {
		return fault.Reason{}, false
	}
	return fault.Reason{
		Code: "disk_place", Message: "no disk is made at " + path + " on " + h.o.Name, Want: strings.Join(h.o.ImagesDirs, ", "),
		Change: "move it to a folder for disk images",
	}, true
}

// checkAnySource does operation.CheckSource.
func (h *Host) checkAnySource(ctx context.Context, ref migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	check := h.checkSource
	if isCold(a.Kind) {
		check = h.checkColdSource
	}
	ans, err := check(ctx, ref, a)
	return ans, wrap(err, "check source %s for %s", h.o.Name, ref.Instance)
}

func (h *Host) checkSource(ctx context.Context, ref migration.Ref, a migration.CheckAnswer) (migration.SourceAnswer, error) {
	var no refusal
	if h.o.Mode() == ModeObserve {
		no.add(fault.Forbidden, observing(h.o.Name))
	}
	node, err := h.driver.Node(ctx)
	if err != nil {
		return migration.SourceAnswer{}, err
	}
	live, err := driver.LiveMigration(h.driver, node)
	if err := no.take(err); err != nil {
		return migration.SourceAnswer{}, err
	}
	if live == nil {
		return migration.SourceAnswer{}, no.err("")
	}
	g, err := h.inspect(ctx, ref.Instance)
	if err != nil {
		return migration.SourceAnswer{}, err
	}
	if g.PowerState == migration.PowerShutOff {
		no.add(fault.Forbidden, fault.Reason{
			Code: "not_running", Message: "the guest is shut off, and only a running or paused one moves live",
			Have: string(g.PowerState), Want: string(migration.PowerRunning), Change: "start it first",
		})
	}
	job, err := live.Job(ctx, ref.Instance)
	if err != nil {
		return migration.SourceAnswer{}, err
	}
	if inFlight(job) && !h.streams.Watches(ref) {
		no.add(fault.Busy, fault.Reason{Code: "job_in_flight", Message: "libvirt has a job for the guest in flight that is not this migration's", Change: "wait for it, or virsh domjobabort " + g.Name})
	}
	if err := no.take(h.nothingSaved(ctx, driver.Domain{UUID: ref.Instance, Name: g.Name})); err != nil {
		return migration.SourceAnswer{}, err
	}
	doc, err := parseDocument(g.XML)
	if err != nil {
		return migration.SourceAnswer{}, err
	}
	if a.Destination.Transport == migration.TransportStream {
		no.add(fault.Forbidden, userReasons(doc, node, h.o.Name)...)
	}
	if err := checkDefined(h.files, &no, doc, g, a); err != nil {
		return migration.SourceAnswer{}, err
	}
	ans := answerDisks(&no, doc, g.Disks, a)
	left, err := leftByCopy(ctx, h.files, g, ans.CopyDisks, a.Destination.Name)
	if err != nil {
		return migration.SourceAnswer{}, err
	}
	no.add(fault.Forbidden, left...)
	if len(ans.CopyDisks) > 0 {
		_, err := driver.StorageCopy(h.driver, node)
		if err := no.take(err); err != nil {
			return migration.SourceAnswer{}, err
		}
	}
	ans.Dropped = h.checkOptionsThere(&no, a, doc, g, node, ans.CopyDisks)
	return ans, no.err("")
}

// answerDisks decides about each of a guest's disks, as its source sees them beside what
// the destination has answered.
func answerDisks(no *refusal, doc document, list []migration.Disk, a migration.CheckAnswer) (ans migration.SourceAnswer) {
	for _, d := range list {
		i := slices.IndexFunc(a.Disks, func(v migration.DiskView) bool { return v.Target == d.Target })
		if i < 0 {
			no.add(fault.Busy, fault.Reason{Code: "disks_changed", Message: "disk " + d.Target + " was attached after the destination was asked", Change: "try again"})
			continue
		}
		// The source holds the names against each other itself.
		shared := d.Filesystem != "" && d.Filesystem == a.Disks[i].Filesystem
		what, reason := diskFate(d, doc.isBlock(d.Target), shared, d.ReadOnly, a.Destination.Name)
		switch what {
		case stopped:
			no.add(fault.Forbidden, reason)
		case copied:
			ans.CopyDisks = append(ans.CopyDisks, d.Target)
		case leave:
			ans.Shared = ans.Shared || shared
		}
	}
	return ans
}

func inFlight(j driver.Job) bool { return j.InFlight() }
