package conductor_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation/operationtest"
	"berth/placementclient"
)

// road is host a with many guests, the hosts that they go to, and a conductor whose process may
// die and is started again. It holds the limits at every instant.
type road struct {
	t       testing.TB
	sim     *simruntime.Simulation
	init    *simruntime.Process
	process *simruntime.Process
	quick   *quick
	c       *conductor.Conductor

	outbound, perLink int // as they are set; 0 for none
	inbound           int // of each destination; 0 for none
	incoming          map[string]int
	meets             bool          // with the next claim a guest of its destination sets out for host a
	takes             time.Duration // a stream
	timeout           time.Duration // of an attempt; 0 for the rule

	claims  map[string]map[string]string // by destination, then migration/attempt: pending or bound
	sent    map[string]*sending          // by migration/attempt
	silent  map[string]bool              // destinations that do not answer, or not to a migration
	most    map[string]int               // what was under way at once: "out", "to b", "in b"
	asked   map[string]int               // claims, by migration
	begun   []string                     // instances, in the order of their streams
	wrong   []string
	points  int
	crashAt int // -1 for never
	lives   int
}

type sending struct {
	to        string
	since     time.Duration
	left      bool // the guest is at the destination
	reclaimed bool
}

func newRoad(t testing.TB, seed uint64) *road {
	r := &road{
		t: t, sim: simruntime.New(seed), incoming: map[string]int{}, takes: 10 * time.Second, claims: map[string]map[string]string{"b": {}, "c": {}},
		sent: map[string]*sending{}, silent: map[string]bool{}, most: map[string]int{}, asked: map[string]int{}, crashAt: -1,
		quick: &quick{data: map[string]map[string][]byte{}, held: map[string]placementclient.Allocations{}, polled: map[string]int{}},
	}
	r.init = r.sim.Process("world", "boot")
	r.init.Go("time", func() {
		for {
			_ = r.init.Sleep(context.Background(), 100*time.Millisecond)
		}
	})
	return r
}

// point is where the conductor's process may die.
func (r *road) point(p *simruntime.Process) {
	if p.Dead() {
		p.Yield()
	}
	if r.points++; r.points-1 == r.crashAt {
		p.Kill()
	}
	p.Yield()
}

type roadStore struct {
	*quick
	r *road
	p *simruntime.Process
}

func (s roadStore) Put(ctx context.Context, bucket, key string, value []byte) error {
	s.r.point(s.p)
	defer s.r.point(s.p)
	return s.quick.Put(ctx, bucket, key, value)
}

func (s roadStore) Delete(ctx context.Context, bucket, key string) error {
	s.r.point(s.p)
	return s.quick.Delete(ctx, bucket, key)
}

// roadPlacement knows b and c, in this order.
type roadPlacement struct{ *quick }

func (roadPlacement) Providers(context.Context, placementclient.ProviderFilter) ([]placementclient.ResourceProvider, error) {
	return []placementclient.ResourceProvider{{UUID: "a", Name: "a"}, {UUID: "b", Name: "b"}, {UUID: "c", Name: "c"}}, nil
}

func (roadPlacement) AllocationCandidates(context.Context, placementclient.CandidateRequest) (placementclient.AllocationCandidates, error) {
	return placementclient.AllocationCandidates{Candidates: []placementclient.Candidate{
		{Allocations: map[string]placementclient.Resources{"b": nil}}, {Allocations: map[string]placementclient.Resources{"c": nil}},
	}}, nil
}

// boot starts the conductor's process.
func (r *road) boot() {
	r.lives++
	p := r.sim.Process(fmt.Sprint("conductor ", r.lives), "boot")
	c := conductor.New(conductor.Config{
		Runtime: p, Store: roadStore{r.quick, r, p}, Local: "a", Placement: roadPlacement{r.quick}, AttemptTimeout: r.timeout, PollInterval: time.Second,
		Hosts: func(_ context.Context, name string) (migration.Host, error) {
			return operationtest.Over(roadHost{quickHost{q: r.quick, name: name}, r, p}), nil
		},
		MaxOutbound: func() int { return r.outbound }, MaxPerLink: func() int { return r.perLink },
		Incoming: func(host string) int { return r.incoming[host] },
		Jitter:   func(d time.Duration) time.Duration { return time.Duration(r.sim.Rand().Int64N(int64(max(d, 1)))) },
	})
	c.Strays(func(m migration.Migration, from migration.Status) {
		r.violate("status %s of %s follows %s at step %s", m.Status, m.InstanceUUID, from, m.Step)
	})
	r.process, r.c = p, c
	p.Go("run", func() {
		if err := c.Run(context.Background()); err != nil {
			r.violate("conductor: %v", err)
		}
	})
}

func (r *road) violate(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf("%s: %s", r.sim.Elapsed(), fmt.Sprintf(format, args...)))
}

// count keeps how many were under way at once.
func (r *road) count() {
	now := map[string]int{}
	for _, s := range r.sent {
		if !s.left && !s.reclaimed {
			now["out"]++
			now["to "+s.to]++
		}
	}
	for to, claims := range r.claims {
		for _, state := range claims {
			if state == "pending" {
				now["in "+to]++
			}
		}
	}
	for k, n := range now {
		r.most[k] = max(r.most[k], n)
	}
}

// instance and id name guest i and its move.
func instance(i int) string { return fmt.Sprintf("11111111-1111-4111-8111-%012d", i) }
func id(i int) string       { return fmt.Sprintf("22222222-2222-4222-8222-%012d", i) }

// anywhere is no destination at all; one that is not said is b.
const anywhere = "anywhere"

// ask asks for the move of guest i, again after a crash.
func (r *road) ask(ctx context.Context, i int, more conductor.Request) (migration.Migration, error) {
	more.Instance, more.Migration = instance(i), id(i)
	switch more.Destination {
	case "":
		more.Destination = "b"
	case anywhere:
		more.Destination = ""
	}
	return r.c.LiveMigrate(ctx, more)
}

// do runs f as an actor of the present process, once its conductor runs.
func (r *road) do(f func(ctx context.Context)) {
	r.t.Helper()
	done, c := false, r.c
	r.process.Go("test", func() {
		for !c.Running() {
			_ = r.process.Sleep(context.Background(), 10*time.Millisecond)
		}
		f(context.Background())
		done = true
	})
	r.until("a request is answered", func() bool { return done })
}

func (r *road) until(what string, is func() bool) {
	r.t.Helper()
	var looked time.Duration
	if err := r.sim.Run(r.sim.Elapsed()+time.Hour, func() bool {
		if now := r.sim.Elapsed(); now < looked+20*time.Millisecond {
			return false // not after each turn: that would be the most of the work
		} else {
			looked = now
		}
		return is()
	}); err != nil {
		r.t.Errorf("never: %s: %v", what, err)
	}
}

// pass lets time pass.
func (r *road) pass(d time.Duration) {
	r.t.Helper()
	end := r.sim.Elapsed() + d
	r.until("time passes", func() bool { return r.sim.Elapsed() >= end })
}

func (r *road) get(i int) migration.Migration {
	r.t.Helper()
	m, err := r.c.Get(context.Background(), id(i))
	if err != nil {
		r.t.Errorf("guest %d: %v", i, err)
	}
	return m
}

func (r *road) status(n int) map[migration.Status]int {
	out := map[migration.Status]int{}
	for i := range n {
		out[r.get(i).Status]++
	}
	return out
}

// over lets the moves come to their end, and reports what was wrong.
func (r *road) over(n int) {
	r.t.Helper()
	r.until("all moves are over", func() bool {
		for i := range n {
			if m, err := r.c.Get(context.Background(), id(i)); err != nil || !m.Done() {
				return false
			}
		}
		return true
	})
	r.pass(2 * time.Second) // a journal goes after its end is told
	for to, claims := range r.claims {
		for key, state := range claims {
			if state != "bound" {
				r.violate("claim %s at %s is left %s", key, to, state)
			}
		}
	}
	if n := len(r.quick.data["tasks"]) + len(r.quick.data["aborts"]); n > 0 {
		r.violate("%d journals and aborts are left", n)
	}
	if len(r.wrong) > 0 {
		r.t.Errorf("%v", r.wrong)
	}
}

// roadHost is one host as a process reaches it.
type roadHost struct {
	quickHost
	r *road
	p *simruntime.Process
}

func (h roadHost) reach(ref migration.Ref) error {
	h.r.point(h.p)
	if h.r.silent[h.name] || h.r.silent[ref.Migration] {
		return fault.New(fault.Unavailable, "host %s: no route to host", h.name)
	}
	return nil
}

func (h roadHost) Claim(_ context.Context, ref migration.Ref, c migration.ClaimRequest) (migration.ClaimAnswer, error) {
	if err := h.reach(ref); err != nil {
		return migration.ClaimAnswer{}, err
	}
	defer h.r.point(h.p)
	claims := h.r.claims[h.name]
	h.r.asked[ref.Migration]++
	if _, held := claims[at(ref)]; !held {
		n := 0
		for _, state := range claims {
			if state == "pending" {
				n++
			}
		}
		if c.Queued && h.r.inbound > 0 && n >= h.r.inbound {
			return migration.ClaimAnswer{}, fault.Refuse(fault.Busy, "claim", fault.Reason{Code: migration.CodeInboundLimit, Message: "as many are on their way", Have: fmt.Sprint(n)})
		}
		claims[at(ref)] = "pending"
		if h.r.meets {
			h.r.meets, h.r.incoming[h.name] = false, 1
		}
		h.r.count()
	}
	return migration.ClaimAnswer{Resources: c.Guest.Resources}, nil
}

func (h roadHost) RenewClaim(_ context.Context, ref migration.Ref) error {
	if err := h.reach(ref); err != nil {
		return err
	}
	if h.r.claims[h.name][at(ref)] == "" {
		return fault.New(fault.NotFound, "no claim of %s", at(ref))
	}
	return nil
}

func (h roadHost) AbortClaim(_ context.Context, ref migration.Ref) error {
	if err := h.reach(ref); err != nil {
		return err
	}
	delete(h.r.claims[h.name], at(ref))
	return nil
}

func (h roadHost) RollbackPreLiveMigration(_ context.Context, ref migration.Ref) error {
	return h.reach(ref)
}

func (h roadHost) PreLiveMigration(_ context.Context, ref migration.Ref, _ migration.PreLiveRequest) (migration.Prepared, error) {
	return migration.Prepared{LibvirtURI: h.name}, h.reach(ref)
}

func (h roadHost) StartStream(_ context.Context, ref migration.Ref, s migration.Stream) error {
	h.r.point(h.p)
	if h.r.sent[at(ref)] == nil {
		h.r.sent[at(ref)] = &sending{to: s.Prepared.LibvirtURI, since: h.r.sim.Elapsed()}
		h.r.begun = append(h.r.begun, ref.Instance)
		h.r.count()
	}
	h.r.point(h.p)
	return nil
}

func (h roadHost) StreamStatus(_ context.Context, ref migration.Ref) (migration.StreamStatus, error) {
	st := migration.StreamStatus{Ledger: migration.LedgerHere, Domain: migration.DomainView{Exists: true, State: "running"}}
	s := h.r.sent[at(ref)]
	switch {
	case s == nil || s.reclaimed:
	case h.r.sim.Elapsed()-s.since >= h.r.takes:
		s.left = true
		st.Domain = migration.DomainView{Exists: true, State: "shut off", Reason: "migrated"}
	default:
		st.InFlight, st.Progress = true, migration.Progress{MemoryTotal: 1 << 40, MemoryProcessed: uint64(h.r.sim.Elapsed())}
	}
	return st, nil
}

func (h roadHost) Reclaim(_ context.Context, ref migration.Ref) error {
	h.r.point(h.p)
	s := h.r.sent[at(ref)]
	if s != nil && s.left {
		return fault.New(fault.Forbidden, "the guest has left")
	}
	if s != nil {
		s.reclaimed = true
	}
	return nil
}

func (h roadHost) DestinationStatus(_ context.Context, ref migration.Ref) (migration.DestinationStatus, error) {
	return migration.DestinationStatus{}, h.reach(ref)
}

func (h roadHost) AcceptToken(_ context.Context, ref migration.Ref, _ migration.Commit) error {
	return h.reach(ref)
}

func (h roadHost) FinishDestination(_ context.Context, ref migration.Ref) error {
	if err := h.reach(ref); err != nil {
		return err
	}
	h.r.claims[h.name][at(ref)] = "bound"
	return nil
}

// codesWaited are the codes of what a move waits for.
func codesWaited(m migration.Migration) []string {
	var out []string
	for _, r := range m.Waits {
		out = append(out, r.Code)
	}
	return slices.Compact(out)
}
