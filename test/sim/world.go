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
	"berth/fleet/fleettest"
	"berth/internal/runtime/simruntime"
	"berth/internal/store/storetest"
	"berth/migration"
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
	Spoil  *Spoil  // nil for no step that goes wrong

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
	Spoiled    bool           // Options.Spoil came to pass
	Left       map[string]int // what is there at the end and should not be, by what it is; see Leftovers
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

	placement  *service
	store      *fleettest.Memory       // the fleet's records; nil for none
	storeRuns  int                     // of that store: how often it was restored, emptied or replaced
	highest    map[string]claims.Token // by instance: the highest epoch that a ledger has had, and its host as Holder
	recordRead map[string]readRecord   // by instance
	uncounted  bool                    // what Placement counts was restored too
	looker     *fleettest.Client       // of who looks
	deaths     []*death
	drains     []*emptied
	guests     []*guest
	moves      []*move
	cuts       map[[2]string]bool // of the agents' network
	unrouted   map[[2]string]bool // pairs of hosts that share nothing, not even a network
	chaos      *chaos

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
	reporting  bool // hosts keep their trees in Placement, and audit them
	spoiled    bool
	halved     bool                        // a guest has been in post-copy
	dark       map[[2]string]time.Duration // data links that are cut, since when
	left       map[string]int
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
	for _, d := range w.deaths {
		w.outside.Go("death", func() { w.dies(d); w.forgets(d) })
	}
	for _, l := range w.story.Losses {
		w.outside.Go("store", func() { w.loses(l) })
	}
	for _, d := range w.drains {
		w.outside.Go("operator", func() { w.empties(d) })
	}
	if w.story.SelfFence {
		for _, name := range w.names {
			w.outside.Go("watchdog", w.machines[name].bites)
		}
	}
	w.placement.live()
	w.phases()
	w.outside.Go("clock", w.clock)
	if w.story.Hostile {
		w.pending++
		w.outside.Go("hostile host", w.hostile)
	}
	if w.virshes() {
		w.outside.Go("virsh", w.virsh)
	}
	if slices.ContainsFunc(w.guests, func(g *guest) bool { return !g.persistent }) {
		w.outside.Go("operator", w.deletes)
	}
	if w.saves() {
		w.outside.Go("virsh", w.saver)
	}
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

// Of so many seeds one is of a drain, and one of moves that wait for each other.
const (
	drainEvery = 8
	crowdEvery = 8
)

func newWorld(o Options) *world {
	w := &world{
		options: o, story: o.Story, mutant: o.Mutant, sim: simruntime.New(o.Seed), rng: rand.New(rand.NewPCG(o.Seed, 1)), log: discard,
		machines: map[string]*machine{}, left: map[string]int{}, cuts: map[[2]string]bool{}, unrouted: map[[2]string]bool{}, said: map[string]bool{},
		tokens: map[string]map[string]claims.Token{}, highest: map[string]claims.Token{}, recordRead: map[string]readRecord{}, streams: map[string]int{}, dark: map[[2]string]time.Duration{}, gone: map[undoing]bool{}, leaving: map[string]departure{}, journeys: map[string]journey{},
	}
	if o.Log != nil {
		w.log = slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.String("at", w.sim.Elapsed().String())
			}
			return a
		}}))
	}
	if w.story == nil && w.mutant == nil && o.Seed%drainEvery == 0 {
		w.story = drawDrain(rand.New(rand.NewPCG(o.Seed, 2)))
	}
	if w.story == nil && w.mutant == nil && o.Seed%crowdEvery == crowdEvery/2 {
		w.story = drawCrowd(rand.New(rand.NewPCG(o.Seed, 2)), o.Seed%(2*crowdEvery) < crowdEvery)
	}
	if w.story == nil {
		w.story = drawStory(rand.New(rand.NewPCG(o.Seed, 2)), w.mutant)
	}
	if o.Story == nil {
		r := rand.New(rand.NewPCG(o.Seed, 4))
		w.story = w.story.dress(func(n int) int { return max(0, r.IntN(2*n)-n) })
	} else {
		w.story = w.story.dress(rotation(w.rowOf()))
	}
	w.reporting = w.reports()
	w.outside = w.sim.Process("world", "world")
	w.fleet = drivertest.NewFleet(w.outside)
	w.storage = diskstest.NewWorld()
	w.storage.OnStep(w.changesFile)
	w.fleet.SetStorage(func(host string) drivertest.Storage { return w.storage.Host(host) })
	if o.Chaos && (w.mutant == nil || w.mutant.Among == nil) {
		w.chaos = newChaos(w)
	}
	return w
}

func (w *world) result() Result {
	r := Result{
		Seed: w.options.Seed, Story: w.named(), Violations: w.violations, Faults: w.faults, Points: w.points, Turns: w.sim.Turns(),
		Elapsed: w.sim.Elapsed(), Places: w.places, Spoiled: w.spoiled, Left: w.left,
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

// Leftovers are what may be left of a move, as a row of make stories has it.
func Leftovers() []string {
	return []string{leftClaim, leftAllocation, leftDisk, leftDomain, leftRecord}
}

const (
	leftClaim      = "claims"
	leftAllocation = "allocations"
	leftDisk       = "disks"
	leftDomain     = "domains"
	leftRecord     = "records" // of an instance, or of what was done to it
)

// leave records that something is left that should not be.
func (w *world) leave(what, format string, args ...any) {
	w.left[what]++
	w.violate(format, args...)
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
	w.makeStore()
	for i, d := range w.story.Drains {
		w.drains = append(w.drains, &emptied{DrainPlan: d, uuid: id("44444444", i+1)})
	}
	ctx := context.Background()
	for i, h := range w.story.Hosts {
		m := &machine{
			w: w, name: h.Name, provider: id("33333333", i+1), fake: w.fleet.Host(h.Name), files: w.storage.Host(h.Name), mem: storetest.NewMemory(), capacity: h.Capacity, hw: machines[i], read: map[string]readClaim{}, boots: 1, embedded: w.story.Embedded,
			file: file{told: map[[2]string][]byte{}},
		}
		w.machines[h.Name] = m
		w.names = append(w.names, h.Name)
	}
	w.storage.Share(common, w.names...)
	for _, p := range w.story.Apart {
		w.unrouted[pair(p[0], p[1])] = true
	}
	if w.story.images() {
		for _, name := range w.names {
			w.machines[name].files.Put(imageFile, "raw", diskSize, newImage)
		}
	}
	if err := w.makeProviders(ctx); err != nil {
		return err
	}
	for i, g := range w.story.Guests {
		g := &guest{
			uuid: id("11111111", i+1), name: fmt.Sprint("vm", i+1), home: g.Host, flavor: g.Flavor, persistent: !g.Transient, paused: g.Paused, off: g.Off, disk: g.Disk, autostart: g.Autostart,
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
			after: after, by: cmp.Or(s.By, w.guests[s.Guest].home), apart: s.By != "" && s.Kind != migration.TypeEvacuation, alternates: s.Alternates,
			uuid: id("22222222", i+1), guest: w.guests[s.Guest], from: w.guests[s.Guest].home, to: s.To, at: s.At, abortAfter: s.AbortAfter, options: s.Options, priority: s.Priority,
			kind: cmp.Or(s.Kind, migration.TypeLiveMigration), flavor: s.Flavor, ending: s.Ending, later: s.Later, uses: s.Uses, loss: s.Loss, stopped: s.Stopped,
		})
	}
	for _, d := range w.drains {
		if d.Closed {
			if err := w.machines[d.Host].mem.Put(ctx, doorBucket, doorKey, []byte(byOperator)); err != nil {
				return err
			}
		}
	}
	made := errors.New("it did not run")
	w.outside.Go("make", func() { made = w.makeGuests(ctx) })
	if err := w.sim.Run(time.Minute, func() bool { return made == nil }); err != nil {
		return err
	}
	w.look()
	return made
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }

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
func (w *world) cut(a, b *machine) bool {
	return w.cuts[pair(a.name, b.name)] || a != b && (a.alone || b.alone)
}

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
		if t := w.tokens[uuid][host]; t.State == claims.TokenHere && !w.overtaken(host, uuid, t.Epoch) {
			out = append(out, host)
		}
	}
	return out
}

// rowOf names what a run of a named story is to show: instances of all kinds come in turn.
func (w *world) rowOf() string {
	if s := w.options.Spoil; s != nil {
		return w.story.Name + s.Step + string(s.Way)
	}
	return w.story.Name
}

// named is the story, and where in it what was broken.
func (w *world) named() string {
	if b := w.options.Break; b != nil {
		return fmt.Sprintf("%s, point %d, %s", w.story.Name, b.At, b.What)
	}
	return w.story.Name
}
