package inventory

import (
	"slices"
	"strings"

	"berth/placementclient"
	"berth/topology"
)

// Hypervisor is what guests can have on a host, and how they can leave it.
type Hypervisor struct {
	Capabilities  topology.Capabilities
	LiveMigration bool
	PostCopy      bool
}

// Traits are in groups, by what decides on them. A group of which nothing is
// known is left as it stands: a hypervisor that did not answer takes no trait
// away. Of the traits of a known group exactly those stand that the host has; all
// other traits are kept, since an operator or another tool set them.
//
//	group       decided by             traits
//	machine     the hardware's reading COMPUTE_NODE, HW_CPU_HYPERTHREADING, HW_ARCH_*
//	operator    Input.Disabled         COMPUTE_STATUS_DISABLED, where nobody else has set it (see root)
//	hypervisor  Input.Hypervisor       those of capabilityTraits; COMPUTE_ARCH_* is only added
//	cpu         its CPU's features     those of x86Traits and armTraits
//
// COMPUTE_STATUS_DISABLED is in none of them: it stands while Input.Disabled says
// so, and goes with it where Berth has set it (Applied); one that somebody else set
// stays.
type group struct {
	known bool
	owns  func(trait string) bool
	has   []string
}

func groups(in Input) []group {
	out := []group{{known: true, owns: ofTheMachine, has: machineTraits(in)}}
	if in.Hypervisor == nil {
		return out
	}
	c := in.Hypervisor.Capabilities
	return append(out,
		group{known: true, owns: ofTheHypervisor, has: hypervisorTraits(in.Arch, *in.Hypervisor)},
		group{known: len(c.CPU.Features) > 0, owns: ofTheCPU, has: cpuTraits(in.Arch, c.CPU)})
}

// traits merges what the host has into what stands in Placement.
func traits(in Input, stand []string) []string {
	out := slices.Clone(stand)
	for _, g := range groups(in) {
		if g.known {
			out = append(slices.DeleteFunc(out, g.owns), g.has...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// machineTraits are those of the hardware.
func machineTraits(in Input) []string {
	out := []string{placementclient.TraitComputeNode}
	if t, ok := archTraits[in.Arch]; ok {
		out = append(out, "HW_ARCH_"+t)
	}
	if slices.ContainsFunc(in.Host.Cores, func(core topology.CPUSet) bool { return core.Len() > 1 }) {
		out = append(out, placementclient.TraitHWCPUHyperthreading)
	}
	return out
}

func ofTheMachine(trait string) bool {
	return slices.Contains([]string{placementclient.TraitComputeNode, placementclient.TraitHWCPUHyperthreading}, trait) ||
		strings.HasPrefix(trait, "HW_ARCH_")
}

// archTraits are os-traits' names of architectures by the kernel's.
var archTraits = map[string]string{"x86_64": "X86_64", "aarch64": "AARCH64", "ppc64le": "PPC64LE", "s390x": "S390X"}

// capabilityTraits are what a hypervisor's capabilities say, by os-traits' names
// and with Nova's meaning of them (nova/virt/libvirt/driver.py).
var capabilityTraits = map[string]func(h Hypervisor) bool{
	"COMPUTE_FIRMWARE_BIOS":             func(h Hypervisor) bool { return slices.Contains(h.Capabilities.Firmware, "bios") },
	"COMPUTE_FIRMWARE_UEFI":             func(h Hypervisor) bool { return slices.Contains(h.Capabilities.Firmware, "efi") },
	"COMPUTE_SECURITY_UEFI_SECURE_BOOT": func(h Hypervisor) bool { return h.Capabilities.SecureBoot },

	// An emulated TPM, one for each guest; the host's own is not meant. libvirt
	// before 8.6 does not name versions, and swtpm has 2.0 always.
	"COMPUTE_SECURITY_TPM_1_2": func(h Hypervisor) bool { return tpm(h, "", "1.2") },
	"COMPUTE_SECURITY_TPM_2_0": func(h Hypervisor) bool {
		return tpm(h, "", "2.0") || tpm(h, "", "") && len(h.Capabilities.TPM.Versions) == 0
	},
	"COMPUTE_SECURITY_TPM_TIS": func(h Hypervisor) bool { return tpm(h, "tpm-tis", "") },
	"COMPUTE_SECURITY_TPM_CRB": func(h Hypervisor) bool { return tpm(h, "tpm-crb", "") },

	"HW_CPU_X86_AMD_SEV":     func(h Hypervisor) bool { return h.Capabilities.SEV.SEV },
	"HW_CPU_X86_AMD_SEV_ES":  func(h Hypervisor) bool { return h.Capabilities.SEV.ES },
	"HW_CPU_X86_AMD_SEV_SNP": func(h Hypervisor) bool { return slices.Contains(h.Capabilities.LaunchSecurity, "sev-snp") },

	"COMPUTE_MIGRATE_AUTO_CONVERGE": func(h Hypervisor) bool { return h.LiveMigration }, // QEMU has it since 2.5
	"COMPUTE_MIGRATE_POST_COPY":     func(h Hypervisor) bool { return h.PostCopy },

	"COMPUTE_MEM_BACKING_FILE":  func(h Hypervisor) bool { return slices.Contains(h.Capabilities.MemoryBacking, "file") },
	"COMPUTE_STORAGE_VIRTIO_FS": func(h Hypervisor) bool { return slices.Contains(h.Capabilities.Filesystems, "virtiofs") },

	"COMPUTE_STORAGE_BUS_FDC":    bus("fdc"),
	"COMPUTE_STORAGE_BUS_IDE":    bus("ide"),
	"COMPUTE_STORAGE_BUS_SATA":   bus("sata"),
	"COMPUTE_STORAGE_BUS_SCSI":   bus("scsi"),
	"COMPUTE_STORAGE_BUS_USB":    bus("usb"),
	"COMPUTE_STORAGE_BUS_VIRTIO": bus("virtio"),
	// libvirt lists no models of network interfaces; virtio's are built where its
	// disks are. Of the others nothing is known, and nothing said.
	"COMPUTE_NET_VIF_MODEL_VIRTIO": bus("virtio"),

	"COMPUTE_GRAPHICS_MODEL_BOCHS":  video("bochs"),
	"COMPUTE_GRAPHICS_MODEL_CIRRUS": video("cirrus"),
	"COMPUTE_GRAPHICS_MODEL_NONE":   video("none"),
	"COMPUTE_GRAPHICS_MODEL_QXL":    video("qxl"),
	"COMPUTE_GRAPHICS_MODEL_VGA":    video("vga"),
	"COMPUTE_GRAPHICS_MODEL_VIRTIO": video("virtio"),
	"COMPUTE_GRAPHICS_MODEL_VMVGA":  video("vmvga"),
}

func bus(name string) func(Hypervisor) bool {
	return func(h Hypervisor) bool { return slices.Contains(h.Capabilities.DiskBuses, name) }
}

func video(model string) func(Hypervisor) bool {
	return func(h Hypervisor) bool { return slices.Contains(h.Capabilities.Video, model) }
}

// tpm asks for an emulated TPM; an empty model or version is any.
func tpm(h Hypervisor, model, version string) bool {
	t := h.Capabilities.TPM
	return t.Emulated() && (model == "" || slices.Contains(t.Models, model)) && (version == "" || slices.Contains(t.Versions, version))
}

func hypervisorTraits(arch string, h Hypervisor) []string {
	var out []string
	for trait, has := range capabilityTraits {
		if has(h) {
			out = append(out, trait)
		}
	}
	if t, ok := archTraits[arch]; ok {
		out = append(out, "COMPUTE_ARCH_"+t)
	}
	return out
}

func ofTheHypervisor(trait string) bool {
	_, ours := capabilityTraits[trait]
	return ours
}

// x86Traits are os-traits' names of CPU features by libvirt's
// (libvirt src/cpu_map/x86_features.xml). svm and vmx have two each: the first is
// the older, which flavors still ask for.
var x86Traits = map[string][]string{
	"3dnow": {"3DNOW"}, "abm": {"ABM"}, "aes": {"AESNI"}, "bmi1": {"BMI"}, "bmi2": {"BMI2"}, "f16c": {"F16C"}, "fma": {"FMA3"}, "fma4": {"FMA4"},
	"mmx": {"MMX"}, "mpx": {"MPX"}, "pclmuldq": {"CLMUL"}, "pdpe1gb": {"PDPE1GB"}, "rtm": {"TSX"}, "sgx": {"SGX"}, "sha-ni": {"SHA"},
	"sse": {"SSE"}, "sse2": {"SSE2"}, "pni": {"SSE3"}, "ssse3": {"SSSE3"}, "sse4.1": {"SSE41"}, "sse4.2": {"SSE42"}, "sse4a": {"SSE4A"},
	"stibp": {"STIBP"}, "tbm": {"TBM"}, "xop": {"XOP"}, "svm": {"SVM", "AMD_SVM"}, "vmx": {"VMX", "INTEL_VMX"},

	"avx": {"AVX"}, "avx2": {"AVX2"}, "avx512bitalg": {"AVX512BITALG"}, "avx512bw": {"AVX512BW"}, "avx512cd": {"AVX512CD"},
	"avx512dq": {"AVX512DQ"}, "avx512er": {"AVX512ER"}, "avx512f": {"AVX512F"}, "avx512ifma": {"AVX512IFMA"}, "avx512pf": {"AVX512PF"},
	"avx512vbmi": {"AVX512VBMI"}, "avx512vbmi2": {"AVX512VBMI2"}, "avx512vl": {"AVX512VL"}, "avx512vnni": {"AVX512VNNI"},
	"avx512-vpopcntdq": {"AVX512VPOPCNTDQ"}, "gfni": {"AVX512GFNI"}, "vaes": {"AVX512VAES"}, "vpclmulqdq": {"AVX512VPCLMULQDQ"},

	"md-clear": {"INTEL_MD_CLEAR"}, "pcid": {"INTEL_PCID"}, "spec-ctrl": {"INTEL_SPEC_CTRL"}, "ssbd": {"INTEL_SSBD"},
	"amd-no-ssb": {"AMD_NO_SSB"}, "amd-ssbd": {"AMD_SSBD"}, "ibpb": {"AMD_IBPB"}, "virt-ssbd": {"AMD_VIRT_SSBD"},
}

// armTraits are the features whose trait is the kernel's name of them in capitals.
var armTraits = []string{
	"aes", "asimd", "asimddp", "asimdhp", "asimdrdm", "atomics", "cpuid", "crc32", "dcpop", "evtstrm", "fcma", "fp", "fphp", "jscvt", "lrcpc",
	"pmull", "sha1", "sha2", "sha3", "sha512", "sm3", "sm4", "sve",
}

const (
	prefixX86 = "HW_CPU_X86_"
	prefixArm = "HW_CPU_AARCH64_"
)

// foreign reports whether a trait is the other vendor's: some features that both
// have are named for the one whose guests need them.
func foreign(trait, vendor string) bool {
	switch vendor {
	case "Intel":
		return strings.HasPrefix(trait, "AMD_")
	case "AMD", "Hygon":
		return strings.HasPrefix(trait, "INTEL_")
	}
	return false
}

func cpuTraits(arch string, cpu topology.HypervisorCPU) []string {
	var out []string
	for _, f := range cpu.Features {
		switch arch {
		case "x86_64":
			for _, t := range x86Traits[f] {
				if !foreign(t, cpu.Vendor) {
					out = append(out, prefixX86+t)
				}
			}
		case "aarch64":
			if slices.Contains(armTraits, f) {
				out = append(out, prefixArm+strings.ToUpper(f))
			}
		}
	}
	return out
}

func ofTheCPU(trait string) bool {
	if name, ok := strings.CutPrefix(trait, prefixArm); ok {
		return slices.Contains(armTraits, strings.ToLower(name))
	}
	name, ok := strings.CutPrefix(trait, prefixX86)
	if !ok {
		return false
	}
	for _, names := range x86Traits {
		if slices.Contains(names, name) {
			return true
		}
	}
	return false
}
