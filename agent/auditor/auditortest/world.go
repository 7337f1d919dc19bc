// Package auditortest holds what an auditor must do about each kind of leak, against
// any Placement: the embedded one and OpenStack's. The other parties are values: a
// ledger, a list of domains, and answers of other hosts.
//
// It makes providers of its own, with new uuids for each World, so that many can
// share one service.
package auditortest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

// Class is of the PCI devices of a World.
const Class = "CUSTOM_PCI_8086_1520"

// devices is how many a World has, on a child of its flat tree: enough for three guests of
// two each, and for one that each of five others holds beside them.
const devices = 12

// World is one host, with another beside it in Placement.
type World struct {
	t      testing.TB
	Client *placementclient.Client
	Name   string
	Tree   *inventory.Tree
	Stands func() *inventory.Tree // what the reporter says of it; nil for Tree
	PCI    string                 // uuid of the child with the devices
	// Other is the root of another host, OtherName its name.
	Other, OtherName string
	Auditor          *auditor.Auditor

	// mu guards what the parties say; nothing is called under it.
	mu      sync.Mutex
	ledger  audit.Ledger
	domains []audit.LibvirtDomain
	Silent  bool                     // libvirt does not answer
	Answers map[string]auditor.Known // of the other host, by consumer
	Mute    bool                     // the other host does not answer
	// Between is called by each reading of the ledger, and each question to the other
	// host, between a judgement and its write.
	Between func()
	Asked   func() // called by each question to the other host
	Refuse  error  // why nothing may be written
	Reports int    // how often the tree was reported
	// Reported is called by each report; nil for nothing.
	Reported func()
	ahead    atomic.Int64 // of the boot clock, see Pass
	alone    bool
	free     []topology.PCIAddress
}

// NewWorld makes the providers of two hosts and an auditor of the first.
func NewWorld(t testing.TB, client *placementclient.Client) *World {
	t.Helper()
	system := &runtime.System{}
	t.Cleanup(system.Wait)
	w := &World{t: t, Client: client, Answers: map[string]auditor.Known{}}
	rt := clock{system, &w.ahead}
	ctx := t.Context()
	root, other := uuid.NewString(), uuid.NewString()
	w.Name, w.OtherName, w.Other = "host-"+root[:8], "host-"+other[:8], other
	w.PCI = inventory.ChildUUID(root, "pci")
	w.must(client.EnsureResourceClass(ctx, Class))
	inv := func(total int64) placementclient.Inventory {
		return placementclient.Inventory{Total: total, AllocationRatio: 1}.WithDefaults()
	}
	host := map[string]placementclient.Inventory{"VCPU": inv(256), "MEMORY_MB": inv(65536), "DISK_GB": inv(1000)}
	w.provide(root, w.Name, "", host)
	w.provide(w.PCI, w.Name+"_pci", root, map[string]placementclient.Inventory{Class: inv(devices)})
	w.provide(other, w.OtherName, "", host)
	w.Tree = &inventory.Tree{
		Shape: inventory.Flat, Disk: root, Devices: map[topology.PCIAddress]inventory.Home{},
		Providers: []inventory.Provider{
			{UUID: root, Name: w.Name, Inventories: host},
			{UUID: w.PCI, Name: w.Name + "_pci", Parent: root, Inventories: map[string]placementclient.Inventory{Class: inv(devices)}},
		},
	}
	for i := range devices {
		at := topology.PCIAddress{Bus: 0x3b, Device: uint8(2 + i/8), Function: uint8(i % 8)}
		w.Tree.Devices[at] = inventory.Home{Provider: w.PCI, Class: Class}
		w.free = append(w.free, at)
	}
	w.Auditor = auditor.New(auditor.Options{
		Host: w.Name, Placement: client, Runtime: rt, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Tree: func() (*inventory.Tree, bool) {
			if w.Stands != nil {
				return w.Stands(), true
			}
			return w.Tree, true
		}, Ledger: w.read,
		Domains: w.list, Peers: peers{w}, Interval: time.Hour,
		Report: w.report, Refuse: func() error { return w.Refuse },
		Alone: func(ctx context.Context, _ string, f func(context.Context) error) error {
			w.alone = true
			defer func() { w.alone = false }()
			return f(ctx)
		},
	})
	return w
}

// clock is the system's, with a boot clock that can be set ahead.
type clock struct {
	*runtime.System
	ahead *atomic.Int64
}

func (c clock) Boot() runtime.BootTime {
	b := c.System.Boot()
	b.Since += time.Duration(c.ahead.Load())
	return b
}

// Pass has time go by.
func (w *World) Pass(d time.Duration) { w.ahead.Add(int64(d)) }

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *World) provide(id, name, parent string, inv map[string]placementclient.Inventory) {
	w.t.Helper()
	p, err := w.Client.CreateProvider(w.t.Context(), placementclient.NewProvider{UUID: id, Name: name, ParentProviderUUID: parent})
	w.must(err)
	_, err = w.Client.PutInventories(w.t.Context(), id, placementclient.Inventories{Generation: p.Generation, Inventories: inv})
	w.must(err)
}

// Third adds the root of one more host, that does not answer.
func (w *World) Third() string {
	w.t.Helper()
	id := uuid.NewString()
	w.provide(id, "host-"+id[:8], "", w.Tree.Providers[0].Inventories)
	return id
}

// OtherChild adds a child with a device below the other host's root.
func (w *World) OtherChild() string {
	w.t.Helper()
	id := uuid.NewString()
	w.provide(id, "child-"+id[:8], w.Other, map[string]placementclient.Inventory{Class: placementclient.Inventory{Total: 1, AllocationRatio: 1}.WithDefaults()})
	return id
}

// Provide has a provider that gives nothing give this.
func (w *World) Provide(rp, class string, total int64) {
	w.t.Helper()
	p, err := w.Client.Provider(w.t.Context(), rp)
	w.must(err)
	inv := map[string]placementclient.Inventory{class: placementclient.Inventory{Total: total, AllocationRatio: 1}.WithDefaults()}
	_, err = w.Client.PutInventories(w.t.Context(), rp, placementclient.Inventories{Generation: p.Generation, Inventories: inv})
	w.must(err)
}

// Runs has libvirt run a domain that nobody manages.
func (w *World) Runs(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.domains = append(w.domains, audit.LibvirtDomain{UUID: id, Name: "stranger-" + id[:4], Active: true})
}

// Child adds a provider below the root, with nothing to give.
func (w *World) Child(suffix string) {
	w.t.Helper()
	p := inventory.Provider{UUID: inventory.ChildUUID(w.Tree.Root(), suffix), Name: w.Name + "_" + suffix, Parent: w.Tree.Root()}
	_, err := w.Client.CreateProvider(w.t.Context(), placementclient.NewProvider{UUID: p.UUID, Name: p.Name, ParentProviderUUID: p.Parent})
	w.must(err)
	w.Tree.Providers = append(w.Tree.Providers, p)
}

func (w *World) report(context.Context) error {
	w.Reports++
	if w.Reported != nil {
		w.Reported()
	}
	return nil
}

func (w *World) between() {
	if w.Between != nil && w.alone {
		w.Between()
	}
}

func (w *World) read() audit.Ledger {
	w.between()
	w.mu.Lock()
	defer w.mu.Unlock()
	out := audit.Ledger{
		Instances: slices.Clone(w.ledger.Instances), Claims: slices.Clone(w.ledger.Claims), Moves: slices.Clone(w.ledger.Moves),
	}
	return out
}

func (w *World) list(context.Context) ([]audit.LibvirtDomain, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Silent {
		return nil, fault.New(fault.Unavailable, "libvirt does not answer")
	}
	return slices.Clone(w.domains), nil
}

type peers struct{ w *World }

func (p peers) Hosts(context.Context) ([]string, error) { return []string{p.w.OtherName}, nil }

func (p peers) Knows(_ context.Context, host string, consumers []string) ([]auditor.Known, error) {
	p.w.between()
	if p.w.Asked != nil {
		p.w.Asked()
	}
	if p.w.Mute || host != p.w.OtherName {
		return nil, fault.New(fault.Unavailable, "host %s does not answer", host)
	}
	var out []auditor.Known
	for _, c := range consumers {
		k := p.w.Answers[c]
		k.Consumer = c
		out = append(out, k)
	}
	return out, nil
}

// Guest is one of this host: recorded, claimed, running, counted. PCI is how many
// devices it has.
func (w *World) Guest(pci int) string {
	w.t.Helper()
	id := uuid.NewString()
	held := inventory.Held{Resources: topology.Resources{VCPUs: 2, MemoryMB: 512, DiskGB: 5}}
	w.mu.Lock()
	for range pci {
		held.Assignment.Devices = append(held.Assignment.Devices, topology.AssignedDevice{Address: w.free[0]})
		w.free = w.free[1:]
	}
	w.ledger.Instances = append(w.ledger.Instances, audit.Instance{UUID: id, Name: "guest-" + id[:4], ProjectID: id, UserID: id, Here: true})
	w.ledger.Claims = append(w.ledger.Claims, audit.Claim{Instance: id, State: audit.ClaimBound, Held: held})
	w.domains = append(w.domains, audit.LibvirtDomain{UUID: id, Name: "guest-" + id[:4], Active: true})
	w.mu.Unlock()
	w.Put(id, placementclient.ConsumerInstance, w.Claimed(id))
	return id
}

// Claimed is what an instance's claim stands for.
func (w *World) Claimed(id string) map[string]placementclient.Resources {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.ledger.Claims {
		if c.Instance == id {
			return w.Tree.Place(c.Held, nil)
		}
	}
	return nil
}

// Put has a consumer hold this, whatever it held.
func (w *World) Put(id, kind string, all map[string]placementclient.Resources) {
	w.t.Helper()
	now, err := w.Client.Allocations(w.t.Context(), id)
	w.must(err)
	if !now.Exists() && len(all) == 0 {
		return
	}
	w.must(w.Client.PutAllocations(w.t.Context(), id, placementclient.Allocations{
		Allocations: all, ProjectID: id, UserID: id, ConsumerGeneration: now.ConsumerGeneration, ConsumerType: kind,
	}))
}

// Held is what Placement has of a consumer.
func (w *World) Held(id string) map[string]placementclient.Resources {
	w.t.Helper()
	got, err := w.Client.Allocations(w.t.Context(), id)
	w.must(err)
	return got.Allocations
}

// Stranger is a consumer that nobody here knows.
func (w *World) Stranger(kind string, all map[string]placementclient.Resources) string {
	w.t.Helper()
	id := uuid.NewString()
	w.Put(id, kind, all)
	return id
}

// Small is an amount of a provider with a host's classes.
func Small(rp string) map[string]placementclient.Resources {
	return map[string]placementclient.Resources{rp: {"VCPU": 1, "MEMORY_MB": 128}}
}

// Both joins what is held of several providers.
func Both(a, b map[string]placementclient.Resources) map[string]placementclient.Resources {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// Leave has a guest of this host gone to the other one, with a move that is over.
func (w *World) Leave(id string, over bool) (migration string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	migration = uuid.NewString()
	for i := range w.ledger.Instances {
		if w.ledger.Instances[i].UUID == id {
			w.ledger.Instances[i].Here, w.ledger.Instances[i].Holder, w.ledger.Instances[i].Migration = false, w.OtherName, migration
		}
	}
	w.ledger.Moves = append(w.ledger.Moves, audit.Move{UUID: migration, Instance: id, Over: over})
	if over {
		w.ledger.Claims = slices.DeleteFunc(w.ledger.Claims, func(c audit.Claim) bool { return c.Instance == id })
		w.domains = slices.DeleteFunc(w.domains, func(d audit.LibvirtDomain) bool { return d.UUID == id })
	}
	return migration
}

// Move adds one that this host knows.
func (w *World) Move(m audit.Move) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.Moves = append(w.ledger.Moves, m)
}

// Ended has every move be over.
func (w *World) Ended() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.ledger.Moves {
		w.ledger.Moves[i].Over = true
	}
}

// Undefined has libvirt know a domain no more.
func (w *World) Undefined(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.domains = slices.DeleteFunc(w.domains, func(d audit.LibvirtDomain) bool { return d.UUID == id })
}

// Forgotten has the ledger know a guest no more, as after its deletion.
func (w *World) Forgotten(id string) {
	w.Undefined(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ledger.Instances = slices.DeleteFunc(w.ledger.Instances, func(i audit.Instance) bool { return i.UUID == id })
	w.ledger.Claims = slices.DeleteFunc(w.ledger.Claims, func(c audit.Claim) bool { return c.Instance == id })
}

// Audit looks and heals.
func (w *World) Audit(askAll bool) auditor.Result {
	return w.Auditor.Audit(w.t.Context(), auditor.Order{Heal: true, AskAll: askAll})
}

// row is that of a subject; none means that it agrees.
func row(r auditor.Result, subject string) (audit.Row, bool) {
	for _, row := range r.Rows {
		if row.Subject == subject {
			return row, true
		}
	}
	return audit.Row{}, false
}

func words(r auditor.Result) string {
	out := fmt.Sprintf("silent %v", r.Silent)
	for _, row := range r.Rows {
		out += fmt.Sprintf("\n  %s %s %s: %s (heal %q, healed %v, failed %q, because %s)", row.Kind, row.Verdict, row.Code, row.Message, row.Heal, row.Healed, row.Failed, row.Quarantine)
	}
	return out
}
