package domainxml

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// fixtures are the documents of testdata/adopt: guests as virt-install, virsh,
// Nova, KubeVirt and people write them.
func fixtures(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "adopt", "*.xml"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for i := range files {
		files[i] = strings.TrimPrefix(files[i], "testdata/")
	}
	return files
}

// here16 is a host of two cells of 16 CPUs, siblings 16 apart, with a card of
// virtual functions and an NVMe drive.
func here16(t testing.TB) *topology.Host {
	h := twoCells(t)
	h.Cells = []topology.Cell{{ID: 0, CPUs: cpus(t, "0-7,16-23")}, {ID: 1, CPUs: cpus(t, "8-15,24-31")}}
	h.PCI, h.Cores = nil, nil
	for c := range 16 {
		h.Cores = append(h.Cores, topology.NewCPUSet(c, c+16))
	}
	card := topology.PCIDevice{Address: pci(t, "0000:3b:00.0"), Vendor: "0x8086", Product: "0x1592", NUMANode: 0, TotalVFs: 8}
	for i := range uint8(8) {
		vf := topology.PCIAddress{Bus: 0x3b, Device: 2, Function: i}
		card.VFs = append(card.VFs, vf)
		h.PCI = append(h.PCI, topology.PCIDevice{Address: vf, Vendor: "0x8086", Product: "0x1889", NUMANode: 0, PhysFn: &card.Address})
	}
	h.PCI = append([]topology.PCIDevice{card}, h.PCI...)
	h.PCI = append(h.PCI, topology.PCIDevice{Address: pci(t, "0000:5e:00.0"), Vendor: "0x144d", Product: "0xa80a", NUMANode: 0})
	return h
}

// read is all that adoption takes from a document.
type read struct {
	Type       string                  `json:"type"`
	Machine    string                  `json:"machine,omitempty"`
	Resources  topology.Resources      `json:"resources"`
	MaxVCPUs   int                     `json:"max_vcpus"`
	Topology   *topology.GuestTopology `json:"topology,omitempty"`
	Assignment topology.Assignment     `json:"assignment"`
	Firmware   Firmware                `json:"firmware"`
	Disks      []Disk                  `json:"disks,omitempty"`
	Interfaces []Interface             `json:"interfaces,omitempty"`
	Remarks    []string                `json:"remarks,omitempty"`
	Kept       []string                `json:"kept,omitempty"`
}

func readAll(t testing.TB, d *Doc) read {
	t.Helper()
	p, err := d.Pinning()
	if err != nil {
		t.Error(err)
	}
	r := read{
		Type: d.Type(), Machine: d.Machine(), Resources: d.Resources(), MaxVCPUs: p.MaxVCPUs,
		Firmware: d.Firmware(), Disks: d.Disks(), Interfaces: d.Interfaces(),
	}
	r.Topology, r.Assignment, r.Remarks = d.Assignment(here16(t), cpus(t, "0-1,16-17"))
	for _, k := range d.Kept() {
		r.Kept = append(r.Kept, k.String())
	}
	return r
}

// What is read of each guest stands beside its document.
func TestAdopt_ReadsEachDocument(t *testing.T) {
	for _, name := range fixtures(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			got, err := json.MarshalIndent(readAll(t, parsed(t, fixture(t, name))), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(name, ".xml")+".json", strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(string(got))+"\n")
		})
	}
}

// Every kind of thing that Berth knows it cannot represent is in some document of
// the fixtures, and is named there with what the element says of itself.
func TestKept_NamesEachThing(t *testing.T) {
	var all []string
	for _, name := range fixtures(t) {
		for _, k := range parsed(t, fixture(t, name)).Kept() {
			if k.Element == "" || k.What == "" || k.Why == "" || k.Stays != (k.Change != "") {
				t.Errorf("%s: %+v", name, k)
			}
			all = append(all, k.Element+": "+k.What)
		}
	}
	for _, want := range []string{
		"domain: domain of type \"lxc\"", "domain: domain of type \"xen\"", "launchSecurity: memory encryption (sev)", "blkiotune/device: limit on host device /dev/sda",
		"cpu/feature: CPU feature invtsc without a frequency", "qemu:commandline: command line given to QEMU (qemu:commandline) with a host device",
		"qemu:override: override of QEMU's properties (qemu:override)", "qemu:capabilities: override of QEMU's properties (qemu:capabilities)",
		"devices/filesystem: shared folder ccache (virtiofs)", "devices/filesystem: shared folder src (9p)", "devices/tpm: TPM of type emulator",
		"devices/tpm: TPM of type passthrough on host device /dev/tpm0", "devices/redirdev: redirected USB device (spicevmc)", "devices/smartcard: smart card of mode host",
		"devices/shmem: shared memory looking-glass", "devices/shmem: shared memory shared-by-master", "devices/serial: serial port on host device /dev/ttyS0",
		"devices/parallel: parallel port on host device /dev/parport0", "devices/input: input from host device /dev/input/event1234",
		"devices/input: input from host device /dev/input/event1", "devices/video: 3D acceleration of its video device", "devices/graphics: graphics on host device /dev/dri/renderD128",
		"devices/vsock: vsock address 42", "devices/lease: lease somekey", "devices/crypto: crypto device (builtin)",
		"devices/memory: memory device of model nvdimm on /dev/dax0.0", "devices/memory: memory device of model virtio-pmem on /var/lib/libvirt/images/sap.pmem",
		"devices/disk: disk vdd (volume default/ceph-guest-data.qcow2)", "devices/disk: disk vdb (the host's own NVMe device)",
		"devices/disk: disk vde (type vhostuser at /run/spdk/vhost-blk.sock)", "devices/disk: disk fda (folder /srv/floppy)", "devices/disk: disk vdc (transient)",
		"devices/disk/secret: disk sda with libvirt's secret c1f11a6d-8c5d-4a3e-ac7a-4e171c5e0d4a", "devices/disk/secret: disk vda with libvirt's secret 457eb676-33da-42ec-9a8c-9293d545c337",
		"devices/interface: interface 52:54:00:6b:05:01 of network passthrough-vfs", "devices/interface: interface 52:54:00:6b:24:01 of vDPA device /dev/vhost-vdpa-0",
		"devices/interface: interface 52:54:00:6b:24:02 that has enp59s0f0v3 to itself", "devices/interface: interface 52:54:00:6b:08:01 at socket /run/openvswitch/vhu0",
		"devices/hostdev: usb host device 046d:c52b", "devices/hostdev: usb host device 0529:0001, bus 1 device 3", "devices/hostdev: scsi host device scsi_host6 0:0:0",
		"devices/hostdev: scsi host device iqn.2014-08.com.example:iscsi-nopool/1", "devices/hostdev: scsi_host host device naa.5001405df3e54061",
		"devices/hostdev: host device of mode capabilities (misc)",
	} {
		if !slices.Contains(all, want) {
			t.Errorf("not named: %s", want)
		}
	}
	if t.Failed() {
		t.Logf("named:\n%s", strings.Join(all, "\n"))
	}
}

// An ordinary guest has nothing that would have to be named.
func TestKept_AnOrdinaryGuestHasNone(t *testing.T) {
	for _, name := range []string{"adopt/virt-install-q35-secureboot.xml", "adopt/nova-flavor-metadata.xml", "adopt/aarch64-virt-aavmf.xml", "adopt/minimal-by-hand.xml", "rich-moved.xml"} {
		if got := parsed(t, fixture(t, name)).Kept(); len(got) > 0 && name != "rich-moved.xml" {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, s := range placedSpecs(t) {
		text, err := Build(s)
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed(t, text).Kept(); len(got) > 0 {
			t.Errorf("what Berth builds: %v", got)
		}
	}
}

// Odd things of a guest: each is named, and whether it stays.
func TestKept_NamesWhatIsOfThisHost(t *testing.T) {
	const invtsc, tsc = "<feature name='invtsc'/>", "<clock><timer name='tsc' frequency='2500000000'/></clock>"
	device := func(s string) string { return "<devices>" + s + "</devices>" }
	for in, want := range map[string]string{
		"<cpu mode='host-passthrough' migratable='off'/>" + tsc:                     "S CPU of mode host-passthrough that is not migratable",
		"<cpu mode='host-passthrough'>" + invtsc + "</cpu>":                         "S CPU feature invtsc without a frequency",
		"<cpu mode='host-model'><feature policy='force' name='invtsc'/></cpu>":      "S CPU feature invtsc without a frequency",
		"<cpu mode='host-passthrough'>" + invtsc + "</cpu>" + tsc:                   "",
		"<cpu>" + invtsc + "</cpu><clock><timer name='tsc' mode='native'/></clock>": "S CPU feature invtsc without a frequency",
		"<resource><partition>/prod</partition></resource>":                         "control group /prod",
		"<resource><partition>/machine</partition></resource>":                      "",
		device("<disk type='file'><source file='/d'/><backingStore type='file'><source file='/e'/><backingStore type='volume'><source pool='p' volume='v'/></backingStore></backingStore><target dev='vda'/></disk>"): "S disk vda (stands on volume p/v)",
		device("<redirdev type='spicevmc'/>"):                                                                              "redirected USB device (spicevmc)",
		device("<redirdev type='tcp'/>"):                                                                                   "S redirected USB device (tcp)",
		device("<console type='dev'><source path='/dev/ttyS1'/></console>"):                                                "S console on host device /dev/ttyS1",
		device("<console type='dev'><source path='/a'/><target type='serial'/></console>"):                                 "",
		device("<channel type='pipe'><source path='/p'/><target name='n'/></channel>"):                                     "channel n at pipe /p",
		device("<serial type='unix'><source mode='connect' path='/s'/></serial>"):                                          "serial port at unix /s",
		device("<serial type='unix'><source mode='bind' path='/s'/></serial>"):                                             "",
		device("<rng><backend model='egd' type='unix'><source mode='connect' path='/e'/></backend></rng>"):                 "random numbers at unix /e",
		device("<rng><backend model='random'>/dev/urandom</backend></rng>"):                                                "",
		device("<audio type='alsa'/>"):                                                                                     "sound played by alsa",
		device("<audio type='spice'/>"):                                                                                    "",
		device("<video><driver name='vhostuser'/></video>"):                                                                "S video device of type vhostuser",
		device("<interface type='ethernet'><mac address='AA:00:00:00:00:01'/><target dev='t0' managed='no'/></interface>"): "interface aa:00:00:00:00:01 on tap t0",
		device("<interface type='network'><source network='n' bridge='b'/></interface>"):                                   "",
		device("<interface type='network'><source network='n'/><target dev='vnet0'/></interface>"):                         "",
		device("<disk type='network'><source><host transport='unix' socket='/n'/></source><target dev='vda'/></disk>"):     "S disk vda (served at /n)",
		device("<disk type='network'><source><host name='h'/></source><target dev='vda'/></disk>"):                         "",
		device("<disk><source><auth><secret uuid='u'/></auth></source><backingStore><source><auth><secret uuid='u'/></auth></source></backingStore>" +
			"<target dev='vda'/></disk>"): "disk vda with libvirt's secret u",
	} {
		d := parsed(t, "<domain type='kvm'><name>a</name><uuid>8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11</uuid><memory unit='MiB'>64</memory>"+in+"</domain>")
		var got []string
		for _, k := range d.Kept() {
			if k.Stays {
				k.What = "S " + k.What
			}
			got = append(got, k.What)
		}
		if s := strings.Join(got, "; "); s != want {
			t.Errorf("%s: %q, want %q", in, s, want)
		}
	}
}

// What a newer libvirt has is named too.
func TestKept_NamesWhatItDoesNotKnow(t *testing.T) {
	d := parsed(t, strings.Replace(fixture(t, "adopt/minimal-by-hand.xml"), "<os>",
		"<novelty/><x:thing xmlns:x='urn:x'/><cputune><cachetune vcpus='0'/></cputune><cpu mode='host-passthrough' migratable='off'/><devices><gadget/></devices><os>", 1))
	var got []string
	for _, k := range d.Kept() {
		got = append(got, k.Element)
	}
	if diff := cmp.Diff([]string{"cputune/cachetune", "cpu", "devices/gadget", "novelty", "x:thing"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
