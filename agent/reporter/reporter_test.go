package reporter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/agent/reporter/reportertest"
	"berth/claims/pci"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

func TestReporter_CreatesThenWritesNothingMore(t *testing.T) {
	for _, shape := range []inventory.Shape{inventory.Flat, inventory.Nested} {
		t.Run(string(shape), func(t *testing.T) {
			b := newBench(t)
			b.In.Shape = shape
			b.Sync()
			if shape == inventory.Flat && b.Inventories(b.Root)["VCPU"].Total != 4 || !slices.Contains(b.Traits(b.Root), "COMPUTE_NODE") {
				t.Fatalf("after the first look: %+v, %v", b.Inventories(b.Root), b.Traits(b.Root))
			}
			if n := len(b.Names()); n != map[inventory.Shape]int{inventory.Flat: 1, inventory.Nested: 6}[shape] {
				t.Errorf("%d providers: %v", n, b.Names())
			}
			b.Steady(60)
			// An agent that starts anew reads everything once, and writes nothing.
			b.Restart()
			b.Sync()
			if _, writes, calls := b.Wire.Count(); writes != 0 {
				t.Errorf("after a restart: %v", calls)
			}
			if s := b.R.Status(); !s.InSync || s.Error != "" || s.Shape != shape || s.Waiting != nil {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// TestReporter_ReadsWhatItsCommentSays counts what a guest's start costs, and what
// the patrol takes to have looked at everything.
func TestReporter_ReadsWhatItsCommentSays(t *testing.T) {
	b := newBench(t)
	b.In.Shape = inventory.Nested
	b.Sync()
	// What was made and written has been read by its answers, and the first intervals
	// are quiet.
	_, _, calls := b.Wire.Count()
	for _, c := range calls {
		if strings.HasPrefix(c, "GET /resource_providers/") {
			t.Errorf("a first report asks %s", c)
		}
	}
	cell := inventory.ChildUUID(b.Root, "NUMA0")
	b.Give(b.ID("guest"), "INSTANCE", map[string]placementclient.Resources{cell: {"VCPU": 1}})
	var reads []int
	for range 6 {
		b.Sync()
		n, writes, calls := b.Wire.Count()
		if reads = append(reads, n); writes > 0 {
			t.Errorf("a guest's start is answered by %v", calls)
		}
	}
	sum := 0
	for _, n := range reads {
		sum += n
	}
	if sum > 7 {
		t.Errorf("reads in the intervals after a guest's start: %v, want one more than intervals", reads)
	}
	seen := map[string]bool{}
	for range 4 * (2*7 + 2) {
		b.Sync()
		_, _, calls := b.Wire.Count()
		for _, c := range calls {
			seen[c] = true
		}
	}
	for _, name := range []string{b.Root + "/inventories", b.Root + "/traits", b.Root + "/aggregates", cell + "/inventories", cell + "/traits"} {
		if !seen["GET /resource_providers/"+name] {
			t.Errorf("the patrol never came by %s", name)
		}
	}
}

func TestReporter_PutsBackWhatSomebodyChanged(t *testing.T) {
	b := newBench(t)
	b.Sync()
	now, err := b.Theirs.Traits(t.Context(), b.Root)
	b.Must(err)
	b.Must(b.Theirs.EnsureTrait(t.Context(), "CUSTOM_RACK_7"))
	now.Traits = []string{"CUSTOM_RACK_7"}
	_, err = b.Theirs.PutTraits(t.Context(), b.Root, now)
	b.Must(err)
	for range 4 {
		b.Sync()
	}
	if got := b.Traits(b.Root); !slices.Contains(got, "COMPUTE_NODE") || !slices.Contains(got, "CUSTOM_RACK_7") {
		t.Errorf("traits %v, want ours back and theirs kept", got)
	}
}

// TestReporter_WritesAtNoGenerationWhoseTraitsItHasNotRead: an operator's, set just
// before, would go.
func TestReporter_WritesAtNoGenerationWhoseTraitsItHasNotRead(t *testing.T) {
	b := newBench(t)
	b.Sync()
	for i := range 12 {
		trait := fmt.Sprint("CUSTOM_RACK_", i)
		b.AddTraits(b.Root, trait)
		b.In.Disabled = !b.In.Disabled
		b.Sync()
		b.Sync()
		if got := b.Traits(b.Root); !slices.Contains(got, trait) || slices.Contains(got, placementclient.TraitComputeStatusDisabled) != b.In.Disabled {
			t.Errorf("interval %d: %v, disabled %t", i, got, b.In.Disabled)
		}
	}
}

// TestReporter_NobodyGetsMoreOfAClassThatIsNoMore, and that a guest has.
func TestReporter_NobodyGetsMoreOfAClassThatIsNoMore(t *testing.T) {
	b := newBench(t)
	const class = "CUSTOM_SLOT"
	b.In.Config = []inventory.ProviderConfig{{UUID: inventory.ComputeNode, Inventories: map[string]placementclient.Inventory{class: {Total: 4}}}}
	b.Sync()
	b.Give(b.ID("guest"), placementclient.ConsumerInstance, map[string]placementclient.Resources{b.Root: {class: 1}})
	b.In.Config = nil
	for range 3 {
		b.Sync()
	}
	if got := b.Inventories(b.Root)[class]; got.Total != 4 || got.Reserved != 4 || !slices.Equal(b.R.Status().Kept, []string{class}) {
		t.Errorf("%+v, kept %v", got, b.R.Status().Kept)
	}
	b.Steady(9)
	b.Must(b.Theirs.DeleteAllocations(t.Context(), b.ID("guest")))
	for range 4 {
		b.Sync()
	}
	if got, there := b.Inventories(b.Root)[class]; there {
		t.Errorf("nobody has it, and there is %+v", got)
	}
}

// TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow: one unknown name would
// refuse all of them.
func TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow(t *testing.T) {
	b := newBench(t)
	const unknown = "COMPUTE_FIRMWARE_UEFI"
	old := &older{Placement: b.Client, unknown: []string{unknown}}
	b.Options.Placement = old
	b.In.Hypervisor = &inventory.Hypervisor{Capabilities: topology.Capabilities{Firmware: []string{"bios", "efi"}}}
	b.Restart()
	b.Sync()
	s := b.R.Status()
	if got := b.Traits(b.Root); !slices.Contains(got, "COMPUTE_FIRMWARE_BIOS") || slices.Contains(got, unknown) || !s.InSync {
		t.Errorf("traits %v, status %+v", got, s)
	}
	if !slices.Equal(s.UnknownTraits, old.unknown) || slices.Contains(s.Traits, unknown) {
		t.Errorf("told of %v as unknown and %v as reported, want %v", s.UnknownTraits, s.Traits, old.unknown)
	}
	asked := old.asked
	b.Steady(8)
	if old.asked != asked {
		t.Errorf("a steady state asks %d times, want none", old.asked-asked)
	}
	// An agent that starts anew asks only for what does not stand already, and writes
	// nothing.
	b.Restart()
	b.Wire.Count()
	b.Sync()
	if _, writes, _ := b.Wire.Count(); old.asked != asked+1 || writes != 0 || !slices.Equal(old.last, old.unknown) {
		t.Errorf("after a restart: asked for %v, %d writes", old.last, writes)
	}
	// An upgrade of Placement is an outage, after which it knows more.
	old.unknown = nil
	b.Wire.Disturb(func(*http.Request) error { return errors.New("connection refused") }, nil)
	if err := b.R.Sync(t.Context()); err == nil {
		t.Error("Placement is down, and nothing is wrong")
	}
	b.Wire.Disturb(nil, nil)
	b.Sync()
	if got := b.Traits(b.Root); !slices.Contains(got, unknown) || len(b.R.Status().UnknownTraits) > 0 {
		t.Errorf("after its upgrade: %v, %+v", got, b.R.Status())
	}
}

// older is a Placement whose os-traits is older.
type older struct {
	reporter.Placement
	unknown []string
	asked   int
	last    []string
}

func (o *older) KnownTraits(ctx context.Context, names []string) ([]string, error) {
	o.asked++
	o.last = names
	got, err := o.Placement.KnownTraits(ctx, names)
	return slices.DeleteFunc(got, func(n string) bool { return slices.Contains(o.unknown, n) }), err
}

func TestReporter_GenerationConflictReadsAgainABoundedNumberOfTimes(t *testing.T) {
	intrude := func(b *reportertest.Bench) func(r *http.Request) error {
		return func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
				now, err := b.Theirs.Aggregates(b.Context(), b.Root)
				b.Must(err)
				now.Aggregates = []string{b.ID("aggregate")}
				_, err = b.Theirs.PutAggregates(b.Context(), b.Root, now)
				b.Must(err)
			}
			return nil
		}
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			all := intrude(b)
			b.Wire.Disturb(func(r *http.Request) error {
				err := all(r)
				if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
					b.Wire.Disturb(nil, nil)
				}
				return err
			}, nil)
			b.Sync()
			if b.Inventories(b.Root)["VCPU"].Total != 4 || len(b.Traits(b.Root)) == 0 {
				t.Errorf("not written after the conflict: %v", b.Inventories(b.Root))
			}
		})
	})
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.Wire.Disturb(intrude(b), nil)
			if err := b.R.Sync(t.Context()); !errors.Is(err, fault.GenerationConflict) {
				t.Errorf("error %v, want %v", err, fault.GenerationConflict)
			}
			if _, writes, calls := b.Wire.Count(); writes != 2+4 { // the provider, its traits, and four tries
				t.Errorf("%d writes, want 6: %v", writes, calls)
			}
			if s := b.R.Status(); s.InSync || s.Error == "" {
				t.Errorf("status %+v", s)
			}
		})
	})
}

func TestReporter_IdentityConflictWritesNothingAndNamesBoth(t *testing.T) {
	const other = "99999999-0000-4000-8000-000000000000"
	for name, with := range map[string]func(b *reportertest.Bench) placementclient.NewProvider{
		"our name, another uuid": func(b *reportertest.Bench) placementclient.NewProvider {
			return placementclient.NewProvider{UUID: other, Name: b.Name}
		},
		"our uuid, another name": func(b *reportertest.Bench) placementclient.NewProvider {
			return placementclient.NewProvider{UUID: b.Root, Name: "host-z"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			there := with(b)
			_, err := b.Theirs.CreateProvider(t.Context(), there)
			b.Must(err)
			err = b.R.Sync(t.Context())
			if len(b.Estranged) != 1 || b.Estranged[0] == nil {
				t.Errorf("told %v, want the refusal", b.Estranged)
			}
			if _, writes, _ := b.Wire.Count(); !errors.Is(err, fault.Forbidden) || writes != 0 {
				t.Fatalf("error %v after %d writes, want %v and none", err, writes, fault.Forbidden)
			}
			for _, want := range []string{b.Name + " (" + b.Root + ")", there.Name, there.UUID} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}

func TestReporter_AChildsNameInAnothersHandsIsNamed(t *testing.T) {
	b := newBench(t)
	b.In.Shape = inventory.Nested
	_, err := b.Theirs.CreateProvider(t.Context(), placementclient.NewProvider{UUID: b.ID("other"), Name: b.Name + "_NUMA0"})
	b.Must(err)
	err = b.R.Sync(t.Context())
	if !errors.Is(err, fault.Forbidden) {
		t.Fatalf("error %v, want %v", err, fault.Forbidden)
	}
	for _, want := range []string{b.Name + "_NUMA0", b.ID("other"), inventory.ChildUUID(b.Root, "NUMA0")} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if slices.ContainsFunc(b.Estranged, func(err error) bool { return err != nil }) {
		t.Errorf("the host itself is called a stranger: %v", b.Estranged)
	}
}

func TestReporter_ObserveTellsAndWritesNothing(t *testing.T) {
	b := newBench(t)
	b.Options.Observe = true
	b.Restart()
	b.Sync()
	s := b.R.Status()
	if _, writes, _ := b.Wire.Count(); writes != 0 || b.Keeps != 0 || s.InSync || len(s.Pending) != 3 || len(b.Found) != 1 {
		t.Errorf("%d writes, %d records, %d reports, status %+v", writes, b.Keeps, len(b.Found), s)
	}
	b.Wire.Disturb(func(*http.Request) error {
		if n := len(b.R.Status().Pending); n != 3 {
			t.Errorf("while Placement is asked, %d things would be written, want 3 as before", n)
		}
		return nil
	}, nil)
	b.Sync()
	b.Wire.Disturb(nil, nil)
	b.Options.Observe = false
	b.Restart()
	b.Sync()
	// A tree that stands, and would be another.
	b.Options.Observe, b.In.Shape = true, inventory.Nested
	b.Restart()
	b.Wire.Count()
	b.Sync()
	if _, writes, _ := b.Wire.Count(); writes != 0 || !strings.Contains(strings.Join(b.R.Status().Pending, "\n"), "reshape to nested") {
		t.Errorf("%d writes, status %+v", writes, b.R.Status())
	}
}

func TestReporter_AnUnknownHostIsNotReported(t *testing.T) {
	b := newBench(t)
	b.Unknown = "node0/meminfo cannot be read"
	err := b.R.Sync(t.Context())
	if reads, writes, _ := b.Wire.Count(); err == nil || reads+writes != 0 || !strings.Contains(b.R.Status().Error, "node0/meminfo") {
		t.Errorf("error %v, %d calls, status %+v", err, reads+writes, b.R.Status())
	}
}

// TestReporter_LogsWhatIsWrongOnce, though Placement names each request.
func TestReporter_LogsWhatIsWrongOnce(t *testing.T) {
	b := newBench(t)
	var log bytes.Buffer
	b.Options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b.Restart()
	b.In.Devices = []pci.Device{{Type: topology.PCITypePF, Managed: true}} // of no class, which Placement refuses
	for range 5 {
		if err := b.R.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "req-") {
			t.Fatalf("error %v, want one that names its request", err)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("%d lines, want 1:\n%s", n, &log)
	}
}

func TestReporter_RunComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.Wire.Disturb(func(*http.Request) error { return errors.New("connection refused") }, nil)
		rt := &runtime.System{}
		b.Options.Runtime = rt
		b.Restart()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.R.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if s := b.R.Status(); s.InSync || s.Error == "" {
			t.Errorf("while Placement is down: %+v", s)
		}
		b.Wire.Disturb(nil, nil)
		time.Sleep(10 * time.Second)
		if s := b.R.Status(); !s.InSync {
			t.Errorf("after it came back: %+v", s)
		}
		before := b.R.Status().Reads
		b.R.Kick()
		synctest.Wait()
		if after := b.R.Status().Reads; after != before+1 {
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
