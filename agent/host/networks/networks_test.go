package networks_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/agent/host/networks"
	"berth/driver"
	"berth/internal/fault"
)

const guest = "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11"

const document = `<domain><devices>
<interface type='network'><mac address='52:54:00:00:00:01'/><source network='blue' portgroup='web' bridge='virbr1'/></interface>
<interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br0'/></interface>
<interface type='bridge'><mac address='52:54:00:00:00:03'/><source bridge='br-int'/>
  <virtualport type='openvswitch'><parameters interfaceid='0a1b'/></virtualport></interface>
<interface type='direct'><mac address='52:54:00:00:00:04'/><source dev='eth0' mode='bridge'/></interface>
<interface type='user'/>
</devices></domain>`

func TestOf_ReadsInterfaces(t *testing.T) {
	got, err := networks.Of(document)
	if err != nil {
		t.Fatal(err)
	}
	want := []networks.NIC{
		{Type: "network", MAC: "52:54:00:00:00:01", Network: "blue", PortGroup: "web", Bridge: "virbr1"},
		{Type: "bridge", MAC: "52:54:00:00:00:02", Bridge: "br0"},
		{Type: "bridge", MAC: "52:54:00:00:00:03", Bridge: "br-int", VirtualPort: "openvswitch", InterfaceID: "0a1b"},
		{Type: "direct", MAC: "52:54:00:00:00:04", Device: "eth0"},
		{Type: "user"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	if _, err := networks.Of("<domain>"); !errors.Is(err, fault.Invalid) {
		t.Errorf("half a document: %v, want invalid", err)
	}
}

// lookup is libvirt's networks by name.
type lookup map[string]driver.Network

func (l lookup) Network(_ context.Context, name string) (driver.Network, error) {
	n, ok := l[name]
	if !ok {
		return n, fault.New(fault.NotFound, "network %s", name)
	}
	return n, nil
}

// links are drivers by device.
type links map[string]string

func (l links) Driver(name string) (string, error) {
	d, ok := l[name]
	if !ok {
		return "", fault.New(fault.NotFound, "device %s", name)
	}
	return d, nil
}

func TestCheck_GivesTheReasonOfEachKind(t *testing.T) {
	all := networks.All(
		lookup{"up": {Active: true, PortGroups: []string{"web"}}, "down": {}},
		links{"br0": "bridge", "br-int": "openvswitch", "eth0": "e1000e", "odd": ""},
		recording(map[string]string{"br-exists br-int": "", "br-exists br-ext": "exit 2", "br-exists br-err": "exit 1"}).OpenVSwitch,
	)
	for _, tt := range []struct {
		name string
		nic  networks.NIC
		want string // code; empty for none
	}{
		{"an active network", networks.NIC{Type: "network", Network: "up"}, ""},
		{"its port group", networks.NIC{Type: "network", Network: "up", PortGroup: "web"}, ""},
		{"a port group that it has not", networks.NIC{Type: "network", Network: "up", PortGroup: "db"}, "portgroup_missing"},
		{"a network that is down", networks.NIC{Type: "network", Network: "down"}, "network_inactive"},
		{"a network that is not there", networks.NIC{Type: "network", Network: "none"}, "network_missing"},
		{"a bridge", networks.NIC{Type: "bridge", Bridge: "br0"}, ""},
		{"a bridge that does not say what it is", networks.NIC{Type: "bridge", Bridge: "odd"}, ""},
		{"a bridge that is not there", networks.NIC{Type: "bridge", Bridge: "br9"}, "bridge_missing"},
		{"a card for a bridge", networks.NIC{Type: "bridge", Bridge: "eth0"}, "not_a_bridge"},
		{"a switch for a bridge", networks.NIC{Type: "bridge", Bridge: "br-int"}, "not_a_bridge"},
		{"macvtap", networks.NIC{Type: "direct", Device: "eth0"}, ""},
		{"macvtap on nothing", networks.NIC{Type: "direct", Device: "eth9"}, "bridge_missing"},
		{"a switch", networks.NIC{Type: "bridge", Bridge: "br-int", VirtualPort: "openvswitch"}, ""},
		{"a switch that is not there", networks.NIC{Type: "bridge", Bridge: "br-ext", VirtualPort: "openvswitch"}, "ovs_bridge_missing"},
		{"a switch that does not say", networks.NIC{Type: "bridge", Bridge: "br-err", VirtualPort: "openvswitch"}, "error"},
		{"a switch that libvirt's network names", networks.NIC{Type: "network", Network: "up", VirtualPort: "openvswitch"}, ""},
		{"what needs nothing", networks.NIC{Type: "user"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, kind := range all {
				if !kind.Serves(tt.nic) {
					continue
				}
				reasons, err := kind.Check(t.Context(), tt.nic)
				if err != nil {
					got = append(got, "error")
				}
				for _, r := range reasons {
					if r.Message == "" || r.Change == "" {
						t.Errorf("reason %+v says too little", r)
					}
					got = append(got, r.Code)
				}
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("reasons %q, want %q", text, tt.want)
			}
		})
	}
}

func TestCheck_WithoutOpenVSwitchSaysSo(t *testing.T) {
	o := &networks.OpenVSwitch{Run: func(context.Context, ...string) ([]byte, error) {
		return nil, &exec.Error{Name: "ovs-vsctl", Err: exec.ErrNotFound}
	}}
	reasons, err := o.Check(t.Context(), networks.NIC{Type: "bridge", Bridge: "br-int", VirtualPort: "openvswitch"})
	if err != nil || len(reasons) != 1 || reasons[0].Code != "ovs_missing" {
		t.Errorf("reasons %+v, %v; want ovs_missing", reasons, err)
	}
}

// recorder stands in for ovs-vsctl: it keeps ports and records what it is told to change.
type recorder struct {
	*networks.OpenVSwitch
	ports   [][3]string // name, ofport, vm-id
	deleted []string
	unbound map[string]string // ports that have no interface id, or another one
}

// recording answers commands: with text, or with "exit N".
func recording(answers map[string]string) *recorder {
	r := &recorder{unbound: map[string]string{}}
	r.OpenVSwitch = &networks.OpenVSwitch{Run: func(ctx context.Context, args ...string) ([]byte, error) {
		command := strings.Join(args[1:], " ") // the first is the timeout
		if answer, ok := answers[command]; ok {
			if strings.HasPrefix(answer, "exit ") {
				return nil, exec.CommandContext(ctx, "/bin/sh", "-c", answer).Run()
			}
			return []byte(answer), nil
		}
		row := func(p [3]string) string {
			id := port
			if other, ok := r.unbound[p[0]]; ok {
				id = other
			}
			return fmt.Sprintf(`[%q,%s,["map",[["attached-mac","52:54:00:00:00:03"],["iface-id",%q],["vm-id",%q]]]]`, p[0], p[1], id, p[2])
		}
		switch {
		case strings.HasPrefix(command, "--format=json --columns=name,ofport,external_ids find Interface name="):
			var rows []string
			for _, p := range r.ports {
				if strings.HasSuffix(command, `name="`+p[0]+`"`) {
					rows = append(rows, row(p))
				}
			}
			return []byte(`{"data":[` + strings.Join(rows, ",") + `]}`), nil
		case strings.HasPrefix(command, "--if-exists remove Interface "):
			r.unbound[args[len(args)-3]] = ""
			return nil, nil
		case strings.HasPrefix(command, "--if-exists set Interface "):
			delete(r.unbound, args[len(args)-2])
			return nil, nil
		case command == `--format=json --columns=name,ofport,external_ids find Interface external_ids:iface-id="`+port+`"`:
			var rows []string
			for _, p := range r.ports {
				if _, other := r.unbound[p[0]]; !other {
					rows = append(rows, row(p))
				}
			}
			return []byte(`{"data":[` + strings.Join(rows, ",") + `],"headings":["name","ofport","external_ids"]}`), nil
		case strings.HasPrefix(command, "--if-exists del-port "):
			name := args[len(args)-1]
			r.deleted = append(r.deleted, name)
			r.ports = slices.DeleteFunc(r.ports, func(p [3]string) bool { return p[0] == name })
			return nil, nil
		}
		return nil, fmt.Errorf("ovs-vsctl %s: not expected", command)
	}}
	return r
}

const port = "457eb676-33da-42ec-9a8c-9293d545c337"

func TestOpenVSwitch_RemovesOwnPortsThatNobodyHas(t *testing.T) {
	nic := networks.NIC{Type: "bridge", Bridge: "br-int", VirtualPort: "openvswitch", InterfaceID: port}
	r := recording(nil)
	r.ports = [][3]string{{"vnet1", "-1", guest}, {"vnet2", "5", guest}, {"vnet3", "-1", "another"}, {"vnet4", `["set",[]]`, guest}}
	m, err := r.Plan(t.Context(), guest, nic)
	if err != nil {
		t.Fatal(err)
	}
	want := &networks.Made{Kind: "openvswitch", InterfaceID: port, Found: []string{"vnet1", "vnet2", "vnet3", "vnet4"}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := r.Prepare(t.Context(), guest, *m); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"vnet1"}, r.deleted); diff != "" {
		t.Errorf("removed before the start (-want +got):\n%s", diff)
	}
	// The guest has started twice here and ended without libvirt's knowing.
	r.ports, r.deleted = append(r.ports, [3]string{"vnet5", "7", guest}, [3]string{"vnet6", "-1", guest}, [3]string{"vnet7", "8", "another"}), nil
	if err := r.Activate(t.Context(), guest, nic); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"vnet6"}, r.deleted); diff != "" {
		t.Errorf("removed when it was this host's (-want +got):\n%s", diff)
	}
	r.deleted = nil
	for range 2 {
		if err := r.Undo(t.Context(), guest, *m); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"vnet5"}, r.deleted); diff != "" {
		t.Errorf("removed by the undo (-want +got):\n%s", diff)
	}
}

// TestOpenVSwitch_UnbindsOwnPortsWhileTheGuestIsAway: those without a device go for good,
// those that somebody made are bound again, and nobody else's are touched.
func TestOpenVSwitch_UnbindsOwnPortsWhileTheGuestIsAway(t *testing.T) {
	nic := networks.NIC{Type: "bridge", Bridge: "br-int", VirtualPort: "openvswitch", InterfaceID: port}
	r := recording(nil)
	r.ports = [][3]string{{"vnet3", "-1", "another"}, {"vnet4", "6", "another"}}
	if x, err := r.Bound(t.Context(), guest, nic); x != nil || err != nil {
		t.Errorf("without a port of its own: %+v, %v", x, err)
	}
	r.ports = append(r.ports, [][3]string{{"vnet1", "-1", guest}, {"vnet2", "5", guest}, {"vnet5", "7", guest}}...)
	x, err := r.Bound(t.Context(), guest, nic)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&networks.Taken{Kind: "openvswitch", InterfaceID: port, Ports: []string{"vnet2", "vnet5"}}, x); diff != "" {
		t.Errorf("bound (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := r.Take(t.Context(), guest, *x); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"vnet2": "", "vnet5": ""}, r.unbound); diff != "" || !slices.Equal(r.deleted, []string{"vnet1"}) {
		t.Errorf("removed %v, and unbound (-want +got):\n%s", r.deleted, diff)
	}
	r.unbound["vnet5"] = "another" // somebody has a use for it
	for range 2 {
		if err := r.Restore(t.Context(), guest, *x); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"vnet5": "another"}, r.unbound); diff != "" {
		t.Errorf("unbound after the undo (-want +got):\n%s", diff)
	}
}

func TestOpenVSwitch_TakesNoConditionFromADocument(t *testing.T) {
	r := recording(nil)
	_, err := r.Plan(t.Context(), guest, networks.NIC{VirtualPort: "openvswitch", InterfaceID: `x" external_ids:vm-id="y`})
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("an interface id that is a condition: %v, want invalid", err)
	}
	m, err := r.Plan(t.Context(), guest, networks.NIC{VirtualPort: "openvswitch"})
	if m != nil || err != nil {
		t.Errorf("an interface without an id is planned as %+v, %v", m, err)
	}
}

func TestKernel_KnowsItsLoopback(t *testing.T) {
	if _, err := (networks.Kernel{}).Driver("lo"); err != nil {
		t.Error(err)
	}
	if _, err := (networks.Kernel{}).Driver("conf-none0"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a device that is not there: %v, want not found", err)
	}
}

// A bridge is told by the kernel, in whatever network namespace this process is.
func TestKernel_TellsABridge(t *testing.T) {
	const bridge = "conf0"
	got := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			got <- "skip: " + err.Error()
			return
		}
		got <- func() string {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err.Error()
			}
			defer func() { _ = unix.Close(s) }()
			name, err := unix.BytePtrFromString(bridge)
			if err != nil {
				return err.Error()
			}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCBRADDBR, uintptr(unsafe.Pointer(name))); errno != 0 {
				return errno.Error()
			}
			driver, err := (networks.Kernel{}).Driver(bridge)
			if err != nil {
				return err.Error()
			}
			return driver
		}()
	}()
	driver := <-got
	if why, skip := strings.CutPrefix(driver, "skip: "); skip {
		t.Skip("no network namespace can be made: " + why)
	}
	if driver != "bridge" {
		t.Errorf("the kernel calls a bridge %q", driver)
	}
}
