package sim

import (
	"context"

	"berth/internal/store"
	"berth/internal/store/storetest"
)

// ledger is a machine's store as one life of its agent uses it: each commit is a
// point, before it is durable and before anybody is told.
type ledger struct {
	a   *agent
	mem *storetest.Memory
}

// Enqueue implements claims.Store. The commit happens when somebody waits for it.
func (l ledger) Enqueue(mutations ...store.Mutation) *store.Pending {
	what := describe(mutations)
	inner := l.mem.Enqueue(mutations...)
	settled := false
	var settle func(error)
	p, settle := store.NewPending(func() {
		if settled {
			return
		}
		f := l.a.w.before(l.a, ofCommit, what)
		if settled {
			return // by another who waits for it
		}
		l.a.m.next = f
		err := inner.Wait()
		l.a.m.next = goesWell
		settled = true
		l.a.w.committed(l.a.m, mutations)
		settle(err)
		l.a.w.after(l.a, ofCommit, what)
	})
	return p
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

// List implements claims.Store and task.Store.
func (l ledger) List(ctx context.Context, bucket string) (map[string][]byte, error) {
	return l.mem.List(ctx, bucket)
}

// Put implements task.Store.
func (l ledger) Put(_ context.Context, bucket, key string, value []byte) error {
	return l.Enqueue(store.Put(bucket, key, value)).Wait()
}

// Delete implements task.Store.
func (l ledger) Delete(_ context.Context, bucket, key string) error {
	return l.Enqueue(store.Delete(bucket, key)).Wait()
}

// decide is asked by the store what becomes of a commit.
func (m *machine) decide(int, []store.Mutation) storetest.Outcome {
	switch {
	case m.full, m.next == refused, m.next == requestLost:
		return storetest.Fail
	case m.next == answerLost:
		return storetest.FailWritten
	}
	return storetest.Commit
}
