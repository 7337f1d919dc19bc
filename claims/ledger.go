package claims

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// The ledger's buckets, drawn in package store's doc comment.
const (
	bucketClaims    = "claims"
	bucketInstances = "instances"
	bucketHalves    = "halves"
	bucketVerbs     = "verbs"
	bucketCopies    = "copies"
)

// load reads the ledger.
func (t *Tracker) load(ctx context.Context) error {
	boot := t.runtime.Boot()
	if err := each(ctx, t, bucketClaims, func(id string, c Claim) error {
		if c.ID != id {
			return fmt.Errorf("it says it is %q", c.ID)
		}
		if c.State == Pending {
			// One full lease again, if it was made in this boot: the conductor
			// could not renew while the agent was away. Of an earlier boot it
			// keeps its lease, which Expire finds to be over.
			if c.Lease == nil {
				c.Lease = &Lease{Length: t.lease, Until: runtime.BootTime{ID: c.Boot}}
			}
			if c.Lease.Until.ID == boot.ID {
				c.Lease.Until.Since = boot.Since + c.Lease.Length
			}
		}
		t.enterLocked(&entry{claim: c, told: true})
		return nil
	}); err != nil {
		return err
	}
	if err := each(ctx, t, bucketInstances, func(uuid string, i Instance) error {
		if i.UUID != uuid {
			return fmt.Errorf("it says it is %q", i.UUID)
		}
		t.instances[uuid] = i
		return nil
	}); err != nil {
		return err
	}
	if err := each(ctx, t, bucketHalves, func(id string, h half) error {
		if h.Written.ID != boot.ID {
			h.Written = boot // instants of another boot cannot be compared: its time starts anew
		}
		t.migrations[id] = h
		return nil
	}); err != nil {
		return err
	}
	if err := each(ctx, t, bucketCopies, func(uuid string, c Copy) error {
		if c.Instance.UUID != uuid {
			return fmt.Errorf("it says it is %q", c.Instance.UUID)
		}
		t.copies[uuid] = c
		return nil
	}); err != nil {
		return err
	}
	return each(ctx, t, bucketVerbs, func(key string, answer json.RawMessage) error {
		t.verbs[key] = answer
		return nil
	})
}

// each decodes every record of a bucket, in order. One that makes no sense ends it, or
// is noted where the tracker is tolerant.
func each[T any](ctx context.Context, t *Tracker, bucket string, f func(key string, v T) error) error {
	records, err := t.store.List(ctx, bucket)
	if err != nil {
		return fault.New(fault.KindOf(err), "read ledger: %w", err)
	}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		var v T
		err := json.Unmarshal(records[key], &v)
		if err == nil {
			err = f(key, v)
		}
		switch {
		case err == nil:
		case t.tolerant:
			t.unread = append(t.unread, Unread{bucket, key, err})
		default:
			return fault.New(fault.Internal, "read ledger: record %s/%s: %w", bucket, key, err)
		}
	}
	return nil
}

// put is the mutation that writes v as JSON.
func put(bucket, key string, v any) store.Mutation {
	data, err := json.Marshal(v)
	if err != nil {
		// The ledger's own types hold strings, whole numbers, finite durations
		// and times of this millennium: they always have a JSON form.
		panic(fmt.Sprintf("encode ledger record %s/%s: %v", bucket, key, err))
	}
	return store.Put(bucket, key, data)
}
