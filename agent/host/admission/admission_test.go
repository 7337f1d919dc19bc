package admission

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/topology"
)

const (
	instance = "11111111-2222-4333-8444-555555555555"
	neighbor = "99999999-2222-4333-8444-555555555555"
	qemu     = "/usr/bin/qemu-system-x86_64"
	images   = "/var/lib/libvirt/images/"
)

// domain is a domain XML with more elements in it and in its devices.
func domain(uuid, more, devices string) string {
	return fmt.Sprintf(`<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><name>i</name><uuid>%s</uuid><memory unit='MiB'>128</memory><vcpu>1</vcpu>%s<devices><emulator>%s</emulator>%s</devices></domain>`,
		uuid, more, qemu, devices)
}

func disk(attributes, source string) string {
	return "<disk " + attributes + "><source " + source + "/><target dev='vda'/></disk>"
}

// nbd is a disk of a server that has one alone; ceph one with a file of its client.
func nbd(server string) string {
	return "<disk type='network'><source protocol='nbd'><host name='" + server + "' port='10809'/></source><target dev='vda'/></disk>"
}

const ceph = "<disk type='network'><source protocol='rbd' name='p/mine'><config file='/etc/ceph/ceph.conf'/></source><target dev='vda'/></disk>"

func channel(mode, path string) string {
	return "<channel type='unix'><source mode='" + mode + "' path='" + path + "'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
}

func policy() Policy {
	return Policy{
		Host: "b", Emulators: []string{qemu}, Images: []string{"/srv/disks"}, Labels: []string{"dac:+64055:+64055"},
		Loaders: []string{"/opt/fw/code.fd"}, Resolve: func(path string) (string, error) {
			switch {
			case strings.HasPrefix(path, images+"link"):
				return "/etc/shadow", nil
			case path == "/usr/libexec/qemu-kvm":
				return qemu, nil
			case strings.HasPrefix(path, images+"lost"):
				return "", fault.New(fault.Forbidden, "a link to nowhere")
			}
			return path, nil
		},
		Volume: func(pool, volume string) (string, bool, error) {
			switch pool + "/" + volume {
			case "p/v":
				return images + "v.img", false, nil
			case "q/other.qcow2":
				return images + "other.qcow2", false, nil
			case "nfs/other.qcow2":
				return images + "other.qcow2", true, nil
			case "q/mine":
				return images + "mine", false, nil
			}
			return "", false, nil
		},
	}
}

// codes are those of the reasons, sorted.
func codes(t *testing.T, p Policy, claimed Claimed, text string, others ...Other) []string {
	t.Helper()
	doc, err := domainxml.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range Check(doc, p, claimed, others) {
		if r.Message == "" || r.Change == "" {
			t.Errorf("reason %+v says too little", r)
		}
		out = append(out, r.Code)
	}
	slices.Sort(out)
	return out
}

func TestCheck_EachElement(t *testing.T) {
	held := Claimed{Resources: topology.Resources{VCPUs: 1, MemoryMB: 128}, Devices: []string{"0000:3b:00.1"}}
	hostdev := func(bus string) string {
		return "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='" + bus + "' slot='0x00' function='0x1'/></source></hostdev>"
	}
	for _, tt := range []struct{ name, more, devices, want string }{
		{"an ordinary instance", "<os><type>hvm</type><loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE.fd</loader><nvram template='/opt/fw/code.fd'>/var/lib/libvirt/qemu/nvram/i_VARS.fd</nvram><cmdline>root=/dev/vda</cmdline></os><seclabel type='dynamic' model='dac' relabel='yes'/>",
			disk("type='file'", "file='"+images+"i.qcow2'") + "<serial type='pty'><source path='/dev/pts/3'/></serial><console type='pty' tty='/dev/pts/3'><source path='/dev/pts/3'/></console>" +
				"<channel type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/channel/target/domain-1-i/org.qemu.guest_agent.0'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel><rng model='virtio'><backend model='random'>/dev/urandom</backend></rng>" +
				"<graphics type='vnc' passwd='/x'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-1-i/vnc.sock'/></graphics>", ""},
		{"another emulator", "", "</devices><devices><emulator>/tmp/evil</emulator>", "emulator_not_allowed"},
		{"a shell", "", "</devices><devices><emulator>/bin/sh</emulator>", "emulator_not_allowed"},
		{"an emulator found by $PATH", "", "</devices><devices><emulator>sh</emulator>", "emulator_not_allowed"},
		{"libvirt's emulator by another name", "", "</devices><devices><emulator>/usr/libexec/qemu-kvm</emulator>", ""},
		{"the host's disk", "", disk("type='block'", "dev='/dev/sda'"), "path_not_allowed"},
		{"the host's disk as media", "", disk("type='block' device='cdrom'", "dev='/dev/sda'"), "path_not_allowed"},
		{"a file of the host", "", disk("type='file'", "file='/etc/shadow'"), "path_not_allowed"},
		{"firmware as a disk", "", disk("type='file'", "file='/usr/share/OVMF/OVMF_CODE.fd'"), "path_not_allowed"},
		{"out of the folder", "", disk("type='file'", "file='"+images+"../../../../etc/shadow'"), "path_not_clean"},
		{"a path of the working folder", "", disk("type='file'", "file='etc/shadow'"), "path_not_clean"},
		{"a link out of the folder", "", disk("type='file'", "file='"+images+"link'"), "path_not_allowed"},
		{"a link to nowhere", "", disk("type='file'", "file='"+images+"lost'"), "path_unreadable"},
		{"a backing file", "", "<disk type='file'><source file='" + images + "i.qcow2'/><backingStore type='file'><source file='/etc/shadow'/></backingStore><target dev='vda'/></disk>", "path_not_allowed"},
		{"a mirror", "", "<disk type='file'><source file='" + images + "i.qcow2'/><mirror type='file'><source file='/etc/x'/></mirror><target dev='vda'/></disk>", "path_not_allowed"},
		{"another instance's disk", "", disk("type='file'", "file='"+images+"other.qcow2'"), "used_by_other"},
		{"another instance's disk, read", "", disk("type='file' device='cdrom'", "file='"+images+"other.qcow2'"), "used_by_other"},
		{"another instance's media", "", disk("type='file' device='cdrom'", "file='"+images+"cd.iso'"), ""},
		{"a file of a migration", "", disk("type='file'", "file='"+images+".berth-m-1-vda.kept'"), "file_of_berth"},
		{"beside another instance's media", "", disk("type='file' device='cdrom'", "file='/srv/isos/mine.iso'"), ""},
		{"beside another instance's media, written", "", disk("type='file'", "file='/srv/isos/mine.iso'"), "path_not_allowed"},
		{"another instance's media, written", "", disk("type='file'", "file='"+images+"cd.iso'"), "used_by_other"},
		{"another instance's disk as a volume", "", disk("type='volume'", "pool='q' volume='other.qcow2'"), "used_by_other"},
		{"another instance's disk as a volume of mounted storage", "", disk("type='volume'", "pool='nfs' volume='other.qcow2'"), "used_by_other"},
		{"a volume of its own", "", disk("type='volume'", "pool='q' volume='mine'"), ""},
		{"another instance's volume", "", disk("type='volume'", "pool='p' volume='v'"), "used_by_other"},
		{"a volume", "", disk("type='volume'", "pool='p' volume='w'"), ""},
		{"another instance's network disk", "", disk("type='network'", "protocol='rbd' name='p/x'"), "used_by_other"},
		{"beside another instance's disk", "", disk("type='file'", "file='/srv/vms/mine.qcow2'"), ""},
		{"below another instance's folder", "", disk("type='file'", "file='/srv/vms/a/mine.qcow2'"), "path_not_allowed"},
		{"beside another instance's block device", "", disk("type='block'", "dev='/dev/vg0/mine'"), ""},
		{"beside another instance's root disk", "", disk("type='file'", "file='/root/secret'"), "path_not_allowed"},
		{"a serial port into a file", "", "<serial type='file'><source path='/etc/cron.d/x'/></serial>", "path_not_allowed"},
		{"a serial port of the host", "", "<serial type='dev'><source path='/dev/ttyS0'/></serial>", "path_not_allowed"},
		{"a log", "", "<serial type='pty'><log file='/root/x'/></serial>", "path_not_allowed"},
		{"another instance's log", "", "<serial type='file'><source path='/var/log/libvirt/qemu/other.log' append='off'/></serial>", "used_by_other"},
		{"a pty that is a file", "", "<serial type='pty'><source path='/dev/pts/1'/><log file='/etc/x'/></serial>", "path_not_allowed"},
		{"a script of an interface", "", "<interface type='ethernet'><script path='/tmp/x'/></interface>", "path_not_allowed"},
		{"a script found by $PATH", "", "<interface type='ethernet'><script path='x'/></interface>", "path_not_clean"},
		{"a kernel", "<os><kernel>/etc/shadow</kernel></os>", "", "path_not_allowed"},
		{"a kernel behind a comment", "<os><kernel><!-- --></kernel></os>", "", "markup"},
		{"a kernel of elements", "<os><kernel><x>/etc</x><y>/shadow</y></kernel></os>", "", "markup path_not_allowed path_not_allowed"},
		{"an ACPI table", "<os><acpi><table type='slic'>/etc/shadow</table></acpi></os>", "", "path_not_allowed"},
		{"a blob of fw_cfg", "<sysinfo type='fwcfg'><entry name='opt/x' file='/etc/shadow'/></sysinfo>", "", "path_not_allowed"},
		{"SMBIOS", "<sysinfo type='smbios'><oemStrings><entry>/etc/shadow</entry></oemStrings></sysinfo>", "", ""},
		{"a shared folder", "", "<filesystem type='mount'><source dir='/'/><target dir='/root'/></filesystem>", "path_not_allowed used_by_other"},
		{"a shared folder of all images", "", "<filesystem type='mount'><driver type='virtiofs'/><source dir='/var/lib/libvirt/images'/><target dir='x'/></filesystem>", "path_not_allowed used_by_other"},
		{"a shared folder of another instance", "", "<filesystem type='mount'><source dir='/var/lib/nova/instances/" + neighbor + "'/><target dir='x'/></filesystem>", "path_not_allowed"},
		{"a disk that is a folder", "", "<disk type='dir'><source dir='/var/lib/libvirt/images'/><target dev='vda'/><readonly/></disk>", "path_not_allowed used_by_other"},
		{"a program for a shared folder", "", "<filesystem type='mount'><binary path='/tmp/virtiofsd'/><target dir='x'/></filesystem>", "path_not_allowed"},
		{"a serial port at another's monitor", "", "<serial type='unix'><source mode='connect' path='/var/lib/libvirt/qemu/domain-3-other/monitor.sock'/></serial>", "path_not_allowed"},
		{"a serial port in its own private folder", "", "<serial type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/domain-1-i/x.sock'/></serial>", "path_not_allowed"},
		{"a serial port in another's private folder", "", "<serial type='unix'><source mode='bind' path='/var/lib/libvirt/qemu/domain-3-other/monitor.sock'/></serial>", "path_not_allowed"},
		{"a disk in another's private folder", "", disk("type='file'", "file='/var/lib/libvirt/qemu/domain-3-other/master-key.aes'"), "path_not_allowed"},
		{"graphics in another's private folder", "", "<graphics type='vnc'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-3-other/vnc.sock'/></graphics>", "path_not_allowed"},
		{"graphics at its own monitor", "", "<graphics type='vnc'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-1-i/monitor.sock'/></graphics>", "path_not_allowed"},
		{"graphics in libvirt's folder", "", "<graphics type='vnc' socket='/var/lib/libvirt/qemu/vnc.sock'/>", "path_not_allowed"},
		{"SPICE in its own private folder", "", "<graphics type='spice'><listen type='socket' socket='/var/lib/libvirt/qemu/domain-12-i/spice.sock'/></graphics>", ""},
		{"a channel of another's", "", channel("bind", "/var/lib/libvirt/qemu/channel/target/domain-3-other/org.qemu.guest_agent.0"), "path_not_allowed"},
		{"a channel of another's, in /run", "", channel("bind", "/run/libvirt/qemu/channel/3-other/org.qemu.guest_agent.0"), "path_not_allowed"},
		{"a channel that connects", "", channel("connect", "/run/libvirt/qemu/channel/3-i/org.qemu.guest_agent.0"), "path_not_allowed"},
		{"a channel of another name", "", channel("bind", "/run/libvirt/qemu/channel/3-i/x"), "path_not_allowed"},
		{"a channel in /run", "", channel("bind", "/run/libvirt/qemu/channel/3-i/org.qemu.guest_agent.0"), ""},
		{"a channel of an old libvirt", "", channel("bind", "/var/lib/libvirt/qemu/channel/target/i.org.qemu.guest_agent.0"), ""},
		{"a channel without a name", "", "<channel type='unix'><source mode='bind' path='/run/libvirt/qemu/channel/3-i/unknown.sock'/><target type='virtio'/></channel>", ""},
		{"a channel of Nova's", "", channel("bind", "/var/lib/libvirt/qemu/org.qemu.guest_agent.0.i.sock"), ""},
		{"a channel of Nova's for another", "", channel("bind", "/var/lib/libvirt/qemu/org.qemu.guest_agent.0.other.sock"), "path_not_allowed"},
		{"a port of Open vSwitch", "", "<interface type='vhostuser'><source type='unix' path='/run/openvswitch/vhu0' mode='server'/></interface>", ""},
		{"a port of Open vSwitch by its old folder", "", "<interface type='vhostuser'><source type='unix' path='/var/run/openvswitch/vhu0' mode='server'/></interface>", ""},
		{"an error record", "", "<pstore backend='acpi-erst'><path>/var/lib/libvirt/qemu/nvram/i_PSTORE.raw</path></pstore>", ""},
		{"another's error record", "", "<pstore backend='acpi-erst'><path>/var/lib/libvirt/qemu/nvram/other_PSTORE.raw</path></pstore>", "path_not_allowed"},
		{"the file of another instance's volume", "", disk("type='file'", "file='"+images+"v.img'"), "used_by_other"},
		{"a server's only disk, of another server", "", nbd("10.0.0.2"), ""},
		{"a server's only disk, which another instance has", "", nbd("10.0.0.1"), "used_by_other"},
		{"what another instance's network disk is reached by", "", strings.Replace(ceph, "p/mine", "p/theirs", 1), "path_not_allowed"},
		{"the boot firmware of another instance", "<os><loader type='rom'>/opt/fw/bios.bin</loader></os>", "", "path_not_allowed"},
		{"Open vSwitch's database", "", "<interface type='vhostuser'><source type='unix' path='/run/openvswitch/db.sock' mode='client'/></interface>", "path_not_allowed"},
		{"Open vSwitch as a serial port", "", "<serial type='unix'><source mode='connect' path='/run/openvswitch/vhu0'/></serial>", "path_not_allowed"},
		{"a log of libvirt's as a disk", "", disk("type='file'", "file='/var/log/libvirt/libvirtd.log'"), "path_not_allowed"},
		{"a console's log", "", "<serial type='pty'><log file='/var/log/libvirt/qemu/i-serial0.log' append='off'/></serial><serial type='file'><source path='/var/log/libvirt/i.console'/></serial>", ""},
		{"a TPM's state", "", "<tpm><backend type='emulator'><source type='dir' path='/var/lib/nova/instances/x'/></backend></tpm>", "path_not_allowed"},
		{"a TPM", "", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'><active_pcr_banks><sha256/></active_pcr_banks></backend></tpm>", ""},
		{"shared memory of the host", "", "<shmem name='x' role='master'><model type='ivshmem-plain'/></shmem>", "path_not_allowed"},
		{"another's firmware variables as a disk", "", disk("type='file'", "file='/var/lib/libvirt/qemu/nvram/gone_VARS.fd'"), "path_not_allowed"},
		{"a shared folder by its server", "", "<filesystem type='mount'><driver type='virtiofs'/><source socket='/srv/disks/fs.sock'/><target dir='x'/></filesystem>", "path_not_allowed"},
		{"a folder below a disk", "", "<disk type='file'><source file='" + images + "i.qcow2'/><backingStore type='dir'><format type='fat'/><source dir='/srv/disks/x'/></backingStore><target dev='vda'/></disk>", "path_not_allowed"},
		{"a folder of images as a file", "", disk("type='file'", "file='/var/lib/libvirt/images'"), "folder_not_allowed"},
		{"this host's folder as a device", "", disk("type='block'", "dev='/srv/disks'"), "folder_not_allowed"},
		{"a GPU", "", "<graphics type='spice'><gl rendernode='/dev/dri/renderD128'/></graphics>", "path_not_allowed"},
		{"a TPM of the host", "", "<tpm><backend type='passthrough'><device path='/dev/tpm0'/></backend></tpm>", "path_not_allowed"},
		{"persistent memory", "", "<memory model='nvdimm'><source><path>/dev/pmem0</path></source></memory>", "path_not_allowed"},
		{"an input device", "", "<input type='evdev'><source dev='/dev/input/event0'/></input>", "path_not_allowed"},
		{"a device of its claim", "", hostdev("0x3b"), ""},
		{"a device of nobody's", "", hostdev("0x3c"), "device_not_claimed"},
		{"an interface of a device", "", "<interface type='hostdev'><source><address type='pci' bus='0x3c' slot='0' function='1'/></source></interface>", "device_not_claimed"},
		{"a USB device", "", "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>", "device_not_claimed"},
		{"an NVMe drive", "", "<disk type='nvme'><source type='pci' namespace='1'><address bus='0x1'/></source><target dev='vda'/></disk>", "device_not_claimed"},
		{"arguments", "<qemu:commandline><qemu:arg value='-drive'/></qemu:commandline>", "", "qemu_arguments"},
		{"overrides", "<qemu:override><qemu:device/></qemu:override>", "", "qemu_arguments"},
		{"capabilities", "<qemu:capabilities><qemu:del capability='x'/></qemu:capabilities>", "", "qemu_arguments"},
		{"QEMU as root", "<seclabel type='static' model='dac'><label>+0:+0</label></seclabel>", "", "label_not_allowed"},
		{"QEMU as libvirt has it", "<seclabel type='static' model='dac'><label>+64055:+64055</label></seclabel>", "", ""},
		{"QEMU unconfined", "<seclabel type='none' model='apparmor'/>", "", "label_not_allowed"},
		{"a base label", "<seclabel type='dynamic' model='selinux'><baselabel>x_t</baselabel></seclabel>", "", "label_not_allowed"},
		{"a disk's label", "", "<disk type='file'><source file='" + images + "i'><seclabel model='dac'><label>+0:+0</label></seclabel></source><target dev='vda'/></disk>", "label_not_allowed"},
		{"a disk that keeps its label", "", "<disk type='file'><source file='" + images + "i'><seclabel model='dac' relabel='no'/></source><target dev='vda'/></disk>", ""},
		{"vCPUs by a list", "<vcpus><vcpu id='0' enabled='yes'/><vcpu id='1' enabled='yes'/></vcpus>", "", "vcpus_beyond_claim"},
		{"memory by cells", "<cpu><numa><cell id='0' memory='1' unit='GiB'/></numa></cpu>", "", "memory_beyond_claim"},
		{"a memory device", "", "<memory model='dimm'><target><size unit='MiB'>129</size></target></memory>", "memory_beyond_claim"},
		{"cells without an amount", "<cpu><numa><cell id='0' memory='x'/></numa></cpu>", "", "memory_unreadable"},
		{"a CDATA section", "<os><kernel><![CDATA[/etc/shadow]]></kernel></os>", "", "markup path_not_allowed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			others := []Other{{Name: "other", XML: domain(neighbor, "", strings.ReplaceAll(disk("type='file'", "file='"+images+"other.qcow2'")+
				disk("type='file' device='cdrom'", "file='"+images+"cd.iso'")+disk("type='volume'", "pool='p' volume='v'")+disk("type='network'", "protocol='rbd' name='p/x'")+
				disk("type='file' device='cdrom'", "file='/srv/isos/x.iso'")+disk("type='file'", "file='/srv/vms/x.qcow2'")+disk("type='block'", "dev='/dev/vg0/x'")+disk("type='file'", "file='/root/x.qcow2'")+nbd("10.0.0.1")+ceph, "vda", "vd"))}}
			others[0].XML = strings.Replace(others[0].XML, "<vcpu>", "<os><loader type='rom'>/opt/fw/bios.bin</loader></os><vcpu>", 1)
			for i := range 10 {
				others[0].XML = strings.Replace(others[0].XML, "dev='vd'", fmt.Sprintf("dev='vd%c'", 'a'+i), 1)
			}
			text := domain(instance, tt.more, tt.devices)
			if got := strings.Join(codes(t, policy(), held, text, others...), " "); got != tt.want {
				t.Errorf("reasons %q, want %q", got, tt.want)
			}
		})
	}
}

// libvirt names an instance's folders by the first letters of its name.
func TestCheck_FoldersOfALongName(t *testing.T) {
	text := strings.Replace(domain(instance, "", channel("bind", "/run/libvirt/qemu/channel/3-an-instance-with-a-l/org.qemu.guest_agent.0")), "<name>i<", "<name>an-instance-with-a-long-name<", 1)
	for is, want := range map[string]string{"an-instance-with-a-l/": "", "an-instance-with-a-long-name/": "path_not_allowed", "an-instance/": "path_not_allowed", "/": "path_not_allowed"} {
		if got := strings.Join(codes(t, policy(), Claimed{AnyAmount: true}, strings.Replace(text, "an-instance-with-a-l/", is, 1)), " "); got != want {
			t.Errorf("%s: reasons %q, want %q", is, got, want)
		}
	}
}

// What libvirt and Nova have written for real instances names nothing but disks, media and devices
// outside of what is allowed.
func TestCheck_RecordedDomains(t *testing.T) {
	files, err := filepath.Glob("../../../driver/libvirt/domainxml/testdata/adopt/*.xml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := domainxml.Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, r := range Check(doc, policy(), Claimed{AnyAmount: true, AnyDevice: true}, nil) {
			for _, what := range []string{" channel ", " graphics ", "firmware variables", " interface ", " tpm "} {
				// KubeVirt has folders of its own, and devices of the host are told by name.
				if strings.Contains(r.Message, what) && !strings.HasPrefix(r.Have, "/dev/") && !strings.Contains(file, "kubevirt") {
					t.Errorf("%s: %+v", file, r)
				}
			}
		}
	}
}

func TestCheck_WhatTheRefusalPrintsAllowsIt(t *testing.T) {
	p := policy()
	p.Allowed.Paths = []string{"/data"}
	text := domain(instance, "<qemu:commandline/><seclabel type='none' model='dac'/>", disk("type='file'", "file='/srv/vms/1/a.qcow2'")+"<serial type='dev'><source path='/dev/ttyS0'/></serial>"+
		"</devices><devices><emulator>/opt/qemu</emulator>")
	doc, err := domainxml.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, r := range Check(doc, p, Claimed{AnyAmount: true, AnyDevice: true}, nil) {
		said = append(said, r.Change)
	}
	for _, line := range []string{
		`allowed_paths = ["/data", "/dev/ttyS0", "/srv/vms/1"]`, `allowed_emulators = ["/opt/qemu"]`, `allowed_labels = ["dac:none"]`, "allow_qemu_arguments = true",
	} {
		if !strings.Contains(strings.Join(said, "\n"), line) {
			t.Errorf("no reason says %s:\n%s", line, strings.Join(said, "\n"))
		}
	}
	p.Allowed = Allowed{Paths: []string{"/data", "/dev/ttyS0", "/srv/vms/1"}, Emulators: []string{"/opt/qemu"}, Labels: []string{"dac:none"}, Arguments: true}
	if got := codes(t, p, Claimed{AnyAmount: true, AnyDevice: true}, text); len(got) > 0 {
		t.Errorf("still refused: %v", got)
	}
}

func TestCheck_SharedDisksOfBoth(t *testing.T) {
	shared := "<disk type='file'><source file='" + images + "s'/><target dev='vda'/><shareable/></disk>"
	any := Claimed{AnyAmount: true, AnyDevice: true}
	if got := codes(t, policy(), any, domain(instance, "", shared), Other{Name: "other", XML: domain(neighbor, "", shared)}); len(got) > 0 {
		t.Errorf("%v", got)
	}
	own := strings.Replace(shared, "<shareable/>", "", 1)
	if got := codes(t, policy(), any, domain(instance, "", shared), Other{Name: "other", XML: domain(neighbor, "", own)}); strings.Join(got, " ") != "used_by_other" {
		t.Errorf("%v", got)
	}
	if got := codes(t, policy(), any, domain(instance, "", shared), Other{Name: "other", XML: "<domain/>"}); strings.Join(got, " ") != "definition_unreadable" {
		t.Errorf("%v", got)
	}
}

// A reader that goes by local names alone takes a shadow for the element itself, and libvirt reads
// the one behind it. Attributes likewise, the other way round too.
func TestCheck_NamespacesOutsideMetadata(t *testing.T) {
	const x = " xmlns:x='urn:x'"
	held := Claimed{Resources: topology.Resources{VCPUs: 1, MemoryMB: 128}}
	plain := domain(instance, "", disk("type='file'", "file='"+images+"i.qcow2'"))
	for _, tt := range []struct{ name, was, is, want string }{
		{"vCPUs", "<vcpu>1<", "<x:vcpu" + x + ">1</x:vcpu><vcpu>64<", "foreign_namespace"},
		{"vCPUs of a default namespace", "<vcpu>1<", "<vcpu xmlns='urn:x'>1</vcpu><vcpu>64<", "foreign_namespace"},
		{"vCPUs of no declared namespace", "<vcpu>1<", "<x:vcpu>1</x:vcpu><vcpu>64<", "foreign_namespace"},
		{"vCPUs of QEMU's namespace", "<vcpu>1<", "<qemu:vcpu>1</qemu:vcpu><vcpu>64<", "foreign_namespace qemu_arguments"},
		{"memory", "<memory ", "<x:memory" + x + " unit='MiB'>1</x:memory><memory ", "foreign_namespace"},
		{"a unit", "<memory unit='MiB'>", "<memory" + x + " x:unit='MiB' unit='MiB'>", "foreign_namespace"},
		{"uuid", "<uuid>", "<x:uuid" + x + ">" + instance + "</x:uuid><uuid>", "foreign_namespace"},
		{"name", "<name>", "<x:name" + x + ">i</x:name><name>", "foreign_namespace"},
		{"a source", "<source ", "<x:source" + x + " file='/etc/shadow'/><source ", "foreign_namespace"},
		{"a file", "<source file=", "<source" + x + " x:file='/etc/shadow' file=", "foreign_namespace"},
		{"in a CPU", "<devices>", "<cpu><x:numa" + x + "/></cpu><devices>", "foreign_namespace"},
		{"metadata's own", "<devices>", "<metadata><x:vcpu" + x + " x:a='b'>1</x:vcpu><y xmlns='urn:y'/></metadata><devices>", ""},
		{"metadata of another namespace", "<devices>", "<x:metadata" + x + "><vcpu/></x:metadata><devices>", "foreign_namespace"},
		{"metadata elsewhere", "<vcpu>", "<os><metadata><x:vcpu" + x + "/></metadata></os><vcpu>", "foreign_namespace"},
		{"a declaration alone", "<devices>", "<devices" + x + ">", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(plain, tt.was, tt.is, 1)
			if !strings.Contains(text, tt.is) {
				t.Fatalf("the domain XML has no %s", tt.was)
			}
			if got := strings.Join(codes(t, policy(), held, text), " "); got != tt.want {
				t.Errorf("reasons %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzCheck holds that whatever is admitted names no path outside, however it is written.
func FuzzCheck(f *testing.F) {
	for _, devices := range []string{disk("type='file'", "file='"+images+"i.qcow2'"), disk("type='block'", "dev='/dev/sda'"), "<serial type='file'><source path='/etc/x'/></serial>"} {
		f.Add("<os><kernel>/etc/shadow</kernel></os>", devices)
	}
	f.Fuzz(func(t *testing.T, more, devices string) {
		doc, err := domainxml.Parse(domain(instance, more, devices))
		if err != nil {
			return
		}
		if len(Check(doc, policy(), Claimed{AnyAmount: true, AnyDevice: true}, nil)) > 0 {
			return
		}
		for _, n := range doc.HostNames() {
			if n.Kind == domainxml.NamedPath && (strings.Contains(n.Value, "..") && strings.Contains(n.Value, "/../") || strings.HasPrefix(n.Value, "/etc") || strings.HasPrefix(n.Value, "/dev/sd")) {
				t.Errorf("%+v is admitted", n)
			}
		}
	})
}

// TestCheck_AFolderOfOthers: a folder that the operator allows is still not shown with the disks of
// other instances in it.
func TestCheck_AFolderOfOthers(t *testing.T) {
	p := policy()
	p.Allowed.Paths = []string{"/srv/share"}
	share := domain(instance, "", "<filesystem type='mount'><source dir='/srv/share/a'/><target dir='x'/></filesystem>")
	other := func(path string) Other {
		return Other{Name: "o", XML: domain(neighbor, "", disk("type='file'", "file='"+path+"'"))}
	}
	for path, want := range map[string]string{"/srv/share/b/o.raw": "", "/srv/share/a/o.raw": "used_by_other"} {
		if got := codes(t, p, Claimed{AnyAmount: true}, share, other(path)); strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %q", path, got, want)
		}
	}
}
