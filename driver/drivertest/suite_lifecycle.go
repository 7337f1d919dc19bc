package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

func lifecycle() []property {
	return []property{
		{"Node_NamesItself", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			if n.Hostname == "" || n.Hypervisor == "" || n.Arch == "" || n.LibraryVersion == 0 || n.HypervisorVersion == 0 {
				t.Errorf("node has empty fields: %+v", n)
			}
		}},
		{"Node_HasAHostUUIDThatStays", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			again, err := b.d.Node(within(t))
			must(t, "Node", err)
			if _, err := uuid.Parse(n.UUID); err != nil || n.UUID != again.UUID {
				t.Errorf("host uuid %q, then %q: %v", n.UUID, again.UUID, err)
			}
		}},
		{"Node_ListsMachines", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			if len(n.Machines) == 0 || !slices.IsSorted(n.Machines) {
				t.Errorf("machines %q, want some, sorted", n.Machines)
			}
		}},
		{"Define_MakesAStoppedPersistentDomain", func(t testing.TB, b *bench) {
			id := b.guest(t)
			v := wantState(t, b.d, id, driver.ShutOff)
			if v.UUID != id || v.Name != "conf-"+id[:8] || v.ID != -1 || !v.Persistent || v.Autostart || v.VCPUs < 1 || v.MemoryMB < 1 {
				t.Errorf("unexpected domain %+v", v)
			}
		}},
		{"Define_IsSafeToRepeat", func(t testing.TB, b *bench) {
			id := b.guest(t)
			before := domainOf(t, b.d, id)
			must(t, "Define again", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
			if after := domainOf(t, b.d, id); after != before {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Define_OfARunningDomainLeavesItRunning", func(t testing.TB, b *bench) {
			id := b.running(t)
			before := domainOf(t, b.d, id)
			must(t, "Define again", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], id)))
			if after := domainOf(t, b.d, id); after.ID != before.ID || after.State != driver.Running {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Define_RefusesGarbage", func(t testing.TB, b *bench) {
			wantKind(t, "Define of garbage", b.d.Define(within(t), "<domain><name>"), fault.Invalid)
			wantKind(t, "Define of another element", b.d.Define(within(t), "<network><name>x</name></network>"), fault.Invalid)
		}},
		{"Define_RefusesATakenName", func(t testing.TB, b *bench) {
			id := b.guest(t)
			wantKind(t, "Define", b.d.Define(within(t), b.DomainXML("conf-"+id[:8], uuid.NewString())), fault.Exists)
		}},
		{"Domain_UnknownIsNotFound", func(t testing.TB, b *bench) {
			_, err := b.d.Domain(within(t), uuid.NewString())
			wantKind(t, "Domain", err, fault.NotFound)
		}},
		{"XML_UnknownIsNotFound", func(t testing.TB, b *bench) {
			_, err := b.d.XML(within(t), uuid.NewString(), driver.Live)
			wantKind(t, "XML", err, fault.NotFound)
		}},
		{"Verbs_UnknownIsNotFound", func(t testing.TB, b *bench) {
			id := uuid.NewString()
			wantKind(t, "Start", b.d.Start(within(t), id, false), fault.NotFound)
			wantKind(t, "Suspend", b.d.Suspend(within(t), id), fault.NotFound)
			wantKind(t, "Resume", b.d.Resume(within(t), id), fault.NotFound)
			wantKind(t, "Shutdown", b.d.Shutdown(within(t), id), fault.NotFound)
			wantKind(t, "Destroy", b.d.Destroy(within(t), id), fault.NotFound)
			wantKind(t, "SetAutostart", b.d.SetAutostart(within(t), id, true), fault.NotFound)
		}},
		{"Domains_ListsRunningAndStopped", func(t testing.TB, b *bench) {
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
		{"Domains_SurvivesDomainsVanishingMeanwhile", func(t testing.TB, b *bench) {
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
		{"XML_GivesEveryForm", func(t testing.TB, b *bench) {
			id := b.running(t)
			for what, name := range map[driver.Document]string{driver.Live: "live", driver.Persistent: "persistent", driver.Migratable: "migratable"} {
				doc, err := b.d.XML(within(t), id, what)
				must(t, name, err)
				if !strings.Contains(doc, "<domain") || !strings.Contains(doc, id) {
					t.Errorf("%s document does not name the domain: %.200s", name, doc)
				}
			}
		}},
		{"XML_OfAStoppedDomainCanBeDefinedAgain", func(t testing.TB, b *bench) {
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
		{"Start_RunsTheDomain", func(t testing.TB, b *bench) {
			id := b.running(t)
			if v := wantState(t, b.d, id, driver.Running); v.Reason != driver.ReasonBooted || v.ID < 0 || !v.Active() {
				t.Errorf("unexpected domain %+v", v)
			}
		}},
		{"Start_IsSafeToRepeat", func(t testing.TB, b *bench) {
			id := b.running(t)
			before := domainOf(t, b.d, id)
			must(t, "Start again", b.d.Start(within(t), id, false))
			if after := domainOf(t, b.d, id); after != before {
				t.Errorf("domain changed: %+v, was %+v", after, before)
			}
		}},
		{"Start_PausedDoesNotRun", func(t testing.TB, b *bench) {
			id := b.guest(t)
			must(t, "Start", b.d.Start(within(t), id, true))
			if v := wantState(t, b.d, id, driver.Paused); !v.Active() {
				t.Errorf("a paused domain is not active: %+v", v)
			}
			must(t, "Resume", b.d.Resume(within(t), id))
			wantState(t, b.d, id, driver.Running)
		}},
		{"Start_NeverResumesAPausedDomain", func(t testing.TB, b *bench) {
			id := b.running(t)
			must(t, "Suspend", b.d.Suspend(within(t), id))
			must(t, "Start", b.d.Start(within(t), id, false))
			wantState(t, b.d, id, driver.Paused)
		}},
		{"SuspendResume_AreSafeToRepeat", func(t testing.TB, b *bench) {
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
		{"SuspendResume_OfAStoppedDomainIsInvalid", func(t testing.TB, b *bench) {
			id := b.guest(t)
			wantKind(t, "Suspend", b.d.Suspend(within(t), id), fault.Invalid)
			wantKind(t, "Resume", b.d.Resume(within(t), id), fault.Invalid)
			wantState(t, b.d, id, driver.ShutOff)
		}},
		{"Destroy_StopsAndKeepsTheDefinition", func(t testing.TB, b *bench) {
			id := b.running(t)
			for range 2 {
				must(t, "Destroy", b.d.Destroy(within(t), id))
				if v := wantState(t, b.d, id, driver.ShutOff); v.ID != -1 || !v.Persistent || v.Active() {
					t.Errorf("unexpected domain %+v", v)
				}
			}
		}},
		{"Shutdown_AsksAndIsSafeToRepeat", func(t testing.TB, b *bench) {
			id := b.running(t)
			must(t, "Shutdown", b.d.Shutdown(within(t), id))
			// The guest may ignore it; what matters is that asking neither hangs nor fails.
			must(t, "Destroy", b.d.Destroy(within(t), id))
			must(t, "Shutdown of a stopped domain", b.d.Shutdown(within(t), id))
		}},
		{"Undefine_RemovesAndIsSafeToRepeat", func(t testing.TB, b *bench) {
			id := b.guest(t)
			must(t, "Undefine", b.d.Undefine(within(t), id))
			_, err := b.d.Domain(within(t), id)
			wantKind(t, "Domain", err, fault.NotFound)
			must(t, "Undefine again", b.d.Undefine(within(t), id))
		}},
		{"Undefine_OfARunningDomainMakesItTransient", func(t testing.TB, b *bench) {
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
		{"Autostart_IsKept", func(t testing.TB, b *bench) {
			id := b.guest(t)
			for _, on := range []bool{true, true, false, false} {
				must(t, "SetAutostart", b.d.SetAutostart(within(t), id, on))
				if v := domainOf(t, b.d, id); v.Autostart != on {
					t.Errorf("autostart %v, want %v", v.Autostart, on)
				}
			}
		}},
		{"Close_EndsCalls", func(t testing.TB, b *bench) {
			d := b.New(t)
			_, err := d.Node(within(t))
			must(t, "Node", err)
			must(t, "Close", d.Close())
			must(t, "Close again", d.Close())
			for name, err := range calls(within(t), d, b.DomainXML("x", uuid.NewString())) {
				wantKind(t, name+" after Close", err, fault.Unavailable)
			}
			wantKind(t, "Health after Close", d.Health(), fault.Unavailable)
		}},
		{"Calls_EndWithTheirContext", func(t testing.TB, b *bench) {
			ctx, cancel := context.WithCancel(within(t))
			cancel()
			doc := b.DomainXML("conf-late", uuid.NewString())
			for name, err := range calls(ctx, b.d, doc) {
				if slices.Contains([]string{"Node", "Domains", "Domain", "XML", "Saved"}, name) {
					wantKind(t, name, err, fault.Unavailable)
				} else {
					wantEither(t, name, err, fault.Unavailable, fault.InDoubt)
				}
			}
		}},
		{"Health_IsNilOnceConnected", func(t testing.TB, b *bench) {
			eventually(t, "Health", func() bool { return b.d.Health() == nil })
		}},
	}
}

// calls makes every call of driver.Driver with a context, and gives each one's
// error. The domain of the verbs is none.
func calls(ctx context.Context, d driver.Driver, doc string) map[string]error {
	id := uuid.NewString()
	_, node := d.Node(ctx)
	_, all := d.Domains(ctx)
	_, one := d.Domain(ctx, id)
	_, xml := d.XML(ctx, id, driver.Live)
	_, kept := d.Saved(ctx, id)
	return map[string]error{
		"Node": node, "Domains": all, "Domain": one, "XML": xml, "Define": d.Define(ctx, doc), "Undefine": d.Undefine(ctx, id),
		"Saved": kept, "DiscardSavedMemory": d.DiscardSavedMemory(ctx, id),
		"Start": d.Start(ctx, id, false), "Suspend": d.Suspend(ctx, id), "Resume": d.Resume(ctx, id),
		"Shutdown": d.Shutdown(ctx, id), "Destroy": d.Destroy(ctx, id), "SetAutostart": d.SetAutostart(ctx, id, true),
	}
}
