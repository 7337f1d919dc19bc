package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"berth/agent/api"
	"berth/claims"
	"berth/test/guest"
	"berth/test/lab"
)

// pinnedFlavor is a guest whose vCPU has a CPU of the host to itself.
const pinnedFlavor = `name = "pinned"
vcpus = 1
memory_mb = 128
[extra_specs]
"hw:cpu_policy" = "dedicated"
`

// canPin reports whether two hosts can dedicate different CPUs of this machine.
func canPin() bool { return runtime.NumCPU() > 1 }

// pinnedConfig dedicates CPU 0 on host-a and CPU 1 on host-b, so that a pinned
// guest must be pinned anew when it moves.
func pinnedConfig() map[string]string {
	host := func(dedicated int) string {
		var shared []string
		for cpu := range runtime.NumCPU() {
			if cpu != dedicated {
				shared = append(shared, fmt.Sprint(cpu))
			}
		}
		return fmt.Sprintf("[host]\ndedicated_cpus = %q\nshared_cpus = %q\n", fmt.Sprint(dedicated), strings.Join(shared, ","))
	}
	return map[string]string{"host-a": host(0), "host-b": host(1)}
}

// pinned moves a guest whose CPU is its own, by Berth and then by hand.
func (d *demo) pinned(ctx context.Context) error {
	if !d.pin {
		return nil
	}
	d.out.act("A guest with a CPU of its own, and somebody who types virsh migrate")
	d.out.say("host-a dedicates CPU 0 to guests, host-b CPU 1; gunner's flavor says hw:cpu_policy=dedicated")
	a, err := d.f.Host("host-a")
	if err != nil {
		return err
	}
	b, err := d.f.Host("host-b")
	if err != nil {
		return err
	}
	g, err := guest.Build(ctx, "")
	if err != nil {
		return err
	}
	for _, name := range []string{"gunner", "stoker"} {
		xml := guest.DomainXML(guest.Options{Name: name, Guest: g, Beat: 200 * time.Millisecond})
		if err := os.WriteFile(a.Path("/var/lib/libvirt/"+name+".xml"), []byte(xml), 0o644); err != nil {
			return err
		}
	}
	if err := d.show(ctx, "host-a", "instance", "create", "gunner", "--flavor", "pinned", "--xml", "/var/lib/libvirt/gunner.xml", "--start"); err != nil {
		return err
	}
	if err := d.look(ctx, "host-a", "claim", "explain", "gunner"); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := guest.WaitBeat(waiting, a.Console("gunner"), 2); err != nil {
		return fmt.Errorf("wait for gunner's heartbeat: %w", err)
	}
	if err := d.pinIs(ctx, a, "0"); err != nil {
		return err
	}
	if err := d.show(ctx, "host-a", "migrate", "gunner", "host-b"); err != nil {
		return err
	}
	if err := d.pinIs(ctx, b, "1"); err != nil {
		return err
	}
	d.out.good("pinned to CPU 0 before and to CPU 1 now, from host-b's claim")
	return d.byHand(ctx, a, b)
}

// byHand types virsh migrate: first where there is no room, then where there is.
func (d *demo) byHand(ctx context.Context, a, b *lab.Host) error {
	d.out.say("now stoker takes host-a's dedicated CPU, and gunner is sent there by hand, past Berth:")
	if err := d.show(ctx, "host-a", "instance", "create", "stoker", "--flavor", "pinned", "--xml", "/var/lib/libvirt/stoker.xml"); err != nil {
		return err
	}
	migrate := []string{"migrate", "--live", "--p2p", "--tls", "--persistent", "--undefinesource", "gunner", "qemu+tls://host-a/system"}
	d.out.commandOf("host-b", "virsh", strings.Join(migrate, " "))
	_, err := b.Virsh(ctx, migrate...)
	if err == nil {
		return fmt.Errorf("virsh migrate went through although host-a has no CPU for gunner")
	}
	d.out.block(hookSaid(err.Error()))
	d.out.good("refused by the guard in libvirt's hook, with the reason, before any memory moved")
	if err := d.show(ctx, "host-a", "instance", "delete", "stoker"); err != nil {
		return err
	}
	d.out.say("the CPU is free again, and the same line is typed once more:")
	d.out.commandOf("host-b", "virsh", strings.Join(migrate, " "))
	if _, err := b.Virsh(ctx, migrate...); err != nil {
		return fmt.Errorf("virsh migrate by hand: %w", err)
	}
	if err := d.pinIs(ctx, a, "0"); err != nil {
		return err
	}
	if err := d.settled(ctx, a, "gunner"); err != nil {
		return err
	}
	if err := d.look(ctx, "host-a", "claim", "list"); err != nil {
		return err
	}
	d.out.good("claimed on arrival and pinned anew from that claim; the token and the allocation followed")
	d.out.say("after all this, what do Placement, the ledgers and libvirt say of both hosts?")
	if err := d.show(ctx, "host-a", "audit", "--all"); err != nil {
		return err
	}
	d.out.good("they agree")
	return nil
}

// pinIs shows where gunner's vCPU is pinned, and that it is the CPU wanted.
func (d *demo) pinIs(ctx context.Context, h *lab.Host, want string) error {
	text, err := h.Virsh(ctx, "vcpupin", "gunner", "--live")
	if err != nil {
		return err
	}
	if d.out.verbose {
		d.out.commandOf(h.Name, "virsh", "vcpupin gunner --live")
		d.out.block(text)
	}
	fields := strings.Fields(text)
	if got := fields[len(fields)-1]; got != want {
		return fmt.Errorf("gunner is pinned to CPU %s on %s, want %s", got, h.Name, want)
	}
	return nil
}

// settled waits until a guest that came by hand is a host's own.
func (d *demo) settled(ctx context.Context, h *lab.Host, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		var in api.InstanceDetail
		if err := d.f.JSON(ctx, h.Name, &in, "instance", "show", name); err == nil && in.Token.State == claims.TokenHere &&
			len(in.Allocations) == 1 && in.Allocations[0].Provider == h.Name {
			return nil
		}
		sleep(ctx, 200*time.Millisecond)
	}
	return fmt.Errorf("wait until %s is %s's: %w", name, h.Name, context.Cause(ctx))
}

// hookSaid is what virsh prints of a refusal without the command line of the
// hook that libvirt puts before it, a reason a line.
func hookSaid(text string) string {
	if _, ours, ok := strings.Cut(text, "berth: "); ok {
		text = "error: Hook script execution failed: … berth: " + ours
	}
	return strings.ReplaceAll(text, "; ", ";\n  ")
}
