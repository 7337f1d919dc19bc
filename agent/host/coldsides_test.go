package host_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// coldSides is a cold move whose hosts reach each other, and whose conductor falls silent.
type coldSides struct {
	*cold
	silent  atomic.Bool
	conduct atomic.Value
}

func newColdSides(t *testing.T) *coldSides {
	t.Helper()
	l, v := coldLab(t)
	s := &coldSides{cold: newCold(t, l, v.UUID, &large)}
	s.conduct.Store(migration.ConductNone)
	for _, name := range []string{"a", "b"} {
		s.reboot(name)
	}
	return s
}

// reboot kills a host's agent and starts it again.
func (s *coldSides) reboot(name string) {
	n := s.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	s.boot(name, func(o *host.Options) {
		o.Silence = time.Nanosecond
		o.Conducts = func(string, int) migration.Conduct { return s.conduct.Load().(migration.Conduct) }
		o.Side = func(_ context.Context, name string) (migration.Side, error) {
			if s.silent.Load() {
				return nil, fault.New(fault.Unavailable, "no route to host %s", name)
			}
			return s.hosts[name].Host, nil
		}
	})
	s.a, s.b = s.hosts["a"], s.hosts["b"]
}

// alone lets both hosts look after their sides until ok.
func (s *coldSides) alone(what string, ok func() bool) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 2)
	for _, n := range []*node{s.a, s.b} {
		s.rt.Go("sides of "+n.name, func() { ended <- n.FollowSides(ctx) })
	}
	waitFor(s.t, what, ok)
	stop()
	for range 2 {
		s.must("follow sides", <-ended)
	}
}

// TestColdSides_ADestinationFinishesWhatWasHandedOver: the conductor dies with the commit
// in its hands, or right after it was accepted, and both agents with it.
func TestColdSides_ADestinationFinishesWhatWasHandedOver(t *testing.T) {
	for _, last := range []string{"hand over", "accept handed"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			s := newColdSides(t)
			s.run(s.there(), last)
			s.reboot("a")
			s.reboot("b")
			s.alone("the destination to finish", func() bool {
				d, err := s.b.fake.Domain(t.Context(), s.ref.Instance)
				return err == nil && d.Active() && len(s.b.Waiting()) == 0
			})
			s.lives(s.b, driver.Running, large, 2)
			// The conductor comes back and goes on, as if nothing had been.
			s.must("accept", operation.AcceptHanded.Ask(t.Context(), s.b, s.ref, s.commitOf(s.a)))
			s.must("finish", operation.FinishResize.Ask(t.Context(), s.b, s.ref))
			s.run(s.confirm(), "")
			s.lives(s.b, driver.Running, large, 2)
		})
	}
}

func (c *cold) commitOf(n *node) migration.Commit {
	c.t.Helper()
	commit, err := operation.HandOver.Ask(c.t.Context(), n, c.ref, migration.HandOverRequest{To: "b"})
	c.must("ask for the commit again", err)
	return commit
}

// TestColdSides_ADestinationRollsBackWhatTheSourceKeeps: it ends its arrival only once
// the source has decided, and waits and says so until then.
func TestColdSides_ADestinationRollsBackWhatTheSourceKeeps(t *testing.T) {
	s := newColdSides(t)
	s.run(s.there(), "power off")
	s.reboot("b")
	s.alone("the destination to wait", func() bool { return len(s.b.Waiting()) == 1 })
	if _, ok := s.b.tracker.ByOwner(claims.Owner{Instance: s.ref.Instance, Migration: s.ref.Migration, Attempt: 1, Kind: claims.KindResize}); !ok {
		t.Fatal("the claim went before the source had decided")
	}
	s.must("keep", operation.KeepGuest.Ask(t.Context(), s.a, s.ref))
	s.alone("the destination to roll back", func() bool { return len(s.b.tracker.List()) == 0 })
	s.must("power on", operation.PowerOn.Ask(t.Context(), s.a, s.ref))
	s.must("drop context", operation.DropContext.Ask(t.Context(), s.a, s.ref))
	s.lives(s.a, driver.Running, small, 1)
	if p := s.picture(); p["b memories"] != nil || p["b domains"] != nil || p["a memories"] != nil {
		t.Errorf("left behind: %v", p)
	}
	s.wantKind("a late hand-over", second(operation.HandOver.Ask(t.Context(), s.a, s.ref, migration.HandOverRequest{To: "b"})), fault.Forbidden)
}

func second[T any](_ T, err error) error { return err }

// TestColdSides_ASourceTakesBackWhatWasHandedBack: the conductor of a revert dies.
func TestColdSides_ASourceTakesBackWhatWasHandedBack(t *testing.T) {
	for _, last := range []string{"hand back", "accept back"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			s := newColdSides(t)
			before := s.picture()
			s.run(s.there(), "")
			s.run(s.returning(), last)
			s.reboot("a")
			s.reboot("b")
			s.alone("the source to take the guest back", func() bool {
				d, err := s.a.fake.Domain(t.Context(), s.ref.Instance)
				return err == nil && d.Active() && len(s.a.Waiting()) == 0 && len(s.a.tracker.Contexts()) == 0
			})
			s.lives(s.a, driver.Running, small, 3)
			s.must("clean up", operation.CleanUpReverted.Ask(t.Context(), s.b, s.back))
			s.same("after the revert", before)
		})
	}
}

// TestColdSides_AReturnThatIsGivenUp: its guest stays where it went, and may be confirmed.
func TestColdSides_AReturnThatIsGivenUp(t *testing.T) {
	s := newColdSides(t)
	s.run(s.there(), "")
	s.run(s.returning(), "power off there")
	s.must("keep", operation.KeepGuest.Ask(t.Context(), s.b, s.back))
	s.must("power on", operation.PowerOn.Ask(t.Context(), s.b, s.back))
	s.lives(s.b, driver.Running, large, 2)
	// The conductor dies before it cancels; the source asks, and holds its half as before.
	s.reboot("a")
	held := claims.Owner{Instance: s.ref.Instance, Migration: s.ref.Migration, Attempt: 1, Kind: claims.KindResize}
	s.alone("the source to give up", func() bool { c, ok := s.a.tracker.ByOwner(held); return ok && c.State == claims.Held })
	s.must("cancel", operation.CancelReturn.Ask(t.Context(), s.a, s.back))
	s.wantKind("a late return", operation.AwaitReturn.Ask(t.Context(), s.a, s.back), fault.Forbidden)
	// Another try takes it back, by an attempt of its own.
	s.back.Attempt = 3
	s.run(s.returning(), "")
	s.lives(s.a, driver.Running, small, 3)
}

// TestColdSides_NothingIsStartedTwiceWhileARevertGoesOn: an arrival that could not be
// finished is not finished by the destination once its guest is on its way back.
func TestColdSides_NothingIsStartedTwiceWhileARevertGoesOn(t *testing.T) {
	s := newColdSides(t)
	before := s.picture()
	s.run(s.there(), "accept handed")
	s.b.fake.Fault(func(call, _ string) error {
		if call == "Start" {
			return fault.New(fault.Internal, "QEMU ends at once")
		}
		return nil
	})
	if err := operation.FinishResize.Ask(t.Context(), s.b, s.ref); fault.KindOf(err) != fault.Internal {
		t.Fatalf("finish: %v", err)
	}
	steps := s.returning()
	s.run(steps, "power off there")
	s.b.fake.Fault(nil)
	s.wantKind("a late finish", operation.FinishResize.Ask(t.Context(), s.b, s.ref), fault.Forbidden)
	if list := s.b.Waiting(); len(list) != 0 {
		t.Errorf("waits: %+v", list)
	}
	s.run(steps[2:], "")
	s.lives(s.a, driver.Running, small, 3)
	s.same("after the revert", before)
}
