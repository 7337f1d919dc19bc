package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// Harness says how to get at one hypervisor.
type Harness struct {
	// New gives a driver of its own, connected or not; the suite closes it.
	New func(t *testing.T) driver.Driver
	// DomainXML is the document of a small domain that this hypervisor starts.
	DomainXML func(name, uuid string) string
	// Cannot declares what this hypervisor cannot do: property (the subtest's
	// name) → why. Everything else is required.
	Cannot map[string]string
	// Restart ends and starts the hypervisor's daemon; running guests go on.
	// Hang stops it as SIGSTOP does, until the function it returns is called.
	// nil where there is no daemon; then Cannot must say so.
	Restart func(t *testing.T)
	Hang    func(t *testing.T) (release func())
	// Pair gives two hosts for migrations; nil where Cannot says why not.
	Pair func(t *testing.T) Pair
}

// Pair is two hosts of one kind with a network between them.
type Pair struct {
	Source, Destination driver.Driver
	DestinationURI      string // of the destination, as the source reaches it
	// Slow makes migrations last until Fast is called or they are aborted.
	Slow, Fast func()
}

// call bounds one call of the suite; real daemons on a busy machine are slow.
const call = 30 * time.Second

// property is one promise of the contract.
type property struct {
	name string
	test func(*testing.T, *bench)
}

// bench is what a property works with.
type bench struct {
	Harness
	d driver.Driver
}

// Run holds a driver to the contract of package driver, each property a subtest.
func Run(t *testing.T, h Harness) {
	properties := append(lifecycle(), events()...)
	properties = append(properties, outages()...)
	properties = append(properties, migrations()...)
	known := map[string]bool{}
	for _, p := range properties {
		known[p.name] = true
		t.Run(p.name, func(t *testing.T) {
			if why, ok := h.Cannot[p.name]; ok {
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
		})
	}
	for name := range h.Cannot {
		if !known[name] {
			t.Errorf("the harness declares %q impossible, which is no property of the suite", name)
		}
	}
}

// Properties names the suite's properties whose name begins with prefix, for
// harnesses that declare a whole group impossible.
func Properties(prefix string) []string {
	var out []string
	for _, group := range [][]property{lifecycle(), events(), outages(), migrations()} {
		for _, p := range group {
			if strings.HasPrefix(p.name, prefix) {
				out = append(out, p.name)
			}
		}
	}
	return out
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), call)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func wantKind(t *testing.T, what string, err error, kind fault.Kind) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("%s: got error %v (kind %q), want kind %q", what, err, fault.KindOf(err), kind)
	}
}

// wantEither is for daemons that may or may not have begun.
func wantEither(t *testing.T, what string, err error, kinds ...fault.Kind) {
	t.Helper()
	for _, k := range kinds {
		if errors.Is(err, k) {
			return
		}
	}
	t.Fatalf("%s: got error %v (kind %q), want one of %v", what, err, fault.KindOf(err), kinds)
}

// guest defines a domain of the test's own and removes it afterwards.
func (b *bench) guest(t *testing.T) string {
	t.Helper()
	id := uuid.NewString()
	must(t, "Define", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
	t.Cleanup(func() { b.remove(t, b.d, id) })
	return id
}

// remove leaves no trace of a domain, whatever state the test left it in.
func (b *bench) remove(t *testing.T, d driver.Driver, id string) {
	t.Helper()
	ctx := within(t)
	if err := d.Destroy(ctx, id); err != nil && !errors.Is(err, fault.NotFound) {
		t.Errorf("remove %s: destroy: %v", id, err)
	}
	if err := d.Undefine(ctx, id); err != nil {
		t.Errorf("remove %s: undefine: %v", id, err)
	}
}

func (b *bench) running(t *testing.T) string {
	t.Helper()
	id := b.guest(t)
	must(t, "Start", b.d.Start(within(t), id, false))
	return id
}

func domainOf(t *testing.T, d driver.Driver, id string) driver.Domain {
	t.Helper()
	v, err := d.Domain(within(t), id)
	must(t, "Domain", err)
	return v
}

func wantState(t *testing.T, d driver.Driver, id string, want driver.State) driver.Domain {
	t.Helper()
	v := domainOf(t, d, id)
	if v.State != want {
		t.Fatalf("domain is %s (%s), want %s", v.State, v.Reason, want)
	}
	return v
}

// eventually asks until the condition holds; what it waits for happens in
// another process, so there is nothing to be told by.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(call)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, call)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func lifecycle() []property {
	return []property{
		{"Node_NamesItself", func(t *testing.T, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			if n.Hostname == "" || n.Hypervisor == "" || n.Arch == "" || n.LibraryVersion == 0 || n.HypervisorVersion == 0 {
				t.Errorf("node has empty fields: %+v", n)
			}
		}},
		{"Node_HasAHostUUIDThatStays", func(t *testing.T, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			again, err := b.d.Node(within(t))
			must(t, "Node", err)
			if _, err := uuid.Parse(n.UUID); err != nil || n.UUID != again.UUID {
				t.Errorf("host uuid %q, then %q: %v", n.UUID, again.UUID, err)
			}
		}},
		{"Node_ListsMachines", func(t *testing.T, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			if len(n.Machines) == 0 || !slices.IsSorted(n.Machines) {
				t.Errorf("machines %q, want some, sorted", n.Machines)
			}
		}},
		{"Define_MakesAStoppedPersistentDomain", func(t *testing.T, b *bench) {
			id := b.guest(t)
			v := wantState(t, b.d, id, driver.ShutOff)
			if v.UUID != id || v.Name != "conf-"+id[:8] || v.ID != -1 || !v.Persistent || v.Autostart || v.VCPUs < 1 || v.MemoryMB < 1 {
				t.Errorf("unexpected domain %+v", v)
			}
		}},
		{"Define_IsSafeToRepeat", func(t *testing.T, b *bench) {
			id := b.guest(t)
			before := domainOf(t, b.d, id)
			must(t, "Define again", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
			if after := domainOf(t, b.d, id); after != before {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Define_OfARunningDomainLeavesItRunning", func(t *testing.T, b *bench) {
			id := b.running(t)
			before := domainOf(t, b.d, id)
			must(t, "Define again", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
			if after := domainOf(t, b.d, id); after.ID != before.ID || after.State != driver.Running {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Define_RefusesGarbage", func(t *testing.T, b *bench) {
			wantKind(t, "Define of garbage", b.d.Define(within(t), "<domain><name>"), fault.Invalid)
			wantKind(t, "Define of another element", b.d.Define(within(t), "<network><name>x</name></network>"), fault.Invalid)
		}},
		{"Define_RefusesATakenName", func(t *testing.T, b *bench) {
			id := b.guest(t)
			wantKind(t, "Define", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], uuid.NewString())), fault.Exists)
		}},
		{"Domain_UnknownIsNotFound", func(t *testing.T, b *bench) {
			_, err := b.d.Domain(within(t), uuid.NewString())
			wantKind(t, "Domain", err, fault.NotFound)
		}},
		{"XML_UnknownIsNotFound", func(t *testing.T, b *bench) {
			_, err := b.d.XML(within(t), uuid.NewString(), driver.Live)
			wantKind(t, "XML", err, fault.NotFound)
		}},
		{"Verbs_UnknownIsNotFound", func(t *testing.T, b *bench) {
			id := uuid.NewString()
			wantKind(t, "Start", b.d.Start(within(t), id, false), fault.NotFound)
			wantKind(t, "Suspend", b.d.Suspend(within(t), id), fault.NotFound)
			wantKind(t, "Resume", b.d.Resume(within(t), id), fault.NotFound)
			wantKind(t, "Shutdown", b.d.Shutdown(within(t), id), fault.NotFound)
			wantKind(t, "Destroy", b.d.Destroy(within(t), id), fault.NotFound)
			wantKind(t, "SetAutostart", b.d.SetAutostart(within(t), id, true), fault.NotFound)
		}},
		{"Domains_ListsRunningAndStopped", func(t *testing.T, b *bench) {
			stopped, running := b.guest(t), b.running(t)
			list, err := b.d.Domains(within(t))
			must(t, "Domains", err)
			got := map[string]driver.Domain{}
			for _, v := range list {
				if _, twice := got[v.UUID]; twice {
					t.Errorf("domain %s is listed twice", v.UUID)
				}
				got[v.UUID] = v
			}
			for _, id := range []string{stopped, running} {
				if one := domainOf(t, b.d, id); got[id] != one {
					t.Errorf("listed %+v, asked alone %+v", got[id], one)
				}
			}
		}},
		{"Domains_SurvivesDomainsVanishingMeanwhile", func(t *testing.T, b *bench) {
			keep := b.guest(t)
			ids := make([]string, 8)
			for i := range ids {
				ids[i] = uuid.NewString()
				must(t, "Define", b.d.Define(within(t), b.DomainXML(fmt.Sprintf("gone-%d-%s", i, ids[i][:8]), ids[i])))
			}
			ctx := within(t)
			done := make(chan error, 1)
			go func() {
				for _, id := range ids {
					if err := b.d.Undefine(ctx, id); err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			for over := false; !over; {
				select {
				case err := <-done:
					must(t, "Undefine", err)
					over = true
				default:
				}
				list, err := b.d.Domains(within(t))
				must(t, "Domains", err)
				found := false
				for _, v := range list {
					found = found || v.UUID == keep
				}
				if !found {
					t.Fatal("a domain that stayed is missing from the list")
				}
			}
		}},
		{"XML_GivesEveryForm", func(t *testing.T, b *bench) {
			id := b.running(t)
			for what, name := range map[driver.Document]string{driver.Live: "live", driver.Persistent: "persistent", driver.Migratable: "migratable"} {
				doc, err := b.d.XML(within(t), id, what)
				must(t, name, err)
				if !strings.Contains(doc, "<domain") || !strings.Contains(doc, id) {
					t.Errorf("%s document does not name the domain: %.200s", name, doc)
				}
			}
		}},
		{"XML_OfAStoppedDomainCanBeDefinedAgain", func(t *testing.T, b *bench) {
			id := b.guest(t)
			doc, err := b.d.XML(within(t), id, driver.Live)
			must(t, "XML", err)
			must(t, "Define", b.d.Define(within(t), doc))
			again, err := b.d.XML(within(t), id, driver.Live)
			must(t, "XML", err)
			if doc != again {
				t.Errorf("the document changed by being defined again:\n%s\nwas:\n%s", again, doc)
			}
		}},
		{"Start_RunsTheDomain", func(t *testing.T, b *bench) {
			id := b.running(t)
			if v := wantState(t, b.d, id, driver.Running); v.Reason != driver.ReasonBooted || v.ID < 0 || !v.Active() {
				t.Errorf("unexpected domain %+v", v)
			}
		}},
		{"Start_IsSafeToRepeat", func(t *testing.T, b *bench) {
			id := b.running(t)
			before := domainOf(t, b.d, id)
			must(t, "Start again", b.d.Start(within(t), id, false))
			if after := domainOf(t, b.d, id); after != before {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Start_PausedDoesNotRun", func(t *testing.T, b *bench) {
			id := b.guest(t)
			must(t, "Start", b.d.Start(within(t), id, true))
			if v := wantState(t, b.d, id, driver.Paused); !v.Active() {
				t.Errorf("a paused domain is not active: %+v", v)
			}
			must(t, "Resume", b.d.Resume(within(t), id))
			wantState(t, b.d, id, driver.Running)
		}},
		{"Start_NeverResumesAPausedDomain", func(t *testing.T, b *bench) {
			id := b.running(t)
			must(t, "Suspend", b.d.Suspend(within(t), id))
			must(t, "Start", b.d.Start(within(t), id, false))
			wantState(t, b.d, id, driver.Paused)
		}},
		{"SuspendResume_AreSafeToRepeat", func(t *testing.T, b *bench) {
			id := b.running(t)
			for range 2 {
				must(t, "Suspend", b.d.Suspend(within(t), id))
				if v := wantState(t, b.d, id, driver.Paused); v.Reason != driver.ReasonUser {
					t.Errorf("paused for %q, want %q", v.Reason, driver.ReasonUser)
				}
			}
			for range 2 {
				must(t, "Resume", b.d.Resume(within(t), id))
				wantState(t, b.d, id, driver.Running)
			}
		}},
		{"SuspendResume_OfAStoppedDomainIsInvalid", func(t *testing.T, b *bench) {
			id := b.guest(t)
			wantKind(t, "Suspend", b.d.Suspend(within(t), id), fault.Invalid)
			wantKind(t, "Resume", b.d.Resume(within(t), id), fault.Invalid)
			wantState(t, b.d, id, driver.ShutOff)
		}},
		{"Destroy_StopsAndKeepsTheDefinition", func(t *testing.T, b *bench) {
			id := b.running(t)
			for range 2 {
				must(t, "Destroy", b.d.Destroy(within(t), id))
				if v := wantState(t, b.d, id, driver.ShutOff); v.ID != -1 || !v.Persistent || v.Active() {
					t.Errorf("unexpected domain %+v", v)
				}
			}
		}},
		{"Shutdown_AsksAndIsSafeToRepeat", func(t *testing.T, b *bench) {
			id := b.running(t)
			must(t, "Shutdown", b.d.Shutdown(within(t), id))
			// The guest may ignore it; what matters is that asking neither hangs nor fails.
			must(t, "Destroy", b.d.Destroy(within(t), id))
			must(t, "Shutdown of a stopped domain", b.d.Shutdown(within(t), id))
		}},
		{"Undefine_RemovesAndIsSafeToRepeat", func(t *testing.T, b *bench) {
			id := b.guest(t)
			must(t, "Undefine", b.d.Undefine(within(t), id))
			_, err := b.d.Domain(within(t), id)
			wantKind(t, "Domain", err, fault.NotFound)
			must(t, "Undefine again", b.d.Undefine(within(t), id))
		}},
		{"Undefine_OfARunningDomainMakesItTransient", func(t *testing.T, b *bench) {
			id := b.running(t)
			for range 2 {
				must(t, "Undefine", b.d.Undefine(within(t), id))
				if v := wantState(t, b.d, id, driver.Running); v.Persistent {
					t.Errorf("still persistent: %+v", v)
				}
			}
			must(t, "Destroy", b.d.Destroy(within(t), id))
			_, err := b.d.Domain(within(t), id)
			wantKind(t, "Domain", err, fault.NotFound)
		}},
		{"Autostart_IsKept", func(t *testing.T, b *bench) {
			id := b.guest(t)
			for _, on := range []bool{true, true, false, false} {
				must(t, "SetAutostart", b.d.SetAutostart(within(t), id, on))
				if v := domainOf(t, b.d, id); v.Autostart != on {
					t.Errorf("autostart %v, want %v", v.Autostart, on)
				}
			}
		}},
		{"Close_EndsCalls", func(t *testing.T, b *bench) {
			d := b.New(t)
			_, err := d.Node(within(t))
			must(t, "Node", err)
			must(t, "Close", d.Close())
			must(t, "Close again", d.Close())
			_, err = d.Domains(within(t))
			wantKind(t, "Domains after Close", err, fault.Unavailable)
			wantKind(t, "Define after Close", d.Define(within(t), b.DomainXML("x", uuid.NewString())), fault.Unavailable)
			wantKind(t, "Health after Close", d.Health(), fault.Unavailable)
		}},
		{"Calls_EndWithTheirContext", func(t *testing.T, b *bench) {
			ctx, cancel := context.WithCancel(within(t))
			cancel()
			_, err := b.d.Domains(ctx)
			wantKind(t, "Domains", err, fault.Unavailable)
			wantEither(t, "Start", b.d.Start(ctx, uuid.NewString(), false), fault.Unavailable, fault.InDoubt)
		}},
		{"Health_IsNilOnceConnected", func(t *testing.T, b *bench) {
			eventually(t, "Health", func() bool { return b.d.Health() == nil })
		}},
	}
}
