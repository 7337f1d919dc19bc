// Command lab brings two or more real hypervisors up on one machine and takes
// them down again; see package lab. It is for people and Makefiles; tests use
// the package.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"berth/test/guest"
	"berth/test/lab"
	"berth/test/openstack"
)

const usage = `usage: lab [-dir DIR] COMMAND

  install [-native] [-openstack] [-packaging] [-etcd] [-dbus] [-systemd] [-browser] [-prometheus]
                            add what a lab needs (packages, QEMU, a guest kernel); -native: what cgo tests need as well;
                            -openstack: OpenStack's Placement and Keystone; -packaging: what reads the rules we ship; -etcd: etcd's server;
                            -dbus: a bus for the tests of what we ask of logind; -systemd: what a machine is booted with;
                            -browser: what shows the agent's page; -prometheus: what reads our rules, and asks our metrics
  up [-owner PID] [-cells N] [-hugepages N] [HOST…]
                            bring hosts up (host-a and host-b); with -owner the lab ends with that process;
                            with N made-up NUMA cells, and N pages of 2 MiB, in each host
  down                      end the lab and remove its folder
  status                    show the hosts, their pids and sockets
  exec HOST COMMAND…        run a command in a host ("switch" is the network between them)
  cut HOST LINK             cut a host's link, mgmt or mig; packets are lost silently
  heal HOST LINK            mend it
  domain NAME [DISK…]       print the XML of a domain that boots the test guest
  refuse                    exit 1, saying why, where this machine is itself a hypervisor

DIR is $BERTH_LAB_DIR, else berth-lab in the temporary folder. Downloads are kept in $BERTH_LAB_CACHE.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	dir := os.Getenv("BERTH_LAB_DIR")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "berth-lab")
	}
	flags := flag.NewFlagSet("lab", flag.ContinueOnError)
	flags.StringVar(&dir, "dir", dir, "the lab's folder")
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	err := command(ctx, dir, flags.Arg(0), flags.Args()[1:])
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && flags.Arg(0) == "exec" {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return 0
}

func command(ctx context.Context, dir, name string, args []string) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	native := flags.Bool("native", false, "with what cgo tests need")
	withOpenStack := flags.Bool("openstack", false, "with Placement and Keystone")
	packaging := flags.Bool("packaging", false, "with what reads packaging's rules")
	etcd := flags.Bool("etcd", false, "with etcd's server, which is not started")
	bus := flags.Bool("dbus", false, "with D-Bus's daemon, of which tests start their own")
	machines := flags.Bool("systemd", false, "with what boots a machine with a systemd of its own")
	withBrowser := flags.Bool("browser", false, "with a browser for the tests of the page")
	withPrometheus := flags.Bool("prometheus", false, "with Prometheus and promtool")
	owner := flags.Int("owner", 0, "process the lab ends with")
	cells := flags.Int("cells", 0, "made-up NUMA cells of each host")
	pages := flags.Int("hugepages", 0, "pages of 2 MiB of each host")
	if name != "exec" {
		if err := flags.Parse(args); err != nil {
			return err
		}
		args = flags.Args()
	}
	switch name {
	case "install":
		packages := lab.Packages()
		if *native {
			packages = append(packages, lab.NativePackages()...)
		}
		if *packaging {
			packages = append(packages, lab.PackagingPackages()...)
		}
		if *etcd {
			packages = append(packages, lab.EtcdPackages()...)
		}
		if *bus {
			packages = append(packages, lab.BusPackages()...)
		}
		if *machines {
			packages = append(packages, lab.SystemdPackages()...)
		}
		if *withBrowser {
			packages = append(packages, lab.BrowserPackages()...)
		}
		if *withPrometheus {
			packages = append(packages, lab.PrometheusPackages()...)
		}
		if *withOpenStack {
			packages = append(packages, openstack.Packages()...)
		}
		if err := lab.Install(ctx, os.Stdout, packages...); err != nil {
			return err
		}
		if *withOpenStack {
			if err := openstack.Prepare(ctx); err != nil {
				return err
			}
		}
		// Built now, so that the first lab comes up as fast as the next.
		if err := lab.Prepare(ctx); err != nil {
			return err
		}
		_, err := guest.Build(ctx, "")
		return err
	case "domain":
		if len(args) == 0 {
			return errors.New("domain: want a name, and the paths of its disks if it has any")
		}
		g, err := guest.Build(ctx, "")
		if err != nil {
			return err
		}
		o := guest.Options{Name: args[0], Guest: g}
		for _, path := range args[1:] {
			o.Disks = append(o.Disks, guest.Disk{Path: path})
		}
		fmt.Print(guest.DomainXML(o))
		return nil
	case "up":
		begun := time.Now()
		l, err := lab.Up(ctx, lab.Options{Dir: dir, Names: args, Owner: *owner, Detached: *owner == 0, Cells: *cells, HugePages: *pages})
		if err != nil {
			return err
		}
		fmt.Printf("lab %s is up after %.1f s\n", l.Dir, time.Since(begun).Seconds())
		show(l)
		return nil
	case "down":
		return lab.Down(dir)
	case "refuse":
		return lab.Refuse(os.Getenv("FORCE") == "1")
	}
	l, err := lab.Attach(dir)
	if err != nil {
		return err
	}
	switch name {
	case "status":
		show(l)
		return nil
	case "exec":
		if len(args) < 2 {
			return errors.New("exec: want a host and a command")
		}
		h, err := l.Host(args[0])
		if err != nil {
			return err
		}
		cmd, err := h.Command(ctx, args[1:]...)
		if err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return h.Run(cmd)
	case "cut", "heal":
		if len(args) != 2 {
			return fmt.Errorf("%s: want a host and a link, mgmt or mig", name)
		}
		h, err := l.Host(args[0])
		if err != nil {
			return err
		}
		if name == "cut" {
			return h.Cut(ctx, lab.Link(args[1]))
		}
		return h.Heal(ctx, lab.Link(args[1]))
	}
	return fmt.Errorf("no command %q\n%s", name, strings.TrimSpace(usage))
}

func show(l *lab.Lab) {
	for _, h := range l.Hosts {
		fmt.Printf("  %-10s pid %-7d %s, %s-mig %s\n             %s\n", h.Name, h.InitPID(), h.MgmtIP(), h.Name, h.MigIP(), h.LibvirtSocket())
	}
	fmt.Printf("  %-10s pid %-7d %s\n", l.Switch.Name, l.Switch.InitPID(), lab.SwitchIP)
}
