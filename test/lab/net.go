package lab

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// Link is one of a host's two networks.
type Link string

// The links: Mgmt carries the agents, Placement and libvirtd; Mig carries what
// QEMU sends to QEMU.
const (
	Mgmt Link = "mgmt"
	Mig  Link = "mig"
)

// SwitchIP is the switch's address on the management network, where something
// that all hosts must reach, such as Placement, can listen.
const SwitchIP = "10.77.0.254"

// MgmtIP is the host's address on the management network.
func (h *Host) MgmtIP() string { return fmt.Sprintf("10.77.0.%d", h.Index) }

// MigIP is the host's address on the migration network.
func (h *Host) MigIP() string { return fmt.Sprintf("10.78.0.%d", h.Index) }

// port is the switch's end of a host's link.
func (h *Host) port(l Link) string { return fmt.Sprintf("p%d-%s", h.Index, l) }

// mac is the hardware address of a link. It is the same after the host was off,
// as a real machine's is: others that remember another wait half a minute.
func (h *Host) mac(l Link) string {
	net := map[Link]int{Mgmt: 77, Mig: 78}[l]
	return fmt.Sprintf("02:62:0a:%02x:00:%02x", net, h.Index)
}

// ip runs one batch of ip(8) commands in the net namespace of process pid.
func ip(ctx context.Context, pid int, lines ...string) error {
	return netCommand(ctx, pid, strings.Join(lines, "\n")+"\n", "ip", "-batch", "-")
}

// netCommand runs a command of the machine in the net namespace of process pid.
func netCommand(ctx context.Context, pid int, stdin, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var text tail
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := startIn(pid, inNet, nil, cmd); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return commandError(cmd, err, text.String()+"\n"+stdin)
	}
	return nil
}

// switchMAC is the switch's hardware address on the management network. It is
// given, since a bridge left to itself takes that of one of its ports, and has
// another when the host behind that port was off: the others then send to nobody
// until their neighbour tables age.
const switchMAC = "02:62:0a:4d:00:fe"

// wireSwitch makes the two bridges.
func (l *Lab) wireSwitch(ctx context.Context) error {
	return ip(ctx, l.Switch.init.PID,
		"link set lo up",
		"link add br-mgmt address "+switchMAC+" type bridge forward_delay 0", "link set br-mgmt up",
		"link add br-mig type bridge forward_delay 0", "link set br-mig up",
		"addr add "+SwitchIP+"/24 dev br-mgmt")
}

// wire gives a host its links. The switch's ends are made in the switch's
// namespace and the hosts' ends directly in theirs, so no name ever appears in
// the machine's own.
func (l *Lab) wire(ctx context.Context, h *Host) error {
	var sw []string
	for _, k := range []Link{Mgmt, Mig} {
		sw = append(sw,
			fmt.Sprintf("link add %s type veth peer name %s address %s netns %d", h.port(k), k, h.mac(k), h.init.PID),
			fmt.Sprintf("link set %s master br-%s up", h.port(k), k))
		if h.apart {
			sw = append(sw, h.isolate(k, true))
		}
	}
	if err := ip(ctx, l.Switch.init.PID, sw...); err != nil {
		return err
	}
	return ip(ctx, h.init.PID, "link set lo up",
		"link set mgmt up", "link set mig up",
		"addr add "+h.MgmtIP()+"/24 dev mgmt",
		"addr add "+h.MigIP()+"/24 dev mig")
}

// Cut takes the switch's end of a host's link down: packets both ways are lost
// without a word, as with a pulled cable, and the host keeps its address.
func (h *Host) Cut(ctx context.Context, link Link) error {
	return h.setPort(ctx, link, "down")
}

// Heal undoes Cut.
func (h *Host) Heal(ctx context.Context, link Link) error {
	return h.setPort(ctx, link, "up")
}

func (h *Host) setPort(ctx context.Context, link Link, state string) error {
	if link != Mgmt && link != Mig {
		return fmt.Errorf("host %s has no link %q, only %q and %q", h.Name, link, Mgmt, Mig)
	}
	if err := ip(ctx, h.lab.Switch.init.PID, "link set "+h.port(link)+" "+state); err != nil {
		return fmt.Errorf("set link %s of host %s %s: %w", link, h.Name, state, err)
	}
	return nil
}

// SetApart says whether the host is one of those that cannot send each other a packet;
// see Options.Apart.
func (h *Host) SetApart(ctx context.Context, apart bool) error {
	if err := ip(ctx, h.lab.Switch.init.PID, h.isolate(Mgmt, apart), h.isolate(Mig, apart)); err != nil {
		return fmt.Errorf("set host %s apart: %w", h.Name, err)
	}
	h.apart = apart
	return h.lab.save()
}

// isolate is the command by which the bridge forwards nothing from a host's port to
// another such port, or does again.
func (h *Host) isolate(l Link, on bool) string {
	return fmt.Sprintf("link set %s type bridge_slave isolated %s", h.port(l), map[bool]string{true: "on", false: "off"}[on])
}

// Limit holds what the host sends on a link to a rate in MiB/s, with a token
// bucket; zero lifts the limit.
func (h *Host) Limit(ctx context.Context, link Link, mibps int) error {
	args := []string{"qdisc", "replace", "dev", string(link), "root", "tbf",
		"rate", fmt.Sprintf("%dmibit", mibps*8), "burst", "256kb", "latency", "200ms"}
	if mibps <= 0 {
		args = []string{"qdisc", "replace", "dev", string(link), "root", "noqueue"}
	}
	if err := netCommand(ctx, h.init.PID, "", "tc", args...); err != nil {
		return fmt.Errorf("limit link %s of host %s: %w", link, h.Name, err)
	}
	return nil
}
