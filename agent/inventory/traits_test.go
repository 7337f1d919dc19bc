package inventory_test

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/topology"
)

func intel() *inventory.Hypervisor {
	return &inventory.Hypervisor{LiveMigration: true, PostCopy: true, Capabilities: topology.Capabilities{
		VirtType: "kvm", Firmware: []string{"bios", "efi"}, SecureBoot: true, MemoryBacking: []string{"anonymous", "file"},
		CPU:       topology.HypervisorCPU{Vendor: "Intel", Features: []string{"avx512f", "fpu", "pcid", "pni", "sse4.2", "vmx"}},
		TPM:       topology.TPMCapabilities{Models: []string{"tpm-crb"}, Backends: []string{"emulator"}, Versions: []string{"2.0"}},
		DiskBuses: []string{"sata", "virtio"}, Video: []string{"none", "ramfb", "virtio"},
	}}
}

func amd() *inventory.Hypervisor {
	return &inventory.Hypervisor{Capabilities: topology.Capabilities{
		VirtType: "kvm", Firmware: []string{"bios"}, Filesystems: []string{"virtiofs"}, LaunchSecurity: []string{"sev", "sev-snp"},
		CPU: topology.HypervisorCPU{Vendor: "AMD", Features: []string{"ibpb", "pcid", "sha-ni", "svm", "vaes"}},
		TPM: topology.TPMCapabilities{Models: []string{"tpm-tis"}, Backends: []string{"emulator"}},
		SEV: topology.SEVCapabilities{SEV: true, ES: true},
	}}
}

func TestCompute_TraitsOfTheHypervisor(t *testing.T) {
	tcg := &inventory.Hypervisor{Capabilities: topology.Capabilities{
		TPM: topology.TPMCapabilities{Models: []string{"tpm-tis"}, Backends: []string{"passthrough"}, Versions: []string{"2.0"}},
	}}
	arm := &inventory.Hypervisor{Capabilities: topology.Capabilities{CPU: topology.HypervisorCPU{Features: []string{"aes", "asimd", "sve", "sve2"}}}}
	for _, tt := range []struct {
		name       string
		arch       string
		hypervisor *inventory.Hypervisor
		stand      string
		want       string
	}{
		{"Intel", "x86_64", intel(), "", `COMPUTE_ARCH_X86_64 COMPUTE_FIRMWARE_BIOS COMPUTE_FIRMWARE_UEFI COMPUTE_GRAPHICS_MODEL_NONE COMPUTE_GRAPHICS_MODEL_VIRTIO
			COMPUTE_MEM_BACKING_FILE COMPUTE_MIGRATE_AUTO_CONVERGE COMPUTE_MIGRATE_POST_COPY COMPUTE_NET_VIF_MODEL_VIRTIO COMPUTE_NODE
			COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_CRB COMPUTE_SECURITY_UEFI_SECURE_BOOT COMPUTE_STORAGE_BUS_SATA COMPUTE_STORAGE_BUS_VIRTIO
			HW_ARCH_X86_64 HW_CPU_X86_AVX512F HW_CPU_X86_INTEL_PCID HW_CPU_X86_INTEL_VMX HW_CPU_X86_SSE3 HW_CPU_X86_SSE42 HW_CPU_X86_VMX`},
		{"AMD with SEV", "x86_64", amd(), "", `COMPUTE_ARCH_X86_64 COMPUTE_FIRMWARE_BIOS COMPUTE_NODE COMPUTE_SECURITY_TPM_2_0 COMPUTE_SECURITY_TPM_TIS
			COMPUTE_STORAGE_VIRTIO_FS HW_ARCH_X86_64 HW_CPU_X86_AMD_IBPB HW_CPU_X86_AMD_SEV HW_CPU_X86_AMD_SEV_ES HW_CPU_X86_AMD_SEV_SNP
			HW_CPU_X86_AMD_SVM HW_CPU_X86_AVX512VAES HW_CPU_X86_SHA HW_CPU_X86_SVM`},
		{"the host's own TPM is not one for each guest", "x86_64", tcg, "", "COMPUTE_ARCH_X86_64 COMPUTE_NODE HW_ARCH_X86_64"},
		{"an old TPM alone", "x86_64", &inventory.Hypervisor{Capabilities: topology.Capabilities{
			TPM: topology.TPMCapabilities{Models: []string{"tpm-tis"}, Backends: []string{"emulator"}, Versions: []string{"1.2"}},
		}}, "", "COMPUTE_ARCH_X86_64 COMPUTE_NODE COMPUTE_SECURITY_TPM_1_2 COMPUTE_SECURITY_TPM_TIS HW_ARCH_X86_64"},
		{"Arm", "aarch64", arm, "", "COMPUTE_ARCH_AARCH64 COMPUTE_NODE HW_ARCH_AARCH64 HW_CPU_AARCH64_AES HW_CPU_AARCH64_ASIMD HW_CPU_AARCH64_SVE"},
		{
			"what went away goes, what others set stays", "aarch64", arm,
			`COMPUTE_STATUS_DISABLED COMPUTE_DEVICE_TAGGING CUSTOM_RACK_7 HW_CPU_AARCH64_SHA3 HW_CPU_X86_VMX COMPUTE_FIRMWARE_UEFI HW_CPU_X86_ASF
			COMPUTE_SECURITY_TPM_2_0 HW_ARCH_X86_64 COMPUTE_NET_VIF_MODEL_E1000`,
			`COMPUTE_ARCH_AARCH64 COMPUTE_DEVICE_TAGGING COMPUTE_NET_VIF_MODEL_E1000 COMPUTE_NODE COMPUTE_STATUS_DISABLED CUSTOM_RACK_7
			HW_ARCH_AARCH64 HW_CPU_AARCH64_AES HW_CPU_AARCH64_ASIMD HW_CPU_AARCH64_SVE HW_CPU_X86_ASF`,
		},
		{
			"a hypervisor that is not known takes nothing away", "x86_64", nil, "COMPUTE_FIRMWARE_UEFI HW_CPU_X86_VMX HW_ARCH_AARCH64",
			"COMPUTE_FIRMWARE_UEFI COMPUTE_NODE HW_ARCH_X86_64 HW_CPU_X86_VMX",
		},
		{
			"nor does one whose CPU is not known", "x86_64", tcg, "COMPUTE_FIRMWARE_UEFI HW_CPU_X86_VMX",
			"COMPUTE_ARCH_X86_64 COMPUTE_NODE HW_ARCH_X86_64 HW_CPU_X86_VMX",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(host(2, 4096, false))
			in.Arch, in.Hypervisor = tt.arch, tt.hypervisor
			first := compute(in, nil, strings.Fields(tt.stand))
			if diff := cmp.Diff(strings.Fields(tt.want), first.Traits); diff != "" {
				t.Errorf("traits (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(first.Traits, compute(in, nil, first.Traits).Traits); diff != "" {
				t.Errorf("a second look wants something else (-first +again):\n%s", diff)
			}
		})
	}
}

// newer are the traits of an os-traits newer than the one whose names stand beside
// the embedded Placement; the reporter leaves out what a Placement does not know.
var newer = map[string]bool{
	"COMPUTE_SECURITY_TPM_TIS": true, "COMPUTE_SECURITY_TPM_CRB": true, "HW_CPU_X86_AMD_SEV_ES": true, "HW_CPU_X86_AMD_SEV_SNP": true,
}

// TestCompute_EveryTraitIsAStandardOne: a word that os-traits does not have would
// be left out in silence.
func TestCompute_EveryTraitIsAStandardOne(t *testing.T) {
	f, err := os.Open("../../placement/standard_traits.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	standard := map[string]bool{}
	for s := bufio.NewScanner(f); s.Scan(); {
		standard[s.Text()] = true
	}
	everything := &inventory.Hypervisor{LiveMigration: true, PostCopy: true, Capabilities: topology.Capabilities{
		Firmware: []string{"bios", "efi"}, SecureBoot: true, MemoryBacking: []string{"file"}, Filesystems: []string{"virtiofs"},
		LaunchSecurity: []string{"sev-snp"}, SEV: topology.SEVCapabilities{SEV: true, ES: true},
		TPM:       topology.TPMCapabilities{Models: []string{"tpm-crb", "tpm-tis"}, Backends: []string{"emulator"}, Versions: []string{"1.2", "2.0"}},
		DiskBuses: []string{"fdc", "ide", "sata", "scsi", "usb", "virtio"}, Video: []string{"bochs", "cirrus", "none", "qxl", "vga", "virtio", "vmvga"},
		CPU: topology.HypervisorCPU{Features: inventory.Features()},
	}}
	got := map[string]bool{}
	for _, arch := range []string{"x86_64", "aarch64", "ppc64le", "s390x"} {
		in := input(host(2, 4096, true))
		in.Arch, in.Hypervisor = arch, everything
		for _, trait := range compute(in, nil, nil).Traits {
			got[trait] = true
			if !standard[trait] && !newer[trait] {
				t.Errorf("os-traits has no %s", trait)
			}
		}
	}
	if len(got) < 100 {
		t.Errorf("%d traits in all, want more than 100", len(got))
	}
}
