package conductor_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/placementclient"
	"berth/topology"
)

const (
	guestUUID = "11111111-1111-4111-8111-111111111111"
	moveUUID  = "22222222-2222-4222-8222-222222222222"

	sharedDisk = "rp-nfs" // the sharing provider of all hosts, where they have one
)

// script is what goes wrong in the world itself, apart from crashes and the wire.
type script struct {
	stallAt, failAt, crashAt int  // second of the stream; 0 never
	finishLost               bool // libvirt's reply to Finish is lost
	hookFails                bool
	forgets                  bool     // the source's libvirtd restarts just after the guest has left
	unseen                   bool     // so it does, and nobody had seen the guest leave
	refuse                   []string // hosts whose claim says no
	abortAfter               time.Duration
	// Of guests that do not converge: busy for as long as nobody suspends them, when somebody
	// forces the move; the second job fails before post-copy, post-copy breaks or stands still
	// at a second and cannot be made whole for so long; the source's half dies.
	busy              bool
	forceAfter        time.Duration
	secondFails       bool
	secondHeld        bool          // it hands the guest over before post-copy, and the source's libvirtd dies in the middle of that
	secondTakes       time.Duration // before it is post-copy; default a second and a half
	breakAt, standsAt int
	brokenFor         time.Duration
	halfDiesAt        int
	endsAt            int // the guest ends at the destination at a second of post-copy
	named             string
	hosts             []string // default a, b
	deaf              [2]time.Duration
	cut               map[string][2]time.Duration // host: unreachable from, for
	options           migration.Options
	// Of other moves than live ones: what is asked, the words that are given while the
	// move is finished, what is done to a host (see simcold_test.go).
	request conductor.Request
	words   []string // confirm, revert
	unfit   bool     // the guest cannot be made live as it is to be
	spoilt  bool     // what the guest left at its source cannot take it back
	rests   bool     // nobody says a word: finished is the end
	// Of moves between hosts that share nothing: who conducts (a where empty), whether the
	// others reach each other, whether a volume that the guest was given cannot be taken back,
	// when its source decides alone.
	local  string
	apart  bool
	stays  bool
	decide time.Duration
	// Of evacuations: nobody knows of what image the guest's disk was made, which hosts do not
	// have it, which cannot take the guest after all, when the dead host comes back, from when
	// and how long the records are silent.
	imageless bool
	blind     []string
	unready   []string
	returns   time.Duration
	silent    [2]time.Duration
	// outcomes that are right; default completed and undone and refused.
	want []migration.Outcome
}

// faults is what goes wrong around single calls: by number, or by chance.
type faults struct {
	crash    map[int]bool // the conductor's process dies at this point
	answers  map[int]bool // the answer of the call at this point is lost
	requests map[int]bool // the call at this point is lost, and arrives late
	chance   float64      // of each of these, at any point, while budget lasts
	budget   int
	// fails are verbs that fail, as often as is said, without an effect; breaks those
	// that have it all the same.
	fails, breaks map[string]int
	embedded      bool               // by the real client and server
	mutate        conductor.Mutation // of cold stories; what never ends is found out after some minutes
}

// world is hosts, Placement, store and one conductor's process, which may die
// and is started again.
type world struct {
	t         testing.TB
	sim       *simruntime.Simulation
	init      *simruntime.Process // what never dies: libvirtd, the network, time
	hosts     map[string]*simHost
	placement *simPlacement
	store     *simStore
	script    script
	faults    faults
	power     migration.PowerState
	transient bool
	oldAgents bool          // that tell nothing of providers
	inspect   func() error  // what the source says instead of the guest; nil for the guest
	latency   time.Duration // of every call over the wire
	configure func(*conductor.Config)
	mutate    func(*world) conductor.Mutation
	watch     func(migration.Migration) // sees the migration four times a second
	drops     *fault.Reason             // why the guest cannot go by post-copy; nil where it can
	aborted   func(error)               // is told what came of an abort
	fleet     *simFleet                 // of evacuations; else nil
	embedded  *embedded                 // the real thing in the place of placement; or nil
	asking    placementclient.Counters  // what it was asked until the end

	process    *simruntime.Process
	conductor  *conductor.Conductor
	lives      int // how often the conductor was started
	points     int
	trace      []string
	violations []string
	accepted   error
	asked      bool
	spoken     int // words given
	boots      int // of the conductor's host, after the first
	flavor     topology.Flavor
}

func newWorld(t testing.TB, seed uint64, sc script, f faults) *world {
	w := &world{t: t, sim: simruntime.New(seed), hosts: map[string]*simHost{}, script: sc, faults: f, power: migration.PowerRunning}
	w.init = w.sim.Process("world", "boot")
	names := sc.hosts
	if names == nil {
		names = []string{"a", "b"}
	}
	w.placement = newSimPlacement(w)
	w.store = &simStore{data: map[string]map[string][]byte{}}
	for _, name := range names {
		h := newSimHost(w, name)
		w.hosts[name] = h
		// Trees of one provider and of several, disks of their own and a sharing one.
		if seed%2 == 1 {
			h.pages = h.provider + "_pages"
		}
		if seed%4 < 2 {
			h.disk = sharedDisk
		}
		if slices.Contains(sc.refuse, name) {
			w.hosts[name].refuses = fault.Refuse(fault.DoesNotFit, "claim", fault.Reason{Code: "pages_short", Message: "no huge pages on " + name})
		}
	}
	a := w.hosts["a"]
	a.token = &simToken{epoch: 1, here: true}
	a.domain = &simDomain{"running", "booted"}
	if a.apart() {
		a.listed = "shown"
	}
	a.claims["instance"], a.size = &simClaim{state: "bound", resources: guestSize}, guestSize
	w.placement.consumers[guestUUID] = &placementclient.Allocations{
		Allocations: a.place(guestSize),
		ProjectID:   "project", UserID: "user", ConsumerType: placementclient.ConsumerInstance,
		ConsumerGeneration: placementclient.Generation(1),
	}
	if sc.request.Type == migration.TypeEvacuation {
		for _, h := range w.hosts {
			h.blind, h.unready = slices.Contains(sc.blind, h.name), slices.Contains(sc.unready, h.name)
		}
		w.kill()
	}
	return w
}

func (w *world) byProvider(uuid string) *simHost {
	for _, h := range w.hosts {
		if h.provider == uuid {
			return h
		}
	}
	return nil
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf("%s: %s", w.sim.Elapsed(), fmt.Sprintf(format, args...)))
}

// check holds what must hold at every moment.
func (w *world) check(after string) {
	running, tokens := 0, 0
	for _, h := range w.hosts {
		if h.domain != nil && h.domain.state == "running" {
			running++
		}
		if h.owns() && (w.fleet == nil || w.fleet.deaths[h.name] == 0) {
			tokens++
		}
	}
	if running > 1 {
		w.violate("two running copies after %s", after)
	}
	if tokens > 1 {
		w.violate("two owners after %s", after)
	}
}

// point is where the conductor's process may die; it says what else happens to
// the call that is being made here.
func (w *world) point(p *simruntime.Process, what string) (lostRequest, lostAnswer bool) {
	if p != w.process || p.Dead() {
		p.Yield() // ends a dead process's actor
		return false, false
	}
	i := w.points
	w.points++
	w.trace = append(w.trace, what)
	crash := w.faults.crash[i]
	lostRequest, lostAnswer = w.faults.requests[i], w.faults.answers[i]
	if w.faults.chance > 0 && w.faults.budget > 0 && w.sim.Rand().Float64() < w.faults.chance {
		w.faults.budget--
		switch w.sim.Rand().IntN(3) {
		case 0:
			crash = true
		case 1:
			lostRequest = true
		case 2:
			lostAnswer = true
		}
	}
	if crash {
		w.trace[i] += " CRASH"
		p.Kill()
	}
	p.Yield()
	return lostRequest, lostAnswer
}

// wire is one call from the conductor to somebody: it may be lost on its way
// there (and arrive late), or back, and the caller may die before and after.
func wire[T any](w *world, p *simruntime.Process, what string, reachable func() bool, do func() (T, error)) (T, error) {
	var zero T
	lost := func() error {
		_ = p.Sleep(context.Background(), time.Second)
		return fault.New(fault.InDoubt, "%s: the answer did not come", what)
	}
	lostRequest, lostAnswer := w.point(p, "before "+what)
	if !reachable() {
		return zero, fault.New(fault.Unavailable, "%s: no route to host", what)
	}
	refused := func() error { return fault.New(fault.Internal, "%s: it does not work", what) }
	if w.faults.fails[what] > 0 {
		w.faults.fails[what]--
		return zero, refused()
	}
	if lostRequest {
		w.init.Go("late "+what, func() {
			_ = w.init.Sleep(context.Background(), time.Duration(w.sim.Rand().Int64N(int64(40*time.Second))))
			_, _ = do()
			w.check("a late " + what)
		})
		return zero, lost()
	}
	if w.latency > 0 {
		_ = p.Sleep(context.Background(), w.latency)
		if !reachable() {
			return zero, fault.New(fault.Unavailable, "%s: no route to host", what)
		}
	}
	v, err := do()
	w.check(what)
	if _, second := w.point(p, "after "+what); lostAnswer || second {
		return zero, lost()
	}
	if w.faults.breaks[what] > 0 && err == nil {
		w.faults.breaks[what]--
		return zero, refused()
	}
	return v, err
}

// boot starts the conductor's process.
func (w *world) boot() {
	w.lives++
	p := w.sim.Process(fmt.Sprintf("conductor %d", w.lives), strings.Repeat("re", w.boots)+"boot")
	w.process = p
	cfg := conductor.Config{
		Runtime: p, Store: storeWire{w, p}, Local: cmp.Or(w.script.local, "a"), Placement: placementWire{w, p},
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			h := w.hosts[name]
			if h == nil {
				return nil, fault.New(fault.NotFound, "no peer is named %s", name)
			}
			return hostWire{w, p, h}, nil
		},
		Jitter:    func(d time.Duration) time.Duration { return time.Duration(w.sim.Rand().Int64N(int64(max(d, 1)))) },
		UndoLater: 5 * time.Second,
	}
	if w.fleet != nil {
		cfg.Fleet = fleetWire{w, p}
	}
	if w.embedded != nil {
		cfg.Placement = embeddedWire{w.embedded.admin, w, p}
	}
	if w.configure != nil {
		w.configure(&cfg)
	}
	c := conductor.New(cfg)
	if w.mutate != nil {
		c.Mutate(w.mutate(w))
	}
	c.Strays(func(m migration.Migration, from migration.Status) {
		w.violate("status %s follows %s at step %s", m.Status, from, m.Step)
	})
	w.conductor = c
	p.Go("run", func() {
		if err := c.Run(context.Background()); err != nil {
			w.violate("conductor: %v", err)
		}
	})
	if !w.asked {
		p.Go("request", w.request(p, c))
	}
	if len(w.script.words) > 0 {
		p.Go("words", w.say(p, c))
	}
	if w.script.forceAfter > 0 {
		p.Go("force", func() {
			if d := w.script.forceAfter - w.sim.Elapsed(); d > 0 {
				_ = p.Sleep(context.Background(), d)
			}
			for range 20 { // a wish dies with the agent
				_ = c.ForceComplete(context.Background(), moveUUID, "ops")
				_ = p.Sleep(context.Background(), time.Second)
			}
		})
	}
	if w.script.abortAfter > 0 {
		p.Go("abort", func() {
			if d := w.script.abortAfter - w.sim.Elapsed(); d > 0 {
				_ = p.Sleep(context.Background(), d)
				if err := c.Abort(context.Background(), moveUUID); w.aborted != nil {
					w.aborted(err)
				}
			}
		})
	}
}

// request asks for the migration, once Run runs, as the API would.
func (w *world) request(p *simruntime.Process, c *conductor.Conductor) func() {
	return func() {
		for range 100 {
			w.asked = true
			r := w.script.request
			r.Instance, r.Destination, r.Migration, r.Options = guestUUID, w.script.named, moveUUID, w.script.options
			_, err := c.Start(context.Background(), r)
			if w.accepted = err; !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "does not run") {
				return
			}
			_ = p.Sleep(context.Background(), 10*time.Millisecond)
		}
	}
}

// say gives the words, one each time that the migration is finished.
func (w *world) say(p *simruntime.Process, c *conductor.Conductor) func() {
	return func() {
		for w.spoken < len(w.script.words) {
			_ = p.Sleep(context.Background(), 50*time.Millisecond)
			m, err := c.Get(context.Background(), moveUUID)
			if err != nil || m.Stage != migration.StageFinished {
				continue
			}
			w.checkFinished(m)
			word := c.Confirm
			if w.script.words[w.spoken] == "revert" {
				word = c.Revert
			}
			if _, err := word(context.Background(), moveUUID); err == nil {
				w.spoken++
			}
		}
	}
}

// run lets the world go until the migration is over and late messages have
// arrived, and gives its record; the zero record where none was accepted.
func (w *world) run() migration.Migration {
	w.boot()
	w.init.Go("time", func() {
		for {
			_ = w.init.Sleep(context.Background(), 250*time.Millisecond)
			now := w.sim.Elapsed()
			for name, c := range w.script.cut {
				w.hosts[name].cut = now >= c[0] && now < c[0]+c[1]
			}
			if w.script.decide > 0 && now >= w.script.decide {
				w.script.decide = 0
				w.hosts["a"].decideAlone()
				w.check("its source decided alone")
			}
			if w.script.returns > 0 && now >= w.script.returns {
				w.script.returns = 0
				w.comesBack()
			}
			if w.fleet != nil {
				d := w.script.silent
				w.fleet.down = now >= d[0] && now < d[0]+d[1]
			}
			d := w.script.deaf
			w.hosts["a"].deaf = now >= d[0] && now < d[0]+d[1]
			if w.watch != nil {
				if m, err := w.conductor.Get(context.Background(), moveUUID); err == nil {
					w.watch(m)
				}
			}
			if w.process.Dead() {
				down := 3 * time.Second
				if w.faults.chance > 0 && w.sim.Rand().IntN(5) == 0 {
					down = 3 * time.Minute // longer than a lease
				}
				_ = w.init.Sleep(context.Background(), time.Duration(w.sim.Rand().Int64N(int64(down))))
				w.boot()
			}
		}
	})
	var last migration.Migration
	var rest, looked time.Duration
	late := 2 * time.Second
	if w.faults.chance > 0 || len(w.faults.requests) > 0 {
		late = time.Minute // longer than any message is late
	}
	limit := time.Hour
	if w.faults.mutate != nil {
		limit = 3 * time.Minute
	}
	if err := w.sim.Run(limit, func() bool {
		if w.process.Dead() {
			rest = 0
			return false
		}
		if w.sim.Elapsed() < looked+100*time.Millisecond {
			return false // not after each turn: that would be the most of the work
		}
		looked = w.sim.Elapsed()
		m, err := w.conductor.Get(context.Background(), moveUUID)
		idle := err != nil && w.asked && w.sim.Elapsed() > 10*time.Second
		rests := m.Stage == migration.StageFinished && w.script.rests
		lags := slices.ContainsFunc(m.Refusals, func(r migration.Refusal) bool { return r.Left })
		if last = m; !idle && !m.Done() && !rests || lags {
			rest = 0
			return false
		}
		if rest == 0 {
			rest = w.sim.Elapsed()
		}
		return w.sim.Elapsed() > rest+late
	}); err != nil {
		w.violate("%v (status %s, step %s, error %v)", err, last.Status, last.Step, last.Error)
	}
	w.sim.Shutdown()
	w.verify(last)
	return last
}

// report fails the test with everything needed to understand a run.
func (w *world) report(how string) {
	w.t.Helper()
	if len(w.violations) > 0 {
		w.t.Errorf("%s:\n  %s\ntrace:\n  %s", how, strings.Join(w.violations, "\n  "), strings.Join(w.trace[max(0, len(w.trace)-60):], "\n  "))
	}
}

// simStore is a durable store.
type simStore struct {
	data map[string]map[string][]byte
}

// storeWire is the store as one process sees it.
type storeWire struct {
	w *world
	p *simruntime.Process
}

func (s storeWire) Put(_ context.Context, bucket, key string, value []byte) error {
	_, failed := s.w.point(s.p, "before journal "+bucket)
	if failed {
		return errors.New("no space left on device")
	}
	b := s.w.store.data[bucket]
	if b == nil {
		b = map[string][]byte{}
		s.w.store.data[bucket] = b
	}
	b[key] = slices.Clone(value)
	if _, failed := s.w.point(s.p, "after journal "+bucket); failed {
		return errors.New("input/output error")
	}
	return nil
}

func (s storeWire) Delete(_ context.Context, bucket, key string) error {
	if _, failed := s.w.point(s.p, "before delete "+bucket); failed {
		return errors.New("no space left on device")
	}
	delete(s.w.store.data[bucket], key)
	if _, failed := s.w.point(s.p, "after delete "+bucket); failed {
		return errors.New("input/output error")
	}
	return nil
}

func (s storeWire) List(_ context.Context, bucket string) (map[string][]byte, error) {
	return maps.Clone(s.w.store.data[bucket]), nil
}
