package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// Records are a fleet's records in a Store: each method is one question or one step of the
// protocol in the package's comment. All methods may block until ctx ends, are safe for
// concurrent use, and are fault.Unavailable or fault.InDoubt as the Store's calls are; where
// nothing else is said each is safe to repeat. Those that list give what can be read, with an error
// for the rest: see Unreadable. All that it keeps in memory is since when leases
// are seen to be over: see lapses.go.
type Records struct {
	store Store
	rt    runtime.Runtime

	// mu guards lapses; nothing is called under it.
	mu     sync.Mutex
	lapses map[string]*lapse // by host: those whose death by their lease was asked for
}

// New speaks the protocol over a store; rt dates what is written, and measures by its boot clock
// for how long a lease is over.
func New(store Store, rt runtime.Runtime) *Records {
	return &Records{store: store, rt: rt, lapses: map[string]*lapse{}}
}

// Where records are, without what follows.
const (
	hostsPrefix     = "hosts/"
	alivePrefix     = "alive/"
	DeathsPrefix    = "deaths/"    // exported for backups, which leave them out
	InstancesPrefix = "instances/" // exported for who tells what an unreadable record is of
	evacuatedPrefix = "evacuated/"
)

// tries bounds how often a step is decided anew because somebody else wrote meanwhile.
// Arbitrary: of two that write one of them got through, so each try is somebody's success.
const tries = 16

// key puts names behind a prefix. A name with a slash would be another's key.
func key(prefix string, names ...string) (string, error) {
	for _, n := range names {
		if n == "" || len(n) > 255 || strings.ContainsAny(n, "/\x00") {
			return "", fault.New(fault.Invalid, "record %s%s: %q is no name", prefix, strings.Join(names, "/"), n)
		}
	}
	return prefix + strings.Join(names, "/"), nil
}

// read gets a record into v. revision is 0 where there is none, and v untouched.
func (r *Records) read(ctx context.Context, key string, v any) (revision uint64, err error) {
	rec, err := r.store.Get(ctx, key)
	if errors.Is(err, fault.NotFound) && !fault.HasReason(err, NoStore) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return rec.Revision, decode(rec, v)
}

// readOwn is read for what its only writer writes anew: one that cannot be read counts as empty.
func readOwn[T any](ctx context.Context, r *Records, key string, v *T) (revision uint64, err error) {
	revision, err = r.read(ctx, key, v)
	if err != nil && revision != 0 {
		var none T
		*v, err = none, nil
	}
	return revision, err
}

// NoStore is the reason's code of a server that keeps no records: Placement answers there, and
// it is not Berth's.
const NoStore = "no_fleet_store"

func decode(rec Record, v any) error {
	if err := json.Unmarshal(rec.Value, v); err != nil {
		return fault.New(fault.Internal, "read record %s: %w", rec.Key, err)
	}
	return nil
}

// list gives all records that can be read, and of the others an error that Unreadable knows.
func list[T interface{ key() string }](ctx context.Context, r *Records, prefix string) ([]T, error) {
	return listOf[T](ctx, r, prefix, "")
}

// listOf is list without what names another host, where the store can tell; of every host for "".
func listOf[T interface{ key() string }](ctx context.Context, r *Records, prefix, host string) ([]T, error) {
	find := func() ([]Record, error) { return r.store.List(ctx, prefix) }
	if f, ok := r.store.(Finder); ok {
		find = func() ([]Record, error) { return f.ListOf(ctx, prefix, host) }
	}
	recs, err := find()
	if err != nil {
		return nil, err
	}
	out := make([]T, 0, len(recs))
	var bad []fault.Reason
	for _, rec := range recs {
		var v T
		err := decode(rec, &v)
		if err == nil && v.key() != rec.Key {
			err = fault.New(fault.Internal, "read record %s: what it has is of %s", rec.Key, v.key())
		}
		if err != nil {
			bad = append(bad, fault.Reason{
				Code: ReasonUnreadable, Message: err.Error(), Have: rec.Key,
				Change: "see to the store; a host that lives writes its own record anew, and that of a guest once somebody who knows whose it is has deleted this one",
			})
			continue
		}
		out = append(out, v)
	}
	if len(bad) > 0 {
		return out, fault.Refuse(fault.Internal, "list "+prefix, bad...)
	}
	return out, nil
}

// ReasonUnreadable is the reason's code of a record that is not what its key says; Have is the key.
const ReasonUnreadable = "record_unreadable"

// Unreadable gives the keys of the records that a list passed over, where that alone was wrong
// with it: then the list has all others. rest is any other error.
func Unreadable(err error) (keys []string, rest error) {
	for _, reason := range fault.ReasonsOf(err) {
		if reason.Code != ReasonUnreadable {
			return nil, err
		}
		keys = append(keys, reason.Have)
	}
	if keys == nil {
		return nil, err
	}
	return keys, nil
}

// NameOf is the last name of a record's key: the host's, the guest's uuid, the migration's.
func NameOf(key string) string { return key[strings.LastIndexByte(key, '/')+1:] }

func put(key string, v any) Change {
	value, err := json.Marshal(v)
	if err != nil {
		panic(err) // the records are plain values; a RawMessage that is no JSON is a bug of its writer
	}
	return Change{Key: key, Value: value}
}

// same reports whether two values are written alike.
func same(a, b any) bool { return bytes.Equal(put("", a).Value, put("", b).Value) }

// again does a step until nobody wrote between its look and its commit. step returns
// fault.GenerationConflict only as Commit's answer.
func again(ctx context.Context, what string, step func() error) error {
	for range tries {
		err := step()
		if !errors.Is(err, fault.GenerationConflict) {
			return err
		}
		if ctx.Err() != nil {
			return fault.New(fault.Unavailable, "%s: %w", what, context.Cause(ctx))
		}
	}
	return fault.New(fault.Busy, "%s: others wrote %d times meanwhile", what, tries)
}

func refuse(code, message, change string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: message, Change: change})
}

// declared is the refusal of a write by a host that counts as dead. It has to Return first.
func declared(host string, d Death) error {
	return refuse("declared_dead", fmt.Sprintf("host %s was declared dead (%s) by %s at %s", host, d.Proof, d.By, d.At.UTC().Format("2006-01-02 15:04:05Z")),
		"it takes this back itself when it has come back")
}
