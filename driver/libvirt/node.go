package libvirt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"

	"berth/driver"
	"berth/driver/libvirt/domainxml"
)

// Node implements driver.Driver. Its facts come from the daemon's capabilities
// (https://libvirt.org/formatcaps.html) and versions.
func (d *Driver) Node(ctx context.Context) (driver.Node, error) {
	return do(ctx, d.control, request{verb: "read capabilities"}, node)
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
	xml, err := c.Capabilities()
	if err != nil {
		return n, err
	}
	return n, capabilities(&n, xml)
}

// capabilities fills in what the capabilities document says.
func capabilities(n *driver.Node, xml string) (err error) {
	var caps libvirtxml.Caps
	if err = caps.Unmarshal(xml); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	n.UUID = caps.Host.UUID
	if cpu := caps.Host.CPU; cpu != nil {
		n.Arch, n.CPUModel = cpu.Arch, cpu.Model
		if n.CPUXML, err = domainxml.HostCPU(xml); err != nil {
			return err
		}
	}
	kvm, machines := false, map[string]bool{}
	for _, g := range caps.Guests {
		if n.Arch == "" {
			n.Arch = g.Arch.Name // the test driver names no host CPU
		}
		if g.Arch.Name != n.Arch {
			continue
		}
		add := func(ms []libvirtxml.CapsGuestMachine) {
			for _, m := range ms {
				machines[m.Name] = true
				if m.Canonical != "" {
					machines[m.Canonical] = true
				}
			}
		}
		add(g.Arch.Machines)
		for _, t := range g.Arch.Domains {
			kvm = kvm || t.Type == "kvm"
			add(t.Machines)
		}
	}
	for m := range machines {
		n.Machines = append(n.Machines, m)
	}
	slices.Sort(n.Machines)
	n.Emulated = n.Hypervisor == "QEMU" && !kvm
	return nil
}
