// Package networks connects a guest that comes to this host, and takes back what was
// made for one that did not.
//
// Most of it is libvirt's own doing when the domain starts: it plugs the interface into
// a network, a Linux bridge or an Open vSwitch bridge. What is left is to know before
// whether this host has what the guest's document names (Check), to take away what an
// earlier life of the guest left in the way (Prepare, Activate), and what a life that was
// cut short has left (Undo). Networks that live elsewhere, Neutron's bindings before
// all, are the operator's hooks' matter.
//
// Before a guest comes nothing of it is bound here, and when it is off and about to leave
// nothing of it may stay so (Take, Restore):
//
//	kind               while the guest is off        Take
//	libvirt network    nothing: libvirt plugs out    nothing; the network serves others
//	Linux bridge       nothing: its tap is gone      nothing; no bridge is made by Berth
//	macvtap            nothing: the device is gone   nothing
//	Open vSwitch       ports that a host which died  those without a device go; the others,
//	                   or a person has left          which somebody made, lose their interface
//	                                                 id, by which OVN and Neutron bind, and
//	                                                 get it back when the guest stays
//
// It reads guests' documents, libvirt's networks, the kernel's links and Open vSwitch's
// database. It alone writes the latter: it removes and unbinds ports, of the guest that
// it is told of and no other. Each verb is safe to repeat.
package networks

import (
	"context"
	"encoding/xml"

	"berth/driver"
	"berth/internal/fault"
)

// NIC is one interface of a guest, as its document has it.
type NIC struct {
	Type        string // network, bridge, direct, ethernet, user, hostdev, vhostuser, …
	MAC         string
	Network     string // of libvirt
	PortGroup   string // of that
	Bridge      string
	Device      string // host's device below, of type direct
	VirtualPort string // openvswitch, midonet, 802.1Qbh, …; empty for none
	InterfaceID string // of an Open vSwitch port: Neutron's port
}

// Of reads the interfaces of a guest's document.
func Of(document string) ([]NIC, error) {
	var doc struct {
		Interfaces []struct {
			Type string `xml:"type,attr"`
			MAC  struct {
				Address string `xml:"address,attr"`
			} `xml:"mac"`
			Source struct {
				Network   string `xml:"network,attr"`
				PortGroup string `xml:"portgroup,attr"`
				Bridge    string `xml:"bridge,attr"`
				Dev       string `xml:"dev,attr"`
			} `xml:"source"`
			VirtualPort struct {
				Type       string `xml:"type,attr"`
				Parameters struct {
					InterfaceID string `xml:"interfaceid,attr"`
				} `xml:"parameters"`
			} `xml:"virtualport"`
		} `xml:"devices>interface"`
	}
	if err := xml.Unmarshal([]byte(document), &doc); err != nil {
		return nil, fault.New(fault.Invalid, "read the interfaces of a domain document: %w", err)
	}
	var out []NIC
	for _, i := range doc.Interfaces {
		out = append(out, NIC{
			Type: i.Type, MAC: i.MAC.Address, Network: i.Source.Network, PortGroup: i.Source.PortGroup, Bridge: i.Source.Bridge, Device: i.Source.Dev,
			VirtualPort: i.VirtualPort.Type, InterfaceID: i.VirtualPort.Parameters.InterfaceID,
		})
	}
	return out, nil
}

// Made is what there was on this host before it was prepared for one interface, so that
// the undo removes no more than what has come since. It is on record before Prepare.
type Made struct {
	Kind        string   `json:"kind"` // of Network.Kind
	InterfaceID string   `json:"interface_id,omitempty"`
	Found       []string `json:"found,omitempty"` // ports of that interface that were there
}

// Network is one kind of network.
type Network interface {
	// Kind is its name, in records.
	Kind() string

	// Serves reports whether an interface is of this kind. It may be of several: one on
	// a libvirt network whose bridge is Open vSwitch's is.
	Serves(n NIC) bool

	// Check gives every reason why this host cannot connect the interface. It changes
	// nothing. An error says that it could not be found out.
	Check(ctx context.Context, n NIC) ([]fault.Reason, error)

	// Plan looks what is there for the guest's interface; nil when there is nothing to
	// prepare or undo. It changes nothing.
	Plan(ctx context.Context, guest string, n NIC) (*Made, error)

	// Prepare makes ready what was planned, before the guest's domain is started.
	Prepare(ctx context.Context, guest string, m Made) error

	// Activate is called when the guest is this host's and no other's: its interface is
	// the only one of its name from then on.
	Activate(ctx context.Context, guest string, n NIC) error

	// Undo removes what has come since the plan, when the guest's domain is no more here.
	Undo(ctx context.Context, guest string, m Made) error

	// Bound looks what of the interface still stands on this host while the guest is off;
	// nil for nothing, also where libvirt has taken it away with the domain. It changes
	// nothing.
	Bound(ctx context.Context, guest string, n NIC) (*Taken, error)

	// Take takes that away, so that the interface may be bound where the guest goes.
	Take(ctx context.Context, guest string, x Taken) error

	// Restore is the undo of Take, also of a half-done one: what is still there is bound
	// as it was.
	Restore(ctx context.Context, guest string, x Taken) error
}

// Taken is what is taken away of one interface while its guest is off. It is on record
// before Take.
type Taken struct {
	Kind        string   `json:"kind"` // of Network.Kind
	InterfaceID string   `json:"interface_id,omitempty"`
	Ports       []string `json:"ports,omitempty"` // that were bound, and are there without their guest
}

// nothingBound is of what libvirt plugs in when a domain starts, and out when it ends:
// while the guest is off nothing of it is here.
type nothingBound struct{}

// Bound implements Network.
func (nothingBound) Bound(context.Context, string, NIC) (*Taken, error) { return nil, nil }

// Take implements Network.
func (nothingBound) Take(context.Context, string, Taken) error { return nil }

// Restore implements Network.
func (nothingBound) Restore(context.Context, string, Taken) error { return nil }

// All are the kinds that this package knows. libvirt is nil where the hypervisor has no
// networks, links and vswitch are nil for the machine's own.
func All(libvirt Lookup, links Links, vswitch *OpenVSwitch) []Network {
	var out []Network
	if libvirt != nil {
		out = append(out, LibvirtNetworks{Lookup: libvirt})
	}
	if links == nil {
		links = Kernel{}
	}
	if vswitch == nil {
		vswitch = &OpenVSwitch{}
	}
	return append(out, Bridges{Links: links}, vswitch)
}

// Lookup finds libvirt's networks (driver.Connector).
type Lookup interface {
	Network(ctx context.Context, name string) (driver.Network, error)
}
