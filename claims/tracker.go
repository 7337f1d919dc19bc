package claims

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// Store is where the ledger lives: store.DB, or storetest.Memory.
type Store interface {
	// Enqueue orders mutations for one atomic commit and never blocks on a disk.
	Enqueue(mutations ...store.Mutation) *store.Pending
	// List gives a bucket's records by key.
	List(ctx context.Context, bucket string) (map[string][]byte, error)
}

// Options are what a tracker is made of.
type Options struct {
	Store        Store
	Runtime      runtime.Runtime
	Host         string        // this host's provider name: holder of its tokens
	Capacity     Capacity      // may be set later
	DefaultLease time.Duration // of a claim that asks for none; 0 for one minute
	Logger       *slog.Logger  // nil for slog.Default()
	Random       io.Reader     // for claim ids and tickets; nil for crypto/rand
	Meter        Meter         // nil for nobody

	// Tolerant passes over a record that cannot be read, and tells it by Unread: who
	// sets it gives no claim before what the record may have said is known again.
	Tolerant bool
}

// defaultLease outlives a conductor's restart and a few lost renewals.
const defaultLease = time.Minute

// Tracker is the process-wide claim lock and the ledger behind it. There is one
// in a process, and the store's file lock keeps other processes out.
//
// Every method that changes something is one atomic commit: it returns nil once
// all of it is durable, and with an error nothing of it stands. Methods that
// wait take a context; it bounds the wait for another change of the same
// instance or migration. A commit on its way is waited for, because giving up
// on it would leave an answer that nobody knows. Methods without a context
// answer at once from memory, and only what is durable.
//
// Errors common to all: fault.Invalid for a request that makes no sense,
// fault.Unavailable when the store did not take the commit or the context ended
// first.
type Tracker struct {
	store   Store
	runtime runtime.Runtime
	host    string
	lease   time.Duration
	log     *slog.Logger
	random  io.Reader

	tolerant bool
	unread   []Unread // by load alone

	// mu is the claim lock. It guards all below. Under it: arithmetic and
	// enqueueing; never a wait for disk, libvirt, Placement, peers or
	// callbacks. In the lock order it stands above the store's own.
	mu         lock
	machine    *machine            // the host and what is in use of it
	refusal    string              // why no new claim is given; "" when they are
	claims     map[string]*entry   // by claim uuid
	holdings   map[string]*holding // by instance uuid: the same entries; only by enterLocked, leaveLocked and recountLocked
	strangers  map[string]stranger // by instance uuid: guests that run here without a claim
	instances  map[string]Instance // by uuid
	copies     map[string]Copy     // by instance uuid: see copy.go
	migrations map[string]half     // by uuid
	verbs      map[string][]byte   // by verbKey: JSON
	changing   map[string]*change  // by subject: what is on its way to the disk
}

// entry is a claim in memory.
type entry struct {
	claim Claim
	told  bool // durable, and so visible; a new claim is not until its commit

	// counted is what the arithmetic holds for it: what the claim holds, and
	// while a change to next is on its way both together.
	counted hold
	next    *Claim // nil when no change of what it holds is on its way
}

// holdOn is what the entry is to be counted for.
func (e *entry) holdOn(m *machine) hold {
	h := m.hold(e.claim.Resources, e.claim.Assignment)
	if e.next != nil {
		h = h.union(m.hold(e.next.Resources, e.next.Assignment))
	}
	return h
}

// holding is all that an instance holds here. It has two claims while it is
// resized or rebuilt on this host, and uses one of them: together they hold,
// of each amount, the larger, and of CPUs, pages and devices what either has.
type holding struct {
	instance string
	entries  []*entry
	counted  hold // as the machine counts it
}

func (h *holding) sum() hold {
	var sum hold
	for i, e := range h.entries {
		if i == 0 {
			sum = e.counted
			continue
		}
		sum = sum.union(e.counted)
	}
	return sum
}

// entriesLocked are the claims of an instance, those on their way in included.
func (t *Tracker) entriesLocked(instance string) []*entry {
	if h, ok := t.holdings[instance]; ok {
		return h.entries
	}
	return nil
}

// enterLocked counts a claim from now on.
func (t *Tracker) enterLocked(e *entry) {
	t.forgetStrangerLocked(e.claim.Owner.Instance)
	t.claims[e.claim.ID] = e
	e.counted = e.holdOn(t.machine)
	h, ok := t.holdings[e.claim.Owner.Instance]
	if !ok {
		h = &holding{instance: e.claim.Owner.Instance}
		t.holdings[h.instance] = h
	}
	t.changeLocked(h, func() { h.entries = append(h.entries, e) })
}

// leaveLocked ends a claim: from now on others can have what it held.
func (t *Tracker) leaveLocked(e *entry) {
	delete(t.claims, e.claim.ID)
	h := t.holdings[e.claim.Owner.Instance]
	t.changeLocked(h, func() {
		h.entries = slices.DeleteFunc(h.entries, func(o *entry) bool { return o == e })
	})
	if len(h.entries) == 0 {
		delete(t.holdings, h.instance)
	}
}

// recountLocked has an entry be the claim now, with a change to next on its way
// or, with nil, none.
func (t *Tracker) recountLocked(e *entry, now Claim, next *Claim) {
	t.changeLocked(t.holdings[e.claim.Owner.Instance], func() {
		e.claim, e.next = now, next
		e.counted = e.holdOn(t.machine)
	})
}

// changeLocked has the machine count an instance as it is after f.
func (t *Tracker) changeLocked(h *holding, f func()) {
	t.machine.remove(h.instance, h.counted)
	f()
	h.counted = h.sum()
	t.machine.add(h.instance, h.counted)
}

// change is what is on its way to the disk, and what becomes of memory then.
type change struct {
	subjects []string
	pending  *store.Pending
	apply    func() // under mu, once it is durable
	revert   func() // under mu, once it has failed; nil when memory was not touched
	settled  bool
}

// plan is what a method wants done, made under mu.
type plan struct {
	mutations []store.Mutation
	apply     func()
	revert    func()
}

// Open loads the ledger and gives the tracker over it. Pending claims get one
// full lease again if they were made in this boot; those of an earlier boot are
// dropped, since nothing can arrive for them. A record that cannot be read is
// fault.Internal and names it: a ledger is never smaller for an error.
func Open(ctx context.Context, o Options) (*Tracker, error) {
	if o.Store == nil || o.Runtime == nil || o.Host == "" {
		return nil, fault.New(fault.Invalid, "open ledger: store, runtime and host name are needed")
	}
	t := &Tracker{
		store: o.Store, runtime: o.Runtime, host: o.Host, lease: o.DefaultLease, log: o.Logger, random: o.Random, tolerant: o.Tolerant,
		machine: newMachine(o.Capacity),
		claims:  map[string]*entry{}, holdings: map[string]*holding{}, strangers: map[string]stranger{}, instances: map[string]Instance{}, copies: map[string]Copy{}, migrations: map[string]half{}, verbs: map[string][]byte{},
		changing: map[string]*change{},
	}
	t.mu.meter, t.mu.now = o.Meter, o.Runtime.Now
	if t.lease <= 0 {
		t.lease = defaultLease
	}
	if t.log == nil {
		t.log = slog.Default()
	}
	if t.random == nil {
		t.random = rand.Reader
	}
	if err := t.load(ctx); err != nil {
		return nil, err
	}
	// A disk that is full now must not keep the host from starting: what is due
	// stays counted, and Run tries again.
	if _, err := t.Expire(ctx); err != nil {
		t.log.Warn("claims of an earlier boot could not be dropped", "error", err)
	}
	return t, nil
}

// Host is this host's provider name.
func (t *Tracker) Host() string { return t.host }

// change makes a plan under the claim lock, once no other change of the same
// subjects is on its way, and carries it out. So a plan sees, of its subjects,
// only what is durable. A plan without mutations changes nothing.
func (t *Tracker) change(ctx context.Context, subjects []string, make func() (plan, error)) error {
	var mine *change
	for mine == nil {
		if ctx.Err() != nil {
			return fault.New(fault.Unavailable, "write ledger: nothing was done: %w", context.Cause(ctx))
		}
		begun, other, err := t.begin(subjects, make)
		switch {
		case err != nil:
			if p, ok := errors.AsType[*panicked](err); ok {
				t.log.Error("a change of the ledger panicked: nothing was changed", "subjects", subjects, "panic", p.value, "stack", p.stack)
			}
			return err
		case other != nil:
			// Whoever comes first settles it; its owner may not have run yet.
			t.settle(other, other.pending.Wait())
		case begun == nil:
			return nil
		}
		mine = begun
	}
	err := mine.pending.Wait()
	t.settle(mine, err)
	if err != nil {
		return fault.New(fault.KindOf(err), "write ledger: nothing was changed: %w", err)
	}
	return nil
}

// begin makes a plan under the claim lock and enqueues it. It gives another change
// of the same subjects where one is on its way, and neither for a plan without
// mutations. A panic of make is fault.Internal: nothing was changed.
func (t *Tracker) begin(subjects []string, make func() (plan, error)) (mine, other *change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other = t.conflictLocked(subjects); other != nil {
		return nil, other, nil
	}
	defer func() {
		if p := recover(); p != nil {
			t.takeBackLocked(subjects)
			err = fault.New(fault.Internal, "change the ledger: internal error, see the agent's log: %w", &panicked{p, string(debug.Stack())})
		}
	}()
	p, err := make()
	if err != nil || len(p.mutations) == 0 {
		return nil, nil, err
	}
	mine = &change{subjects: subjects, apply: p.apply, revert: p.revert, pending: t.store.Enqueue(p.mutations...)}
	for _, s := range subjects {
		t.changing[s] = mine
	}
	return mine, nil, nil
}

// panicked is what a plan panicked with.
type panicked struct {
	value any
	stack string
}

// Error names the panic, not its stack.
func (p *panicked) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// takeBackLocked makes memory what it was before a plan of these subjects, of
// which a part was counted and nothing was enqueued. No other change of them is on
// its way, so what is not durable of them is that plan's.
func (t *Tracker) takeBackLocked(subjects []string) {
	for id, e := range t.claims {
		switch {
		case !slices.Contains(subjects, ofInstance(e.claim.Owner.Instance)):
		case !e.told:
			delete(t.claims, id)
		default:
			e.next = nil
		}
	}
	for instance, h := range t.holdings {
		h.entries = slices.DeleteFunc(h.entries, func(e *entry) bool { return t.claims[e.claim.ID] != e })
		if len(h.entries) == 0 {
			delete(t.holdings, instance)
		}
	}
	t.countAnewLocked(t.machine.capacity)
}

func (t *Tracker) conflictLocked(subjects []string) *change {
	for _, s := range subjects {
		if c, ok := t.changing[s]; ok {
			return c
		}
	}
	return nil
}

// settle brings memory to what became of a commit, once.
func (t *Tracker) settle(c *change, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.settled {
		return
	}
	c.settled = true
	for _, s := range c.subjects {
		delete(t.changing, s)
	}
	switch {
	case err == nil:
		c.apply()
	case c.revert != nil:
		c.revert()
	}
}

// The subjects of changes: two changes with a subject in common wait for each
// other, so that neither is built on what may yet fail.
func ofInstance(uuid string) string  { return "instance " + uuid }
func ofMigration(uuid string) string { return "migration " + uuid }
func ofName(name string) string      { return "name " + name }

// subjects gives the subjects of an instance and, where there is one, of a
// migration.
func subjects(instance, id string) []string {
	s := []string{ofInstance(instance)}
	if id != "" {
		s = append(s, ofMigration(id))
	}
	return s
}

// List gives all claims, in order of creation, with their tickets: see
// Claim.Redacted.
func (t *Tracker) List() []Claim {
	return t.choose(func(Claim) bool { return true })
}

// Get gives the claim with this uuid.
func (t *Tracker) Get(id string) (Claim, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, ok := t.claims[id]
	if !ok || !e.told {
		return Claim{}, false
	}
	return e.claim.clone(), true
}

// ByOwner gives the claim of exactly this owner. A migration's claim is the
// instance's after Bind and is then found by the instance's owner only.
func (t *Tracker) ByOwner(o Owner) (Claim, bool) {
	return first(t.choose(func(c Claim) bool { return c.Owner == o }))
}

// ByInstance gives every claim that an instance has here.
func (t *Tracker) ByInstance(uuid string) []Claim {
	return t.choose(func(c Claim) bool { return c.Owner.Instance == uuid })
}

// ByMigration gives the claims that a migration has here, and the one that
// became the instance's by this migration's Bind.
func (t *Tracker) ByMigration(uuid string) []Claim {
	return t.choose(func(c Claim) bool {
		return c.Owner.Migration == uuid || c.Owner.Migration == "" && c.BoundFrom != nil && c.BoundFrom.Migration == uuid
	})
}

func (t *Tracker) choose(want func(Claim) bool) []Claim {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Claim
	for _, e := range t.claims {
		if e.told && want(e.claim) {
			out = append(out, e.claim.clone())
		}
	}
	slices.SortFunc(out, func(a, b Claim) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

func first(claims []Claim) (Claim, bool) {
	if len(claims) == 0 {
		return Claim{}, false
	}
	return claims[0], true
}

// clone shares no memory with c.
func (c Claim) clone() Claim {
	if c.Lease != nil {
		l := *c.Lease
		c.Lease = &l
	}
	if c.Context != nil {
		x := c.Context.clone()
		c.Context = &x
	}
	if c.Seen != nil {
		s := *c.Seen
		c.Seen = &s
	}
	if c.BoundFrom != nil {
		o := *c.BoundFrom
		c.BoundFrom = &o
	}
	c.Topology, c.PCI, c.Assignment = c.Topology.Clone(), cloneRequests(c.PCI), c.Assignment.Clone()
	return c
}

func (i Instance) clone() Instance {
	i.Flavor.ExtraSpecs, i.Images = maps.Clone(i.Flavor.ExtraSpecs), maps.Clone(i.Images)
	return i
}
