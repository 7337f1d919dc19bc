package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
	"berth/test/rpcproxy"
)

// Storage is where a guest's disk stands.
type Storage string

// The storages.
const (
	Copied Storage = "copied" // on the host's own disk, and copied by the move
	Shared Storage = "shared" // where both hosts see it
)

const (
	images = "/var/lib/libvirt/images"
	// diskSize leaves room behind the blocks that a guest writes for its name.
	diskSize = 8 << 20
	// proxySocket is where a host's agent reaches its libvirtd, and proxyPort where
	// another host's libvirtd does with transport libvirt-tls: through a proxy.
	proxySocket = "/run/libvirt/berth-proxy"
	proxyPort   = "16599"
)

// bed is a fleet of two hosts between which one guest moves, with proxies in front of
// each libvirtd, and a third that conducts its moves while the two are apart.
type bed struct {
	*fleet.Fleet
	image   guest.Guest
	clients map[*lab.Host]*api.Client
	// own is the proxy between a host's agent and its libvirtd, peer that between
	// other hosts' libvirtds and its own.
	own, peer map[*lab.Host]*rpcproxy.Proxy

	name    string // the guest's; another one for each guest that was made
	id      string // its uuid
	storage Storage
	home    *lab.Host // where it runs
	guests  int
	flavor  string         // it has
	power   Power          // as its user has chosen
	memory  map[string]int // by flavor: MiB that the guest's kernel counts
	boots   guest.Boot     // the newest
	// streams: moves go through processes of their own (berth stream), which were
	// seen at work.
	streams bool
	// plain is what is there when nothing is wrong.
	plain baseline
}

// makeBed brings a fleet up below dir. Binary and guest are built.
func makeBed(ctx context.Context, dir, binary, transport string, image guest.Guest) (*bed, error) {
	config := func(address string) string {
		// Short intervals: what converges does so within a round.
		return fmt.Sprintf(`[libvirt]
socket = %q
peer_uri = "qemu+tcp://%s:%s/system"

[placement]
interval = "1s"

[migration]
stall_timeout = "4s"
claim_lease = "3s"

[rights]
share_nothing = ["user:root"]
`, proxySocket, address, proxyPort)
	}
	more := map[string]string{}
	for name, f := range flavors {
		if name != firstFlavor { // which every fleet has
			more[name] = fmt.Sprintf("name = %q\nvcpus = %d\nmemory_mb = %d\ndisk_gb = %d\n", name, f.cpus, f.memory, f.disk)
		}
	}
	f, err := fleet.Up(ctx, fleet.Options{
		Dir: dir, Binary: binary, Transport: transport, Flavors: more, Names: []string{"host-a", "host-b", "host-c"}, Conductors: []string{"host-c"},
		Config: map[string]string{"host-a": config("10.77.0.1"), "host-b": config("10.77.0.2"), "host-c": config("10.77.0.3")},
	})
	if err != nil {
		return nil, err
	}
	b := &bed{
		Fleet: f, image: image, home: f.Hosts[0],
		clients: map[*lab.Host]*api.Client{}, own: map[*lab.Host]*rpcproxy.Proxy{}, peer: map[*lab.Host]*rpcproxy.Proxy{},
	}
	if err := b.connect(); err != nil {
		return nil, errors.Join(err, b.down())
	}
	return b, nil
}

// connect starts proxies and clients.
func (b *bed) connect() error {
	for _, h := range b.Hosts {
		l, err := net.Listen("unix", h.Path(proxySocket))
		if err != nil {
			return err
		}
		b.own[h] = rpcproxy.Forward(l, h.LibvirtSocket())
		if l, err = listenIn(h, h.MgmtIP()+":"+proxyPort); err != nil {
			return err
		}
		b.peer[h] = rpcproxy.Forward(l, h.LibvirtSocket())
		if b.clients[h], err = api.NewClient(api.ClientOptions{Socket: h.Path("/run/berth/berth.sock")}); err != nil {
			return err
		}
	}
	return nil
}

// down ends everything.
func (b *bed) down() error {
	for _, h := range b.Hosts {
		for _, p := range []*rpcproxy.Proxy{b.own[h], b.peer[h]} {
			if p != nil {
				p.Close()
			}
		}
		if c := b.clients[h]; c != nil {
			c.Close()
		}
	}
	return b.Down()
}

// state is what the guest's user has chosen, as libvirt says it.
func (b *bed) state() Power { return cmp.Or(b.power, Running) }

// other is the host that h is not.
func (b *bed) other(h *lab.Host) *lab.Host {
	if h == b.Hosts[0] {
		return b.Hosts[1]
	}
	return b.Hosts[0]
}

// third is the host that conducts while the two others are apart.
func (b *bed) third() *lab.Host { return b.Hosts[2] }

// setApart keeps the two hosts of the guest from reaching each other, or lets them.
func (b *bed) setApart(ctx context.Context, apart bool) error {
	return errors.Join(b.Hosts[0].SetApart(ctx, apart), b.Hosts[1].SetApart(ctx, apart))
}

// disk is the guest's disk as a host sees it, from outside.
func (b *bed) disk(h *lab.Host) string {
	if b.storage == Shared {
		return b.diskPath()
	}
	return h.Path(b.diskPath())
}

func (b *bed) diskPath() string {
	if b.storage == Shared {
		return filepath.Join(b.SharedDir(), b.name+".img")
	}
	return images + "/" + b.name + ".img"
}

// boot makes a guest on the first host, in place of the one that is there.
func (b *bed) boot(ctx context.Context, s Storage) error {
	if b.name != "" {
		if err := b.remove(ctx); err != nil {
			return err
		}
	}
	h := b.Hosts[0]
	b.guests++
	b.home, b.storage, b.name, b.flavor, b.power = h, s, fmt.Sprintf("soak-%d", b.guests), firstFlavor, ""
	if err := os.MkdirAll(filepath.Dir(b.disk(h)), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(b.disk(h), make([]byte, diskSize), 0o644); err != nil {
		return err
	}
	if s == Shared {
		// As on a share that knows no owners. libvirt does not take a folder of this
		// machine for shared: the source's makes the file over to root when the guest
		// has left, but for its count of users in an extended attribute, which goes
		// wrong when a libvirtd is killed.
		if err := os.Chmod(b.disk(h), 0o666); err != nil {
			return err
		}
	}
	xml := guest.DomainXML(guest.Options{
		Name: b.name, Guest: b.image, Dirty: 6, Rate: 12, Beat: 50 * time.Millisecond,
		Disks: []guest.Disk{{Path: b.diskPath(), Format: "raw"}}, Devices: guest.AgentChannel,
	})
	path := "/var/lib/libvirt/" + b.name + ".xml"
	if err := os.WriteFile(h.Path(path), []byte(xml), 0o644); err != nil {
		return err
	}
	r, err := b.Berth(ctx, h.Name, "instance", "create", b.name, "--flavor", firstFlavor, "--xml", path, "--start")
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return fmt.Errorf("create guest %s: exit code %d: %s%s", b.name, r.Code, r.Stdout, r.Stderr)
	}
	wait, cancel := context.WithTimeout(ctx, truthMost)
	defer cancel()
	if b.boots, err = b.settled(wait, h, ""); err != nil {
		return err
	}
	if err := errors.Join(b.machine(b.boots, b.flavor), os.Remove(h.Path(path))); err != nil {
		return err
	}
	d, err := b.clients[h].Instance(ctx, b.name)
	b.id = d.UUID
	return err
}

// remove deletes the guest with its disk.
func (b *bed) remove(ctx context.Context) error {
	for _, args := range [][]string{{"instance", "stop", b.name, "--force"}, {"instance", "delete", b.name}} {
		if r, err := b.Berth(ctx, b.home.Name, args...); err != nil || r.Code != 0 {
			return fmt.Errorf("berth %v on %s: %w, exit code %d: %s", args, b.home.Name, err, r.Code, r.Stderr)
		}
	}
	for _, f := range []string{b.disk(b.home), b.Hosts[0].Console(b.name), b.Hosts[1].Console(b.name)} {
		if err := os.Remove(f); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// migrate asks for a move of the guest to the other host.
func (b *bed) migrate(ctx context.Context, uuid string, bandwidth uint64) error {
	_, err := b.clients[b.home].Migrate(ctx, api.Migrate{
		Instance: b.name, Destination: b.other(b.home).Name, Migration: uuid, Options: migration.Options{Bandwidth: bandwidth},
	})
	return err
}

// await polls until ok gives no complaint, or the time is over; the last
// complaint is the error.
func await(ctx context.Context, most, every time.Duration, ok func() error) error {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-within.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("after %s: %w", most, err)
		case <-time.After(every):
		}
	}
}

// agentUp starts a host's agent where it does not run, and waits until it is
// ready.
func (b *bed) agentUp(ctx context.Context, h *lab.Host) error {
	if over, _ := b.Agent(h.Name).Exited(); over {
		if err := b.StartAgent(ctx, h.Name); err != nil {
			return err
		}
	}
	return await(ctx, truthMost, 20*time.Millisecond, func() error {
		s, err := b.clients[h].Status(ctx)
		if err == nil && !s.Ready {
			err = fault.New(fault.Unavailable, "the agent of %s is not ready", h.Name)
		}
		return err
	})
}

// placementUp starts Placement where it does not run.
func (b *bed) placementUp(ctx context.Context) error {
	if over, _ := b.Placement().Exited(); over {
		return b.StartPlacement(ctx)
	}
	return nil
}

// libvirtdUp starts a host's libvirtd where it does not run.
func (b *bed) libvirtdUp(ctx context.Context, h *lab.Host) error {
	if _, err := h.LibvirtdPID(); err == nil {
		return nil
	}
	return h.StartLibvirtd(ctx)
}

// libvirtdGoesOn ends its pause. libvirtd 9.0.0 may die of what its clients did meanwhile; a
// host's systemd starts it anew.
func (b *bed) libvirtdGoesOn(ctx context.Context, h *lab.Host) error {
	if err := h.ResumeLibvirtd(); err != nil {
		return err
	}
	for range 10 {
		if _, err := h.Virsh(ctx, "uri"); err != nil {
			return b.libvirtdUp(ctx, h)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}
