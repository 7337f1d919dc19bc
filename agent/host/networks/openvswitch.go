package networks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
)

// OpenVSwitch are interfaces with <virtualport type='openvswitch'>. libvirt adds a port
// when the domain starts, with the interface id and the guest's uuid (vm-id) among its
// external ids, and deletes it when the domain ends; a host that dies keeps it in the
// database (ovs-vswitchd(8) then says that it could not open the device). Two ports of
// one interface id on one host make what binds them (OVN, Neutron's agent) take the wrong
// one.
type OpenVSwitch struct {
	// Run runs ovs-vsctl with arguments and gives its standard output; nil runs the one
	// in $PATH. Its error is an *exec.ExitError where the tool itself said no.
	Run func(ctx context.Context, args ...string) ([]byte, error)
}

// port is a row of the table Interface.
type port struct {
	name  string
	guest string // external_ids:vm-id
	id    string // external_ids:iface-id
	dead  bool   // its device is not there
}

// vsctlTimeout is for how long ovs-vsctl waits for the database, seconds. Arbitrary: it
// answers in milliseconds, and without a limit it waits for ever.
const vsctlTimeout = "5"

// Kind implements Network.
func (*OpenVSwitch) Kind() string { return "openvswitch" }

// Serves implements Network.
func (*OpenVSwitch) Serves(n NIC) bool { return n.VirtualPort == "openvswitch" }

// Check implements Network.
func (o *OpenVSwitch) Check(ctx context.Context, n NIC) ([]fault.Reason, error) {
	if n.Type != "bridge" || n.Bridge == "" {
		return nil, nil // libvirt's network says which bridge, when the guest starts
	}
	_, err := o.vsctl(ctx, "br-exists", n.Bridge)
	exit, said := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, exec.ErrNotFound):
		return []fault.Reason{{
			Code: "ovs_missing", Message: "interface " + n.MAC + " needs Open vSwitch, and ovs-vsctl is not installed", Want: "ovs-vsctl", Change: "install Open vSwitch there",
		}}, nil
	case said && exit.ExitCode() == 2: // ovs-vsctl(8), br-exists
		return []fault.Reason{{
			Code: "ovs_bridge_missing", Message: "there is no Open vSwitch bridge " + n.Bridge + " for interface " + n.MAC, Want: n.Bridge,
			Change: "ovs-vsctl add-br " + n.Bridge,
		}}, nil
	}
	return nil, err
}

// Plan implements Network.
func (o *OpenVSwitch) Plan(ctx context.Context, _ string, n NIC) (*Made, error) {
	if n.InterfaceID == "" {
		return nil, nil // libvirt makes one up at each start: nobody binds it
	}
	ports, err := o.ports(ctx, n.InterfaceID)
	if err != nil {
		return nil, err
	}
	m := &Made{Kind: o.Kind(), InterfaceID: n.InterfaceID}
	for _, p := range ports {
		m.Found = append(m.Found, p.name)
	}
	return m, nil
}

// Prepare implements Network: ports of the interface that an earlier life of the guest
// left, whose devices are no more, go.
func (o *OpenVSwitch) Prepare(ctx context.Context, guest string, m Made) error {
	return o.remove(ctx, guest, m.InterfaceID, func(p port) bool { return p.dead })
}

// Activate implements Network.
func (o *OpenVSwitch) Activate(ctx context.Context, guest string, n NIC) error {
	if n.InterfaceID == "" {
		return nil
	}
	return o.remove(ctx, guest, n.InterfaceID, func(p port) bool { return p.dead })
}

// Undo implements Network: ports of the guest that have come since the plan go.
func (o *OpenVSwitch) Undo(ctx context.Context, guest string, m Made) error {
	return o.remove(ctx, guest, m.InterfaceID, func(p port) bool { return p.dead || !slices.Contains(m.Found, p.name) })
}

// Bound implements Network. Ports without a device are not among them: nothing stands
// behind them that could be restored.
func (o *OpenVSwitch) Bound(ctx context.Context, guest string, n NIC) (*Taken, error) {
	if n.InterfaceID == "" {
		return nil, nil
	}
	ports, err := o.ports(ctx, n.InterfaceID)
	if err != nil {
		return nil, err
	}
	x := &Taken{Kind: o.Kind(), InterfaceID: n.InterfaceID}
	left := false
	for _, p := range ports {
		if p.guest != guest {
			continue
		}
		left = true
		if !p.dead {
			x.Ports = append(x.Ports, p.name)
		}
	}
	if !left {
		return nil, nil
	}
	return x, nil
}

// Take implements Network.
func (o *OpenVSwitch) Take(ctx context.Context, guest string, x Taken) error {
	if err := o.remove(ctx, guest, x.InterfaceID, func(p port) bool { return p.dead }); err != nil {
		return err
	}
	ports, err := o.ports(ctx, x.InterfaceID)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.guest != guest || !slices.Contains(x.Ports, p.name) {
			continue
		}
		if _, err := o.vsctl(ctx, "--if-exists", "remove", "Interface", p.name, "external_ids", "iface-id"); err != nil {
			return err
		}
	}
	return nil
}

// Restore implements Network. A port that has got another interface id, or another guest,
// in the meantime stays as it is.
func (o *OpenVSwitch) Restore(ctx context.Context, guest string, x Taken) error {
	for _, name := range x.Ports {
		ports, err := o.find(ctx, `name="`+name+`"`)
		if err != nil {
			return err
		}
		for _, p := range ports {
			if p.name != name || p.guest != guest || p.id != "" {
				continue
			}
			if _, err := o.vsctl(ctx, "--if-exists", "set", "Interface", p.name, `external_ids:iface-id="`+x.InterfaceID+`"`); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove deletes the guest's own ports of an interface that are chosen.
func (o *OpenVSwitch) remove(ctx context.Context, guest, id string, which func(port) bool) error {
	ports, err := o.ports(ctx, id)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if p.guest != guest || !which(p) {
			continue
		}
		if _, err := o.vsctl(ctx, "--if-exists", "del-port", p.name); err != nil {
			return err
		}
	}
	return nil
}

// ports finds the ports that have an interface id.
func (o *OpenVSwitch) ports(ctx context.Context, id string) ([]port, error) {
	if strings.ContainsFunc(id, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF-", r) }) {
		// It comes from a document, and goes into a condition of the database.
		return nil, fault.New(fault.Invalid, "interface id %q is not a uuid", id)
	}
	return o.find(ctx, `external_ids:iface-id="`+id+`"`)
}

// find finds the ports of a condition of the database.
func (o *OpenVSwitch) find(ctx context.Context, condition string) ([]port, error) {
	out, err := o.vsctl(ctx, "--format=json", "--columns=name,ofport,external_ids", "find", "Interface", condition)
	if err != nil {
		return nil, err
	}
	var table struct {
		Data [][]json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(out, &table); err != nil {
		return nil, fault.New(fault.Internal, "read the answer of ovs-vsctl: %w", err)
	}
	var ports []port
	for _, row := range table.Data {
		p, err := readPort(row)
		if err != nil {
			return nil, fault.New(fault.Internal, "read the answer of ovs-vsctl: %w", err)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// readPort reads a row in the notation of RFC 7047, section 5.1: a set is ["set",[…]], a
// map ["map",[[key,value],…]].
func readPort(row []json.RawMessage) (p port, err error) {
	if len(row) != 3 {
		return p, fmt.Errorf("a row of %d columns", len(row))
	}
	if err := json.Unmarshal(row[0], &p.name); err != nil {
		return p, err
	}
	// ofport is -1 for a device that could not be opened, and empty until that was tried.
	var number int
	p.dead = json.Unmarshal(row[1], &number) == nil && number < 0
	var ids [2]json.RawMessage
	var pairs [][2]string
	if err := json.Unmarshal(row[2], &ids); err != nil {
		return p, err
	}
	if err := json.Unmarshal(ids[1], &pairs); err != nil {
		return p, err
	}
	for _, kv := range pairs {
		switch kv[0] {
		case "vm-id":
			p.guest = kv[1]
		case "iface-id":
			p.id = kv[1]
		}
	}
	return p, nil
}

func (o *OpenVSwitch) vsctl(ctx context.Context, args ...string) ([]byte, error) {
	run := o.Run
	if run == nil {
		run = vsctl
	}
	out, err := run(ctx, append([]string{"--timeout=" + vsctlTimeout}, args...)...)
	if err != nil {
		kind := fault.Unavailable // the database does not answer
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
			kind = fault.Internal
		}
		return nil, fault.New(kind, "ovs-vsctl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

func vsctl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "ovs-vsctl", args...)
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}
