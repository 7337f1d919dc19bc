package host_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// waitFor polls: the fake's actors run beside the test.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func contextOf(source, dest string) migration.Context {
	return migration.Context{
		Source: source, Destination: dest, OldResources: small.Resources(), NewResources: small.Resources(),
		OldFlavor: small, NewFlavor: small, PowerState: migration.PowerRunning,
	}
}

// move is a live migration from a to b, verb by verb, without a conductor.
type move struct {
	*lab
	ref      migration.Ref
	a, b     *node
	guest    migration.Guest
	source   migration.SourceAnswer
	prepared migration.Prepared
	claim    migration.ClaimAnswer
	commit   migration.Commit
}

func newMove(l *lab, uuid string) *move {
	l.t.Helper()
	m := &move{lab: l, ref: refFor(uuid, 1), a: l.hosts["a"], b: l.hosts["b"]}
	var err error
	m.guest, err = m.a.Inspect(l.t.Context(), uuid)
	l.must("inspect", err)
	return m
}

// verbs are the verbs up to the stream, in order; each twice must give the same.
func (m *move) verbs() []func(ctx context.Context) (any, error) {
	mc := contextOf("a", "b")
	mc.OldResources, mc.NewResources, mc.PowerState = m.guest.Resources, m.guest.Resources, m.guest.PowerState
	return []func(ctx context.Context) (any, error){
		func(ctx context.Context) (any, error) {
			here, err := m.a.Describe(ctx)
			if err != nil {
				return nil, err
			}
			a, err := m.b.CheckDestination(ctx, m.ref, migration.CheckRequest{Guest: m.guest, Source: here})
			if err != nil {
				return nil, err
			}
			m.source, err = m.a.CheckSource(ctx, m.ref, a)
			return m.source, err
		},
		func(ctx context.Context) (_ any, err error) {
			m.claim, err = m.b.Claim(ctx, m.ref, migration.ClaimRequest{Guest: m.guest, Context: mc, Lease: time.Minute})
			return m.claim, err
		},
		func(ctx context.Context) (any, error) { return nil, m.b.RenewClaim(ctx, m.ref) },
		func(ctx context.Context) (any, error) { return nil, m.a.RecordContext(ctx, m.ref, mc) },
		func(ctx context.Context) (_ any, err error) {
			m.prepared, err = m.b.PreLiveMigration(ctx, m.ref, migration.PreLiveRequest{Guest: m.guest, CopyDisks: m.source.CopyDisks, Source: "a"})
			return m.prepared, err
		},
	}
}

// prepare runs the verbs up to the stream, each twice.
func (m *move) prepare() {
	m.t.Helper()
	for i, verb := range m.verbs() {
		first, err := verb(m.t.Context())
		if err != nil {
			m.t.Fatalf("verb %d: %v", i, err)
		}
		// A check asked again sees the claim that the move has by then: not here.
		second, err := verb(m.t.Context())
		if err != nil {
			m.t.Fatalf("verb %d again: %v", i, err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			m.t.Errorf("verb %d again (-first +second):\n%s", i, diff)
		}
	}
}

func (m *move) start() error {
	return m.a.StartStream(m.t.Context(), m.ref, migration.Stream{Prepared: m.prepared, Ticket: m.claim.Ticket, CopyDisks: m.source.CopyDisks, Shared: m.source.Shared})
}

func (m *move) status() migration.StreamStatus {
	m.t.Helper()
	st, err := m.a.StreamStatus(m.t.Context(), m.ref)
	m.must("stream status", err)
	return st
}

// stream runs the stream to its end.
func (m *move) stream() {
	m.t.Helper()
	for range 2 {
		m.must("start stream", m.start())
	}
	waitFor(m.t, "the stream's end", func() bool { return !m.status().InFlight })
}

// handOver commits and accepts, each twice, and finishes.
func (m *move) handOver() {
	m.t.Helper()
	ctx := m.t.Context()
	for range 2 {
		c, err := m.a.Commit(ctx, m.ref)
		m.must("commit", err)
		m.commit = c
	}
	for range 2 {
		m.must("accept token", m.b.AcceptToken(ctx, m.ref, m.commit))
	}
	for range 2 {
		m.must("finish destination", m.b.FinishDestination(ctx, m.ref))
	}
	for range 2 {
		m.must("clean up source", m.a.CleanUpSource(ctx, m.ref))
	}
}

// back undoes a move that was given up, in reverse, each undo twice.
func (m *move) back() {
	m.t.Helper()
	ctx := m.t.Context()
	for range 2 {
		m.must("reclaim", m.a.Reclaim(ctx, m.ref))
	}
	for range 2 {
		m.must("rollback", m.b.RollbackPreLiveMigration(ctx, m.ref))
	}
	for range 2 {
		m.must("drop context", m.a.DropContext(ctx, m.ref))
	}
	for range 2 {
		m.must("abort claim", m.b.AbortClaim(ctx, m.ref))
	}
}

func TestMove_EveryVerbTwice(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	for _, n := range l.hosts {
		n.images = "/"
		n.Close()
		l.boot(n.name, func(o *host.Options) { o.ImagesDirs = []string{"/images", "/elsewhere"} })
	}
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1}, host.CreateDisk{Path: "/elsewhere/deep/two.raw", SizeGB: 1, Format: "raw"})
	l.hosts["b"].put(t, "/images/kept", "stays", 0o644)
	m := newMove(l, v.UUID)
	m.prepare()
	if diff := cmp.Diff(migration.SourceAnswer{CopyDisks: []string{"vda", "vdb"}}, m.source); diff != "" {
		t.Errorf("source's answer (-want +got):\n%s", diff)
	}
	m.stream()
	if st := m.status(); st.Domain.Reason != "migrated" || st.Ledger != migration.LedgerHere || st.Error != "" {
		t.Errorf("at the stream's end: %+v", st)
	}
	l.state("b", v.UUID, driver.Paused)
	m.handOver()
	l.state("b", v.UUID, driver.Running)
	l.same("after the move", picture{
		"b domains":   {"vm1 running"},
		"b claims":    {v.UUID + " instance bound 1 vcpus, 128 MiB, 2 GiB"},
		"b instances": {"vm1 here"},
		"a files":     {"/elsewhere", "/elsewhere/deep", "/images"},
		"b files":     {"/elsewhere", "/elsewhere/deep", "/elsewhere/deep/two.raw", "/images", "/images/kept", "/images/vm1-vda.qcow2"},
		"allocations": {v.UUID + " rp-a DISK_GB,MEMORY_MB,VCPU"}, // the conductor's to swap
	})
	text, err := l.hosts["b"].fake.XML(t.Context(), v.UUID, driver.Persistent)
	l.must("read its document", err)
	doc, err := domainxml.Parse(text)
	l.must("parse it", err)
	meta, _, err := doc.Metadata()
	if diff := cmp.Diff(domainxml.Metadata{Name: "vm1", Flavor: small, Epoch: 2, Migration: m.ref.Migration}, meta); diff != "" || err != nil {
		t.Errorf("metadata %v (-want +got):\n%s", err, diff)
	}
	if st, err := l.hosts["b"].DestinationStatus(t.Context(), m.ref); err != nil || st.Ledger != migration.LedgerHere || st.Claim != "bound" {
		t.Errorf("destination %+v, %v", st, err)
	}
	// Past the point of no return no undo does anything.
	before := l.picture()
	l.wantKind("late reclaim", m.a.Reclaim(t.Context(), m.ref), fault.Forbidden)
	l.wantKind("late rollback", m.b.RollbackPreLiveMigration(t.Context(), m.ref), fault.Forbidden)
	l.wantKind("late abort", m.b.AbortClaim(t.Context(), m.ref), fault.Forbidden)
	l.same("after late undos", before)
	// A user's pause after the move is not ended by a repeated accept.
	l.must("suspend", m.b.fake.Suspend(t.Context(), v.UUID))
	l.must("accept once more", m.b.AcceptToken(t.Context(), m.ref, m.commit))
	l.state("b", v.UUID, driver.Paused)
}

func TestMove_BackAndForth(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	there := newMove(l, v.UUID)
	there.prepare()
	there.stream()
	there.handOver()
	back := &move{lab: l, ref: migration.Ref{Migration: "33333333-2222-4222-8222-222222222222", Instance: v.UUID, Attempt: 1}, a: l.hosts["b"], b: l.hosts["a"]}
	var err error
	back.guest, err = back.a.Inspect(t.Context(), v.UUID)
	l.must("inspect", err)
	if back.guest.Epoch != 2 {
		t.Errorf("epoch %d, want 2", back.guest.Epoch)
	}
	// The verbs name their hosts a and b in contexts: turned round here.
	for _, verb := range back.verbs()[:1] {
		_, err := verb(t.Context())
		l.must("check", err)
	}
	mc := contextOf("b", "a")
	mc.NewResources = back.guest.Resources
	_, err = back.b.Claim(t.Context(), back.ref, migration.ClaimRequest{Guest: back.guest, Context: mc})
	l.must("claim", err)
	l.must("record context", back.a.RecordContext(t.Context(), back.ref, mc))
	back.prepared, err = back.b.PreLiveMigration(t.Context(), back.ref, migration.PreLiveRequest{Guest: back.guest, CopyDisks: back.source.CopyDisks, Source: "b"})
	l.must("prepare", err)
	back.stream()
	back.handOver()
	l.state("a", v.UUID, driver.Running)
	l.same("after there and back", before)
	if inst, _ := l.hosts["a"].tracker.Instance(v.UUID); inst.Token.Epoch != 3 {
		t.Errorf("epoch %d, want 3", inst.Token.Epoch)
	}
}

func TestMove_SharedDisksAreNeitherCopiedNorRemoved(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	// Both hosts see one file: what a bind mount of one folder does.
	disk := "/images/vm1-vda.qcow2"
	l.must("share", os.Link(l.hosts["a"].path(disk), l.hosts["b"].path(disk)))
	m := newMove(l, v.UUID)
	m.prepare()
	if diff := cmp.Diff(migration.SourceAnswer{Shared: true}, m.source); diff != "" {
		t.Errorf("source's answer (-want +got):\n%s", diff)
	}
	m.stream()
	m.handOver()
	for _, name := range []string{"a", "b"} {
		if _, err := os.Stat(l.hosts[name].path(disk)); err != nil {
			t.Errorf("the shared disk is gone from %s: %v", name, err)
		}
	}
}

func TestMove_UndoneAtEveryPointLeavesAllAsItWas(t *testing.T) {
	requireQemuImg(t)
	for stop := range 7 {
		t.Run([]string{"nothing", "check", "claim", "renew", "context", "pre_live", "stream"}[stop], func(t *testing.T) {
			l := newLab(t, "a", "b")
			v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
			l.hosts["b"].put(t, "/images/kept", "stays", 0o644)
			before := l.picture()
			m := newMove(l, v.UUID)
			verbs := m.verbs()
			for _, verb := range verbs[:min(stop, 5)] {
				_, err := verb(t.Context())
				l.must("verb", err)
			}
			if stop == 6 {
				l.fleet.CutData("a", "b")
				l.must("start stream", m.start())
				if !m.status().InFlight {
					t.Fatal("the stream does not stand still")
				}
			}
			m.back()
			l.state("a", v.UUID, driver.Running)
			l.same("left behind", before)

			// Messages that come late do nothing.
			for i, verb := range verbs[1:] {
				if i == 1 {
					continue // renewing a claim that is gone is only not found
				}
				_, err := verb(t.Context())
				l.wantKind("late verb", err, fault.Forbidden)
			}
			l.wantKind("late stream", m.start(), fault.Forbidden)
			_, err := m.a.Commit(t.Context(), m.ref)
			l.wantKind("late commit", err, fault.Forbidden)
			l.same("after late verbs", before)

			// Another attempt is another matter.
			l.fleet.HealData("a", "b")
			m.ref.Attempt = 2
			m.prepare()
			m.stream()
			m.handOver()
			l.state("b", v.UUID, driver.Running)
		})
	}
}

func TestPreLive_HalfDoneIsUndoneAndKeepsWhatWasThere(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	b := l.hosts["b"]
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1}, host.CreateDisk{Path: "/images/sub/two", SizeGB: 1})
	m := newMove(l, v.UUID)
	for _, verb := range m.verbs()[:4] {
		_, err := verb(t.Context())
		l.must("verb", err)
	}
	before := l.picture()
	// Between check and preparation somebody takes the second disk's place.
	b.put(t, "/images/sub/two", "somebody else's", 0o644)
	_, err := m.verbs()[4](t.Context())
	l.wantKind("prepare", err, fault.Exists)
	if diff := cmp.Diff([]string{"disk_exists"}, codes(err)); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
	l.must("rollback", b.RollbackPreLiveMigration(t.Context(), m.ref))
	if text, err := os.ReadFile(b.path("/images/sub/two")); string(text) != "somebody else's" || err != nil {
		t.Errorf("what was there: %q, %v", text, err)
	}
	l.must("remove it", os.RemoveAll(b.path("/images/sub")))
	l.same("left behind", before)
}

func TestHooks_GetTheirDataBackInTheUndo(t *testing.T) {
	l := newLab(t, "a", "b")
	b := l.hosts["b"]
	out := b.path("/hook-output")
	b.put(t, "/hooks/pre_live_migration/10-net", "#!/bin/sh\necho '{\"data\":{\"port\":7}}'\n", 0o755)
	b.put(t, "/hooks/pre_live_migration/20-fails", "#!/bin/sh\necho no switch >&2\nexit 1\n", 0o755)
	b.put(t, "/hooks/rollback_live_migration_at_destination/10-net", "#!/bin/sh\ncat > "+out+"\n", 0o755)
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	for _, verb := range m.verbs()[:4] {
		_, err := verb(t.Context())
		l.must("verb", err)
	}
	_, err := m.verbs()[4](t.Context())
	if err == nil || !strings.Contains(err.Error(), "20-fails") || !strings.Contains(err.Error(), "no switch") {
		t.Fatalf("prepare: %v", err)
	}
	// The undo is a restarted agent's.
	m.b = l.restart("b")
	l.must("rollback", m.b.RollbackPreLiveMigration(t.Context(), m.ref))
	text, err := os.ReadFile(out)
	l.must("read what the hook got", err)
	for _, want := range []string{`"data":{"10-net":{"port":7}}`, `"phase":"rollback_live_migration_at_destination"`, `"source":"a"`, `"destination":"b"`, `"migration":"` + m.ref.Migration} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the hook's input %s: want %s in it", text, want)
		}
	}
}

func TestCheckDestination_ListsEveryReason(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a, b := l.hosts["a"], l.hosts["b"]
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	g, err := a.Inspect(t.Context(), v.UUID)
	l.must("inspect", err)
	here, err := a.Describe(t.Context())
	l.must("describe", err)
	check := func(change func(g *migration.Guest, source *migration.Description)) error {
		g, source := g, here
		change(&g, &source)
		_, err := b.CheckDestination(t.Context(), refFor(g.UUID, 1), migration.CheckRequest{Guest: g, Source: source})
		return err
	}
	devices := func(text string) func(*migration.Guest, *migration.Description) {
		return func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<devices>"+text, 1)
		}
	}
	l.must("the guest as it is", check(func(*migration.Guest, *migration.Description) {}))
	node, err := b.fake.Node(t.Context())
	l.must("node", err)
	for _, tt := range []struct {
		name   string
		codes  string
		kind   fault.Kind
		setup  func() (undo func())
		change func(g *migration.Guest, source *migration.Description)
	}{
		{name: "same host by name", codes: "same_host", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.Name = "b" }},
		{name: "same host by libvirt's uuid", codes: "same_host", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.HostUUID = node.UUID }},
		{name: "no room", codes: "memory_over_host vcpu_over_host", kind: fault.DoesNotFit, change: func(g *migration.Guest, _ *migration.Description) {
			g.Resources.VCPUs, g.Resources.MemoryMB = 64, 1<<20
		}},
		{name: "old source", codes: "libvirt_too_old qemu_too_old", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) {
			s.LibvirtVersion, s.HypervisorVersion = 7_000_000, 6_001_000
		}},
		{name: "destination's QEMU is older", codes: "qemu_older", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.HypervisorVersion = 11_000_000 }},
		{name: "another architecture", codes: "arch_differs", kind: fault.Forbidden, change: func(_ *migration.Guest, s *migration.Description) { s.Arch = "aarch64" }},
		{name: "QEMU 7.2 under TCG", codes: "qemu_too_old", kind: fault.Forbidden, change: func(g *migration.Guest, s *migration.Description) {
			g.XML, s.HypervisorVersion = strings.Replace(g.XML, "'kvm'", "'qemu'", 1), 7_002_022
		}},
		{name: "machine type", codes: "machine_type_missing", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "'q35'", "'pc-q35-99.0'", 1)
		}},
		{name: "no KVM", codes: "no_kvm", kind: fault.Forbidden, setup: func() func() {
			n := node
			n.Emulated = true
			b.fake.SetNode(n)
			return func() { b.fake.SetNode(node) }
		}},
		{name: "CPU feature", codes: "cpu_feature_missing", kind: fault.DoesNotFit, setup: func() func() {
			b.fake.LackFeatures("avx512f")
			return func() { b.fake.LackFeatures() }
		}, change: func(g *migration.Guest, _ *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu><feature policy='require' name='avx512f'/></cpu><devices>", 1)
		}},
		{name: "occupied disk", codes: "disk_exists", kind: fault.Exists, setup: func() func() {
			b.put(t, "/images/vm1-vda.qcow2", "another guest's", 0o644)
			return func() { l.must("remove", os.Remove(b.path("/images/vm1-vda.qcow2"))) }
		}},
		{name: "uuid and name", codes: "domain_exists", kind: fault.Exists, setup: func() func() {
			l.must("define", b.fake.Define(t.Context(), strings.Replace(foreignXML("other", "", ""), "33333333-3333-4333-8333-333333333333", v.UUID, 1)))
			return func() { l.must("undefine", b.fake.Undefine(t.Context(), v.UUID)) }
		}},
		{name: "name", codes: "name_exists", kind: fault.Exists, setup: func() func() {
			l.must("define", b.fake.Define(t.Context(), foreignXML("vm1", "", "")))
			return func() { l.must("undefine", b.fake.Undefine(t.Context(), "33333333-3333-4333-8333-333333333333")) }
		}},
		{name: "kernel", codes: "file_missing", kind: fault.Forbidden, setup: func() func() {
			l.must("remove", os.Remove(b.path("/boot/vmlinuz")))
			return func() { b.put(t, "/boot/vmlinuz", "kernel", 0o644) }
		}},
		{name: "mode", codes: "mode_observe", kind: fault.Forbidden, setup: func() func() {
			b.mode = host.ModeObserve
			return func() { b.mode = "manage" }
		}},
		{name: "devices", kind: fault.Forbidden,
			codes: "device_not_migratable device_not_migratable device_not_migratable device_not_migratable",
			change: devices(`<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x1'/></source></hostdev>` +
				`<interface type='hostdev'><source><address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x2'/></source></interface>` +
				`<filesystem type='mount'><target dir='share'/></filesystem><hostdev mode='subsystem' type='mdev'><source><address uuid='aa'/></source></hostdev>`)},
		{name: "a disk outside the folders", codes: "disk_place", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append([]migration.Disk(nil), g.Disks...)
			g.Disks[0].Path = "/etc/passwd-"
		}},
		{name: "a disk without room", codes: "disk_room_short", kind: fault.DoesNotFit, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append([]migration.Disk(nil), g.Disks...)
			g.Disks[0].ActualSize, g.Disks[0].VirtualSize = 1<<60, 1<<60
		}},
		{name: "install media", codes: "disk_missing", kind: fault.Forbidden, change: func(g *migration.Guest, _ *migration.Description) {
			g.Disks = append(g.Disks[:1:1], migration.Disk{Target: "sda", Path: "/iso/x.iso", Format: "raw", ReadOnly: true})
		}},
		{name: "several at once", codes: "cpu_feature_missing device_not_migratable disk_exists memory_over_host same_host vcpu_over_host", kind: fault.Forbidden, setup: func() func() {
			b.fake.LackFeatures("avx512f")
			b.put(t, "/images/vm1-vda.qcow2", "another guest's", 0o644)
			return func() {
				b.fake.LackFeatures()
				l.must("remove", os.Remove(b.path("/images/vm1-vda.qcow2")))
			}
		}, change: func(g *migration.Guest, s *migration.Description) {
			g.XML = strings.Replace(g.XML, "<devices>", "<cpu><feature policy='require' name='avx512f'/></cpu><devices><redirdev/>", 1)
			g.Resources.VCPUs, g.Resources.MemoryMB = 64, 1<<20
			s.ProviderUUID = "rp-b"
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.setup != nil {
				defer tt.setup()()
			}
			change := tt.change
			if change == nil {
				change = func(*migration.Guest, *migration.Description) {}
			}
			err := check(change)
			if got := strings.Join(codes(err), " "); got != tt.codes {
				t.Errorf("reasons %q, want %q (%v)", got, tt.codes, err)
			}
			if got := fault.KindOf(err); got != tt.kind {
				t.Errorf("kind %s, want %s", got, tt.kind)
			}
		})
	}
	l.same("checks leave nothing", before)
	b.fake.KillDaemon()
	l.wantKind("libvirt away", check(func(*migration.Guest, *migration.Description) {}), fault.Unavailable)
	b.fake.StartDaemon()
}

func TestInspect_AndCheckSource_Refuse(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "vm1")
	_, err := a.Inspect(t.Context(), "99999999-9999-4999-8999-999999999999")
	l.wantKind("nobody", err, fault.NotFound)
	l.must("define", a.fake.Define(t.Context(), foreignXML("foreign", "", "")))
	_, err = a.Inspect(t.Context(), "44444444-4444-4444-8444-444444444444")
	l.wantKind("not managed", err, fault.Forbidden)
	l.must("stop", a.Stop(t.Context(), "vm1", host.StopOptions{Force: true}))
	_, err = a.CheckSource(t.Context(), refFor(v.UUID, 1), migration.CheckAnswer{})
	if diff := cmp.Diff([]string{"not_running"}, codes(err)); diff != "" {
		t.Errorf("a stopped guest (-want +got):\n%s", diff)
	}
	l.wantKind("a stopped guest", err, fault.Forbidden)
	a.fake.KillDaemon()
	_, err = a.Inspect(t.Context(), v.UUID)
	l.wantKind("libvirt away", err, fault.Unavailable)
	a.fake.StartDaemon()
}

func TestReclaim_ResumesUnlessTheUserHadPaused(t *testing.T) {
	for _, paused := range []bool{false, true} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		if paused {
			l.must("suspend", l.hosts["a"].fake.Suspend(t.Context(), v.UUID))
		}
		m := newMove(l, v.UUID)
		m.prepare()
		// The source's libvirtd dies in the hand-over and leaves its domain
		// `paused (migrating)`.
		l.fleet.FaultPhase(func(phase, _ string) error {
			if phase == drivertest.PhaseFinish {
				m.a.fake.KillDaemon()
			}
			return nil
		})
		l.must("start stream", m.start())
		waitFor(t, "libvirtd's death", func() bool { _, err := m.a.StreamStatus(t.Context(), m.ref); return err != nil })
		l.wantKind("reclaim with libvirt away", m.a.Reclaim(t.Context(), m.ref), fault.Unavailable)
		l.fleet.FaultPhase(nil)
		m.a.fake.StartDaemon()
		l.state("a", v.UUID, driver.Paused)
		m.back()
		want := driver.Running
		if paused {
			want = driver.Paused
		}
		l.state("a", v.UUID, want)
	}
}

func TestCommitAndReclaim_ExactlyOneWins(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	_, err := m.a.Commit(t.Context(), m.ref)
	l.wantKind("commit before the stream", err, fault.Forbidden)
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	_, err = m.a.Commit(t.Context(), m.ref)
	l.wantKind("commit in mid-stream", err, fault.Forbidden)
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return m.status().Domain.Reason == "migrated" })
	l.wantKind("reclaim of a guest that has left", m.a.Reclaim(t.Context(), m.ref), fault.Forbidden)
	waitFor(t, "the outcome on record", func() bool { return !m.status().InFlight })

	// libvirtd forgets why the domain is off; the record has it.
	l.must("start", m.a.fake.Start(t.Context(), v.UUID, true)) // by virsh: the token is still here
	l.must("destroy", m.a.fake.Destroy(t.Context(), v.UUID))
	if _, err := m.a.Commit(t.Context(), m.ref); err != nil {
		t.Errorf("commit of a guest that was seen to have left: %v", err)
	}
	l.wantKind("reclaim after commit", m.a.Reclaim(t.Context(), m.ref), fault.Forbidden)
	if st := m.status(); st.Ledger != migration.LedgerSurrendered {
		t.Errorf("ledger %s, want surrendered", st.Ledger)
	}
}

func TestStream_LostFinishReplyNeverRunsTwice(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			return errors.New("the reply was lost")
		}
		return nil
	})
	l.must("start stream", m.start())
	waitFor(t, "the end", func() bool { return !m.status().InFlight })
	l.state("a", v.UUID, driver.Running)
	l.state("b", v.UUID, driver.Paused)
	_, err := m.a.Commit(t.Context(), m.ref)
	l.wantKind("commit", err, fault.Forbidden)
	m.back()
	l.same("left behind", before)
}

func TestStream_IsAdoptedByARestartedAgent(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	m.a = l.restart("a")
	if !m.status().InFlight {
		t.Error("the job in flight is not seen")
	}
	l.must("tune", m.a.TuneStream(t.Context(), m.ref, migration.Tuning{Bandwidth: 1 << 30, MaxDowntime: time.Second}))
	l.must("adopt", m.start())
	jobs := 0
	for _, e := range l.fleet.History() {
		if strings.Contains(e.What, "migration to b begins") {
			jobs++
		}
	}
	if jobs != 1 {
		t.Errorf("%d jobs, want 1", jobs)
	}
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return m.status().Domain.Reason == "migrated" })
	m.handOver()
	l.state("b", v.UUID, driver.Running)
}

func TestStream_EndedWhileNobodyWatched(t *testing.T) {
	for _, fails := range []bool{false, true} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		m := newMove(l, v.UUID)
		m.prepare()
		l.fleet.CutData("a", "b")
		l.must("start stream", m.start())
		m.a.Close()
		if fails {
			l.must("abort by virsh", m.a.fake.AbortJob(t.Context(), v.UUID))
		}
		l.fleet.HealData("a", "b")
		waitFor(t, "the job's end", func() bool {
			j, err := m.a.fake.Job(t.Context(), v.UUID)
			return err == nil && j.Kind == driver.JobNone
		})
		m.a = l.restart("a")
		l.must("start again", m.start())
		if m.status().InFlight {
			t.Error("a stream that is over is in flight")
		}
		if fails {
			_, err := m.a.Commit(t.Context(), m.ref)
			l.wantKind("commit", err, fault.Forbidden)
			m.back()
			l.state("a", v.UUID, driver.Running)
			continue
		}
		m.handOver()
		l.state("b", v.UUID, driver.Running)
	}
}

func TestDestination_AcceptsOnlyItsOwnCommit(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	c, err := m.a.Commit(t.Context(), m.ref)
	l.must("commit", err)
	for _, change := range []func(*migration.Ref, *migration.Commit){
		func(r *migration.Ref, c *migration.Commit) { r.Attempt, c.Attempt = 2, 2 },
		func(_ *migration.Ref, c *migration.Commit) { c.Migration = "44444444-2222-4222-8222-222222222222" },
		func(_ *migration.Ref, c *migration.Commit) { c.To = "c" },
	} {
		ref, c := m.ref, c
		change(&ref, &c)
		l.wantKind("accept another's commit", m.b.AcceptToken(t.Context(), ref, c), fault.Forbidden)
		l.state("b", v.UUID, driver.Paused)
	}
	l.wantKind("finish before the token", m.b.FinishDestination(t.Context(), m.ref), fault.Forbidden)
	// The answer to resume is lost: it is looked at, not believed.
	m.b.fake.LoseReply("Resume")
	l.must("accept", m.b.AcceptToken(t.Context(), m.ref, c))
	l.state("b", v.UUID, driver.Running)
	// The agent dies between token and claim.
	m.b = l.restart("b")
	l.must("finish", m.b.FinishDestination(t.Context(), m.ref))
	l.must("clean up", m.a.CleanUpSource(t.Context(), m.ref))
}

func TestDestination_GuestThatDiedAfterTheCommitLivesHereStopped(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	m.b.fake.CrashGuest(v.UUID)
	m.handOver()
	l.state("b", v.UUID, driver.ShutOff)
	l.must("start", m.b.Start(t.Context(), "vm1", false))
}

func TestCleanUpSource_EndsASecondCopyAndKeepsAReplacedDisk(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	l.wantKind("clean up before commit", m.a.CleanUpSource(t.Context(), m.ref), fault.Forbidden)
	_, err := m.a.Commit(t.Context(), m.ref)
	l.must("commit", err)
	// Somebody starts the source's definition with virsh, and restores its disk.
	l.must("start", m.a.fake.Start(t.Context(), v.UUID, false))
	l.must("remove", os.Remove(m.a.path("/images/vm1-vda.qcow2")))
	m.a.put(t, "/images/vm1-vda.qcow2", "restored", 0o644)
	l.must("clean up", m.a.CleanUpSource(t.Context(), m.ref))
	if _, err := m.a.fake.Domain(t.Context(), v.UUID); !errors.Is(err, fault.NotFound) {
		t.Errorf("the second copy: %v", err)
	}
	if text, err := os.ReadFile(m.a.path("/images/vm1-vda.qcow2")); string(text) != "restored" {
		t.Errorf("the restored disk: %q, %v", text, err)
	}
	if len(m.a.tracker.List()) != 0 {
		t.Error("the source's claim is left")
	}
}

func TestPreLive_MakesDocumentsFitForAnotherHost(t *testing.T) {
	l := newLab(t, "a", "b")
	v, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: foreignXML("screen",
		`<graphics type='vnc' listen='192.0.2.7'><listen type='address' address='192.0.2.7'/></graphics>`, ""), Start: true})
	l.must("create", err)
	m := newMove(l, v.UUID)
	m.prepare()
	for _, text := range []string{m.prepared.DestinationXML, m.prepared.PersistentXML} {
		if strings.Contains(text, "192.0.2.7") || !strings.Contains(text, "127.0.0.1") || !strings.Contains(text, "<something xmlns='urn:x'/>") {
			t.Errorf("document:\n%s", text)
		}
	}
	if c, ok := m.b.tracker.ByOwner(claims.Owner{Instance: v.UUID, Migration: m.ref.Migration, Attempt: 1, Kind: claims.KindLiveMigration}); !ok || c.State != claims.Arriving {
		t.Errorf("claim %+v, %v; want arriving", c.Redacted(), ok)
	}
	m.back()
}
