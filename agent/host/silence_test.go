package host_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
	"berth/placementclient"
	"berth/topology"
)

// SettledElsewhere and what follows implement host.Moved.
func (p placementOf) SettledElsewhere(ctx context.Context, instance, migration string) (bool, error) {
	inst, err := p.Allocations(ctx, instance)
	if err != nil {
		return false, err
	}
	mig, err := p.Allocations(ctx, migration)
	_, own := inst.Allocations[p.provider]
	return !own && len(inst.Allocations) > 0 && len(mig.Allocations) == 0, err
}

func (p placementOf) CountedHere(ctx context.Context, instance string) (bool, error) {
	inst, err := p.Allocations(ctx, instance)
	_, own := inst.Allocations[p.provider]
	return own, err
}

func (p placementOf) settle(ctx context.Context, instance, migration string, next func(inst, mig *placementclient.Allocations)) error {
	inst, err := p.Allocations(ctx, instance)
	if err != nil {
		return err
	}
	mig, err := p.Allocations(ctx, migration)
	if err != nil {
		return err
	}
	next(&inst, &mig)
	return p.PostAllocations(ctx, map[string]placementclient.Allocations{instance: inst, migration: mig})
}

func (p placementOf) SettleHere(ctx context.Context, a allocation.Allocation, migration string) error {
	placed, err := p.Place(ctx, a)
	if err != nil {
		return err
	}
	return p.settle(ctx, a.Consumer, migration, func(inst, mig *placementclient.Allocations) { inst.Allocations, mig.Allocations = placed, nil })
}

func (p placementOf) SettleThere(ctx context.Context, instance, migration string) error {
	return p.settle(ctx, instance, migration, func(inst, mig *placementclient.Allocations) { mig.Allocations = nil })
}

func (p placementOf) Swapped(ctx context.Context, instance, migration string) (bool, error) {
	kept, err := p.Kept(ctx, migration)
	if err != nil || !kept {
		return false, err
	}
	inst, err := p.Allocations(ctx, instance)
	return inst.Allocations[p.provider] != nil, err
}

func (p placementOf) Kept(ctx context.Context, migration string) (bool, error) {
	mig, err := p.Allocations(ctx, migration)
	return len(mig.Allocations) > 0, err
}

func (p placementOf) SettleNobody(ctx context.Context, instance, migration string) error {
	return p.SettleThere(ctx, instance, migration)
}

func (p placementOf) SettleBack(ctx context.Context, instance, migration string, _ topology.Resources) error {
	return p.settle(ctx, instance, migration, func(inst, mig *placementclient.Allocations) {
		if len(mig.Allocations) > 0 {
			inst.Allocations, mig.Allocations = mig.Allocations, nil
		}
	})
}

// silenced is a move that host c conducts, of which the two hosts reach nobody but c.
type silenced struct {
	*apart

	mu     sync.Mutex
	asked  map[string]bool // hosts that were asked for as sides
	answer func(migration.Ref) (migration.AttemptFate, error)
}

// longSilence is more than any test takes; noPatience less than any look.
const (
	longSilence = time.Hour
	noPatience  = time.Nanosecond
)

func newSilenced(t *testing.T) *silenced {
	t.Helper()
	s := &silenced{apart: newApart(t), asked: map[string]bool{}}
	s.boots("a", longSilence)
	s.boots("b", longSilence)
	return s
}

// boots kills a host's agent and starts it again, with so much patience for its conductor.
func (s *silenced) boots(name string, patience time.Duration, more ...func(*host.Options)) {
	n := s.hosts[name]
	n.Close()
	n.store = n.store.Crash()
	n.files = s.world.Host(name)
	s.boot(name, func(o *host.Options) {
		o.Seals, o.Silence, o.ConductorSilence = s.seals[name], noPatience, patience
		o.Side = func(_ context.Context, name string) (migration.Side, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked[name] = true
			if s.answer == nil {
				return nil, fault.New(fault.Unavailable, "no route to host %s", name)
			}
			return sideOf(s.answer), nil
		}
		for _, f := range more {
			f(o)
		}
	})
	s.a, s.b = s.hosts["a"], s.hosts["b"]
}

// sideOf is a side by what it answers about attempts.
type sideOf func(migration.Ref) (migration.AttemptFate, error)

func (f sideOf) AttemptFate(_ context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	return f(ref)
}

func (f sideOf) YieldToken(context.Context, migration.Ref, uint64, string) error {
	return fault.New(fault.Unavailable, "nobody")
}

func (s *silenced) answers(f func(migration.Ref) (migration.AttemptFate, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// steps are those of the move, with the copy and the allocations.
func (s *silenced) steps() []step {
	all := s.apart.there()
	i := slices.IndexFunc(all, func(one step) bool { return one.name == "claim" }) + 1
	copies := step{"copy", func() error {
		return operation.CopyInstance.Ask(s.t.Context(), s.b, s.ref, migration.InstanceCopy{
			UUID: s.guest.UUID, Name: s.guest.Name, Flavor: s.wanted.Flavor, ProjectID: "project", UserID: "user", Autostart: true, Epoch: s.guest.Epoch,
		})
	}, func() error { return operation.RemoveCopy.Ask(s.t.Context(), s.b, s.ref) }}
	swap := step{"swap", func() error {
		p := s.placement
		inst, err := p.Allocations(s.t.Context(), s.ref.Instance)
		if err != nil || inst.Allocations["rp-a"] == nil {
			return err
		}
		mig := inst.Clone()
		mig.ConsumerGeneration = nil
		inst.Allocations = map[string]placementclient.Resources{"rp-b": {"VCPU": 2, "MEMORY_MB": 256, "DISK_GB": 1}}
		return p.PostAllocations(s.t.Context(), map[string]placementclient.Allocations{s.ref.Instance: inst, s.ref.Migration: mig})
	}, func() error {
		return s.placement.of("a").SettleBack(s.t.Context(), s.ref.Instance, s.ref.Migration, topology.Resources{})
	}}
	return slices.Insert(all, i, copies, swap)
}

// undoes takes back all steps, as the conductor does when it comes back.
func (s *silenced) undoes() {
	s.t.Helper()
	for _, one := range slices.Backward(s.steps()) {
		if one.undo != nil {
			s.must("undo "+one.name, one.undo())
		}
	}
}

// follows lets hosts look after their sides until ok.
func (s *silenced) follows(what string, ok func() bool, nodes ...*node) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, len(nodes))
	for _, n := range nodes {
		s.rt.Go("sides of "+n.name, func() { ended <- n.FollowSides(ctx) })
	}
	waitFor(s.t, what, ok)
	stop()
	for range nodes {
		s.must("follow sides", <-ended)
	}
}

func (s *silenced) is(n *node, want driver.State) func() bool {
	return func() bool {
		d, err := n.fake.Domain(s.t.Context(), s.ref.Instance)
		return err == nil && d.State == want
	}
}

// looks counts the pauses between two looks at what hosts wait for, by how long they are.
type looks struct {
	runtime.Runtime
	pause time.Duration
	n     atomic.Int64
}

func (l *looks) Sleep(ctx context.Context, d time.Duration) error {
	if d == l.pause {
		l.n.Add(1)
	}
	return l.Runtime.Sleep(ctx, d)
}

// TestSilence_AConductorThatWaitsForAnAnswerIsHeard, however little patience there is with one
// that has gone.
func TestSilence_AConductorThatWaitsForAnAnswerIsHeard(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "power off")
	asked, answer := make(chan struct{}), make(chan struct{})
	var counted *looks
	s.boots("a", noPatience, func(o *host.Options) {
		o.Agree = 4 * 7 * time.Millisecond // nothing else pauses for a quarter of that
		counted = &looks{Runtime: o.Runtime, pause: o.Agree / 4}
		o.Runtime = counted
		o.Peers = func(context.Context, string) (migration.Host, error) {
			close(asked)
			<-answer
			return nil, fault.New(fault.Unavailable, "no route to it")
		}
	})
	reached := make(chan error, 1)
	s.rt.Go("a conductor's question", func() {
		reached <- operation.Reaches.Ask(t.Context(), s.a, migration.Ref{}, migration.ReachRequest{Host: "b"})
	})
	<-asked
	s.follows("the source to look while it is asked", func() bool { return counted.n.Load() >= 3 }, s.a)
	if s.a.tracker.CommitRefused(s.ref.Migration, 1) {
		t.Error("the source has decided alone while its conductor waited for its answer")
	}
	close(answer)
	s.wantKind("the answer", <-reached, fault.Unavailable)
	s.follows("the source to decide when nobody asks", func() bool { return s.a.tracker.CommitRefused(s.ref.Migration, 1) }, s.a)
}

// TestSilence_OthersQuestionsDoNotSpeakForAConductorThatIsGone: those about the way to a host
// name no move, and others than its conductor ask them, too.
func TestSilence_OthersQuestionsDoNotSpeakForAConductorThatIsGone(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "power off")
	s.boots("a", 200*time.Millisecond)
	s.follows("the source to decide, however often it is asked", func() bool {
		_ = operation.Reaches.Ask(t.Context(), s.a, migration.Ref{}, migration.ReachRequest{Host: "b"}) // all that is wanted of it is that it was asked
		return s.a.tracker.CommitRefused(s.ref.Migration, 1)
	}, s.a)
}

// TestSilence_ASourceKeepsItsGuest: whatever its conductor had come to, the guest is as it
// was, is handed over no more, and may be used; the conductor finds its hand-over late, and
// undoes the rest.
func TestSilence_ASourceKeepsItsGuest(t *testing.T) {
	for _, last := range []string{"record context", "power off", "disconnect", "ship disks"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			s := newSilenced(t)
			before := s.picture()
			s.run(s.steps(), last)
			s.follows("the source to look once", func() bool { return s.b.Waiting() != nil }, s.a, s.b)
			if last != "record context" {
				s.state("a", s.ref.Instance, driver.ShutOff) // it has patience
			}
			s.boots("a", noPatience)
			decided := func() bool { // and as it was: it waits, and may run, before that
				w := s.a.Waiting()
				return s.a.tracker.CommitRefused(s.ref.Migration, 1) && len(w) == 1 && w[0].Leaves && w[0].Conductor == "c" && s.is(s.a, driver.Running)() && s.a.Lives(s.ref.Instance)
			}
			s.follows("the source to give its guest back, and to let its user start and stop it", decided, s.a)
			s.wantKind("a late hand-over", second(operation.HandOver.Ask(t.Context(), s.a, s.ref, migration.HandOverRequest{To: "b"})), fault.Forbidden)
			s.wantKind("a late power off", second(operation.PowerOff.Ask(t.Context(), s.a, s.ref, migration.PowerOffRequest{})), fault.Forbidden)
			s.must("stop", s.a.Stop(t.Context(), s.ref.Instance, host.StopOptions{Force: true}))
			s.must("start", s.a.Start(t.Context(), s.ref.Instance, false))

			s.undoes()
			s.follows("nothing to be left", func() bool { return len(s.a.Waiting())+len(s.b.Waiting()) == 0 && s.picture()["a memories"] == nil }, s.a, s.b)
			s.same("after its conductor came back", before)
			if s.mu.Lock(); s.asked["a"] || s.asked["b"] {
				t.Errorf("the two hosts asked each other: %v", s.asked)
			}
			s.mu.Unlock()
		})
	}
}

// TestSilence_KilledAtAWrite ends the source's agent at each of its commits while it decides
// and restores, lost or written and not answered: the guest is as it was.
func TestSilence_KilledAtAWrite(t *testing.T) {
	for _, what := range []storetest.Outcome{storetest.Fail, storetest.FailWritten} {
		t.Run(fmt.Sprint(what), func(t *testing.T) {
			t.Parallel()
			for nth, reached := 1, true; reached; nth += 2 {
				reached = false
				s := newSilenced(t)
				before := s.picture()
				s.run(s.steps(), "ship disks")
				s.boots("a", noPatience)
				n := 0
				died := make(chan struct{})
				s.a.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
					if n++; n == nth {
						close(died)
						return what
					}
					return storetest.Commit
				})
				s.follows("the source to give its guest back, or die", func() bool {
					select {
					case <-died:
						reached = true
						return true
					default:
						return s.is(s.a, driver.Running)() && s.picture()["a memories"] != nil && len(s.a.Waiting()) == 1 && s.a.Lives(s.ref.Instance)
					}
				}, s.a)
				s.a.store.OnCommit(nil)
				s.boots("a", noPatience)
				s.follows("the guest to be back", func() bool { return s.is(s.a, driver.Running)() && s.a.Lives(s.ref.Instance) }, s.a)
				s.wantKind("a late hand-over", second(operation.HandOver.Ask(t.Context(), s.a, s.ref, migration.HandOverRequest{To: "b"})), fault.Forbidden)
				s.undoes()
				s.follows("nothing to be left", func() bool { return s.picture()["a memories"] == nil }, s.a)
				s.same(fmt.Sprintf("after commit %d failed", nth), before)
				if t.Failed() {
					return
				}
			}
		})
	}
}

// TestSilence_WhatWasSettledElsewhereIsNotStarted: by Placement somebody has ended this
// host's half, so the guest may run there.
func TestSilence_WhatWasSettledElsewhereIsNotStarted(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "ship disks")
	s.placement.breakWith(fault.New(fault.Unavailable, "placement is down"))
	s.boots("a", noPatience)
	waits := func() bool {
		return len(s.a.Waiting()) == 1 && s.a.tracker.CommitRefused(s.ref.Migration, 1)
	}
	s.follows("the source to wait for Placement", waits, s.a)
	s.state("a", s.ref.Instance, driver.ShutOff)
	s.placement.breakWith(nil)
	s.must("settle there", s.placement.of("b").SettleThere(t.Context(), s.ref.Instance, s.ref.Migration))
	s.follows("the source to be in doubt", func() bool { w := s.a.Waiting(); return len(w) == 1 && w[0].InDoubt }, s.a)
	s.state("a", s.ref.Instance, driver.ShutOff)
}

// TestSilence_TheGiverOfARevertKeepsItsGuest: what the conductor of a revert has powered off
// is given back where it is, and still waits to be confirmed.
func TestSilence_TheGiverOfARevertKeepsItsGuest(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "")
	s.must("show", operation.ShowInstance.Ask(t.Context(), s.b, s.ref))
	s.must("hide", operation.HideInstance.Ask(t.Context(), s.a, s.ref))
	s.run(s.returning(), "power off there")
	s.boots("b", noPatience)
	s.follows("the guest to be back where it was", func() bool { return s.is(s.b, driver.Running)() && s.b.Lives(s.ref.Instance) }, s.b)
	s.wantKind("a late return", second(operation.HandOver.Ask(t.Context(), s.b, s.back, migration.HandOverRequest{To: "a"})), fault.Forbidden)
	steps := s.returning()
	for i := 2; i >= 0; i-- {
		s.must("undo "+steps[i].name, steps[i].undo())
	}
	s.run(s.confirm(), "")
	s.lives(s.b, driver.Running, large, 2)
}

// TestSilence_ADestinationAsksTheConductor, never the source, and takes from it only what
// the source has sealed.
func TestSilence_ADestinationAsksTheConductor(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	s.run(s.steps(), "hand over")
	forged := s.committed
	forged.Seal = nil
	said := make(chan migration.Commit, 1)
	said <- forged
	commit := forged
	s.answers(func(migration.Ref) (migration.AttemptFate, error) {
		select {
		case commit = <-said:
		default:
		}
		return migration.AttemptFate{Fate: migration.FateCommitted, Why: "by its journal", Commit: &commit}, nil
	})
	s.boots("b", longSilence)
	s.follows("the destination to refuse", func() bool { return len(s.b.Waiting()) == 1 }, s.b)
	if inst, known := s.b.tracker.Instance(s.ref.Instance); known {
		t.Fatalf("it took the guest on its conductor's word: %+v", inst)
	}
	said <- s.committed
	s.follows("the destination to finish", func() bool { return s.is(s.b, driver.Running)() && len(s.b.Waiting()) == 0 }, s.b)
	s.lives(s.b, driver.Running, large, 2)
	inst, _ := s.b.tracker.Instance(s.ref.Instance)
	if inst.ProjectID != "project" || !inst.Autostart || len(s.b.tracker.Copies()) != 0 {
		t.Errorf("record %+v, copies %+v", inst, s.b.tracker.Copies())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asked["c"] || s.asked["a"] {
		t.Errorf("asked %v, want the conductor alone", s.asked)
	}
}

// TestSilence_AHigherEpochIsBelievedWithItsSealAlone: a conductor that says that the guest
// went back, or to itself, has no proof of it; the source has.
func TestSilence_AHigherEpochIsBelievedWithItsSealAlone(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	ctx := t.Context()
	s.run(s.steps(), "accept handed")
	own := migration.Commit{Instance: s.ref.Instance, Migration: s.ref.Migration, Attempt: s.ref.Attempt, Epoch: 9, From: "c", To: "c"}
	own.Seal = &migration.Seal{Signature: []byte(signature(own))}
	for _, lie := range []migration.AttemptFate{
		{Fate: migration.FateKept, Why: "an operator said so", Epoch: 9, Holder: "a"},
		{Fate: migration.FateKept, Why: "it is here", Epoch: 9, Holder: "c", Commit: &own},
	} {
		s.answers(func(migration.Ref) (migration.AttemptFate, error) { return lie, nil })
		s.boots("b", longSilence)
		s.follows("the destination to doubt it", func() bool { return len(s.b.Waiting()) == 1 }, s.b)
		if inst, _ := s.b.tracker.Instance(s.ref.Instance); inst.Token.State != claims.TokenHere {
			t.Fatalf("it gave way to %s on its conductor's word: %+v", lie.Holder, inst.Token)
		}
	}
	s.answers(nil)
	_, err := s.a.SettleApart(ctx, s.ref.Migration, saying("a", "b", "c"))
	s.must("settle at a", err)
	s.answers(func(ref migration.Ref) (migration.AttemptFate, error) { return s.a.AttemptFate(ctx, ref) })
	s.boots("b", longSilence)
	s.follows("the destination to give way", func() bool { _, known := s.b.tracker.Instance(s.ref.Instance); return !known }, s.b)
	s.state("a", s.ref.Instance, driver.Running)
	if n := s.fleet.RunningCopies(s.ref.Instance); n != 1 {
		t.Errorf("%d copies run", n)
	}
}

// TestAutostart_NotWhereItWasSettledElsewhere: a destination that an operator took for dead
// comes back, and nobody is there to tell it.
func TestAutostart_NotWhereItWasSettledElsewhere(t *testing.T) {
	for _, settled := range []bool{false, true} {
		t.Run(fmt.Sprint(settled), func(t *testing.T) {
			t.Parallel()
			s := newSilenced(t)
			ctx := t.Context()
			s.finished()
			s.must("end it, as its host did", s.b.fake.Destroy(ctx, s.ref.Instance))
			want := driver.Running
			if settled {
				_, err := s.a.SettleApart(ctx, s.ref.Migration, saying("a", "b", "c"))
				s.must("settle at a", err)
				want = driver.ShutOff
			}
			s.boots("b", longSilence)
			s.must("settle b", s.b.Settle(ctx))
			s.state("b", s.ref.Instance, want)
		})
	}
}

// TestCopyInstance_IsListedOnlyWhereItIsAskedFor, has no name beside it, and goes by its undo.
func TestCopyInstance_IsListedOnlyWhereItIsAskedFor(t *testing.T) {
	t.Parallel()
	s := newSilenced(t)
	ctx := t.Context()
	s.run(s.steps(), "copy")
	s.run(s.steps(), "copy")
	count := func(list []host.InstanceView, err error) int {
		s.must("list", err)
		return len(list)
	}
	if n, all := count(s.b.List(ctx)), count(s.b.ListHidden(ctx)); n != 0 || all != 1 {
		t.Errorf("%d shown of %d, want 0 of 1", n, all)
	}
	s.wantKind("show", second(s.b.Show(ctx, s.guest.Name)), fault.NotFound)
	s.wantKind("start", s.b.Start(ctx, s.ref.Instance, false), fault.NotFound)
	_, err := s.b.Create(ctx, host.CreateRequest{
		Name: s.guest.Name, Flavor: small, ProjectID: "project", UserID: "user", Disks: []host.CreateDisk{{Path: "/images/another.raw", SizeGB: 1, Format: "raw"}},
	})
	s.wantKind("create another of its name", err, fault.Exists)
	s.must("remove", operation.RemoveCopy.Ask(ctx, s.b, s.ref))
	s.wantKind("a late copy", s.steps()[2].do(), fault.Forbidden)

	r := newSilenced(t)
	r.run(r.steps(), "")
	if list, _ := r.b.ListHidden(ctx); len(list) != 1 || !list[0].Hidden || list[0].Token.State != claims.TokenHere {
		t.Errorf("before the flip: %+v", list)
	}
	r.wantKind("a late removal", operation.RemoveCopy.Ask(ctx, r.b, r.ref), fault.Forbidden)
	for range 2 {
		r.must("show", operation.ShowInstance.Ask(ctx, r.b, r.ref))
		r.must("hide", operation.HideInstance.Ask(ctx, r.a, r.ref))
	}
	if n, there := count(r.a.List(ctx)), count(r.b.List(ctx)); n != 0 || there != 1 {
		t.Errorf("after the flip %d shown at the source and %d at the destination", n, there)
	}
	r.run(r.returning(), "")
	r.must("a late hide", operation.HideInstance.Ask(ctx, r.a, r.ref))
	if n, there := count(r.a.List(ctx)), count(r.b.ListHidden(ctx)); n != 1 || there != 0 {
		t.Errorf("after the revert %d shown at the source and %d left at the destination", n, there)
	}
}
