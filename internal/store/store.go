package store

import (
	"context"
	"log/slog"

	"berth/internal/fault"
)

// Mutation is one change of one record: Put when Value is not nil, else Delete.
type Mutation struct {
	Bucket string
	Key    string
	Value  []byte // nil deletes; deleting what is not there is no error
}

// Put is the mutation that writes a record. A nil value is written as an empty
// one.
func Put(bucket, key string, value []byte) Mutation {
	if value == nil {
		value = []byte{}
	}
	return Mutation{Bucket: bucket, Key: key, Value: value}
}

// Delete is the mutation that removes a record, if it is there.
func Delete(bucket, key string) Mutation { return Mutation{Bucket: bucket, Key: key} }

// validate refuses what bbolt would refuse in the middle of somebody else's
// transaction.
func (m Mutation) validate() error {
	switch {
	case !validBucket(m.Bucket):
		return fault.New(fault.Invalid, "write record %q: bucket name %q", m.Key, m.Bucket)
	case m.Key == "" || len(m.Key) > maxKey:
		return fault.New(fault.Invalid, "write record to %s: key of %d bytes, want 1 to %d", m.Bucket, len(m.Key), maxKey)
	case len(m.Value) > maxValue:
		return fault.New(fault.Invalid, "write record %s/%s: value of %d bytes, at most %d", m.Bucket, m.Key, len(m.Value), maxValue)
	}
	return nil
}

const (
	maxKey   = 1 << 10  // far below bbolt's 32 KiB; keys here are a few uuids long
	maxValue = 16 << 20 // a domain's XML is under 100 KiB; more is a bug that would fill the disk
)

// validBucket takes lower case names; "meta" is the store's own.
func validBucket(name string) bool {
	if name == "" || len(name) > 64 || name == bucketMeta {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Pending is a set of mutations on its way to the disk.
type Pending struct {
	done  chan struct{}
	err   error  // read after done is closed
	flush func() // what a store that commits on demand does when somebody waits; may be nil
}

// NewPending gives a Pending and the function that settles it, once. flush,
// which may be nil, runs at the start of each Wait: a model store commits there.
func NewPending(flush func()) (*Pending, func(error)) {
	p := &Pending{done: make(chan struct{}), flush: flush}
	return p, func(err error) { p.err = err; close(p.done) }
}

// Wait blocks until the mutations are durable (nil) or are known to have failed.
// It may be called by many, and again.
//
// After an error the mutations are taken back: no Get or List shows them, and
// the next successful commit writes the old values with it. Only a crash before
// that commit can bring them to light, as it can with any answer that was lost.
func (p *Pending) Wait() error {
	if p.flush != nil {
		p.flush()
	}
	<-p.done
	return p.err
}

// settled is a Pending that has its answer already.
func settled(err error) *Pending {
	p, settle := NewPending(nil)
	settle(err)
	return p
}

// Options are what Open is told. The zero value is ready.
type Options struct {
	Logger *slog.Logger // nil for slog.Default()

	// MaxBytes bounds the file; a commit that would exceed it fails as on a
	// full disk. 0 for no bound.
	MaxBytes int

	// Reserve is how much of the disk is kept for what must be written when it is
	// full (see DB.Room), in bytes; 0 for one MiB.
	Reserve int

	// TellCopies has the last commit noted beside the file, so that a backup that takes
	// its place is told (see DB.Older).
	TellCopies bool

	// MustExist refuses, as fault.NotFound, to make a new database. Without it
	// a missing file is a first start, which Created tells.
	MustExist bool
}

// checkContext keeps a caller that has given up from starting a write.
func checkContext(ctx context.Context, doing string) error {
	if ctx.Err() != nil {
		return fault.New(fault.Unavailable, "%s: %w", doing, context.Cause(ctx))
	}
	return nil
}
