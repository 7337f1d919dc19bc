package fleettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"berth/fleet"
	"berth/internal/fault"
)

// Open makes an empty store for one test, and gives a way to make clients of it: each is as
// another process has it.
type Open func(t *testing.T) (client func() fleet.Store)

// TestStore is what every fleet.Store must do.
func TestStore(t *testing.T, open Open) {
	ctx := t.Context()
	run := func(name string, f func(t *testing.T, s, other fleet.Store)) {
		t.Run(name, func(t *testing.T) {
			client := open(t)
			f(t, client(), client())
		})
	}
	run("WhatIsCommittedIsSeenByAll", func(t *testing.T, s, other fleet.Store) {
		if _, err := s.Get(ctx, "hosts/a"); !errors.Is(err, fault.NotFound) {
			t.Errorf("get what is not there: %v", err)
		}
		large := bytes.Repeat([]byte{0, 0xff, '"', '\n'}, 75<<10)
		mustCommit(t, s, nil, put("hosts/a", "one"), fleet.Change{Key: "hosts/large", Value: large}, put("hosts/empty", ""))
		if got := mustGet(t, other, "hosts/a"); string(got.Value) != "one" || got.Revision == 0 || got.Key != "hosts/a" {
			t.Errorf("read %+v", got)
		}
		if got := mustGet(t, other, "hosts/large"); !bytes.Equal(got.Value, large) {
			t.Errorf("of %d bytes %d came back, or others", len(large), len(got.Value))
		}
		if got := mustGet(t, other, "hosts/empty"); len(got.Value) != 0 {
			t.Errorf("an empty value came back as %q", got.Value)
		}
		mustCommit(t, other, nil, fleet.Change{Key: "hosts/a"}, fleet.Change{Key: "hosts/never"})
		if _, err := s.Get(ctx, "hosts/a"); !errors.Is(err, fault.NotFound) {
			t.Errorf("get what was deleted: %v", err)
		}
	})
	run("ARevisionNeverComesBack", func(t *testing.T, s, other fleet.Store) {
		last := uint64(0)
		for i, change := range []fleet.Change{put("k", "v"), put("k", "v"), {Key: "k"}, put("k", "v"), {Key: "k"}, put("k", "v")} {
			mustCommit(t, s, nil, change)
			if change.Value == nil {
				mustConflict(t, s, []fleet.Condition{{Key: "k", Revision: last}}, put("x", "y"))
				continue
			}
			got := mustGet(t, other, "k").Revision
			if got <= last {
				t.Errorf("write %d: revision %d after %d", i, got, last)
			}
			if last != 0 {
				mustConflict(t, s, []fleet.Condition{{Key: "k", Revision: last}}, put("x", "y"))
			}
			last = got
		}
	})
	run("AllConditionsHoldOrNothingHappens", func(t *testing.T, s, other fleet.Store) {
		mustCommit(t, s, []fleet.Condition{{Key: "a"}, {Key: "b"}}, put("a", "1"), put("b", "1"))
		mustConflict(t, other, []fleet.Condition{{Key: "a"}}, put("a", "2"))
		a, b := mustGet(t, other, "a"), mustGet(t, other, "b")
		when := []fleet.Condition{{Key: "a", Revision: a.Revision}, {Key: "b", Revision: b.Revision}, {Key: "c"}}
		mustCommit(t, s, nil, put("c", "1"))
		mustConflict(t, other, when, put("a", "3"), fleet.Change{Key: "b"}, put("d", "3"))
		if got := keys(mustList(t, s, "")); got != "a b c" {
			t.Errorf("a commit that was refused left %s", got)
		}
		mustCommit(t, s, nil, fleet.Change{Key: "c"})
		mustCommit(t, other, when, put("a", "3"), fleet.Change{Key: "b"}, put("d", "3"))
		if got := keys(mustList(t, s, "")); got != "a d" {
			t.Errorf("a commit left %s", got)
		}
		// Conditions alone are a question.
		mustCommit(t, s, []fleet.Condition{{Key: "b"}})
		mustConflict(t, s, []fleet.Condition{{Key: "a", Revision: a.Revision}})
	})
	run("ListsByPrefixInOrder", func(t *testing.T, s, other fleet.Store) {
		if got := mustList(t, s, "i/"); len(got) != 0 {
			t.Errorf("an empty store lists %v", got)
		}
		mustCommit(t, s, nil, put("i/b", "2"), put("i/a", "1"), put("i", "-"), put("i0", "-"), put("j/a", "-"), put("i/a/x", "3"))
		if got := keys(mustList(t, other, "i/")); got != "i/a i/a/x i/b" {
			t.Errorf("listed %s", got)
		}
		for _, r := range mustList(t, other, "i/") {
			if one := mustGet(t, s, r.Key); one.Revision != r.Revision || !bytes.Equal(one.Value, r.Value) {
				t.Errorf("list says %+v, get %+v", r, one)
			}
		}
	})
	run("ListsMore", func(t *testing.T, s, other fleet.Store) {
		want := []string{}
		for part := range 12 {
			var changes []fleet.Change
			for i := range 100 {
				key := fmt.Sprintf("instances/%02d%02d", part, i)
				want, changes = append(want, key), append(changes, put(key, key))
			}
			mustCommit(t, s, nil, changes...)
		}
		if got := keys(mustList(t, other, "instances/")); got != strings.Join(want, " ") {
			t.Errorf("listed %d bytes of keys, want %d", len(got), len(strings.Join(want, " ")))
		}
	})
	run("RefusesWhatNoStoreTakes", func(t *testing.T, s, _ fleet.Store) {
		many := make([]fleet.Condition, fleet.MaxChanges+1)
		for i := range many {
			many[i].Key = fmt.Sprint("k", i)
		}
		for name, err := range map[string]error{
			"one key twice":   s.Commit(ctx, nil, put("a", "1"), put("a", "2")),
			"no key":          s.Commit(ctx, nil, put("", "1")),
			"condition of no": s.Commit(ctx, []fleet.Condition{{}}, put("a", "1")),
			"too large":       s.Commit(ctx, nil, fleet.Change{Key: "a", Value: make([]byte, fleet.MaxValue+1)}),
			"too many":        s.Commit(ctx, many, put("a", "1")),
		} {
			if !errors.Is(err, fault.Invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		mustCommit(t, s, many[1:], fleet.Change{Key: "a", Value: make([]byte, fleet.MaxValue)})
	})
	run("WhoHasNoTimeLeftDoesNothing", func(t *testing.T, s, other fleet.Store) {
		gone, cancel := context.WithCancel(ctx)
		cancel()
		if err := s.Commit(gone, nil, put("a", "1")); !errors.Is(err, fault.Unavailable) {
			t.Errorf("commit: %v", err)
		}
		if _, err := s.Get(gone, "a"); !errors.Is(err, fault.Unavailable) {
			t.Errorf("get: %v", err)
		}
		if got := mustList(t, other, ""); len(got) != 0 {
			t.Errorf("there is %v", got)
		}
	})
	t.Run("OfThoseThatWriteAtOnceOneDoes", func(t *testing.T) {
		client := open(t)
		const writers, each = 4, 5
		var wg sync.WaitGroup
		for range writers {
			s := client()
			wg.Go(func() {
				for done := 0; done < each; {
					var n byte
					var when fleet.Condition
					if r, err := s.Get(ctx, "count"); err == nil {
						n, when = r.Value[0], fleet.Condition{Revision: r.Revision}
					} else if !errors.Is(err, fault.NotFound) {
						t.Errorf("get: %v", err)
						return
					}
					when.Key = "count"
					switch err := s.Commit(ctx, []fleet.Condition{when}, fleet.Change{Key: "count", Value: []byte{n + 1}}); {
					case err == nil:
						done++
					case !errors.Is(err, fault.GenerationConflict):
						t.Errorf("commit: %v", err)
						return
					}
				}
			})
		}
		wg.Wait()
		if got := mustGet(t, client(), "count"); got.Value[0] != writers*each {
			t.Errorf("%d of %d writes are left", got.Value[0], writers*each)
		}
	})
}

func put(key, value string) fleet.Change { return fleet.Change{Key: key, Value: []byte(value)} }

func keys(records []fleet.Record) string {
	var out []string
	for _, r := range records {
		out = append(out, r.Key)
	}
	return strings.Join(slices.Clip(out), " ")
}

func mustGet(t *testing.T, s fleet.Store, key string) fleet.Record {
	t.Helper()
	r, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	return r
}

func mustList(t *testing.T, s fleet.Store, prefix string) []fleet.Record {
	t.Helper()
	r, err := s.List(t.Context(), prefix)
	if err != nil {
		t.Fatalf("list %s: %v", prefix, err)
	}
	return r
}

func mustCommit(t *testing.T, s fleet.Store, when []fleet.Condition, changes ...fleet.Change) {
	t.Helper()
	if err := s.Commit(t.Context(), when, changes...); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

func mustConflict(t *testing.T, s fleet.Store, when []fleet.Condition, changes ...fleet.Change) {
	t.Helper()
	if err := s.Commit(t.Context(), when, changes...); !errors.Is(err, fault.GenerationConflict) {
		t.Fatalf("commit under %v: %v, want a conflict", when, err)
	}
}
