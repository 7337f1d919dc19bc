package libvirt

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"libvirt.org/go/libvirtxml"

	"berth/driver"
	"berth/topology"
)

// guestSide is what the capabilities document says of guests of the host's own
// architecture, and what the domain capabilities are asked by.
type guestSide struct {
	emulator string
	virtType string // "kvm" where there is hardware virtualization
	machines []topology.MachineType
	host     topology.HypervisorCPU // the host's own CPU, whatever guests can have of it
}

// readHost fills a node with what the capabilities document says
// (https://libvirt.org/formatcaps.html).
func readHost(n *driver.Node, xml string) (guestSide, error) {
	var caps libvirtxml.Caps
	var side guestSide
	if err := caps.Unmarshal(xml); err != nil {
		return side, fmt.Errorf("capabilities: %w", err)
	}
	n.UUID = caps.Host.UUID
	if cpu := caps.Host.CPU; cpu != nil {
		n.Arch, n.CPUModel = cpu.Arch, cpu.Model
		side.host = topology.HypervisorCPU{Model: cpu.Model, Vendor: cpu.Vendor}
		for _, f := range cpu.FeatureFlags {
			side.host.Features = append(side.host.Features, f.Name)
		}
		side.host.Features = sortedSet(side.host.Features)
	}
	n.GuestUser = guestUser(caps.Host.SecModel)
	machines, types := map[string]topology.MachineType{}, map[string]bool{}
	for _, g := range caps.Guests {
		n.Emulators = append(n.Emulators, g.Arch.Emulator)
		for _, t := range g.Arch.Domains {
			n.Emulators = append(n.Emulators, t.Emulator)
		}
		if n.Arch == "" {
			n.Arch = g.Arch.Name // the test driver names no host CPU
		}
		if g.Arch.Name != n.Arch {
			continue
		}
		if g.Arch.Emulator != "" {
			side.emulator = g.Arch.Emulator
		}
		addMachines(machines, g.Arch.Machines)
		for _, t := range g.Arch.Domains {
			types[t.Type] = true
			addMachines(machines, t.Machines)
		}
	}
	if n.Emulators = slices.DeleteFunc(sortedSet(n.Emulators), func(path string) bool { return path == "" }); len(n.Emulators) == 0 {
		n.Emulators = nil
	}
	n.Machines = slices.Sorted(maps.Keys(machines))
	for _, name := range n.Machines {
		side.machines = append(side.machines, machines[name])
	}
	side.virtType = "qemu"
	if types["kvm"] {
		side.virtType = "kvm"
	}
	n.Emulated = n.Hypervisor == "QEMU" && !types["kvm"]
	return side, nil
}

// guestUser reads the base label of libvirt's DAC model, "+64055:+64055": what
// qemu.conf's user and group came to. An unprivileged daemon has no such model.
func guestUser(models []libvirtxml.CapsHostSecModel) *driver.User {
	for _, m := range models {
		for _, l := range m.Labels {
			if m.Name != "dac" || l.Type != "qemu" && l.Type != "kvm" {
				continue
			}
			uid, gid, _ := strings.Cut(l.Value, ":")
			u, uerr := strconv.Atoi(strings.TrimPrefix(uid, "+"))
			g, gerr := strconv.Atoi(strings.TrimPrefix(gid, "+"))
			if uerr == nil && gerr == nil && u >= 0 && g >= 0 {
				return &driver.User{UID: u, GID: g}
			}
		}
	}
	return nil
}

func addMachines(to map[string]topology.MachineType, list []libvirtxml.CapsGuestMachine) {
	for _, m := range list {
		to[m.Name] = topology.MachineType{Name: m.Name, Canonical: m.Canonical, MaxVCPUs: m.MaxCPUs, Deprecated: m.Deprecated == "yes"}
		// libvirt lists what an alias stands for itself too; where it does not, the
		// name is known none the less.
		if _, listed := to[m.Canonical]; !listed && m.Canonical != "" {
			to[m.Canonical] = topology.MachineType{Name: m.Canonical, MaxVCPUs: m.MaxCPUs, Deprecated: m.Deprecated == "yes"}
		}
	}
}

// usualMachines are the machine types that stand for all of an architecture's
// when the hypervisor is asked what guests can have: firmware, buses and the TPM
// differ between them. Those that the host does not have are left out; where it
// has none of them libvirt's own default is asked, the empty name.
func (s guestSide) usualMachines() []string {
	var out []string
	for _, name := range []string{"q35", "pc", "virt", "pseries", "s390-ccw-virtio"} {
		if slices.ContainsFunc(s.machines, func(m topology.MachineType) bool { return m.Name == name }) {
			out = append(out, name)
		}
	}
	if out == nil {
		out = []string{""}
	}
	return out
}

// readGuests joins the domain capabilities of the usual machine types
// (https://libvirt.org/formatdomaincaps.html) to what guests can have.
func readGuests(arch string, side guestSide, documents []string) (topology.Capabilities, error) {
	out := topology.Capabilities{VirtType: side.virtType, Emulator: side.emulator, Machines: side.machines}
	if arch == "x86_64" || arch == "i686" {
		out.Firmware = []string{"bios"} // SeaBIOS comes with QEMU, and stands in no list
	}
	for _, text := range documents {
		var caps libvirtxml.DomainCaps
		if err := caps.Unmarshal(text); err != nil {
			return out, fmt.Errorf("domain capabilities: %w", err)
		}
		addDomain(&out, &caps)
	}
	if arch == "aarch64" && len(out.CPU.Features) == 0 && side.virtType == "kvm" {
		// There is no host-model on Arm, and the host's own CPU, which guests get
		// whole, is described by its features one by one.
		out.CPU.Model, out.CPU.Vendor, out.CPU.Features = side.host.Model, side.host.Vendor, side.host.Features
	}
	for _, list := range []*[]string{
		&out.Firmware, &out.Loaders, &out.TPM.Models, &out.TPM.Backends, &out.TPM.Versions, &out.LaunchSecurity, &out.MemoryBacking,
		&out.DiskBuses, &out.HostDevices, &out.Filesystems, &out.Graphics, &out.Video, &out.CPU.Models, &out.CPU.Features,
	} {
		*list = sortedSet(*list)
	}
	return out, nil
}

// addDomain adds what guests of one machine type can have.
func addDomain(out *topology.Capabilities, caps *libvirtxml.DomainCaps) {
	if caps.VCPU != nil {
		out.MaxVCPUs = max(out.MaxVCPUs, int(caps.VCPU.Max))
	}
	out.IOThreads = out.IOThreads || caps.IOThreads != nil && caps.IOThreads.Supported == "yes"
	if os := caps.OS; os != nil && os.Supported == "yes" {
		addFirmware(out, os)
	}
	if caps.CPU != nil {
		addCPU(&out.CPU, caps.CPU)
	}
	if m := caps.MemoryBacking; m != nil && m.Supported == "yes" {
		out.MemoryBacking = append(out.MemoryBacking, values(m.Enums, "sourceType")...)
	}
	if d := caps.Devices; d != nil {
		addDevices(out, d)
	}
	if f := caps.Features; f != nil {
		addProtection(out, f)
	}
}

func addFirmware(out *topology.Capabilities, os *libvirtxml.DomainCapsOS) {
	out.Firmware = append(out.Firmware, values(os.Enums, "firmware")...)
	l := os.Loader
	if l == nil || l.Supported != "yes" {
		return
	}
	out.Loaders = append(out.Loaders, l.Values...)
	if len(l.Values) > 0 && slices.Contains(values(l.Enums, "type"), "pflash") {
		// Firmware in flash is UEFI; libvirt lists the files that are there.
		out.Firmware = append(out.Firmware, "efi")
	}
	out.SecureBoot = out.SecureBoot || slices.Contains(values(l.Enums, "secure"), "yes")
}

func addCPU(out *topology.HypervisorCPU, cpu *libvirtxml.DomainCapsCPU) {
	for _, mode := range cpu.Modes {
		if mode.Supported != "yes" {
			continue
		}
		switch mode.Name {
		case "host-passthrough":
			out.Passthrough = true
		case "host-model":
			if len(mode.Models) > 0 {
				out.Model, out.Vendor = mode.Models[0].Name, mode.Vendor
			}
		case "custom":
			for _, m := range mode.Models {
				if m.Usable == "yes" {
					out.Models = append(out.Models, m.Name)
				}
			}
		}
	}
}

func addDevices(out *topology.Capabilities, d *libvirtxml.DomainCapsDevices) {
	for _, e := range []struct {
		from *libvirtxml.DomainCapsDevice
		name string
		to   *[]string
	}{
		{d.Disk, "bus", &out.DiskBuses},
		{d.Graphics, "type", &out.Graphics},
		{d.Video, "modelType", &out.Video},
		{d.HostDev, "subsysType", &out.HostDevices},
		{d.FileSystem, "driverType", &out.Filesystems},
		{d.TPM, "model", &out.TPM.Models},
		{d.TPM, "backendModel", &out.TPM.Backends},
		{d.TPM, "backendVersion", &out.TPM.Versions},
	} {
		if e.from != nil && e.from.Supported == "yes" {
			*e.to = append(*e.to, values(e.from.Enums, e.name)...)
		}
	}
	if d.HostDev != nil && d.HostDev.Supported == "yes" {
		out.VFIO = out.VFIO || slices.Contains(values(d.HostDev.Enums, "pciBackend"), "vfio")
	}
}

func addProtection(out *topology.Capabilities, f *libvirtxml.DomainCapsFeatures) {
	if sev := f.SEV; sev != nil && sev.Supported == "yes" {
		out.SEV.SEV = true
		out.SEV.MaxGuests = max(out.SEV.MaxGuests, int(sev.MaxGuests))
		out.SEV.MaxESGuests = max(out.SEV.MaxESGuests, int(sev.MaxESGuests))
		out.SEV.ES = out.SEV.MaxESGuests > 0
		out.LaunchSecurity = append(out.LaunchSecurity, "sev")
	}
	if f.TDX != nil && f.TDX.Supported == "yes" {
		out.LaunchSecurity = append(out.LaunchSecurity, "tdx")
	}
	if f.S390PV != nil && f.S390PV.Supported == "yes" {
		out.LaunchSecurity = append(out.LaunchSecurity, "s390-pv")
	}
	if l := f.LaunchSecurity; l != nil && l.Supported == "yes" { // libvirt 10.5 and later
		out.LaunchSecurity = append(out.LaunchSecurity, values(l.Enums, "sectype")...)
	}
}

// values are an enumeration's, by its name.
func values(enums []libvirtxml.DomainCapsEnum, name string) []string {
	i := slices.IndexFunc(enums, func(e libvirtxml.DomainCapsEnum) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return enums[i].Values
}

// sortedSet sorts a list, holds each name once, and makes of none an empty list.
func sortedSet(list []string) []string {
	list = append([]string{}, list...)
	slices.Sort(list)
	return slices.Compact(list)
}
