package networks

import (
	"context"
	"errors"
	"slices"

	"berth/internal/fault"
)

// LibvirtNetworks are those that an interface names by <source network=”>. libvirt
// plugs the guest in when its domain starts, and out when that ends, so there is
// nothing to prepare. A network that is not active is not started: its addresses may be
// another host's now.
type LibvirtNetworks struct {
	Lookup Lookup
	nothingBound
}

// Kind implements Network.
func (LibvirtNetworks) Kind() string { return "libvirt" }

// Serves implements Network.
func (LibvirtNetworks) Serves(n NIC) bool { return n.Type == "network" }

// Check implements Network.
func (l LibvirtNetworks) Check(ctx context.Context, n NIC) ([]fault.Reason, error) {
	net, err := l.Lookup.Network(ctx, n.Network)
	switch {
	case errors.Is(err, fault.NotFound):
		return []fault.Reason{{
			Code: "network_missing", Message: "there is no libvirt network " + n.Network + " for interface " + n.MAC, Want: n.Network,
			Change: "on that host: virsh net-define FILE, then virsh net-start " + fault.Quote(n.Network),
		}}, nil
	case err != nil:
		return nil, err
	case !net.Active:
		return []fault.Reason{{
			Code: "network_inactive", Message: "libvirt network " + n.Network + " of interface " + n.MAC + " is not active", Want: n.Network,
			Change: "virsh net-start " + n.Network,
		}}, nil
	case n.PortGroup != "" && !slices.Contains(net.PortGroups, n.PortGroup):
		return []fault.Reason{{
			Code: "portgroup_missing", Message: "libvirt network " + n.Network + " has no port group " + n.PortGroup, Want: n.PortGroup,
			Change: "virsh net-edit " + n.Network,
		}}, nil
	}
	return nil, nil
}

// Plan implements Network.
func (LibvirtNetworks) Plan(context.Context, string, NIC) (*Made, error) { return nil, nil }

// Prepare implements Network.
func (LibvirtNetworks) Prepare(context.Context, string, Made) error { return nil }

// Activate implements Network.
func (LibvirtNetworks) Activate(context.Context, string, NIC) error { return nil }

// Undo implements Network.
func (LibvirtNetworks) Undo(context.Context, string, Made) error { return nil }
