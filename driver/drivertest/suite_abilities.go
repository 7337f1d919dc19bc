package drivertest

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth/driver"
	"berth/internal/fault"
)

// finders ask for each ability and forget what they found.
var finders = map[driver.Ability]func(driver.Driver, driver.Node) error{
	driver.AbilityLiveMigration: forget(driver.LiveMigration),
	driver.AbilityStorageCopy:   forget(driver.StorageCopy),
	driver.AbilityPostCopy:      forget(driver.PostCopy),
	driver.AbilityGuestAgent:    forget(driver.Agent),
	driver.AbilityStatistics:    forget(driver.Statistics),
	driver.AbilityDevices:       forget(driver.Devices),
	driver.AbilityConnections:   forget(driver.Connections),
	driver.AbilityRecovery:      forget(driver.PostCopyRecovery),
}

func forget[I any](finder func(driver.Driver, driver.Node) (I, error)) func(driver.Driver, driver.Node) error {
	return func(d driver.Driver, n driver.Node) error { _, err := finder(d, n); return err }
}

func abilities() []property {
	return []property{
		{"Abilities_AreFoundOrRefusedWithAReason", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			for _, a := range driver.Abilities() {
				err := finders[a](b.d, n)
				if err == nil {
					continue
				}
				wantKind(t, string(a), err, fault.Forbidden)
				if r := fault.ReasonsOf(err); len(r) != 1 || r[0].Code != "no_"+string(a) {
					t.Errorf("%s: reasons %+v, want no_%s", a, r, a)
				}
				if why, declared := n.Cannot[a]; declared && (why == "" || !strings.Contains(err.Error(), why)) {
					t.Errorf("%s: %v, want the hypervisor's own reason %q", a, err, why)
				}
			}
			for a := range n.Cannot {
				if !slices.Contains(driver.Abilities(), a) {
					t.Errorf("the hypervisor cannot %q, which is no ability", a)
				}
			}
		}},
		{"Abilities_EndWithTheDriver", func(t testing.TB, b *bench) {
			d := b.New(t)
			n, err := d.Node(within(t))
			must(t, "Node", err)
			must(t, "Close", d.Close())
			for name, err := range abilityCalls(within(t), d, n, b.DomainXML) {
				wantKind(t, name+" after Close", err, fault.Unavailable)
			}
		}},
		{"Abilities_EndWithTheirContext", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			ctx, cancel := context.WithCancel(within(t))
			cancel()
			for name, err := range abilityCalls(ctx, b.d, n, b.DomainXML) {
				wantEither(t, name, err, fault.Unavailable, fault.InDoubt)
			}
		}},
		// What a harness calls impossible, the driver must say to its users too:
		// they have nothing but Node.
		{"Abilities_MissingOnesAreDeclaredByTheNode", func(t testing.TB, b *bench) {
			n, err := b.d.Node(within(t))
			must(t, "Node", err)
			for _, a := range driver.Abilities() {
				missing := !slices.ContainsFunc(OfAbility(a), func(p string) bool { return b.Cannot[p] == "" })
				if err := finders[a](b.d, n); (err != nil) != missing {
					t.Errorf("%s: every property declared impossible: %v; the finder says: %v", a, missing, err)
				}
			}
		}},
	}
}

// abilityCalls makes every call of the abilities that are found, with a context,
// and gives each one's error. The domain of the verbs is none.
func abilityCalls(ctx context.Context, d driver.Driver, n driver.Node, document func(name, uuid string) string) map[string]error {
	out, id := map[string]error{}, uuid.NewString()
	doc := document("conf-none", id)
	if m, err := driver.LiveMigration(d, n); err == nil {
		out["CheckCPU"] = m.CheckCPU(ctx, doc)
		out["Migrate"] = m.Migrate(ctx, id, driver.Migration{DestinationURI: "qemu+tls://nowhere/system", DestinationXML: doc, PersistentXML: doc})
		_, out["Job"] = m.Job(ctx, id)
		_, out["CompletedJob"] = m.CompletedJob(ctx, id)
		out["AbortJob"] = m.AbortJob(ctx, id)
		out["SetMaxDowntime"] = m.SetMaxDowntime(ctx, id, time.Second)
		out["SetBandwidth"] = m.SetBandwidth(ctx, id, 1<<20)
	}
	if c, err := driver.StorageCopy(d, n); err == nil {
		_, out["DiskCopies"] = c.DiskCopies(ctx, id)
	}
	if p, err := driver.PostCopy(d, n); err == nil {
		out["StartPostCopy"] = p.StartPostCopy(ctx, id)
	}
	if r, err := driver.PostCopyRecovery(d, n); err == nil {
		out["FailPostCopy"] = r.FailPostCopy(ctx, id)
		out["RecoverPostCopy"] = r.RecoverPostCopy(ctx, id, driver.Migration{DestinationURI: "qemu+tls://nowhere/system", DestinationXML: doc, PersistentXML: doc})
	}
	if a, err := driver.Agent(d, n); err == nil {
		out["PingAgent"] = a.PingAgent(ctx, id)
		_, out["FreezeFilesystems"] = a.FreezeFilesystems(ctx, id)
		_, out["ThawFilesystems"] = a.ThawFilesystems(ctx, id)
	}
	if s, err := driver.Statistics(d, n); err == nil {
		_, out["Statistics"] = s.Statistics(ctx)
	}
	if w, err := driver.Devices(d, n); err == nil {
		_, out["HostDevices"] = w.HostDevices(ctx)
		_, out["DeviceEvents"] = w.DeviceEvents(ctx)
	}
	if c, err := driver.Connections(d, n); err == nil {
		_, out["Network"] = c.Network(ctx, "conf-none")
		_, out["Pool"] = c.Pool(ctx, "conf-none")
		_, out["Volume"] = c.Volume(ctx, "conf-none", "conf-none")
		out["OpenPool"] = c.OpenPool(ctx, "conf-none")
		out["ClosePool"] = c.ClosePool(ctx, "conf-none")
		out["Secret"] = c.Secret(ctx, driver.SecretRef{UUID: id})
	}
	return out
}

func agents() []property {
	return []property{
		{"GuestAgent_WithoutOneIsUnavailable", func(t testing.TB, b *bench) {
			agent := found(t, b.d, driver.Agent)
			id := b.running(t)
			wantKind(t, "PingAgent", agent.PingAgent(within(t), id), fault.Unavailable)
			_, err := agent.FreezeFilesystems(within(t), id)
			wantKind(t, "FreezeFilesystems", err, fault.Unavailable)
			_, err = agent.ThawFilesystems(within(t), id)
			wantKind(t, "ThawFilesystems", err, fault.Unavailable)
			wantState(t, b.d, id, driver.Running)
		}},
		{"GuestAgent_OfAStoppedGuestIsInvalid", func(t testing.TB, b *bench) {
			agent := found(t, b.d, driver.Agent)
			id := b.guest(t)
			wantKind(t, "PingAgent", agent.PingAgent(within(t), id), fault.Invalid)
			_, err := agent.FreezeFilesystems(within(t), id)
			wantKind(t, "FreezeFilesystems", err, fault.Invalid)
			_, err = agent.ThawFilesystems(within(t), id)
			wantKind(t, "ThawFilesystems", err, fault.Invalid)
		}},
		{"GuestAgent_UnknownIsNotFound", func(t testing.TB, b *bench) {
			agent := found(t, b.d, driver.Agent)
			id := uuid.NewString()
			wantKind(t, "PingAgent", agent.PingAgent(within(t), id), fault.NotFound)
			_, err := agent.FreezeFilesystems(within(t), id)
			wantKind(t, "FreezeFilesystems", err, fault.NotFound)
			_, err = agent.ThawFilesystems(within(t), id)
			wantKind(t, "ThawFilesystems", err, fault.NotFound)
		}},
		{"GuestAgent_FreezesAndThaws", func(t testing.TB, b *bench) {
			agent := found(t, b.d, driver.Agent)
			id := uuid.NewString()
			b.define(t, id, b.AgentXML("conf-"+id[:8], id))
			must(t, "Start", b.d.Start(within(t), id, false))
			eventually(t, "the agent", func() bool { return agent.PingAgent(within(t), id) == nil })
			frozen, err := agent.FreezeFilesystems(within(t), id)
			must(t, "FreezeFilesystems", err)
			thawed, err := agent.ThawFilesystems(within(t), id)
			must(t, "ThawFilesystems", err)
			if frozen < 1 || thawed != frozen {
				t.Errorf("%d filesystems frozen, %d thawed, want the same, one or more", frozen, thawed)
			}
			again, err := agent.ThawFilesystems(within(t), id)
			must(t, "ThawFilesystems again", err)
			if again != 0 {
				t.Errorf("%d filesystems thawed that were not frozen", again)
			}
		}},
	}
}

// usageOf is what Statistics tells of one domain; nil when it is not listed.
func usageOf(t testing.TB, s driver.Statistician, id string) *driver.Usage {
	t.Helper()
	list, err := s.Statistics(within(t))
	must(t, "Statistics", err)
	var found *driver.Usage
	for i := range list {
		if list[i].UUID == id {
			if found != nil {
				t.Errorf("domain %s is listed twice", id)
			}
			found = &list[i]
		}
	}
	return found
}

func statistics() []property {
	return []property{
		{"Statistics_TellOfActiveDomains", func(t testing.TB, b *bench) {
			s := found(t, b.d, driver.Statistics)
			stopped, running := b.guest(t), b.running(t)
			if u := usageOf(t, s, stopped); u != nil {
				t.Errorf("a stopped domain uses %+v", *u)
			}
			u, v := usageOf(t, s, running), domainOf(t, b.d, running)
			if u == nil {
				t.Fatal("a running domain is not listed")
			}
			if u.Name != v.Name || u.State != v.State {
				t.Errorf("usage is of %s, %s; want %s, %s", u.Name, u.State, v.Name, v.State)
			}
			must(t, "Suspend", b.d.Suspend(within(t), running))
			if u := usageOf(t, s, running); u == nil || u.State != driver.Paused {
				t.Errorf("a paused domain uses %+v", u)
			}
			must(t, "Destroy", b.d.Destroy(within(t), running))
			if u := usageOf(t, s, running); u != nil {
				t.Errorf("a destroyed domain uses %+v", *u)
			}
		}},
		{"Statistics_CountWhatIsUsed", func(t testing.TB, b *bench) {
			s := found(t, b.d, driver.Statistics)
			id := b.running(t)
			v := domainOf(t, b.d, id)
			u := usageOf(t, s, id)
			if u == nil {
				t.Fatal("a running domain is not listed")
			}
			if u.VCPUs != v.VCPUs || u.VCPUsMax < u.VCPUs || int64(u.MemoryMax>>20) != v.MemoryMB || u.Memory == 0 || u.Memory > u.MemoryMax || u.RSS == 0 {
				t.Errorf("usage %+v of a domain %+v", *u, v)
			}
			was := u.CPUTime
			eventually(t, "processor time to pass", func() bool {
				u := usageOf(t, s, id)
				return u != nil && u.CPUTime > was
			})
		}},
	}
}

// pciAddress is the kernel's spelling of a PCI address.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

func devices() []property {
	find := func(t testing.TB, w driver.DeviceWatcher, name string) bool {
		list, err := w.HostDevices(within(t))
		must(t, "HostDevices", err)
		return slices.ContainsFunc(list, func(d driver.HostDevice) bool { return d.Name == name })
	}
	return []property{
		{"Devices_AreListed", func(t testing.TB, b *bench) {
			list, err := found(t, b.d, driver.Devices).HostDevices(within(t))
			must(t, "HostDevices", err)
			if len(list) == 0 {
				t.Error("the host has no devices")
			}
			seen := map[string]bool{}
			for _, d := range list {
				if seen[d.Name] {
					t.Errorf("device %s is listed twice", d.Name)
				}
				seen[d.Name] = true
				if d.Name == "" || d.Kind == "" || (d.Kind == "pci") != (d.PCI != "") || d.PCI != "" && !pciAddress.MatchString(d.PCI) {
					t.Errorf("unexpected device %+v", d)
				}
			}
		}},
		{"Devices_ComeAndGoAsEvents", func(t testing.TB, b *bench) {
			w := found(t, b.d, driver.Devices)
			ch := b.deviceEvents(t, w)
			name, unplug := b.Plug(t)
			awaitDevice(t, ch, driver.DeviceAdded, name)
			if !find(t, w, name) {
				t.Errorf("device %s was added and is not listed", name)
			}
			unplug()
			awaitDevice(t, ch, driver.DeviceRemoved, name)
			if find(t, w, name) {
				t.Errorf("device %s was removed and is listed", name)
			}
		}},
		{"Devices_RestartResyncs", func(t testing.TB, b *bench) {
			ch := b.deviceEvents(t, found(t, b.d, driver.Devices))
			b.Restart(t)
			awaitDevice(t, ch, driver.DeviceResync, "")
		}},
		{"Devices_EventsEndWithTheirContext", func(t testing.TB, b *bench) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			ch, err := found(t, b.d, driver.Devices).DeviceEvents(ctx)
			must(t, "DeviceEvents", err)
			cancel()
			wantClosed(t, ch)
		}},
		{"Devices_EventsEndWithTheDriver", func(t testing.TB, b *bench) {
			d := b.New(t)
			w := found(t, d, driver.Devices)
			ch, err := w.DeviceEvents(context.Background())
			must(t, "DeviceEvents", err)
			must(t, "Close", d.Close())
			wantClosed(t, ch)
			_, err = w.DeviceEvents(context.Background())
			wantKind(t, "DeviceEvents after Close", err, fault.Unavailable)
			_, err = w.HostDevices(within(t))
			wantKind(t, "HostDevices after Close", err, fault.Unavailable)
		}},
	}
}

func (b *bench) deviceEvents(t testing.TB, w driver.DeviceWatcher) <-chan driver.DeviceEvent {
	t.Helper()
	eventually(t, "Health", func() bool { return b.d.Health() == nil })
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ch, err := w.DeviceEvents(ctx)
	must(t, "DeviceEvents", err)
	return ch
}

func awaitDevice(t testing.TB, ch <-chan driver.DeviceEvent, kind driver.DeviceEventKind, name string) {
	t.Helper()
	ctx := within(t)
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				t.Fatalf("events ended while waiting for %s of %s", kind, name)
			}
			if e.Kind == kind && e.Name == name {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no event %s of %q within %v", kind, name, patience(t))
		}
	}
}
