package domainxml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/beevik/etree"
)

// Kept is a thing of a guest that Berth leaves as it stands and does not
// represent: no claim holds what it has of the host, and no move finds it another
// of its kind. PCI functions and mediated devices are in the Assignment and not
// here.
type Kept struct {
	// Element is its path below <domain>, without numbers: devices/filesystem.
	Element string
	// What is the thing by its name: "shared folder src".
	What string
	// Why says what follows from leaving it, for an operator.
	Why string
	// Stays says that a live migration cannot take it along: libvirt or QEMU
	// refuses it, or the guest would find another thing behind the same name.
	Stays bool
	// Off says that it stays only while the guest runs: one that is shut off can be moved
	// with it, since nothing of it has to be sent, and each host has its like.
	Off bool
	// Change is what makes the guest movable; empty unless Stays.
	Change string
	// Disk is the target of a disk that stays; empty for what is none.
	Disk string
}

// String is a sentence for an operator.
func (k Kept) String() string {
	s := k.What + " is kept as it is: " + k.Why
	if k.Stays {
		s += "; with it the guest cannot be live-migrated"
	}
	return s
}

// What makes a guest movable: of a thing that stays whether it runs or not, and of one that stays
// only while it runs.
const (
	detach      = "detach it"
	detachOrOff = "detach it, or move the guest shut off"
)

// Kept lists what Berth leaves as it stands, in the order: the guest as a whole,
// its devices in theirs, and what elements of other namespaces ask. The sources
// are libvirt's format page, and for what stays qemuMigrationSrcIsAllowed in its
// qemu_migration.c and the migration blockers of QEMU's devices.
func (d *Doc) Kept() []Kept {
	k := &keeping{d: d}
	k.guest()
	if devices := d.root.SelectElement("devices"); devices != nil {
		for _, e := range devices.ChildElements() {
			k.device(e)
		}
	}
	for _, e := range d.root.ChildElements() {
		k.foreign(e)
	}
	return k.out
}

type keeping struct {
	d   *Doc
	out []Kept
}

// keeps notes a thing that may move, stays one that may not.
func (k *keeping) keeps(element, what, why string) {
	k.out = append(k.out, Kept{Element: element, What: what, Why: why})
}

func (k *keeping) stays(element, what, why, change string) {
	k.out = append(k.out, Kept{Element: element, What: what, Why: why, Stays: true, Change: change})
}

// staysRunning notes a thing that a guest which is shut off can take along.
func (k *keeping) staysRunning(element, what, why, change string) {
	k.out = append(k.out, Kept{Element: element, What: what, Why: why, Stays: true, Off: true, Change: change})
}

// guest looks at what is no device.
func (k *keeping) guest() {
	root := k.d.root
	if t := k.d.Type(); !slices.Contains([]string{"kvm", "qemu", "test"}, t) {
		k.stays("domain", fmt.Sprintf("domain of type %q", t), "it is no guest of QEMU, and only those can be started and moved", "run it under QEMU")
	}
	if e := root.SelectElement("launchSecurity"); e != nil {
		k.staysRunning("launchSecurity", "memory encryption ("+e.SelectAttrValue("type", "")+")",
			"keys of the host's processor are held by no claim", "move the guest shut off")
	}
	for _, e := range root.FindElements("./blkiotune/device") {
		k.keeps("blkiotune/device", "limit on host device "+child(e, "path"), "the device has that name on this host only")
	}
	// libvirt itself puts guests into /machine.
	if p := root.FindElement("./resource/partition"); p != nil && strings.TrimSpace(p.Text()) != "/machine" {
		k.keeps("resource/partition", "control group "+strings.TrimSpace(p.Text()), "another host needs one of that name")
	}
	for _, tag := range []string{"cachetune", "memorytune"} {
		for range root.FindElements("./cputune/" + tag) {
			k.keeps("cputune/"+tag, "share of a processor's cache or memory bandwidth ("+tag+")", "it is held by no claim")
		}
	}
	k.processor()
}

// processor names a CPU that is as it is on this host only, and an invariant
// time-stamp counter: without a fixed frequency QEMU refuses to migrate it.
func (k *keeping) processor() {
	cpu := k.d.root.SelectElement("cpu")
	if cpu == nil {
		return
	}
	if cpu.SelectAttrValue("migratable", "on") == "off" {
		k.staysRunning("cpu", "CPU of mode "+cpu.SelectAttrValue("mode", "")+" that is not migratable", "it shows the guest features that only this processor has", "set migratable='on'")
		return
	}
	for _, t := range k.d.root.FindElements("./clock/timer") {
		if t.SelectAttrValue("name", "") == "tsc" && t.SelectAttr("frequency") != nil {
			return
		}
	}
	const why, change = "it ties the guest to processors of one frequency", "give the clock a tsc timer with a frequency, or take the feature away"
	for _, f := range cpu.SelectElements("feature") {
		if f.SelectAttrValue("name", "") == "invtsc" && slices.Contains([]string{"require", "force"}, f.SelectAttrValue("policy", "require")) {
			k.staysRunning("cpu/feature", "CPU feature invtsc without a frequency", why, change)
		}
	}
}

// foreign names what elements of other namespaces, and of a libvirt that this
// version does not know, ask.
func (k *keeping) foreign(e *etree.Element) {
	if e.Space == "" {
		if !slices.Contains(knownElements, e.Tag) {
			k.keeps(e.Tag, "element <"+e.Tag+">", "this version does not know what it asks of a host")
		}
		return
	}
	if e.NamespaceURI() != qemuNamespace {
		k.keeps(e.FullTag(), "element <"+e.FullTag()+">", "it is another hypervisor's or tool's")
		return
	}
	switch e.Tag {
	case "commandline":
		what := "command line given to QEMU (qemu:commandline)"
		for _, a := range e.ChildElements() {
			if a.Tag == "arg" && strings.Contains(a.SelectAttrValue("value", ""), "vfio") {
				k.stays(e.FullTag(), what+" with a host device", "libvirt does not know the device, and no claim holds it", "give the device as a <hostdev>")
				return
			}
		}
		k.keeps(e.FullTag(), what, "no claim holds what it may name of the host")
	case "override", "capabilities":
		k.keeps(e.FullTag(), "override of QEMU's properties (qemu:"+e.Tag+")", "another QEMU may not know them")
	}
}

const qemuNamespace = "http://libvirt.org/schemas/domain/qemu/1.0"

// knownElements are the elements of <domain> that are the guest's own, or are
// looked at elsewhere.
var knownElements = []string{
	"name", "uuid", "genid", "title", "description", "metadata", "hwuuid", "maxMemory", "memory", "currentMemory", "blkiotune", "memtune",
	"memoryBacking", "vcpu", "vcpus", "iothreads", "iothreadids", "defaultiothread", "cputune", "numatune", "resource", "sysinfo",
	"bootloader", "bootloader_args", "os", "features", "cpu", "clock", "on_poweroff", "on_reboot", "on_crash", "on_lockfailure", "pm", "perf",
	"idmap", "keywrap", "devices", "seclabel", "launchSecurity", "throttlegroups",
}
