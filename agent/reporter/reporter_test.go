package reporter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// placement is a small one that checks generations.
type placement struct {
	mu       sync.Mutex
	provider map[string]placementclient.ResourceProvider
	inv      map[string]placementclient.Inventory
	traits   []string
	unknown  []string // traits of a newer os-traits
	asked    int      // for what it knows
	last     []string // the names of the last time
	writes   int
	reads    int
	down     error
	// intrude is run before each write: another writer who was faster.
	intrude func(*placement)
}

func newPlacement() *placement {
	return &placement{provider: map[string]placementclient.ResourceProvider{}}
}

func (p *placement) Provider(_ context.Context, uuid string) (placementclient.ResourceProvider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	if p.down != nil {
		return placementclient.ResourceProvider{}, p.down
	}
	rp, ok := p.provider[uuid]
	if !ok {
		return rp, fault.New(fault.NotFound, "no provider %s", uuid)
	}
	return rp, nil
}

func (p *placement) ProviderByName(_ context.Context, name string) (placementclient.ResourceProvider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	for _, rp := range p.provider {
		if rp.Name == name {
			return rp, nil
		}
	}
	return placementclient.ResourceProvider{}, fault.New(fault.NotFound, "no provider named %s", name)
}

func (p *placement) CreateProvider(_ context.Context, n placementclient.NewProvider) (placementclient.ResourceProvider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	p.provider[n.UUID] = placementclient.ResourceProvider{UUID: n.UUID, Name: n.Name}
	return p.provider[n.UUID], nil
}

func (p *placement) Inventories(_ context.Context, rp string) (placementclient.Inventories, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	return placementclient.Inventories{Generation: p.provider[rp].Generation, Inventories: p.inv}, nil
}

func (p *placement) Traits(_ context.Context, rp string) (placementclient.Traits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	return placementclient.Traits{Generation: p.provider[rp].Generation, Traits: p.traits}, nil
}

// write holds the caller's generation against the provider's and raises it.
func (p *placement) write(rp string, generation int) (int, error) {
	p.writes++
	if p.intrude != nil {
		p.intrude(p)
	}
	r := p.provider[rp]
	if r.Generation != generation {
		return 0, fault.New(fault.GenerationConflict, "generation is %d, not %d", r.Generation, generation)
	}
	r.Generation++
	p.provider[rp] = r
	return r.Generation, nil
}

func (p *placement) PutInventories(_ context.Context, rp string, in placementclient.Inventories) (placementclient.Inventories, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, err := p.write(rp, in.Generation)
	if err != nil {
		return in, err
	}
	p.inv = in.Inventories
	return placementclient.Inventories{Generation: g, Inventories: p.inv}, nil
}

func (p *placement) PutTraits(_ context.Context, rp string, in placementclient.Traits) (placementclient.Traits, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, err := p.write(rp, in.Generation)
	if err != nil {
		return in, err
	}
	for _, t := range in.Traits {
		if slices.Contains(p.unknown, t) {
			return in, fault.New(fault.Invalid, "no such trait %s", t)
		}
	}
	p.traits = in.Traits
	return placementclient.Traits{Generation: g, Traits: p.traits}, nil
}

func (p *placement) KnownTraits(_ context.Context, names []string) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	p.last = names
	if p.down != nil {
		return nil, p.down
	}
	return slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(p.unknown, n) }), nil
}

const uuidA = "aaaaaaaa-0000-0000-0000-000000000000"

func machine() (inventory.Input, bool, string) {
	return inventory.Input{
		Host: &topology.Host{Cells: []topology.Cell{{MemoryBytes: 8 << 30}}, Cores: []topology.CPUSet{{0}, {1}}},
		Arch: "x86_64", DiskGB: 50, Initial: inventory.Ratios{CPU: 4, RAM: 1, Disk: 1},
	}, true, ""
}

func options(p *placement) reporter.Options {
	return reporter.Options{
		Placement: p, Runtime: &runtime.System{}, Name: "host-a", UUID: uuidA, Input: machine, Interval: time.Minute,
	}
}

func TestReporter_CreatesThenWritesNothingMore(t *testing.T) {
	p := newPlacement()
	r := reporter.New(options(p))
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.writes != 3 || p.inv["VCPU"].Total != 2 || !slices.Contains(p.traits, "COMPUTE_NODE") {
		t.Fatalf("after the first look: %d writes, %+v, %v", p.writes, p.inv, p.traits)
	}
	reads := p.reads
	for range 5 {
		if err := r.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p.writes != 3 || p.reads != reads+5 {
		t.Errorf("five looks at a steady state: %d writes, %d reads; want none and 5", p.writes-3, p.reads-reads)
	}
	if s := r.Status(); !s.InSync || s.Error != "" || s.Generation != 2 {
		t.Errorf("status %+v", s)
	}
}

func TestReporter_PutsBackWhatSomebodyChanged(t *testing.T) {
	p := newPlacement()
	r := reporter.New(options(p))
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	rp := p.provider[uuidA]
	rp.Generation += 3
	p.provider[uuidA] = rp
	p.traits = []string{"CUSTOM_RACK_7"}
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(p.traits, "COMPUTE_NODE") || !slices.Contains(p.traits, "CUSTOM_RACK_7") {
		t.Errorf("traits %v, want ours back and theirs kept", p.traits)
	}
}

// TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow: one unknown name would
// refuse all of them.
func TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow(t *testing.T) {
	p := newPlacement()
	p.unknown = []string{"COMPUTE_FIRMWARE_UEFI"}
	o := options(p)
	o.Input = func() (inventory.Input, bool, string) {
		in, _, _ := machine()
		in.Hypervisor = &inventory.Hypervisor{Capabilities: topology.Capabilities{Firmware: []string{"bios", "efi"}}}
		return in, true, ""
	}
	r := reporter.New(o)
	sync := func() {
		t.Helper()
		if err := r.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	sync()
	s := r.Status()
	if !slices.Contains(p.traits, "COMPUTE_FIRMWARE_BIOS") || slices.Contains(p.traits, "COMPUTE_FIRMWARE_UEFI") || !s.InSync {
		t.Errorf("traits %v, status %+v", p.traits, s)
	}
	if !slices.Equal(s.UnknownTraits, p.unknown) || slices.Contains(s.Traits, "COMPUTE_FIRMWARE_UEFI") {
		t.Errorf("told of %v as unknown and %v as reported, want %v", s.UnknownTraits, s.Traits, p.unknown)
	}
	asked, writes := p.asked, p.writes
	sync()
	sync()
	if p.asked != asked || p.writes != writes {
		t.Errorf("a steady state asks %d times and writes %d times, want none", p.asked-asked, p.writes-writes)
	}
	// An agent that starts anew asks only for what does not stand already, and writes
	// nothing.
	again := reporter.New(o)
	if err := again.Sync(t.Context()); err != nil || p.asked != asked+1 || p.writes != writes || !slices.Equal(p.last, p.unknown) {
		t.Errorf("after a restart: asked for %v, %d writes, %v", p.last, p.writes-writes, err)
	}
	// An upgrade of Placement is an outage, after which it knows more.
	p.down = fault.New(fault.Unavailable, "connection refused")
	if err := r.Sync(t.Context()); err == nil {
		t.Error("Placement is down, and nothing is wrong")
	}
	p.down, p.unknown = nil, nil
	sync()
	if !slices.Contains(p.traits, "COMPUTE_FIRMWARE_UEFI") || len(r.Status().UnknownTraits) > 0 {
		t.Errorf("after its upgrade: %v, %+v", p.traits, r.Status())
	}
}

func TestReporter_GenerationConflictReadsAgainABoundedNumberOfTimes(t *testing.T) {
	raise := func(p *placement) {
		rp := p.provider[uuidA]
		rp.Generation++
		p.provider[uuidA] = rp
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlacement()
			p.intrude = func(p *placement) { raise(p); p.intrude = nil }
			if err := reporter.New(options(p)).Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			if p.inv["VCPU"].Total != 2 || len(p.traits) == 0 {
				t.Errorf("not written after the conflict: %v %v", p.inv, p.traits)
			}
		})
	})
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlacement()
			p.intrude = raise
			r := reporter.New(options(p))
			if err := r.Sync(t.Context()); !errors.Is(err, fault.GenerationConflict) {
				t.Errorf("error %v, want %v", err, fault.GenerationConflict)
			}
			if p.writes != 1+4 { // the provider, and four tries
				t.Errorf("%d writes, want 5", p.writes)
			}
			if s := r.Status(); s.InSync || s.Error == "" {
				t.Errorf("status %+v", s)
			}
		})
	})
}

func TestReporter_IdentityConflictWritesNothingAndNamesBoth(t *testing.T) {
	const other = "bbbbbbbb-0000-0000-0000-000000000000"
	for name, there := range map[string]placementclient.ResourceProvider{
		"our name, another uuid": {UUID: other, Name: "host-a"},
		"our uuid, another name": {UUID: uuidA, Name: "host-z"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlacement()
			p.provider[there.UUID] = there
			o := options(p)
			var told []error
			o.Estranged = func(err error) { told = append(told, err) }
			r := reporter.New(o)
			err := r.Sync(t.Context())
			if len(told) != 1 || told[0] == nil {
				t.Errorf("told %v, want the refusal", told)
			}
			if !errors.Is(err, fault.Forbidden) || p.writes != 0 {
				t.Fatalf("error %v after %d writes, want %v and none", err, p.writes, fault.Forbidden)
			}
			for _, want := range []string{"host-a (" + uuidA + ")", there.Name, there.UUID} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}

func TestReporter_ObserveTellsAndWritesNothing(t *testing.T) {
	p := newPlacement()
	o := options(p)
	o.Observe = true
	var reports int
	o.Found = func(inventory.Report) { reports++ }
	r := reporter.New(o)
	if err := r.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := r.Status()
	if p.writes != 0 || s.InSync || len(s.Pending) != 3 || reports != 1 {
		t.Errorf("%d writes, %d reports, status %+v", p.writes, reports, s)
	}
}

func TestReporter_AnUnknownHostIsNotReported(t *testing.T) {
	p := newPlacement()
	o := options(p)
	o.Input = func() (inventory.Input, bool, string) {
		return inventory.Input{}, false, "node0/meminfo cannot be read"
	}
	r := reporter.New(o)
	err := r.Sync(t.Context())
	if err == nil || p.writes+p.reads != 0 || !strings.Contains(r.Status().Error, "node0/meminfo") {
		t.Errorf("error %v, %d calls, status %+v", err, p.writes+p.reads, r.Status())
	}
}

func TestReporter_RunComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlacement()
		p.down = fault.New(fault.Unavailable, "connection refused")
		rt := &runtime.System{}
		o := options(p)
		o.Runtime = rt
		r := reporter.New(o)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if s := r.Status(); s.InSync || s.Error == "" {
			t.Errorf("while Placement is down: %+v", s)
		}
		p.mu.Lock()
		p.down = nil
		p.mu.Unlock()
		time.Sleep(10 * time.Second)
		if s := r.Status(); !s.InSync {
			t.Errorf("after it came back: %+v", s)
		}
		before := r.Status().Reads
		r.Kick()
		synctest.Wait()
		if after := r.Status().Reads; after != before+1 {
			t.Errorf("%d reads after a kick, want 1", after-before)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		rt.Wait()
	})
}

func TestIdentity_IsMadeOnceAndNeverGuessed(t *testing.T) {
	dir := t.TempDir()
	first, err := reporter.Identity(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := reporter.Identity(dir); err != nil || again != first {
		t.Errorf("second read %q, %v; want %q", again, err, first)
	}
	if err := os.WriteFile(filepath.Join(dir, reporter.IdentityFile), []byte("garbled"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := reporter.Identity(dir); !errors.Is(err, fault.Invalid) {
		t.Errorf("a garbled file: %q, %v; want %v", got, err, fault.Invalid)
	}
}
