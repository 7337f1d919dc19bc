package host

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"berth/agent/host/admission"
	"berth/agent/host/attempts"
	"berth/agent/host/change"
	"berth/agent/host/disks"
	"berth/agent/host/dispatch"
	"berth/agent/host/external"
	"berth/agent/host/fileusers"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/networks"
	"berth/agent/host/phases"
	"berth/agent/host/processes"
	"berth/agent/host/remake"
	"berth/agent/host/shipping"
	"berth/agent/host/streams"
	"berth/agent/host/vanished"
	"berth/agent/host/volumes"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/stuck"
	"berth/migration"
	"berth/systemd"
	"berth/topology"
)

// ModeObserve is the mode in which nothing is written to libvirt, Placement or
// hooks.
const ModeObserve = "observe"

// Options are what a Host is made of.
type Options struct {
	Name         string // provider's name
	ProviderUUID string
	Tracker      *claims.Tracker
	Driver       driver.Driver
	Runtime      runtime.Runtime
	Logger       *slog.Logger  // nil for slog.Default()
	Random       io.Reader     // for uuids of guests and arrivals; nil for the machine's
	Mode         func() string // ModeObserve or manage; nil for manage
	Placement    Placement     // nil: nobody keeps allocations
	// ProjectID and UserID are those of guests for which nobody names any, adopted
	// ones before all: Placement takes no allocation without.
	ProjectID, UserID string
	// Moving names the migration that a conductor of this agent has not ended
	// yet for an instance, before and after the ledger shows one; nil where there
	// is no conductor.
	Moving func(instance string) (migration string, moving bool)

	// Conducts says what the conductor of this agent has of an attempt; nil where there
	// is none. Side reaches the other host of a move; nil for none.
	Conducts func(migration string, attempt int) migration.Conduct
	Side     func(ctx context.Context, host string) (migration.Side, error)
	// Peers finds another host, to which disks are shipped straight; nil where there is none.
	Peers func(ctx context.Context, name string) (migration.Host, error)
	// Silence is how long nothing is heard of an arrival's conductor before the source is
	// asked what became of the move; 0 for 30 s.
	Silence time.Duration
	// ConductorSilence is how long nothing is heard of a third host that conducts a move
	// before the host which has the guest's token decides alone that the guest stays; 0 for
	// 15 min. It counts on the boot clock, and anew after this host's own restart.
	ConductorSilence time.Duration

	// MaxInbound is with how many guests on their way here a queued move has to wait; 0, or
	// nil, for no bound.
	MaxInbound func() int

	// Seals signs commits that a third host carries, and checks theirs; nil where none is
	// needed.
	Seals Seals

	// Owners keeps the guard's owner files, Fleet reaches the other hosts for guests
	// that come by foreign migrations; nil for none.
	Owners external.Owners
	Fleet  external.Fleet

	// Records are what hosts keep of each other, for guests that come from dead ones; nil where
	// there are none, and then none come.
	Records FleetRecords

	// Aliases are the names by which flavors ask for PCI devices; SharedCPUs the
	// CPUs that guests share, empty where none are kept apart; Hardware what is
	// known of the machine, nil while nothing is. All may be nil.
	Aliases    func() []flavor.Alias
	SharedCPUs func() topology.CPUSet
	Hardware   func() *topology.Host

	HooksDir string                          // of <phase>/NN-name; empty for none
	Hook     func(hook string) hooks.Setting // configuration of "<phase>/NN-name"; nil for defaults

	// ImagesDirs are the folders in which disks may be made for guests that
	// arrive; empty for all but the system's own. The first is where new guests'
	// disks go that name no folder.
	ImagesDirs []string
	// Allowed is what instances of other hosts may name here, beside what they may anyway; nil
	// for nothing.
	Allowed func() Allowed
	// LastNode is what the hypervisor said of itself the last time, nil while it has not: the
	// guard asks it nothing. Without the function the hypervisor is asked.
	LastNode func() *driver.Node
	// SharedDirs are folders that other hosts see, whatever their filesystem is.
	SharedDirs []string
	// Elsewhere asks other hosts and the fleet's records who uses files; nil where there are
	// none.
	Elsewhere fileusers.Elsewhere
	DiskTool  string // qemu-img; empty for the one in $PATH
	// DiskReserve is how much is left free of each filesystem to which disks are shipped,
	// bytes.
	DiskReserve int64
	Files       Files // nil for this machine's own, below Root and with DiskTool
	// Processes finds the processes of instances; nil for this machine's own, below Root.
	Processes processes.Finder
	// Links are the kernel's network devices, nil for this machine's own; OpenVSwitch its
	// switch, nil for the one that ovs-vsctl reaches.
	Links       networks.Links
	OpenVSwitch *networks.OpenVSwitch
	// Root is where this process sees the hypervisor's /; empty when both see the
	// same.
	Root string

	LibvirtURI string // this host's libvirt as another libvirtd reaches it
	MigrateURI string // where memory and disks go; empty lets libvirt say
	// ListenAddress replaces a source's own address in graphics and consoles of
	// guests that arrive; empty leaves wildcard and loopback addresses, and makes
	// others loopback.
	ListenAddress string
	StreamTLS     bool // memory and disks by QEMU's own TLS, where libvirt's TLS is the transport
	Version       string
	// Transport is how guests come here; empty for libvirt's TLS. Streams are the
	// processes for the other way, nil for none. They serve guests that leave too,
	// whatever Transport is: their destination says how they come.
	Transport migration.Transport
	Streams   Streams

	// Poll is how often jobs and shutting-down guests are looked at; 0 for 100 ms.
	Poll time.Duration
	// Agree is the time between the two reads that must agree before a claim of
	// a vanished guest is released; 0 for 2 s.
	Agree time.Duration
	// Round is told each time that one of the loops "instances", "sides of moves" and "arrivals" has
	// come round; nil for nobody.
	Round func(loop string)
	// Look is how often all guests are looked at for changes that no event told of;
	// 0 for five times Agree.
	Look time.Duration
}

// Host implements migration.Host for this machine, and the instance verbs.
type Host struct {
	o          Options
	log        *slog.Logger
	tracker    *claims.Tracker
	driver     driver.Driver
	rt         runtime.Runtime
	operations *dispatch.Dispatcher
	attempts   *attempts.Ledger
	memory     *memory.Memory // what the verbs remember, and whose turn it is
	streams    *streams.Streams
	bench      *remake.Bench
	changer    *change.Changes
	gate       *admission.Gate      // for what instances of other hosts name here
	external   *external.Migrations // that Berth does not conduct
	files      Files
	witness    processes.Witness // of what libvirt calls off
	phases     *phases.Phases
	ctx        context.Context // of the actors; ends with Close
	cancel     context.CancelFunc
	actors     runtime.Group
	// migrator serves moves that have begun, nil where the driver's code knows none:
	// what they ask must not cost a question more while a guest stands still.
	// Whether the hypervisor can is asked where a move is checked
	// (driver.LiveMigration).
	migrator driver.LiveMigrator

	// mu guards the fields below up to the blank line. Nothing but map work and starting an
	// actor happens under it, and no other lock is taken.
	mu       sync.Mutex
	closed   bool           // no actor starts any more
	starting map[string]int // by instance: this process starts it now, see Starts
	// What Follow saw the last time, by instance; see use.go and strangers.go.
	uses      map[string]use
	round     string // the guest whose document is read next for changes that nothing tells of
	strangers map[string]stranger
	started   map[string]bool // unmanaged guests whose start was seen
	silent    time.Duration   // until when, on the boot clock, Placement is not asked for allocations that follow

	vanished *vanished.Watch // instances without a domain, and whether they were undefined

	later   later          // instances for which the start waits; see later.go
	sides   sides          // what is known of the conductors of arrivals; see sides.go
	boot    bootWait       // which guests may not be started yet; see returned.go
	origins origins        // which instances that came by a move are confirmed; see origin.go
	dock    *shipping.Dock // where disks that are shipped come and go

	// telling makes what the tracker is told of strangers come in order. Taken before mu.
	telling sync.Mutex

	// pooling makes changes to the list of started pools come one after another. Durable
	// writes happen under it, nothing else; taken last.
	pooling runtime.Lock
}

var _ migration.Host = (*Host)(nil)

// New makes a Host. It reads and writes nothing; Settle is for that.
func New(o Options) *Host {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Mode == nil {
		o.Mode = func() string { return "manage" }
	}
	if o.Poll <= 0 {
		o.Poll = 100 * time.Millisecond
	}
	if o.Agree <= 0 {
		o.Agree = 2 * time.Second
	}
	if o.Round == nil {
		o.Round = func(string) {}
	}
	if o.Silence <= 0 {
		o.Silence = 30 * time.Second
	}
	if o.ConductorSilence <= 0 {
		o.ConductorSilence = 15 * time.Minute
	}
	if o.Look <= 0 {
		o.Look = 5 * o.Agree
	}
	h := &Host{
		o: o, log: o.Logger.With("host", o.Name), tracker: o.Tracker, driver: o.Driver, rt: o.Runtime,
		memory: memory.New(o.Tracker, o.Runtime), attempts: &attempts.Ledger{Host: o.Name, Tracker: o.Tracker, Conducting: o.Moving}, files: o.Files,
		starting: map[string]int{},
		uses:     map[string]use{}, strangers: map[string]stranger{}, started: map[string]bool{},
	}
	calls := &stuck.Calls{} // of files and processes that may not answer
	if h.files == nil {
		h.files = disks.Files{Root: o.Root, Tool: o.DiskTool, Manager: systemd.Manager(), BootID: o.Runtime.Boot().ID}.Bounded(calls)
	}
	if o.Processes == nil {
		o.Processes = processes.Table{Root: o.Root, Calls: calls}
	}
	h.witness = processes.Witness{Finder: o.Processes, Writers: h.files}
	h.sides.init()
	h.vanished = vanished.New(vanished.Options{Runtime: o.Runtime, Tracker: o.Tracker, Logger: h.log, Definitions: definitionsOf(o.Driver), Processes: o.Processes})
	h.phases = phases.New(phases.Options{
		Attempts: h.attempts, Memory: h.memory, Runtime: o.Runtime, Logger: h.log,
		Runner: &hooks.Runner{Dir: o.HooksDir, Setting: o.Hook, Manager: systemd.Manager(), Runtime: o.Runtime, Logger: h.log},
	})
	h.migrator, _ = o.Driver.(driver.LiveMigrator)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.dock, h.streams = h.newDock(), h.newStreams()
	h.bench = h.newBench()
	h.changer = h.newChanges()
	h.external = h.newExternal()
	h.gate = &admission.Gate{
		Host: o.Name, Images: o.ImagesDirs, Driver: o.Driver, Files: h.files, Allowed: o.Allowed, LastNode: o.LastNode,
		VolumePath: func(ctx context.Context, pool, volume string) (string, bool, error) {
			return h.volumePath(ctx, volumes.Disk{Pool: pool, Volume: volume})
		},
	}
	h.operations = &dispatch.Dispatcher{Handlers: h.handlers(), Memory: h.memory, Managing: func() error { return h.managing("") }}
	return h
}

// Close stops watching streams and waits for the watchers. Jobs and guests go
// on in the hypervisor; a later Host on the same ledger adopts them.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.cancel()
	h.actors.Wait(h.rt)
}

// spawn runs f as an actor that Close waits for; false when Close was first.
func (h *Host) spawn(name string, f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.actors.Go(h.rt, name, f)
	return true
}

// spawnUntilClose is spawn for what needs a context that ends with the agent.
func (h *Host) spawnUntilClose(name string, f func(ctx context.Context)) bool {
	return h.spawn(name, func() { f(h.ctx) })
}

// Describe implements migration.Host; the facts are libvirt's own.
func (h *Host) Describe(ctx context.Context) (migration.Description, error) {
	n, err := h.driver.Node(ctx)
	if err != nil {
		return migration.Description{}, fault.New(fault.KindOf(err), "describe host %s: %w", h.o.Name, err)
	}
	return h.description(n), nil
}

func (h *Host) description(n driver.Node) migration.Description {
	d := migration.Description{
		Name: h.o.Name, ProviderUUID: h.o.ProviderUUID, HostUUID: n.UUID, Mode: h.o.Mode(),
		Hypervisor: n.Hypervisor, HypervisorVersion: uint64(n.HypervisorVersion), LibvirtVersion: uint64(n.LibraryVersion),
		BerthVersion: h.o.Version, Arch: n.Arch, CPU: hypervisorCPU(n), LibvirtURI: h.o.LibvirtURI, MigrateURI: h.o.MigrateURI,
		Providers: h.providers(),
	}
	h.streams.Describe(&d)
	return d
}

// managing is nil in mode manage.
func (h *Host) managing(doing string) error {
	if h.o.Mode() != ModeObserve {
		return nil
	}
	return fault.Refuse(fault.Forbidden, doing, observing(h.o.Name))
}

func observing(host string) fault.Reason {
	return fault.Reason{
		Code: "mode_observe", Message: "host " + host + " only observes", Have: ModeObserve, Want: "manage",
		Change: `set [agent] mode = "manage" on ` + host,
	}
}

// The steps under which verbs remember. They are apart from those of tombstones (operation.StepClaim
// and others), since the ledger takes nothing more for a step that has one, and an undo and the
// end of a stream have something to write.
const (
	memoryPrepared = "prepared"
	memoryAccepted = "accepted"
)

// domain reads a domain; false when the hypervisor says that there is none.
// Every other failure is an error.
func (h *Host) domain(ctx context.Context, uuid string) (driver.Domain, bool, error) {
	return driver.Find(ctx, h.driver, uuid)
}

// wrap says what was being done, and keeps kind and reasons.
func wrap(err error, format string, args ...any) error { return fault.Wrap(err, format, args...) }
