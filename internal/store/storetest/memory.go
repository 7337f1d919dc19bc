// Package storetest is a store in memory with the semantics of a disk, for
// simulators and property tests, and the suite that holds it and the real one to
// one behaviour.
//
// It is for callers of store.DB to be tested with: what is enqueued becomes durable
// as one commit with all that was enqueued before, in order, and is seen by readers
// only then; a crash keeps what was durable and drops the rest; commits fail on
// demand, in both ways in which a disk fails, and what has failed is taken back by
// the next commit, as in store.DB.
//
// By itself a Memory starts no goroutine and reads no clock: it commits when somebody
// waits. Live gives it a runtime instead, on which commits happen by themselves, as a
// disk's do, and stop at the points where a process can die.
//
// # What a crash leaves
//
// bbolt syncs a commit's pages before the page that names them, so a file holds whole
// commits only: all up to the last, or, where the disk has lied about a sync, up to an
// earlier one (CrashLosing). A file of which pages were lost or garbled otherwise is
// one that store.Open refuses (CrashTorn).
package storetest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"berth/internal/fault"
	"berth/internal/runtime"
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

// Record is one record of a store.
type Record struct {
	Bucket, Key string
	Value       []byte
}

type record struct{ bucket, key string }

type content map[string]map[string][]byte // by bucket and key

func (c content) clone() content {
	out := content{}
	for bucket, records := range c {
		out[bucket] = maps.Clone(records)
	}
	return out
}

func (c content) get(r record) []byte { return c[r.bucket][r.key] }

func (c content) set(r record, value []byte) {
	if value == nil {
		delete(c[r.bucket], r.key)
		return
	}
	if c[r.bucket] == nil {
		c[r.bucket] = map[string][]byte{}
	}
	c[r.bucket][r.key] = value
}

// Memory is a store in memory, as one process has it open. All methods may be called
// by many goroutines.
type Memory struct {
	mu      sync.Mutex      // guards all below; nothing is called under it but decide
	shown   content         // what readers see: all that was reported as committed
	disk    content         // what a crash leaves
	doubt   map[record]bool // what failed commits may have changed on the disk
	past    []change        // the last commits, newest last: what they found on the disk
	queue   []*item
	decide  func(commit int, batch []store.Mutation) Outcome
	commits int
	crashed bool
	closed  bool
	full    bool

	rt    runtime.Runtime // nil: commits happen in Wait
	point func(at Point, batch []store.Mutation) Outcome
	busy  bool // a committer runs
}

// change is what a commit has overwritten on the disk.
type change map[record][]byte

// kept is how many commits CrashLosing can lose at most.
const kept = 64

type item struct {
	mutations []store.Mutation
	settle    func(error)
	settled   bool
}

// NewMemory gives an empty store.
func NewMemory() *Memory { return NewMemoryOf(nil) }

// NewMemoryOf gives one that holds these records.
func NewMemoryOf(records []Record) *Memory {
	m := &Memory{shown: content{}, disk: content{}, doubt: map[record]bool{}}
	for _, r := range records {
		value := append([]byte{}, r.Value...)
		m.shown.set(record{r.Bucket, r.Key}, value)
		m.disk.set(record{r.Bucket, r.Key}, value)
	}
	return m
}

// OnCommit has f decide each commit from now on; nil lets all succeed. f gets
// the number of the commit, from 1, and its mutations; it must not call the
// store. A batch that fails is tried again one by one, and f is asked again.
func (m *Memory) OnCommit(f func(commit int, batch []store.Mutation) Outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.decide = f
}

// SetFull says whether the disk is full but for the store's reserve: Room refuses
// then, and commits go on.
func (m *Memory) SetFull(full bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full = full
}

// Room is store.DB's: who takes something asks it first.
func (m *Memory) Room() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.full {
		return nil
	}
	return fault.Refuse(fault.Unavailable, "write to memory", fault.Reason{
		Code: "disk_full", Message: "the disk is full, and what is left is kept for releases and undos", Change: "make room on it",
	})
}

// Enqueue is store.DB's: ordered, atomic, durable once Wait says so. Without a
// runtime (Live) the commit happens in the first Wait of this Pending or of a later
// one.
func (m *Memory) Enqueue(mutations ...store.Mutation) *store.Pending {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := &item{mutations: mutations}
	done := make(chan struct{})
	p, settle := store.NewPending(func() { m.await(i, done) })
	i.settle = func(err error) {
		if !i.settled {
			i.settled = true
			settle(err)
			close(done)
		}
	}
	if err := m.usableLocked(); err != nil {
		i.settle(err)
		return p
	}
	if err := store.Validate(mutations); err != nil {
		i.settle(err)
		return p
	}
	m.queue = append(m.queue, i)
	if m.rt != nil && !m.busy {
		m.busy = true
		m.rt.Go("commit", m.committer)
	}
	return p
}

func (m *Memory) usableLocked() error {
	switch {
	case m.crashed:
		return fault.New(fault.Unavailable, "the store is gone: its process has crashed")
	case m.closed:
		return fault.New(fault.Unavailable, "the store is closed")
	}
	return nil
}

// Close commits what is queued, and takes nothing more. It is not for a store that
// lives on a runtime, whose process ends with it.
func (m *Memory) Close() error {
	m.Flush()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
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
	if err := m.usableLocked(); err != nil {
		return nil, false, err
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
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for key, value := range m.shown[bucket] {
		out[key] = append([]byte{}, value...)
	}
	return out, nil
}

// Records gives all that readers see, in order of bucket and key, also of a store
// whose process has crashed.
func (m *Memory) Records() []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shown.records()
}

func (c content) records() []Record {
	var out []Record
	for bucket, records := range c {
		for key, value := range records {
			out = append(out, Record{Bucket: bucket, Key: key, Value: append([]byte{}, value...)})
		}
	}
	slices.SortFunc(out, func(a, b Record) int {
		return strings.Compare(a.Bucket+"\x00"+a.Key, b.Bucket+"\x00"+b.Key)
	})
	return out
}
