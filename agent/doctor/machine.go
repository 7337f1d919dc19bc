package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/driver"
	"berth/internal/config"
	"berth/topology"
)

// patient is what the doctor knows of the machine before it says anything of it. Each check
// is a function of it and of files below root.
type patient struct {
	conf      config.Config
	observing bool
	root      string // with etc, dev, proc and sys

	host  *topology.Host // nil while the hardware is not known
	cells []api.HostCell // what guests may have of it
	loose []api.HostDevice

	node    driver.Node
	libvirt error // why node is not known; nil where it is

	guard    func() guardState               // looks at the hook
	synced   func() (bool, error)            // whether somebody keeps the clock right
	manager  func() error                    // whether the service manager answers on the system's bus
	needsBus bool                            // the agent's hooks, or its lock of logind's, need it
	space    func(path string) (room, error) // errNoAnswer where the filesystem is silent
	now      time.Time
}

// room is what a filesystem has.
type room struct {
	total, free int64  // bytes; free for the agent
	files       uint64 // inodes that are free; 0 also where the filesystem does not count them
	counted     bool   // it does
}

// machineChecks are those of the machine and its hypervisor, the hypervisor's first. Those that
// look at files are made by look; disks bounds each of its own.
func (p patient) machineChecks(look bounded) []api.Check {
	return []api.Check{
		look("kernel", "/proc", p.kernel), p.hypervisor(), look("guard hook", p.conf.Guard.Hook, p.hook), look("confinement", "/etc/apparmor.d", p.confinement),
		look("huge pages", "/sys", p.hugePages), p.devices(), look("userfaultfd", "/proc", p.userfaultfd), p.clock(), p.bus(), p.disks(),
	}
}

func right(name, detail string) api.Check {
	return api.Check{Name: name, Outcome: api.CheckOK, Detail: detail}
}

func wrong(name, detail, remedy string) api.Check {
	return api.Check{Name: name, Outcome: api.CheckWrong, Detail: detail, Remedy: remedy}
}

func unset(name, detail, remedy string) api.Check {
	return api.Check{Name: name, Outcome: api.CheckUnset, Detail: detail, Remedy: remedy}
}

func (p patient) path(name string) string { return filepath.Join(p.root, name) }

func (p patient) read(name string) (string, error) {
	b, err := os.ReadFile(p.path(name))
	return strings.TrimSpace(string(b)), err
}

func (p patient) exists(name string) bool {
	_, err := os.Stat(p.path(name))
	return err == nil
}

// kernel is whether guests run by the machine's own virtualization.
func (p patient) kernel() api.Check {
	const name = "kernel"
	release, err := p.read("proc/sys/kernel/osrelease")
	if err != nil {
		release = "of unknown release"
	}
	kvm := p.exists("dev/kvm")
	emulated := p.libvirt == nil && p.node.Emulated
	switch {
	case kvm && emulated:
		return wrong(name, "Linux "+release+" has /dev/kvm, and libvirt's guests are emulated all the same",
			"let QEMU open /dev/kvm (group kvm), restart libvirtd (guests go on), and see virt-host-validate qemu")
	case kvm:
		return right(name, "Linux "+release+", with KVM")
	}
	return unset(name, "Linux "+release+" has no /dev/kvm: guests are emulated (TCG), slowly, and only QEMU 9 or later moves them well",
		"switch on virtualization in the firmware (VT-x, AMD-V), and load kvm_intel or kvm_amd")
}

// The oldest that moves were made safe for: below libvirt 8 a destination that is left paused
// cannot be told from one that failed.
const (
	oldestLibvirt  driver.Version = 8_000_000
	oldestQEMU     driver.Version = 6_002_000
	oldestEmulated driver.Version = 9_000_000
)

// hypervisor is whether libvirt answers and is not too old.
func (p patient) hypervisor() api.Check {
	const name = "libvirt"
	if p.libvirt != nil {
		return wrong(name, p.libvirt.Error(), "start libvirtd (systemctl start libvirtd), or set [libvirt] socket; Berth connects by itself")
	}
	n, oldest := p.node, oldestQEMU
	if n.Emulated {
		oldest = oldestEmulated
	}
	has := fmt.Sprintf("libvirt %s, %s %s", n.LibraryVersion, cmp.Or(n.Hypervisor, "hypervisor"), n.HypervisorVersion)
	switch {
	case n.LibraryVersion < oldestLibvirt:
		return wrong(name, has+": older than libvirt "+oldestLibvirt.String(), "upgrade libvirt to "+oldestLibvirt.String()+" or later")
	case n.Hypervisor == "QEMU" && n.HypervisorVersion < oldest:
		return wrong(name, has+": older than QEMU "+oldest.String(), "upgrade QEMU to "+oldest.String()+" or later, and restart or move the guests that run by the old one")
	case n.CapabilitiesError != "":
		return wrong(name, has+"; what guests can have here is not known: "+n.CapabilitiesError, "see virsh domcapabilities, which must answer")
	}
	if n.Socket != "" {
		has += ", at " + n.Socket
	}
	return right(name, has)
}

// guardState is what guardian.state says.
type guardState struct{ state, change string }

// hook is whether libvirt asks before it starts a guest or takes one in.
func (p patient) hook() api.Check {
	const name = "guard hook"
	hook := p.conf.Guard.Hook
	info, err := os.Stat(hook)
	guard := p.guard()
	switch {
	case p.observing:
		return unset(name, "mode observe lets every guest start", `set [agent] mode = "manage" when you are ready`)
	case os.IsNotExist(err):
		return unset(name, hook+" is not installed: virsh starts guests and brings them here unasked",
			"install packaging/hooks there (the package does), and restart libvirtd (guests go on)")
	case err != nil || info.Mode()&0o111 == 0:
		return wrong(name, guard.state, guard.change)
	case guard.change != "":
		return unset(name, guard.state, guard.change)
	}
	return right(name, guard.state)
}

// confinement is whether QEMU may use the sockets of a migration where the kernel confines it.
func (p patient) confinement() api.Check {
	const name = "confinement"
	if p.conf.Migration.Transport != config.TransportStream {
		return right(name, "transport "+p.conf.Migration.Transport+" needs no leave of AppArmor or SELinux")
	}
	if enabled, _ := p.read("sys/module/apparmor/parameters/enabled"); enabled == "Y" && p.exists("etc/apparmor.d/abstractions/libvirt-qemu") {
		local, _ := p.read("etc/apparmor.d/local/abstractions/libvirt-qemu")
		if !p.exists("etc/apparmor.d/abstractions/berth-stream") || !strings.Contains(local, "berth-stream") {
			return wrong(name, "AppArmor confines guests, and does not let them use the sockets of a migration",
				"install packaging/apparmor/berth-stream as /etc/apparmor.d/abstractions/berth-stream, and add the line `include <abstractions/berth-stream>` to /etc/apparmor.d/local/abstractions/libvirt-qemu; it counts for guests that start from then on")
		}
		return right(name, "AppArmor lets guests use the sockets of a migration; guests that started before it was told do not know")
	}
	if enforce, _ := p.read("sys/fs/selinux/enforce"); enforce == "1" {
		return unset(name, "SELinux confines guests, and no policy for the sockets of a migration comes with Berth",
			`look for denials of svirt_t after a first move (ausearch -m avc -ts recent) and allow them, or set [migration] transport = "libvirt-tls", which needs none`)
	}
	return right(name, "neither AppArmor nor SELinux confines guests here")
}

// hugePages is whether the pools that guests are counted on are there.
func (p patient) hugePages() api.Check {
	const name = "huge pages"
	if p.host == nil {
		return wrong(name, "the hardware is not known", "see berth status")
	}
	var pools, taken []string
	for _, c := range p.cells {
		for _, pool := range c.Pages {
			if pool.Size == p.host.BasePageSize || pool.Total == 0 {
				continue
			}
			pools = append(pools, fmt.Sprintf("%d of %s in cell %d", pool.Total, pool.Size, c.ID))
			file := fmt.Sprintf("sys/devices/system/node/node%d/hugepages/hugepages-%dkB/free_hugepages", c.ID, pool.Size>>10)
			text, err := p.read(file)
			var free int64
			if _, scanned := fmt.Sscan(text, &free); err != nil || scanned != nil {
				continue // no cells in this kernel, or none of that size any more: status tells
			}
			// Guests take theirs when they start, so there may be more; there are fewer only
			// where somebody else has taken some.
			if should := pool.Total - pool.Reserved - pool.Used; free < should {
				taken = append(taken, fmt.Sprintf("%d pages of %s in cell %d", should-free, pool.Size, c.ID))
			}
		}
	}
	mounts, _ := p.read("proc/mounts")
	switch {
	case len(pools) == 0:
		return unset(name, "none: guests that ask for large pages (hw:mem_page_size) do not fit here",
			"reserve some when the machine starts (hugepagesz=1G hugepages=N on the kernel's command line), or write nr_hugepages of a cell")
	case !strings.Contains(mounts, " hugetlbfs "):
		return wrong(name, strings.Join(pools, ", ")+", and no hugetlbfs is mounted: libvirt cannot give them to guests",
			"mount -t hugetlbfs hugetlbfs /dev/hugepages (systemd does by dev-hugepages.mount), and restart libvirtd (guests go on)")
	case len(taken) > 0:
		return wrong(name, "somebody beside the guests has taken "+strings.Join(taken, ", "),
			"say how many are not for guests in [host] reserved_hugepages, or end who has them (HugetlbPages in /proc/PID/status)")
	}
	return right(name, strings.Join(pools, ", "))
}

// devices is whether the PCI functions that guests may have can be given away.
func (p patient) devices() api.Check {
	const name = "IOMMU"
	groups := map[int]bool{}
	if p.host != nil {
		for _, d := range p.host.PCI {
			if d.IOMMUGroup != nil {
				groups[*d.IOMMUGroup] = true
			}
		}
	}
	given := map[topology.PCIAddress]bool{}
	for _, d := range p.forGuests() {
		given[d.Address] = true
	}
	const on = "switch on VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on or amd_iommu=on"
	switch {
	case p.host == nil:
		return wrong(name, "the hardware is not known", "see berth status")
	case len(p.conf.PCI.DeviceSpec) == 0 && len(groups) == 0:
		return unset(name, "there is none, and no [pci] device_spec gives a device to guests", on+"; then set [pci] device_spec")
	case len(p.conf.PCI.DeviceSpec) == 0:
		return unset(name, fmt.Sprintf("%d groups; no [pci] device_spec gives a device to guests", len(groups)), "set [pci] device_spec")
	case len(given) == 0:
		return wrong(name, "[pci] device_spec matches no device of this host", "correct it (berth host show names the devices), or take it out")
	case len(groups) == 0:
		return wrong(name, fmt.Sprintf("there is none, and %d devices are for guests", len(given)), on)
	}
	if shared := p.sharedGroups(given); len(shared) > 0 {
		if more := len(shared) - mostShared; more > 0 {
			shared = append(shared[:mostShared], fmt.Sprintf("so it is with %d more", more))
		}
		return wrong(name, "a group goes to a guest as a whole, and "+strings.Join(shared, "; "),
			"give the others too ([pci] device_spec), unbind their drivers, or put the card into another slot")
	}
	if caps := p.node.Capabilities; p.libvirt == nil && caps != nil && !caps.VFIO {
		return wrong(name, fmt.Sprintf("%d groups, and libvirt cannot give devices to guests (VFIO)", len(groups)), "modprobe vfio-pci, and restart libvirtd (guests go on)")
	}
	return right(name, fmt.Sprintf("%d groups; %d functions are for guests", len(groups), len(given)))
}

// mostShared are named of the functions that share a group: a card has many.
const mostShared = 4

func (p patient) forGuests() []api.HostDevice {
	out := slices.Clone(p.loose)
	for _, c := range p.cells {
		out = append(out, c.Devices...)
	}
	return out
}

// sharedGroups names groups in which beside a device for guests is one that the host uses.
func (p patient) sharedGroups(given map[topology.PCIAddress]bool) []string {
	var out []string
	for _, d := range p.host.PCI {
		if !given[d.Address] || d.IOMMUGroup == nil {
			continue
		}
		for _, o := range p.host.PCI {
			bridge := strings.HasPrefix(o.Class, "0x06") // stays with the host: the kernel lets it be in a group
			if o.IOMMUGroup != nil && *o.IOMMUGroup == *d.IOMMUGroup && !given[o.Address] && !bridge && o.Driver != "" && o.Driver != "vfio-pci" {
				out = append(out, fmt.Sprintf("%s is with %s (driver %s) in group %d", d.Address, o.Address, o.Driver, *d.IOMMUGroup))
			}
		}
	}
	return out
}

// From these on QEMU opens /dev/userfaultfd where it may, and libvirt lets each guest (its release
// notes, 10.1.0).
const (
	deviceQEMU    driver.Version = 8_001_000
	deviceLibvirt driver.Version = 10_001_000
)

// userfaultfd is whether QEMU, which runs as a user of its own, may ask for pages that are missing,
// as post-copy does: by /dev/userfaultfd, or by a system call that everybody may make.
func (p patient) userfaultfd() api.Check {
	const name, device = "userfaultfd", "dev/userfaultfd"
	allowed, err := p.read("proc/sys/vm/unprivileged_userfaultfd")
	there, known := p.exists(device), p.libvirt == nil
	opens := there && known && p.node.HypervisorVersion >= deviceQEMU
	switch {
	case allowed == "1":
		return right(name, "QEMU may use it: guests can arrive by post-copy")
	case known && p.node.GuestUser != nil && p.node.GuestUser.UID == 0:
		return right(name, "QEMU runs as root, which may use it")
	case opens && p.node.LibraryVersion >= deviceLibvirt:
		return right(name, "libvirt lets guests open /dev/userfaultfd: they can arrive by post-copy")
	case opens && p.guestsMayOpen(device) && p.inDeviceList("/"+device):
		return right(name, "QEMU may open /dev/userfaultfd: guests can arrive by post-copy")
	case err != nil && !there:
		return unset(name, "the kernel says nothing of it: guests may not be able to arrive by post-copy", "use a kernel with CONFIG_USERFAULTFD")
	}
	detail := "vm.unprivileged_userfaultfd is " + cmp.Or(allowed, "not known") + ", and /dev/userfaultfd is not there"
	if there {
		detail = "vm.unprivileged_userfaultfd is " + cmp.Or(allowed, "not known") + ", and QEMU cannot open /dev/userfaultfd"
	}
	detail += ": guests cannot arrive by post-copy"
	remedy := "sysctl -w vm.unprivileged_userfaultfd=1, and the same in /etc/sysctl.d/60-qemu-postcopy-migration.conf"
	if there {
		remedy += "; or upgrade to QEMU " + deviceQEMU.String() + " and libvirt " + deviceLibvirt.String() + " or later, which use the device"
	}
	if p.conf.Migration.PostCopy {
		return wrong(name, detail+", which [migration] post_copy wants", remedy)
	}
	return unset(name, detail, remedy)
}

// guestsMayOpen is whether a file's owner, group and mode let the user that guests run as read and
// write it.
func (p patient) guestsMayOpen(file string) bool {
	user := p.node.GuestUser
	var st unix.Stat_t
	if user == nil || unix.Stat(p.path(file), &st) != nil {
		return false
	}
	const readWrite = 0o6
	switch {
	case int(st.Uid) == user.UID:
		return st.Mode>>6&readWrite == readWrite
	case int(st.Gid) == user.GID || p.isMember(user.UID, int(st.Gid)):
		return st.Mode>>3&readWrite == readWrite
	}
	return st.Mode&readWrite == readWrite
}

// isMember is whether the machine's own files have a user among a group's members, whose groups
// libvirt gives to QEMU too.
func (p patient) isMember(uid, gid int) bool {
	users, _ := p.read("etc/passwd") // without it nobody is one
	groups, _ := p.read("etc/group")
	for line := range strings.Lines(users) {
		user := strings.Split(line, ":") // name:password:uid:...
		if len(user) < 3 || user[2] != strconv.Itoa(uid) {
			continue
		}
		for line := range strings.Lines(groups) {
			group := strings.Split(strings.TrimSpace(line), ":") // name:password:gid:member,member
			if len(group) == 4 && group[2] == strconv.Itoa(gid) && slices.Contains(strings.Split(group[3], ","), user[0]) {
				return true
			}
		}
	}
	return false
}

// inDeviceList is whether libvirt's settings name a device among those that every guest sees
// (cgroup_device_acl): in the /dev of its own, which a guest has, are no others.
func (p patient) inDeviceList(device string) bool {
	settings, _ := p.read("etc/libvirt/qemu.conf")
	for line := range strings.Lines(settings) {
		if said, _, _ := strings.Cut(line, "#"); strings.Contains(said, `"`+device+`"`) {
			return true
		}
	}
	return false
}

// clock is whether somebody keeps it right: certificates and leases go by it.
func (p patient) clock() api.Check {
	const name = "clock"
	synced, err := p.synced()
	const remedy = "let one daemon keep it: systemctl enable --now systemd-timesyncd (or chrony), and see timedatectl"
	switch {
	case err != nil:
		return wrong(name, "whether it is kept is not known: "+err.Error(), remedy)
	case !synced:
		return wrong(name, "nobody keeps it right: the kernel calls it unsynchronised", remedy)
	}
	return right(name, "kept, as the kernel says")
}

// bus is whether the service manager can be asked for units of their own, in which hooks run, and
// logind for a lock: both by the system's bus (systemd-run with its program's output does not use
// the manager's own socket).
func (p patient) bus() api.Check {
	const name = "system bus"
	const remedy = "install and start one (dbus, or dbus-broker; systemctl start dbus.socket), and see busctl status org.freedesktop.systemd1"
	err := p.manager()
	switch {
	case err == nil:
		return right(name, "systemd answers on it")
	case p.needsBus:
		return wrong(name, err.Error()+": hooks cannot be started, nor a shutdown held up", remedy)
	}
	return unset(name, err.Error()+": this agent was not started by systemd, and asks it for nothing", remedy)
}

// leastState is what the state directory needs to go on for a while; leastShare is the part of
// a filesystem with guests' disks that ought to be free. Both arbitrary.
const (
	leastState = 256 << 20
	leastShare = 20 // a twentieth
)

// disks is whether the ledger can be written and guests' disks can grow.
func (p patient) disks() api.Check {
	const name = "disk space"
	var bad, good, do []string
	paths := map[room][]string{} // of filesystems that are well: two folders may be on one
	var order []room
	places := []struct {
		path, what string
		guests     bool
		room       room
		err        error
	}{
		{path: p.conf.Agent.StateDir, what: "state"}, {path: p.conf.Agent.RuntimeDir, what: "runtime"}, {path: p.conf.Host.DiskPath, what: "guests' disks", guests: true},
	}
	var all sync.WaitGroup // what does not answer is waited for once
	for i := range places {
		all.Go(func() { places[i].room, places[i].err = p.space(places[i].path) })
	}
	all.Wait()
	for _, at := range places {
		r, err := at.room, at.err
		words := fmt.Sprintf("%s (%s): %s of %s free", at.path, at.what, bytesWords(r.free), bytesWords(r.total))
		switch {
		case errors.Is(err, errNoAnswer):
			bad, do = append(bad, at.path+" ("+at.what+"): "+err.Error()), append(do, silentRemedy(at.path))
		case err != nil:
			bad, do = append(bad, at.path+": "+err.Error()), append(do, "make "+at.path+", or correct the configuration")
		case r.counted && r.files < 1000:
			bad, do = append(bad, fmt.Sprintf("%s: only %d files more can be made", at.path, r.files)), append(do, "remove files there")
		case at.guests && r.free < r.total/leastShare:
			bad, do = append(bad, words), append(do, "make room on "+at.path+", or move guests away (berth host drain): a disk that cannot grow pauses its guest")
		case !at.guests && r.free < min(leastState, r.total/4):
			bad, do = append(bad, words), append(do, "make room on "+at.path+": without it no claim is given")
		default:
			if paths[r] == nil {
				order = append(order, r)
			}
			paths[r] = append(paths[r], at.path)
		}
	}
	for _, r := range order {
		good = append(good, fmt.Sprintf("%s: %s of %s free", strings.Join(paths[r], ", "), bytesWords(r.free), bytesWords(r.total)))
	}
	if len(bad) > 0 {
		return wrong(name, strings.Join(bad, "; "), strings.Join(do, "; "))
	}
	return right(name, strings.Join(good, "; "))
}

// bytesWords is an amount for people.
func bytesWords(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
