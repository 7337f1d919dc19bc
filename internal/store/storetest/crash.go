package storetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/internal/fault"
)

// Crash gives the store as a restart finds it: what was durable. What was
// queued is lost; its waiters, and all later callers of m, get an error. The new one
// lives on no runtime, and has no hooks.
func (m *Memory) Crash() *Memory { return m.CrashLosing(0) }

// CrashLosing is Crash on a disk that has lied about its last syncs: the last n
// commits, those that failed and reached the disk all the same among them, are lost,
// whole, though somebody was told that they are durable. At most 64 can be.
func (m *Memory) CrashLosing(n int) *Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked()
	disk := m.disk.clone()
	for _, found := range slices.Backward(m.past[max(0, len(m.past)-n):]) {
		for r, value := range found {
			disk.set(r, value)
		}
	}
	return &Memory{shown: disk, disk: disk.clone(), doubt: map[record]bool{}}
}

// CrashTorn is Crash with a file of which pages were lost: lose says of which
// records. err is what store.Open says of such a file, left what can still be read
// of it, in order of bucket and key.
func (m *Memory) CrashTorn(lose func(bucket, key string) bool) (left []Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endLocked()
	lost := 0
	left = slices.DeleteFunc(m.disk.records(), func(r Record) bool {
		gone := lose(r.Bucket, r.Key)
		if gone {
			lost++
		}
		return gone
	})
	return left, fault.Refuse(fault.Internal, "open the store", fault.Reason{
		Code: "database_damaged", Message: fmt.Sprintf("%d records are missing", lost),
		Change: "keep the file for inspection and put a good copy in its place; nothing was changed",
	})
}

func (m *Memory) endLocked() {
	m.crashed = true
	gone := m.usableLocked()
	for _, i := range m.queue {
		i.settle(gone)
	}
	m.queue = nil
}

// String lists what readers see, one record a line, for messages of tests.
func (m *Memory) String() string {
	var b strings.Builder
	for _, r := range m.Records() {
		fmt.Fprintf(&b, "%s/%s = %s\n", r.Bucket, r.Key, r.Value)
	}
	return b.String()
}

// Doubtful lists the records, as bucket/key, of which the disk may have what was
// reported as failed.
func (m *Memory) Doubtful() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for r := range maps.Keys(m.doubt) {
		out = append(out, r.bucket+"/"+r.key)
	}
	slices.Sort(out)
	return out
}
