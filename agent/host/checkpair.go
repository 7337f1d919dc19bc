package host

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// The versions of design section 13, in libvirt's numbers.
const (
	minLibvirt      = 8_000_000
	minQEMU         = 6_002_000 // with KVM
	minQEMUEmulated = 9_000_000 // under TCG: before, live migration loses stores to guest memory
)

// sameHost compares all three names a host has: two agents on one libvirt are
// one host too.
func sameHost(source, here migration.Description) []fault.Reason {
	if source.Name != here.Name && (source.ProviderUUID == "" || source.ProviderUUID != here.ProviderUUID) &&
		(source.HostUUID == "" || source.HostUUID != here.HostUUID) {
		return nil
	}
	return []fault.Reason{{Code: "same_host", Message: "the guest is on " + here.Name + " already", Have: source.Name, Change: "name another host"}}
}

// pairReasons holds two hosts against design section 13. The destination's QEMU
// may be newer than the source's, not older: it reads the state of older versions
// only.
func pairReasons(source, dest migration.Description, emulated bool) []fault.Reason {
	var out []fault.Reason
	qemu, how := uint64(minQEMU), ""
	if emulated {
		qemu, how = minQEMUEmulated, " without KVM"
	}
	if source.Hypervisor != dest.Hypervisor {
		out = append(out, fault.Reason{
			Code: "hypervisor_differs", Message: fmt.Sprintf("%s runs %s, %s runs %s", source.Name, source.Hypervisor, dest.Name, dest.Hypervisor),
			Want: source.Hypervisor, Have: dest.Hypervisor, Change: "name a host with the same hypervisor",
		})
		return out // versions of two hypervisors say nothing about each other
	}
	for _, d := range []migration.Description{source, dest} {
		if d.LibvirtVersion < minLibvirt {
			out = append(out, tooOld("libvirt_too_old", "libvirt", d.Name, d.LibvirtVersion, minLibvirt, ""))
		}
		if d.HypervisorVersion < qemu {
			out = append(out, tooOld("qemu_too_old", "QEMU", d.Name, d.HypervisorVersion, qemu, how))
		}
	}
	if source.Arch != dest.Arch {
		out = append(out, fault.Reason{
			Code: "arch_differs", Message: fmt.Sprintf("%s is %s, %s is %s", source.Name, source.Arch, dest.Name, dest.Arch),
			Want: source.Arch, Have: dest.Arch, Change: "name a host of the same architecture",
		})
	}
	// A stable update (the third number) changes nothing in the stream.
	if dest.HypervisorVersion/1000 < source.HypervisorVersion/1000 {
		out = append(out, fault.Reason{
			Code: "qemu_older", Message: fmt.Sprintf("QEMU %s on %s is older than %s on %s",
				version(dest.HypervisorVersion), dest.Name, version(source.HypervisorVersion), source.Name),
			Want: version(source.HypervisorVersion), Have: version(dest.HypervisorVersion), Change: "upgrade QEMU on " + dest.Name,
		})
	}
	return out
}

func tooOld(code, what, host string, have, want uint64, how string) fault.Reason {
	return fault.Reason{
		Code: code, Message: fmt.Sprintf("%s %s on %s: at least %s is needed%s", what, version(have), host, version(want), how),
		Want: version(want), Have: version(have), Change: "upgrade " + what + " on " + host,
	}
}

func version(v uint64) string { return driver.Version(v).String() }

// accelerated reports whether the host has what a guest's type asks for.
func accelerated(doc document, node driver.Node) bool { return doc.emulated() || !node.Emulated }

// hypervisorReasons hold a guest against what guests can have here. Only what the
// hypervisor tells is asked: of a node without capabilities all is believed that
// libvirt itself finds out later, before any memory moves.
func hypervisorReasons(doc document, node driver.Node, host string) []fault.Reason {
	var out []fault.Reason
	add := func(code, want, have, change, format string, args ...any) {
		out = append(out, fault.Reason{Code: code, Message: fmt.Sprintf(format, args...), Want: want, Have: have, Change: change})
	}
	if !accelerated(doc, node) {
		add("no_kvm", doc.Type, "qemu", "turn on virtualization in the firmware of "+host+" and load the kernel's KVM module, or name another host",
			"the guest needs KVM, %s has no hardware virtualization", host)
	}
	if !toldOf(doc, node) {
		return out
	}
	machine := doc.OS.Type.Machine
	missing := machine != "" && !slices.Contains(node.Machines, machine)
	if missing {
		change, nearest := "upgrade QEMU on "+host+", or change the guest's machine type", ""
		if node.Capabilities != nil {
			nearest = node.Capabilities.NearestMachine(machine)
		}
		if nearest != "" {
			change += " (the newest of its kind there is " + nearest + ")"
		}
		add("machine_type_missing", machine, nearest, change, "machine type %s is unknown to QEMU on %s", machine, host)
	}
	if ownCPU(doc) && accelerated(doc, node) && node.CapabilitiesError != "" && hypervisorCPU(node) == nil {
		add("cpu_unknown", "the features of the CPU", node.CapabilitiesError, "try again, or mend what libvirt says",
			"the guest has the CPU of its host, and libvirt on %s could not tell what its own has: %s", host, node.CapabilitiesError)
	}
	if node.Capabilities == nil {
		return out
	}
	c := *node.Capabilities
	if m, ok := c.Machine(machine); ok && m.MaxVCPUs > 0 && doc.VCPU.Max > m.MaxVCPUs {
		add("vcpus_over_machine", strconv.Itoa(doc.VCPU.Max), strconv.Itoa(m.MaxVCPUs), "give the guest fewer vCPUs, or another machine type",
			"machine type %s has at most %d vCPUs on %s, the guest has up to %d", machine, m.MaxVCPUs, host, doc.VCPU.Max)
	} else if !doc.emulated() && c.MaxVCPUs > 0 && doc.VCPU.Max > c.MaxVCPUs {
		add("vcpus_over_host", strconv.Itoa(doc.VCPU.Max), strconv.Itoa(c.MaxVCPUs), "give the guest fewer vCPUs, or a newer kernel to "+host,
			"a guest has at most %d vCPUs on %s, this one has up to %d", c.MaxVCPUs, host, doc.VCPU.Max)
	}
	lacks := func(code, what, want string, have []string, change string) {
		if want != "" && !slices.Contains(have, want) {
			add(code, want, strings.Join(have, ", "), change, "QEMU on %s has no %s %s", host, what, want)
		}
	}
	// A file that is named is looked for by itself, and needs nobody to list it.
	if boot := doc.firmware(); boot.Loader == "" {
		lacks("firmware_missing", "firmware", boot.Auto, c.Firmware, "install the firmware on "+host)
		if boot.Secure && !c.SecureBoot {
			add("secure_boot_missing", "secure boot", "", "install a firmware with secure boot on "+host, "no firmware on %s has secure boot", host)
		}
	}
	for _, tpm := range doc.Devices.TPMs {
		lacks("tpm_missing", "TPM backend", tpm.Backend.Type, c.TPM.Backends, "install swtpm on "+host)
		lacks("tpm_model_missing", "TPM model", tpm.Model, c.TPM.Models, "install a QEMU with it on "+host+", or change the model while the guest is shut off")
		if len(c.TPM.Versions) > 0 {
			lacks("tpm_version_missing", "TPM version", tpm.Backend.Version, c.TPM.Versions, "install a swtpm with it on "+host)
		}
	}
	if l := doc.LaunchSecurity; l != nil {
		encryption := "turn on memory encryption in the firmware and the kernel of " + host + ", or name another host"
		lacks("launch_security_missing", "memory encryption", l.Type, c.LaunchSecurity, encryption)
		if l.Type == "sev" && sevES(l.Policy) && c.SEV.SEV && !c.SEV.ES {
			add("launch_security_missing", "sev-es", "sev", encryption, "%s has SEV without encrypted state (SEV-ES)", host)
		}
	}
	// These lists are not empty where libvirt knows the device at all.
	some := func(code, what, want string, have []string, change string) {
		if len(have) > 0 {
			lacks(code, what, want, have, change)
		}
	}
	if source := doc.MemoryBacking.Source.Type; source != "anonymous" {
		some("memory_backing_missing", "memory backing", source, c.MemoryBacking, "upgrade QEMU on "+host+", or change it while the guest is shut off")
	}
	for _, bus := range unique(doc.Devices.Disks, func(d diskElement) string { return d.Target.Bus }) {
		some("disk_bus_missing", "disk bus", bus, c.DiskBuses, "install a QEMU with it on "+host+", or change the bus while the guest is shut off")
	}
	for _, g := range doc.Devices.Graphics {
		some("graphics_missing", "graphics", g.Type, c.Graphics, "install it, or detach it while the guest is shut off")
	}
	for _, v := range doc.Devices.Video {
		some("video_missing", "video model", v.Model.Type, c.Video, "install it, or change the model while the guest is shut off")
	}
	return out
}

// toldOf reports whether what a hypervisor tells is said of the program that runs
// this guest: of other architectures, and of a QEMU of the guest's own, it tells
// nothing here.
func toldOf(doc document, node driver.Node) bool {
	if arch := doc.OS.Type.Arch; arch != "" && node.Arch != "" && arch != node.Arch {
		return false
	}
	own := doc.Devices.Emulator
	return own == "" || node.Capabilities == nil || node.Capabilities.Emulator == "" || own == node.Capabilities.Emulator
}

// ownCPU reports whether a guest has its host's own CPU, whose features nothing in
// its document names.
func ownCPU(doc document) bool {
	return !doc.emulated() && (doc.CPU.Mode == "host-passthrough" || doc.CPU.Mode == "maximum")
}

// unique are the distinct values of a property, in order.
func unique[T any](list []T, of func(T) string) []string {
	var out []string
	for _, e := range list {
		if v := of(e); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// sevES reports whether a policy of SEV asks for encrypted state: bit 2 (AMD
// publication 55766, guest policy).
func sevES(policy string) bool {
	n, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(policy), "0x"), 16, 64)
	return err == nil && n&4 != 0
}

// passthroughReasons hold the hosts' CPUs against each other, for a guest that has
// its host's own: nothing in its document says which features it uses.
func passthroughReasons(doc document, source, dest migration.Description) []fault.Reason {
	if !ownCPU(doc) || source.CPU == nil || dest.CPU == nil {
		return nil
	}
	var out []fault.Reason
	if source.CPU.Vendor != "" && dest.CPU.Vendor != "" && source.CPU.Vendor != dest.CPU.Vendor {
		out = append(out, fault.Reason{
			Code: "cpu_vendor_differs", Message: fmt.Sprintf("the guest has the CPU of its host: %s is of %s, %s of %s", source.Name, source.CPU.Vendor, dest.Name, dest.CPU.Vendor),
			Want: source.CPU.Vendor, Have: dest.CPU.Vendor, Change: "give the guest a named CPU model that both hosts have",
		})
	}
	for _, f := range dest.CPU.Lacks(*source.CPU) {
		out = append(out, fault.Reason{
			Code: "cpu_feature_missing", Message: fmt.Sprintf("the guest has the CPU of %s, with feature %s, which %s does not have", source.Name, f, dest.Name),
			Want: f, Change: "give the guest a named CPU model that both hosts have",
		})
	}
	return out
}

// judged leaves out the features that this host's libvirt does not know: an older
// one names fewer, of the same CPU, and what it does not name is not missing.
func judged(ctx context.Context, live driver.LiveMigrator, text string, reasons []fault.Reason) ([]fault.Reason, error) {
	if len(reasons) == 0 {
		return nil, nil
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return nil, fault.New(fault.Invalid, "read the guest's document: %w", err)
	}
	var out []fault.Reason
	for _, r := range reasons {
		if r.Code == "cpu_feature_missing" {
			// A model that every libvirt has, and the one feature.
			if err := doc.SetCPU("<cpu mode='custom' match='exact'><model>486</model><feature policy='require' name='" + r.Want + "'/></cpu>"); err != nil {
				return nil, fault.New(fault.Invalid, "%w", err)
			}
			err := live.CheckCPU(ctx, doc.String())
			if slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == "cpu_feature_unknown" }) {
				continue
			}
			if err := new(refusal).take(err); err != nil {
				return nil, err
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// withCPU is the guest's document with the CPU that it really has.
func withCPU(g migration.Guest) (string, error) {
	if g.CPU == "" {
		return g.XML, nil
	}
	doc, err := domainxml.Parse(g.XML)
	if err == nil {
		err = doc.SetCPU(g.CPU)
	}
	if err != nil {
		return "", fault.New(fault.Invalid, "read the guest's document: %w", err)
	}
	return doc.String(), nil
}

// hypervisorCPU is what is told of a host's CPU to others.
func hypervisorCPU(node driver.Node) *topology.HypervisorCPU {
	if node.Capabilities == nil || len(node.Capabilities.CPU.Features) == 0 {
		return nil
	}
	cpu := node.Capabilities.CPU
	cpu.Models = nil // of no use to others
	return &cpu
}
