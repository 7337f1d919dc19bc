package drivertest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// Fake is one user's connection to a fake hypervisor of a Fleet. It implements
// driver.Driver and every ability of package driver, and refuses those that its
// Node declares impossible (SetNode). Every Fleet.Host gives a new one to the
// same machine, and Close ends only the Fake it is called on.
type Fake struct {
	*machine
	closed bool // guarded by fleet.mu
}

// machine is a fake hypervisor, whoever is connected to it. All its fields but
// the first two are guarded by fleet.mu.
type machine struct {
	fleet *Fleet
	name  string

	node       driver.Node
	lacks      []string // CPU features this host does not have
	domains    map[string]*domain
	forgotten  map[string]process // those that libvirtd has lost, by UUID
	nextID     int
	power      bool // the machine is on
	daemon     bool // libvirtd runs
	hung       bool // libvirtd is stopped as by SIGSTOP
	lingers    bool // libvirtd was told to stop, and has a migration to end
	blind      bool // calls that read fail
	lives      int  // how often libvirtd has ended
	downReason string
	before     func(call, uuid string) error
	after      func(call, uuid string) error

	// What the next daemon cannot load, and what this one could not; see definitions.go.
	damaged  map[string]bool
	away     bool
	unloaded map[string]*definition

	events       streams[driver.Event]
	deviceEvents streams[driver.DeviceEvent]
	devices      map[string]driver.HostDevice
	agents       map[string]agent        // of guests, by UUID
	usage        map[string]driver.Usage // what SetUsage said, by UUID
	wired        wired
}

var (
	_ driver.Driver        = (*Fake)(nil)
	_ driver.LiveMigrator  = (*Fake)(nil)
	_ driver.StorageCopier = (*Fake)(nil)
	_ driver.PostCopier    = (*Fake)(nil)
	_ driver.GuestAgent    = (*Fake)(nil)
	_ driver.Statistician  = (*Fake)(nil)
	_ driver.DeviceWatcher = (*Fake)(nil)
	_ driver.Connector     = (*Fake)(nil)

	_ driver.DefinitionReader = (*Fake)(nil)

	_ driver.PostCopyRecoverer = (*Fake)(nil)
)

// domain is a guest on one host.
type domain struct {
	uuid, name string
	id         int // −1 when not active
	state      driver.State
	reason     driver.Reason
	live       *definition // nil when not active
	persistent *definition // nil when transient
	autostart  bool
	saved      driver.Saved
	job        *job          // outgoing or incoming, nil when none
	broken     *job          // that failed in post-copy, and may be recovered
	completed  *driver.Job   // statistics of the last completed job
	cpuTime    time.Duration // until since
	since      time.Time     // when its CPUs began to run; zero while they stand still
	frozen     bool          // its filesystems, by its agent
	fate       fate          // what the next daemon does with it
}

func newMachine(f *Fleet, name string) *machine {
	return &machine{
		fleet: f, name: name, power: true, daemon: true, domains: map[string]*domain{},
		damaged: map[string]bool{}, unloaded: map[string]*definition{},
		devices: map[string]driver.HostDevice{}, agents: map[string]agent{}, usage: map[string]driver.Usage{},
		node: driver.Node{
			// A host keeps its uuid over restarts of the test, so it comes from the name.
			UUID: uuid.NewSHA1(uuid.NameSpaceDNS, []byte(name)).String(), Hostname: name,
			Emulators:  []string{"/usr/bin/qemu-system-x86_64"},
			Hypervisor: "QEMU", HypervisorVersion: 10_000_002, LibraryVersion: 9_000_000,
			Arch: "x86_64", CPUModel: "qemu64", Machines: []string{"pc-q35-7.2", "q35"},
		},
	}
}

// Name is the host's name in the fleet.
func (h *machine) Name() string { return h.name }

// SetNode changes what Node answers.
func (h *machine) SetNode(n driver.Node) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.node = n
}

// LackFeatures names CPU features that guests may require and this host does
// not have.
func (h *machine) LackFeatures(features ...string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.lacks = features
}

// call is the frame of every method: hooks, latency, the daemon's state, then
// the effect under the lock. A changing call whose answer is lost after its
// effect is in doubt; before it, and for reads, unavailable.
func (h *Fake) call(ctx context.Context, name, uuid string, changes bool, effect func() error) error {
	f := h.fleet
	ctx, cancel := h.deadline(ctx)
	defer cancel()
	f.mu.Lock()
	before, after, latency := h.before, h.after, f.latency
	f.mu.Unlock()
	if before != nil {
		if err := before(name, uuid); err != nil {
			return err
		}
	}
	if latency > 0 {
		if err := f.rt.Sleep(ctx, latency); err != nil {
			return fault.New(fault.Unavailable, "%s on %s: %w", name, h.name, err)
		}
	}
	err := ctx.Err()
	if err != nil {
		return lost(changes, name, h.name, err)
	}
	f.mu.Lock()
	hung := h.hung && h.daemon
	f.mu.Unlock()
	switch {
	case hung && changes:
		err = h.late(ctx, name, uuid, effect)
	case hung:
		if err = h.untilAwake(ctx, name, changes); err == nil {
			err = h.effect(name, uuid, effect)
		}
	default:
		err = h.effect(name, uuid, effect)
	}
	if err == nil && !changes {
		err = h.seen(name)
	}
	if err != nil {
		return err
	}
	if latency > 0 {
		if err := f.rt.Sleep(ctx, latency); err != nil {
			return lost(changes, name, h.name, err)
		}
	}
	if after != nil {
		return after(name, uuid)
	}
	return nil
}

// effect is what the daemon does of a call.
func (h *Fake) effect(name, uuid string, effect func() error) error {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := h.openLocked(name); err != nil {
		return err
	}
	if err := h.refusesLocked(name); err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	f.checkLocked(uuid)
	return nil
}

// seen is the answer to a question of a host whose reads fail.
func (h *machine) seen(name string) error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if h.blind {
		return fault.New(fault.Unavailable, "%s on %s: libvirtd cannot read it", name, h.name)
	}
	return nil
}

// deadline is the driver's own when the caller gave none.
func (h *machine) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return h.fleet.rt.WithTimeout(ctx, 10*time.Second)
}

func lost(changes bool, name, host string, err error) error {
	if changes {
		return fault.New(fault.InDoubt, "%s on %s: no answer: %w", name, host, err)
	}
	return fault.New(fault.Unavailable, "%s on %s: no answer: %w", name, host, err)
}

func (h *machine) answersLocked(name string) error {
	if !h.power || !h.daemon {
		return fault.New(fault.Unavailable, "%s on %s: %s", name, h.name, h.downReason)
	}
	if err := h.fleet.ctx.Err(); err != nil {
		return fault.New(fault.Unavailable, "%s on %s: the fleet is closed", name, h.name)
	}
	return nil
}

func (h *Fake) openLocked(name string) error {
	if h.closed {
		return fault.New(fault.Unavailable, "%s on %s: the driver is closed", name, h.name)
	}
	return h.answersLocked(name)
}

func (h *machine) findLocked(uuid string) (*domain, error) {
	if d := h.domains[uuid]; d != nil {
		return d, nil
	}
	return nil, fault.New(fault.NotFound, "domain %s on %s", uuid, h.name)
}

func (h *machine) sortedLocked() []*domain {
	out := make([]*domain, 0, len(h.domains))
	for _, d := range h.domains {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *domain) int { return cmp.Compare(a.uuid, b.uuid) })
	return out
}

// setLocked changes a domain's state, tells the history and the event streams.
func (h *machine) setLocked(d *domain, state driver.State, reason driver.Reason, kind driver.EventKind, detail string) {
	now := h.fleet.rt.Now()
	if !d.since.IsZero() {
		d.cpuTime, d.since = d.cpuTime+now.Sub(d.since), time.Time{}
	}
	d.state, d.reason = state, reason
	if state == driver.Running {
		d.since = now
	}
	if !d.view().Active() {
		d.id, d.live, d.cpuTime, d.frozen, d.fate, d.broken = -1, nil, 0, false, kept, nil
	}
	h.fleet.recordLocked(h.name, d.uuid, fmt.Sprintf("%s (%s)", state, reason))
	h.publishLocked(driver.Event{Kind: kind, UUID: d.uuid, Name: d.name, Detail: detail})
	if d.id < 0 && d.persistent == nil {
		delete(h.domains, d.uuid)
	}
	h.fleet.checkLocked(d.uuid)
}

func (d *domain) view() driver.Domain {
	def := d.live
	if def == nil {
		def = d.persistent
	}
	v := driver.Domain{
		UUID: d.uuid, Name: d.name, ID: d.id, State: d.state, Reason: d.reason,
		Persistent: d.persistent != nil, Autostart: d.autostart,
	}
	if def != nil {
		v.VCPUs, v.MemoryMB = def.vcpus, def.memoryMB
	}
	return v
}

// Node implements driver.Driver.
func (h *Fake) Node(ctx context.Context) (n driver.Node, err error) {
	err = h.call(ctx, "Node", "", false, func() error { n = h.node; return nil })
	return n, err
}

// Domains implements driver.Driver.
func (h *Fake) Domains(ctx context.Context) (out []driver.Domain, err error) {
	err = h.call(ctx, "Domains", "", false, func() error {
		for _, d := range h.sortedLocked() {
			out = append(out, d.view())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Domain implements driver.Driver.
func (h *Fake) Domain(ctx context.Context, uuid string) (v driver.Domain, err error) {
	err = h.call(ctx, "Domain", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err == nil {
			v = d.view()
		}
		return err
	})
	return v, err
}

// XML implements driver.Driver. The documents are those that were given,
// verbatim.
func (h *Fake) XML(ctx context.Context, uuid string, what driver.Document) (doc string, err error) {
	err = h.call(ctx, "XML", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err != nil {
			return err
		}
		def := d.live
		if def == nil || what == driver.Persistent && d.persistent != nil {
			def = d.persistent
		}
		doc = def.xml
		return nil
	})
	return doc, err
}

// Define implements driver.Driver.
func (h *Fake) Define(ctx context.Context, doc string) error {
	def, err := parse(doc)
	if err != nil {
		return err
	}
	return h.call(ctx, "Define", def.uuid, true, func() error {
		for _, d := range h.domains {
			if d.name == def.name && d.uuid != def.uuid {
				return fault.New(fault.Exists, "define %s: name %s belongs to domain %s on %s", def.uuid, def.name, d.uuid, h.name)
			}
		}
		d := h.domains[def.uuid]
		if d == nil {
			d = &domain{uuid: def.uuid, name: def.name, id: -1, state: driver.ShutOff, reason: driver.ReasonUnknown}
			h.domains[def.uuid] = d
		}
		d.persistent = def
		delete(h.damaged, def.uuid)
		delete(h.unloaded, def.uuid)
		if d.live == nil {
			d.name = def.name
		}
		h.fleet.recordLocked(h.name, d.uuid, "defined")
		h.publishLocked(driver.Event{Kind: driver.EventDefined, UUID: d.uuid, Name: d.name})
		return nil
	})
}

// Undefine implements driver.Driver.
func (h *Fake) Undefine(ctx context.Context, uuid string) error {
	return h.call(ctx, "Undefine", uuid, true, func() error {
		d := h.domains[uuid]
		if d == nil || d.persistent == nil {
			return nil
		}
		if reasons := d.saved.Reasons(d.name); d.live == nil && len(reasons) > 0 {
			return fault.Refuse(fault.Forbidden, "undefine "+uuid, reasons...)
		}
		d.persistent, d.autostart = nil, false
		if d.live == nil {
			delete(h.domains, uuid)
		}
		h.fleet.recordLocked(h.name, uuid, "undefined")
		h.publishLocked(driver.Event{Kind: driver.EventUndefined, UUID: uuid, Name: d.name})
		return nil
	})
}

// Start implements driver.Driver.
func (h *Fake) Start(ctx context.Context, uuid string, paused bool) error {
	return h.call(ctx, "Start", uuid, true, func() error {
		d, err := h.findLocked(uuid)
		if err != nil || d.live != nil {
			return err
		}
		if err := h.disksHereLocked(d.persistent); err != nil {
			return err
		}
		h.startLocked(d, paused)
		return nil
	})
}

func (h *machine) startLocked(d *domain, paused bool) {
	h.nextID++
	def := *d.persistent
	d.id, d.live, d.completed, d.saved.Memory = h.nextID, &def, nil, false
	if paused {
		h.setLocked(d, driver.Paused, driver.ReasonUser, driver.EventStarted, "booted")
		return
	}
	h.setLocked(d, driver.Running, driver.ReasonBooted, driver.EventStarted, "booted")
}

// Suspend implements driver.Driver.
func (h *Fake) Suspend(ctx context.Context, uuid string) error {
	return h.call(ctx, "Suspend", uuid, true, func() error {
		d, err := h.activeLocked(uuid, "suspend")
		if err != nil || d.state == driver.Paused {
			return err
		}
		reason := driver.ReasonUser
		if d.job != nil && d.job.source == h.machine {
			reason = driver.ReasonMigrating // until the job's end, as libvirt says it
		}
		h.setLocked(d, driver.Paused, reason, driver.EventSuspended, "paused")
		return nil
	})
}

// Resume implements driver.Driver.
func (h *Fake) Resume(ctx context.Context, uuid string) error {
	return h.call(ctx, "Resume", uuid, true, func() error {
		d, err := h.activeLocked(uuid, "resume")
		if err != nil || d.state != driver.Paused {
			return err
		}
		if d.job != nil && d.job.dest == h.machine {
			return fault.New(fault.Busy, "resume %s: its memory still arrives", uuid)
		}
		h.setLocked(d, driver.Running, driver.ReasonUnpaused, driver.EventResumed, "unpaused")
		return nil
	})
}

func (h *machine) activeLocked(uuid, verb string) (*domain, error) {
	d, err := h.findLocked(uuid)
	if err == nil && d.live == nil {
		return nil, fault.New(fault.Invalid, "%s %s: domain is not running", verb, uuid)
	}
	return d, err
}

// Shutdown implements driver.Driver. The guest obeys at once.
func (h *Fake) Shutdown(ctx context.Context, uuid string) error {
	return h.stop(ctx, "Shutdown", uuid, driver.ReasonShutdown)
}

// Destroy implements driver.Driver.
func (h *Fake) Destroy(ctx context.Context, uuid string) error {
	return h.stop(ctx, "Destroy", uuid, driver.ReasonDestroyed)
}

func (h *Fake) stop(ctx context.Context, call, uuid string, reason driver.Reason) error {
	return h.call(ctx, call, uuid, true, func() error {
		d, err := h.findLocked(uuid)
		if err != nil || d.live == nil {
			return err
		}
		h.setLocked(d, driver.ShutOff, reason, driver.EventStopped, string(reason))
		return nil
	})
}

// SetAutostart implements driver.Driver.
func (h *Fake) SetAutostart(ctx context.Context, uuid string, on bool) error {
	return h.call(ctx, "SetAutostart", uuid, true, func() error {
		d, err := h.findLocked(uuid)
		if err != nil {
			return err
		}
		if d.persistent == nil {
			return fault.New(fault.Invalid, "autostart of %s: domain is transient", uuid)
		}
		d.autostart = on
		return nil
	})
}

// Health implements driver.Driver.
func (h *Fake) Health() error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if h.hung {
		return fault.New(fault.Unavailable, "libvirt on %s: no answer", h.name)
	}
	return h.openLocked("ask libvirt")
}

// Close implements driver.Driver: it ends this Fake's calls and event streams.
// The hypervisor and other connections to it go on.
func (h *Fake) Close() error {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.closed = true
	h.fleet.tellLocked()
	for _, ss := range h.streamsLocked() {
		ss.end(h)
	}
	return nil
}
