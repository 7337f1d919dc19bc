package domainxml

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/beevik/etree"
	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

var update = flag.Bool("update", false, "write the golden files anew")

func fixture(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parsed(t testing.TB, text string) *Doc {
	t.Helper()
	d, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join("testdata", name), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(fixture(t, name), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestParse_ReadsWhatBerthNeeds(t *testing.T) {
	d := parsed(t, fixture(t, "rich.xml"))
	type facts struct {
		Name, UUID, Type, Machine, Arch, Emulator string
		Resources                                 topology.Resources
		Disks                                     []Disk
		Interfaces                                []Interface
		Consoles                                  []Console
	}
	want := facts{
		Name: "rich", UUID: "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11", Type: "kvm", Machine: "pc-q35-7.2", Arch: "x86_64",
		Emulator: "/usr/bin/qemu-system-x86_64", Resources: topology.Resources{VCPUs: 2, MemoryMB: 2049},
		Disks: []Disk{
			{Target: "vda", Bus: "virtio", Device: "disk", Type: "file", Source: "/images/rich.qcow2", Format: "qcow2", Cache: "none",
				Backing: []string{"/images/mid.qcow2", "/images/base.raw"}},
			{Target: "sda", Bus: "scsi", Device: "disk", Type: "block", Source: "/dev/mapper/vol", Format: "raw", Serial: "3f0e", Shareable: true},
			{Target: "vdb", Bus: "virtio", Device: "disk", Type: "network", Source: "pool/image"},
			{Target: "vdc", Bus: "virtio", Device: "disk", Type: "volume", Source: "default/v1"},
			{Target: "sdb", Bus: "sata", Device: "cdrom", Type: "file", ReadOnly: true},
		},
		Interfaces: []Interface{
			{MAC: "52:54:00:aa:bb:cc", Type: "bridge", Source: "br0", Target: "vnet3", Model: "virtio"},
			{MAC: "52:54:00:aa:bb:cd", Type: "direct", Source: "eth1"},
		},
		Consoles: []Console{
			{Kind: "serial", Type: "tcp", Host: "192.0.2.1", Port: "0"},
			{Kind: "serial", Type: "file", Path: "/var/log/rich.log", Port: "1"},
			{Kind: "console", Type: "pty", Path: "/dev/pts/3", Port: "2"},
		},
	}
	got := facts{d.Name(), d.UUID(), d.Type(), d.Machine(), d.Arch(), d.Emulator(), d.Resources(), d.Disks(), d.Interfaces(), d.Consoles()}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("facts (-want +got):\n%s", diff)
	}
	m, there, err := d.Metadata()
	wantMeta := Metadata{Name: "rich", Epoch: 3, Flavor: topology.Flavor{
		Name: "m1.small", VCPUs: 4, MemoryMB: 2049, DiskGB: 10, ExtraSpecs: map[string]string{"hw:cpu_policy": "shared"}}}
	if diff := cmp.Diff(wantMeta, m); diff != "" || !there || err != nil {
		t.Errorf("metadata there %v, %v (-want +got):\n%s", there, err, diff)
	}
}

func TestFirmware_SeesVariablesWhereverTheyAre(t *testing.T) {
	const ok = "<domain type='kvm'><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>1</memory><vcpu>1</vcpu><os>%s</os><devices></devices></domain>"
	for nvram, want := range map[string]Firmware{
		"": {}, "<nvram/>": {},
		"<nvram>/n/a.fd</nvram>":                                    {Variables: "/n/a.fd"},
		"<nvram type='file'><source file='/n/a.fd'/></nvram>":       {Variables: "/n/a.fd"},
		"<nvram type='block'>\n<source dev='/dev/vg/a'/>\n</nvram>": {Variables: "/dev/vg/a", OnDevice: true},
	} {
		if diff := cmp.Diff(want, parsed(t, strings.Replace(ok, "%s", nvram, 1)).Firmware()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", nvram, diff)
		}
	}
}

func TestParse_DefaultsAreLibvirts(t *testing.T) {
	d := parsed(t, fixture(t, "bare.xml"))
	if d.VCPUs() != 1 || d.MemoryMB() != 1 || d.UUID() != "00000000-0000-4000-8000-000000000001" {
		t.Errorf("%d vcpus, %d MiB, uuid %s; want 1, 1 (1000 KiB rounded up), with dashes", d.VCPUs(), d.MemoryMB(), d.UUID())
	}
	if _, there, err := d.Metadata(); there || err != nil {
		t.Errorf("metadata there %v, %v", there, err)
	}
	if _, named := d.CPU(); named {
		t.Error("a document without <cpu> names a CPU")
	}
}

func TestParse_ErrorsNameTheElement(t *testing.T) {
	const ok = "<domain type='kvm'><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>1</memory><vcpu>1</vcpu><devices></devices></domain>"
	for _, tt := range []struct{ name, from, to, want string }{
		{"empty", ok, "", "root element"},
		{"another root", "domain", "network", "root element"},
		{"not closed", "</domain>", "", "domain document"},
		{"no name", "<name>a</name>", "", "<name>"},
		{"no uuid", "<uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid>", "", "<uuid>"},
		{"bad uuid", "8e3c8f3a-7a4b", "xx", "<uuid>"},
		{"no memory", "<memory unit='MiB'>1</memory>", "", "<memory>"},
		{"bad unit", "'MiB'", "'lightyears'", "<memory>"},
		{"no number", ">1</memory>", ">much</memory>", "<memory>"},
		{"zero memory", ">1</memory>", ">0</memory>", "<memory>"},
		{"too much memory", ">1</memory>", ">18446744073709551615</memory>", "<memory>"},
		{"bad vcpu", "<vcpu>1", "<vcpu>-1", "<vcpu>"},
		{"bad current", "<vcpu>", "<vcpu current='x'>", "<vcpu>"},
		{"disk without target", "<devices>", "<devices><disk/>", "<disk>"},
		{"target twice", "<devices>", "<devices><disk><target dev='vda'/></disk><disk><target dev='vda'/></disk>", "vda"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(strings.ReplaceAll(ok, tt.from, tt.to))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that names %s", err, tt.want)
			}
		})
	}
}

func TestMetadata_ErrorsNameTheField(t *testing.T) {
	for _, tt := range [][2]string{{"epoch='3'", "epoch='x'"}, {"vcpus='4'", "vcpus='-4'"}, {"memory_mb='2049'", "memory_mb='much'"}} {
		d := parsed(t, strings.Replace(fixture(t, "rich.xml"), tt[0], tt[1], 1))
		field, _, _ := strings.Cut(tt[0], "=")
		if _, _, err := d.Metadata(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: error %v, want one that names %s", tt[1], err, field)
		}
	}
}

func TestString_WithNothingChangedIsTheSameText(t *testing.T) {
	for _, name := range []string{"rich.xml", "bare.xml"} {
		text := fixture(t, name)
		d := parsed(t, text)
		m, there, _ := d.Metadata()
		if there {
			d.SetMetadata(m)
		}
		d.SetListen("192.0.2.1") // as it is
		for _, k := range d.Disks() {
			if k.Type == "file" && k.Source != "" {
				if err := d.SetDiskSource(k.Target, k.Source); err != nil {
					t.Error(err)
				}
			}
		}
		if diff := cmp.Diff(text, d.String()); diff != "" {
			t.Errorf("%s changed (-want +got):\n%s", name, diff)
		}
	}
}

func TestEdit_ChangesOnlyWhatIsMeant(t *testing.T) {
	d := parsed(t, fixture(t, "rich.xml"))
	d.SetListen("198.51.100.9")
	if err := d.SetDiskSource("vda", "/elsewhere/rich & co.qcow2"); err != nil {
		t.Fatal(err)
	}
	if err := d.SetDiskSource("sda", "/dev/mapper/other"); err != nil {
		t.Fatal(err)
	}
	m, _, _ := d.Metadata()
	m.Epoch, m.Migration = 4, "5b0b0d0e-0000-4000-8000-000000000001"
	m.Flavor.ExtraSpecs = map[string]string{"hw:mem_page_size": "large", "a": "b"}
	d.SetMetadata(m)
	golden(t, "rich-moved.xml", d.String())
	again := parsed(t, d.String())
	if got, _, err := again.Metadata(); err != nil || !cmp.Equal(got, m) {
		t.Errorf("metadata read again (-want +got):\n%s", cmp.Diff(m, got))
	}
	if diff := cmp.Diff(d.Disks(), again.Disks()); diff != "" {
		t.Errorf("disks as edited, then as read again (-want +got):\n%s", diff)
	}
}

func TestSetMetadata_MakesRoomForItself(t *testing.T) {
	d := parsed(t, fixture(t, "bare.xml"))
	m := Metadata{Name: "bare", Flavor: topology.Flavor{Name: "tiny", VCPUs: 1, MemoryMB: 1}, Epoch: 1}
	d.SetMetadata(m)
	golden(t, "bare-managed.xml", d.String())
	got, there, err := parsed(t, d.String()).Metadata()
	if !there || err != nil || !cmp.Equal(got, m) {
		t.Errorf("metadata read again: there %v, %v (-want +got):\n%s", there, err, cmp.Diff(m, got))
	}
	d.RemoveMetadata()
	if _, there, _ := parsed(t, d.String()).Metadata(); there {
		t.Error("metadata is there after it was removed")
	}
}

func TestClone_IsItsOwn(t *testing.T) {
	d := parsed(t, fixture(t, "rich.xml"))
	c := d.Clone()
	if err := c.SetDiskSource("vda", "/new"); err != nil {
		t.Fatal(err)
	}
	if d.String() != fixture(t, "rich.xml") || d.Disks()[0].Source != "/images/rich.qcow2" || c.Disks()[0].Source != "/new" {
		t.Error("an edit of the clone shows in the document it was made from")
	}
}

func TestSetDiskSource_RefusesWhatItCannot(t *testing.T) {
	d := parsed(t, fixture(t, "rich.xml"))
	for target, want := range map[string]string{"vdz": "no disk vdz", "vdc": "volume"} {
		if err := d.SetDiskSource(target, "/x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one that says %q", target, err, want)
		}
	}
	if err := d.SetDiskSource("sdb", "/cd.iso"); err != nil || d.Disks()[4].Source != "/cd.iso" {
		t.Errorf("an empty drive: %v", err)
	}
}

func TestCPU_IsTheGuestsElement(t *testing.T) {
	cpu, named := parsed(t, fixture(t, "rich.xml")).CPU()
	if !named || !strings.Contains(cpu, "Skylake-Server") || !strings.HasPrefix(cpu, "<cpu ") || !strings.Contains(cpu, "avx512f") {
		t.Errorf("cpu %q, named %v", cpu, named)
	}
}

func TestBuild_Golden(t *testing.T) {
	small := topology.Flavor{Name: "small", VCPUs: 2, MemoryMB: 256, DiskGB: 1}
	for name, s := range map[string]Spec{
		"build-kernel.xml": {
			Name: "web-1", UUID: "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11", Flavor: small, Emulator: "/usr/bin/qemu-system-x86_64",
			Machine: "pc-q35-7.2", Kernel: "/boot/vmlinuz", Initrd: "/boot/initrd", Cmdline: "console=ttyS0 a='b' & c<d",
			Disks:      []SpecDisk{{Path: "/images/web-1.qcow2", Format: "qcow2"}, {Path: "/images/data.raw", ReadOnly: true, Cache: "writeback"}},
			SerialFile: "/var/log/web-1.console",
			Metadata:   &Metadata{Name: "web-1", Flavor: small, Epoch: 1},
		},
		"build-disk.xml": {
			Name: "db", UUID: "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d12", Flavor: small, KVM: true,
			Disks:    []SpecDisk{{Path: "/images/db.raw"}},
			Networks: []SpecNetwork{{Network: "default"}, {Bridge: "br0", MAC: "52:54:00:00:00:01"}},
		},
	} {
		got, err := Build(s)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, got)
		d := parsed(t, got)
		if d.Name() != s.Name || d.Resources() != (topology.Resources{VCPUs: 2, MemoryMB: 256}) || len(d.Disks()) != len(s.Disks) {
			t.Errorf("%s read again: %s, %v, %d disks", name, d.Name(), d.Resources(), len(d.Disks()))
		}
	}
}

func TestBuild_ListsEveryFault(t *testing.T) {
	_, err := Build(Spec{Name: "a/b", UUID: "x", Initrd: "rel", Disks: nil, Networks: []SpecNetwork{{}}, SerialFile: "rel"})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"name", "uuid", "flavor", "boot", "initrd and cmdline", "initrd \"rel\"", "serial file", "network 1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestSpecDisk_TargetsGoOnAfterZ(t *testing.T) {
	for i, want := range map[int]string{0: "vda", 25: "vdz", 26: "vdaa", 27: "vdab", 26 + 26*26: "vdaaa"} {
		if got := (SpecDisk{}).target(i); got != want {
			t.Errorf("disk %d is %s, want %s", i, got, want)
		}
	}
}

func TestSetCPU_TakesThePlaceOfTheGuestsOwn(t *testing.T) {
	const head, tail = "<domain type='kvm'><name>g</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory>1024</memory><vcpu>1</vcpu>", "<on_crash>destroy</on_crash></domain>"
	const other = "<cpu mode='custom'><model>qemu64</model><feature policy='disable' name='svm'/></cpu>"
	for own, want := range map[string]string{
		"<cpu mode='custom'><model>Westmere</model><topology sockets='1'/></cpu>": head + other + tail, "": head + "<on_crash>destroy</on_crash>" + other + "</domain>",
	} {
		doc, err := Parse(head + own + tail)
		if err != nil {
			t.Fatal(err)
		}
		if err := doc.SetCPU(other); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, doc.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for _, garbage := range []string{"", "<cpu", "<memory>1</memory>"} {
			if err := doc.SetCPU(garbage); err == nil || doc.String() != want {
				t.Errorf("%q is accepted: %v", garbage, err)
			}
		}
	}
}

// Whatever parses comes back as it was, and edited it still parses, to the same
// facts, with every other element still there.
func FuzzParse(f *testing.F) {
	f.Add(fixture(f, "rich.xml"))
	f.Add(fixture(f, "bare.xml"))
	f.Add("<domain><name>a</name>")
	for _, name := range fixtures(f) {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := Parse(text)
		if err != nil {
			return
		}
		if d.String() != text {
			t.Fatal("a document that nothing was changed in changed")
		}
		_, _, _ = d.Assignment(here16(t), nil)
		_, _ = d.Kept(), d.Firmware()
		managed := d.Clone()
		if meta := d.root.SelectElement("metadata"); d.instance() == nil && (meta == nil || len(meta.Child) > 0) {
			managed.SetMetadata(Metadata{Name: "x", Epoch: 9})
			if _, ok := inserted(text, managed.String()); !ok {
				t.Fatalf("metadata were not only put in:\n%s", managed)
			}
		}
		before := elements(d.root)
		d.SetListen("198.51.100.9")
		d.SetMetadata(Metadata{Name: "x", Epoch: 9, Flavor: topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 1}})
		again, err := Parse(d.String())
		if err != nil {
			t.Fatalf("after an edit: %v\n%s", err, d)
		}
		if again.Name() != d.Name() || again.UUID() != d.UUID() || again.Resources() != d.Resources() || !cmp.Equal(again.Disks(), d.Disks()) {
			t.Fatalf("facts changed by an edit:\n%s", d)
		}
		if m, there, err := again.Metadata(); !there || err != nil || m.Epoch != 9 {
			t.Fatalf("metadata lost: %v, %v", there, err)
		}
		if after := elements(again.root); after < before-len(d.root.FindElements("//extra_spec"))-8 {
			t.Fatalf("%d elements, were %d", after, before)
		}
	})
}

func elements(e *etree.Element) int {
	n := 1
	for _, c := range e.ChildElements() {
		n += elements(c)
	}
	return n
}
