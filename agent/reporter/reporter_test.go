package reporter_test

import (
	"context"
	"errors"
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
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

func TestReporter_CreatesThenWritesNothingMore(t *testing.T) {
	for _, shape := range []inventory.Shape{inventory.Flat, inventory.Nested} {
		t.Run(string(shape), func(t *testing.T) {
			b := newBench(t)
			b.in.Shape = shape
			b.sync()
			if shape == inventory.Flat && b.inventories(rootID)["VCPU"].Total != 4 || !slices.Contains(b.traits(rootID), "COMPUTE_NODE") {
				t.Fatalf("after the first look: %+v, %v", b.inventories(rootID), b.traits(rootID))
			}
			if n := len(b.names()); n != map[inventory.Shape]int{inventory.Flat: 1, inventory.Nested: 7}[shape] {
				t.Errorf("%d providers: %v", n, b.names())
			}
			b.steady(60)
			// An agent that starts anew reads everything once, and writes nothing.
			b.restart()
			b.sync()
			if _, writes, calls := b.wire.count(); writes != 0 {
				t.Errorf("after a restart: %v", calls)
			}
			if s := b.r.Status(); !s.InSync || s.Error != "" || s.Shape != shape || s.Waiting != nil {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// steady requires n intervals without a write and with one read each at most.
func (b *bench) steady(n int) {
	b.Helper()
	b.wire.count()
	for i := range n {
		b.sync()
		if reads, writes, calls := b.wire.count(); reads > 1 || writes > 0 {
			b.Fatalf("interval %d of a steady state: %v; want one read", i, calls)
		}
	}
}

// TestReporter_ReadsWhatItsCommentSays counts what a guest's start costs, and what
// the patrol takes to have looked at everything.
func TestReporter_ReadsWhatItsCommentSays(t *testing.T) {
	b := newBench(t)
	b.in.Shape = inventory.Nested
	b.sync()
	// What was written has been read by its answers: the first intervals are quiet.
	b.wire.count()
	cell := inventory.ChildUUID(rootID, "NUMA0")
	b.give(guestA, "INSTANCE", map[string]placementclient.Resources{cell: {"VCPU": 1}})
	var reads []int
	for range 6 {
		b.sync()
		n, writes, calls := b.wire.count()
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
		b.sync()
		_, _, calls := b.wire.count()
		for _, c := range calls {
			seen[c] = true
		}
	}
	for _, name := range []string{rootID + "/inventories", rootID + "/traits", rootID + "/aggregates", cell + "/inventories", cell + "/traits"} {
		if !seen["GET /resource_providers/"+name] {
			t.Errorf("the patrol never came by %s", name)
		}
	}
}

func TestReporter_PutsBackWhatSomebodyChanged(t *testing.T) {
	b := newBench(t)
	b.sync()
	now, err := b.theirs.Traits(t.Context(), rootID)
	b.must(err)
	b.must(b.theirs.EnsureTrait(t.Context(), "CUSTOM_RACK_7"))
	now.Traits = []string{"CUSTOM_RACK_7"}
	_, err = b.theirs.PutTraits(t.Context(), rootID, now)
	b.must(err)
	for range 4 {
		b.sync()
	}
	if got := b.traits(rootID); !slices.Contains(got, "COMPUTE_NODE") || !slices.Contains(got, "CUSTOM_RACK_7") {
		t.Errorf("traits %v, want ours back and theirs kept", got)
	}
}

// TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow: one unknown name would
// refuse all of them.
func TestReporter_LeavesOutTraitsThatPlacementDoesNotKnow(t *testing.T) {
	b := newBench(t)
	const unknown = "COMPUTE_FIRMWARE_UEFI"
	old := &older{Placement: b.client, unknown: []string{unknown}}
	b.opt.Placement = old
	b.in.Hypervisor = &inventory.Hypervisor{Capabilities: topology.Capabilities{Firmware: []string{"bios", "efi"}}}
	b.restart()
	b.sync()
	s := b.r.Status()
	if got := b.traits(rootID); !slices.Contains(got, "COMPUTE_FIRMWARE_BIOS") || slices.Contains(got, unknown) || !s.InSync {
		t.Errorf("traits %v, status %+v", got, s)
	}
	if !slices.Equal(s.UnknownTraits, old.unknown) || slices.Contains(s.Traits, unknown) {
		t.Errorf("told of %v as unknown and %v as reported, want %v", s.UnknownTraits, s.Traits, old.unknown)
	}
	asked := old.asked
	b.steady(8)
	if old.asked != asked {
		t.Errorf("a steady state asks %d times, want none", old.asked-asked)
	}
	// An agent that starts anew asks only for what does not stand already, and writes
	// nothing.
	b.restart()
	b.wire.count()
	b.sync()
	if _, writes, _ := b.wire.count(); old.asked != asked+1 || writes != 0 || !slices.Equal(old.last, old.unknown) {
		t.Errorf("after a restart: asked for %v, %d writes", old.last, writes)
	}
	// An upgrade of Placement is an outage, after which it knows more.
	old.unknown = nil
	b.wire.before = func(*http.Request) error { return errors.New("connection refused") }
	if err := b.r.Sync(t.Context()); err == nil {
		t.Error("Placement is down, and nothing is wrong")
	}
	b.wire.before = nil
	b.sync()
	if got := b.traits(rootID); !slices.Contains(got, unknown) || len(b.r.Status().UnknownTraits) > 0 {
		t.Errorf("after its upgrade: %v, %+v", got, b.r.Status())
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
	intrude := func(b *bench) func(r *http.Request) error {
		return func(r *http.Request) error {
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
				b.wire.mu.Unlock()
				defer b.wire.mu.Lock()
				now, err := b.theirs.Aggregates(b.Context(), rootID)
				b.must(err)
				now.Aggregates = []string{fleetID}
				_, err = b.theirs.PutAggregates(b.Context(), rootID, now)
				b.must(err)
			}
			return nil
		}
	}
	t.Run("once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			all := intrude(b)
			b.wire.before = func(r *http.Request) error {
				err := all(r)
				if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/inventories") {
					b.wire.before = nil
				}
				return err
			}
			b.sync()
			if b.inventories(rootID)["VCPU"].Total != 4 || len(b.traits(rootID)) == 0 {
				t.Errorf("not written after the conflict: %v", b.inventories(rootID))
			}
		})
	})
	t.Run("for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.wire.before = intrude(b)
			if err := b.r.Sync(t.Context()); !errors.Is(err, fault.GenerationConflict) {
				t.Errorf("error %v, want %v", err, fault.GenerationConflict)
			}
			if _, writes, calls := b.wire.count(); writes != 2+4 { // the provider, its traits, and four tries
				t.Errorf("%d writes, want 6: %v", writes, calls)
			}
			if s := b.r.Status(); s.InSync || s.Error == "" {
				t.Errorf("status %+v", s)
			}
		})
	})
}

func TestReporter_IdentityConflictWritesNothingAndNamesBoth(t *testing.T) {
	const other = "99999999-0000-4000-8000-000000000000"
	for name, there := range map[string]placementclient.NewProvider{
		"our name, another uuid": {UUID: other, Name: "host-a"},
		"our uuid, another name": {UUID: rootID, Name: "host-z"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			_, err := b.theirs.CreateProvider(t.Context(), there)
			b.must(err)
			err = b.r.Sync(t.Context())
			if len(b.estranged) != 1 || b.estranged[0] == nil {
				t.Errorf("told %v, want the refusal", b.estranged)
			}
			if _, writes, _ := b.wire.count(); !errors.Is(err, fault.Forbidden) || writes != 0 {
				t.Fatalf("error %v after %d writes, want %v and none", err, writes, fault.Forbidden)
			}
			for _, want := range []string{"host-a (" + rootID + ")", there.Name, there.UUID} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %s", err, want)
				}
			}
		})
	}
}

func TestReporter_AChildsNameInAnothersHandsIsNamed(t *testing.T) {
	b := newBench(t)
	b.in.Shape = inventory.Nested
	_, err := b.theirs.CreateProvider(t.Context(), placementclient.NewProvider{UUID: sharedID, Name: "host-a_NUMA0"})
	b.must(err)
	err = b.r.Sync(t.Context())
	if !errors.Is(err, fault.Forbidden) {
		t.Fatalf("error %v, want %v", err, fault.Forbidden)
	}
	for _, want := range []string{"host-a_NUMA0", sharedID, inventory.ChildUUID(rootID, "NUMA0")} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if slices.ContainsFunc(b.estranged, func(err error) bool { return err != nil }) {
		t.Errorf("the host itself is called a stranger: %v", b.estranged)
	}
}

func TestReporter_ObserveTellsAndWritesNothing(t *testing.T) {
	b := newBench(t)
	b.opt.Observe = true
	b.restart()
	b.sync()
	s := b.r.Status()
	if _, writes, _ := b.wire.count(); writes != 0 || s.InSync || len(s.Pending) != 3 || len(b.found) != 1 {
		t.Errorf("%d writes, %d reports, status %+v", writes, len(b.found), s)
	}
	b.opt.Observe = false
	b.restart()
	b.sync()
	// A tree that stands, and would be another.
	b.opt.Observe, b.in.Shape = true, inventory.Nested
	b.restart()
	b.wire.count()
	b.sync()
	if _, writes, _ := b.wire.count(); writes != 0 || !strings.Contains(strings.Join(b.r.Status().Pending, "\n"), "reshape to nested") {
		t.Errorf("%d writes, status %+v", writes, b.r.Status())
	}
}

func TestReporter_AnUnknownHostIsNotReported(t *testing.T) {
	b := newBench(t)
	b.unknown = "node0/meminfo cannot be read"
	err := b.r.Sync(t.Context())
	if reads, writes, _ := b.wire.count(); err == nil || reads+writes != 0 || !strings.Contains(b.r.Status().Error, "node0/meminfo") {
		t.Errorf("error %v, %d calls, status %+v", err, reads+writes, b.r.Status())
	}
}

func TestReporter_RunComesBackAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.wire.before = func(*http.Request) error { return errors.New("connection refused") }
		rt := &runtime.System{}
		b.opt.Runtime = rt
		b.restart()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.r.Run(ctx) }()
		time.Sleep(10 * time.Second)
		if s := b.r.Status(); s.InSync || s.Error == "" {
			t.Errorf("while Placement is down: %+v", s)
		}
		b.wire.mu.Lock()
		b.wire.before = nil
		b.wire.mu.Unlock()
		time.Sleep(10 * time.Second)
		if s := b.r.Status(); !s.InSync {
			t.Errorf("after it came back: %+v", s)
		}
		before := b.r.Status().Reads
		b.r.Kick()
		synctest.Wait()
		if after := b.r.Status().Reads; after != before+1 {
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
