package sim

import (
	"bytes"
	"context"
	"strings"
	"time"

	"berth/internal/store"
	"berth/internal/store/storetest"
)

// ledger is a machine's store as one life of its agent uses it: it commits by itself,
// what is enqueued meanwhile goes together, and each commit is a point, before it is
// durable and before anybody is told.
type ledger struct {
	a *agent
	*storetest.Memory
}

// file is a machine's store beyond the life of its agent.
type file struct {
	full    bool                 // but for the store's reserve
	broken  bool                 // nothing can be written
	told    map[[2]string][]byte // by bucket and key: what was said to be durable; nil for deleted
	flying  []store.Mutation     // of the commit that is under way
	unheard int                  // how many of the last commits are on the disk and were said to have failed
}

// crash leaves of the store what a process that dies leaves, or a machine without
// power: that may lose what the disk has and said that it has not.
func (m *machine) crash() {
	lose := 0
	if m.off && m.unheard > 0 {
		lose = m.w.rng.IntN(m.unheard + 1)
	}
	open := map[[2]string]bool{} // what nobody was told of
	for _, mutation := range m.flying {
		open[[2]string{mutation.Bucket, mutation.Key}] = true
	}
	for _, key := range m.mem.Doubtful() {
		bucket, rest, _ := strings.Cut(key, "/")
		open[[2]string{bucket, rest}] = true
	}
	m.mem = m.mem.CrashLosing(lose)
	m.mem.SetFull(m.full)
	m.flying, m.unheard = nil, 0
	for key, value := range m.told {
		if open[key] {
			continue
		}
		if have, exists, err := m.mem.Get(context.Background(), key[0], key[1]); err != nil || exists != (value != nil) || !bytes.Equal(have, value) {
			m.w.violate("%s has lost %s/%s, which was answered", m.name, key[0], key[1])
		}
	}
	clear(m.told)
	m.w.tokensOf(m)
	m.w.fits(m)
}

// commits is asked at every point of a commit.
func (a *agent) commits(at storetest.Point, batch []store.Mutation) storetest.Outcome {
	w, m := a.w, a.m
	switch at {
	case storetest.BeforeCommit:
		w.drainWrites(a, batch)
		f := w.before(a, ofCommit, describe(batch))
		if f == requestLate {
			_ = a.rt.Sleep(context.Background(), time.Duration(w.rng.Int64N(int64(5*time.Second))))
		}
		if spoiled := w.spoilCommit(a, at, describe(batch)); spoiled != storetest.Commit {
			return spoiled
		}
		if spoiled := w.spoilDrain(a, at, batch); spoiled != storetest.Commit {
			return spoiled
		}
		switch {
		case m.broken, f == refused, f == requestLost:
			return storetest.Fail
		case f == answerLost:
			m.unheard++
			return storetest.FailWritten
		}
		m.unheard, m.flying = 0, batch
	case storetest.AfterCommit:
		w.after(a, ofCommit, describe(batch))
		w.spoilCommit(a, at, describe(batch))
		w.spoilDrain(a, at, batch)
	case storetest.Visible:
		m.flying = nil
		for _, mutation := range batch {
			m.told[[2]string{mutation.Bucket, mutation.Key}] = mutation.Value
		}
		w.committed(m, batch)
	}
	return storetest.Commit
}

// describe names a commit by its first record.
func describe(mutations []store.Mutation) string {
	if len(mutations) == 0 {
		return "commit"
	}
	m := mutations[0]
	verb := "put "
	if m.Value == nil {
		verb = "delete "
	}
	return verb + m.Bucket + "/" + m.Key
}
