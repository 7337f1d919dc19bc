package storetest

import (
	"context"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// Point is a moment of a commit at which a process can die.
type Point string

// The points, in their order.
const (
	BeforeCommit Point = "before commit" // nothing of it is on the disk
	AfterCommit  Point = "after commit"  // the disk has it, or has failed; nobody was told
	Visible      Point = "visible"       // readers see it from here on; not asked where the commit has failed
	BeforeAnswer Point = "before answer" // one who waited for it is about to be told
)

// Live has commits happen by themselves from now on, as actors of rt. point, which
// may be nil, is asked at every point, of the committing actor or, before an answer,
// of the one who waited, with the mutations of the batch or of the one who waits. It
// may sleep, and end its process. What it gives at BeforeCommit is what becomes of the
// commit, where OnCommit's function does not say otherwise; at other points it counts
// for nothing.
func (m *Memory) Live(rt runtime.Runtime, point func(at Point, batch []store.Mutation) Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rt, m.point = rt, point
}

// await is what a Pending does when somebody waits for it.
func (m *Memory) await(i *item, done <-chan struct{}) {
	m.mu.Lock()
	rt, point := m.rt, m.point
	m.mu.Unlock()
	if rt == nil {
		m.Flush()
		return
	}
	_ = runtime.Await(context.Background(), rt, done) // its context never ends
	if point != nil {
		point(BeforeAnswer, i.mutations)
	}
}

// committer commits what is queued until nothing is.
func (m *Memory) committer() {
	for {
		m.mu.Lock()
		batch := m.queue
		m.queue = nil
		if len(batch) == 0 || m.crashed {
			m.busy = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		m.write(batch)
	}
}

// Flush commits what is queued, as one commit. It is for a store without a runtime.
func (m *Memory) Flush() {
	m.mu.Lock()
	batch := m.queue
	m.queue = nil
	m.mu.Unlock()
	if len(batch) > 0 {
		m.write(batch)
	}
}

// write is store.DB's: when the whole fails, each is tried by itself.
func (m *Memory) write(batch []*item) {
	err := m.commit(batch)
	if err == nil || len(batch) == 1 {
		m.tell(batch, err)
		return
	}
	for n := range batch {
		m.tell(batch[n:n+1], m.commit(batch[n:n+1]))
	}
}

func (m *Memory) tell(batch []*item, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range batch {
		i.settle(err)
	}
}

func (m *Memory) commit(batch []*item) error {
	var all []store.Mutation
	for _, i := range batch {
		all = append(all, i.mutations...)
	}
	m.mu.Lock()
	point := m.point
	m.mu.Unlock()
	outcome := Commit
	if point != nil {
		outcome = point(BeforeCommit, all)
	}
	err := m.apply(all, outcome)
	if point != nil {
		point(AfterCommit, all)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	for _, mutation := range all {
		m.shown.set(record{mutation.Bucket, mutation.Key}, mutation.Value)
	}
	m.mu.Unlock()
	if point != nil {
		point(Visible, all)
	}
	return nil
}

// apply writes to the disk, or not.
func (m *Memory) apply(all []store.Mutation, outcome Outcome) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return err
	}
	m.commits++
	if m.decide != nil {
		if o := m.decide(m.commits, all); o != Commit {
			outcome = o
		}
	}
	if outcome != Fail {
		found := change{}
		set := func(r record, value []byte) {
			if _, twice := found[r]; !twice {
				found[r] = m.disk.get(r)
			}
			m.disk.set(r, value)
		}
		// As in store.DB, a commit carries the undoing of those that failed before it.
		for r := range m.doubt {
			set(r, m.shown.get(r))
		}
		for n := range all {
			r := record{all[n].Bucket, all[n].Key}
			if all[n].Value != nil {
				all[n].Value = append([]byte{}, all[n].Value...)
			}
			set(r, all[n].Value)
		}
		if m.past = append(m.past, found); len(m.past) > kept {
			m.past = m.past[1:]
		}
	}
	if outcome == Commit {
		clear(m.doubt)
		return nil
	}
	for _, mutation := range all {
		m.doubt[record{mutation.Bucket, mutation.Key}] = true
	}
	return fault.New(fault.Unavailable, "write to memory: %w", ErrCommit)
}
