package networks

import (
	"context"
	"errors"
	"net"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// Links tells of the kernel's network devices.
type Links interface {
	// Driver names the kernel's driver of a link: "bridge" of a Linux bridge,
	// "openvswitch" of one of Open vSwitch's; empty where it has none or does not tell.
	// fault.NotFound when there is no such link.
	Driver(name string) (string, error)
}

// Kernel are the links of this process's network namespace, which is libvirtd's too.
type Kernel struct{}

// Driver implements Links. It asks the kernel by ethtool's call (SIOCETHTOOL), not
// sysfs, which may be mounted for another namespace.
func (Kernel) Driver(name string) (string, error) {
	if _, err := net.InterfaceByName(name); err != nil {
		// The library has no error of its own for it; it has just read all of them.
		return "", fault.New(fault.NotFound, "find network device %s: %w", name, err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", fault.New(fault.Internal, "ask for the driver of network device %s: %w", name, err)
	}
	defer func() { _ = unix.Close(s) }()
	info, err := unix.IoctlGetEthtoolDrvinfo(s, name)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return "", nil
	case err != nil:
		return "", fault.New(fault.Internal, "ask for the driver of network device %s: %w", name, err)
	}
	return unix.ByteSliceToString(info.Driver[:]), nil
}

// Bridges are Linux bridges (<interface type='bridge'> without a virtual port), and the
// devices below interfaces of type direct (macvtap). libvirt plugs the guest in and out.
type Bridges struct {
	Links Links
	nothingBound
}

// Kind implements Network.
func (Bridges) Kind() string { return "bridge" }

// Serves implements Network.
func (Bridges) Serves(n NIC) bool {
	return n.Type == "direct" && n.Device != "" || n.Type == "bridge" && n.Bridge != "" && n.VirtualPort == ""
}

// Check implements Network.
func (b Bridges) Check(_ context.Context, n NIC) ([]fault.Reason, error) {
	name, what := n.Bridge, "bridge"
	if n.Type == "direct" {
		name, what = n.Device, "network device"
	}
	driver, err := b.Links.Driver(name)
	switch {
	case errors.Is(err, fault.NotFound):
		return []fault.Reason{{
			Code: "bridge_missing", Message: "there is no " + what + " " + name + " for interface " + n.MAC, Want: name, Change: "make it there, as on the guest's present host",
		}}, nil
	case err != nil:
		return nil, err
	case n.Type == "bridge" && driver != "bridge" && driver != "":
		reason := fault.Reason{
			Code: "not_a_bridge", Message: "network device " + name + " of interface " + n.MAC + " is no Linux bridge", Want: "bridge", Have: driver, Change: "make a bridge of that name there",
		}
		if driver == "openvswitch" {
			reason.Change = "give the interface <virtualport type='openvswitch'/>, or make a Linux bridge of that name there"
		}
		return []fault.Reason{reason}, nil
	}
	return nil, nil
}

// Plan implements Network.
func (Bridges) Plan(context.Context, string, NIC) (*Made, error) { return nil, nil }

// Prepare implements Network.
func (Bridges) Prepare(context.Context, string, Made) error { return nil }

// Activate implements Network.
func (Bridges) Activate(context.Context, string, NIC) error { return nil }

// Undo implements Network.
func (Bridges) Undo(context.Context, string, Made) error { return nil }
