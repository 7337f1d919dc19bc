package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"berth/internal/fault"
)

// entry is one Enqueue.
type entry struct {
	mutations []Mutation
	settle    func(error)
}

// Enqueue orders mutations for one atomic commit behind all that were enqueued
// before. It never waits for the disk, so it may be called under a lock; the
// answer comes from the Pending. Mutations that no file could take are refused
// at once (fault.Invalid), and all of them once the database is closed
// (fault.Unavailable). Values must not be changed until the Pending is settled.
func (db *DB) Enqueue(mutations ...Mutation) *Pending {
	for _, m := range mutations {
		if err := m.validate(); err != nil {
			return settled(err)
		}
	}
	p, settle := NewPending(nil)
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closing {
		return settled(fault.New(fault.Unavailable, "write to database %s: it is closed", db.path))
	}
	db.queue = append(db.queue, entry{mutations, settle})
	db.signal()
	return p
}

// signal leaves a token for the committer; one is enough for any number.
func (db *DB) signal() {
	select {
	case db.wake <- struct{}{}:
	default:
	}
}

// committer writes all that is queued in one transaction, again and again,
// until Close. While one transaction waits for the disk the next one gathers.
func (db *DB) committer() {
	defer close(db.done)
	for range db.wake {
		db.mu.Lock()
		batch, closing := db.queue, db.closing
		db.queue = nil
		db.mu.Unlock()
		if len(batch) > 0 {
			db.write(batch)
		}
		if closing {
			db.closed = db.bolt.Close()
			if db.latest.file != nil {
				db.closed = errors.Join(db.closed, db.latest.file.Close())
			}
			return
		}
	}
}

// write commits a batch and answers everybody in it. When the whole fails, each
// is tried by itself: on a full disk a release may still find room where the
// claim beside it did not.
func (db *DB) write(batch []entry) {
	err := db.commit(batch)
	if err == nil || len(batch) == 1 {
		for _, e := range batch {
			e.settle(err)
		}
		return
	}
	for i := range batch {
		batch[i].settle(db.commit(batch[i : i+1]))
	}
}

// commit writes a batch in one transaction.
//
// A transaction that failed may be on the disk all the same (its last sync
// failed, its last write did not), so its records are in doubt: the old values
// are kept, shown to readers, and written first by the next transaction. What
// was reported as failed is thus undone by the same commit that carries any
// later decision.
func (db *DB) commit(batch []entry) error {
	db.view.Lock()
	defer db.view.Unlock()
	if err := db.broken.Load(); err != nil {
		return *err
	}
	before := map[record][]byte{}
	var number uint64
	err := db.transact(func(tx *bbolt.Tx) error {
		if number = uint64(tx.ID()); number <= db.latest.commit {
			return db.replaced() // in the same file: bbolt reads its number from there
		}
		w, err := newWriter(tx, before)
		if err != nil {
			return err
		}
		for r, old := range db.doubt {
			if err := w.write(Mutation{r.bucket, r.key, old}); err != nil {
				return err
			}
		}
		for _, e := range batch {
			for _, m := range e.mutations {
				if err := w.write(m); err != nil {
					return err
				}
			}
		}
		return w.finish()
	})
	if err == nil {
		err = db.committed(number)
	}
	if err == nil {
		clear(db.doubt)
		db.commits++
		db.keepReserve()
		return nil
	}
	for r, old := range before {
		if _, known := db.doubt[r]; !known {
			db.doubt[r] = old
		}
	}
	// Room looks again whether it was for want of it: the blocks of the reserve may be
	// gone, or were never promised.
	db.space.short.CompareAndSwap(nil, &err)
	db.log.Error("commit failed", "path", db.path, "records", len(before), "error", err)
	return fault.New(fault.Unavailable, "write to database %s: %w", db.path, err)
}

// transact runs one bbolt transaction. bbolt panics where its file makes no
// sense, and touching a map whose file was cut is a fault: both end the writing,
// not the process.
func (db *DB) transact(f func(*bbolt.Tx) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = db.breaks(fault.Reason{Code: "database_damaged", Message: fmt.Sprint(r), Change: "restart, which examines the file"})
		}
	}()
	return db.bolt.Update(f)
}

// breaks ends the writing for good.
func (db *DB) breaks(r fault.Reason) error {
	err := fault.Refuse(fault.Internal, "write to database "+db.path, r)
	db.broken.Store(&err)
	return err
}

// writer writes sealed records in one transaction and keeps the census.
type writer struct {
	tx     *bbolt.Tx
	id     identity
	before map[record][]byte // what each record was before this transaction
}

func newWriter(tx *bbolt.Tx, before map[record][]byte) (*writer, error) {
	id, err := readIdentity(tx)
	return &writer{tx, id, before}, err
}

func (w *writer) write(m Mutation) error {
	b := w.tx.Bucket([]byte(m.Bucket))
	if b == nil {
		if m.Value == nil {
			return nil
		}
		var err error
		if b, err = w.tx.CreateBucket([]byte(m.Bucket)); err != nil {
			return err
		}
	}
	key, r := []byte(m.Key), record{m.Bucket, m.Key}
	var old []byte
	if stored := b.Get(key); stored != nil {
		value, seal, ok := unsealed(stored)
		if !ok {
			return fmt.Errorf("record %s/%s has no seal", m.Bucket, m.Key)
		}
		old = append([]byte{}, value...)
		w.id.census.remove(seal)
	}
	if _, seen := w.before[r]; !seen {
		w.before[r] = old
	}
	if m.Value == nil {
		return b.Delete(key)
	}
	seal := sealOf(m.Bucket, m.Key, m.Value)
	w.id.census.add(seal)
	return b.Put(key, sealed(m.Value, seal))
}

func (w *writer) finish() error { return writeIdentity(w.tx, w.id) }

// Put writes one record and returns when it is durable.
func (db *DB) Put(ctx context.Context, bucket, key string, value []byte) error {
	if err := checkContext(ctx, "write record "+bucket+"/"+key); err != nil {
		return err
	}
	return db.Enqueue(Put(bucket, key, value)).Wait()
}

// Delete removes one record, if it is there, and returns when that is durable.
func (db *DB) Delete(ctx context.Context, bucket, key string) error {
	if err := checkContext(ctx, "delete record "+bucket+"/"+key); err != nil {
		return err
	}
	return db.Enqueue(Delete(bucket, key)).Wait()
}

// Get reads one record; false when there is none. It waits for a commit in
// flight.
func (db *DB) Get(ctx context.Context, bucket, key string) ([]byte, bool, error) {
	var value []byte
	found := false
	err := db.read(ctx, bucket, func(k, v []byte) {
		if string(k) == key {
			value, found = bytes.Clone(v), true
		}
	}, key)
	if found && value == nil {
		value = []byte{}
	}
	return value, found, err
}

// List reads all records of a bucket; a bucket that was never written is empty.
// It waits for a commit in flight.
func (db *DB) List(ctx context.Context, bucket string) (map[string][]byte, error) {
	all := map[string][]byte{}
	err := db.read(ctx, bucket, func(k, v []byte) { all[string(k)] = append([]byte{}, v...) }, "")
	if err != nil {
		return nil, err
	}
	return all, nil
}

// read gives a bucket's records to visit, or only that of key. What is in doubt
// is shown as it was before.
func (db *DB) read(ctx context.Context, bucket string, visit func(key, value []byte), key string) (err error) {
	doing := "read bucket " + bucket + " of database " + db.path
	if err := checkContext(ctx, doing); err != nil {
		return err
	}
	if !validBucket(bucket) {
		return fault.New(fault.Invalid, "%s: no such bucket name", doing)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fault.New(fault.Internal, "%s: %v", doing, r)
		}
	}()
	db.view.RLock()
	defer db.view.RUnlock()
	err = db.bolt.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil
		}
		each := func(k, stored []byte) error {
			if _, doubtful := db.doubt[record{bucket, string(k)}]; doubtful {
				return nil
			}
			value, seal, ok := unsealed(stored)
			if !ok || seal != sealOf(bucket, string(k), value) {
				return fmt.Errorf("record %q is garbled", k)
			}
			visit(k, value)
			return nil
		}
		if key == "" {
			return b.ForEach(each)
		}
		if stored := b.Get([]byte(key)); stored != nil {
			return each([]byte(key), stored)
		}
		return nil
	})
	switch {
	case errors.Is(err, berrors.ErrDatabaseNotOpen):
		return fault.New(fault.Unavailable, "%s: it is closed", doing)
	case err != nil:
		return fault.New(fault.Internal, "%s: %w", doing, err)
	}
	for r, old := range db.doubt {
		if r.bucket == bucket && old != nil && (key == "" || key == r.key) {
			visit([]byte(r.key), old)
		}
	}
	return nil
}

// Commits counts the transactions committed since Open; under load it is far
// below the number of Enqueues.
func (db *DB) Commits() uint64 {
	db.view.RLock()
	defer db.view.RUnlock()
	return db.commits
}

// Close commits what is queued, waits for the committer, and lets the file go.
// It may be called again.
func (db *DB) Close() error {
	db.mu.Lock()
	db.closing = true
	db.signal()
	db.mu.Unlock()
	<-db.done
	return db.closed
}
