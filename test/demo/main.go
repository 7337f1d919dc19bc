// Command demo shows Berth to somebody who sees it for the first time: two real
// hypervisors on this machine, a real guest, a live migration with claims, and
// one that fails half-way and is undone. Everything it starts it takes down
// again. `make demo` runs it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

func main() {
	keep := flag.Bool("keep", false, "leave hosts, agents and guest up, and print what to try")
	force := flag.Bool("force", false, "run although this machine has a libvirt daemon or guests of its own")
	dir := flag.String("dir", filepath.Join(os.TempDir(), "berth-demo"), "folder for the hosts' files")
	verbose := flag.Bool("verbose", false, "show what each command prints")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{out: newScreen(os.Stdout, *verbose), dir: *dir, keep: *keep}
	err := d.run(ctx, *force)
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\n", err)
		stop()
		os.Exit(1)
	}
}

type demo struct {
	out  *screen
	dir  string
	keep bool

	f     *fleet.Fleet
	said  string // what the last command printed, where it was not shown
	guest string // the instance's name
	pin   bool   // this machine has CPUs enough for pinned guests
}

func (d *demo) run(ctx context.Context, force bool) (err error) {
	if os.Getuid() != 0 {
		return errors.New("namespaces and libvirt need root: run it as root")
	}
	if err := lab.Refuse(force); err != nil {
		return fmt.Errorf("%w\nThe demonstration would not touch them, but does not run beside them unasked: make demo FORCE=1", err)
	}
	if d.keep {
		if l, err := lab.Attach(d.dir); err == nil {
			return fmt.Errorf("a demonstration is still up in %s: end it with `go run ./test/lab/cmd/lab -dir %s down`", l.Dir, l.Dir)
		}
	}
	begun := time.Now()
	d.out.title("Berth: a guest moves between two hosts, and nothing leaks")

	d.out.act("What is needed: libvirt, QEMU, a guest")
	if err := d.install(ctx); err != nil {
		return err
	}
	ready := time.Now()
	d.guest = "sailor"

	defer func() {
		if d.f == nil {
			return
		}
		if d.keep && err == nil {
			return
		}
		if err != nil {
			d.logs()
		}
		err = errors.Join(err, d.f.Down())
	}()
	for _, act := range []func(context.Context) error{d.hosts, d.boot, d.move, d.alive, d.fail, d.killed, d.pinned, d.drain} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	if d.keep {
		d.tryThis()
		return nil
	}
	d.out.act("Everything down again")
	if err := d.f.Down(); err != nil {
		return err
	}
	d.f = nil
	d.out.say("hosts, daemons, guest and their files are gone; the machine is as it was")
	d.out.say("%.0f s in all, %.0f s of them for packages", time.Since(begun).Seconds(), ready.Sub(begun).Seconds())
	return nil
}

// install adds the packages that are missing. What apt prints is shown in the long form, and where it fails.
func (d *demo) install(ctx context.Context) error {
	if d.out.verbose {
		return lab.Install(ctx, d.out.indented(), lab.Packages()...)
	}
	var said bytes.Buffer
	missing, err := lab.Missing(ctx, lab.Packages()...)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		d.out.say("installing %d packages, a minute or two (no service is started)", len(missing))
	}
	if err := lab.Install(ctx, &said, lab.Packages()...); err != nil {
		d.out.block(said.String())
		return err
	}
	d.out.good("everything is there")
	return nil
}

// hosts brings up two hosts with agents and shows what they found.
func (d *demo) hosts(ctx context.Context) error {
	d.out.act("Two hosts, an agent on each, one Placement between them")
	o := fleet.Options{Dir: d.dir, Detached: d.keep, Guard: true, Log: d.out.detail}
	if d.pin = canPin(); d.pin {
		o.Config, o.Flavors = pinnedConfig(), map[string]string{"pinned": pinnedFlavor}
		o.Listen = true // for the operator who uses virsh; Berth needs no port of libvirtd's
	}
	f, err := fleet.Up(ctx, o)
	if err != nil {
		return err
	}
	d.f = f
	d.out.good("host-a and host-b have their own network, libvirtd, /etc and /run; the agents talk over mutual TLS")
	if err := d.tell(ctx, "host-a", "status"); err != nil {
		return err
	}
	d.out.detail("what host-a found in its hardware, and what it wrote to Placement about itself:")
	return d.look(ctx, "host-a", "host", "show")
}

// boot creates the guest on host-a.
func (d *demo) boot(ctx context.Context) error {
	d.out.act("A guest on host-a, under a claim")
	g, err := guest.Build(ctx, "")
	if err != nil {
		return err
	}
	h, err := d.f.Host("host-a")
	if err != nil {
		return err
	}
	const disk = "/var/lib/libvirt/images/sailor.qcow2"
	if err := os.MkdirAll(filepath.Dir(h.Path(disk)), 0o755); err != nil {
		return err
	}
	if _, err := h.Exec(ctx, "qemu-img", "create", "-q", "-f", "qcow2", disk, "64M"); err != nil {
		return err
	}
	xml := guest.DomainXML(guest.Options{
		Name: d.guest, Guest: g, Disks: []guest.Disk{{Path: disk}},
		Dirty: 32, Rate: 4, Beat: 200 * time.Millisecond,
	})
	if err := os.WriteFile(h.Path("/var/lib/libvirt/sailor.xml"), []byte(xml), 0o644); err != nil {
		return err
	}
	if err := d.show(ctx, "host-a", "instance", "create", d.guest, "--flavor", "small",
		"--xml", "/var/lib/libvirt/sailor.xml", "--start"); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if _, err := guest.WaitBeat(waiting, h.Console(d.guest), 5); err != nil {
		return fmt.Errorf("wait for the guest's heartbeat: %w", err)
	}
	d.out.good("it prints a heartbeat, and checks every page of memory and every disk block that it writes")
	if err := d.console("host-a", 3); err != nil {
		return err
	}
	if err := d.tell(ctx, "host-a", "claim", "list"); err != nil {
		return err
	}
	d.out.detail("the same as a drawing, of the whole host and of each of its cells:")
	if err := d.look(ctx, "host-a", "host", "topology"); err != nil {
		return err
	}
	return d.allocations(ctx, "host-a", "allocations in Placement before the move:")
}

// move live-migrates it to host-b and looks at Placement half-way.
func (d *demo) move(ctx context.Context) error {
	d.out.act("A live migration to host-b")
	if err := d.tell(ctx, "host-a", "plan", d.guest); err != nil {
		return err
	}
	d.out.say("first a claim on host-b, then one atomic write to Placement; host-b's copy stays paused until")
	d.out.say("host-a has durably given the ownership token away: no moment has two running copies")
	during := make(chan error, 1)
	shown := make(chan string, 1)
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { during <- d.lookDuring(watching, shown) }()
	err := d.show(ctx, "host-a", "migrate", d.guest, "host-b", "--bandwidth", "20MiB/s")
	cancel()
	if err := errors.Join(err, <-during); err != nil {
		return err
	}
	select {
	case text := <-shown:
		d.out.say("allocations in Placement during the move, seen while the memory was on its way:")
		d.out.block(text)
	default:
		return errors.New("the move was over before Placement could be looked at")
	}
	text, err := d.allocationTable(ctx, "host-b")
	if err != nil {
		return err
	}
	d.out.say("and after it:")
	d.out.block(text)
	return d.look(ctx, "host-b", "claim", "list")
}

// alive proves by the guest's own words that it never rebooted.
func (d *demo) alive(ctx context.Context) error {
	d.out.act("Does the guest know?")
	proof, err := d.proof(ctx)
	if err != nil {
		return err
	}
	d.out.detail("host-a's console ends, host-b's goes on:")
	if err := d.console("host-a", 2); err != nil {
		return err
	}
	if err := d.console("host-b", 3); err != nil {
		return err
	}
	d.out.good("one boot, no beat lost, no page and no disk block wrong: %s", proof)
	return nil
}

// fail cuts the migration link half-way through a move back.
func (d *demo) fail(ctx context.Context) error {
	d.out.act("A move back that fails: the migration link is cut half-way")
	d.out.say("libvirt itself would not notice for minutes; Berth's own watchdog gives up after 8 s without a byte")
	h, err := d.f.Host("host-b")
	if err != nil {
		return err
	}
	cut := make(chan error, 1)
	go func() { cut <- d.cutWhenRunning(ctx, h) }()
	code, err := d.showCode(ctx, "host-b", "migrate", d.guest, "host-a", "--bandwidth", "4MiB/s")
	if err := errors.Join(err, <-cut, h.Heal(ctx, lab.Mig)); err != nil {
		return err
	}
	if !d.out.verbose {
		d.out.block(afterProgress(d.said))
	}
	if code != 8 {
		return fmt.Errorf("the move ended with exit code %d, want 8: failed and undone", code)
	}
	d.out.good("exit code 8: it failed and was undone; the guest never stopped")
	if err := d.look(ctx, "host-b", "instance", "list"); err != nil {
		return err
	}
	if err := d.allocations(ctx, "host-b", ""); err != nil {
		return err
	}
	if err := d.look(ctx, "host-a", "claim", "list"); err != nil {
		return err
	}
	if err := d.nothingLeft(ctx); err != nil {
		return err
	}
	proof, err := d.proof(ctx)
	if err != nil {
		return err
	}
	d.out.good("the guest: %s", proof)
	return nil
}
