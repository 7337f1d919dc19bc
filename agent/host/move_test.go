package host_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/options"
)

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}

// patience is how long tests wait for what must come: it only ends those that fail, on
// however busy a machine.
const patience = 2 * time.Minute

// waitFor polls: the fake's actors run beside the test.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
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
	options  migration.Options
}

func newMove(l *lab, uuid string) *move {
	l.t.Helper()
	m := &move{lab: l, ref: refFor(uuid, 1), a: l.hosts["a"], b: l.hosts["b"]}
	var err error
	m.guest, err = operation.Inspect.Ask(l.t.Context(), m.a, migration.Ref{Instance: uuid})
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
			a, err := operation.CheckDestination.Ask(ctx, m.b, m.ref, migration.CheckRequest{Guest: m.guest, Source: here, Options: m.options})
			if err != nil {
				return nil, err
			}
			m.source, err = operation.CheckSource.Ask(ctx, m.a, m.ref, a)
			return m.source, err
		},
		func(ctx context.Context) (_ any, err error) {
			m.claim, err = operation.Claim.Ask(ctx, m.b, m.ref, migration.ClaimRequest{Guest: m.guest, Context: mc, Lease: time.Minute})
			return m.claim, err
		},
		func(ctx context.Context) (any, error) { return nil, operation.RenewClaim.Ask(ctx, m.b, m.ref) },
		func(ctx context.Context) (any, error) { return nil, operation.RecordContext.Ask(ctx, m.a, m.ref, mc) },
		func(ctx context.Context) (_ any, err error) {
			m.prepared, err = operation.PreLiveMigration.Ask(ctx, m.b, m.ref, migration.PreLiveRequest{Guest: m.guest, CopyDisks: m.source.CopyDisks, Source: "a", PostCopy: m.options.PostCopy == options.On})
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
	return operation.StartStream.Ask(m.t.Context(), m.a, m.ref, m.sent())
}

func (m *move) status() migration.StreamStatus {
	m.t.Helper()
	st, err := operation.StreamStatus.Ask(m.t.Context(), m.a, m.ref)
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
		c, err := operation.Commit.Ask(ctx, m.a, m.ref)
		m.must("commit", err)
		m.commit = c
	}
	for range 2 {
		m.must("accept token", operation.AcceptToken.Ask(ctx, m.b, m.ref, m.commit))
	}
	for range 2 {
		m.must("finish destination", operation.FinishDestination.Ask(ctx, m.b, m.ref))
	}
	for range 2 {
		m.must("clean up source", operation.CleanUpSource.Ask(ctx, m.a, m.ref))
	}
}

// back undoes a move that was given up, in reverse, each undo twice.
func (m *move) back() {
	m.t.Helper()
	ctx := m.t.Context()
	for range 2 {
		m.must("reclaim", operation.Reclaim.Ask(ctx, m.a, m.ref))
	}
	for range 2 {
		m.must("rollback", operation.RollbackPreLiveMigration.Ask(ctx, m.b, m.ref))
	}
	for range 2 {
		m.must("drop context", operation.DropContext.Ask(ctx, m.a, m.ref))
	}
	for range 2 {
		m.must("abort claim", operation.AbortClaim.Ask(ctx, m.b, m.ref))
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
	if st, err := operation.DestinationStatus.Ask(t.Context(), l.hosts["b"], m.ref); err != nil || st.Ledger != migration.LedgerAccepted || st.Claim != "bound" {
		t.Errorf("destination %+v, %v", st, err)
	}
	// Past the point of no return no undo does anything.
	before := l.picture()
	l.wantKind("late reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
	l.wantKind("late rollback", operation.RollbackPreLiveMigration.Ask(t.Context(), m.b, m.ref), fault.Forbidden)
	l.wantKind("late abort", operation.AbortClaim.Ask(t.Context(), m.b, m.ref), fault.Forbidden)
	l.same("after late undos", before)
	// A user's pause after the move is not ended by a repeated accept.
	l.must("suspend", m.b.fake.Suspend(t.Context(), v.UUID))
	l.must("accept once more", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, m.commit))
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
	back.guest, err = operation.Inspect.Ask(t.Context(), back.a, migration.Ref{Instance: v.UUID})
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
	_, err = operation.Claim.Ask(t.Context(), back.b, back.ref, migration.ClaimRequest{Guest: back.guest, Context: mc})
	l.must("claim", err)
	l.must("record context", operation.RecordContext.Ask(t.Context(), back.a, back.ref, mc))
	back.prepared, err = operation.PreLiveMigration.Ask(t.Context(), back.b, back.ref, migration.PreLiveRequest{Guest: back.guest, CopyDisks: back.source.CopyDisks, Source: "b"})
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
			_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
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
	l.must("rollback", operation.RollbackPreLiveMigration.Ask(t.Context(), b, m.ref))
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
	l.must("rollback", operation.RollbackPreLiveMigration.Ask(t.Context(), m.b, m.ref))
	text, err := os.ReadFile(out)
	l.must("read what the hook got", err)
	for _, want := range []string{`"data":{"10-net":{"port":7}}`, `"phase":"rollback_live_migration_at_destination"`, `"source":"a"`, `"destination":"b"`, `"migration":"` + m.ref.Migration} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the hook's input %s: want %s in it", text, want)
		}
	}
}

func TestHooks_UnderWayAreEndedByTheUndo(t *testing.T) {
	l := newLab(t, "a", "b")
	b := l.hosts["b"]
	began := b.path("/hook-began")
	b.put(t, "/hooks/pre_live_migration/10-slow", "#!/bin/sh\ntouch "+began+"\nexec sleep 600\n", 0o755)
	v := l.guest("a", "vm1")
	before := l.picture()
	m := newMove(l, v.UUID)
	for _, verb := range m.verbs()[:4] {
		_, err := verb(t.Context())
		l.must("verb", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.verbs()[4](context.WithoutCancel(t.Context())) // whoever asked has died
		done <- err
	}()
	waitFor(t, "the hook", func() bool { _, err := os.Stat(began); return err == nil })
	begin := time.Now()
	m.back()
	if took := time.Since(begin); took > patience {
		t.Errorf("the undo waited %v for the hook", took)
	}
	if err := <-done; err == nil {
		t.Error("the preparation succeeded beside its undo")
	}
	l.same("left behind", before)
}

func TestMove_AgentsMayRestartBetweenAllVerbs(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	m := newMove(l, v.UUID)
	restart := func() { m.a, m.b = l.restart("a"), l.restart("b") }
	for _, verb := range m.verbs() {
		restart()
		_, err := verb(t.Context())
		l.must("verb", err)
	}
	restart()
	m.stream()
	restart()
	var err error
	m.commit, err = operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.must("commit", err)
	restart()
	l.must("accept", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, m.commit))
	restart()
	l.must("finish", operation.FinishDestination.Ask(t.Context(), m.b, m.ref))
	restart()
	l.must("clean up", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
	restart()
	m.handOverAgain()
	l.state("b", v.UUID, driver.Running)
	if p := l.picture(); p["a domains"] != nil || p["a claims"] != nil || len(p["a files"]) != 1 {
		t.Errorf("left behind: %v", p)
	}
}

// handOverAgain repeats every verb of the hand-over when all is over.
func (m *move) handOverAgain() {
	m.t.Helper()
	c, err := operation.Commit.Ask(m.t.Context(), m.a, m.ref)
	m.must("commit again", err)
	m.must("accept again", operation.AcceptToken.Ask(m.t.Context(), m.b, m.ref, c))
	m.must("finish again", operation.FinishDestination.Ask(m.t.Context(), m.b, m.ref))
	m.must("clean up again", operation.CleanUpSource.Ask(m.t.Context(), m.a, m.ref))
}

func TestHooks_AfterTheMoveFailNothingAndAreTriedAgainWhenTheyAsk(t *testing.T) {
	l := newLab(t, "a", "b")
	seen := l.hosts["a"].path("/seen")
	script := func(rest string) string {
		return "#!/bin/sh\ncat >> " + seen + "\necho >> " + seen + "\n" + rest + "\n"
	}
	l.hosts["a"].put(t, "/hooks/post_live_migration/10-fails", script("exit 1"), 0o755)
	l.hosts["b"].put(t, "/hooks/post_live_migration_at_destination/10-later",
		script("test -e "+seen+".ready && exit 0; touch "+seen+".ready; exit 75"), 0o755)
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	c, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.must("commit", err)
	l.must("accept", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, c))
	l.wantKind("finish while a hook asks to wait", operation.FinishDestination.Ask(t.Context(), m.b, m.ref), fault.Unavailable)
	l.state("b", v.UUID, driver.Running)
	l.must("finish", operation.FinishDestination.Ask(t.Context(), m.b, m.ref))
	l.must("clean up", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
	text, err := os.ReadFile(seen)
	l.must("read what hooks got", err)
	for _, want := range []string{`"phase":"post_live_migration"`, `"phase":"post_live_migration_at_destination"`, `"dest_compute":"b"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("hooks got %s: want %s in it", text, want)
		}
	}
}
