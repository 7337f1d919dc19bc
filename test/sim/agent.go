package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"time"

	agents "berth/agent"
	"berth/agent/auditor"
	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/claims"
	"berth/claims/flavor"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/fleet"
	"berth/internal/runtime"
	"berth/internal/runtime/simruntime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
	"berth/placementclient"
	"berth/topology"
)

// machine is one host: what outlives its agent.
type machine struct {
	w          *world
	name       string
	provider   string // its root in Placement
	fake       *drivertest.Fake
	mem        *storetest.Memory
	files      *diskstest.Files
	capacity   topology.Resources // its amounts, but for dedicated CPUs
	hw         *hardware
	tree       *inventory.Tree // where it is counted in Placement, as last known
	shape      inventory.Shape // that its operator wants of the tree; empty for flat
	remembered reporter.Remembered

	read map[string]readClaim // by key, the last record of each claim

	boots      int
	aged       int          // the boot in which age came over it
	lives      int          // how often an agent was started
	agent      *agent       // the present one; a dead one until the next is started
	hung       bool         // its libvirtd
	off        bool         // between a crash of the machine and its boot
	forwarders []*forwarder // of streams
	away       int          // how many want its libvirtd to be away
	blind      bool         // its libvirtd cannot read
	lost       bool         // its agent never comes back
	embedded   bool         // it has the fleet's records from the embedded Placement, not from etcd
	alone      bool         // it reaches nobody
	dog        dog
	file
}

// readClaim is a claim as its record has it.
type readClaim struct {
	raw   []byte
	claim claims.Claim
}

// agent is one life of a host's agent.
type agent struct {
	w         *world
	m         *machine
	process   *simruntime.Process
	rt        runtime.Runtime
	tracker   *claims.Tracker
	host      *host.Host
	conductor *conductor.Conductor
	drainer   *drain.Drainer // nil in a story without
	client    *placementclient.Client
	driver    driver.Driver
	reporter  *reporter.Reporter // nil where nobody reports
	auditor   *auditor.Auditor   // nil as it is
	keeper    agents.Keeper      // of its records; unset in a story without
	records   *fleet.Records     // nil in a story without
	rng       *rand.Rand

	ready   bool
	settled bool          // ledger and hypervisor are joined
	begun   chan struct{} // closed when it is ready
	served  []*exchange   // that others wait for
}

func (a *agent) dead() bool { return a.process.Dead() }

// boot starts an agent on what the machine has on its disk.
func (m *machine) boot() {
	w := m.w
	if m.lost {
		return
	}
	m.lives++
	a := &agent{
		w: w, m: m, process: w.sim.Process(fmt.Sprintf("%s#%d", m.name, m.lives), fmt.Sprintf("boot-%d", m.boots)),
		rng: rand.New(rand.NewPCG(w.options.Seed, hash(m.name)+uint64(m.lives))), begun: make(chan struct{}),
	}
	a.rt = a.process
	m.agent = a
	m.mem.Live(a.rt, a.commits)
	w.note(m.name, "agent starts")
	a.process.Go("agent", a.run)
}

// hash makes a number of a name.
func hash(s string) uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	for _, c := range []byte(s) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// random is the agent's own source of claim ids and tickets.
type random struct{ *rand.Rand }

func (r random) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return len(p), nil
}

var _ io.Reader = random{}

// run is what the agent does from its start to its death: the order of
// agent.(*Agent).serve.
func (a *agent) run() {
	w, m, ctx := a.w, a.m, context.Background()
	store := ledger{a, m.mem}
	log := w.log
	var err error
	if a.client, err = a.newClient(); err != nil {
		w.violate("%s: placement client: %v", m.name, err)
		return
	}
	a.tracker, err = claims.Open(ctx, claims.Options{
		Store: a.ledgerStore(store), Runtime: a.rt, Host: m.name, Logger: log, Random: random{a.rng},
		Capacity: m.hw.capacity(m.capacity),
	})
	if err != nil {
		w.violate("%s: the ledger cannot be opened: %v", m.name, err)
		return
	}
	a.driver = a.calls(libvirt{w.fleet.Host(m.name), a})
	a.keepRecords(store)
	a.conductor = conductor.New(conductor.Config{
		Runtime: a.rt, Store: a.journalStore(store), Local: m.name, Placement: a.asks(a.client), Logger: log,
		Hosts:     func(_ context.Context, name string) (migration.Host, error) { return a.reach(name) },
		Jitter:    func(d time.Duration) time.Duration { return time.Duration(a.rng.Int64N(int64(max(d, 1)))) },
		UndoLater: 10 * time.Second, Random: random{a.rng}, Fleet: a.fleet(),
		MaxOutbound: w.limit(w.story.Outbound, ofHost), MaxPerLink: w.limit(w.story.Link, ofLink), Incoming: a.tracker.InboundFrom,
	})
	options := host.Options{
		Name: m.name, ProviderUUID: m.provider, Tracker: a.tracker, Driver: a.driver, Runtime: a.rt, Logger: log,
		Aliases: func() []flavor.Alias { return aliases }, SharedCPUs: func() topology.CPUSet { return m.hw.options.Shared }, Hardware: func() *topology.Host { return m.hw.host },
		Placement: a.allocations(), ProjectID: "project", UserID: "user", Moving: a.moving,
		Transport: w.story.transport(), Streams: streams{a}, Conducts: a.conductor.Conducts, Random: random{a.rng},
		Side:  func(_ context.Context, name string) (migration.Side, error) { return a.side(name) },
		Peers: func(_ context.Context, name string) (migration.Host, error) { return a.reach(name) }, Seals: a.seals(), ConductorSilence: conductorSilence,
		Files: m.files, Processes: w.processes(m), ImagesDirs: []string{images}, Agree: 4 * time.Second, LibvirtURI: "qemu+tls://" + m.name + "/system", MigrateURI: "tcp://" + m.name, Version: "sim",
	}
	if a.records != nil {
		options.Records = a.records
	}
	if w.story.Inbound > 0 && (w.mutant == nil || !w.mutant.Drains) {
		options.MaxInbound = func() int { return w.story.Inbound }
	}
	a.host = host.New(options)
	if w.reporting {
		a.newReporter()
	}
	a.drainer = a.newDrainer(store)
	if a.records != nil {
		if err := a.keeper.Open(ctx, a.host); err != nil {
			w.note(m.name, "agent cannot note that its boot is not confirmed:", err.Error())
		}
		if w.mutant != nil && w.mutant.Unasked {
			_, _ = a.host.ConfirmBoot(ctx, nil)
		}
	}
	a.spawn("claim leases", func() error { return a.tracker.Run(ctx) })
	a.spawn("conductor", func() error { return a.conductor.Run(ctx) })
	for !a.conductor.Running() {
		_ = a.rt.Sleep(ctx, 2*time.Millisecond)
	}
	if a.drainer != nil {
		a.spawn("drains", func() error { return a.drainer.Run(ctx) })
	}
	for begin := w.sim.Elapsed(); m.fake.Health() != nil && w.sim.Elapsed() < begin+time.Second; {
		_ = a.rt.Sleep(ctx, 10*time.Millisecond)
	}
	settled := errors.Join(a.tidy(ctx), a.host.Settle(ctx))
	if a.reporter != nil {
		first, cancel := a.rt.WithTimeout(ctx, 5*time.Second)
		known := a.reporter.Sync(first) == nil // else it is tried again
		cancel()
		a.spawn("tree in Placement", func() error { return a.keepsTree(ctx, known) })
	}
	a.ready = true
	close(a.begun)
	w.note(m.name, "agent is ready")
	for settled != nil {
		_ = a.rt.Sleep(ctx, 2*time.Second)
		settled = errors.Join(a.tidy(ctx), a.host.Settle(ctx))
	}
	a.settled = true
	a.spawn("follow", func() error { return a.host.Follow(ctx) })
	a.spawn("arrivals", func() error { return a.host.External().FollowArrivals(ctx) })
	if a.records != nil {
		a.spawn("fleet's records", func() error { return a.keeper.Run(ctx) })
	}
	if w.story.SelfFence {
		a.spawn("lease", func() error { return a.leases(ctx) })
	}
	a.spawn("sides of moves", func() error { return a.host.FollowSides(ctx) })
}

// spawn runs one of the agent's tasks.
func (a *agent) spawn(name string, f func() error) {
	a.rt.Go(name, func() {
		if err := f(); err != nil {
			a.w.violate("%s: %s: %v", a.m.name, name, err)
		}
	})
}

// moving is agent.(*Agent).moving.
func (a *agent) moving(instance string) (string, bool) {
	list, err := a.conductor.List(context.Background())
	if err != nil {
		return "", false
	}
	for _, m := range list {
		if m.InstanceUUID == instance && !m.Done() {
			return m.UUID, true
		}
	}
	return "", false
}

// kill ends the agent as kill -9 does. It is started again after a while.
func (m *machine) kill(down time.Duration) {
	if m.agent == nil || m.agent.dead() {
		return
	}
	m.end("agent killed")
	life := m.lives
	m.w.later(down, "start the agent of "+m.name, func() {
		if m.lives == life && !m.off {
			m.boot()
		}
	})
}

// end is the end of the agent, with its machine or without; whoever waits for it hears so.
func (m *machine) end(why string) {
	m.w.fault(m.name, why)
	a := m.agent
	if a == nil || a.dead() {
		return
	}
	a.process.Kill()
	m.crash()
	for _, x := range a.served {
		x.end(unreachable("connection reset by " + m.name))
	}
	a.served = nil
}

// conductorSilence is how long nothing may be heard of a third host that conducts, before
// the host that has the guest decides alone. Shorter than some of the times that a host is
// away, and longer than others.
const conductorSilence = 90 * time.Second

// discard is for agents of runs that nobody reads.
var discard = slog.New(slog.DiscardHandler)
