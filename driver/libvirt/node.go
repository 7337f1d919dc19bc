package libvirt

import (
	"context"
	"fmt"
	"strings"
	"time"

	"libvirt.org/go/libvirtxml"

	"berth/driver"
	"berth/internal/fault"
	"berth/topology"
)

// capabilitiesAge is for how long a connection's answer is believed: libvirt looks
// for firmware and swtpm itself, and tells nobody when they come. Arbitrary.
const capabilitiesAge = time.Minute

// answered is what the daemon has said of its machine.
type answered struct {
	by   Conn // on this connection: a daemon that was restarted is asked again
	qemu driver.Version
	at   time.Time
	node driver.Node
}

// Node implements driver.Driver. Its facts come from the daemon's capabilities and
// versions. It is asked at each check of a destination, and all of it costs ten
// milliseconds and more, so it is asked once for each connection and each version
// of QEMU, and again when the answer is old. What it gives is shared: not to be
// changed.
func (d *Driver) Node(ctx context.Context) (driver.Node, error) {
	return do(ctx, d.control, request{verb: "read capabilities"}, func(c Conn) (driver.Node, error) {
		qemu, err := c.Version()
		if err != nil {
			return driver.Node{}, err
		}
		d.mu.Lock()
		last := d.answered
		d.mu.Unlock()
		if last.by == c && last.qemu == driver.Version(qemu) && d.rt.Now().Sub(last.at) < capabilitiesAge {
			return last.node, nil
		}
		n, err := node(c)
		n.Socket, n.URI = d.socket(), d.o.URI
		if err == nil && n.CapabilitiesError == "" {
			d.mu.Lock()
			d.answered = answered{by: c, qemu: n.HypervisorVersion, at: d.rt.Now(), node: n}
			d.mu.Unlock()
		}
		return n, err
	})
}

func node(c Conn) (n driver.Node, err error) {
	if n.Hostname, err = c.Hostname(); err != nil {
		return n, err
	}
	if n.Hypervisor, err = c.Type(); err != nil {
		return n, err
	}
	n.Hypervisor = strings.ToUpper(n.Hypervisor) // "Test" says the test driver
	version, err := c.Version()
	if err != nil {
		return n, err
	}
	lib, err := c.LibVersion()
	if err != nil {
		return n, err
	}
	n.HypervisorVersion, n.LibraryVersion = driver.Version(version), driver.Version(lib)
	n.Cannot = cannot(n.Hypervisor, n.LibraryVersion)
	if _, none := n.Cannot[driver.AbilityLiveMigration]; !none {
		n.MigrationOptions = migrationOptions(n.LibraryVersion, n.HypervisorVersion)
	}
	xml, err := c.Capabilities()
	if err != nil {
		return n, err
	}
	side, err := readHost(&n, xml)
	if err != nil {
		return n, err
	}
	n.Capabilities, err = guests(c, n.Arch, side)
	switch {
	case err == nil:
	case kindOf(err, false) == fault.Unavailable:
		return driver.Node{}, err // it could not be asked
	default:
		n.CapabilitiesError = err.Error()
	}
	return n, nil
}

// guests asks what guests can have. An error comes with what was told all the
// same: nothing, or all but the features of the CPU.
func guests(c Conn, arch string, side guestSide) (*topology.Capabilities, error) {
	var documents []string
	where, model := CPU{Emulator: side.emulator, Arch: arch, VirtType: side.virtType}, ""
	for _, machine := range side.usualMachines() {
		text, err := c.DomainCapabilities(side.emulator, arch, machine, side.virtType, 0)
		if err != nil {
			return nil, fmt.Errorf("domain capabilities of machine type %s: %w", machine, err)
		}
		documents = append(documents, text)
		var caps libvirtxml.DomainCaps
		if model == "" && caps.Unmarshal(text) == nil {
			if m, ok := hostModel(&caps); ok {
				model, where.Machine = m, machine
			}
		}
	}
	out, err := readGuests(arch, side, documents)
	if err != nil {
		return nil, err
	}
	if model == "" {
		return &out, nil
	}
	cpu, err := expand(c, where, model)
	switch {
	case err == nil:
		out.CPU.Features = required(cpu)
	case codeOf(err) != errOperationUnsupported && codeOf(err) != errNoSupport: // libvirt expands no CPU of this architecture
		return &out, fmt.Errorf("features of cpu %s: %w", out.CPU.Model, err)
	}
	return &out, nil
}
