package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt"
	"berth/test/lab"
	"berth/test/matrix"
)

// nodeFile is a machine for libvirt's test driver, which makes everything up: a
// node of two cells, a domain, and a network card with two virtual functions in
// cell 1. The system device is needed, else the driver has no host uuid and takes
// no file with devices. Kernel drivers it would not show.
const nodeFile = `<node>
  <cpu><mhz>2500</mhz><model>Skylake</model><active>16</active><nodes>2</nodes><sockets>1</sockets><cores>4</cores><threads>2</threads></cpu>
  <memory>67108864</memory>
  <domain type='test'><name>made-up</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid><memory unit='MiB'>1024</memory><vcpu>2</vcpu><os><type>hvm</type></os></domain>
  <network><name>default</name><bridge name='virbr0'/></network>
  <pool type='dir'><name>default-pool</name><target><path>/default-pool</path></target>
    <volume><name>vol</name><capacity unit='MiB'>1</capacity><target><path>/default-pool/vol</path></target></volume></pool>
  <device><name>computer</name><capability type='system'>
    <hardware><vendor>Berth</vendor><version>1</version><serial>1</serial><uuid>11111111-2222-4333-8444-000000000001</uuid></hardware>
    <firmware><vendor>Berth</vendor><version>1</version></firmware></capability></device>
  <device><name>pci_0000_3b_00_0</name><parent>computer</parent><capability type='pci'>
    <domain>0</domain><bus>59</bus><slot>0</slot><function>0</function><product id='0x1017'>MT27800</product><vendor id='0x15b3'>Mellanox</vendor>
    <capability type='virt_functions' maxCount='2'><address domain='0x0000' bus='0x3b' slot='0x00' function='0x2'/><address domain='0x0000' bus='0x3b' slot='0x00' function='0x3'/></capability>
    <iommuGroup number='12'><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></iommuGroup><numa node='1'/></capability></device>
  <device><name>pci_0000_3b_00_2</name><parent>pci_0000_3b_00_0</parent><capability type='pci'>
    <domain>0</domain><bus>59</bus><slot>0</slot><function>2</function><product id='0x1018'>VF</product><vendor id='0x15b3'>Mellanox</vendor>
    <capability type='phys_function'><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></capability><numa node='1'/></capability></device>
  <device><name>pci_0000_3b_00_3</name><parent>pci_0000_3b_00_0</parent><capability type='pci'>
    <domain>0</domain><bus>59</bus><slot>0</slot><function>3</function><product id='0x1018'>VF</product><vendor id='0x15b3'>Mellanox</vendor>
    <capability type='phys_function'><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></capability><numa node='1'/></capability></device>
</node>
`

// writeNodeFile puts it where every process of the machine can read it, lab hosts
// included, and gives its URI.
func writeNodeFile(t *testing.T) (uri string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.xml")
	if err := os.WriteFile(path, []byte(nodeFile), 0o644); err != nil {
		t.Fatal(err)
	}
	return "test://" + path
}

// plugged is a device that the test driver lets be made and taken away: a virtual
// port of the one host adapter that its default machine has.
const plugged = `<device><parent>scsi_host1</parent><capability type='scsi_host'><capability type='fc_host'>
  <wwnn>2000000012341234</wwnn><wwpn>1000000012341234</wwpn></capability></capability></device>`

// onTestDriver is the harness of libvirt's test driver, through whatever binding
// o has, without what reaches its daemon by other ways.
func onTestDriver(o libvirt.Options) drivertest.Harness {
	cannot := map[string]string{
		"Start_PausedDoesNotRun":                          "the test driver refuses VIR_DOMAIN_START_PAUSED",
		"Node_HasAHostUUIDThatStays":                      "the test driver's capabilities have no host uuid",
		"Node_ListsMachines":                              "the test driver has no machine types",
		"Connections_SecretsAreFound":                     "the test driver has no secrets",
		"Connections_VolumesShowWhenTheirPoolIsReadAgain": "the test driver's volumes are in its memory",
	}
	for a, why := range map[driver.Ability]string{
		driver.AbilityLiveMigration: "the test driver has no peer-to-peer migration and no jobs, and compares no CPUs",
		driver.AbilityStorageCopy:   "the test driver has no migration",
		driver.AbilityPostCopy:      "the test driver has no migration",
		driver.AbilityRecovery:      "the test driver has no migration",
		driver.AbilityGuestAgent:    "the test driver runs no guests that an agent could be in",
		driver.AbilityStatistics:    "the test driver runs no guests whose use could be counted",
	} {
		for _, name := range drivertest.OfAbility(a) {
			cannot[name] = why
		}
	}
	return drivertest.Harness{
		New: func(testing.TB) driver.Driver { return libvirt.New(o) },
		DomainXML: func(name, uuid string) string {
			return fmt.Sprintf("<domain type='test'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>", name, uuid)
		},
		Cannot: cannot,
		Wired:  func(testing.TB) drivertest.Wiring { return wiredInMemory() },
		SavedXML: func(_ testing.TB, name, uuid string) string {
			return fmt.Sprintf("<domain type='test'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type>hvm</type></os>"+
				"<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/none.qcow2'/><target dev='vda'/></disk></devices></domain>", name, uuid)
		},
	}
}

// onNodeFile is onTestDriver for a node file, of which every connection gets a
// machine of its own: what needs two connections that see the same is impossible.
func onNodeFile(o libvirt.Options) drivertest.Harness {
	h := onTestDriver(o)
	impossible(h.Cannot, "every connection to a node file has a machine of its own, also the one for events",
		"Events_Tell", "Events_ASlow", "Saved_Memory", "Saved_Snapshots", "Saved_Checkpoints", "Devices_ComeAndGo", "Hang_Costs", "Restart_")
	return h
}

// wantNodeFilesDevices looks at what the file says of PCI.
func wantNodeFilesDevices(t *testing.T, h drivertest.Harness) {
	t.Helper()
	d := h.New(t)
	defer d.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n, err := d.Node(ctx)
	if err != nil {
		t.Fatal(err)
	}
	w, err := driver.Devices(d, n)
	if err != nil {
		t.Fatal(err)
	}
	all, err := w.HostDevices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []driver.HostDevice
	for _, v := range all {
		if v.Kind == "pci" {
			got = append(got, v)
		}
	}
	want := []driver.HostDevice{
		{Name: "pci_0000_3b_00_0", Parent: "computer", Kind: "pci", PCI: "0000:3b:00.0"},
		{Name: "pci_0000_3b_00_2", Parent: "pci_0000_3b_00_0", Kind: "pci", PCI: "0000:3b:00.2"},
		{Name: "pci_0000_3b_00_3", Parent: "pci_0000_3b_00_0", Kind: "pci", PCI: "0000:3b:00.3"},
	}
	less := func(a, b driver.HostDevice) bool { return a.Name < b.Name }
	if d := cmp.Diff(want, got, cmpopts.SortSlices(less)); d != "" {
		t.Errorf("the file's PCI devices (-want +got):\n%s", d)
	}
}

func TestRPC_ConformsOnLibvirtsTestDriver(t *testing.T) {
	host := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	o := options(t, host)
	t.Run("default", func(t *testing.T) {
		o := o
		o.URI = "test:///default"
		h := onTestDriver(o)
		h.Restart = func(t testing.TB) { restart(t, host) }
		h.Hang = func(t testing.TB) func() { return hang(t, host) }
		// Clients of one daemon share its default machine.
		const uri = "test+unix:///default?socket=/run/libvirt/libvirt-sock"
		h.Change = func(t testing.TB, id string) {
			virsh(t, host, "-c", uri, "metadata", id, "http://berth.example/changed", "--key", "changed", "--set", "<yes/>")
		}
		// It is made anew when the last connection to it has ended, without its volume: the
		// property that asks for it has one open by then.
		h.Wired = func(t testing.TB) drivertest.Wiring {
			if _, err := host.Exec(t.Context(), "virsh", "-q", "-c", uri, "vol-info", "--pool", "default-pool", "vol"); err != nil {
				virsh(t, host, "-c", uri, "vol-create-as default-pool vol 1MiB")
			}
			return wiredInMemory()
		}
		on := func(t testing.TB, args ...string) { virsh(t, host, append([]string{"-c", uri}, args...)...) }
		h.Save = func(t testing.TB, id string) { on(t, "managedsave", id) }
		h.Snapshot = func(t testing.TB, id, name string) { on(t, "snapshot-create-as", id, name) }
		h.Checkpoint = func(t testing.TB, id, name string) { on(t, "checkpoint-create-as", id, name) }
		h.Unsnapshot = func(t testing.TB, id, name string) {
			// One of them has it. This driver deletes no metadata alone.
			_, _ = host.Virsh(context.Background(), "-c", uri, "snapshot-delete", id, name)
			_, _ = host.Virsh(context.Background(), "-c", uri, "checkpoint-delete", id, name, "--metadata")
		}
		h.Plug = func(t testing.TB) (string, func()) {
			path := host.Path("/run/device.xml")
			if err := os.WriteFile(path, []byte(plugged), 0o644); err != nil {
				t.Fatal(err)
			}
			virsh(t, host, "-c", uri, "nodedev-create", "/run/device.xml")
			return "scsi_host12", func() { virsh(t, host, "-c", uri, "nodedev-destroy", "scsi_host12") }
		}
		impossible(h.Cannot, "the test driver's domains end with its daemon", "Restart_")
		record(t, matrix.TestRPC, h, o.URI, drivertest.Run(t, h))
	})
	t.Run("node file", func(t *testing.T) {
		o := o
		o.URI = writeNodeFile(t)
		h := onNodeFile(o)
		h.Restart = func(t testing.TB) { restart(t, host) }
		h.Hang = func(t testing.TB) func() { return hang(t, host) }
		wantNodeFilesDevices(t, h)
		record(t, matrix.TestRPC, h, "test:// node file", drivertest.Run(t, h))
	})
}
