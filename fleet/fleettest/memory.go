package fleettest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// Memory is the store itself, which outlives those who talk to it. They do so through Clients.
type Memory struct {
	rt runtime.Runtime

	// mu guards the rest; nothing that waits happens under it.
	mu       sync.Mutex
	revision uint64
	records  map[string]fleet.Record
	leases   map[string]*lease // by key
	down     bool
	// incarnation counts those of the store; see Restore.
	incarnation int
	late        []func()      // commits that were kept back
	sessions    []session     // runs of its server; none for a store that tells of none
	runs        int           // of the server, so far
	served      time.Duration // since when the last one runs, on the runtime's boot clock
}

// session is one run of a store's server.
type session struct {
	name string
	from uint64 // the last revision before it
}

type lease struct {
	holder *Client
	length time.Duration
	until  time.Duration // on the runtime's boot clock
}

// NewMemory makes an empty store, whose leases end by rt's boot clock.
func NewMemory(rt runtime.Runtime) *Memory {
	return &Memory{rt: rt, records: map[string]fleet.Record{}, leases: map[string]*lease{}}
}

// Call is what a client is about to do.
type Call struct {
	Client string
	Verb   string // get, list, commit, lease, release, no_quorum
	Key    string // of a commit the first change's
	Write  bool
}

// Outcome is what becomes of a call.
type Outcome int

// The outcomes.
const (
	Answered Outcome = iota
	// Refused: it did not come through, and nothing happened: fault.Unavailable.
	Refused
	// Lost: it was done, and the answer is lost: fault.InDoubt for a commit, fault.Unavailable
	// for others.
	Lost
	// Late is Lost for a commit that has not happened yet: it does at Land, if its conditions
	// hold then.
	Late
)

// Client is one process's way to the store: a fleet.Store with fleet.Leases.
type Client struct {
	memory *Memory
	name   string
	// Before decides what becomes of each call; nil answers all. It is called before anything
	// happens, with no lock held, and may wait on the runtime.
	Before func(ctx context.Context, c Call) Outcome
}

// Client is a new way to the store. name is for Before alone.
func (m *Memory) Client(name string) *Client { return &Client{memory: m, name: name} }

// recordsOnly hides that a store has leases.
type recordsOnly struct {
	fleet.Store
	fleet.Incarnations
	fleet.History
}

// RecordsOnly is the same way without leases, as the embedded store has none.
func (c *Client) RecordsOnly() fleet.Store { return recordsOnly{c, c, c} }

// SetDown takes the whole store from everybody, or gives it back; while it is down no lease
// ends, and each begins anew when it is back.
func (m *Memory) SetDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	if m.down && !down {
		for _, l := range m.leases {
			l.until = m.rt.Boot().Since + l.length
		}
	}
	m.down = down
}

// Land does the commits that were kept back, in the order in which they came, and says how many
// there were.
func (m *Memory) Land() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	n := len(m.late)
	for _, commit := range m.late {
		commit()
	}
	m.late = nil
	return n
}

// Restore puts records in the place of all there are, as a backup does: nil for an emptied store.
// told says that the store recognises it and has a new incarnation; else it takes a client that
// has seen a later revision (Renew). Revisions go on from the greatest of the records.
func (m *Memory) Restore(records []fleet.Record, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records, m.leases, m.revision = map[string]fleet.Record{}, map[string]*lease{}, 0
	for _, rec := range records {
		rec.Value = bytes.Clone(rec.Value)
		m.records[rec.Key] = rec
		m.revision = max(m.revision, rec.Revision)
	}
	if told {
		m.incarnation++
	}
	m.sessions = slices.DeleteFunc(m.sessions, func(s session) bool { return s.from > m.revision })
}

// Serve begins a run of the store's server, which tells its name as an embedded store does. Its
// revisions go by a clock: they are above all that were lost.
func (m *Memory) Serve() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs++
	m.sessions = append(m.sessions, session{fmt.Sprintf("run-%d", m.runs), m.revision})
	m.revision += clockStep * uint64(m.runs)
	m.served = m.rt.Boot().Since
}

// clockStep is by how much the clock of a run is ahead of the revisions of the run before. Arbitrary:
// more than are written in a test.
const clockStep = 1_000_000

// Records gives all there is, in order of key: for invariants of a simulation.
func (m *Memory) Records() []fleet.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	return m.listLocked("")
}

func (m *Memory) listLocked(prefix string) []fleet.Record {
	out := []fleet.Record{}
	for _, k := range slices.Sorted(maps.Keys(m.records)) {
		if strings.HasPrefix(k, prefix) {
			rec := m.records[k]
			rec.Value = bytes.Clone(rec.Value)
			out = append(out, rec)
		}
	}
	return out
}

// expireLocked ends leases whose time is over.
func (m *Memory) expireLocked() {
	if m.down {
		return
	}
	now := m.rt.Boot().Since
	for k, l := range m.leases {
		if now >= l.until {
			delete(m.leases, k)
			delete(m.records, k)
			m.revision++
		}
	}
}

// call does one call: what, with mu held, or not.
func (c *Client) call(ctx context.Context, verb, key string, write bool, what func(m *Memory) error) error {
	outcome := Answered
	if c.Before != nil {
		outcome = c.Before(ctx, Call{Client: c.name, Verb: verb, Key: key, Write: write})
	}
	if err := context.Cause(ctx); err != nil {
		return fault.New(fault.Unavailable, "%s %s: %w", verb, key, err)
	}
	m := c.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked()
	lost := fault.Unavailable
	if verb == "commit" {
		lost = fault.InDoubt
	}
	switch {
	case m.down || outcome == Refused:
		return fault.New(fault.Unavailable, "%s %s: the store does not answer", verb, key)
	case outcome == Late && verb == "commit":
		m.late = append(m.late, func() { _ = what(m) }) // nobody is left to be told
	case outcome == Lost || outcome == Late:
		_ = what(m) // its answer is what is lost
	default:
		return what(m)
	}
	return fault.New(lost, "%s %s: the answer is lost", verb, key)
}

// Get reads one record.
func (c *Client) Get(ctx context.Context, key string) (fleet.Record, error) {
	var out fleet.Record
	err := c.call(ctx, "get", key, false, func(m *Memory) error {
		rec, ok := m.records[key]
		if !ok {
			return fault.New(fault.NotFound, "get %s: there is no such record", key)
		}
		out = rec
		out.Value = bytes.Clone(rec.Value)
		return nil
	})
	if err != nil {
		return fleet.Record{}, err
	}
	return out, nil
}

// List reads records by prefix.
func (c *Client) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	var out []fleet.Record
	err := c.call(ctx, "list", prefix, false, func(m *Memory) error {
		out = m.listLocked(prefix)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Commit does all changes or none.
func (c *Client) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	if err := fleet.CheckCommit(when, changes); err != nil {
		return err
	}
	when, changes = slices.Clone(when), slices.Clone(changes)
	for i := range changes {
		changes[i].Value = bytes.Clone(changes[i].Value)
	}
	first := ""
	if len(changes) > 0 {
		first = changes[0].Key
	}
	return c.call(ctx, "commit", first, true, func(m *Memory) error {
		for _, w := range when {
			if have := m.records[w.Key].Revision; have != w.Revision {
				return fault.New(fault.GenerationConflict, "commit: record %s has revision %d, not %d", w.Key, have, w.Revision)
			}
		}
		m.revision++
		for _, ch := range changes {
			delete(m.leases, ch.Key)
			if ch.Value == nil {
				delete(m.records, ch.Key)
				continue
			}
			m.records[ch.Key] = fleet.Record{Key: ch.Key, Value: ch.Value, Revision: m.revision}
		}
		return nil
	})
}

// Lease writes a key for a time, or renews it.
func (c *Client) Lease(ctx context.Context, key string, value []byte, length fleet.Seconds) error {
	return c.call(ctx, "lease", key, true, func(m *Memory) error {
		d := time.Duration(length) * time.Second
		l := m.leases[key]
		if l == nil || l.holder != c || l.length != d || !bytes.Equal(m.records[key].Value, value) {
			m.revision++
			m.records[key] = fleet.Record{Key: key, Value: bytes.Clone(value), Revision: m.revision}
		}
		m.leases[key] = &lease{holder: c, length: d, until: m.rt.Boot().Since + d}
		return nil
	})
}

// Release ends the lease that this client has on a key.
func (c *Client) Release(ctx context.Context, key string) error {
	return c.call(ctx, "release", key, true, func(m *Memory) error {
		if l := m.leases[key]; l != nil && l.holder == c {
			m.revision++
			delete(m.leases, key)
			delete(m.records, key)
		}
		return nil
	})
}

// NoQuorum holds while the store is down for all, by what its members say.
func (c *Client) NoQuorum(ctx context.Context) (refused bool, err error) {
	m := c.memory
	outcome := Answered
	if c.Before != nil {
		outcome = c.Before(ctx, Call{Client: c.name, Verb: "no_quorum"})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if outcome != Answered {
		return false, fault.New(fault.Unavailable, "ask each member: none of them answers")
	}
	if !m.down {
		return false, fault.New(fault.Unavailable, "ask each member: they serve")
	}
	return false, nil
}

// Moment gives the store's incarnation and last revision.
func (c *Client) Moment(ctx context.Context) (fleet.Moment, error) {
	var out fleet.Moment
	err := c.call(ctx, "moment", "", false, func(m *Memory) error {
		out = m.momentLocked()
		return nil
	})
	return out, err
}

func (m *Memory) momentLocked() fleet.Moment {
	out := fleet.Moment{Incarnation: fmt.Sprintf("memory-%d", m.incarnation), Revision: m.revision}
	if n := len(m.sessions); n > 0 {
		out.Session, out.Serving = m.sessions[n-1].name, m.rt.Boot().Since-m.served+1
	}
	return out
}

// Has reports whether what was committed up to a moment that was told is in the store still.
func (c *Client) Has(ctx context.Context, told fleet.Moment) (bool, error) {
	has := false
	err := c.call(ctx, "has", "", false, func(m *Memory) error {
		at := slices.IndexFunc(m.sessions, func(s session) bool { return s.name == told.Session })
		if at < 0 {
			return nil
		}
		last := m.revision
		if at+1 < len(m.sessions) {
			last = m.sessions[at+1].from
		}
		has = told.Revision <= last
		return nil
	})
	return has, err
}

// Renew gives the store another incarnation, unless it has another than was.
func (c *Client) Renew(ctx context.Context, was string) error {
	return c.call(ctx, "renew", "", true, func(m *Memory) error {
		if m.momentLocked().Incarnation == was {
			m.incarnation++
		}
		return nil
	})
}
