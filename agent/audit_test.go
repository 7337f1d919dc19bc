package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/internal/runtime"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// pair is two agents over a fake hypervisor each, with certificates, and one embedded
// Placement between them that can be lost.
type pair struct {
	*testing.T
	fleet   *drivertest.Fleet
	clients map[string]*api.Client
	stop    map[string]func() error
	options map[string]Options
	place   *placementclient.Client
	kernel  string

	handler atomic.Pointer[http.Handler]
	// conducted is called before and after each request that only a conductor sends;
	// nil for nobody.
	conducted atomic.Pointer[func()]
}

func newPair(t *testing.T, interval time.Duration) *pair {
	t.Helper()
	return newHosts(t, interval, []string{"host-a", "host-b"}, func(*Options) {})
}

// newHosts is newPair of any hosts, the options of each changed by tune.
func newHosts(t *testing.T, interval time.Duration, names []string, tune func(*Options)) *pair {
	t.Helper()
	rt := &runtime.System{}
	p := &pair{T: t, fleet: drivertest.NewFleet(rt), clients: map[string]*api.Client{}, stop: map[string]func() error{}, options: map[string]Options{}, kernel: filepath.Join(t.TempDir(), "vmlinuz")}
	t.Cleanup(func() {
		p.fleet.Close()
		rt.Wait()
		for _, v := range p.fleet.Violations() {
			t.Error(v)
		}
	})
	p.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond})
	p.must(os.WriteFile(p.kernel, []byte("kernel"), 0o644))
	p.loseDatabase()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := p.conducted.Load(); f != nil && (r.Method == http.MethodPost && r.URL.Path == "/allocations" || r.Method == http.MethodDelete) {
			(*f)()
			defer (*f)()
		}
		(*p.handler.Load()).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	var err error
	p.place, err = placementclient.New(placementclient.Config{URL: front.URL, Token: "admin"})
	p.must(err)
	t.Cleanup(p.place.Close)

	keys := t.TempDir()
	authority, err := pki.Init(keys, "test", time.Now(), false)
	p.must(err)
	listeners, addresses := map[string]net.Listener{}, map[string]string{}
	for _, name := range names {
		p.must(os.MkdirAll(filepath.Join(keys, name), 0o700))
		_, err := authority.IssueHost(filepath.Join(keys, name), name, []string{"localhost"}, time.Now())
		p.must(err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		p.must(err)
		listeners[name], addresses[name] = l, l.Addr().String()
	}
	for _, name := range names {
		c := settings(t, front.URL)
		c.Agent.Name, c.Agent.Listen, c.Peers = name, addresses[name], maps.Clone(addresses)
		c.PKI = config.PKI{CA: filepath.Join(keys, "ca.crt"), Cert: filepath.Join(keys, name, "host.crt"), Key: filepath.Join(keys, name, "host.key")}
		for _, other := range names {
			// What is asked of one is passed on to the other; TestPassedOn has hosts without that.
			c.Rights.Relay = append(c.Rights.Relay, "host:"+other)
		}
		c.Placement.AuditInterval = config.Duration(interval)
		c.Placement.Interval = config.Duration(200 * time.Millisecond)
		c.Host.DiskPath = t.TempDir()
		o := agentOptions(t, c)
		o.Listeners = map[string][]net.Listener{"peers": {listeners[name]}}
		o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return p.fleet.Host(name) }
		tune(&o)
		p.clients[name], p.stop[name] = start(t, o)
		o.Listeners = nil // who comes next listens itself
		p.options[name] = o
	}
	return p
}

// loseDatabase has Placement be an empty one from now on.
func (p *pair) loseDatabase() {
	p.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	p.must(err)
	p.Cleanup(func() { p.must(s.Close()) })
	h := s.Handler()
	p.handler.Store(&h)
}

func (p *pair) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *pair) guest(host, name string) string {
	p.Helper()
	r := api.CreateInstance{}
	r.Name, r.Kernel, r.Start = name, p.kernel, true
	r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
	in, err := p.clients[host].CreateInstance(p.Context(), r)
	p.must(err)
	return in.UUID
}

// held is all that Placement has, by consumer and provider's name.
func (p *pair) held() map[string]map[string]placementclient.Resources {
	p.Helper()
	out := map[string]map[string]placementclient.Resources{}
	providers, err := p.place.Providers(p.Context(), placementclient.ProviderFilter{})
	p.must(err)
	for _, rp := range providers {
		all, err := p.place.ProviderAllocations(p.Context(), rp.UUID)
		p.must(err)
		for consumer, r := range all.Allocations {
			if out[consumer] == nil {
				out[consumer] = map[string]placementclient.Resources{}
			}
			out[consumer][rp.Name] = r
		}
	}
	return out
}

// move begins one and waits until its stream runs, which does not end by itself.
func (p *pair) move(instance, from, to string) string {
	p.Helper()
	p.fleet.Manual()
	m, err := p.clients[from].Migrate(p.Context(), api.Migrate{Instance: instance, Destination: to})
	p.must(err)
	p.until("the stream runs", func() bool {
		m, err = p.clients[from].Migration(p.Context(), m.UUID)
		p.must(err)
		if m.Done() {
			p.Fatalf("the move ended: %+v", m.Error)
		}
		return m.Step == migration.StepStream
	})
	return m.UUID
}

func (p *pair) finish(from, uuid string) migration.Migration {
	p.Helper()
	var m migration.Migration
	p.until("the move ends", func() bool {
		p.fleet.Advance(50 * time.Millisecond)
		var err error
		m, err = p.clients[from].Migration(p.Context(), uuid)
		p.must(err)
		return m.Done()
	})
	return m
}

func (p *pair) until(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("it does not come to this: %s", what)
		}
	}
}

// audit asks one host, and says what every host found.
func (p *pair) audit(r api.AuditRequest) (report api.AuditReport, writes int64, left []audit.Row) {
	p.Helper()
	report, err := p.clients["host-a"].Audit(p.Context(), r)
	p.must(err)
	if len(report.Silent) > 0 {
		p.Errorf("silent: %v", report.Silent)
	}
	for _, h := range report.Hosts {
		if len(h.Silent) > 0 {
			p.Errorf("%s could not ask: %v", h.Host, h.Silent)
		}
		writes += h.Calls.Writes
		left = append(left, h.Left()...)
	}
	return report, writes, left
}

func TestAudit_ALostPlacementIsRebuiltFromTheAgents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		interval time.Duration
		rebuild  func(*pair)
	}{
		{"by command", time.Hour, func(p *pair) {
			if _, writes, left := p.audit(api.AuditRequest{RebuildPlacement: true, All: true}); writes > 3 || len(left) > 0 {
				// What looks at a new guest for the first time may have been faster.
				p.Errorf("%d writes, want one for each guest and one for both halves of the move; left: %+v", writes, left)
			}
		}},
		{"by themselves", 300 * time.Millisecond, func(*pair) {}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPair(t, tt.interval)
			p.guest("host-a", "web")
			p.guest("host-b", "db")
			moving := p.guest("host-a", "mail")
			uuid := p.move(moving, "host-a", "host-b")
			want := p.held()
			if len(want) != 4 || len(want[uuid]) != 1 || want[moving]["host-b"] == nil {
				t.Fatalf("before: %v", want)
			}
			p.loseDatabase()
			tt.rebuild(p)
			p.until("all is counted again", func() bool { return cmp.Equal(want, p.held()) || tt.interval == time.Hour })
			if diff := cmp.Diff(want, p.held()); diff != "" {
				t.Fatalf("what Placement has (-before +after):\n%s", diff)
			}
			// On one that is whole nothing is changed.
			if _, writes, left := p.audit(api.AuditRequest{RebuildPlacement: true, All: true}); writes != 0 || len(left) > 0 {
				t.Errorf("again: %d writes, left %+v", writes, left)
			}
			if m := p.finish("host-a", uuid); m.Outcome != migration.OutcomeCompleted {
				t.Fatalf("the move came to %s: %+v", m.Outcome, m.Error)
			}
			delete(want, uuid)
			if diff := cmp.Diff(want, p.held()); diff != "" {
				t.Errorf("after the move (-want +got):\n%s", diff)
			}
			if _, writes, left := p.audit(api.AuditRequest{Heal: true, All: true}); writes != 0 || len(left) > 0 {
				t.Errorf("an audit after the move makes %d writes and leaves %+v", writes, left)
			}
		})
	}
}

func TestAudit_OfARunningMoveChangesNothing(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	moving := p.guest("host-a", "mail")
	before := p.held()
	var mu sync.Mutex
	audits := 0
	look := func() {
		for _, name := range slices.Sorted(maps.Keys(p.clients)) {
			report, err := p.clients[name].Audit(context.WithoutCancel(t.Context()), api.AuditRequest{Heal: true, AskAll: true})
			mu.Lock()
			audits++
			if err != nil {
				t.Error(err)
			}
			for _, h := range report.Hosts {
				if h.Calls.Writes > 0 || len(h.Left()) > 0 {
					t.Errorf("an audit of %s in the middle of a move makes %d writes and finds %+v", h.Host, h.Calls.Writes, h.Left())
				}
			}
			mu.Unlock()
		}
	}
	p.conducted.Store(&look)
	m, err := p.clients["host-a"].Migrate(t.Context(), api.Migrate{Instance: moving, Destination: "host-b"})
	p.must(err)
	var last string
	err = p.clients["host-a"].WatchMigration(t.Context(), m.UUID, 30*time.Second, func(now migration.Migration) error {
		m = now
		if at := fmt.Sprint(now.Step, now.Phase); at != last && !now.Done() {
			last = at
			look()
		}
		return nil
	})
	p.must(err)
	p.conducted.Store(nil)
	if m.Outcome != migration.OutcomeCompleted {
		t.Fatalf("the move came to %s: %+v", m.Outcome, m.Error)
	}
	if audits < 8 {
		t.Errorf("%d audits alone", audits)
	}
	before[moving] = map[string]placementclient.Resources{"host-b": before[moving]["host-a"]}
	if diff := cmp.Diff(before, p.held()); diff != "" {
		t.Errorf("after the move (-want +got):\n%s", diff)
	}
	look()
}

// put has a consumer hold as much of each named host as a small instance does. Hosts write their
// own consumers meanwhile: a write that crossed one is repeated.
func (p *pair) put(consumer string, hosts ...string) {
	p.Helper()
	next := placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance,
	}
	for _, h := range hosts {
		rp, err := p.place.ProviderByName(p.Context(), h)
		p.must(err)
		next.Allocations[rp.UUID] = placementclient.Resources{"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}
	}
	for range 10 {
		now, err := p.place.Allocations(p.Context(), consumer)
		p.must(err)
		next.ConsumerGeneration = now.ConsumerGeneration
		if err = p.place.PutAllocations(p.Context(), consumer, next); !errors.Is(err, fault.GenerationConflict) {
			p.must(err)
			return
		}
	}
	p.Fatalf("consumer %s is written by somebody else each time", consumer)
}

func TestAudit_AsksTheHostsThatMayHaveAConsumer(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	web, db := p.guest("host-a", "web"), p.guest("host-b", "db")
	want := p.held()
	const stranger = "11111111-2222-4333-8444-555555555555"
	var codes []string
	audited := func(r api.AuditRequest) (writes int64) {
		t.Helper()
		_, writes, left := p.audit(r)
		codes = nil
		for _, row := range left {
			codes = append(codes, row.Code)
		}
		return writes
	}
	for _, tt := range []struct {
		name     string
		consumer string
		counted  []string
		all      bool
		left     []string
	}{
		{"a guest of the other host, counted here too", db, []string{"host-a", "host-b"}, false, nil},
		{"a guest of this host, counted there alone", web, []string{"host-b"}, false, nil},
		{"a guest of this host, counted there too: the other host drops it", web, []string{"host-a", "host-b"}, true, nil},
		{"a stranger", stranger, []string{"host-a"}, false, []string{audit.CodeStranger}},
		{"a stranger that every host was asked for", stranger, []string{"host-a"}, true, []string{audit.CodeStranger}},
	} {
		p.put(tt.consumer, tt.counted...)
		writes := audited(api.AuditRequest{Heal: true, All: tt.all})
		if diff := cmp.Diff(tt.left, codes); diff != "" || len(tt.left) == 0 && writes != 1 {
			t.Errorf("%s: %d writes; what is left (-want +got):\n%s", tt.name, writes, diff)
		}
		if len(tt.left) > 0 {
			p.must(p.place.DeleteAllocations(t.Context(), stranger))
		}
		if diff := cmp.Diff(want, p.held()); diff != "" {
			t.Errorf("%s: what Placement has (-want +got):\n%s", tt.name, diff)
		}
	}
	// A host that is away may own what it holds: nothing is written, and it is named.
	p.must(p.stop["host-b"]())
	p.put(web, "host-a", "host-b")
	p.put(db, "host-a", "host-b")
	report, err := p.clients["host-a"].Audit(t.Context(), api.AuditRequest{Heal: true, All: true})
	p.must(err)
	if h := report.Hosts[0]; len(report.Hosts) != 1 || h.Calls.Writes != 0 || report.Silent["host-b"] == "" || h.Silent["host-b"] == "" ||
		len(h.Left()) != 1 || h.Left()[0].Subject != db {
		t.Errorf("with the other host away: %+v", report)
	}
}

// A guest that is deleted with virsh is released by its host after two reads; until
// then an audit names it and writes nothing, and then nothing is left of it.
func TestAudit_AGuestThatIsDeletedByHandGoes(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	web := p.guest("host-a", "web")
	h := p.fleet.Host("host-a")
	p.must(h.Destroy(t.Context(), web))
	p.must(h.Undefine(t.Context(), web))
	if _, writes, left := p.audit(api.AuditRequest{Heal: true}); writes != 0 || len(left) > 1 || len(left) == 1 && left[0].Code != audit.CodeGuestGone {
		t.Errorf("%d writes, left %+v", writes, left)
	}
	p.until("nothing is counted", func() bool { return len(p.held()) == 0 })
	p.until("nothing is named", func() bool {
		_, writes, left := p.audit(api.AuditRequest{Heal: true})
		return writes == 0 && len(left) == 0
	})
}

func TestAudit_HealsByItselfAndSaysSoInTheStatus(t *testing.T) {
	t.Parallel()
	p := newPair(t, 300*time.Millisecond)
	web := p.guest("host-a", "web")
	want := p.held()
	p.must(p.place.DeleteAllocations(t.Context(), web))
	p.until("it is counted again", func() bool { return cmp.Equal(want, p.held()) })
	stranger := "11111111-2222-4333-8444-555555555555"
	hosts, err := p.clients["host-a"].Hosts(t.Context())
	p.must(err)
	p.must(p.place.PutAllocations(t.Context(), stranger, placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{hosts[0].ProviderUUID: {"VCPU": 1}}, ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance,
	}))
	part := func() api.Condition {
		s, err := p.clients["host-a"].Status(t.Context())
		p.must(err)
		i := slices.IndexFunc(s.Conditions, func(c api.Condition) bool { return c.Name == "allocations" })
		return s.Conditions[i]
	}
	p.until("the stranger is named", func() bool { return part().Health == api.HealthDegraded })
	if c := part(); len(c.Reasons) != 1 || c.Reasons[0].Code != audit.CodeStranger || c.Reasons[0].Change == "" {
		t.Errorf("%+v", c)
	}
	p.must(p.place.DeleteAllocations(t.Context(), stranger))
	p.until("all is well again", func() bool { return part().Health == api.HealthOK })
}

// What a host knows of a consumer: its own guests, what moves by both uuids and on both
// hosts, and of the rest nothing.
func TestAudit_WhatAHostKnowsOfConsumers(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	web, mail := p.guest("host-a", "web"), p.guest("host-a", "mail")
	move := p.move(mail, "host-a", "host-b")
	const stranger = "11111111-2222-4333-8444-555555555555"
	busy := "migration " + move + " is not over"
	for host, want := range map[string][]auditor.Known{
		"host-a": {{Consumer: web, Owner: true, Active: true}, {Consumer: mail, Owner: true, Busy: busy, Moving: true, Active: true}, {Consumer: move, Busy: busy, Moving: true}, {Consumer: stranger}},
		"host-b": {{Consumer: web}, {Consumer: mail, Busy: busy, Moving: true}, {Consumer: move, Busy: busy, Moving: true}, {Consumer: stranger}},
	} {
		got, err := p.clients[host].Knows(t.Context(), []string{web, mail, move, stranger})
		p.must(err)
		for i := range got {
			got[i].Epoch = 0
			got[i].Active = got[i].Active && host == "host-a" // on the other its copy comes at any moment
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", host, diff)
		}
	}
	p.finish("host-a", move)
}

// Who only observes, whose provider is another's, and whose identity is not believed
// writes no allocation, and says why.
func TestAudit_WhoMayNotHeal(t *testing.T) {
	taken, copied := fault.New(fault.Forbidden, "the provider is another host's"), fault.New(fault.Forbidden, "the host is a copy")
	for _, tt := range []struct {
		name string
		set  func(a *Agent)
		want error
	}{
		{"one that manages may", func(*Agent) {}, nil},
		{"observes", func(a *Agent) { a.opt.Config.Agent.Mode = config.Observe }, fault.Forbidden},
		{"another's provider", func(a *Agent) { a.foreign.Store(&taken) }, taken},
		{"a copy of another host", func(a *Agent) { a.stranger.Store(&copied) }, copied},
	} {
		a := &Agent{name: "host-a"}
		a.opt.Config.Agent.Mode = config.Manage
		tt.set(a)
		if err := a.mayNotHeal(); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if tt.want == nil {
			continue
		}
		_, err := auditService{a}.Audit(t.Context(), api.AuditRequest{Heal: true})
		_, rebuilt := auditService{a}.Audit(t.Context(), api.AuditRequest{RebuildPlacement: true})
		if !errors.Is(err, tt.want) || !errors.Is(rebuilt, tt.want) {
			t.Errorf("%s: healing %v, rebuilding %v, want %v", tt.name, err, rebuilt, tt.want)
		}
	}
}
