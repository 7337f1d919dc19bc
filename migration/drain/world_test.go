package drain_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/drain"
	"berth/migration/task"
)

// world is a host, its guests, and a conductor whose moves take simulated time. It outlives the
// agent's process, as a journal does.
type world struct {
	t       *testing.T
	sim     *simruntime.Simulation
	process *simruntime.Process
	store   *journal
	drainer *drain.Drainer
	limits  drain.Limits
	boot    int

	guests map[string]*guest // by name, which is the uuid too
	moves  map[string]*move
	began  []string // names of guests, in the order in which moves of theirs began
	most   int      // moves at once
	door   string   // "" for open, else by whom it is closed
	events []string // doors and begins

	planTakes time.Duration
	tells     time.Duration // between two words of a stream; default 1 s
}

type guest struct {
	present drain.Present
	here    bool
	way     drain.Way
	takes   time.Duration
	// ends are what its moves come to, in order; the last for all later ones; nil completes.
	ends []func(*migration.Migration)
	// refuses are what Begin answers, in order; nil begins.
	refuses []error
	begun   int
	// queued is how long its moves wait for their turn, silent when they are in doubt for a
	// moment: from when, after they have begun, and how long.
	queued  time.Duration
	silent  [2]time.Duration
	asked   int
	unasked int // how often its way cannot be asked
}

type move struct {
	guest  string
	begins time.Duration
	ends   time.Duration
	m      migration.Migration
	over   bool
	past   bool // no abort is taken
	doubt  bool
}

// journal is a store in memory that ends the process at one write.
type journal struct {
	w     *world
	data  map[string][]byte
	n, at int
	after bool
}

func (j *journal) point(f func()) error {
	j.n++
	if j.n == j.at && !j.after {
		j.w.process.Die()
	}
	f()
	if j.n == j.at && j.after {
		j.w.process.Die()
	}
	j.w.process.Yield()
	return nil
}

func (j *journal) Put(_ context.Context, bucket, key string, value []byte) error {
	return j.point(func() { j.data[bucket+" "+key] = slices.Clone(value) })
}

func (j *journal) Delete(_ context.Context, bucket, key string) error {
	return j.point(func() { delete(j.data, bucket+" "+key) })
}

func (j *journal) List(_ context.Context, bucket string) (map[string][]byte, error) {
	out := map[string][]byte{}
	for k, v := range j.data {
		if len(k) > len(bucket) && k[:len(bucket)+1] == bucket+" " {
			out[k[len(bucket)+1:]] = v
		}
	}
	return out, nil
}

func newWorld(t *testing.T, seed uint64, names ...string) *world {
	t.Helper()
	w := &world{t: t, sim: simruntime.New(seed), guests: map[string]*guest{}, moves: map[string]*move{}, limits: drain.Limits{Outbound: 2, Attempts: 3}}
	w.store = &journal{w: w, data: map[string][]byte{}}
	for _, name := range names {
		w.add(name)
	}
	t.Cleanup(func() { w.sim.Shutdown() })
	w.start()
	return w
}

func (w *world) add(name string) *guest {
	g := &guest{
		present: drain.Present{Instance: name, Name: name, Power: "running", SizeMB: 1024}, here: true,
		way: drain.Way{How: drain.HowLive, To: "b"}, takes: 10 * time.Second,
	}
	w.guests[name] = g
	return g
}

// start begins the agent's process, in the boot that w.boot numbers.
func (w *world) start() {
	w.process = w.sim.Process("a", fmt.Sprint("boot-", w.boot))
	w.drainer = drain.New(drain.Config{
		Runtime: w.process, Store: w.store, Host: w, Local: "a", Limits: func() drain.Limits { return w.limits },
		Random: chance{w.sim.Rand()}, Keep: 2,
	})
	d := w.drainer
	w.process.Go("drains", func() {
		if err := d.Run(context.Background()); err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	_ = w.sim.Run(time.Minute, func() bool { return d.Running() || w.process.Dead() })
}

type chance struct{ r *rand.Rand }

func (c chance) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(c.r.Uint32())
	}
	return len(p), nil
}

// run lets the world go on for a time.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	end := w.sim.Elapsed() + d
	w.process.Go("clock", func() { _ = w.process.Sleep(context.Background(), d) })
	_ = w.sim.Run(d+time.Hour, func() bool { return w.sim.Elapsed() >= end || w.process.Dead() })
}

// do runs f as somebody who asks the agent.
func (w *world) do(f func(ctx context.Context)) {
	w.t.Helper()
	over := false
	w.process.Go("caller", func() { f(context.Background()); over = true })
	if err := w.sim.Run(time.Hour, func() bool { return over || w.process.Dead() }); err != nil {
		w.t.Fatalf("simulation: %v", err)
	}
}

func (w *world) begin(r drain.Request) drain.Drain {
	w.t.Helper()
	var out drain.Drain
	w.do(func(ctx context.Context) {
		var err error
		if out, err = w.drainer.Begin(ctx, r); err != nil {
			w.t.Errorf("Begin: %v", err)
		}
	})
	return out
}

func (w *world) get() drain.Drain {
	w.t.Helper()
	d, err := w.drainer.Get(context.Background(), "")
	if err != nil {
		w.t.Fatalf("Get: %v", err)
	}
	return d
}

// until lets the world go on until the drain is over.
func (w *world) until() drain.Drain {
	w.t.Helper()
	over := func() bool {
		d, err := w.drainer.Get(context.Background(), "")
		return err == nil && d.State.Over()
	}
	if err := w.sim.Run(time.Hour, over); err != nil {
		w.t.Fatalf("simulation: %v; %+v", err, w.get())
	}
	if !over() {
		w.t.Fatalf("the drain does not end: %+v, waiting %v", w.get(), w.sim.Waiting())
	}
	return w.get()
}

// settle ends what has come to its end.
func (w *world) settle() {
	now := w.sim.Elapsed()
	for _, id := range slices.Sorted(maps.Keys(w.moves)) {
		m := w.moves[id]
		if m.over || m.doubt || now < m.ends {
			continue
		}
		m.over = true
		g := w.guests[m.guest]
		end := func(m *migration.Migration) {
			m.Outcome, m.Status = migration.OutcomeCompleted, migration.StatusCompleted
		}
		if n := len(g.ends); n > 0 && g.ends[min(g.begun, n)-1] != nil {
			end = g.ends[min(g.begun, n)-1]
		}
		end(&m.m)
		if m.m.Outcome == migration.OutcomeInDoubt {
			m.over, m.doubt = false, true
		}
		if m.m.Outcome == migration.OutcomeCompleted {
			g.here = false
		}
	}
}

func (w *world) Guests(_ context.Context, r drain.Request) ([]drain.Present, error) {
	w.settle()
	if r.Kind == drain.KindEvacuate {
		return nil, nil
	}
	var out []drain.Present
	for _, name := range slices.Sorted(maps.Keys(w.guests)) {
		if g := w.guests[name]; g.here {
			out = append(out, g.present)
		}
	}
	w.process.Yield()
	return out, nil
}

func (w *world) Way(ctx context.Context, _ drain.Request, p drain.Present) (drain.Way, error) {
	g := w.guests[p.Instance]
	g.asked++
	if err := w.process.Sleep(ctx, w.planTakes); err != nil {
		return drain.Way{}, err
	}
	if g.asked <= g.unasked {
		return drain.Way{}, fault.New(fault.Unavailable, "Placement does not answer")
	}
	return g.way, nil
}

func (w *world) Begin(_ context.Context, r drain.Move) (migration.Migration, error) {
	w.settle()
	if m := w.moves[r.Migration]; m != nil {
		return m.m, nil
	}
	g := w.guests[r.Guest]
	if !g.here {
		return migration.Migration{}, fault.New(fault.NotFound, "no such guest")
	}
	under := 1
	for _, m := range w.moves {
		if m.guest == r.Guest && !m.over {
			w.t.Errorf("a second move of %s was begun", r.Guest)
		}
		if !m.over && !m.doubt {
			under++
		}
	}
	if w.door == "" && r.Kind == drain.KindDrain {
		w.t.Errorf("%s moves while its host takes new guests", r.Guest)
	}
	g.begun++
	w.began, w.most = append(w.began, r.Guest), max(w.most, under)
	if n := len(g.refuses); n > 0 {
		err := g.refuses[0]
		g.refuses = g.refuses[1:]
		if err != nil {
			return migration.Migration{}, err
		}
	}
	now := w.sim.Elapsed()
	w.moves[r.Migration] = &move{guest: r.Guest, begins: now, ends: now + g.takes, m: migration.Migration{
		UUID: r.Migration, InstanceUUID: r.Guest, DestCompute: "b", Queue: r.UUID, Status: migration.StatusRunning,
	}}
	w.process.Yield()
	return w.moves[r.Migration].m, nil
}

func (w *world) Get(_ context.Context, id string) (migration.Migration, error) {
	w.settle()
	if m := w.moves[id]; m != nil {
		return m.m, nil
	}
	return migration.Migration{}, fault.New(fault.NotFound, "no migration %s", id)
}

func (w *world) Watch(ctx context.Context, id string) (<-chan migration.Migration, error) {
	m, p := w.moves[id], w.process
	ch := make(chan migration.Migration, 100)
	p.Go("watch "+m.guest, func() {
		defer close(ch)
		for ctx.Err() == nil {
			w.settle()
			seen := m.m
			switch g, at := w.guests[m.guest], w.sim.Elapsed()-m.begins; {
			case m.over:
			case at < g.queued:
				seen.Status, seen.Waits = migration.StatusQueued, []fault.Reason{{Code: migration.CodeOutboundLimit}}
			case at >= g.silent[0] && at < g.silent[0]+g.silent[1]:
				seen.Status = migration.StatusError
			}
			seen.Waited = w.guests[m.guest].queued
			select {
			case ch <- seen:
			default:
			}
			if m.over {
				return
			}
			_ = p.Sleep(ctx, cmp.Or(w.tells, time.Second))
		}
	})
	return ch, nil
}

func (w *world) Abort(_ context.Context, id string) error {
	w.settle()
	m := w.moves[id]
	switch {
	case m == nil:
		return fault.New(fault.NotFound, "no migration %s", id)
	case m.over || m.past:
		return fault.New(fault.Forbidden, "too late")
	}
	m.over = true
	m.m.AbortRequested, m.m.Status, m.m.Outcome = true, migration.StatusCancelled, migration.OutcomeUndone
	return nil
}

func (w *world) Closed(context.Context) (json.RawMessage, error) { return json.Marshal(w.door) }

func (w *world) Close(_ context.Context, d drain.Drain) error {
	w.door = d.UUID
	w.events = append(w.events, "closed")
	return nil
}

func (w *world) Open(_ context.Context, d drain.Drain) error {
	if w.door != d.UUID {
		return nil // set otherwise since
	}
	w.events = append(w.events, "opened")
	return json.Unmarshal(d.Was, &w.door)
}

// states are the guests' states by name.
func states(d drain.Drain) map[string]drain.GuestState {
	out := map[string]drain.GuestState{}
	for _, g := range d.Guests {
		out[g.Name] = g.State
	}
	return out
}

func guestOf(d drain.Drain, name string) drain.Guest {
	for _, g := range d.Guests {
		if g.Name == name {
			return g
		}
	}
	return drain.Guest{}
}

func failing(code string) func(*migration.Migration) {
	return func(m *migration.Migration) {
		m.Outcome, m.Status = migration.OutcomeRefused, migration.StatusFailed
		m.Error = task.Keep(fault.Refuse(fault.DoesNotFit, "claim", fault.Reason{Code: code, Message: code}))
	}
}

// full is the end of a move of which one destination was busy, and another had no room.
func full(m *migration.Migration) {
	failing("memory_short")(m)
	m.Refusals = []migration.Refusal{
		{DestCompute: "b", Kind: fault.Busy, Reasons: []fault.Reason{{Code: migration.CodeInboundLimit, Message: "two arrive"}}},
		{DestCompute: "c", Kind: fault.DoesNotFit, Reasons: []fault.Reason{{Code: "memory_short", Message: "no room"}}},
	}
}
