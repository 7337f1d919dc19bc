// Package storetest is a store in memory with the semantics of a disk, for
// simulators and property tests.
//
// It is for callers of store.DB to be tested with: what is enqueued becomes
// durable when somebody waits for it, as one commit with all that was enqueued
// before; a crash keeps what was durable and drops the rest; commits fail on
// demand, in both ways in which a disk fails. It starts no goroutine and reads
// no clock, so that a run is as deterministic as its caller.
package storetest

import (
	"context"
	"maps"
	"sync"

	"berth/internal/fault"
	"berth/internal/store"
)

// Outcome is what becomes of one commit.
type Outcome int

// The outcomes.
const (
	Commit      Outcome = iota // durable, and reported so
	Fail                       // not written, and reported as failed: a full disk
	FailWritten                // written, and reported as failed: its last sync returned an error
)

// ErrCommit is the cause of every commit that failed by Fail or FailWritten.
const ErrCommit = errString("injected fault")

type errString string

func (e errString) Error() string { return string(e) }

type content map[string]map[string][]byte // by bucket and key

func (c content) clone() content {
	out := content{}
	for bucket, records := range c {
		out[bucket] = maps.Clone(records)
	}
	return out
}

func (c content) apply(m store.Mutation) {
	if m.Value == nil {
		delete(c[m.Bucket], m.Key)
		return
	}
	if c[m.Bucket] == nil {
		c[m.Bucket] = map[string][]byte{}
	}
	c[m.Bucket][m.Key] = append([]byte{}, m.Value...)
}

// Memory is a store in memory. All methods may be called by many goroutines.
type Memory struct {
	mu      sync.Mutex // guards all below; nothing is called under it but decide
	shown   content    // what readers see: all that was reported as committed
	disk    content    // what a crash leaves
	queue   []item
	decide  func(commit int, batch []store.Mutation) Outcome
	commits int
	crashed bool
}

type item struct {
	mutations []store.Mutation
	settle    func(error)
}

// NewMemory gives an empty store.
func NewMemory() *Memory { return &Memory{shown: content{}, disk: content{}} }

// OnCommit has f decide each commit from now on; nil lets all succeed. f gets
// the number of the commit, from 1, and its mutations; it must not call the
// store.
func (m *Memory) OnCommit(f func(commit int, batch []store.Mutation) Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decide = f
}

// Enqueue is store.DB's: ordered, atomic, durable once Wait says so. The commit
// happens in the first Wait of this Pending or of a later one.
func (m *Memory) Enqueue(mutations ...store.Mutation) *store.Pending {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, settle := store.NewPending(m.Flush)
	if m.crashed {
		settle(errGone())
		return p
	}
	m.queue = append(m.queue, item{mutations, settle})
	return p
}

// Flush commits what is queued, as one commit.
func (m *Memory) Flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) == 0 {
		return
	}
	var batch []store.Mutation
	for _, i := range m.queue {
		batch = append(batch, i.mutations...)
	}
	m.commits++
	outcome := Commit
	if m.decide != nil {
		outcome = m.decide(m.commits, batch)
	}
	next := m.shown.clone()
	for _, mutation := range batch {
		next.apply(mutation)
	}
	var err error
	switch outcome {
	case Commit:
		// As in store.DB, a success carries the undoing of earlier failures.
		m.shown, m.disk = next, next.clone()
	case FailWritten:
		m.disk = next
		fallthrough
	default:
		err = fault.New(fault.Unavailable, "write to memory: %w", ErrCommit)
	}
	for _, i := range m.queue {
		i.settle(err)
	}
	m.queue = nil
}

// Crash gives the store as a restart finds it: what was durable. What was
// queued is lost; its waiters, and all later callers of m, get an error.
func (m *Memory) Crash() *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.queue {
		i.settle(errGone())
	}
	m.queue, m.crashed = nil, true
	return &Memory{shown: m.disk.clone(), disk: m.disk.clone()}
}

// Commits counts the commits tried.
func (m *Memory) Commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.commits
}

// Put writes one record and returns when it is durable.
func (m *Memory) Put(_ context.Context, bucket, key string, value []byte) error {
	return m.Enqueue(store.Put(bucket, key, value)).Wait()
}

// Delete removes one record and returns when that is durable.
func (m *Memory) Delete(_ context.Context, bucket, key string) error {
	return m.Enqueue(store.Delete(bucket, key)).Wait()
}

// Get reads one record; false when there is none.
func (m *Memory) Get(_ context.Context, bucket, key string) ([]byte, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return nil, false, errGone()
	}
	value, ok := m.shown[bucket][key]
	if !ok {
		return nil, false, nil
	}
	return append([]byte{}, value...), true, nil
}

// List reads all records of a bucket.
func (m *Memory) List(_ context.Context, bucket string) (map[string][]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.crashed {
		return nil, errGone()
	}
	out := map[string][]byte{}
	for key, value := range m.shown[bucket] {
		out[key] = append([]byte{}, value...)
	}
	return out, nil
}

func errGone() error {
	return fault.New(fault.Unavailable, "the store is gone: its process has crashed")
}
