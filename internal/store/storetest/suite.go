package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/store"
)

// Store is what the ledger and the journal use of a store.
type Store interface {
	Enqueue(mutations ...store.Mutation) *store.Pending
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
	Get(ctx context.Context, bucket, key string) ([]byte, bool, error)
	List(ctx context.Context, bucket string) (map[string][]byte, error)
	Close() error
}

var (
	_ Store = (*Memory)(nil)
	_ Store = (*store.DB)(nil)
)

// Run holds a store to what its callers rely on. Each test gets an empty one; reopen
// gives what the next process finds after the store was closed.
func Run(t *testing.T, fresh func(t *testing.T) (s Store, reopen func() Store)) {
	t.Run("keeps records across reopening", func(t *testing.T) { keeps(t, fresh) })
	t.Run("enqueued mutations are atomic and ordered", func(t *testing.T) { orders(t, fresh) })
	t.Run("refuses what no file can take", func(t *testing.T) { refuses(t, fresh) })
	t.Run("after its close nothing is taken", func(t *testing.T) { closes(t, fresh) })
	t.Run("what a caller changes afterwards is not the store's", func(t *testing.T) { owns(t, fresh) })
}

type maker = func(t *testing.T) (Store, func() Store)

func all(t *testing.T, s Store, bucket string) map[string]string {
	t.Helper()
	records, err := s.List(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for k, v := range records {
		out[k] = string(v)
	}
	return out
}

func keeps(t *testing.T, fresh maker) {
	s, reopen := fresh(t)
	ctx := t.Context()
	for _, err := range []error{
		s.Put(ctx, "claims", "a", []byte("1")),
		s.Put(ctx, "claims", "b", []byte("2")),
		s.Put(ctx, "claims", "a", []byte("3")),
		s.Put(ctx, "claims", "empty", nil),
		s.Delete(ctx, "claims", "b"),
		s.Delete(ctx, "claims", "never was"),
		s.Delete(ctx, "never_was", "a"),
		s.Close(),
		s.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s = reopen()
	if diff := cmp.Diff(map[string]string{"a": "3", "empty": ""}, all(t, s, "claims")); diff != "" {
		t.Errorf("records after reopening (-want +got):\n%s", diff)
	}
	if v, ok, err := s.Get(ctx, "claims", "empty"); err != nil || !ok || v == nil {
		t.Errorf("get of an empty record: %q, %v, %v", v, ok, err)
	}
	if _, ok, err := s.Get(ctx, "claims", "b"); err != nil || ok {
		t.Errorf("get of a deleted record: %v, %v", ok, err)
	}
}

func orders(t *testing.T, fresh maker) {
	s, _ := fresh(t)
	var last *store.Pending
	for i := range 100 {
		v := []byte(fmt.Sprint(i))
		last = s.Enqueue(store.Put("claims", "k", v), store.Put("instances", "k", v))
	}
	if err := last.Wait(); err != nil {
		t.Fatal(err)
	}
	if a, b := all(t, s, "claims")["k"], all(t, s, "instances")["k"]; a != "99" || b != "99" {
		t.Errorf("records %q and %q, want the last of both", a, b)
	}
}

func refuses(t *testing.T, fresh maker) {
	s, _ := fresh(t)
	for _, m := range []store.Mutation{
		store.Put("", "k", nil), store.Put("meta", "schema", []byte("9")), store.Put("No", "k", nil), store.Put("claims", "", nil),
		store.Put("claims", strings.Repeat("k", 2000), nil), store.Put("claims", "k", make([]byte, 17<<20)),
	} {
		if err := s.Enqueue(store.Put("claims", "beside", nil), m).Wait(); !errors.Is(err, fault.Invalid) {
			t.Errorf("%s/%.10s: %v, want invalid", m.Bucket, m.Key, err)
		}
	}
	if got := all(t, s, "claims"); len(got) > 0 {
		t.Errorf("written all the same: %v", got)
	}
}

func closes(t *testing.T, fresh maker) {
	s, _ := fresh(t)
	p := s.Enqueue(store.Put("claims", "queued", nil))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil {
		t.Errorf("what was queued before Close: %v", err)
	}
	_, listErr := s.List(t.Context(), "claims")
	for _, err := range []error{s.Put(t.Context(), "claims", "k", nil), listErr} {
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("after Close: %v, want unavailable", err)
		}
	}
}

func owns(t *testing.T, fresh maker) {
	s, _ := fresh(t)
	value := []byte("was")
	if err := s.Put(t.Context(), "claims", "k", value); err != nil {
		t.Fatal(err)
	}
	copy(value, "not")
	got, _, err := s.Get(t.Context(), "claims", "k")
	if err != nil {
		t.Fatal(err)
	}
	copy(got, "nor")
	if again := all(t, s, "claims")["k"]; again != "was" {
		t.Errorf("the record is %q by now", again)
	}
}
