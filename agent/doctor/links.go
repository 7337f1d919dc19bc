package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/placementclient"
	"berth/systemd"
)

// machine looks at the machine and at whom it talks to.
func (d *Doctor) machine(ctx context.Context) []api.Check {
	look := d.bounded(ctx)
	p := patient{
		conf: d.o.Config(), observing: d.o.Observing, root: d.o.Config().Host.Root, now: d.o.Runtime.Now(),
		synced: func() (kept bool, err error) {
			err = d.ask(ctx, func(ctx context.Context) (err error) {
				kept, err = kernelClock(ctx)
				return err
			})
			return kept, err
		},
		manager:  func() error { return d.ask(ctx, func(ctx context.Context) error { return systemd.OnBus(ctx, "") }) },
		needsBus: systemd.Manager() != nil || d.o.Config().Drain.OnShutdown,
		space: func(path string) (room, error) {
			return lookAt(ctx, &d.looks, "space of "+path, func() (room, error) { return filesystem(path) })
		},
	}
	p.host, p.cells, p.loose = d.o.Hardware()
	p.libvirt = d.o.Hypervisor.Health()
	if p.libvirt == nil {
		p.libvirt = d.ask(ctx, func(ctx context.Context) (err error) {
			p.node, err = d.o.Hypervisor.Node(ctx)
			return err
		})
	}
	p.guard = func() (g guardState) {
		g.state, g.change = d.o.Guard(p.conf.Guard.Hook)
		return g
	}
	out := append(p.machineChecks(look), d.placement(ctx), look("certificate", filepath.Dir(p.conf.PKI.Cert), d.certificate))
	return append(out, d.peers(ctx)...)
}

// kernelClock asks the kernel whether a daemon keeps the clock (adjtimex(2)), or timedated where
// the agent's sandbox holds that call back, with those that set it.
func kernelClock(ctx context.Context) (bool, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case errors.Is(err, unix.EPERM):
		return systemd.ClockKept(ctx)
	case err != nil:
		return false, fmt.Errorf("ask the kernel: %w", err)
	}
	return state != unix.TIME_ERROR, nil
}

// filesystem is what the filesystem of a folder has; of one that is not there yet, that of the
// nearest folder above it.
func filesystem(path string) (room, error) {
	var st unix.Statfs_t
	for err := unix.Statfs(path, &st); err != nil; err = unix.Statfs(path, &st) {
		if !errors.Is(err, fs.ErrNotExist) || path == filepath.Dir(path) {
			return room{}, err
		}
		path = filepath.Dir(path)
	}
	size := uint64(st.Bsize)
	return room{total: int64(st.Blocks * size), free: int64(st.Bavail * size), files: st.Ffree, counted: st.Files > 0}, nil
}

// PlacementRefuses is what helps where Placement does not let this agent in.
const PlacementRefuses = "correct [placement] auth and token, or what Keystone gives this user: Placement answers, and does not let it in"

// placement is whether it answers, and is equal to the host.
func (d *Doctor) placement(ctx context.Context) api.Check {
	const name = "placement"
	var version placementclient.Microversion
	err := d.ask(ctx, func(ctx context.Context) (err error) {
		version, err = d.o.Placement.Version(ctx)
		return err
	})
	said, failed := d.o.Reported()
	switch {
	case errors.Is(err, fault.Forbidden), errors.Is(failed, fault.Forbidden):
		return wrong(name, cmp.Or(err, failed).Error(), PlacementRefuses)
	case err != nil:
		return wrong(name, err.Error(), "start it (berth placement serves one), or correct [placement] url; guests run on meanwhile")
	case said.Health != api.HealthOK:
		var do []string
		for _, r := range said.Reasons {
			if r.Change != "" && !slices.Contains(do, r.Change) {
				do = append(do, r.Change)
			}
		}
		return wrong(name, said.Detail, cmp.Or(strings.Join(do, "; "), "see berth status"))
	}
	return right(name, "answers with microversion "+version.String()+"; "+said.Detail)
}

// met is another host as it was found.
type met struct {
	name       string
	configured bool // [peers] names it
	api.Meeting
	err error
}

// peers asks each host that is known whether the two believe each other: a row for all that
// do, and one for each that is not well.
func (d *Doctor) peers(ctx context.Context) []api.Check {
	names, err := d.hosts(ctx)
	if d.o.Identity == nil {
		if len(names) == 0 {
			return nil
		}
		return []api.Check{unset("peers", fmt.Sprintf("%d other hosts are known, and none can be asked without a certificate", len(names)), "see the certificate")}
	}
	found := make([]met, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { found[i] = d.meet(ctx, name) })
	}
	wg.Wait()
	return peerChecks(found, err, d.o.Runtime.Now())
}

// hosts are the names of the others.
func (d *Doctor) hosts(ctx context.Context) ([]string, error) {
	var names []string
	for name := range d.o.Config().Peers {
		names = append(names, name)
	}
	err := d.ask(ctx, func(ctx context.Context) error {
		providers, err := d.o.Placement.Providers(ctx, placementclient.ProviderFilter{})
		for _, p := range providers {
			if p.IsRoot() {
				names = append(names, p.Name)
			}
		}
		return err
	})
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == d.o.Host }), err
}

func (d *Doctor) meet(ctx context.Context, name string) met {
	out := met{name: name}
	_, out.configured = d.o.Config().Peers[name]
	out.err = d.ask(ctx, func(ctx context.Context) (err error) {
		out.Meeting, err = d.o.Meet(ctx, name)
		return err
	})
	return out
}

// apart is how far clocks of two hosts may be apart. Arbitrary: far below what a certificate's
// beginning and a person who compares two logs need.
const apart = 2 * time.Second

// peerChecks are a row for those that are well, and one for each that is not. A provider that
// Placement alone knows may be no host of Berth's: that nobody answers there is not wrong.
func peerChecks(found []met, unknown error, now time.Time) []api.Check {
	var well []string
	var out []api.Check
	for _, m := range found {
		name := "peer " + m.name
		switch left := m.Ends.Sub(now); {
		case m.err != nil && !m.configured && fault.KindOf(m.err) == fault.Unavailable:
			out = append(out, unset(name, "Placement knows it, and no agent answers: "+why(m.err), "start it there, if it is a host of Berth's"))
		case m.err != nil:
			out = append(out, wrong(name, why(m.err), cmp.Or(fault.RemedyOf(m.err), "see the agent's log")))
		case m.Ahead < -apart || m.Ahead > apart:
			words := "ahead of"
			if m.Ahead < 0 {
				words = "behind"
			}
			out = append(out, wrong(name, fmt.Sprintf("its clock is %s or more %s this host's", m.Ahead.Abs().Round(time.Second), words), "let one daemon keep each host's clock (systemd-timesyncd, chrony), from the same source"))
		case left < soonEnds:
			out = append(out, wrong(name, "its certificate ends on "+m.Ends.Format(time.DateOnly), renewal(m.name, "there")))
		default:
			well = append(well, m.name)
		}
	}
	all := api.Check{Name: "peers", Outcome: api.CheckOK, Detail: fmt.Sprintf("%d of %d answer, with good certificates and clocks", len(well), len(found))}
	switch {
	case unknown != nil:
		all = unset("peers", "Placement could not be asked for hosts: "+why(unknown), "see placement; [peers] are asked all the same")
	case len(found) == 0:
		all = unset("peers", "no other host is known: guests have nowhere to go", "start an agent on another host with the same Placement, or name it in [peers]")
	}
	return append([]api.Check{all}, out...)
}

// why is what went wrong in the fewest words that say it.
func why(err error) string {
	if r := fault.ReasonsOf(err); len(r) > 0 {
		return r[0].Message
	}
	return err.Error()
}
