package host_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/placementclient"
	"berth/topology"
)

// This binary is also the stream's process that real hosts start.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "stream-process" {
		os.Exit(beStream(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// clock is the machine's own, but that its boot clock goes with the other one: also in a
// bubble of package synctest.
type clock struct {
	runtime.System
	booted time.Time
}

func newClock() *clock { return &clock{booted: time.Now().Add(-time.Hour)} }

func (c *clock) Boot() runtime.BootTime {
	return runtime.BootTime{ID: c.System.Boot().ID, Since: time.Since(c.booted)}
}

// lab is two or more hosts over one fake fleet and one Placement.
type lab struct {
	t         testing.TB
	rt        *clock
	fleet     *drivertest.Fleet
	placement *placement
	hosts     map[string]*node
}

// node is one host with its own disks, ledger and agent.
type node struct {
	*host.Host
	name    string
	root    string
	images  string // where disks are, as the hypervisor sees it
	fake    *drivertest.Fake
	store   *storetest.Memory
	tracker *claims.Tracker
	mode    string
	files   host.Files // nil for those below root
}

var small = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}

func newLab(t testing.TB, names ...string) *lab {
	t.Helper()
	rt := newClock()
	l := &lab{t: t, rt: rt, fleet: drivertest.NewFleet(rt), placement: newPlacement(), hosts: map[string]*node{}}
	l.fleet.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond})
	for _, name := range names {
		l.hosts[name] = &node{name: name, root: t.TempDir(), images: "/images", fake: l.fleet.Host(name), store: storetest.NewMemory(), mode: "manage"}
		if err := os.Mkdir(l.hosts[name].path("/images"), 0o755); err != nil {
			t.Fatal(err)
		}
		l.boot(name, nil)
	}
	t.Cleanup(func() {
		for _, n := range l.hosts {
			n.Close()
		}
		l.fleet.Close()
		rt.Wait()
		for _, v := range l.fleet.Violations() {
			t.Error(v)
		}
	})
	return l
}

// boot starts a host's agent on what is on its disk.
func (l *lab) boot(name string, change func(*host.Options)) *node {
	l.t.Helper()
	n := l.hosts[name]
	tracker, err := claims.Open(l.t.Context(), claims.Options{
		Store: n.store, Runtime: l.rt, Host: name,
		Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	n.tracker = tracker
	o := host.Options{
		Name: name, ProviderUUID: "rp-" + name, Tracker: tracker, Driver: n.fake, Runtime: l.rt, Logger: slog.New(slog.DiscardHandler),
		Mode: func() string { return n.mode }, Placement: l.placement.of(name), ProjectID: "default-project", UserID: "default-user", HooksDir: n.path("/hooks"),
		ImagesDirs: []string{n.images}, Root: n.root, LibvirtURI: "qemu+tls://" + name + "/system", MigrateURI: "tcp://" + name, Version: "test",
		Poll: 4 * time.Millisecond, Agree: 4 * time.Millisecond, Files: n.files, Processes: n.fake.Processes(),
		// The kernels and disks of these tests.
		Allowed: func() host.Allowed {
			return host.Allowed{Paths: []string{"/boot", "/dev/vg", "/elsewhere", "/images", "/nvram", "/shared"}}
		},
	}
	if change != nil {
		change(&o)
	}
	n.Host = host.New(o)
	return n
}

// restart kills a host's agent and starts it again.
func (l *lab) restart(name string) *node {
	l.t.Helper()
	n := l.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	return l.boot(name, nil)
}

// Delete is the host's, of which only the error is looked at.
func (n *node) Delete(ctx context.Context, id string, o host.DeleteOptions) error {
	_, err := n.Host.Delete(ctx, id, o)
	return err
}

// path is where the test finds a host's path.
func (n *node) path(p string) string { return filepath.Join(n.root, p) }

func (n *node) put(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path(path), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func requireQemuImg(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (Debian: qemu-utils)")
	}
}

// guest makes and starts a guest without disks that boots a kernel which every
// host of the lab has.
func (l *lab) guest(on, name string, disks ...host.CreateDisk) host.InstanceView {
	l.t.Helper()
	for _, n := range l.hosts {
		n.put(l.t, "/boot/vmlinuz", "kernel", 0o644)
	}
	v, err := l.hosts[on].Create(l.t.Context(), host.CreateRequest{
		Name: name, Flavor: small, ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Cmdline: "quiet", Disks: disks, Start: true,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return v
}

// picture is everything that a move or a creation could leave behind.
type picture map[string][]string

func (l *lab) picture() picture {
	l.t.Helper()
	p := picture{}
	add := func(key, value string) { p[key] = append(p[key], value) }
	for name, n := range l.hosts {
		domains, err := n.fake.Domains(context.WithoutCancel(l.t.Context()))
		if err != nil {
			l.t.Fatal(err)
		}
		for _, d := range domains {
			add(name+" domains", d.Name+" "+string(d.State))
		}
		for _, c := range n.tracker.List() {
			add(name+" claims", strings.Join([]string{c.Owner.Instance, string(c.Owner.Kind), string(c.State), c.Resources.String()}, " "))
		}
		for _, i := range n.tracker.Instances() {
			add(name+" instances", i.Name+" "+string(i.Token.State))
		}
		for _, c := range n.tracker.Contexts() {
			add(name+" contexts", c.Instance)
		}
		verbs, err := n.store.List(context.WithoutCancel(l.t.Context()), "verbs")
		if err != nil {
			l.t.Fatal(err)
		}
		for key := range verbs {
			if !strings.HasPrefix(key, "autostart/") && !strings.HasPrefix(key, "strangers/") && !strings.HasPrefix(key, "definitions/") && !strings.HasPrefix(key, "origin/") {
				add(name+" memories", key)
			}
		}
		for _, dir := range []string{"/images", "/elsewhere"} {
			_ = filepath.WalkDir(n.path(dir), func(path string, d os.DirEntry, err error) error {
				if err == nil {
					add(name+" files", strings.TrimPrefix(path, n.root))
				}
				return nil // an absent folder has no files
			})
		}
	}
	for consumer, a := range l.placement.all() {
		for rp, r := range a.Allocations {
			keys := slices.Sorted(maps.Keys(r))
			add("allocations", consumer+" "+rp+" "+strings.Join(keys, ","))
		}
	}
	for _, v := range p {
		slices.Sort(v)
	}
	return p
}

func (l *lab) same(what string, want picture) {
	l.t.Helper()
	if diff := cmp.Diff(want, l.picture()); diff != "" {
		l.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func codes(err error) []string {
	var out []string
	for _, r := range fault.ReasonsOf(err) {
		out = append(out, r.Code)
	}
	slices.Sort(out)
	return out
}

func (l *lab) wantKind(what string, err error, kind fault.Kind) {
	l.t.Helper()
	if got := fault.KindOf(err); got != kind {
		l.t.Errorf("%s: kind %q (%v), want %q", what, got, err, kind)
	}
}

func (l *lab) must(what string, err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// state waits until a guest's domain is in a state.
func (l *lab) state(on, uuid string, want driver.State) {
	l.t.Helper()
	d, err := l.hosts[on].fake.Domain(l.t.Context(), uuid)
	if err != nil || d.State != want {
		l.t.Fatalf("domain on %s: %s (%s), %v; want %s", on, d.State, d.Reason, err, want)
	}
}

// placement is a small Placement that checks consumer generations. It serves
// the conductor and the hosts.
type placement struct {
	mu        sync.Mutex
	consumers map[string]placementclient.Allocations
	fail      error
}

func newPlacement() *placement {
	return &placement{consumers: map[string]placementclient.Allocations{}}
}

func (p *placement) all() map[string]placementclient.Allocations {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.consumers)
}

func (p *placement) breakWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// placementOf is the placement as one host writes it.
type placementOf struct {
	*placement
	provider string
}

func (p *placement) of(host string) placementOf { return placementOf{p, "rp-" + host} }

func (p placementOf) Place(_ context.Context, a allocation.Allocation) (map[string]placementclient.Resources, error) {
	r := placementclient.Resources{"VCPU": int64(a.Resources.VCPUs), "MEMORY_MB": a.Resources.MemoryMB, "DISK_GB": a.Resources.DiskGB}
	maps.DeleteFunc(r, func(_ string, n int64) bool { return n == 0 })
	return map[string]placementclient.Resources{p.provider: r}, nil
}

func (p placementOf) Providers() []string { return []string{p.provider} }

func (p placementOf) PutAllocation(ctx context.Context, a allocation.Allocation) error {
	if a.ProjectID == "" || a.UserID == "" {
		return fault.New(fault.Invalid, "an allocation names project and user, as the real one wants it")
	}
	have, err := p.Allocations(ctx, a.Consumer)
	if err != nil {
		return err
	}
	placed, err := p.Place(ctx, a)
	if err != nil {
		return err
	}
	for rp := range have.Allocations {
		if rp != p.provider {
			return fault.Refuse(fault.Forbidden, "put allocation", fault.Reason{Code: "allocation_elsewhere", Message: "it is on " + rp})
		}
	}
	return p.PutAllocations(ctx, a.Consumer, placementclient.Allocations{
		Allocations: placed, ProjectID: a.ProjectID, UserID: a.UserID,
		ConsumerGeneration: have.ConsumerGeneration, ConsumerType: placementclient.ConsumerInstance,
	})
}

func (p placementOf) DeleteAllocation(ctx context.Context, consumer string) error {
	have, err := p.Allocations(ctx, consumer)
	if _, here := have.Allocations[p.provider]; err != nil || !here {
		return err
	}
	delete(have.Allocations, p.provider)
	return p.PutAllocations(ctx, consumer, have)
}

func (p *placement) Allocations(_ context.Context, consumer string) (placementclient.Allocations, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.consumers[consumer].Clone(), p.fail
}

func (p *placement) PutAllocations(ctx context.Context, consumer string, a placementclient.Allocations) error {
	return p.PostAllocations(ctx, map[string]placementclient.Allocations{consumer: a})
}

func (p *placement) PostAllocations(_ context.Context, set map[string]placementclient.Allocations) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	for consumer, a := range set {
		have := p.consumers[consumer].ConsumerGeneration
		if (have == nil) != (a.ConsumerGeneration == nil) || have != nil && *have != *a.ConsumerGeneration {
			return fault.New(fault.GenerationConflict, "consumer %s was changed", consumer)
		}
	}
	for consumer, a := range set {
		if len(a.Allocations) == 0 {
			delete(p.consumers, consumer)
			continue
		}
		next := 1
		if a.ConsumerGeneration != nil {
			next = *a.ConsumerGeneration + 1
		}
		a = a.Clone()
		a.ConsumerGeneration = &next
		p.consumers[consumer] = a
	}
	return nil
}

func (p *placement) DeleteAllocations(_ context.Context, consumer string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail == nil {
		delete(p.consumers, consumer)
	}
	return p.fail
}

func (p *placement) Provider(_ context.Context, uuid string) (placementclient.ResourceProvider, error) {
	return placementclient.ResourceProvider{UUID: uuid, Name: strings.TrimPrefix(uuid, "rp-")}, nil
}

func (p *placement) AllocationCandidates(context.Context, placementclient.CandidateRequest) (placementclient.AllocationCandidates, error) {
	return placementclient.AllocationCandidates{}, errors.New("every test names its destination")
}

// refFor is a ref as a conductor would make it.
func refFor(instance string, attempt int) migration.Ref {
	return migration.Ref{Migration: "22222222-2222-4222-8222-222222222222", Instance: instance, Attempt: attempt, Step: "whatever the conductor calls it"}
}
