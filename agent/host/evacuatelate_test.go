package host_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/driver"
	"berth/fleet"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
)

// Verbs of an evacuation that come when something else has happened meanwhile.

// The destination loses its power once the guest is given to it, is declared dead, and comes back
// while others take the guest from it: it has read that the guest is its own a moment before.
func TestEvacuation_ADestinationThatWasDeadStartsNothingBeforeItHasReturned(t *testing.T) {
	for _, taken := range []bool{true, false} {
		e := newEvacuation(t, driver.Running)
		e.all(e.prepared())
		e.must("take over", e.takeOver())
		e.must("put b", e.records.PutHost(t.Context(), fleet.Host{Name: "b", ProviderUUID: "rp-b", Boot: "boot-1"}))
		_, err := e.records.DeclareDead(t.Context(), fleet.Death{Host: "b", Proof: fleet.ProofFenced, By: "test", Because: "it is off"})
		e.must("declare dead", err)
		e.b = e.reboot("b", "second", e.options)
		e.looks(func() bool {
			w := e.b.Waiting()
			return len(w) == 1 && strings.Contains(w[0].For, "not confirmed")
		})
		e.state("b", e.ref.Instance, driver.ShutOff)
		e.wantKind("a user's start", e.b.Start(t.Context(), e.ref.Instance, false), fault.Unavailable)
		if !taken {
			_, err := e.b.ConfirmBoot(t.Context(), nil)
			e.must("confirm", err)
			e.looks(func() bool { d, err := e.b.fake.Domain(t.Context(), e.ref.Instance); return err == nil && d.Active() })
			e.all(e.finished())
			e.lives(driver.Running)
			continue
		}
		second := e.ref
		second.Migration = "33333333-3333-4333-8333-333333333333"
		if gave, err := e.b.GiveWay(t.Context(), second, 3, "c", true); err != nil || !gave {
			t.Fatalf("give way: %v, %v", gave, err)
		}
		_, err = e.b.ConfirmBoot(t.Context(), nil)
		e.must("confirm", err)
		e.looks(func() bool { return len(e.b.Waiting()) == 0 })
		if d, err := e.b.fake.Domain(t.Context(), e.ref.Instance); err == nil && d.Active() {
			t.Errorf("it runs here though c has it: %+v", d)
		}
		e.wantKind("a user's start", e.b.Start(t.Context(), e.ref.Instance, false), fault.Forbidden)
		if data, _, _ := e.world.Host("b").Data(sharedFile); data != "data" {
			t.Errorf("the shared disk has %q", data)
		}
	}
}

// A preparation that comes after its undo does nothing, though the claim is there still.
func TestEvacuation_ALatePreparationIsRefused(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared()[:2])
	before := e.picture()
	e.must("roll back", operation.RollbackPrepEvacuation.Ask(t.Context(), e.b, e.ref))
	e.wantKind("a late preparation", e.prepared()[2].do(), fault.Forbidden)
	e.same("after it", before)
}

// Libvirt is away, or waits for a lock of its own: the guest starts at another try.
func TestEvacuation_AStartThatMayHelpLaterIsTriedAgain(t *testing.T) {
	for _, kind := range []fault.Kind{fault.Unavailable, fault.InDoubt, fault.Busy} {
		e := newEvacuation(t, driver.Running)
		e.all(e.prepared())
		e.all(e.finished()[:2])
		e.b.fake.Fault(func(call, _ string) error {
			if call == "Start" {
				return fault.New(kind, "not now")
			}
			return nil
		})
		_, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
		e.wantKind("finish", err, kind)
		e.heal()
		e.all(e.finished())
		e.lives(driver.Running)
	}
}

// What its user does once it lives is his, though the evacuation is not over.
func TestEvacuation_AGuestThatItsUserHasStoppedIsNotStartedAgain(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.all(e.finished()[:2])
	e.b.store.OnCommit(func(_ int, batch []store.Mutation) storetest.Outcome {
		if slices.ContainsFunc(batch, func(m store.Mutation) bool { return strings.Contains(string(m.Value), `"finished":true`) }) {
			return storetest.Fail
		}
		return storetest.Commit
	})
	if _, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref); err == nil {
		t.Fatal("finished, though that cannot be written")
	}
	e.heal()
	e.state("b", e.ref.Instance, driver.Running)
	e.must("its user stops it", e.b.fake.Destroy(t.Context(), e.ref.Instance))
	f, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	if err != nil || !f.Started {
		t.Errorf("finished: %+v, %v", f, err)
	}
	e.lives(driver.ShutOff)
}

// The guest has come and gone on; its conductor was away, and hears that nothing is left to do.
func TestEvacuation_OfAGuestThatHasGoneOnNothingIsLeftToDo(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.all(e.finished())
	onward := e.ref
	onward.Migration = "33333333-3333-4333-8333-333333333333"
	if gave, err := e.b.GiveWay(t.Context(), onward, 3, "c", true); err != nil || !gave {
		t.Fatalf("give way: %v, %v", gave, err)
	}
	e.must("clean up", e.b.CleanUpReturned(t.Context(), onward, migration.Guest{}))
	e.must("accept", operation.AcceptEvacuated.Ask(t.Context(), e.b, e.ref, e.commit()))
	_, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	e.must("finish", err)
	if _, err := e.b.fake.Domain(t.Context(), e.ref.Instance); !errors.Is(err, fault.NotFound) {
		t.Errorf("it is defined again: %v", err)
	}
}

// A host that was set to observe since it took the claim makes nothing.
func TestEvacuation_AHostThatObservesPreparesNothing(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.must("claim", e.claim())
	before := e.picture()
	e.b.mode = host.ModeObserve
	_, err := operation.PrepEvacuation.Ask(t.Context(), e.b, e.ref, e.request)
	e.wantKind("prepare", err, fault.Forbidden)
	e.same("after it was refused", before)
}

// What it remembers of an evacuation goes once nobody asks for it any more.
func TestEvacuation_ForgetsItOnceItsConductorIsSilent(t *testing.T) {
	e := newEvacuation(t, driver.Running)
	e.all(e.prepared())
	e.all(e.finished())
	e.silence = time.Nanosecond
	e.crash()
	e.looks(func() bool { return len(e.b.tracker.Remembering("prepared_evacuation")) == 0 })
	f, err := operation.FinishEvacuation.Ask(t.Context(), e.b, e.ref)
	if err != nil || !f.Started {
		t.Errorf("asked again: %+v, %v", f, err)
	}
	e.lives(driver.Running)
}
