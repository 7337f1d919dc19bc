package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/agent/answers"
	"berth/agent/api"
	"berth/agent/auditor"
	"berth/agent/death"
	"berth/agent/doctor"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/agent/host/hooks"
	"berth/agent/lease"
	"berth/agent/reporter"
	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/internal/config"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/stuck"
	"berth/internal/version"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
	"berth/placementclient"
	"berth/systemd"
	"berth/topology"
)

// Options are what an agent is made of.
type Options struct {
	Config     config.Config
	ConfigPath string         // read again on Reload
	Level      *slog.LevelVar // follows log_level on a reload; nil for nobody
	Logger     *slog.Logger
	Runtime    *runtime.System
	Started    time.Time // of the process; for the start-up time

	// Driver makes the hypervisor's driver; it connects by itself.
	Driver func(config.Libvirt, runtime.Runtime) driver.Driver

	// Reload asks for the configuration to be read again.
	Reload <-chan os.Signal

	// Listeners are sockets that systemd holds, by name: "api" is the local one,
	// "peers" the one for hosts. What is missing is opened here.
	Listeners map[string][]net.Listener

	// FleetStore makes the way to the fleet's records in place of the configured one, for
	// tests; nil for that.
	FleetStore func(config.Config) (fleet.Store, error)

	// NovaComputeID is where nova-compute keeps its node's uuid, and Proc where
	// processes are looked for; empty for the machine's own.
	NovaComputeID, Proc string

	made func(*Agent) // given the agent before it opens anything, for tests; nil for nobody
}

// Agent is one running daemon.
type Agent struct {
	opt  Options
	log  *slog.Logger
	rt   *runtime.System
	name string
	uuid string // of the provider

	calls stuck.Calls // of file systems and processes that may not answer

	conf    atomic.Pointer[config.Config]
	flavors atomic.Pointer[map[string]topology.Flavor]
	grants  atomic.Pointer[grants]

	db          *store.DB
	ledger      *ledger
	tracker     *claims.Tracker
	driver      driver.Driver
	identity    *pki.Identity // nil without certificates
	noPeers     error         // why identity is nil
	noFiles     bool          // it is nil because no certificate was ever put here
	placement   *placementclient.Client
	reporter    *reporter.Reporter
	auditor     *auditor.Auditor
	host        *host.Host
	conductor   *conductor.Conductor
	hardware    *hardware
	hypervisor  *hypervisor
	health      *health
	loops       progress      // for the watchdog
	asked       answers.Table // for status: when loops came round, and other hosts answered
	peers       *peers
	streams     *streams
	server      *api.Server
	guardian    *guardian
	keeper      *keeper
	lost        *unevacuated
	deaths      *death.Proofs
	leaseKeeper *lease.Keeper
	drainer     *drain.Drainer
	shutdowns   *shutdowns
	doctor      *doctor.Doctor
	metering    *metering
	probes      *probes
	auditLog    *auditLog
	page        *page
	// recognised is closed once libvirt was seen to be the one that this ledger is of.
	recognised chan struct{}
	recovered  chan struct{} // closed when the start has settled what it can

	ready    atomic.Bool
	stopping atomic.Bool
	readyAt  atomic.Int64 // milliseconds from the process's start; 0 before
	settled  atomic.Pointer[error]
	// stranger is why this host's identity is not believed; nil pointer or error
	// where it is.
	stranger atomic.Pointer[error]
	// foreign is why Placement's provider is somebody else's; as stranger.
	foreign atomic.Pointer[error]
	// disabled is why this host gets no new guests; nil while it takes them.
	// settingHost is held while it is changed, over the write of its record.
	disabled       atomic.Pointer[api.Disabled]
	settingHost    sync.Mutex
	providerConfig atomic.Pointer[providerConfig]
	// deaf is why nobody listens for peers; nil pointer where somebody does.
	deaf atomic.Pointer[error]
	// faults are what could not be had at the start, by part; see degraded.go.
	faults faults
	// answers says that Placement answered during the start.
	answers bool
}

// startPatience is how long the start waits for libvirt before it goes on
// without: arbitrary, above what a healthy daemon takes to answer.
const startPatience = time.Second

// stopPatience is how long requests in progress may take once the agent goes
// down; systemd's TimeoutStopSec is above it.
const stopPatience = 20 * time.Second

// Run starts the agent, serves until ctx ends, and stops it. Its error says why
// it could not start, or which task failed; nil after an ordered stop.
func Run(ctx context.Context, o Options) (err error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	if o.made != nil {
		o.made(a)
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.open(ctx); err != nil {
		return err
	}
	listeners, err := a.listen()
	if err != nil {
		return err
	}
	return a.serve(ctx, listeners)
}

func (a *Agent) config() config.Config { return *a.conf.Load() }

func (a *Agent) observing() bool { return a.opt.Config.Agent.Mode == config.Observe }

// open makes all parts, in order. What it opened is closed by close, also after
// an error.
func (a *Agent) open(ctx context.Context) error {
	c := a.config()
	if err := a.identify(c); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Agent.StateDir, 0o700); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	var err error
	if err = a.openLedger(ctx, c); err != nil {
		return err
	}
	a.identifyProvider(ctx, c)
	a.loadDisabled(ctx)
	flavors, err := readFlavors(c.Agent.FlavorsDir)
	a.faults.note(partFlavors, err) // those that could be read are there
	a.flavors.Store(&flavors)
	given, err := readGrants(c.Rights, machineAccounts())
	a.faults.note(partRights, err) // the others have theirs
	a.grants.Store(given)
	a.loadIdentity(c)
	if a.placement, err = a.newPlacement(c); err != nil {
		return err
	}
	if c.Agent.Mode == config.Manage {
		if err := a.mayManage(ctx); err != nil {
			return err
		}
	}
	a.metering, a.probes = newMetering(a), newProbes(a)
	a.tracker, err = claims.Open(ctx, claims.Options{Store: a.db, Runtime: loop{a.rt, &a.loops, "claim leases"}, Host: a.name, Logger: a.log, Tolerant: true, Meter: a.metering.shown})
	if err == nil {
		err = a.ledger.missing(ctx, a.tracker.Unread())
	}
	if err != nil {
		return err
	}
	a.driver = a.opt.Driver(c.Libvirt, a.rt)
	a.hardware, a.hypervisor = newHardware(a), &hypervisor{a: a}
	a.loadProviderConfig(ctx)
	a.peers = newPeers(a)
	if c.Agent.Mode == config.Manage {
		// Before anything is managed: the hook goes by it from now on. Where it cannot be
		// left, nothing new is managed.
		a.faults.withhold(partMarker, guard.MarkManaged(c.Agent.StateDir))
	}
	a.hardware.read(ctx, false)
	remembered := a.reported(ctx)
	a.makeParts(c, remembered)
	a.health = newHealth(a)
	// Before anything can be started.
	return a.keeper.open(ctx)
}

// recover joins journal, ledger, hypervisor and Placement. The journal comes
// first: settling must know which guests are on a move, and whoever asks for a
// migration after a restart must not be told that there is none.
func (a *Agent) recover(ctx context.Context) {
	for ctx.Err() == nil && !a.conductor.Running() {
		// Its end is looked at in the loop.
		_ = a.rt.Sleep(ctx, 2*time.Millisecond)
	}
	if a.ledger.state() == nil {
		if err := a.streams.tidy(ctx); err != nil {
			a.log.Warn("streams that nobody needs could not be ended", "error", err)
		}
	}
	a.awaitLibvirt(ctx)
	a.settle(ctx)
	if a.answers && a.ledger.state() == nil {
		a.firstReport(ctx)
	}
}

// firstReport makes Placement equal to the host before anybody is told that the
// agent is ready, where Placement is there. What fails is tried again by Run.
func (a *Agent) firstReport(ctx context.Context) {
	ctx, cancel := a.rt.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := a.reporter.Sync(ctx); err != nil {
		a.log.Warn("placement is not equal to the host yet", "error", err)
	}
}

// makeParts makes host, conductor, reporter and server. None of them does
// anything yet.
func (a *Agent) makeParts(c config.Config, remembered reporter.Remembered) {
	mode := func() string { return string(c.Agent.Mode) }
	a.streams = newStreams(a)
	a.guardian, a.recovered, a.recognised = newGuardian(a), make(chan struct{}), make(chan struct{})
	a.keeper, a.lost = newKeeper(a), &unevacuated{a: a, memory: a.db}
	a.deaths, a.leaseKeeper = death.New(provenDead(a)), lease.New(leased(a))
	a.host = host.New(host.Options{
		Name: a.name, ProviderUUID: a.uuid, Tracker: a.tracker, Driver: a.driver, Runtime: a.rt, Logger: a.log, Mode: mode,
		Placement: a.allocations(), ProjectID: c.Placement.ProjectID, UserID: c.Placement.UserID, Moving: a.moving,
		Owners: a.guardian.owners, Fleet: foreignFleet{a}, Records: a.keeper.forHost(), Conducts: a.conducts, Side: a.side,
		Peers: a.peers.host, Seals: seals{a.identity, a.rt}, ConductorSilence: c.Migration.ConductorSilence.D(), MaxInbound: a.maxInbound,
		Aliases: a.aliases, SharedCPUs: a.sharedCPUs, Hardware: a.believed,
		HooksDir: c.Agent.HooksDir, Hook: func(name string) hooks.Setting {
			h := c.Hooks[name]
			return hooks.Setting{Timeout: h.Timeout.D(), OnFailure: h.OnFailure}
		},
		ImagesDirs: []string{c.Host.DiskPath}, Allowed: a.allowed, LastNode: a.hypervisor.lastNode, DiskReserve: c.Host.ReservedDiskGB << 30,
		SharedDirs: c.Host.SharedDirs, Elsewhere: a.usersElsewhere,
		LibvirtURI: strings.ReplaceAll(c.Libvirt.PeerURI, "{name}", a.name), MigrateURI: migrateURI(c.Migration.Address),
		StreamTLS: c.Migration.TLS, Version: version.Get().String(),
		Transport: migration.Transport(c.Migration.Transport), Streams: a.streams,
		Round: func(loop string) { a.asked.Round(loop, a.rt.Now()) },
	})
	a.keeper.a.host = a.host
	a.conductor = conductor.New(conductor.Config{
		Runtime: a.rt, Store: a.db, Local: a.name, Hosts: a.peers.host, Ready: a.ledger.known, Placement: a.placement, Logger: a.log,
		Fleet:        a.lostGuests(),
		StallTimeout: c.Migration.StallTimeout.D(), Lease: c.Migration.ClaimLease.D(), AttemptTimeout: c.Migration.AttemptTimeout.D(),
		MaxOutbound: a.maxOutbound, MaxPerLink: a.maxPerLink, Incoming: a.tracker.InboundFrom,
		NearWeight: a.nearWeight, ConfirmWindow: c.Migration.ResizeConfirmWindow.D(), ShutdownTimeout: shutdownTimeout(c.Migration),
	})
	a.drainer = a.newDrainer()
	a.shutdowns = newShutdowns(a)
	a.doctor = doctor.New(examined(a))
	a.reporter = reporter.New(a.reporting(c, remembered))
	a.auditor = a.newAuditor(c)
	a.auditLog, a.page = newAuditLog(a), newPage(a)
	a.auditLog.open()
	a.server = api.NewServer(api.Options{
		Services: api.Services{
			Agent: agentService{a}, Instances: instanceService{a}, Claims: claimService{a}, Migrations: migrationService{a},
			Plans: planService{a}, Verbs: verbs{a.host, a}, Parties: parties{a.tracker}, Moves: recordedMoves(a), Rights: rights{a}, Peer: a.peers.client,
			Guard: a.guardian, Foreign: hookService{a.host.External(), a}, Audits: auditService{a}, Sides: sideService{a}, Settle: settleService{a},
			Deaths: a.deaths, Fleet: fleetService{a}, Drains: drainService{a}, Doctor: a.doctor,
		},
		Name: a.name, Identity: a.identity, Runtime: a.rt, Logger: a.log, Started: a.recovered, Closed: a.ledger.state, Probes: a.probes,
		AuditLog: a.auditLog.write,
	})
}

// reporting are the options of the reporter.
func (a *Agent) reporting(c config.Config, remembered reporter.Remembered) reporter.Options {
	return reporter.Options{
		Placement: a.placement, Runtime: sleeper{a.rt, &a.asked, loopPlacement}, Logger: a.log, Name: a.name, UUID: a.uuid,
		Input: a.hardware.input, Found: a.hardware.found, Estranged: a.estrange,
		Held: a.hardware.heldBy, Moving: a.hardware.moving, Migration: a.hardware.isMigration,
		Remembered: remembered, Keep: a.keepReported,
		Interval: c.Placement.Interval.D(), Observe: a.observing() || a.faults.held() != nil,
	}
}

// shutdownTimeout is what the conductor takes for it: there 0 stands for the default.
func shutdownTimeout(c config.Migration) time.Duration {
	if c.ShutdownTimeout == 0 {
		return -1
	}
	return c.ShutdownTimeout.D()
}

// migrateURI is where memory and disks go: an address of this host, or libvirt's
// own choice.
func migrateURI(address string) string {
	if address == "" {
		return ""
	}
	if ip := net.ParseIP(address); ip != nil && ip.To4() == nil {
		address = "[" + address + "]"
	}
	return "tcp://" + address
}

// moving names the migration that the conductor works on for an instance. One that is
// finished and waits to be confirmed or reverted is in the ledger alone: its guest may be
// started and stopped.
func (a *Agent) moving(instance string) (string, bool) {
	list, err := a.conductor.List(context.Background())
	if err != nil {
		return "", false
	}
	for _, m := range list {
		if m.InstanceUUID == instance && !m.Done() && m.Stage != migration.StageFinished {
			return m.UUID, true
		}
	}
	return "", false
}

// awaitLibvirt gives the driver a moment to connect.
func (a *Agent) awaitLibvirt(ctx context.Context) {
	ctx, cancel := a.rt.WithTimeout(ctx, startPatience)
	defer cancel()
	for ctx.Err() == nil && a.driver.Health() != nil {
		// Its end is looked at in the loop.
		_ = a.rt.Sleep(ctx, 10*time.Millisecond)
	}
}

// settle joins ledger and hypervisor once, and remembers how that went.
func (a *Agent) settle(ctx context.Context) {
	err := a.driver.Health()
	if err == nil {
		err = a.recognise(ctx)
	}
	if err == nil {
		err = a.ledger.round(ctx)
	}
	if err == nil {
		a.guardian.recognised()
		err = a.host.Settle(ctx)
	}
	a.settled.Store(&err)
	if err != nil {
		a.log.Warn("not settled yet: ledger and hypervisor could not be joined", "error", err)
	}
}

// task is one long-lived part of the agent.
type task struct {
	name string
	run  func(context.Context) error
}

func (a *Agent) tasks() []task {
	return []task{
		{"claim leases", a.tracker.Run},
		// Among the first: a watchdog that an agent before this one has left armed does not wait.
		{"lease", a.leaseKeeper.Run},
		{"hardware", a.hardware.run},
		{"hardware events", a.hardware.runUevents},
		{"hardware pools", a.hardware.runPools},
		{"held devices", a.hardware.runHeld},
		{"hardware devices", a.hardware.runDevices},
		{"hypervisor", a.hypervisor.run},
		{"health", a.health.run},
		{"watchdog", func(ctx context.Context) error {
			return systemd.Notifier{}.Watchdog(ctx, a.rt, a.health.alive)
		}},
		{"reload", a.runReload},
		{"owner files", a.guardian.keepOwners},
		// In mode observe too: a move that began in mode manage must end.
		{"conductor", a.conductor.Run},
		{"probes", func(ctx context.Context) error { return a.probes.run(ctx, a.rt.Sleep) }},
		{"metrics", a.metering.run},
		{"metrics' port", a.metering.serve},
		{"page", a.page.serve},
		{"page's guests", a.page.run},
	}
}

// serve runs tasks and listeners until ctx ends, then stops them in order.
func (a *Agent) serve(ctx context.Context, listeners []net.Listener) error {
	// Tasks outlive ctx until the listeners are closed: a request in progress
	// needs them.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, running := errgroup.WithContext(running)
	begin := func(t task) {
		group.Go(func() error {
			if err := t.run(running); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return nil
		})
	}
	a.streams.sweep() // before the conductor goes on with a move that asks for one
	for _, t := range a.tasks() {
		begin(t)
	}
	// libvirt asks before it starts a guest, for what the start itself starts too;
	// every other request waits until it is over.
	for _, l := range listeners {
		group.Go(func() error { return a.server.Serve(l) })
	}
	if a.deaf.Load() != nil {
		begin(task{"peers' port", a.listenLater})
	}
	starting, started := context.WithCancel(ctx)
	unhook := context.AfterFunc(running, started) // a task that failed ends the start
	a.recover(starting)
	unhook()
	started()
	// Not before: a machine that is recognised as a copy must not have written.
	c := a.opt.Config.Placement
	begin(task{"reporter", a.ledger.waiting(comesRound(a, loopPlacement, c.Interval.D()+loopLate, a.reporter.Run))})
	begin(task{"settle and follow", a.runFollow})
	begin(task{"arrivals", a.ledger.waiting(comesRound(a, loopArrivals, loopLate, a.host.External().FollowArrivals))})
	begin(task{"sides of moves", a.ledger.waiting(comesRound(a, loopMoves, loopLate, a.host.FollowSides))})
	begin(task{"audit", a.ledger.waiting(comesRound(a, loopAudit, c.AuditInterval.D()*11/10+2*loopLate, a.runAudit))})
	begin(task{"guard", a.ledger.waiting(a.guardian.run)})
	begin(task{"guests in doubt", a.ledger.waiting(a.ledger.runDoubts)})
	begin(task{"fleet records", a.ledger.waiting(a.keeper.run)})
	begin(task{"other hosts", a.ledger.waiting(comesRound(a, loopHosts, deadEvery+loopLate, a.lost.run))})
	begin(task{"drains", a.ledger.waiting(a.runDrains)})
	begin(task{"shutdown", a.ledger.waiting(a.shutdowns.run)})
	close(a.recovered)
	if ctx.Err() == nil && running.Err() == nil {
		a.tellReady()
	}
	select {
	case <-ctx.Done():
		a.log.Info("stopping; guests are not touched")
	case <-running.Done():
		a.log.Error("stopping, because a task failed")
	}
	a.notify(systemd.Notifier{}.Stopping())
	a.ready.Store(false)
	a.stopping.Store(true)
	a.tracker.Refuse("the agent is going down")
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopPatience)
	defer cancel()
	err := a.server.Shutdown(closing)
	stop()
	return errors.Join(group.Wait(), err)
}

func (a *Agent) tellReady() {
	a.readyAt.Store(max(1, a.rt.Now().Sub(a.opt.Started).Milliseconds()))
	a.ready.Store(true)
	status := a.health.line()
	a.log.Info("ready", "name", a.name, "mode", a.config().Agent.Mode, "socket", a.config().Agent.SocketPath(),
		"startup", time.Duration(a.readyAt.Load())*time.Millisecond, "status", status)
	a.notify(systemd.Notifier{}.Ready(status))
}

// notify logs a manager that does not listen; nothing depends on it.
func (a *Agent) notify(err error) {
	if err != nil {
		a.log.Warn("systemd was not told", "error", err)
	}
}

// runFollow settles what could not be settled at the start, then keeps claims
// behind what people do with virsh; in mode observe it only settles, which
// writes nothing.
func (a *Agent) runFollow(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := a.settled.Load(); err != nil && *err == nil {
			if a.observing() {
				<-ctx.Done()
				return nil
			}
			return comesRound(a, loopLibvirt, loopLate, a.host.Follow)(ctx)
		}
		if a.rt.Sleep(ctx, 2*time.Second) == nil {
			a.settle(ctx)
		}
	}
	return nil
}

// close ends what open made, in reverse.
func (a *Agent) close() error {
	var errs []error
	if a.host != nil {
		a.host.Close()
	}
	if a.auditLog != nil {
		errs = append(errs, a.auditLog.close())
	}
	if a.keeper != nil {
		errs = append(errs, a.keeper.close())
	}
	if a.driver != nil {
		errs = append(errs, a.driver.Close())
	}
	if a.peers != nil {
		a.peers.close()
	}
	if a.placement != nil {
		a.placement.Close()
	}
	if a.hardware != nil {
		errs = append(errs, a.hardware.close())
	}
	if a.db != nil {
		errs = append(errs, a.db.Close())
	}
	return errors.Join(append(errs, a.ledger.close())...)
}
