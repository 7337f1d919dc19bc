package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"berth/agent/host/demand"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/placementclient"
	"berth/topology"
)

// guest is an instance.
type guest struct {
	uuid, name string
	home       string // where it was at first
	flavor     topology.Flavor
	persistent bool
	paused     bool // by its user
	off        bool // by its user, from the start
	disk       disk

	data      string // what it wrote to its disk the last time
	writes    int
	mayBeOff  bool // its memory is lost
	torn      bool // it has lost a half in post-copy
	givenUp   bool // an operator has ended what was left of it in post-copy
	anyPower  bool // its user paused it, or let it run, while a move had it
	arriving  string
	holder    string               // that had its token last
	volume    bool                 // one was attached
	lost      *machine             // whose libvirtd has lost its process, which runs; nil for none
	saved     *savedMemory         // what virsh has saved of it; nil for nothing
	autostart bool                 // it is started when its host boots
	copies    map[string]copyState // by host
	way       way                  // by which it travels just now

	change // of a move that has it while it is off
}

// disk is how a guest's disk is kept.
type disk string

// The disks.
const (
	noDisk disk = ""
	shared disk = "shared"
	local  disk = "local"
)

// copyState is a guest's memory on one host.
type copyState int

// The states of a copy.
const (
	noCopy   copyState = iota
	incoming           // incomplete
	whole              // complete, and the newest
	stale              // complete, and the guest has run elsewhere since
	half               // of a guest in post-copy
)

// makeGuests defines, starts, claims and allocates every guest.
func (w *world) makeGuests(ctx context.Context) error {
	for _, g := range w.guests {
		m := w.machines[g.home]
		if g.disk != noDisk {
			m.files.Put(g.path(), "raw", diskSize, g.data)
		}
		t, err := claims.Open(ctx, claims.Options{Store: m.mem, Runtime: w.outside, Host: m.name, Random: random{w.rng}, Logger: discard, Capacity: m.hw.capacity(m.capacity)})
		if err != nil {
			return err
		}
		var d demand.Demand
		var given topology.Assignment
		for _, f := range []topology.Flavor{g.flavor, plain(g.flavor), small, tiny} { // what others have it cannot be given
			g.flavor, d = f, demandOf(f)
			if given, err = t.Room(d.Resources, d.Topology, d.PCI); err == nil {
				break
			}
		}
		text, err := m.document(g, d, given)
		if err != nil {
			return err
		}
		if err := m.fake.Define(ctx, text); err != nil {
			return err
		}
		if !g.off {
			if err := m.fake.Start(ctx, g.uuid, g.paused); err != nil {
				return err
			}
			g.copies[g.home] = whole
		}
		if !g.persistent {
			if err := m.fake.Undefine(ctx, g.uuid); err != nil {
				return err
			}
		}
		// Not by Berth's own creation, whose disks and documents are not what is looked at
		// here, but what it leaves.
		if _, err := t.Adopt(ctx, claims.Instance{UUID: g.uuid, Name: g.name, Flavor: g.flavor, ProjectID: "project", UserID: "user", Autostart: g.autostart},
			claims.Found{Resources: d.Resources, Topology: d.Topology, PCI: d.PCI, Assignment: given}); err != nil {
			return err
		}
		w.tokensOf(m)
		if err := w.placement.admin.PutAllocations(ctx, g.uuid, placementclient.Allocations{
			Allocations: m.place(d.Resources, given), ProjectID: "project", UserID: "user", ConsumerType: placementclient.ConsumerInstance,
		}); err != nil {
			return err
		}
	}
	return nil
}

// document is the guest's domain document on a machine that has given it this.
func (m *machine) document(g *guest, d demand.Demand, given topology.Assignment) (string, error) {
	text := g.document()
	if given.IsZero() {
		return text, nil
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", err
	}
	err = doc.Change(domainxml.Change{
		Binding: domainxml.Binding{Place: domainxml.Place{Topology: d.Topology, Assignment: given, SharedCPUs: m.hw.options.Shared, SharedByCell: m.hw.shared()}},
		VCPUs:   g.flavor.VCPUs, MemoryMB: g.flavor.MemoryMB,
	})
	return doc.String(), err
}

// document is it without anything that names its host.
func (g *guest) document() string {
	disk := ""
	if g.disk != noDisk {
		disk = fmt.Sprintf(`<disk type="file" device="disk"><driver name="qemu" type="raw"/><source file="%s"/><target dev="vda" bus="virtio"/></disk>`, g.path())
	}
	return fmt.Sprintf(`<domain type="qemu"><name>%s</name><uuid>%s</uuid><memory unit="MiB">%d</memory><vcpu>%d</vcpu>`+
		`<os><type arch="x86_64" machine="q35">hvm</type></os><devices>%s</devices></domain>`, g.name, g.uuid, g.flavor.MemoryMB, g.flavor.VCPUs, disk)
}

// volumePath is the volume that its user attaches, which every host reaches through the
// network.
func (g *guest) volumePath() string { return "volumes/" + g.name }

// attached is a user who attaches a volume to his guest where it waits to be confirmed, in
// its definition.
func (g *guest) attached(w *world) {
	ctx := context.Background()
	for _, name := range w.names {
		m := w.machines[name]
		if g.volume || !m.holds(g) || m.off || m.away > 0 || m.hung || m.blind || !w.verifying(g) {
			continue
		}
		text, err := m.fake.XML(ctx, g.uuid, driver.Persistent)
		if err != nil {
			return
		}
		volume := `<disk type="network" device="disk"><driver name="qemu" type="raw"/><source protocol="rbd" name="` + g.volumePath() + `"><host name="ceph" port="6789"/></source><target dev="vdb" bus="virtio"/></disk>`
		w.fault(m.name, "a user attaches a volume to "+g.name)
		if err := m.fake.Define(ctx, strings.Replace(text, "</devices>", volume+"</devices>", 1)); err != nil {
			w.note("user", "virsh:", err.Error())
			return
		}
		g.volume = true
		w.look()
		return
	}
}

// The folders of disks: each host's own, and one that all share.
const (
	images = "/images"
	common = "/images/nfs"
)

// path is where the guest's disk is.
func (g *guest) path() string {
	if g.disk == shared {
		return common + "/" + g.name + ".raw"
	}
	return images + "/" + g.name + ".raw"
}

// changesFile is the point before each change of a host's files by its agent.
func (w *world) changesFile(host, step, path string) error {
	a := w.machines[host].agent
	if a == nil {
		return nil // the world is being made
	}
	what := "disks " + step + " " + path
	if w.before(a, ofDisk, what) == refused {
		return errors.New("input/output error")
	}
	return nil
}
