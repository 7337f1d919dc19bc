package host

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

func codesOf(reasons []fault.Reason) string {
	var out []string
	for _, r := range reasons {
		out = append(out, r.Code)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestPairReasons_HoldEveryPairAgainstTheSupportedVersions enumerates design
// section 13 in both directions.
func TestPairReasons_HoldEveryPairAgainstTheSupportedVersions(t *testing.T) {
	const none = ""
	at := func(libvirt, qemu uint64, change ...func(*migration.Description)) migration.Description {
		d := migration.Description{Hypervisor: "QEMU", LibvirtVersion: libvirt, HypervisorVersion: qemu, Arch: "x86_64"}
		for _, c := range change {
			c(&d)
		}
		return d
	}
	arm := func(d *migration.Description) { d.Arch = "aarch64" }
	test := func(d *migration.Description) { d.Hypervisor = "TEST" }
	for _, tt := range []struct {
		name     string
		a, b     migration.Description
		emulated bool
		ab, ba   string // reasons from a to b, and back
	}{
		{"equal hosts", at(9_000_000, 8_000_000), at(9_000_000, 8_000_000), false, none, none},
		{"the oldest that are supported", at(8_000_000, 6_002_000), at(8_000_000, 6_002_000), false, none, none},
		{"the oldest without KVM", at(8_000_000, 9_000_000), at(8_000_000, 9_000_000), true, none, none},
		{"libvirt below 8.0", at(7_010_000, 8_000_000), at(9_000_000, 8_000_000), false, "libvirt_too_old", "libvirt_too_old"},
		{"QEMU below 6.2", at(9_000_000, 6_001_000), at(9_000_000, 6_001_000), false, "qemu_too_old qemu_too_old", "qemu_too_old qemu_too_old"},
		{"QEMU below 6.2 on one", at(9_000_000, 6_001_000), at(9_000_000, 7_000_000), false, "qemu_too_old", "qemu_older qemu_too_old"},
		{"QEMU below 9 without KVM", at(9_000_000, 8_002_000), at(9_000_000, 10_000_000), true, "qemu_too_old", "qemu_older qemu_too_old"},
		{"the same with KVM", at(9_000_000, 8_002_000), at(9_000_000, 10_000_000), false, none, "qemu_older"},
		{"a stable update of QEMU", at(9_000_000, 10_000_002), at(9_000_000, 10_000_006), false, none, none},
		{"libvirt of two releases", at(9_000_000, 10_000_002), at(11_003_000, 10_000_002), false, none, none},
		{"two architectures", at(9_000_000, 10_000_002), at(9_000_000, 10_000_002, arm), false, "arch_differs", "arch_differs"},
		{"two architectures without KVM", at(9_000_000, 10_000_002), at(9_000_000, 10_000_002, arm), true, "arch_differs", "arch_differs"},
		{"two hypervisors", at(9_000_000, 10_000_002), at(9_000_000, 2, test), false, "hypervisor_differs", "hypervisor_differs"},
		{"all at once", at(7_000_000, 6_001_000), at(7_000_000, 6_000_000, arm), false,
			"arch_differs libvirt_too_old libvirt_too_old qemu_older qemu_too_old qemu_too_old", "arch_differs libvirt_too_old libvirt_too_old qemu_too_old qemu_too_old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, way := range []struct {
				from, to migration.Description
				want     string
			}{{tt.a, tt.b, tt.ab}, {tt.b, tt.a, tt.ba}} {
				way.from.Name, way.to.Name = "from", "to"
				got := pairReasons(way.from, way.to, tt.emulated)
				if diff := cmp.Diff(way.want, codesOf(got)); diff != "" {
					t.Errorf("%d, QEMU %d, to %d, QEMU %d (-want +got):\n%s", way.from.LibvirtVersion, way.from.HypervisorVersion,
						way.to.LibvirtVersion, way.to.HypervisorVersion, diff)
				}
				for _, r := range got {
					if r.Message == "" || r.Have == "" || r.Want == "" || r.Change == "" {
						t.Errorf("%+v does not say what there is, what is wanted and what would have to change", r)
					}
				}
			}
		})
	}
}

func TestHypervisorReasons_NameEverythingThatGuestsCannotHave(t *testing.T) {
	can := topology.Capabilities{
		VirtType: "kvm", Emulator: "/usr/bin/qemu-system-x86_64", MaxVCPUs: 1024, Firmware: []string{"bios"}, MemoryBacking: []string{"anonymous", "memfd"}, DiskBuses: []string{"scsi", "virtio"},
		Graphics: []string{"vnc"}, Video: []string{"virtio"}, LaunchSecurity: []string{"sev"}, SEV: topology.SEVCapabilities{SEV: true},
		TPM: topology.TPMCapabilities{Models: []string{"tpm-crb"}, Backends: []string{"passthrough"}, Versions: []string{"2.0"}},
		Machines: []topology.MachineType{
			{Name: "pc-q35-9.2", MaxVCPUs: 288}, {Name: "pc-q35-10.0", MaxVCPUs: 4096}, {Name: "q35", Canonical: "pc-q35-10.0", MaxVCPUs: 4096},
		},
	}
	here := driver.Node{Arch: "x86_64", Machines: []string{"pc-q35-10.0", "pc-q35-9.2", "q35"}, Capabilities: &can}
	silent := here
	silent.Capabilities = nil
	tcg := here
	tcg.Emulated = true
	older, less := here, can // libvirt 8.0 names no versions of TPMs, and no memory backing
	less.TPM, less.MemoryBacking = topology.TPMCapabilities{Models: []string{"tpm-crb"}, Backends: []string{"emulator"}}, nil
	older.Capabilities = &less
	failed, featureless := here, can
	failed.Capabilities, failed.CapabilitiesError = &featureless, "QEMU does not answer"
	told := failed
	told.Capabilities = &topology.Capabilities{CPU: topology.HypervisorCPU{Features: []string{"avx"}}}
	type guest struct{ kind, vcpus, os, extra, devices string }
	for _, tt := range []struct {
		name  string
		node  driver.Node
		guest guest
		codes string
		wants string // of the first reason
		have  string
	}{
		{name: "all that it has", guest: guest{extra: "<memoryBacking><source type='memfd'/></memoryBacking><launchSecurity type='sev'><policy>0x0003</policy></launchSecurity>",
			devices: "<disk type='file' device='disk'><target dev='vda' bus='virtio'/></disk><graphics type='vnc'/><video><model type='virtio'/></video>"}},
		{name: "no KVM", node: tcg, codes: "no_kvm", wants: "kvm", have: "qemu"},
		{name: "emulated where there is no KVM", node: tcg, guest: guest{kind: "qemu"}},
		{name: "a machine type of a newer QEMU", guest: guest{os: "<type arch='x86_64' machine='pc-q35-10.1'>hvm</type>"},
			codes: "machine_type_missing", wants: "pc-q35-10.1", have: "pc-q35-10.0"},
		{name: "another family", guest: guest{os: "<type arch='x86_64' machine='isapc'>hvm</type>"}, codes: "machine_type_missing", wants: "isapc"},
		{name: "a machine type that a silent hypervisor lacks", node: silent, guest: guest{os: "<type machine='isapc'>hvm</type>"}, codes: "machine_type_missing", wants: "isapc"},
		{name: "an emulated architecture, of whose devices nothing is known", guest: guest{kind: "qemu", extra: "<os firmware='efi'><type arch='aarch64' machine='virt-10.0'>hvm</type></os>",
			devices: "<disk type='file' device='disk'><target dev='sda' bus='usb'/></disk><video><model type='ramfb'/></video>"}},
		{name: "a QEMU of its own, of which nothing is known", guest: guest{os: "<type arch='x86_64' machine='pc-q35-10.1'>hvm</type>",
			devices: "<emulator>/opt/qemu/bin/qemu-system-x86_64</emulator><graphics type='spice'/>"}},
		{name: "the QEMU that was asked", guest: guest{os: "<type arch='x86_64' machine='pc-q35-10.1'>hvm</type>", devices: "<emulator>/usr/bin/qemu-system-x86_64</emulator>"},
			codes: "machine_type_missing", wants: "pc-q35-10.1", have: "pc-q35-10.0"},
		{name: "its host's own CPU, where that could not be told", node: failed, guest: guest{extra: "<cpu mode='host-passthrough'/>"},
			codes: "cpu_unknown", wants: "the features of the CPU", have: "QEMU does not answer"},
		{name: "a named CPU there", node: failed, guest: guest{extra: "<cpu mode='custom'><model>qemu64</model></cpu>"}},
		{name: "its host's own CPU, which was told", node: told, guest: guest{extra: "<cpu mode='host-passthrough'/>"}},
		{name: "its host's own CPU, of which libvirt tells nobody", node: silent, guest: guest{extra: "<cpu mode='maximum'/>"}},
		{name: "too many vCPUs", guest: guest{vcpus: "<vcpu current='2'>512</vcpu>", os: "<type machine='pc-q35-9.2'>hvm</type>"},
			codes: "vcpus_over_machine", wants: "512", have: "288"},
		{name: "more vCPUs than KVM has", guest: guest{vcpus: "<vcpu>2000</vcpu>", os: "<type machine='pc-q35-10.0'>hvm</type>"},
			codes: "vcpus_over_host", wants: "2000", have: "1024"},
		{name: "as many, emulated", guest: guest{kind: "qemu", vcpus: "<vcpu>2000</vcpu>", os: "<type machine='pc-q35-10.0'>hvm</type>"}},
		{name: "UEFI by itself", guest: guest{os: "<type machine='q35'>hvm</type>", extra: "<os firmware='efi'><type machine='q35'>hvm</type></os>"},
			codes: "firmware_missing", wants: "efi", have: "bios"},
		{name: "secure boot", guest: guest{extra: "<os firmware='bios'><type machine='q35'>hvm</type><loader secure='yes'/></os>"},
			codes: "secure_boot_missing", wants: "secure boot"},
		{name: "secure boot of a file that is named, and looked for by itself", guest: guest{
			extra: "<os firmware='efi'><type machine='q35'>hvm</type><loader secure='yes' type='pflash'>/opt/OVMF/x.fd</loader></os>"}},
		{name: "secure boot of a firmware that libvirt finds", guest: guest{extra: "<os firmware='bios'><type machine='q35'>hvm</type><firmware><feature enabled='yes' name='secure-boot'/></firmware></os>"},
			codes: "secure_boot_missing", wants: "secure boot"},
		{name: "a TPM of its own", guest: guest{devices: "<tpm model='tpm-tis'><backend type='emulator' version='1.2'/></tpm>"},
			codes: "tpm_missing tpm_model_missing tpm_version_missing", wants: "emulator", have: "passthrough"},
		{name: "what an older libvirt does not list", node: older, guest: guest{extra: "<memoryBacking><source type='memfd'/></memoryBacking>",
			devices: "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"}},
		{name: "encrypted state", guest: guest{extra: "<launchSecurity type='sev'><policy>0x0007</policy></launchSecurity>"},
			codes: "launch_security_missing", wants: "sev-es", have: "sev"},
		{name: "another encryption", guest: guest{extra: "<launchSecurity type='tdx'/>"}, codes: "launch_security_missing", wants: "tdx", have: "sev"},
		{name: "devices", guest: guest{extra: "<memoryBacking><source type='file'/></memoryBacking>",
			devices: "<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk><disk type='file' device='cdrom'><target dev='sdb' bus='sata'/></disk><graphics type='spice'/><video><model type='qxl'/></video>"},
			codes: "disk_bus_missing graphics_missing memory_backing_missing video_missing", wants: "file", have: "anonymous, memfd"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := tt.node
			if node.Arch == "" {
				node = here
			}
			g := tt.guest
			kind, os := g.kind, "<os>"+g.os+"</os>"
			if kind == "" {
				kind = "kvm"
			}
			if g.os == "" {
				os = "<os><type arch='x86_64' machine='q35'>hvm</type></os>"
			}
			if strings.Contains(g.extra, "<os") {
				os = ""
			}
			vcpus := g.vcpus
			if vcpus == "" {
				vcpus = "<vcpu>2</vcpu>"
			}
			doc, err := parseDocument("<domain type='" + kind + "'><name>g</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>1024</memory>" + vcpus + os + g.extra + "<devices>" + g.devices + "</devices></domain>")
			if err != nil {
				t.Fatal(err)
			}
			got := hypervisorReasons(doc, node, "host-b")
			if diff := cmp.Diff(tt.codes, codesOf(got)); diff != "" {
				t.Fatalf("%+v (-want +got):\n%s", got, diff)
			}
			for _, r := range got {
				if r.Want == "" || r.Change == "" {
					t.Errorf("%+v does not say what is wanted, and what would have to change", r)
				}
			}
			if tt.codes != "" && (got[0].Want != tt.wants || got[0].Have != tt.have || !strings.Contains(got[0].Message, "host-b")) {
				t.Errorf("%+v, want %q and have %q", got[0], tt.wants, tt.have)
			}
		})
	}
}

// TestPassthroughReasons_CompareTheHosts: a guest with its host's own CPU names no
// feature, and dies of one that its new host lacks.
func TestPassthroughReasons_CompareTheHosts(t *testing.T) {
	host := func(vendor string, features ...string) migration.Description {
		return migration.Description{Name: vendor, CPU: &topology.HypervisorCPU{Vendor: vendor, Features: features}}
	}
	silent := migration.Description{Name: "old agent"}
	for _, tt := range []struct {
		name         string
		kind, cpu    string
		source, dest migration.Description
		codes        string
		wants        []string
	}{
		{"the same", "kvm", "<cpu mode='host-passthrough'/>", host("Intel", "avx", "vmx"), host("Intel", "avx", "vmx"), "", nil},
		{"more there", "kvm", "<cpu mode='host-passthrough'/>", host("Intel", "avx"), host("Intel", "avx", "avx512f"), "", nil},
		{"less there", "kvm", "<cpu mode='host-passthrough'/>", host("Intel", "avx", "avx512f", "vmx"), host("Intel", "avx"),
			"cpu_feature_missing cpu_feature_missing", []string{"avx512f", "vmx"}},
		{"all that there is", "kvm", "<cpu mode='maximum'/>", host("Intel", "avx", "vmx"), host("Intel", "avx"), "cpu_feature_missing", []string{"vmx"}},
		{"another vendor", "kvm", "<cpu mode='host-passthrough'/>", host("Intel", "avx", "vmx"), host("AMD", "avx", "svm"),
			"cpu_feature_missing cpu_vendor_differs", []string{"Intel", "vmx"}},
		{"a vendor that nobody told", "kvm", "<cpu mode='host-passthrough'/>", host("", "avx"), host("AMD", "avx"), "", nil},
		{"nor there", "kvm", "<cpu mode='host-passthrough'/>", host("AMD", "avx"), host("", "avx"), "", nil},
		{"a named model is compared by itself", "kvm", "<cpu mode='custom'><model>Skylake</model></cpu>", host("Intel", "vmx"), host("AMD", "avx"), "", nil},
		{"emulated", "qemu", "<cpu mode='maximum'/>", host("Intel", "vmx"), host("AMD", "avx"), "", nil},
		{"an agent that does not tell", "kvm", "<cpu mode='host-passthrough'/>", silent, host("AMD", "avx"), "", nil},
		{"to one that does not tell", "kvm", "<cpu mode='host-passthrough'/>", host("AMD", "avx"), silent, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc, err := parseDocument("<domain type='" + tt.kind + "'>" + tt.cpu + "</domain>")
			if err != nil {
				t.Fatal(err)
			}
			got := passthroughReasons(doc, tt.source, tt.dest)
			if diff := cmp.Diff(tt.codes, codesOf(got)); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
			var wants []string
			for _, r := range got {
				wants = append(wants, r.Want)
			}
			if diff := cmp.Diff(tt.wants, wants); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHypervisorCPU_IsToldOnlyWhenItsFeaturesAreKnown(t *testing.T) {
	for name, node := range map[string]driver.Node{"no capabilities": {}, "no features": {Capabilities: &topology.Capabilities{}}} {
		if got := hypervisorCPU(node); got != nil {
			t.Errorf("%s: %+v, want nothing to be compared", name, got)
		}
	}
	can := topology.Capabilities{CPU: topology.HypervisorCPU{Model: "EPYC", Features: []string{"avx"}, Models: []string{"EPYC", "qemu64"}}}
	want := &topology.HypervisorCPU{Model: "EPYC", Features: []string{"avx"}}
	if diff := cmp.Diff(want, hypervisorCPU(driver.Node{Capabilities: &can})); diff != "" || len(can.CPU.Models) != 2 {
		t.Errorf("(-want +got):\n%s\nand the node's own are %v", diff, can.CPU.Models)
	}
}

func TestWithCPU_PutsTheRealOneInItsPlace(t *testing.T) {
	const xml = "<domain type='kvm'><name>g</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>1024</memory><vcpu>1</vcpu><cpu mode='custom'><model>qemu64</model></cpu><os><type>hvm</type></os></domain>"
	got, err := withCPU(migration.Guest{XML: xml, CPU: "<cpu mode='custom'><model>qemu64</model><feature policy='disable' name='svm'/></cpu>"})
	if err != nil || strings.Count(got, "<cpu") != 1 || !strings.Contains(got, "svm") || strings.Index(got, "<cpu") > strings.Index(got, "<os") {
		t.Errorf("%v:\n%s", err, got)
	}
	if got, err := withCPU(migration.Guest{XML: xml}); err != nil || got != xml {
		t.Errorf("a guest whose CPU nobody told: %v, %s", err, got)
	}
	if _, err := withCPU(migration.Guest{XML: xml, CPU: "<cpu"}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a CPU that cannot be read: %v", err)
	}
}

// older is a libvirt that knows some features, and has none.
type older struct {
	driver.LiveMigrator
	knows []string
	err   error
}

func (o older) CheckCPU(_ context.Context, text string) error {
	if o.err != nil {
		return o.err
	}
	for _, f := range o.knows {
		if strings.Contains(text, "'"+f+"'") {
			return fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "cpu_feature_missing", Want: f})
		}
	}
	return fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "cpu_feature_unknown"})
}

// TestJudged_AnOlderLibvirtNamesFewerFeaturesOfTheSameCPU holds two hosts of one
// hardware together that name it differently.
func TestJudged_AnOlderLibvirtNamesFewerFeaturesOfTheSameCPU(t *testing.T) {
	const xml = "<domain type='kvm'><name>g</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>1024</memory><vcpu>1</vcpu><cpu mode='host-passthrough'/></domain>"
	reasons := []fault.Reason{
		{Code: "cpu_vendor_differs", Want: "Intel"}, {Code: "cpu_feature_missing", Want: "avx512f"}, {Code: "cpu_feature_missing", Want: "vmx-ept-4k"},
	}
	got, err := judged(t.Context(), older{knows: []string{"avx512f"}}, xml, reasons)
	if diff := cmp.Diff("cpu_feature_missing cpu_vendor_differs", codesOf(got)); diff != "" || err != nil || got[1].Want != "avx512f" {
		t.Errorf("%v, %v (-want +got):\n%s", got, err, diff)
	}
	if _, err := judged(t.Context(), older{err: fault.New(fault.Unavailable, "libvirt is away")}, xml, reasons); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("libvirt away: %v", err)
	}
	if got, err := judged(t.Context(), nil, "", nil); got != nil || err != nil {
		t.Errorf("nothing to judge: %v, %v", got, err)
	}
}
