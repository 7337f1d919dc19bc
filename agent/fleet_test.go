package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"berth/agent/death"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// fleetBench is hosts whose agents are opened and do not run: the keeper's rounds are the test's
// to ask for.
type fleetBench struct {
	*testing.T
	rt    *runtime.System
	fakes *drivertest.Fleet
	store *fleettest.Memory
	place *placementclient.Client
	url   string
	conf  map[string]config.Config
	up    map[string]*Agent
	// before decides of each call of a host to the store; nil answers all.
	before func(c fleettest.Call) fleettest.Outcome
	// served answers at url.
	served atomic.Pointer[placement.Server]
	// client gives a host's way to the store, and that of nobody's certificate for ""; nil for store's.
	client func(name string) fleet.Store
}

const returning = "99999999-9999-4999-8999-999999999999"

func newFleetBench(t *testing.T, names ...string) *fleetBench {
	t.Helper()
	b := emptyFleetBench(t)
	b.serve(placement.Options{Listen: "127.0.0.1:0"})
	b.hosts(names...)
	return b
}

// emptyFleetBench has no hosts, and no Placement before serve.
func emptyFleetBench(t *testing.T) *fleetBench {
	t.Helper()
	rt := &runtime.System{}
	b := &fleetBench{T: t, rt: rt, fakes: drivertest.NewFleet(rt), store: fleettest.NewMemory(rt), conf: map[string]config.Config{}, up: map[string]*Agent{}}
	t.Cleanup(func() {
		for _, a := range b.up {
			if err := a.close(); err != nil {
				t.Error(err)
			}
		}
		b.fakes.Close()
		rt.Wait()
	})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { b.served.Load().ServeHTTP(w, q) }))
	t.Cleanup(front.Close)
	b.url = front.URL
	var err error
	b.place, err = placementclient.New(placementclient.Config{URL: front.URL, Token: "admin"})
	b.must(err)
	t.Cleanup(b.place.Close)
	return b
}

// serve has another Placement answer from here on.
func (b *fleetBench) serve(o placement.Options) {
	b.Helper()
	s, err := placement.New(o)
	b.must(err)
	b.Cleanup(func() { b.must(s.Close()) })
	b.served.Store(s)
}

func (b *fleetBench) hosts(names ...string) {
	b.Helper()
	for _, name := range names {
		c := settings(b.T, b.url)
		c.Agent.Name, c.Host.DiskPath = name, b.TempDir()
		b.conf[name] = c
		b.start(name)
	}
}

func (b *fleetBench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// start opens a host's agent on what is durable, after the one before was killed.
func (b *fleetBench) start(name string) *Agent {
	b.Helper()
	if a := b.up[name]; a != nil {
		b.must(a.close())
	}
	o := agentOptions(b.T, b.conf[name])
	o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return b.fakes.Host(name) }
	o.FleetStore = func(config.Config) (fleet.Store, error) {
		if b.client != nil {
			return b.client(name), nil
		}
		c := b.store.Client(name)
		c.Before = func(_ context.Context, call fleettest.Call) fleettest.Outcome {
			if b.before == nil {
				return fleettest.Answered
			}
			return b.before(call)
		}
		return c, nil
	}
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	b.must(a.open(b.Context()))
	b.up[name] = a
	a.guardian.recognised()
	b.must(a.reporter.Sync(b.Context()))
	var fine error
	a.settled.Store(&fine)
	return a
}

// reboot is start in another boot of the machine: nothing runs there.
func (b *fleetBench) reboot(name string) *Agent {
	b.Helper()
	a := b.opened(name)
	// The claims of its guests are of that boot too.
	b.must(a.host.AwaitRecords(b.Context(), true))
	b.must(a.host.Settle(b.Context()))
	return a
}

// opened is a host's agent in another boot of the machine, before it is settled.
func (b *fleetBench) opened(name string) *Agent {
	b.Helper()
	for _, d := range b.domains(name) {
		if d.Active() {
			b.must(b.fakes.Host(name).Destroy(b.Context(), d.UUID))
		}
	}
	a := b.up[name]
	for _, ref := range []migration.Ref{{Migration: "fleet", Instance: "host", Attempt: 1, Step: "boot"}, {Migration: "autostart", Instance: "host", Attempt: 1, Step: "boot"}} {
		var v any = map[string]any{"boot": "an earlier one", "confirmed": true}
		if ref.Migration == "autostart" {
			v = "an earlier one"
		}
		b.must(a.tracker.Remember(b.Context(), ref, v))
	}
	return b.start(name)
}

func (b *fleetBench) domains(name string) []driver.Domain {
	b.Helper()
	all, err := b.fakes.Host(name).Domains(context.WithoutCancel(b.Context()))
	b.must(err)
	return all
}

func (b *fleetBench) guest(on, name string) string {
	b.Helper()
	kernel := filepath.Join(b.conf[on].Host.DiskPath, "vmlinuz")
	b.must(os.WriteFile(kernel, []byte("kernel"), 0o644))
	v, err := b.up[on].host.Create(b.Context(), host.CreateRequest{
		Name: name, Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 64}, ProjectID: "p", UserID: "u", Kernel: kernel, Start: true,
	})
	b.must(err)
	inst, _ := b.up[on].tracker.Instance(v.UUID)
	inst.Autostart = true
	_, err = b.up[on].tracker.PutInstance(b.Context(), inst)
	b.must(err)
	return v.UUID
}

// round is one of a host's keeper, which must not fail.
func (b *fleetBench) round(name string) {
	b.Helper()
	b.up[name].keeper.asks = 0
	b.up[name].keeper.round(b.Context())
	b.must(b.up[name].keeper.err)
}

func (b *fleetBench) record(id string) fleet.Instance {
	b.Helper()
	var store fleet.Store = b.store.Client("test")
	if b.client != nil {
		store = b.client("")
	}
	in, _, err := fleet.New(store, b.rt).Instance(b.Context(), id)
	b.must(err)
	return in
}

// evacuate gives a guest of a to b by the records and in Placement, as an evacuation does.
func (b *fleetBench) evacuate(id string) {
	b.Helper()
	ctx, records := b.Context(), fleet.New(b.store.Client("test"), b.rt)
	_, err := records.DeclareDead(ctx, fleet.Death{Host: "host-a", Proof: fleet.ProofOperator, By: "operator:o", Because: "it looked so"})
	b.must(err)
	e := death.Evacuations{Records: func() (*fleet.Records, error) { return records, nil }, Self: "host-b", Prove: func(ctx context.Context, host, _ string) (fleet.Death, uint64, error) { return records.Dead(ctx, host) }}
	g, err := e.Lost(ctx, id)
	b.must(err)
	had, err := b.place.Allocations(ctx, id)
	b.must(err)
	there, half := had.Clone(), had.Clone()
	there.Allocations = map[string]placementclient.Resources{b.up["host-b"].uuid: {"VCPU": 1, "MEMORY_MB": 64}}
	half.ConsumerGeneration, half.ConsumerType = nil, placementclient.ConsumerMigration
	b.must(b.place.PostAllocations(ctx, map[string]placementclient.Allocations{id: there, returning: half}))
	ref := migration.Ref{Migration: returning, Instance: id, Attempt: 1}
	commit, err := e.TakeOver(ctx, ref, g, "host-b")
	b.must(err)
	if diff := cmp.Diff(migration.Commit{Instance: id, Migration: returning, Attempt: 1, Epoch: 2, From: "host-a", To: "host-b", Power: migration.PowerRunning}, commit); diff != "" {
		b.Errorf("commit (-want +got):\n%s", diff)
	}
	if cleaned, err := e.Cleaned(ctx, ref, "host-a"); cleaned || err != nil {
		b.Errorf("cleaned before it came back: %t, %v", cleaned, err)
	}
}

// lives has host b write the guest as its own.
func (b *fleetBench) lives(id string) {
	b.Helper()
	in := b.record(id)
	var g migration.Guest
	b.must(json.Unmarshal(in.Guest, &g))
	g.Epoch = in.Epoch
	var err error
	in.Guest, err = json.Marshal(g)
	b.must(err)
	_, err = fleet.New(b.store.Client("test"), b.rt).PutInstance(b.Context(), in)
	b.must(err)
}

func (b *fleetBench) running(name string) []string {
	b.Helper()
	var out []string
	for _, d := range b.domains(name) {
		if d.Active() {
			out = append(out, d.Name)
		}
	}
	slices.Sort(out)
	return out
}

func TestKeeper_KeepsRecordsAndWritesNothingInASteadyState(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a")
	a := b.up["host-a"]
	id, other := b.guest("host-a", "web"), b.guest("host-a", "db")
	b.round("host-a")
	in := b.record(id)
	var g migration.Guest
	b.must(json.Unmarshal(in.Guest, &g))
	if in.Host != "host-a" || in.Epoch != 1 || in.Name != "web" || in.Moving != "" || g.UUID != id || g.XML == "" || len(g.Allocations) == 0 {
		t.Errorf("record %+v of %+v", in, g)
	}
	hosts, err := fleetService{a}.Hosts(t.Context())
	b.must(err)
	if len(hosts.Hosts) != 1 || hosts.Hosts[0].Guests != 2 || hosts.Hosts[0].Boot != b.rt.Boot().ID {
		t.Errorf("hosts %+v", hosts)
	}
	writes, commits := 0, a.db.Commits()
	b.before = func(c fleettest.Call) fleettest.Outcome {
		if c.Write {
			writes++
		}
		return fleettest.Answered
	}
	for range 3 {
		clear(a.keeper.owned) // each is looked at again
		b.round("host-a")
	}
	if writes != 0 || a.db.Commits() != commits {
		t.Errorf("written in a steady state: %d times, ledger %d", writes, a.db.Commits()-commits)
	}
	a = b.start("host-a")
	commits = a.db.Commits()
	b.round("host-a")
	if writes != 0 || a.db.Commits() != commits {
		t.Errorf("written after a start: %d times, ledger %d", writes, a.db.Commits()-commits)
	}
	_, err = a.host.Delete(t.Context(), other, host.DeleteOptions{Force: true})
	b.must(err)
	b.round("host-a")
	if _, _, err := a.keeper.records.Instance(t.Context(), other); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the record of a deleted guest: %v", err)
	}
	// One guest that cannot be read keeps no other from its turn.
	third := b.guest("host-a", "third")
	b.fakes.Host("host-a").Fault(func(call, uuid string) error {
		if call == "XML" && uuid == id {
			return fault.New(fault.Internal, "no document")
		}
		return nil
	})
	clear(a.keeper.owned)
	b.round("host-a")
	b.record(third)
	if c, _ := a.keeper.condition(); !strings.Contains(c.Detail, "web") {
		t.Errorf("condition %+v", c)
	}
	// One that is worked on is looked at again soon, and nobody is told.
	b.fakes.Host("host-a").Fault(func(call, uuid string) error {
		if call == "XML" && uuid == id {
			return fault.New(fault.Busy, "it is being started")
		}
		return nil
	})
	clear(a.keeper.owned)
	b.round("host-a")
	if c, _ := a.keeper.condition(); len(c.Reasons) > 0 || a.keeper.owned[id].next > b.rt.Boot().Since+keepEvery {
		t.Errorf("condition %+v, %+v", c, a.keeper.owned[id])
	}
}

// TestKeeper_NamesGuestsThatOnlyTheRecordsHave by two looks, since one alone finds those, too, that
// leave meanwhile; and for as long as they are there.
func TestKeeper_NamesGuestsThatOnlyTheRecordsHave(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a")
	k := b.up["host-a"].keeper
	b.round("host-a")
	named := func() bool {
		k.seekAt = 0
		b.round("host-a")
		c, _ := k.condition()
		return strings.Contains(c.Detail, "lost")
	}
	records, id := fleet.New(b.store.Client("test"), b.rt), uuid.NewString()
	put := func() {
		_, err := records.PutInstance(t.Context(), fleet.Instance{UUID: id, Name: "lost", Host: "host-a", Epoch: 1})
		b.must(err)
	}
	drop := func() { b.must(records.DropInstance(t.Context(), id, "host-a", 1)) }
	put()
	k.seek = true
	if named() {
		t.Error("one look is taken for the truth")
	}
	drop()
	if named() || k.seek {
		t.Error("it has left, and is looked for still")
	}
	put()
	k.seek = true
	if named(); !named() {
		t.Error("it is not named")
	}
	b.before = func(fleettest.Call) fleettest.Outcome { return fleettest.Refused }
	k.seekAt = 0
	k.seekOrphans(t.Context())
	if c, _ := k.condition(); !strings.Contains(c.Detail, "lost") || !k.seek {
		t.Errorf("a look that failed has seen that it is gone: %+v", c)
	}
	b.before = nil
	drop()
	if named() || k.seek {
		t.Error("it is named for ever")
	}
}

func TestKeeper_AHostThatComesBackGivesWayBeforeItStartsAnything(t *testing.T) {
	t.Parallel()
	for _, rebooted := range []bool{true, false} {
		t.Run(fmt.Sprintf("rebooted %t", rebooted), func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			gone, stays := b.guest("host-a", "gone"), b.guest("host-a", "stays")
			b.round("host-a")
			b.round("host-b")
			b.evacuate(gone)
			a := b.up["host-a"]
			if rebooted {
				a = b.reboot("host-a")
				b.store.SetDown(true)
				a.keeper.round(t.Context())
				if got := b.running("host-a"); len(got) > 0 {
					t.Errorf("started without the records: %v", got)
				}
				for _, id := range []string{gone, stays} {
					if err := a.host.Start(t.Context(), id, false); !fault.HasReason(err, "not_confirmed") {
						t.Errorf("start: %v", err)
					}
					b.must(a.guardian.owners.Sync())
					if o, _, _ := a.guardian.files.Owner(id); o.State != guard.OwnerAwaits {
						t.Errorf("owner file %+v", o)
					}
				}
				if c, _ := a.keeper.condition(); c.Health == "ok" || len(c.Reasons) < 3 {
					t.Errorf("condition %+v", c)
				}
				b.store.SetDown(false)
				// With no agent, and no owner file of this boot, an adopted guest has its note.
				b.must(a.guardian.files.DropOwner(gone))
				if !a.guardian.files.HasOwner(gone) {
					t.Error("a hook without an agent takes it for unmanaged")
				}
			}
			b.round("host-a")
			if got := b.running("host-a"); !slices.Equal(got, []string{"stays"}) {
				t.Errorf("running: %v", got)
			}
			if inst, _ := a.tracker.Instance(gone); inst.Token != (claims.Token{Epoch: 2, State: claims.TokenSurrendered, Holder: "host-b", Migration: returning}) {
				t.Errorf("token %+v", inst.Token)
			}
			if _, there := a.tracker.ByOwner(claims.Owner{Instance: gone, Kind: claims.KindInstance}); !there {
				t.Error("its claim went before its new host had it")
			}
			if deaths, err := a.keeper.records.Deaths(t.Context()); len(deaths) > 0 || err != nil {
				t.Errorf("deaths %v, %v", deaths, err)
			}
			b.lives(gone)
			b.round("host-a")
			b.clean(gone)
		})
	}
}

// clean requires that nothing of a guest is left on host a, nor of its evacuation.
func (b *fleetBench) clean(id string) {
	b.Helper()
	a := b.up["host-a"]
	if _, known := a.tracker.Instance(id); known || len(a.tracker.ByInstance(id)) > 0 {
		b.Error("the ledger has it still")
	}
	b.must(a.guardian.files.DropOwner(id))
	b.round("host-a")
	if a.guardian.files.HasOwner(id) {
		b.Error("it counts as managed still")
	}
	if slices.ContainsFunc(b.domains("host-a"), func(d driver.Domain) bool { return d.UUID == id }) {
		b.Error("its definition is there still")
	}
	for consumer, want := range map[string]map[string]placementclient.Resources{id: {b.up["host-b"].uuid: {"VCPU": 1, "MEMORY_MB": 64}}, returning: {}} {
		got, err := b.place.Allocations(b.Context(), consumer)
		b.must(err)
		if len(got.Allocations)+len(want) > 0 && !cmp.Equal(got.Allocations, want) {
			b.Errorf("%s holds %v, want %v", consumer, got.Allocations, want)
		}
	}
	if left, err := a.keeper.records.Evacuated(b.Context(), "host-a"); len(left) > 0 || err != nil {
		b.Errorf("evacuated: %v, %v", left, err)
	}
	if left, err := a.host.GivingWay(); len(left) > 0 || err != nil {
		b.Errorf("remembered: %v, %v", left, err)
	}
}

// TestKeeper_ComesBackWhateverCallFails has each call to the store refused, or its answer lost, and the
// agent killed after: in the end the guest is b's alone.
func TestKeeper_ComesBackWhateverCallFails(t *testing.T) {
	t.Parallel()
	for _, outcome := range []fleettest.Outcome{fleettest.Refused, fleettest.Lost} {
		b := newFleetBench(t, "host-a", "host-b")
		for nth, reached := 1, true; reached; nth++ {
			reached = false
			b.before = nil
			gone := b.guest("host-a", fmt.Sprintf("gone-%d-%d", outcome, nth))
			b.round("host-a")
			b.round("host-b")
			b.evacuate(gone)
			b.lives(gone)
			n := 0
			b.before = func(c fleettest.Call) fleettest.Outcome {
				if n++; n == nth {
					reached = true
					return outcome
				}
				return fleettest.Answered
			}
			clear(b.up["host-a"].keeper.owned)
			b.up["host-a"].keeper.looked = false
			b.up["host-a"].keeper.round(t.Context())
			b.start("host-a")
			for range 2 {
				b.up["host-a"].keeper.round(t.Context())
			}
			b.before = nil
			b.clean(gone)
			if got := b.running("host-a"); len(got) > 0 {
				t.Errorf("%d: runs still: %v", nth, got)
			}
			// The next round's is another guest of the same hosts.
			b.must(fleet.New(b.store.Client("test"), b.rt).DropInstance(t.Context(), gone, "host-b", 2))
			b.must(b.place.DeleteAllocations(t.Context(), gone))
			if nth > 40 {
				t.Fatal("it does not end")
			}
		}
	}
}

// TestKeeper_HoldsWhatIsInDoubt: two have one epoch, the ledger is of yesterday, or the records are, as
// Placement says. None is started, each is named, and an operator's word starts it.
func TestKeeper_HoldsWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		make func(b *fleetBench, records *fleet.Records, in fleet.Instance)
		held bool
		end  string // which record stands at the end
	}{
		"two have one epoch": {func(b *fleetBench, records *fleet.Records, in fleet.Instance) {
			in.Host = "host-b"
			b.must(records.DropInstance(b.Context(), in.UUID, "host-a", in.Epoch))
			_, err := records.PutInstance(b.Context(), in)
			b.must(err)
		}, true, "host-b 1"},
		"the ledger is of yesterday": {func(b *fleetBench, records *fleet.Records, in fleet.Instance) {
			in.Epoch = 3
			_, err := records.PutInstance(b.Context(), in)
			b.must(err)
		}, true, "host-a 3"},
		"the records are of yesterday": {func(b *fleetBench, _ *fleet.Records, in fleet.Instance) {
			now, err := b.place.Allocations(b.Context(), in.UUID)
			b.must(err)
			now.Allocations = map[string]placementclient.Resources{b.up["host-b"].uuid: {"VCPU": 1}}
			b.must(b.place.PutAllocations(b.Context(), in.UUID, now))
		}, true, "host-a 1"},
		"the record is lost": {func(b *fleetBench, records *fleet.Records, in fleet.Instance) {
			b.must(records.DropInstance(b.Context(), in.UUID, "host-a", in.Epoch))
		}, false, "host-a 1"},
		"the record of another's guest is garbled": {func(b *fleetBench, _ *fleet.Records, _ fleet.Instance) {
			b.must(b.store.Client("test").Commit(b.Context(), nil, fleet.Change{Key: "instances/" + returning, Value: []byte(`{"epoch": "of a later version"}`)}))
		}, false, "host-a 1"},
		"the record is older": {func(b *fleetBench, records *fleet.Records, in fleet.Instance) {
			b.must(records.DropInstance(b.Context(), in.UUID, "host-a", in.Epoch))
			in.Host, in.Epoch = "host-b", 0
			_, err := records.PutInstance(b.Context(), in)
			b.must(err)
		}, false, "host-a 1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			id := b.guest("host-a", "web")
			b.round("host-a")
			tt.make(b, fleet.New(b.store.Client("test"), b.rt), b.record(id))
			a := b.reboot("host-a")
			b.round("host-a")
			b.round("host-a")
			if got := b.running("host-a"); (len(got) == 0) != tt.held {
				t.Errorf("running: %v", got)
			}
			if held := a.host.Held(); (held[id] != "") != tt.held {
				t.Errorf("held: %v", held)
			}
			c, _ := a.keeper.condition()
			if named := strings.Contains(c.Detail, "web is in doubt"); named != tt.held {
				t.Errorf("condition %+v", c)
			}
			if in := b.record(id); fmt.Sprintf("%s %d", in.Host, in.Epoch) != tt.end {
				t.Errorf("record of %s, epoch %d; want %s", in.Host, in.Epoch, tt.end)
			}
			if tt.held {
				b.must(a.host.ConfirmByHand(t.Context(), id, "I have looked", "operator:o"))
				b.must(a.host.Start(t.Context(), id, false))
				b.round("host-a")
				if got := b.running("host-a"); len(got) != 1 {
					t.Errorf("after the operator's word: %v", got)
				}
			}
		})
	}
}

// TestKeeper_ARecordWithoutADeath_EndsNothingThatRuns: any host can write one to an etcd, and the
// record of an evacuation with it. The instance is held by name, until an operator says whose it is.
func TestKeeper_ARecordWithoutADeath_EndsNothingThatRuns(t *testing.T) {
	t.Parallel()
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("kept %t", kept), func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			id := b.guest("host-a", "web")
			b.round("host-a")
			in := b.record(id)
			in.Host, in.Epoch, in.Migration, in.Attempt = "host-b", 9, returning, 1
			raw, err := json.Marshal(in)
			b.must(err)
			forged, err := json.Marshal(fleet.Evacuated{Migration: returning, Attempt: 1, Instance: id, Name: "web", Source: "host-a", To: "host-b", Epoch: 9})
			b.must(err)
			b.must(b.store.Client("hostile").Commit(t.Context(), nil, fleet.Change{Key: "instances/" + id, Value: raw},
				fleet.Change{Key: "evacuated/host-a/" + returning, Value: forged}))
			a := b.up["host-a"]
			a.keeper.looked = false
			for range 3 {
				b.round("host-a")
			}
			if got := b.running("host-a"); !slices.Equal(got, []string{"web"}) {
				t.Fatalf("running: %v", got)
			}
			if inst, _ := a.tracker.Instance(id); inst.Token.State != claims.TokenHere || inst.Token.Epoch != 1 {
				t.Errorf("token %+v", inst.Token)
			}
			if why := a.host.Held()[id]; !strings.Contains(why, "virsh destroy web") {
				t.Errorf("held: %q", why)
			}
			if c, _ := a.keeper.condition(); !strings.Contains(c.Detail, "web is in doubt") {
				t.Errorf("condition %+v", c)
			}
			if kept {
				b.must(a.host.ConfirmByHand(t.Context(), id, "host-b is hostile", "operator:o"))
			} else {
				b.must(a.driver.Destroy(t.Context(), id))
			}
			b.round("host-a")
			if got := b.running("host-a"); (len(got) == 1) != kept {
				t.Errorf("running: %v", got)
			}
			if inst, _ := a.tracker.Instance(id); inst.Token.State != claims.TokenHere {
				t.Errorf("one record has given it up: token %+v", inst.Token)
			}
			if !kept {
				if _, err := a.host.Delete(t.Context(), "web", host.DeleteOptions{Disks: true}); !fault.HasReason(err, "not_confirmed") {
					t.Errorf("its disks are asked for: %v", err)
				}
				if why := a.host.Held()[id]; !strings.HasSuffix(why, "host-b, berth instance delete web here (its disks stay)") {
					t.Errorf("held: %q", why)
				}
				_, err := a.host.Delete(t.Context(), "web", host.DeleteOptions{})
				b.must(err)
				b.round("host-a")
				if c, _ := a.keeper.condition(); c.Health != "ok" {
					t.Errorf("condition %+v", c)
				}
				if in := b.record(id); in.Host != "host-b" || in.Epoch != 9 {
					t.Errorf("record %s", briefly(in))
				}
				return
			}
			// The decision outlives the boot: nothing is given up. Where a death of this host is known, the
			// evacuation may be later than the decision, so that nothing is started either.
			b.must(a.driver.Destroy(t.Context(), id))
			b.must(a.keeper.noteDeath(t.Context()))
			b.round("host-a")
			a = b.reboot("host-a")
			b.round("host-a")
			b.round("host-a")
			if inst, _ := a.tracker.Instance(id); inst.Token.State != claims.TokenHere || inst.Token.Epoch != 1 {
				t.Errorf("after a reboot: token %+v", inst.Token)
			}
			if why := a.host.Held()[id]; !strings.Contains(why, "host-b") {
				t.Errorf("held: %q", why)
			}
			if got := b.running("host-a"); len(got) != 0 {
				t.Errorf("after a reboot: running %v", got)
			}
		})
	}
}

// TestKeeper_AnOlderDecision_StartsNothingThatWasEvacuatedSince: also where the evacuation's record is
// gone, or cannot be read, and Placement does not know the instance. What the reason says to type ends it.
func TestKeeper_AnOlderDecision_StartsNothingThatWasEvacuatedSince(t *testing.T) {
	t.Parallel()
	for name, evacuation := range map[string][]byte{"gone": nil, "unreadable": []byte(`{"epoch": "two"}`)} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			id := b.guest("host-a", "web")
			b.round("host-a")
			a := b.up["host-a"]
			inst, _ := a.tracker.Instance(id)
			host.NoteRecorded(a.host, inst, "host-b", 2)
			b.must(host.KeepOwner(t.Context(), a.host, id, "host-b was in error", "operator:o"))
			b.evacuate(id)
			b.must(b.store.Client("test").Commit(t.Context(), nil, fleet.Change{Key: "evacuated/host-a/" + returning, Value: evacuation}))
			b.lives(id)
			b.must(b.place.DeleteAllocations(t.Context(), id)) // Placement does not say
			a = b.reboot("host-a")
			for range 3 {
				b.round("host-a")
			}
			if got := b.running("host-a"); len(got) > 0 {
				t.Fatalf("runs on both: %v", got)
			}
			why := a.host.Held()[id]
			if !strings.Contains(why, "berth instance delete web") || strings.Contains(why, "web --force on host-a") {
				t.Errorf("held: %q", why)
			}
		})
	}
}

// TestKeeper_ItsDeath_IsForgottenOnceNothingIsLeftToGiveUp: neither before, while a record may hide what
// was evacuated, nor later for what is only left to clean up.
func TestKeeper_ItsDeath_IsForgottenOnceNothingIsLeftToGiveUp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		arrange func(b *fleetBench, k *keeper, id string)
		stays   bool
	}{
		"all is well": {func(*fleetBench, *keeper, string) {}, false},
		"a record cannot be read": {func(b *fleetBench, _ *keeper, id string) {
			b.must(b.store.Client("test").Commit(b.Context(), nil, fleet.Change{Key: "instances/" + id, Value: []byte(`{"epoch": "two"}`)}))
		}, true},
		"an evacuation cannot be read": {func(b *fleetBench, _ *keeper, _ string) {
			b.must(b.store.Client("test").Commit(b.Context(), nil, fleet.Change{Key: "evacuated/host-a/" + returning, Value: []byte(`{"epoch": "two"}`)}))
		}, false},
		"the store is not believed": {func(_ *fleetBench, k *keeper, _ string) { k.trust.memory.Unproven = true }, true},
		"what came back is not cleaned up after": {func(b *fleetBench, _ *keeper, id string) {
			raw, err := json.Marshal(fleet.Evacuated{Migration: returning, Attempt: 1, Instance: id, Name: "web", Source: "host-a", To: "host-b", Epoch: 1})
			b.must(err)
			b.must(b.store.Client("test").Commit(b.Context(), nil, fleet.Change{Key: "evacuated/host-a/" + returning, Value: raw}))
			b.before = func(c fleettest.Call) fleettest.Outcome {
				if strings.HasPrefix(c.Key, "evacuated/") && c.Write {
					return fleettest.Refused
				}
				return fleettest.Answered
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			id := b.guest("host-a", "web")
			b.round("host-a")
			k := b.up["host-a"].keeper
			b.must(k.noteDeath(t.Context()))
			tt.arrange(b, k, id)
			k.looked, k.suspect = false, true
			if err := k.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			if k.trust.memory.Died != tt.stays {
				t.Errorf("died %t, want %t", k.trust.memory.Died, tt.stays)
			}
		})
	}
}

// TestFleet_ForgetGivesUpWhatADeadHostHolds, and refuses while guests of it are left, or it lives.
// A record that is garbled costs its own guest what a record gives, and nobody else anything: the
// rest is listed, kept and evacuated, and who asks is told which it is.
func TestFleet_PassesOverRecordsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	gone, garbled := b.guest("host-a", "gone"), b.guest("host-a", "garbled")
	b.round("host-a")
	b.round("host-b")
	write := func(key, value string) {
		t.Helper()
		b.must(b.store.Client("test").Commit(t.Context(), nil, fleet.Change{Key: key, Value: []byte(value)}))
	}
	b.evacuate(gone)
	write("instances/"+garbled, `{"instance_uuid":`)
	write("hosts/host-c", `[]`)
	write("deaths/host-d", `{"host":"host-e"}`)
	write("evacuated/host-a/00000000-0000-4000-8000-000000000001", `7`)
	want := []string{"hosts/host-c", "deaths/host-d", "instances/" + garbled, "evacuated/host-a/00000000-0000-4000-8000-000000000001"}

	s := fleetService{b.up["host-b"]}
	list, err := s.Hosts(t.Context())
	b.must(err)
	var names []string
	for _, h := range list.Hosts {
		names = append(names, h.Name)
	}
	if diff := cmp.Diff([]string{"host-a", "host-b", "host-c", "host-d"}, names); diff != "" {
		t.Errorf("hosts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, list.Unreadable); diff != "" {
		t.Errorf("unreadable (-want +got):\n%s", diff)
	}
	if dead := list.Hosts[0]; dead.Death == nil || len(dead.ToCleanUp) != 1 {
		t.Errorf("host-a: %+v", dead)
	}
	if in, err := s.Instance(t.Context(), "gone"); err != nil || in.UUID != gone {
		t.Errorf("by its name: %+v, %v", in, err)
	}
	if _, err := s.Instance(t.Context(), "garbled"); !fault.HasReason(err, fleet.ReasonUnreadable) {
		t.Errorf("a name that the garbled one may have: %v", err)
	}
	lost, err := drained{b.up["host-b"]}.lost(t.Context(), "host-a")
	if err != nil || len(lost) != 1 || lost[0].Instance != garbled || len(lost[0].Blocked) != 1 {
		t.Errorf("left to be evacuated: %+v, %v", lost, err)
	}
	if _, err := s.Forget(t.Context(), "host-a", true, "operator:o"); !fault.HasReason(err, fleet.ReasonUnreadable) {
		t.Errorf("a host is forgotten whose guests are not known: %v", err)
	}
	records := fleet.New(b.store.Client("test"), b.rt)
	e := death.Evacuations{Records: func() (*fleet.Records, error) { return records, nil }, Self: "host-b"}
	if cleaned, err := e.Cleaned(t.Context(), migration.Ref{Migration: returning, Instance: gone, Attempt: 1}, "host-a"); cleaned || err != nil {
		t.Errorf("cleaned before it came back: %t, %v", cleaned, err)
	}

	// Its own record and its death are garbled too when it comes back, and it holds that guest alone.
	other := b.guest("host-a", "other")
	write("hosts/host-a", `"`)
	write("deaths/host-a", `"`)
	b.lives(gone)
	b.round("host-a")
	b.round("host-a")
	h := b.up["host-a"].host
	if held := h.Held(); len(held) != 1 || held[garbled] == "" || !h.BootConfirmed() {
		t.Errorf("held %v, confirmed %t", held, h.BootConfirmed())
	}
	if in := b.record(other); in.Host != "host-a" {
		t.Errorf("a guest beside: %+v", in)
	}
	if got, err := records.Host(t.Context(), "host-a"); err != nil || got.Boot != b.rt.Boot().ID {
		t.Errorf("its own record: %+v, %v", got, err)
	}
	if c, _ := b.up["host-a"].keeper.condition(); !slices.ContainsFunc(c.Reasons, func(r fault.Reason) bool {
		return r.Code == fleet.ReasonUnreadable && strings.Contains(r.Have, garbled)
	}) {
		t.Errorf("condition %+v", c)
	}
}

func TestFleet_ForgetGivesUpWhatADeadHostHolds(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	gone, left := b.guest("host-a", "gone"), b.guest("host-a", "left")
	b.round("host-a")
	b.round("host-b")
	forget := func(abandon bool) (any, error) {
		return fleetService{b.up["host-b"]}.Forget(t.Context(), "host-a", abandon, "operator:o")
	}
	if _, err := forget(false); !fault.HasReason(err, "not_dead") {
		t.Errorf("a host that lives: %v", err)
	}
	b.evacuate(gone)
	if _, err := forget(false); !fault.HasReason(err, "guest_not_evacuated") || !strings.Contains(err.Error(), "left") {
		t.Errorf("with a guest left: %v", err)
	}
	provider := b.up["host-a"].uuid
	out, err := forget(true)
	b.must(err)
	if got := fmt.Sprintf("%+v", out); !strings.Contains(got, "Evacuations:["+returning+"]") || !strings.Contains(got, left) || !strings.Contains(got, "ProviderRemoved:true") {
		t.Errorf("forgotten: %s", got)
	}
	for _, consumer := range []string{returning, left} {
		if held, err := b.place.Allocations(t.Context(), consumer); len(held.Allocations) > 0 || err != nil {
			t.Errorf("%s holds %v, %v", consumer, held.Allocations, err)
		}
	}
	if _, err := b.place.Provider(t.Context(), provider); fault.KindOf(err) != fault.NotFound {
		t.Errorf("the provider: %v", err)
	}
	if _, err := forget(true); err != nil {
		t.Errorf("forgotten again: %v", err)
	}
	if in := b.record(gone); in.Host != "host-b" || in.Epoch != 2 {
		t.Errorf("the evacuated guest's record: %+v", in)
	}
}
