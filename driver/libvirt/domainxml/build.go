package domainxml

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/beevik/etree"

	"berth/topology"
)

// Spec is a new guest. Zero values mean the defaults named.
type Spec struct {
	Name     string
	UUID     string
	Flavor   topology.Flavor // vCPUs and memory; its disk is in Disks
	Metadata *Metadata       // nil for a guest that Berth does not manage

	KVM      bool   // else QEMU's own emulation (TCG)
	Arch     string // x86_64
	Machine  string // q35
	Emulator string // libvirt's choice
	// CPU is host-model, host-passthrough, maximum, or a model's name; host-model
	// with KVM, qemu64 without: a host's model under emulation would tie the guest
	// to that host for nothing.
	CPU string

	// Kernel boots directly, with Initrd and Cmdline; else the first disk boots.
	Kernel, Initrd, Cmdline string

	Disks []SpecDisk
	// SerialFile is where the serial console's output goes; a pseudo terminal when
	// empty.
	SerialFile string
	Networks   []SpecNetwork

	// Place is where the guest is put; the zero value is anywhere.
	Place

	// Cores are the host's (topology.Host.Cores): vCPUs that are pinned to siblings
	// of one core become threads of one. Empty when the kernel does not tell; the
	// guest then has cores of one thread.
	Cores []topology.CPUSet

	LockedMemory bool // the guest's memory is never swapped (hw:locked_memory)
	IOThreads    int  // threads beside QEMU's main one for disks, which take them in turn
}

// SpecDisk is one disk of a new guest.
type SpecDisk struct {
	Path     string // absolute
	Format   string // raw or qcow2; raw
	Target   string // vda, vdb, … in order
	Cache    string // none: what makes a shared disk safe to migrate
	ReadOnly bool
}

// SpecNetwork is one network interface of a new guest: of a libvirt network or
// of a bridge of the host.
type SpecNetwork struct {
	Network string
	Bridge  string
	MAC     string // libvirt's choice
}

// Validate gives every fault of the specification at once, or nil.
func (s Spec) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Name == "" || strings.ContainsAny(s.Name, "/\n") || s.Name == "." || s.Name == ".." {
		fault("name %q: want a name without slashes and line breaks", s.Name)
	}
	if _, err := parseUUID(s.UUID); err != nil {
		fault("uuid %q: want a uuid", s.UUID)
	}
	if err := s.Flavor.Validate(); err != nil {
		fault("flavor: %w", err)
	}
	if s.Kernel == "" && len(s.Disks) == 0 {
		fault("nothing to boot: want a kernel or a disk")
	}
	if s.Kernel == "" && (s.Initrd != "" || s.Cmdline != "") {
		fault("initrd and cmdline need a kernel")
	}
	path := func(what, p string) {
		if p != "" && !filepath.IsAbs(p) {
			fault("%s %q: want an absolute path", what, p)
		}
	}
	path("kernel", s.Kernel)
	path("initrd", s.Initrd)
	path("emulator", s.Emulator)
	path("serial file", s.SerialFile)
	targets := map[string]bool{}
	for i, d := range s.Disks {
		if d.Path == "" {
			fault("disk %d: path is empty", i+1)
		}
		path(fmt.Sprintf("disk %d", i+1), d.Path)
		if t := d.target(i); targets[t] {
			fault("disk %d: target %s is there twice", i+1, t)
		} else {
			targets[t] = true
		}
	}
	for i, n := range s.Networks {
		if (n.Network == "") == (n.Bridge == "") {
			fault("network %d: want either a network or a bridge", i+1)
		}
	}
	return errors.Join(append(errs, s.placeFaults()...)...)
}

// target is vda … vdz, vdaa ….
func (d SpecDisk) target(i int) string {
	if d.Target != "" {
		return d.Target
	}
	name := ""
	for i++; i > 0; i = (i - 1) / 26 {
		name = string(rune('a'+(i-1)%26)) + name
	}
	return "vd" + name
}

// Build writes the document of a new guest: q35, virtio devices, a serial
// console, no graphics. libvirt adds controllers and addresses.
func Build(s Spec) (string, error) {
	if err := s.Validate(); err != nil {
		return "", fmt.Errorf("build domain document of %s: %w", s.Name, err)
	}
	t := etree.NewDocument()
	t.WriteSettings.AttrSingleQuote = true
	root := t.CreateElement("domain")
	root.CreateAttr("type", map[bool]string{true: "kvm", false: "qemu"}[s.KVM])
	text(root, "name", s.Name)
	text(root, "uuid", s.UUID)
	memory := text(root, "memory", strconv.FormatInt(s.Flavor.MemoryMB, 10))
	memory.CreateAttr("unit", "MiB")
	tuned := s.Place.tune()
	s.memoryBacking(root, tuned)
	vcpu := text(root, "vcpu", strconv.Itoa(s.Flavor.VCPUs))
	vcpu.CreateAttr("placement", "static")
	if !tuned.cpuset.IsEmpty() {
		vcpu.CreateAttr("cpuset", tuned.cpuset.String())
	}
	s.tuneNew(root, tuned)
	s.os(root)
	features := root.CreateElement("features")
	features.CreateElement("acpi")
	if arch := or(s.Arch, "x86_64"); arch == "x86_64" {
		features.CreateElement("apic")
	}
	s.cpuTopology(s.cpu(root), tuned)
	root.CreateElement("clock").CreateAttr("offset", "utc")
	text(root, "on_poweroff", "destroy")
	text(root, "on_reboot", "restart")
	text(root, "on_crash", "destroy")
	s.devices(root.CreateElement("devices"))
	t.Indent(2)
	out, err := t.WriteToString()
	if err != nil {
		return "", fmt.Errorf("build domain document of %s: %w", s.Name, err)
	}
	if s.Metadata == nil {
		return out, nil
	}
	d, err := Parse(out)
	if err != nil {
		return "", fmt.Errorf("build domain document of %s: %w", s.Name, err)
	}
	d.SetMetadata(*s.Metadata)
	return d.String(), nil
}

func (s Spec) os(root *etree.Element) {
	os := root.CreateElement("os")
	kind := text(os, "type", "hvm")
	kind.CreateAttr("arch", or(s.Arch, "x86_64"))
	kind.CreateAttr("machine", or(s.Machine, "q35"))
	if s.Kernel == "" {
		os.CreateElement("boot").CreateAttr("dev", "hd")
		return
	}
	text(os, "kernel", s.Kernel)
	if s.Initrd != "" {
		text(os, "initrd", s.Initrd)
	}
	if s.Cmdline != "" {
		text(os, "cmdline", s.Cmdline)
	}
}

func (s Spec) cpu(root *etree.Element) *etree.Element {
	model := s.CPU
	if model == "" {
		model = map[bool]string{true: "host-model", false: "qemu64"}[s.KVM]
	}
	cpu := root.CreateElement("cpu")
	switch model {
	case "host-model", "host-passthrough", "maximum":
		cpu.CreateAttr("mode", model)
	default:
		cpu.CreateAttr("mode", "custom")
		cpu.CreateAttr("match", "exact")
		m := text(cpu, "model", model)
		// Another model than the one asked for would change under a move.
		m.CreateAttr("fallback", "forbid")
	}
	return cpu
}

func (s Spec) devices(devices *etree.Element) {
	if s.Emulator != "" {
		text(devices, "emulator", s.Emulator)
	}
	for i, d := range s.Disks {
		disk := devices.CreateElement("disk")
		disk.CreateAttr("type", "file")
		disk.CreateAttr("device", "disk")
		driver := disk.CreateElement("driver")
		driver.CreateAttr("name", "qemu")
		driver.CreateAttr("type", or(d.Format, "raw"))
		driver.CreateAttr("cache", or(d.Cache, "none"))
		driver.CreateAttr("discard", "unmap")
		if s.IOThreads > 0 {
			driver.CreateAttr("iothread", strconv.Itoa(i%s.IOThreads+1))
		}
		disk.CreateElement("source").CreateAttr("file", d.Path)
		target := disk.CreateElement("target")
		target.CreateAttr("dev", d.target(i))
		target.CreateAttr("bus", "virtio")
		if d.ReadOnly {
			disk.CreateElement("readonly")
		}
	}
	for _, n := range s.Networks {
		nic := devices.CreateElement("interface")
		kind, source := "network", n.Network
		if n.Bridge != "" {
			kind, source = "bridge", n.Bridge
		}
		nic.CreateAttr("type", kind)
		if n.MAC != "" {
			nic.CreateElement("mac").CreateAttr("address", n.MAC)
		}
		nic.CreateElement("source").CreateAttr(kind, source)
		nic.CreateElement("model").CreateAttr("type", "virtio")
	}
	s.hostDevices(devices)
	serial := devices.CreateElement("serial")
	serial.CreateAttr("type", "pty")
	if s.SerialFile != "" {
		serial.CreateAttr("type", "file")
		source := serial.CreateElement("source")
		source.CreateAttr("path", s.SerialFile)
		source.CreateAttr("append", "on") // a guest that starts again or comes back does not lose what it said
	}
	serial.CreateElement("target").CreateAttr("port", "0")
	// A server has neither; libvirt would add them.
	usb := devices.CreateElement("controller")
	usb.CreateAttr("type", "usb")
	usb.CreateAttr("model", "none")
	devices.CreateElement("video").CreateElement("model").CreateAttr("type", "none")
	devices.CreateElement("memballoon").CreateAttr("model", "virtio")
	rng := devices.CreateElement("rng")
	rng.CreateAttr("model", "virtio")
	text(rng, "backend", "/dev/urandom").CreateAttr("model", "random")
}

func text(parent *etree.Element, tag, value string) *etree.Element {
	e := parent.CreateElement(tag)
	e.SetText(value)
	return e
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
