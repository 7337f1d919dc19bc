package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// Harness says how to get at one hypervisor. What is nil there is nothing of;
// then Cannot must say so of each property that needs it.
type Harness struct {
	// New gives a driver of its own, connected or not; the suite closes it.
	New func(t testing.TB) driver.Driver
	// DomainXML is the document of a small domain that this hypervisor starts,
	// AgentXML one of a domain in which a guest agent answers soon after its start.
	DomainXML, AgentXML func(name, uuid string) string
	// Cannot declares what this hypervisor cannot do: property (the subtest's
	// name) → why. Everything else is required.
	Cannot map[string]string
	// Only, where it is not nil, chooses properties: for one more daemon of a kind
	// that the whole suite is held to elsewhere.
	Only func(property string) bool
	// Restart ends and starts the hypervisor's daemon; running guests go on.
	// Hang stops it as SIGSTOP does, until the function it returns is called.
	Restart func(t testing.TB)
	Hang    func(t testing.TB) (release func())
	// Change changes something of a running domain that is no part of its life,
	// as an operator does with virsh.
	Change func(t testing.TB, uuid string)
	// Save saves the memory of a running domain and ends it, as `virsh managedsave` does.
	// Snapshot and Checkpoint make one of a running domain of SavedXML, by name, and Unsnapshot
	// gives up what they made.
	Save                             func(t testing.TB, uuid string)
	SavedXML                         func(t testing.TB, name, uuid string) string
	Snapshot, Checkpoint, Unsnapshot func(t testing.TB, uuid, name string)
	// Plug adds a device to the host, and names it; unplug takes it away again.
	Plug func(t testing.TB) (name string, unplug func())
	// Wired gives what guests can be connected to; each call may give the same.
	Wired func(t testing.TB) Wiring
	// Pair gives two hosts for migrations.
	Pair func(t testing.TB) Pair
}

// Pair is two hosts of one kind with a network between them.
type Pair struct {
	Source, Destination driver.Driver
	DestinationURI      string // of the destination, as the source reaches it
	// Slow makes migrations last until Fast is called or they are aborted.
	Slow, Fast func()
	// Endless makes a migration last until it may stand still for longer: memory
	// changes faster than it is sent, at a rate that can be borne.
	Endless func(t testing.TB, m *driver.Migration)
	// DiskXML is the document of a small domain with the disk vda, which each of
	// the hosts has a copy of its own of.
	DiskXML func(t testing.TB, name, uuid string) string
	// Forward makes unix sockets that lead from the source to the destination, for its
	// libvirt, for memory and for disks, and names them in m. connections counts those
	// that were made by each.
	Forward func(t testing.TB, uuid string, m *driver.Migration) (connections func() (control, memory, disks int))
	// Break closes the connections by which a guest's memory goes, at both ends, as the
	// process that forwards them does; only after Forward.
	Break func(t testing.TB, uuid string)
	// HeavyXML is the document of a domain that has much to send and seldom needs it;
	// Filled waits until it has, once it runs. Warm waits until it has run at the destination
	// for a while, and has all that it needs of it: a hypervisor may wait for what has not
	// come and answer nobody meanwhile (QEMU, where a thread waits with its lock held).
	HeavyXML     func(name, uuid string) string
	Filled, Warm func(t testing.TB, name string)
	// Lacks is a CPU feature that the destination's hypervisor has not.
	Lacks string
}

// call bounds one call of the suite; real daemons on a busy machine are slow.
const call = 2 * time.Minute

// patience is call, or what t bears.
func patience(t testing.TB) time.Duration {
	if p, ok := t.(interface{ Patience() time.Duration }); ok {
		return p.Patience()
	}
	return call
}

// property is one promise of the contract.
type property struct {
	name string
	test func(testing.TB, *bench)
}

// bench is what a property works with.
type bench struct {
	Harness
	d driver.Driver
}

// Result is what a run of the suite found about one property: neither passed nor
// impossible is failed.
type Result struct {
	Passed     bool
	Impossible string // why, where the harness declares it
}

// Run holds a driver to the contract of package driver, each property a subtest.
// It gives a result of each property that was looked at: go test's own choice of
// subtests, and Harness.Only, leave the others out.
func Run(t *testing.T, h Harness) map[string]Result {
	out := map[string]Result{}
	for _, p := range properties() {
		if h.Only != nil && !h.Only(p.name) {
			continue
		}
		looked, skipped := false, false
		passed := t.Run(p.name, func(t *testing.T) {
			looked = true
			defer func() { skipped = t.Skipped() }()
			hold(t, p, h)
		})
		if skipped { // go test calls that passed
			t.Errorf("%s was skipped: what cannot be held is declared impossible", p.name)
		}
		if looked {
			why := h.Cannot[p.name]
			out[p.name] = Result{Passed: passed && !skipped && why == "", Impossible: why}
		}
	}
	for name := range h.Cannot {
		if !slices.Contains(Properties(""), name) {
			t.Errorf("the harness declares %q impossible, which is no property of the suite", name)
		}
	}
	return out
}

// hold holds a driver to one property.
func hold(t testing.TB, p property, h Harness) {
	if why, ok := h.Cannot[p.name]; ok {
		if why == "" {
			t.Errorf("the harness declares %s impossible and does not say why", p.name)
		}
		t.Logf("declared impossible: %s", why)
		return
	}
	d := h.New(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	p.test(t, &bench{Harness: h, d: d})
}

// properties are all, in the order in which they are run.
func properties() []property {
	return slices.Concat(lifecycle(), saved(), events(), outages(), migrations(), underControl(), postCopies(), abilities(), agents(), statistics(), devices(), connections())
}

// Properties names the suite's properties whose name begins with one of the
// prefixes, for harnesses that declare whole groups impossible.
func Properties(prefixes ...string) []string {
	var out []string
	for _, p := range properties() {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(p.name, prefix) }) {
			out = append(out, p.name)
		}
	}
	return out
}

// OfAbility names the properties that an ability is held to: impossible, all of
// them, on a hypervisor that has it not, and on no other.
func OfAbility(a driver.Ability) []string {
	return Properties(map[driver.Ability][]string{
		driver.AbilityLiveMigration: {"Migrate_", "Job_", "CheckCPU_"},
		driver.AbilityStorageCopy:   {"StorageCopy_"},
		driver.AbilityPostCopy:      {"PostCopy_"},
		driver.AbilityGuestAgent:    {"GuestAgent_"},
		driver.AbilityStatistics:    {"Statistics_"},
		driver.AbilityDevices:       {"Devices_"},
		driver.AbilityConnections:   {"Connections_"},
		driver.AbilityRecovery:      {"Recovery_"},
	}[a]...)
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience(t))
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantKind(t testing.TB, what string, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: got error %v (kind %q), want kind %q", what, err, fault.KindOf(err), kind)
	}
}

// wantEither is for daemons that may or may not have begun.
func wantEither(t testing.TB, what string, err error, kinds ...fault.Kind) {
	t.Helper()
	for _, k := range kinds {
		if errors.Is(err, k) {
			return
		}
	}
	t.Fatalf("%s: got error %v (kind %q), want one of %v", what, err, fault.KindOf(err), kinds)
}

// guest defines a domain of the test's own and removes it afterwards.
func (b *bench) guest(t testing.TB) string {
	t.Helper()
	id := uuid.NewString()
	b.define(t, id, b.DomainXML("conf-"+id[:8], id))
	return id
}

func (b *bench) define(t testing.TB, id, doc string) {
	t.Helper()
	must(t, "Define", b.d.Define(within(t), doc))
	t.Cleanup(func() { b.remove(t, b.d, id) })
}

// remove leaves no trace of a domain, whatever state the test left it in.
func (b *bench) remove(t testing.TB, d driver.Driver, id string) {
	t.Helper()
	ctx := within(t)
	if err := d.Destroy(ctx, id); err != nil && !errors.Is(err, fault.NotFound) {
		t.Errorf("remove %s: destroy: %v", id, err)
	}
	if err := d.Undefine(ctx, id); err != nil {
		t.Errorf("remove %s: undefine: %v", id, err)
	}
}

func (b *bench) running(t testing.TB) string {
	t.Helper()
	id := b.guest(t)
	must(t, "Start", b.d.Start(within(t), id, false))
	return id
}

func domainOf(t testing.TB, d driver.Driver, id string) driver.Domain {
	t.Helper()
	v, err := d.Domain(within(t), id)
	must(t, "Domain", err)
	return v
}

func wantState(t testing.TB, d driver.Driver, id string, want driver.State) driver.Domain {
	t.Helper()
	v := domainOf(t, d, id)
	if v.State != want {
		t.Fatalf("domain is %s (%s), want %s", v.State, v.Reason, want)
	}
	return v
}

// eventually asks until the condition holds; what it waits for happens in
// another process, so there is nothing to be told by.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience(t))
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience(t))
		}
		<-time.After(20 * time.Millisecond)
	}
}
