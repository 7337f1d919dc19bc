package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/claims"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/migration"
	"berth/placement"
	"berth/placementclient"
)

// TestKeeper_StoreThatLostRecords_ConfirmsNothingBeforeAllHostsWroteAgain: host a was evacuated and
// comes back after the store has lost that. It gives way once host b has written again, and starts
// nothing before.
func TestKeeper_StoreThatLostRecords_ConfirmsNothingBeforeAllHostsWroteAgain(t *testing.T) {
	t.Parallel()
	for name, told := range map[string]bool{"restored from a backup": true, "put back as it was": false, "emptied": true} {
		t.Run(name, func(t *testing.T) {
			b := newFleetBench(t, "host-a", "host-b")
			gone, stays := b.guest("host-a", "gone"), b.guest("host-a", "stays")
			b.know()
			backup := b.store.Records()
			if name == "emptied" {
				backup = nil
			}
			before, err := b.place.Allocations(t.Context(), gone)
			b.must(err)
			b.evacuate(gone)
			b.lives(gone)
			_, err = b.up["host-b"].tracker.Own(t.Context(), claims.Instance{UUID: gone, Name: "gone", Token: claims.Token{Epoch: 1}})
			b.must(err)
			b.round("host-b")
			b.store.Restore(backup, told)
			// Placement is the same database: it was restored too.
			had, err := b.place.Allocations(t.Context(), gone)
			b.must(err)
			before.ConsumerGeneration = had.ConsumerGeneration
			b.must(b.place.PutAllocations(t.Context(), gone, before))

			a := b.reboot("host-a")
			a.keeper.kind = kindEmbedded
			if !told { // nobody has told it but those that have seen later records
				b.round("host-b")
			}
			b.round("host-a")
			b.round("host-a")
			if got := b.running("host-a"); told && len(got) > 0 || slices.Contains(got, "gone") {
				t.Fatalf("started by a store that lost its records: %v", got)
			}
			if told {
				c, _ := a.keeper.condition()
				if c.Health == "ok" || !strings.Contains(c.Detail, "host-b") {
					t.Errorf("condition %+v", c)
				}
				if err := a.keeper.ready("host-c"); !fault.HasReason(err, "store_unproven") {
					t.Errorf("an evacuation by such a store: %v", err)
				}
				if _, err := a.lostGuests().Lost(t.Context(), stays); len(backup) > 0 && !fault.HasReason(err, "store_unproven") {
					t.Errorf("what is known of a lost instance: %v", err)
				}
				if err := a.host.Start(t.Context(), stays, false); !fault.HasReason(err, "not_confirmed") {
					t.Errorf("start: %v", err)
				}
			}
			for range 3 {
				b.round("host-b")
				a.keeper.trust.others, b.up["host-b"].keeper.trust.others = 0, 0
				b.round("host-a")
			}
			b.round("host-a")
			if got := b.running("host-a"); !slices.Equal(got, []string{"stays"}) {
				t.Errorf("running: %v", got)
			}
			if rec := b.record(gone); rec.Host != "host-b" || rec.Epoch != 2 {
				t.Errorf("record of host %s, epoch %d", rec.Host, rec.Epoch)
			}
			for _, host := range []string{"host-a", "host-b"} {
				if err := b.up[host].keeper.ready("host-c"); err != nil {
					t.Errorf("%s: all have written again, and %v", host, err)
				}
			}
		})
	}
}

// TestKeeper_StoreOfAnotherKindThatIsOlder_IsNotBelieved: it does not tell its incarnation, so that
// nobody knows which hosts have written there.
func TestKeeper_StoreOfAnotherKindThatIsOlder_IsNotBelieved(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a")
	b.guest("host-a", "web")
	b.round("host-a")
	b.store = fleettest.NewMemory(b.rt)
	b.client = func(name string) fleet.Store { return struct{ fleet.Store }{b.store.Client(name)} }
	a := b.reboot("host-a")
	for range 3 {
		b.round("host-a")
	}
	if got := b.running("host-a"); len(got) > 0 {
		t.Errorf("running: %v", got)
	}
	if c, _ := a.keeper.condition(); !strings.Contains(c.Detail, "had its records in the store etcd") {
		t.Errorf("condition %+v", c)
	}
}

// TestKeeper_StoreRemoved_ASecondWitnessConfirms: host a was evacuated, and boots without a store.
// Placement confirms what was recorded in etcd. What was recorded beside it an operator confirms, once.
func TestKeeper_StoreRemoved_ASecondWitnessConfirms(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindEtcd, kindEmbedded} {
		t.Run(kind, func(t *testing.T) {
			b := emptyFleetBench(t)
			b.client = func(name string) fleet.Store {
				if kind == kindEmbedded {
					return b.store.Client(name).RecordsOnly()
				}
				return b.store.Client(name)
			}
			b.serve(placement.Options{Listen: "127.0.0.1:0"})
			b.hosts("host-a", "host-b")
			gone, stays := b.guest("host-a", "gone"), b.guest("host-a", "stays")
			b.know()
			b.evacuate(gone)
			b.client = func(string) fleet.Store { return nil }
			a := b.opened("host-a")
			if !a.host.Waits() || a.host.BootConfirmed() {
				t.Fatal("nothing waits")
			}
			b.must(a.host.AwaitRecords(t.Context(), true)) // its claims are of that boot too
			b.must(a.host.Settle(t.Context()))
			done, err := a.keeper.lookRemoved(t.Context())
			b.must(err)
			want := []string{"stays"}
			if kind == kindEmbedded {
				want = nil
			}
			if got := b.running("host-a"); done || !slices.Equal(got, want) {
				t.Fatalf("done %t, running %v, want %v", done, got, want)
			}
			c, there := a.keeper.condition()
			if !there || !strings.Contains(c.Detail, "gone") || !slices.ContainsFunc(c.Reasons, func(r fault.Reason) bool {
				return strings.Contains(r.Change, "berth instance start gone --force-owner")
			}) {
				t.Errorf("condition %+v", c)
			}
			if kind == kindEmbedded {
				b.must(a.host.ConfirmByHand(t.Context(), stays, "host-b runs nothing of it", "operator:o"))
				_, err := a.tracker.ReleaseOwnership(t.Context(), migration.Ref{Migration: "m", Instance: gone, Attempt: 1, Step: "commit"}, "host-b")
				b.must(err)
				if done, err = a.keeper.lookRemoved(t.Context()); !done || err != nil {
					t.Errorf("all is decided: done %t, %v", done, err)
				}
				if b.start("host-a").host.Waits() {
					t.Error("it waits again, though an operator has decided about all")
				}
			}
		})
	}
}

// clocked is a store whose revisions go by a clock; has says what it answers of a session before.
type clocked struct {
	*fleettest.Client
	session *string
	has     *bool
}

func (c clocked) Moment(ctx context.Context) (fleet.Moment, error) {
	m, err := c.Client.Moment(ctx)
	m.Session, m.Revision = *c.session, uint64(time.Now().UnixMicro())
	return m, err
}

func (c clocked) Has(_ context.Context, told fleet.Moment) (bool, error) {
	return told.Session == *c.session || *c.has, nil
}

// TestKeeper_StoreRolledBack_ItsClockHidesNothing: the server was started anew with an older database,
// and its revisions have passed those that were lost by the time a host asks.
func TestKeeper_StoreRolledBack_ItsClockHidesNothing(t *testing.T) {
	t.Parallel()
	for _, has := range []bool{true, false} {
		b := emptyFleetBench(t)
		session := "first"
		b.client = func(name string) fleet.Store { return clocked{b.store.Client(name), &session, &has} }
		b.serve(placement.Options{Listen: "127.0.0.1:0"})
		b.hosts("host-a")
		b.round("host-a")
		before := b.up["host-a"].keeper.trust.memory
		session = "second"
		b.start("host-a") // it goes by what is durable
		b.round("host-a")
		now := b.up["host-a"].keeper.trust.memory
		if renewed := now.Incarnation != before.Incarnation; renewed == has || now.Session != "second" {
			t.Errorf("the store has it %t: memory %+v, before %+v", has, now, before)
		}
	}
}

// TestKeeper_StoreOfAnotherKind_ConfirmsNothingBeforeAllHostsWroteAgain: host a was evacuated, and
// boots with a store of another kind, which knows nothing of that. It waits until host b has
// written there, also in a boot after the first.
func TestKeeper_StoreOfAnotherKind_ConfirmsNothingBeforeAllHostsWroteAgain(t *testing.T) {
	t.Parallel()
	for _, to := range []string{kindEmbedded, kindEtcd} {
		t.Run("to "+to, func(t *testing.T) {
			b := emptyFleetBench(t)
			way := func(m *fleettest.Memory, etcd bool) func(string) fleet.Store {
				return func(name string) fleet.Store {
					if etcd {
						return m.Client(name)
					}
					return m.Client(name).RecordsOnly()
				}
			}
			b.client = way(b.store, to == kindEmbedded)
			b.serve(placement.Options{Listen: "127.0.0.1:0"})
			b.hosts("host-a", "host-b")
			gone := b.guest("host-a", "gone")
			b.guest("host-a", "stays")
			b.know()
			b.evacuate(gone)
			b.lives(gone)
			_, err := b.up["host-b"].tracker.Own(t.Context(), claims.Instance{UUID: gone, Name: "gone", Token: claims.Token{Epoch: 1}})
			b.must(err)
			b.round("host-b")
			// Placement was put back too, so that nobody but host b knows.
			had, err := b.place.Allocations(t.Context(), gone)
			b.must(err)
			had.Allocations = map[string]placementclient.Resources{b.up["host-a"].uuid: {"VCPU": 1, "MEMORY_MB": 64}}
			b.must(b.place.PutAllocations(t.Context(), gone, had))

			b.store = fleettest.NewMemory(b.rt)
			b.store.Restore(nil, true)
			b.client = way(b.store, to == kindEtcd)
			for boot := range 2 {
				a := b.opened("host-a")
				if !a.host.Waits() || a.host.BootConfirmed() {
					t.Fatalf("boot %d: nothing waits for a store of another kind", boot)
				}
				b.must(a.host.AwaitRecords(t.Context(), true)) // its claims are of that boot too
				b.must(a.host.Settle(t.Context()))
				if err := a.keeper.ready("host-c"); boot == 0 && !fault.HasReason(err, "store_unproven") {
					t.Errorf("an evacuation by such a store: %v", err)
				}
				b.round("host-a")
				b.round("host-a")
				if got := b.running("host-a"); len(got) > 0 {
					t.Fatalf("boot %d: started by a store that never knew of it: %v", boot, got)
				}
				if c, _ := a.keeper.condition(); c.Health == "ok" || !strings.Contains(c.Detail, "host-b") {
					t.Errorf("condition %+v", c)
				}
			}
			b.start("host-b")
			for range 3 {
				b.round("host-b")
				b.up["host-a"].keeper.trust.others, b.up["host-b"].keeper.trust.others = 0, 0
				b.round("host-a")
			}
			if got := b.running("host-a"); !slices.Equal(got, []string{"stays"}) {
				t.Errorf("running: %v", got)
			}
			if rec := b.record(gone); rec.Host != "host-b" || rec.Epoch != 2 {
				t.Errorf("record of host %s, epoch %d", rec.Host, rec.Epoch)
			}
		})
	}
}

// know has each host learn of the other.
func (b *fleetBench) know() {
	b.Helper()
	for range 2 {
		for _, host := range []string{"host-a", "host-b"} {
			b.up[host].keeper.trust.learned = 0
			b.round(host)
		}
	}
}

// TestKeeper_StoreEmptied_HostByItselfStarts: there is nobody to wait for, so nobody has to say anything.
func TestKeeper_StoreEmptied_HostByItselfStarts(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a")
	b.guest("host-a", "web")
	b.round("host-a")
	b.store.Restore(nil, true)
	b.reboot("host-a")
	for range 4 {
		b.round("host-a")
	}
	if got := b.running("host-a"); !slices.Equal(got, []string{"web"}) {
		t.Errorf("running: %v", got)
	}
}

// TestKeeper_StoreEmptied_PlacementOfAnotherDatabaseConfirms, and so does an operator.
func TestKeeper_StoreEmptied_PlacementOfAnotherDatabaseConfirms(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	counted, lost := b.guest("host-a", "counted"), b.guest("host-a", "lost")
	b.know()
	had, err := b.place.Allocations(t.Context(), lost)
	b.must(err)
	had.Allocations = nil
	b.must(b.place.PutAllocations(t.Context(), lost, had))
	b.store.Restore(nil, true)
	a := b.reboot("host-a")
	b.round("host-a")
	b.round("host-a")
	if got := b.running("host-a"); !slices.Equal(got, []string{"counted"}) {
		t.Errorf("running: %v", got)
	}
	b.must(a.host.ConfirmByHand(t.Context(), lost, "host-b runs nothing", "operator:o"))
	b.must(a.host.Start(t.Context(), lost, false))
	b.round("host-a")
	if got := b.record(lost); got.Host != "host-a" {
		t.Errorf("record %+v", got)
	}
	_ = counted
}

// TestKeeper_StoreRestored_ADeadHostIsNotWaitedFor.
func TestKeeper_StoreRestored_ADeadHostIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	b.guest("host-a", "web")
	b.know()
	b.store.Restore(b.store.Records(), true)
	a := b.reboot("host-a")
	a.keeper.kind = kindEmbedded
	b.round("host-a")
	if got := b.running("host-a"); len(got) > 0 {
		t.Fatalf("running: %v", got)
	}
	_, err := fleet.New(b.store.Client("test"), b.rt).DeclareDead(t.Context(), fleet.Death{Host: "host-b", Proof: fleet.ProofOperator, By: "operator:o", Because: "it is scrap"})
	b.must(err)
	for range 3 {
		a.keeper.trust.others = 0
		b.round("host-a")
	}
	if got := b.running("host-a"); !slices.Equal(got, []string{"web"}) {
		t.Errorf("running: %v", got)
	}
}

// TestKeeper_StoreEmptied_AHostThatItLostIsDeclaredDead, as the condition says: nobody but this host
// remembers it.
func TestKeeper_StoreEmptied_AHostThatItLostIsDeclaredDead(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	b.guest("host-a", "web")
	b.know()
	b.must(b.place.DeleteProvider(t.Context(), b.up["host-b"].uuid))
	b.store.Restore(nil, true)
	a := b.reboot("host-a")
	a.keeper.kind = kindEmbedded
	b.round("host-a")
	if c, _ := a.keeper.condition(); len(b.running("host-a")) > 0 || !strings.Contains(c.Detail, "host-b") {
		t.Fatalf("running %v, condition %+v", b.running("host-a"), c)
	}
	_, err := a.deaths.Declare(t.Context(), "host-b", "it is scrap", "operator:o", false)
	b.must(err)
	for range 3 {
		a.keeper.trust.others = 0
		b.round("host-a")
	}
	if got := b.running("host-a"); !slices.Equal(got, []string{"web"}) {
		t.Errorf("running: %v", got)
	}
}

// TestKeeper_LedgerRolledBackWithAllBesideIt_WhatHasNoRecordIsInDoubt: the instance was deleted
// after the copy was made; the fleet's record of the host knows of a later ledger.
func TestKeeper_LedgerRolledBackWithAllBesideIt_WhatHasNoRecordIsInDoubt(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a")
	gone, _ := b.guest("host-a", "gone"), b.guest("host-a", "stays")
	b.round("host-a")
	files := map[string][]byte{}
	a := b.up["host-a"]
	b.must(a.close())
	delete(b.up, "host-a")
	dir := b.conf["host-a"].Agent.StateDir
	for _, name := range []string{"berth.db", "berth.db.latest"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		b.must(err)
		files[name] = content
	}
	a = b.start("host-a")
	b.must(a.host.AwaitRecords(t.Context(), false))
	b.must(b.up["host-a"].tracker.DeleteInstance(t.Context(), gone))
	b.round("host-a")
	b.round("host-a")
	if _, _, err := fleet.New(b.store.Client("test"), b.rt).Instance(t.Context(), gone); fault.KindOf(err) != fault.NotFound {
		t.Fatalf("its record: %v", err)
	}
	b.must(a.close())
	delete(b.up, "host-a")
	for name, content := range files {
		b.must(os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	b.start("host-a")
	for boot := range 2 { // and in the next boot too
		a = b.reboot("host-a")
		b.round("host-a")
		b.round("host-a")
		if got := b.running("host-a"); !slices.Equal(got, []string{"stays"}) {
			t.Errorf("boot %d: running: %v", boot, got)
		}
		if why := a.host.Held()[gone]; !strings.Contains(why, "older") {
			t.Errorf("boot %d: held for %q", boot, why)
		}
	}
}
