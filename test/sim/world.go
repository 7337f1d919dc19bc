package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"berth/agent/host/disks/diskstest"
	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/runtime/simruntime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/placementclient"
	"berth/topology"
)

// Options are what one run is made of. The zero value is a quiet run of the first
// story.
type Options struct {
	Seed  uint64
	Story *Story // nil for one drawn from the seed
	// Break is one thing that breaks at one point; nil for none.
	Break *Break
	// Chaos breaks many things by chance.
	Chaos  bool
	Mutant *Mutant // nil for the real thing

	KeepPoints bool      // Result.Places
	KeepTrace  bool      // Result.Trace
	Log        io.Writer // what the agents log; nil for nobody
}

// Break is a fault at one point.
type Break struct {
	At   int
	What string
	Do   func(w *world, a *agent)
}

// Result is what came of a run.
type Result struct {
	Seed       uint64
	Story      string
	Violations []string // none when all was held
	Faults     int      // that were injected
	Points     int
	Turns      int
	Elapsed    time.Duration // simulated
	Outcomes   []migration.Outcome
	Sum        [32]byte // of the trace
	Places     []Point
	Trace      string
}

// world is one run.
type world struct {
	options Options
	story   *Story
	mutant  *Mutant
	log     *slog.Logger

	sim      *simruntime.Simulation
	outside  *simruntime.Process // what never dies: hypervisors, networks, people
	rng      *rand.Rand          // of the wires
	fleet    *drivertest.Fleet
	storage  *diskstest.World
	machines map[string]*machine
	names    []string // of machines, in order

	placement *service
	guests    []*guest
	moves     []*move
	cuts      map[[2]string]bool // of the agents' network
	chaos     *chaos

	trace      trace
	points     int
	places     []Point
	faults     int
	violations []string
	said       map[string]bool // violations that were told
	pending    int             // of later: what will still happen by itself
	calm       time.Duration   // since when all is up and over; 0 for not
	mended     time.Duration   // when the last thing that was broken was mended
	over       bool
	old        bool // age has been
	stuck      bool
	seen       int // entries of the fleet's history
	tokens     map[string]map[string]claims.Token
	gone       map[undoing]bool
	leaving    map[string]departure // by instance
	journeys   map[string]journey   // by instance
	stopping   [2]string            // host and instance that an agent stops just now
	streams    map[string]int       // asked for, by migration and destination
}

// guest is an instance.
type guest struct {
	uuid, name string
	home       string // where it was at first
	flavor     topology.Flavor
	persistent bool
	paused     bool // by its user
	disk       disk

	data     string // what it wrote to its disk the last time
	writes   int
	mayBeOff bool // its memory is lost
	anyPower bool // its user paused it, or let it run, while a move had it
	arriving string
	copies   map[string]copyState // by host
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
)

// move is a migration that somebody wants.
type move struct {
	uuid       string
	guest      *guest
	from       string        // where the guest is when it is asked for
	after      *move         // that it waits for; nil for none
	to         string        // empty to let candidates decide
	at         time.Duration // when it is asked for
	abortAfter time.Duration // 0 for never; from the start of the run
	options    migration.Options

	asked    int
	accepted bool
	refused  error // why it was not accepted, in the end
	last     migration.Migration
	doubted  time.Duration // since when it is in doubt; 0 for not
	doubt    time.Duration // when it was seen in doubt the last time
	settling bool          // an operator is about to say where the guest is
}

// Run plays one run to its end.
func Run(o Options) Result {
	w := newWorld(o)
	defer w.sim.Shutdown()
	if err := w.make(); err != nil {
		w.violate("the world cannot be made: %v", err)
		return w.result()
	}
	for _, name := range w.names {
		w.machines[name].boot()
	}
	for _, m := range w.moves {
		w.outside.Go("user", func() { w.ask(m) })
	}
	w.placement.live()
	w.phases()
	w.outside.Go("clock", w.clock)
	if w.chaos != nil {
		w.chaos.begin()
	}
	if err := w.sim.Run(limit, func() bool { return w.over || w.stuck }); err != nil {
		w.violate("%v", err)
	}
	w.placement.reopen()
	w.atRest()
	return w.result()
}

// limit is how long a run may last, of its own time, and patience how long all may be
// mended and moves not over. Arbitrary: far above what undos that wait for a host take.
const (
	limit    = 3 * time.Hour
	patience = 15 * time.Minute
)

func newWorld(o Options) *world {
	w := &world{
		options: o, story: o.Story, mutant: o.Mutant, sim: simruntime.New(o.Seed), rng: rand.New(rand.NewPCG(o.Seed, 1)), log: discard,
		machines: map[string]*machine{}, cuts: map[[2]string]bool{}, said: map[string]bool{},
		tokens: map[string]map[string]claims.Token{}, streams: map[string]int{}, gone: map[undoing]bool{}, leaving: map[string]departure{}, journeys: map[string]journey{},
	}
	if o.Log != nil {
		w.log = slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.String("at", w.sim.Elapsed().String())
			}
			return a
		}}))
	}
	if w.story == nil {
		w.story = drawStory(rand.New(rand.NewPCG(o.Seed, 2)))
	}
	w.outside = w.sim.Process("world", "world")
	w.fleet = drivertest.NewFleet(w.outside)
	w.storage = diskstest.NewWorld()
	w.storage.OnStep(w.changesFile)
	w.fleet.SetStorage(func(host string) drivertest.Storage { return w.storage.Host(host) })
	if o.Chaos {
		w.chaos = newChaos(w)
	}
	return w
}

func (w *world) result() Result {
	r := Result{
		Seed: w.options.Seed, Story: w.story.Name, Violations: w.violations, Faults: w.faults, Points: w.points, Turns: w.sim.Turns(),
		Elapsed: w.sim.Elapsed(), Places: w.places,
	}
	for _, m := range w.moves {
		r.Outcomes = append(r.Outcomes, m.last.Outcome)
	}
	for _, v := range w.violations {
		w.trace.note(0, "VIOLATION", v)
	}
	r.Sum = w.trace.sum()
	if w.options.KeepTrace {
		r.Trace = string(w.trace.text)
	}
	return r
}

// The providers of Placement that are not a host's own.
const (
	sharing   = "55555555-5555-4555-8555-555555555555"
	aggregate = "66666666-6666-4666-8666-666666666666"
)

func id(kind string, n int) string { return fmt.Sprintf("%s-0000-4000-8000-%012d", kind, n) }

// make makes hosts, Placement and guests, as they are before anything goes wrong.
func (w *world) make() error {
	var err error
	if w.placement, err = newService(w); err != nil {
		return err
	}
	w.fleet.SetPace(w.story.Pace)
	ctx := context.Background()
	for i, h := range w.story.Hosts {
		m := &machine{
			w: w, name: h.Name, provider: id("33333333", i+1), fake: w.fleet.Host(h.Name), files: w.storage.Host(h.Name), mem: storetest.NewMemory(), capacity: h.Capacity, boots: 1,
			file: file{told: map[[2]string][]byte{}},
		}
		w.machines[h.Name] = m
		w.names = append(w.names, h.Name)
	}
	w.storage.Share(common, w.names...)
	if err := w.makeProviders(ctx); err != nil {
		return err
	}
	for i, g := range w.story.Guests {
		g := &guest{
			uuid: id("11111111", i+1), name: fmt.Sprint("vm", i+1), home: g.Host, flavor: g.Flavor, persistent: !g.Transient, paused: g.Paused, disk: g.Disk,
			copies: map[string]copyState{},
		}
		w.guests = append(w.guests, g)
	}
	for i, s := range w.story.Moves {
		var after *move
		if s.After != nil {
			after = w.moves[*s.After]
		}
		w.moves = append(w.moves, &move{
			after: after,
			uuid:  id("22222222", i+1), guest: w.guests[s.Guest], from: w.guests[s.Guest].home, to: s.To, at: s.At, abortAfter: s.AbortAfter, options: s.Options,
		})
	}
	made := errors.New("it did not run")
	w.outside.Go("make", func() { made = w.makeGuests(ctx) })
	if err := w.sim.Run(time.Minute, func() bool { return made == nil }); err != nil {
		return err
	}
	w.look()
	return made
}

func (w *world) makeProviders(ctx context.Context) error {
	admin := w.placement.admin
	inventory := func(m *machine, rp placementclient.ResourceProvider, amounts placementclient.Resources) error {
		inv := map[string]placementclient.Inventory{}
		for class, n := range amounts {
			inv[class] = placementclient.Inventory{Total: n}
		}
		_, err := admin.PutInventories(ctx, rp.UUID, placementclient.Inventories{Generation: rp.Generation, Inventories: inv})
		return err
	}
	share := func(rp string) error {
		have, err := admin.Aggregates(ctx, rp)
		if err == nil {
			_, err = admin.PutAggregates(ctx, rp, placementclient.Aggregates{Generation: have.Generation, Aggregates: []string{aggregate}})
		}
		return err
	}
	if w.story.Sharing {
		rp, err := admin.CreateProvider(ctx, placementclient.NewProvider{Name: "nfs", UUID: sharing})
		if err != nil {
			return err
		}
		traits, err := admin.PutTraits(ctx, rp.UUID, placementclient.Traits{Generation: rp.Generation, Traits: []string{"MISC_SHARES_VIA_AGGREGATE"}})
		if err != nil {
			return err
		}
		rp.Generation = traits.Generation
		if err := errors.Join(inventory(nil, rp, placementclient.Resources{"DISK_GB": 100}), share(rp.UUID)); err != nil {
			return err
		}
	}
	for _, name := range w.names {
		m := w.machines[name]
		rp, err := admin.CreateProvider(ctx, placementclient.NewProvider{Name: name, UUID: m.provider})
		if err != nil {
			return err
		}
		amounts := placementclient.Resources{"VCPU": int64(m.capacity.VCPUs), "MEMORY_MB": m.capacity.MemoryMB}
		if !w.story.Sharing {
			amounts["DISK_GB"] = m.capacity.DiskGB
		}
		if h := w.story.host(name); h.Told.VCPUs > 0 {
			amounts["VCPU"] = int64(h.Told.VCPUs)
		}
		if err := inventory(m, rp, amounts); err != nil {
			return err
		}
		if w.story.Sharing {
			if err := share(rp.UUID); err != nil {
				return err
			}
		}
	}
	return nil
}

// place is where a host counts amounts.
func (m *machine) place(r topology.Resources) map[string]placementclient.Resources {
	own := placementclient.Resources{"VCPU": int64(r.VCPUs), "MEMORY_MB": r.MemoryMB}
	out := map[string]placementclient.Resources{m.provider: own}
	switch {
	case r.DiskGB == 0:
	case m.w.story.Sharing:
		out[sharing] = placementclient.Resources{"DISK_GB": r.DiskGB}
	default:
		own["DISK_GB"] = r.DiskGB
	}
	return out
}

func (m *machine) providers() []string {
	if m.w.story.Sharing {
		return []string{m.provider, sharing}
	}
	return []string{m.provider}
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }

// makeGuests defines, starts, claims and allocates every guest.
func (w *world) makeGuests(ctx context.Context) error {
	for _, g := range w.guests {
		m := w.machines[g.home]
		if g.disk != noDisk {
			m.files.Put(g.path(), "raw", 1<<30, g.data)
		}
		if err := m.fake.Define(ctx, g.document()); err != nil {
			return err
		}
		if err := m.fake.Start(ctx, g.uuid, g.paused); err != nil {
			return err
		}
		if !g.persistent {
			if err := m.fake.Undefine(ctx, g.uuid); err != nil {
				return err
			}
		}
		g.copies[g.home] = whole
		t, err := claims.Open(ctx, claims.Options{Store: m.mem, Runtime: w.outside, Host: m.name, Random: random{w.rng}, Logger: discard, Capacity: claims.Capacity{Total: m.capacity}})
		if err != nil {
			return err
		}
		// Not by Berth's own creation, whose disks and documents are not what is looked at
		// here, but what it leaves.
		if _, err := t.Adopt(ctx, claims.Instance{UUID: g.uuid, Name: g.name, Flavor: g.flavor, ProjectID: "project", UserID: "user"},
			claims.Found{Resources: g.resources()}); err != nil {
			return err
		}
		w.tokensOf(m)
		if err := w.placement.admin.PutAllocations(ctx, g.uuid, placementclient.Allocations{
			Allocations: m.place(g.resources()), ProjectID: "project", UserID: "user", ConsumerType: placementclient.ConsumerInstance,
		}); err != nil {
			return err
		}
	}
	return nil
}

func (g *guest) resources() topology.Resources { return g.flavor.Resources() }

// document is the guest's domain document.
func (g *guest) document() string {
	disk := ""
	if g.disk != noDisk {
		disk = fmt.Sprintf(`<disk type="file" device="disk"><driver name="qemu" type="raw"/><source file="%s"/><target dev="vda" bus="virtio"/></disk>`, g.path())
	}
	return fmt.Sprintf(`<domain type="qemu"><name>%s</name><uuid>%s</uuid><memory unit="MiB">%d</memory><vcpu>%d</vcpu>`+
		`<os><type arch="x86_64" machine="q35">hvm</type></os><devices>%s</devices></domain>`, g.name, g.uuid, g.flavor.MemoryMB, g.flavor.VCPUs, disk)
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

// ask wants a migration as a user does: it asks the host's agent, and again while
// nobody answers or the hosts are not up.
func (w *world) ask(m *move) {
	ctx := context.Background()
	_ = w.outside.Sleep(ctx, m.at)
	for m.after != nil && !w.isOver(m.after) {
		_ = w.outside.Sleep(ctx, 500*time.Millisecond)
	}
	if at := w.holders(m.guest.uuid); len(at) == 1 {
		m.from = at[0]
	}
	source := w.machines[m.from]
	for !m.accepted && m.asked < 40 {
		m.asked++
		a := source.agent
		if a == nil || a.dead() || !a.ready {
			_ = w.outside.Sleep(ctx, time.Second)
			continue
		}
		var err error
		p := peer{a: a, m: source}
		x := p.send(ctx, "LiveMigrate", func(ctx context.Context, b *agent) {
			_, err = b.conductor.LiveMigrate(ctx, migration.Request{Instance: m.guest.uuid, Destination: m.to, Migration: m.uuid, Options: m.options})
		})
		_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
		err = cmp.Or(x.err, err)
		if err == nil {
			m.accepted = true
			w.note("user", "move accepted", m.uuid)
			break
		}
		w.note("user", "move not accepted:", err.Error())
		m.refused = err
		if k := fault.KindOf(err); k == fault.DoesNotFit || k == fault.Forbidden && m.asked > 3 {
			break
		}
		_ = w.outside.Sleep(ctx, 2*time.Second)
	}
	if !m.accepted {
		// One answer may have been lost all the same.
		m.accepted = w.known(m)
		m.asked = givenUp
		return
	}
	for m.abortAfter > 0 && !m.last.Done() {
		if d := m.abortAfter - w.sim.Elapsed(); d > 0 {
			_ = w.outside.Sleep(ctx, d)
		}
		if a := source.agent; a.ready && !a.dead() {
			w.note("user", "abort", m.uuid)
			p := peer{a: a, m: source}
			x := p.send(ctx, "Abort", func(ctx context.Context, b *agent) { _ = b.conductor.Abort(ctx, m.uuid) })
			_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
			return
		}
		_ = w.outside.Sleep(ctx, time.Second)
	}
}

// known says whether the source has a record of a move.
func (w *world) known(m *move) bool {
	records, err := w.machines[m.from].mem.List(context.Background(), "migrations")
	_, is := records[m.uuid]
	return err == nil && is
}

// clock looks twice a second whether all is over.
func (w *world) clock() {
	for {
		_ = w.outside.Sleep(context.Background(), 500*time.Millisecond)
		w.look()
		now := w.sim.Elapsed()
		if w.pending > 0 || w.chaos != nil && !w.chaos.done() {
			w.mended = now
		}
		if !w.settled() {
			w.calm = 0
			if now > w.mended+patience {
				w.violate("nothing has been broken for %s, and not all is over", patience)
				w.stuck = true
				return
			}
			continue
		}
		if w.calm == 0 {
			w.calm = now
			w.note("world", "calm")
		}
		calm := now - w.calm
		clean := calm > 0 && calm%(10*time.Second) == 0 && w.placement.idle() && w.clean()
		if calm >= grace || clean && !w.age() {
			w.over = true
		}
	}
}

// settled says whether every move is over, everything up and nothing more to come.
func (w *world) settled() bool {
	if w.pending > 0 || w.chaos != nil && !w.chaos.done() {
		return false
	}
	for _, name := range w.names {
		if a := w.machines[name].agent; a == nil || a.dead() || !a.ready {
			return false
		}
	}
	for _, m := range w.moves {
		if !w.isOver(m) {
			return false
		}
	}
	return true
}

// isOver says whether a move has ended, or can go no further in this world.
func (w *world) isOver(m *move) bool {
	if !m.accepted {
		return m.asked >= givenUp
	}
	a := w.machines[m.from].agent
	if a.dead() || !a.ready {
		return false
	}
	rec, err := a.conductor.Get(context.Background(), m.uuid)
	if err != nil {
		return false
	}
	m.last = rec
	now := w.sim.Elapsed()
	if rec.Done() {
		return true
	}
	if rec.Outcome == migration.OutcomeInDoubt {
		m.doubt = now
	}
	switch {
	case m.doubt == 0 || now > m.doubt+time.Minute: // it comes and goes while a conductor tries again
		m.doubted = 0
	case m.doubted == 0:
		m.doubted = now
	case now > m.doubted+operatorsPatience && now > w.mended+operatorsPatience && !m.settling && w.undecidable(m):
		m.settling = true
		w.outside.Go("operator", func() { w.settle(m) })
	}
	return false
}

// operatorsPatience is how long an operator leaves a move in doubt to itself. He is
// asked for nothing but what nobody else can know.
const operatorsPatience = 30 * time.Second

// settle is the operator: he looks where the guest really is and says so.
func (w *world) settle(m *move) {
	at := m.from
	for _, host := range w.names {
		if c := m.guest.copies[host]; c == whole {
			at = host
		}
	}
	w.note("operator", "the guest of", m.uuid, "is at", at)
	a := w.machines[m.from].agent
	if a.dead() || !a.ready {
		m.settling = false
		return
	}
	ctx, cancel := w.outside.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	x := peer{a: a, m: a.m}.send(ctx, "settle", func(ctx context.Context, b *agent) {
		_, err = b.conductor.Settle(ctx, m.uuid, migration.Settlement{GuestIsAt: at, Why: "looked at both hosts", By: "operator"})
	})
	_ = runtime.Await(ctx, w.outside, x.done) // a word that is not heard is said again
	if err = cmp.Or(x.err, err); err != nil {
		w.note("operator", "was not heard:", err.Error())
		_ = w.outside.Sleep(ctx, operatorsPatience)
	}
	m.settling = false
}

// givenUp is what a user has asked who asks no more.
const givenUp = 1000

// later has something happen after a while.
func (w *world) later(d time.Duration, name string, f func()) {
	w.pending++
	w.outside.Go(name, func() {
		_ = w.outside.Sleep(context.Background(), d)
		f()
		w.pending--
	})
}

// late delivers a message some time later.
func (w *world) late(what string, f func()) {
	w.later(time.Duration(w.rng.Int64N(int64(latest))), "late "+what, f)
}

// cut says whether the agents of two hosts cannot reach each other.
func (w *world) cut(a, b *machine) bool { return w.cuts[pair(a.name, b.name)] }

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

func (w *world) note(parts ...string) { w.trace.note(w.sim.Elapsed(), parts...) }

// violate records that something was not held; one thing once.
func (w *world) violate(format string, args ...any) {
	v := fmt.Sprintf(format, args...)
	if w.said[v] || len(w.violations) >= 20 {
		return
	}
	w.said[v] = true
	w.violations = append(w.violations, fmt.Sprintf("%s: %s", w.sim.Elapsed(), v))
	w.note("VIOLATION", v)
}

func (w *world) guestOf(uuid string) *guest {
	for _, g := range w.guests {
		if g.uuid == uuid {
			return g
		}
	}
	return nil
}

// holder is the host whose ledger durably says that the token is there, and how many
// there are.
func (w *world) holders(uuid string) []string {
	var out []string
	for _, host := range slices.Sorted(maps.Keys(w.tokens[uuid])) {
		if w.tokens[uuid][host].State == claims.TokenHere {
			out = append(out, host)
		}
	}
	return out
}
