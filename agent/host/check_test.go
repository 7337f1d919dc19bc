package host_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

var cpuElement = regexp.MustCompile(`(?s)<cpu [^>]*/>|<cpu[ >].*?</cpu>`)

func TestCheckDestination_ListsEveryReason(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a, b := l.hosts["a"], l.hosts["b"]
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	g, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: v.UUID})
	l.must("inspect", err)
	here, err := a.Describe(t.Context())
	l.must("describe", err)
	check := func(change func(g *migration.Guest, source *migration.Description)) error {
		g, source := g, here
		change(&g, &source)
		_, err := operation.CheckDestination.Ask(t.Context(), b, refFor(g.UUID, 1), migration.CheckRequest{Guest: g, Source: source})
		return err
	}
	devices := func(text string) func(*migration.Guest, *migration.Description) {
		return func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<devices>"+text, 1)
		}
	}
	l.must("the guest as it is", check(func(*migration.Guest, *migration.Description) {}))
	node, err := b.fake.Node(t.Context())
	l.must("node", err)
	for _, tt := range []struct {
		name   string
		codes  string
		kind   fault.Kind
		setup  func() (undo func())
		change func(g *migration.Guest, source *migration.Description)
	}{
		{name: "same host by name", codes: "same_host", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.Name = "b" }},
		{name: "same host by libvirt's uuid", codes: "same_host", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.HostUUID = node.UUID }},
		{name: "no room", codes: "memory_over_host vcpu_over_host", kind: fault.DoesNotFit, change: func(g *migration.Guest, _ *migration.Description) {
			g.Resources.VCPUs, g.Resources.MemoryMB = 64, 1<<20
		}},
		{name: "old source", codes: "libvirt_too_old qemu_too_old", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) {
			s.LibvirtVersion, s.HypervisorVersion = 7_000_000, 6_001_000
		}},
		{name: "destination's QEMU is older", codes: "qemu_older", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.HypervisorVersion = 11_000_000 }},
		{name: "another architecture", codes: "arch_differs", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.Arch = "aarch64" }},
		{name: "QEMU 7.2 under TCG", codes: "qemu_too_old", kind: fault.Forbidden, change: func(g *migration.Guest, s *migration.Description) {
			g.XML, s.HypervisorVersion = strings.Replace(g.XML, "'kvm'", "'qemu'", 1), 7_002_022
		}},
		{name: "machine type", codes: "machine_type_missing", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "'q35'", "'pc-q35-99.0'", 1)
		}},
		{name: "no KVM", codes: "no_kvm", kind: fault.Forbidden, setup: func() func() {
			n := node
			n.Emulated = true
			b.fake.SetNode(n)
			return func() { b.fake.SetNode(node) }
		}},
		{name: "CPU feature", codes: "cpu_feature_missing", kind: fault.DoesNotFit, setup: func() func() {
			b.fake.LackFeatures("avx512f")
			return func() { b.fake.LackFeatures() }
		}, change: func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu><feature policy='require' name='avx512f'/></cpu><devices>", 1)
		}},
		{name: "the CPU that it has, not the one it was started with", codes: "", setup: func() func() {
			b.fake.LackFeatures("avx512f")
			return func() { b.fake.LackFeatures() }
		}, change: func(g *migration.Guest, _ *migration.Description) {
			g.XML = cpuElement.ReplaceAllString(g.XML, "")
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu><feature policy='require' name='avx512f'/></cpu><devices>", 1)
			g.CPU = "<cpu><model>qemu64</model><feature policy='disable' name='avx512f'/></cpu>"
		}},
		{name: "its host's own CPU", codes: "cpu_feature_missing", kind: fault.DoesNotFit, setup: func() func() {
			n := node
			n.Capabilities = &topology.Capabilities{CPU: topology.HypervisorCPU{Features: []string{"avx"}}}
			b.fake.SetNode(n)
			return func() { b.fake.SetNode(node) }
		}, change: func(g *migration.Guest, s *migration.Description) {
			g.XML = cpuElement.ReplaceAllString(g.XML, "")
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu mode='host-passthrough'/><devices>", 1)
			s.CPU = &topology.HypervisorCPU{Features: []string{"avx", "vmx"}}
		}},
		{name: "graphics that are not built in", codes: "graphics_missing", kind: fault.Forbidden, setup: func() func() {
			n := node
			n.Capabilities = &topology.Capabilities{Graphics: []string{"vnc"}}
			b.fake.SetNode(n)
			return func() { b.fake.SetNode(node) }
		}, change: devices("<graphics type='spice'/>")},
		{name: "a hypervisor that cannot", codes: "no_live_migration", kind: fault.Forbidden, setup: func() func() {
			n := node
			n.Cannot = map[driver.Ability]string{driver.AbilityLiveMigration: "it has no peer-to-peer migration"}
			b.fake.SetNode(n)
			return func() { b.fake.SetNode(node) }
		}},
		{name: "another hypervisor", codes: "hypervisor_differs", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.Hypervisor = "TEST" }},
		{name: "emulator", codes: "emulator_missing emulator_not_allowed", kind: fault.Forbidden, change: devices("<emulator>/usr/libexec/qemu-kvm</emulator>")},
		{name: "occupied disk", codes: "disk_exists", kind: fault.Exists, setup: func() func() {
			b.put(t, "/images/vm1-vda.qcow2", "another guest's", 0o644)
			return func() { l.must("remove", os.Remove(b.path("/images/vm1-vda.qcow2"))) }
		}},
		{name: "uuid and name", codes: "domain_exists", kind: fault.Exists, setup: func() func() {
			l.must("define", b.fake.Define(t.Context(), strings.Replace(foreignXML("other", "", ""), "33333333-3333-4333-8333-333333333333", v.UUID, 1)))
			return func() { l.must("undefine", b.fake.Undefine(t.Context(), v.UUID)) }
		}},
		{name: "name", codes: "name_exists", kind: fault.Exists, setup: func() func() {
			l.must("define", b.fake.Define(t.Context(), foreignXML("vm1", "", "")))
			return func() { l.must("undefine", b.fake.Undefine(t.Context(), "33333333-3333-4333-8333-333333333333")) }
		}},
		{name: "kernel", codes: "file_missing", kind: fault.Forbidden, setup: func() func() {
			l.must("remove", os.Remove(b.path("/boot/vmlinuz")))
			return func() { b.put(t, "/boot/vmlinuz", "kernel", 0o644) }
		}},
		{name: "mode", codes: "mode_observe", kind: fault.Forbidden, setup: func() func() {
			b.mode = host.ModeObserve
			return func() { b.mode = "manage" }
		}},
		{name: "devices", kind: fault.Forbidden,
			codes: "device_not_migratable device_not_migratable device_not_migratable device_not_migratable device_not_migratable",
			change: devices(`<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source></hostdev>` +
				`<interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x2'/></source></interface>` +
				`<filesystem type='mount'><target dir='share'/></filesystem><tpm model='tpm-crb'><backend type='emulator'/></tpm><hostdev mode='subsystem' type='mdev'><source><address uuid='aa'/></source></hostdev>`)},
		{name: "a disk outside the folders", codes: "disk_place", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append([]migration.Disk(nil), g.Disks...)
			g.Disks[0].Path = "/etc/passwd-"
		}},
		{name: "a disk without room", codes: "disk_room_short", kind: fault.DoesNotFit, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append([]migration.Disk(nil), g.Disks...)
			g.Disks[0].ActualSize, g.Disks[0].VirtualSize = 1<<60, 1<<60
		}},
		{name: "install media", codes: "disk_missing", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append(g.Disks[:1:1], migration.Disk{Target: "sda", Path: "/iso/x.iso", Format: "raw", ReadOnly: true})
		}},
		{name: "several at once", codes: "cpu_feature_missing device_not_migratable disk_exists memory_over_host same_host vcpu_over_host", kind: fault.Forbidden, setup: func() func() {
			b.fake.LackFeatures("avx512f")
			b.put(t, "/images/vm1-vda.qcow2", "another guest's", 0o644)
			return func() {
				b.fake.LackFeatures()
				l.must("remove", os.Remove(b.path("/images/vm1-vda.qcow2")))
			}
		}, change: func(g *migration.Guest, s *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu><feature policy='require' name='avx512f'/></cpu><devices><redirdev/>", 1)
			g.Resources.VCPUs, g.Resources.MemoryMB = 64, 1<<20
			s.ProviderUUID = "rp-b"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.setup != nil {
				defer tt.setup()()
			}
			change := tt.change
			if change == nil {
				change = func(*migration.Guest, *migration.Description) {}
			}
			err := check(change)
			if got := strings.Join(codes(err), " "); got != tt.codes {
				t.Errorf("reasons %q, want %q (%v)", got, tt.codes, err)
			}
			if got := fault.KindOf(err); got != tt.kind {
				t.Errorf("kind %s, want %s", got, tt.kind)
			}
		})
	}
	l.same("checks leave nothing", before)
	b.fake.KillDaemon()
	l.wantKind("libvirt away", check(func(*migration.Guest, *migration.Description) {}), fault.Unavailable)
	b.fake.StartDaemon()
}

func TestInspect_AndCheckSource_Refuse(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "vm1")
	_, err := operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: "99999999-9999-4999-8999-999999999999"})
	l.wantKind("nobody", err, fault.NotFound)
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	_, err = operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: "44444444-4444-4444-8444-444444444444"})
	l.wantKind("not managed", err, fault.Forbidden)
	node, err := a.fake.Node(t.Context())
	l.must("node", err)
	cannot := node
	cannot.Cannot = map[driver.Ability]string{driver.AbilityLiveMigration: "it has no peer-to-peer migration"}
	a.fake.SetNode(cannot)
	_, err = operation.CheckSource.Ask(t.Context(), a, refFor(v.UUID, 1), migration.CheckAnswer{})
	if diff := cmp.Diff([]string{"no_live_migration"}, codes(err)); diff != "" {
		t.Errorf("a hypervisor that cannot (-want +got):\n%s", diff)
	}
	a.fake.SetNode(node)
	l.must("stop", a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
	_, err = operation.CheckSource.Ask(t.Context(), a, refFor(v.UUID, 1), migration.CheckAnswer{})
	if diff := cmp.Diff([]string{"not_running"}, codes(err)); diff != "" {
		t.Errorf("a stopped guest (-want +got):\n%s", diff)
	}
	l.wantKind("a stopped guest", err, fault.Forbidden)
	a.fake.KillDaemon()
	_, err = operation.Inspect.Ask(t.Context(), a, migration.Ref{Instance: v.UUID})
	l.wantKind("libvirt away", err, fault.Unavailable)
	a.fake.StartDaemon()
}

// TestCheck_AnEncryptedDiskIsNotCopiedLive: the destination would make a plain file.
func TestCheck_AnEncryptedDiskIsNotCopiedLive(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	const secret = "55555555-5555-4555-8555-555555555555"
	for _, n := range l.hosts {
		n.fake.SetSecret(driver.SecretRef{UUID: secret})
	}
	v, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{
		XML: foreignXML("foreign", `<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='/images/vm.luks'><encryption format='luks'><secret type='passphrase' uuid='`+
			secret+`'/></encryption></source><target dev='vda' bus='virtio'/></disk>`, ""),
		ProjectID: "p", UserID: "u", Disks: []host.CreateDisk{{Path: "/images/vm.luks", SizeGB: 1, Format: "raw"}}, Start: true,
	})
	l.must("create", err)
	_, err = newMove(l, v.UUID).verbs()[0](t.Context())
	if !slices.Contains(codes(err), "disk_encrypted") {
		t.Errorf("checked: %v", err)
	}
}
