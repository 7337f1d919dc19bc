package topology

import (
	"slices"
	"strings"
)

// Capabilities is what a hypervisor can give to guests of its host's own
// architecture, with the best accelerator it has. It is what the hypervisor says,
// not what the machine's parts could do: a CPU feature counts when a guest can
// have it. Lists are sorted and hold each name once, in libvirt's spelling
// (https://libvirt.org/formatdomaincaps.html); an empty list means none.
type Capabilities struct {
	VirtType string        `json:"virt_type"`          // "kvm", or "qemu" without hardware virtualization
	Emulator string        `json:"emulator,omitempty"` // the program that all of this is told of; empty for unknown
	CPU      HypervisorCPU `json:"cpu"`
	// Machines are the machine types. Some capabilities differ between them; what
	// follows is what at least one of the usual ones has (q35 and pc, or virt).
	Machines []MachineType `json:"machine_types"`
	// MaxVCPUs is of the machine type that takes most, and of what the kernel's
	// accelerator takes; 0 for unknown.
	MaxVCPUs int `json:"max_vcpus"`

	Firmware   []string `json:"firmware"`    // "bios", "efi"
	SecureBoot bool     `json:"secure_boot"` // a firmware that checks signatures, and a machine that protects it
	Loaders    []string `json:"loaders"`     // firmware files that are there

	TPM TPMCapabilities `json:"tpm"`
	SEV SEVCapabilities `json:"sev"`
	// LaunchSecurity are the kinds of protection against the host, "sev", "tdx".
	LaunchSecurity []string `json:"launch_security"`

	MemoryBacking []string `json:"memory_backing"` // "anonymous", "file", "memfd"
	DiskBuses     []string `json:"disk_buses"`     // "virtio", "scsi", …
	HostDevices   []string `json:"host_devices"`   // "pci", "usb", "scsi", "mdev"
	VFIO          bool     `json:"vfio"`           // the kernel gives PCI devices to guests
	Filesystems   []string `json:"filesystems"`    // "virtiofs", …
	Graphics      []string `json:"graphics"`       // "vnc", "spice", …
	Video         []string `json:"video"`          // "virtio", "none", …
	IOThreads     bool     `json:"iothreads"`
}

// HypervisorCPU is the best CPU that a guest can have without being bound to its
// host's own (libvirt's host-model).
type HypervisorCPU struct {
	Model  string `json:"model"`            // named model that is nearest; empty for unknown
	Vendor string `json:"vendor,omitempty"` // "Intel", "AMD"; empty for unknown
	// Features are all that it has, those of its model included. Empty for unknown:
	// there is no CPU without any.
	Features []string `json:"features"`
	// Models are the named models that guests can have here, whole.
	Models []string `json:"usable_models,omitempty"`
	// Passthrough says that guests can have the host's own CPU.
	Passthrough bool `json:"host_passthrough"`
}

// Lacks gives the features of other that c does not have, in other's order; none
// when the features of either are not known.
func (c HypervisorCPU) Lacks(other HypervisorCPU) []string {
	if len(c.Features) == 0 {
		return nil
	}
	have := make(map[string]bool, len(c.Features))
	for _, f := range c.Features {
		have[f] = true
	}
	return slices.DeleteFunc(slices.Clone(other.Features), func(f string) bool { return have[f] })
}

// MachineType is a machine that guests can have.
type MachineType struct {
	Name       string `json:"name"`                // "pc-q35-7.2", or an alias: "q35"
	Canonical  string `json:"canonical,omitempty"` // what an alias stands for
	MaxVCPUs   int    `json:"max_vcpus,omitempty"` // 0 for unknown
	Deprecated bool   `json:"deprecated,omitempty"`
}

// TPMCapabilities is what kind of TPM guests can have.
type TPMCapabilities struct {
	Models   []string `json:"models"`   // "tpm-crb", "tpm-tis", …
	Backends []string `json:"backends"` // "emulator" (swtpm), "passthrough" (the host's own)
	Versions []string `json:"versions"` // of an emulated one: "1.2", "2.0"; empty where libvirt does not say
}

// Emulated reports whether guests can have a TPM each.
func (t TPMCapabilities) Emulated() bool { return slices.Contains(t.Backends, "emulator") }

// SEVCapabilities is AMD's encryption of guest memory.
type SEVCapabilities struct {
	SEV         bool `json:"sev"`
	ES          bool `json:"sev_es"`                  // registers too
	MaxGuests   int  `json:"max_guests,omitempty"`    // at a time, with SEV alone; 0 for unknown
	MaxESGuests int  `json:"max_es_guests,omitempty"` // at a time, with SEV-ES
}

// Machine finds a machine type by its name; false when there is none.
func (c Capabilities) Machine(name string) (MachineType, bool) {
	i := slices.IndexFunc(c.Machines, func(m MachineType) bool { return m.Name == name })
	if i < 0 {
		return MachineType{}, false
	}
	return c.Machines[i], true
}

// NearestMachine is the newest machine type of the same family ("pc-q35") as one
// that is not there; empty when there is none.
func (c Capabilities) NearestMachine(name string) string {
	family := machineFamily(name)
	best := ""
	for _, m := range c.Machines {
		if m.Canonical == "" && m.Name != family && machineFamily(m.Name) == family && (best == "" || newerMachine(m.Name, best)) {
			best = m.Name
		}
	}
	return best
}

// machineFamily is a versioned machine type without its version.
func machineFamily(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 && i+1 < len(name) && name[i+1] >= '0' && name[i+1] <= '9' {
		return name[:i]
	}
	return name
}

// newerMachine compares two of one family: 10.0 is above 9.2.
func newerMachine(a, b string) bool {
	x := strings.Split(a[strings.LastIndexByte(a, '-')+1:], ".")
	y := strings.Split(b[strings.LastIndexByte(b, '-')+1:], ".")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return len(x[i]) > len(y[i]) || len(x[i]) == len(y[i]) && x[i] > y[i]
		}
	}
	return len(x) > len(y)
}
