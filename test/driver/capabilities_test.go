package driver

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/driver"
	"berth/driver/libvirt"
	"berth/driver/libvirt/rpc"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placement"
	"berth/placementclient"
	"berth/test/lab"
	"berth/topology"
)

func TestRPC_TellsWhatGuestsCanHave(t *testing.T) { tellsWhatGuestsCanHave(t, rpc.Dial) }

// tellsWhatGuestsCanHave reads a real hypervisor through one binding, and asks it
// for CPUs that no emulated guest can have.
func tellsWhatGuestsCanHave(t *testing.T, dial libvirt.Dialer) {
	o := options(t, lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0])
	o.Dial = dial
	d := open(t, o)
	n, err := d.Node(t.Context())
	if err != nil || n.Capabilities == nil {
		t.Fatalf("capabilities %v: %s, %v", n.Capabilities, n.CapabilitiesError, err)
	}
	if n.Arch != "x86_64" {
		t.Skipf("the guests of this test are for x86_64, this host is %s", n.Arch)
	}
	t.Run("capabilities", func(t *testing.T) {
		c := *n.Capabilities
		q35, ok := c.Machine("q35")
		if newest, known := c.Machine(q35.Canonical); !ok || !known || newest.MaxVCPUs < 255 || n.Emulated && c.MaxVCPUs < newest.MaxVCPUs || len(c.Machines) != len(n.Machines) {
			t.Errorf("machine type q35 is %+v, of %d and %d", q35, len(c.Machines), len(n.Machines))
		}
		want := map[string]string{"kvm": "kvm", "qemu": "qemu"}[c.VirtType]
		if want == "" || n.Emulated != (c.VirtType == "qemu") {
			t.Errorf("accelerator %q, emulated %v", c.VirtType, n.Emulated)
		}
		for what, have := range map[string][]string{
			"fpu": c.CPU.Features, "sse2": c.CPU.Features, "bios": c.Firmware, "virtio": c.DiskBuses, "anonymous": c.MemoryBacking, "none": c.Video, "486": c.CPU.Models,
		} {
			if !slices.Contains(have, what) || !slices.IsSorted(have) {
				t.Errorf("no %s in %q, or not sorted", what, have)
			}
		}
		if c.CPU.Model == "" || c.CPU.Vendor == "" || !c.IOThreads {
			t.Errorf("cpu %s of %q, iothreads %v", c.CPU.Model, c.CPU.Vendor, c.IOThreads)
		}
	})
	t.Run("cpu", func(t *testing.T) { namesWhatACPULacks(t, d) })
	t.Run("real cpu", func(t *testing.T) { comparesTheRealCPU(t, d) })
	t.Run("traits", func(t *testing.T) { landInPlacement(t, d, n) })
}

const emulated = "<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>" +
	"<os><type arch='x86_64' machine='%s'>hvm</type></os><features><acpi/></features>%s</domain>"

// namesWhatACPULacks: QEMU without KVM has neither AVX-512 nor PCID, whatever the
// machine has.
func namesWhatACPULacks(t *testing.T, d *libvirt.Driver) {
	// Neither the vendor of this machine's CPU nor the one that QEMU itself plays (AMD, whatever
	// host-model says).
	const other = "Hygon"
	const lacks = "<feature policy='require' name='avx512f'/><feature policy='require' name='pcid'/><feature policy='require' name='sse2'/>"
	for _, tt := range []struct{ name, machine, cpu, want string }{
		{"one that it has", "q35", "<model>qemu64</model>", ""},
		{"features", "q35", "<model>qemu64</model>" + lacks, "cpu_feature_missing avx512f, cpu_feature_missing pcid"},
		{"of a machine type that is not here", "pc-q35-99.0", "<model>qemu64</model>" + lacks, "cpu_feature_missing avx512f, cpu_feature_missing pcid"},
		{"another vendor, and features that libvirt does not come to", "q35", "<model>qemu64</model><vendor>" + other + "</vendor>" + lacks,
			"cpu_feature_missing avx512f, cpu_feature_missing pcid, cpu_vendor_differs " + other},
		{"a feature that is there", "q35", "<model>qemu64</model><feature policy='forbid' name='sse2'/>", "cpu_feature_forbidden no sse2"},
		{"a model of the future", "q35", "<model>Meteor</model>", "cpu_model_unknown Meteor"},
		{"a feature of the future", "q35", "<model>qemu64</model><feature policy='require' name='warp'/>", "cpu_feature_unknown warp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := d.CheckCPU(t.Context(), fmt.Sprintf(emulated, "g", "7f0c5b4e-8b52-4a0a-9d6e-3f4f5a6b7c01", tt.machine, "<cpu mode='custom' match='exact'>"+tt.cpu+"</cpu>"))
			var got []string
			for _, r := range fault.ReasonsOf(err) {
				got = append(got, r.Code+" "+r.Want)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, strings.Join(got, ", ")); diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if err != nil && fault.KindOf(err) != fault.DoesNotFit {
				t.Errorf("kind %s, want %s", fault.KindOf(err), fault.DoesNotFit)
			}
		})
	}
}

// comparesTheRealCPU: a guest that was started with more than its host has runs
// without it, and can run wherever that is there. Its migratable document says
// what it was started with.
func comparesTheRealCPU(t *testing.T, d *libvirt.Driver) {
	const id = "7f0c5b4e-8b52-4a0a-9d6e-3f4f5a6b7c02"
	cpu := "<cpu mode='custom' match='exact' check='none'><model fallback='forbid'>qemu64</model><feature policy='require' name='avx512f'/></cpu>"
	if err := d.Define(t.Context(), fmt.Sprintf(emulated, "wishful", id, "q35", cpu)); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	for _, form := range []struct {
		what driver.Document
		want []string
	}{{driver.Live, nil}, {driver.Migratable, []string{"avx512f"}}} {
		text, err := d.XML(t.Context(), id, form.what)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range fault.ReasonsOf(d.CheckCPU(t.Context(), text)) {
			got = append(got, r.Want)
		}
		if diff := cmp.Diff(form.want, got); diff != "" {
			t.Errorf("document %d on the host that runs it (-want +got):\n%s", form.what, diff)
		}
	}
}

// landInPlacement reports the host that was read.
func landInPlacement(t *testing.T, d *libvirt.Driver, n driver.Node) {
	const provider = "7f0c5b4e-8b52-4a0a-9d6e-3f4f5a6b7c03"
	server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served := httptest.NewServer(server)
	defer served.Close()
	client, err := placementclient.New(placementclient.Config{URL: served.URL, Token: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_, live := driver.LiveMigration(d, n)
	in := inventory.Input{
		Host: &topology.Host{Cells: []topology.Cell{{MemoryBytes: 1 << 30}}, Cores: []topology.CPUSet{{0}}}, Arch: n.Arch, DiskGB: 1,
		Hypervisor: &inventory.Hypervisor{Capabilities: *n.Capabilities, LiveMigration: live == nil},
	}
	r := reporter.New(reporter.Options{
		Placement: client, Runtime: &runtime.System{}, Name: "host-a", UUID: provider, Interval: time.Minute,
		Input: func() (inventory.Input, bool, string) { return in, true, "" },
	})
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	stand, err := client.Traits(t.Context(), provider)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"COMPUTE_FIRMWARE_BIOS", "COMPUTE_MIGRATE_AUTO_CONVERGE", "COMPUTE_STORAGE_BUS_VIRTIO", "COMPUTE_GRAPHICS_MODEL_NONE", "HW_CPU_X86_SSE2", "HW_ARCH_X86_64",
	} {
		if !slices.Contains(stand.Traits, want) {
			t.Errorf("Placement has no %s: %v", want, stand.Traits)
		}
	}
}
