package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
)

// Store is what the state is kept in: *store.DB, or a test's that fails.
type Store interface {
	List(ctx context.Context, bucket string) (map[string][]byte, error)
	Enqueue(mutations ...store.Mutation) *store.Pending
}

// format is the version of the records below; a change that an older program
// could not read raises it.
//
//	placement.db
//	├── placement
//	│   └── format        "1"
//	├── providers
//	│   └── <uuid>        provider, with inventories, traits and aggregates
//	├── consumers
//	│   └── <uuid>        consumer, with its allocations
//	├── classes
//	│   └── <CUSTOM_...>  custom
//	├── traits
//	│   └── <CUSTOM_...>  custom
//	└── fleet, fleet_mark  what is served beside (Options.Beside), which reads and writes it itself
const format = "1"

// openState opens the database at path and reads it whole, or takes the store that is
// open, or gives an empty state in memory where there is neither.
func openState(ctx context.Context, path string, open Store, rt runtime.Runtime, log *slog.Logger) (*state, error) {
	stays := func() error { return nil }
	switch {
	case open != nil:
		b, err := load(ctx, open, "given")
		if err != nil {
			return nil, err
		}
		return &state{b: b, disk: open, close: stays, rt: rt}, nil
	case path == "":
		return &state{b: newBase(), close: stays, rt: rt}, nil
	}
	// An older copy is recognised, so that what is served beside says so.
	db, err := store.Open(path, store.Options{Logger: log, TellCopies: true})
	if err != nil {
		return nil, fmt.Errorf("open placement database: %w", err)
	}
	b, err := load(ctx, db, path)
	if err != nil {
		return nil, closing(err, db)
	}
	return &state{b: b, disk: db, close: db.Close, rt: rt}, nil
}

func closing(err error, db *store.DB) error {
	if err2 := db.Close(); err2 != nil {
		return fmt.Errorf("%w; then closing failed: %w", err, err2)
	}
	return err
}

// load reads every record and checks that they agree with each other.
func load(ctx context.Context, db Store, path string) (*base, error) {
	found, err := db.List(ctx, bucketFormat)
	if err != nil {
		return nil, fmt.Errorf("read placement database %s: %w", path, err)
	}
	switch v := string(found["format"]); v {
	case format:
	case "":
		// A new file, or the first write to it was cut off. An agent's ledger is no
		// placement database, though it is the same kind of file.
		for _, bucket := range []string{"claims", "instances", "contexts", "decisions", "verbs"} {
			records, err := db.List(ctx, bucket)
			if err != nil {
				return nil, fmt.Errorf("read placement database %s: %w", path, err)
			}
			if len(records) > 0 {
				return nil, fault.New(fault.Invalid, "placement database %s: it is an agent's ledger (it has %s)", path, bucket)
			}
		}
		if err := db.Enqueue(store.Put(bucketFormat, "format", []byte(format))).Wait(); err != nil {
			return nil, fmt.Errorf("write placement database %s: %w", path, err)
		}
	default:
		return nil, fault.New(fault.Invalid, "placement database %s: its format is %q, this program knows %s: it is newer than the program", path, v, format)
	}
	t := newTx(newBase(), time.Time{})
	for _, err := range []error{
		read(ctx, db, bucketProviders, t.providers),
		read(ctx, db, bucketConsumers, t.consumers),
		read(ctx, db, bucketClasses, t.classes),
		read(ctx, db, bucketTraits, t.traits),
		t.check(),
	} {
		if err != nil {
			return nil, fault.New(fault.Internal, "read placement database %s: %w", path, err)
		}
	}
	b := newBase()
	b.apply(t)
	return b, nil
}

func read[T any](ctx context.Context, db Store, bucket string, to table[T]) error {
	records, err := db.List(ctx, bucket)
	if err != nil {
		return err
	}
	for key, value := range records {
		v := new(T)
		if err := json.Unmarshal(value, v); err != nil {
			return fmt.Errorf("record %s/%s: %w", bucket, key, err)
		}
		to[key] = v
	}
	return nil
}

// check finds records that contradict each other, and the highest sequence number.
func (t *tx) check() error {
	names := map[string]string{}
	for key, p := range t.providers {
		if p.UUID != key {
			return fmt.Errorf("provider %s says it is %s", key, p.UUID)
		}
		if other, taken := names[p.Name]; taken {
			return fmt.Errorf("providers %s and %s have one name %q", key, other, p.Name)
		}
		names[p.Name] = key
		if p.Parent != "" && t.providers[p.Parent] == nil {
			return fmt.Errorf("provider %s: its parent %s is not there", key, p.Parent)
		}
		if root := t.providers[p.Root]; root == nil || root.Parent != "" {
			return fmt.Errorf("provider %s: its root %s is not there or is no root", key, p.Root)
		}
		above, steps := p, 0
		for ; above.Parent != "" && steps <= len(t.providers); steps++ {
			if above = t.providers[above.Parent]; above == nil {
				return fmt.Errorf("provider %s: a parent above it is not there", key)
			}
		}
		if above.UUID != p.Root || above.Parent != "" {
			return fmt.Errorf("provider %s: its parents do not lead to its root %s", key, p.Root)
		}
		for class, inv := range p.Inventories {
			if inv.StepSize <= 0 {
				return fmt.Errorf("provider %s: %s has a step_size of %d", key, class, inv.StepSize)
			}
		}
		t.seq = max(t.seq, p.Seq)
	}
	for key, c := range t.consumers {
		if c.UUID != key {
			return fmt.Errorf("consumer %s says it is %s", key, c.UUID)
		}
		for rp, r := range c.Allocations {
			if t.providers[rp] == nil {
				return fmt.Errorf("consumer %s holds resources of provider %s, which is not there", key, rp)
			}
			for class := range r {
				if _, ok := t.providers[rp].Inventories[class]; !ok {
					return fmt.Errorf("consumer %s holds %s of provider %s, which has none", key, class, rp)
				}
			}
		}
		t.seq = max(t.seq, c.Seq)
	}
	for _, kind := range []table[custom]{t.classes, t.traits} {
		for _, c := range kind {
			t.seq = max(t.seq, c.Seq)
		}
	}
	return nil
}

// mutations are the records of the transaction as the database keeps them.
func (t *tx) mutations() ([]store.Mutation, error) {
	var out []store.Mutation
	for _, err := range []error{
		mutate(&out, bucketProviders, t.providers),
		mutate(&out, bucketConsumers, t.consumers),
		mutate(&out, bucketClasses, t.classes),
		mutate(&out, bucketTraits, t.traits),
	} {
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func mutate[T any](out *[]store.Mutation, bucket string, changed table[T]) error {
	for _, key := range slices.Sorted(maps.Keys(changed)) {
		v := changed[key]
		if v == nil {
			*out = append(*out, store.Delete(bucket, key))
			continue
		}
		b, err := encode(v)
		if err != nil {
			return err
		}
		*out = append(*out, store.Put(bucket, key, b))
	}
	return nil
}
