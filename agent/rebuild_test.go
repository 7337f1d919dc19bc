package agent

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host"
	"berth/agent/recovery"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/topology"
)

// stood is what a ledger says, as far as a rebuild can know it.
type stood struct {
	Token  claims.Token
	Claims []string
}

func (p *pair) ledger(on string) map[string]stood {
	p.Helper()
	out := map[string]stood{}
	list, err := p.clients[on].Instances(p.Context())
	p.must(err)
	for _, i := range list.Instances {
		if i.Managed {
			out[i.UUID] = stood{Token: i.Token}
		}
	}
	held, err := p.clients[on].Claims(p.Context())
	p.must(err)
	for _, c := range held.Claims {
		s := out[c.Instance]
		s.Claims = append(s.Claims, fmt.Sprintf("%s %s %s", c.Kind, c.State, c.Resources))
		out[c.Instance] = s
	}
	return out
}

// damage stops a host's agent, changes its database, and starts it again.
func (p *pair) damage(on string, change func(path string)) {
	p.Helper()
	p.must(p.stop[on]())
	path := filepath.Join(p.options[on].Config.Agent.StateDir, ledgerFile)
	if change != nil {
		change(path)
	}
	p.clients[on], p.stop[on] = start(p.T, p.options[on])
}

func (p *pair) condition(on, name string) api.Condition {
	p.Helper()
	s, err := p.clients[on].Status(p.Context())
	p.must(err)
	for _, c := range s.Conditions {
		if c.Name == name {
			return c
		}
	}
	p.Fatalf("%s has no condition %s", on, name)
	return api.Condition{}
}

// Whatever becomes of the file, the guests run on, and the ledger is what it was.
func TestLedger_IsRebuiltFromWhatOthersKnow(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	made, came := p.guest("host-a", "made"), p.guest("host-b", "came")
	gone := p.guest("host-a", "gone")
	for guest, way := range map[string][2]string{came: {"host-b", "host-a"}, gone: {"host-a", "host-b"}} {
		if m := p.finish(way[0], p.move(guest, way[0], way[1])); m.Err() != nil {
			t.Fatal(m.Err())
		}
	}
	// One whose wish is to be started with the host, and which its user has stopped.
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start, r.Autostart = "stopped", p.kernel, true, true
	r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128}
	stopped, err := p.clients["host-a"].CreateInstance(t.Context(), r)
	p.must(err)
	_, err = p.clients["host-a"].StopInstance(t.Context(), stopped.UUID, api.StopInstance{Force: true})
	p.must(err)
	want, events := p.ledger("host-a"), len(p.fleet.History())
	if len(want) != 3 || want[made].Token.Epoch != 1 || want[came].Token.Epoch != 2 || len(want[came].Claims) != 1 {
		t.Fatalf("before: %+v", want)
	}
	held := p.held()
	random := rand.New(rand.NewPCG(5, 6))
	edit := func(f func(data []byte) []byte) func(string) {
		return func(path string) {
			data, err := os.ReadFile(path)
			p.must(err)
			p.must(os.WriteFile(path, f(data), 0o600))
		}
	}
	for _, c := range []struct {
		name   string
		change func(path string)
		kept   bool
	}{
		{"what was started in this boot is forgotten", func(path string) {
			db, err := store.Open(path, store.Options{})
			p.must(err)
			all, err := db.List(t.Context(), "verbs")
			p.must(err)
			for key := range all {
				p.must(db.Delete(t.Context(), "verbs", key))
			}
			p.must(db.Put(t.Context(), "claims", "garbled", []byte(`{}`)))
			p.must(db.Close())
		}, false},
		{"empty", edit(func([]byte) []byte { return nil }), true},
		{"cut", edit(func(d []byte) []byte { return d[:len(d)/40] }), true},
		{"text", edit(func([]byte) []byte { return []byte("not a database\n") }), true},
		{"missing", func(path string) { p.must(os.Remove(path)) }, false},
		{"every page bit-flipped but the first two", edit(func(d []byte) []byte {
			for at := 2 * os.Getpagesize(); at < len(d); at += os.Getpagesize() {
				d[at+random.IntN(64)] ^= 1 << random.IntN(8)
			}
			return d
		}), true},
		{"a page damaged that says which commit is the last", edit(func(d []byte) []byte {
			d[40] ^= 4
			return d
		}), false},
		{"one record garbled", edit(func(d []byte) []byte {
			return bytes.ReplaceAll(d, []byte(`"state":"bound"`), []byte(`"state":"bo\nd"`))
		}), true},
		{"a whole record that says nothing", func(path string) {
			db, err := store.Open(path, store.Options{})
			p.must(err)
			all, err := db.List(t.Context(), "claims")
			p.must(err)
			for key := range all {
				p.must(db.Put(t.Context(), "claims", key, []byte(`{"claim":3}`)))
			}
			p.must(db.Close())
		}, false},
	} {
		{
			p.damage("host-a", c.change)
			if diff := cmp.Diff(want, p.ledger("host-a")); diff != "" {
				t.Errorf("%s: the ledger (-before +rebuilt):\n%s", c.name, diff)
			}
			if diff := cmp.Diff(held, p.held()); diff != "" {
				t.Errorf("%s: allocations (-before +after):\n%s", c.name, diff)
			}
			got := p.condition("host-a", "ledger")
			kept, err := store.Kept(filepath.Join(p.options["host-a"].Config.Agent.StateDir, ledgerFile))
			p.must(err)
			if (len(kept) == 1) != c.kept || (got.Health == api.HealthDegraded) != c.kept {
				t.Fatalf("%s: kept %v, condition %+v", c.name, kept, got)
			}
			if c.kept && (got.Reasons[0].Code != "ledger_damaged" || got.Reasons[0].Have != kept[0] || got.Reasons[0].Change == "") {
				t.Errorf("%s: condition %+v, want the file %s named", c.name, got, kept[0])
			}
			if !c.kept && !strings.Contains(got.Detail, "rebuilt") {
				t.Errorf("%s: condition %+v, want it said", c.name, got)
			}
			for _, path := range kept {
				p.must(os.Remove(path))
			}
			if c.kept && p.condition("host-a", "ledger").Health != api.HealthOK {
				t.Errorf("%s: still degraded though somebody took the file away", c.name)
			}
		}
	}
	if now := p.fleet.History()[events:]; len(now) > 0 {
		t.Errorf("the hypervisor was asked to change something: %v", now)
	}
	// And the ledger is good for a move, with the epoch that follows.
	if m := p.finish("host-a", p.move(came, "host-a", "host-b")); m.Err() != nil {
		t.Fatal(m.Err())
	}
	if got := p.ledger("host-b")[came].Token.Epoch; got != 3 {
		t.Errorf("epoch %d after the move, want 3", got)
	}
}

func TestLedger_WhatNobodyKnowsIsInDoubtUntilSomebodyDoes(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	off := p.guest("host-a", "off")
	_, err := p.clients["host-a"].StopInstance(t.Context(), off, api.StopInstance{Force: true})
	p.must(err)
	before := p.ledger("host-a")
	used := func() topology.Resources {
		s, err := p.clients["host-a"].Status(t.Context())
		p.must(err)
		return s.Usage.Used
	}
	was := used()
	o := p.options["host-a"]
	o.Config.Peers = maps.Clone(o.Config.Peers)
	o.Config.Peers["host-down"] = strings.TrimPrefix(nowhere(t), "http://")
	p.options["host-a"] = o
	a := p.rebuilding("host-a")
	if err := a.refused(); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "host-down") {
		t.Errorf("a claim while host-down is silent: %v, want a refusal that names it", err)
	}
	p.clients["host-a"], p.stop["host-a"] = a.client, a.stop
	if _, err := p.clients["host-a"].StartInstance(t.Context(), off); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a start while host-down is silent: %v", err)
	}
	// After half a minute it goes on without.
	a.wait()
	p.until("claims are given again", func() bool { return a.refused() == nil })
	if got := p.ledger("host-a")[off]; got.Token.State != claims.TokenDoubt || len(got.Claims) != 1 {
		t.Errorf("ledger %+v, want it in doubt, and counted", got)
	}
	if used() != was {
		t.Errorf("used %v, before %v", used(), was)
	}
	c := p.condition("host-a", "ledger")
	if c.Health != api.HealthDegraded || c.Reasons[0].Code != "instance_in_doubt" || !strings.Contains(c.Reasons[0].Message, "host-down") {
		t.Errorf("condition %+v, want the guest and the silent host named", c)
	}
	if _, err := p.clients["host-a"].StartInstance(t.Context(), off); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "doubt") {
		t.Errorf("start of a guest in doubt: %v", err)
	}
	if _, err := p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: off, Destination: "host-b"}); err == nil {
		t.Error("a guest in doubt is moved")
	}
	// An operator's word ends it, also across a restart.
	p.damage("host-a", nil)
	if got := p.ledger("host-a")[off].Token.State; got != claims.TokenDoubt {
		t.Errorf("token %s after a restart", got)
	}
	_, err = p.clients["host-a"].AdoptInstances(t.Context(), api.AdoptInstances{Instances: []string{off}})
	p.must(err)
	if got := p.ledger("host-a")[off].Token; got.State != claims.TokenHere || got.Epoch <= before[off].Token.Epoch {
		t.Errorf("token %+v after the word, want it here by a higher epoch", got)
	}
	_, err = p.clients["host-a"].StartInstance(t.Context(), off)
	p.must(err)
}

// rebuilt is an agent whose ledger is gone, in this process's hands.
type rebuilt struct {
	a      *Agent
	client *api.Client
	stop   func() error
}

// rebuilding starts an agent over an empty ledger and keeps hold of it.
func (p *pair) rebuilding(on string) rebuilt {
	p.Helper()
	p.must(p.stop[on]())
	p.must(os.Remove(filepath.Join(p.options[on].Config.Agent.StateDir, ledgerFile)))
	var a *Agent
	o := p.options[on]
	o.made = func(made *Agent) { a = made }
	client, stop := start(p.T, o)
	return rebuilt{a, client, stop}
}

func (r rebuilt) refused() error {
	return r.a.tracker.Check(topology.Resources{VCPUs: 1, MemoryMB: 1})
}

// wait has the agent have waited for as long as it waits for silent hosts.
func (r rebuilt) wait() {
	r.a.ledger.mu.Lock()
	defer r.a.ledger.mu.Unlock()
	r.a.ledger.since -= rebuildPatience
}

// stopping is a store that dies at a commit.
type stopping struct {
	*store.DB
	left int
}

var errDied = errors.New("the process has died")

func (s *stopping) Enqueue(mutations ...store.Mutation) *store.Pending {
	if s.left--; s.left < 0 {
		p, settle := store.NewPending(nil)
		settle(errDied)
		return p
	}
	return s.DB.Enqueue(mutations...)
}

// The rebuild is stopped at each of its writes: the next start ends the same.
func TestLedger_ARebuildThatIsStoppedAnywhereEndsTheSame(t *testing.T) {
	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	guest := func(n int, d claims.Domain, epoch uint64) host.Surveyed {
		return host.Surveyed{
			Domain: d, Marked: true, Found: claims.Found{Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}},
			Instance: claims.Instance{UUID: id(n), Name: fmt.Sprintf("guest-%d", n), Token: claims.Token{Epoch: epoch}, CreatedAt: time.Unix(1, 0).UTC()},
		}
	}
	said := recovery.Told{
		Here: map[string]host.Surveyed{
			id(1): guest(1, claims.DomainRunning, 3), id(2): guest(2, claims.DomainOff, 1), id(3): guest(3, claims.DomainHalfway, 5), id(4): guest(4, claims.DomainLeft, 1),
		},
		Placed: map[string]claims.Allocated{id(1): claims.AllocatedHere},
		Answers: []api.Knowledge{{
			Host:      "host-b",
			Instances: []api.KnownInstance{{UUID: id(4), Token: claims.Token{Epoch: 2, State: claims.TokenHere, Holder: "host-b"}}},
			Moves: []api.KnownMove{{
				Migration: id(9), Instance: id(3), Attempt: 1, Source: "host-b", Destination: "host-a",
				Context: &claims.MigrationContext{Migration: id(9), Instance: id(3), Source: "host-b", Destination: "host-a"},
			}},
		}},
	}
	// run rebuilds over a file, and dies at its nth commit; -1 for never.
	run := func(t *testing.T, path string, dies int) (died bool, after map[string]string) {
		db, err := store.Open(path, store.Options{Logger: agentOptions(t, settings(t, "http://127.0.0.1:1")).Logger})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s := &stopping{db, dies}
		if dies < 0 {
			s.left = 1 << 30
		}
		o := agentOptions(t, settings(t, "http://127.0.0.1:1"))
		a := &Agent{opt: o, log: o.Logger, rt: o.Runtime, name: "host-a", db: db}
		if a.tracker, err = claims.Open(t.Context(), claims.Options{Store: s, Runtime: o.Runtime, Host: "host-a", Logger: o.Logger, Tolerant: true}); err != nil {
			t.Fatal(err)
		}
		l := &ledger{a: a, whole: make(chan struct{}), doubts: map[string]string{}}
		if err := l.putBack(t.Context(), said, false, true); err != nil {
			return true, nil
		}
		after = map[string]string{}
		for _, i := range a.tracker.Instances() {
			after[i.UUID] = fmt.Sprintf("%+v", i.Token)
		}
		for _, c := range a.tracker.List() {
			after[c.Owner.Instance] += fmt.Sprintf("; %+v %s %s", c.Owner, c.State, c.Resources)
		}
		return false, after
	}
	_, want := run(t, filepath.Join(t.TempDir(), ledgerFile), -1)
	if len(want) != 4 {
		t.Fatalf("rebuilt %v", want)
	}
	points := 0
	for n := 0; ; n++ {
		path := filepath.Join(t.TempDir(), ledgerFile)
		died, _ := run(t, path, n)
		if !died {
			break
		}
		points++
		_, got := run(t, path, -1)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("stopped at commit %d (-want +got):\n%s", n, diff)
		}
	}
	if points != 4 {
		t.Errorf("stopped at %d commits, want one for each guest", points)
	}
	t.Log(slices.Sorted(maps.Values(want)))
}
