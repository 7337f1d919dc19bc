package placement

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/placement/placementtest"
	pc "berth/placementclient"
)

// helperDB makes the test binary a server on that database, to be killed.
const helperDB = "BERTH_PLACEMENT_TEST_DB"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperDB); path != "" {
		helper(path)
	}
	// Before the command line, which may say otherwise.
	if err := flag.Set("rapid.checks", strconv.Itoa(100/stride)); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func helper(path string) {
	s, err := New(Options{Listen: "127.0.0.1:0", DB: path})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	go func() { <-s.Ready(); fmt.Println(s.Addr()) }()
	fmt.Println("error:", s.Run(context.Background()))
	os.Exit(1)
}

// dump is the whole state as text, indexes included.
func dump(t *testing.T, s *Server) string {
	t.Helper()
	b := s.state.b
	out, err := json.MarshalIndent(map[string]any{
		"providers": b.providers, "consumers": b.consumers, "classes": b.classes, "traits": b.traits,
		"names": b.names, "used": nonEmpty(b.used), "children": childrenOf(b), "holders": nonEmpty(b.holders), "seq": b.seq,
	}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func nonEmpty[M ~map[string]V, V any](index map[string]M) map[string]M {
	out := map[string]M{}
	for rp, m := range index {
		if len(m) > 0 {
			out[rp] = m
		}
	}
	return out
}

// childrenOf is the index of children, whose order says nothing.
func childrenOf(b *base) map[string][]string {
	out := map[string][]string{}
	for parent, list := range b.children {
		out[parent] = slices.Sorted(slices.Values(list))
	}
	return out
}

// on gives a server with its database in path.
func on(t *testing.T, path string) *Server {
	t.Helper()
	s, err := New(Options{Listen: "127.0.0.1:0", DB: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestServer_RestartLosesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.db")
	s := on(t, path)
	h := serve(t, s)
	placementtest.ClientSuite(t, placementtest.Server{URL: h.URL}) // much is written and removed again
	c := client(t, h.URL, 39)
	ctx := t.Context()
	must(t, c.EnsureResourceClass(ctx, "CUSTOM_KEPT"))
	must(t, c.EnsureTrait(ctx, "CUSTOM_KEPT"))
	for _, p := range []pc.NewProvider{{UUID: id(1), Name: "a"}, {UUID: id(2), Name: "b", ParentProviderUUID: id(1)}} {
		_, err := c.CreateProvider(ctx, p)
		must(t, err)
	}
	_, err := c.PutInventories(ctx, id(2), pc.Inventories{Inventories: map[string]pc.Inventory{"CUSTOM_KEPT": {Total: 4, AllocationRatio: 1.5}}})
	must(t, err)
	_, err = c.PutTraits(ctx, id(2), pc.Traits{Generation: 1, Traits: []string{"CUSTOM_KEPT"}})
	must(t, err)
	_, err = c.PutAggregates(ctx, id(2), pc.Aggregates{Generation: 2, Aggregates: []string{id(9)}})
	must(t, err)
	must(t, c.PutAllocations(ctx, id(3), holding(id(2), pc.Resources{"CUSTOM_KEPT": 3}, pc.ConsumerInstance, nil)))
	wantKind(t, c.PutAllocations(ctx, id(4), holding(id(7), pc.Resources{"CUSTOM_KEPT": 3}, pc.ConsumerInstance, nil)), fault.Invalid, "")
	before := dump(t, s)
	if !strings.Contains(before, id(4)) {
		t.Errorf("the orphan consumer is not in the state")
	}
	must(t, s.Close())

	again := on(t, path)
	same(t, before, dump(t, again))
}

// Lists are in order of creation, which clients that take the first rely on.
func TestServer_OrderOfCreationOutlivesARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.db")
	var providers, classes []string
	for round := range 3 {
		s := on(t, path)
		c := client(t, serve(t, s).URL, 39)
		for n := range 8 {
			p, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: id(100*round + 50 - n), Name: fmt.Sprint("p", round, n)})
			must(t, err)
			providers = append(providers, p.UUID)
		}
		for n := range 8 { // last, so that theirs is the highest number
			name := fmt.Sprintf("CUSTOM_%d_%d", 9-round, 9-n)
			must(t, c.EnsureResourceClass(t.Context(), name))
			classes = append(classes, name)
		}
		var listed struct {
			Providers []struct{ UUID string } `json:"resource_providers"`
			Classes   []struct{ Name string } `json:"resource_classes"`
		}
		for _, what := range []string{"/resource_providers", "/resource_classes"} {
			must(t, json.Unmarshal(answerWith(s, "GET", what, asAdmin, "").Body.Bytes(), &listed))
		}
		var got []string
		for _, p := range listed.Providers {
			got = append(got, p.UUID)
		}
		same(t, providers, got)
		got = nil
		for _, c := range listed.Classes {
			if strings.HasPrefix(c.Name, "CUSTOM_") {
				got = append(got, c.Name)
			}
		}
		same(t, classes, got)
		must(t, s.Close())
	}
}

// id is a fixed uuid.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func TestServer_KilledBetweenRequestsKeepsEveryAnswerGiven(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.db")
	ctx := t.Context()
	written := 0
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperDB+"="+path)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		var addr string
		if _, err := fmt.Fscan(out, &addr); err != nil || addr == "error:" {
			t.Fatalf("round %d: the server says %q (%v)", round, addr, err)
		}
		c := client(t, "http://"+addr, 39)
		if round == 0 {
			_, err := c.CreateProvider(ctx, pc.NewProvider{UUID: id(1), Name: "a"})
			must(t, err)
			_, err = c.PutInventories(ctx, id(1), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(100)}})
			must(t, err)
		}
		for range 5 {
			must(t, c.PutAllocations(ctx, id(100+written), holding(id(1), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil)))
			written++
		}
		must(t, cmd.Process.Kill())
		_ = cmd.Wait() // killed: the error is what was asked for
		c.Close()

		s := on(t, path)
		t2 := newTx(s.state.b, time.Time{})
		same(t, int64(written), t2.used(id(1), pc.ClassVCPU))
		same(t, written, len(t2.holders(id(1))))
		must(t, s.Close())
	}
}

func TestNew_ADatabaseInUseIsRefusedWithinASecondOrSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.db")
	on(t, path)
	began := time.Now()
	_, err := New(Options{Listen: "127.0.0.1:0", DB: path})
	if fault.KindOf(err) != fault.Busy || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(began); d > time.Minute {
		t.Errorf("it took %s", d)
	}
}

func TestNew_ADamagedDatabaseIsNamedAndNotChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "placement.db")
	s := on(t, path)
	c := client(t, serve(t, s).URL, 39)
	for i := range 40 {
		_, err := c.CreateProvider(t.Context(), pc.NewProvider{UUID: id(i), Name: fmt.Sprint("p", i)})
		must(t, err)
	}
	must(t, s.Close())
	whole, err := os.ReadFile(path)
	must(t, err)
	// Not half of the file: the second half is blocks that are kept for a full disk.
	record := bytes.Index(whole, []byte(`"generation"`))
	if record < 0 {
		t.Fatal("no record found in the file")
	}
	// In all of them: a page that is free still has records of before.
	middle := bytes.ReplaceAll(whole, []byte(`"generation"`), []byte(`"Generation"`))
	for name, content := range map[string][]byte{
		"empty": {}, "cut": whole[:record], "one page": whole[:4096],
		"noise": bytes.Repeat([]byte("berth"), 4096), "a letter changed": middle,
	} {
		bad := filepath.Join(t.TempDir(), "bad.db")
		must(t, os.WriteFile(bad, content, 0o600))
		if _, err := New(Options{Listen: "127.0.0.1:0", DB: bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: got %v", name, err)
		}
		if now, err := os.ReadFile(bad); err != nil || !bytes.Equal(now, content) {
			t.Errorf("%s: the file was changed (%v)", name, err)
		}
	}
}

func TestNew_RefusesOtherDatabases(t *testing.T) {
	for name, c := range map[string]struct {
		records []store.Mutation
		want    string
	}{
		"an agent's ledger": {[]store.Mutation{store.Put("claims", "x", []byte("{}"))}, "ledger"},
		"a newer format":    {[]store.Mutation{store.Put(bucketFormat, "format", []byte("2"))}, "newer"},
		"a broken record":   {[]store.Mutation{store.Put(bucketProviders, id(1), []byte("{"))}, "record"},
		"a lost parent":     {[]store.Mutation{store.Put(bucketProviders, id(1), []byte(`{"uuid":"`+id(1)+`","name":"a","root":"`+id(2)+`"}`))}, "root"},
		"a root below":      {[]store.Mutation{store.Put(bucketProviders, id(1), []byte(`{"uuid":"`+id(1)+`","name":"a","parent":"`+id(1)+`","root":"`+id(1)+`"}`))}, "root"},
		"parents in a ring": {[]store.Mutation{
			store.Put(bucketProviders, id(1), []byte(`{"uuid":"`+id(1)+`","name":"a","parent":"`+id(2)+`","root":"`+id(3)+`"}`)),
			store.Put(bucketProviders, id(2), []byte(`{"uuid":"`+id(2)+`","name":"b","parent":"`+id(1)+`","root":"`+id(3)+`"}`)),
			store.Put(bucketProviders, id(3), []byte(`{"uuid":"`+id(3)+`","name":"c","root":"`+id(3)+`"}`)),
		}, "do not lead to its root"},
		"no step": {[]store.Mutation{
			store.Put(bucketProviders, id(1), []byte(`{"uuid":"`+id(1)+`","name":"a","root":"`+id(1)+`","inventories":{"VCPU":{"total":1,"min_unit":1,"max_unit":1,"allocation_ratio":1}}}`)),
		}, "step_size"},
		"a lost provider": {[]store.Mutation{store.Put(bucketConsumers, id(1), []byte(`{"uuid":"`+id(1)+`","allocations":{"x":{"VCPU":1}}}`))}, "not there"},
	} {
		path := filepath.Join(t.TempDir(), "other.db")
		db, err := store.Open(path, store.Options{})
		must(t, err)
		must(t, db.Enqueue(c.records...).Wait())
		must(t, db.Close())
		if _, err := New(Options{Listen: "127.0.0.1:0", DB: path}); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestServer_ADiskErrorAnswers500AndChangesNothing(t *testing.T) {
	s := memory(t)
	disk := storetest.NewMemory()
	s.state.disk = disk
	h := serve(t, s)
	c, err := pc.New(pc.Config{URL: h.URL, Token: "admin", Retries: -1})
	must(t, err)
	defer c.Close()
	ctx := t.Context()
	_, err = c.CreateProvider(ctx, pc.NewProvider{UUID: id(1), Name: "a"})
	must(t, err)
	_, err = c.PutInventories(ctx, id(1), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}})
	must(t, err)
	before := dump(t, s)
	for _, outcome := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		disk.OnCommit(func(int, []store.Mutation) storetest.Outcome { return outcome })
		err = c.PutAllocations(ctx, id(2), holding(id(1), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil))
		api, is := errors.AsType[*pc.APIError](err)
		if !is || api.Status != http.StatusInternalServerError {
			t.Fatalf("got %v, want a 500", err)
		}
		// The server that fails is of this process; to the client the outcome is open.
		wantKind(t, err, fault.InDoubt, "")
		same(t, before, dump(t, s))
	}
	disk.OnCommit(nil)
	must(t, c.PutAllocations(ctx, id(2), holding(id(1), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil)))
	again, err := load(ctx, disk.Crash(), "the model disk")
	must(t, err)
	same(t, dump(t, s), dump(t, &Server{state: &state{b: again}}))
}
