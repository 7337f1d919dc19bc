package claims_test

import (
	"errors"
	"testing"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/topology"
)

// gate is a disk that takes its time: commits wait until the test lets them
// through or fails them.
type gate struct {
	*storetest.Memory
	queued chan commit
}

type commit struct {
	mutations []store.Mutation
	settle    func(error)
}

func (g *gate) Enqueue(m ...store.Mutation) *store.Pending {
	p, settle := store.NewPending(nil)
	g.queued <- commit{m, settle}
	return p
}

func (g *gate) pass(c commit) { c.settle(g.Memory.Enqueue(c.mutations...).Wait()) }

func newGate(t *testing.T) (*claims.Tracker, *gate) {
	g := &gate{storetest.NewMemory(), make(chan commit, 10)}
	tracker, err := claims.Open(ctx, claims.Options{Store: g, Runtime: newClock(), Host: "h", Capacity: capacity})
	wantNil(t, err)
	return tracker, g
}

func TestTracker_WhileACommitIsOnItsWay(t *testing.T) {
	tracker, g := newGate(t)
	large, half := topology.Resources{VCPUs: 4, MemoryMB: 3000, DiskGB: 10}, topology.Resources{VCPUs: 1, MemoryMB: 1500}
	none := topology.Resources{}
	slow := make(chan error, 1)
	// begin starts something slow and gives its commit.
	begin := func(f func() error) commit {
		go func() { slow <- f() }()
		return <-g.queued
	}
	full := func(when string, used topology.Resources) {
		t.Helper()
		u := tracker.Usage()
		if u.Used != used || u.Free.MemoryMB != 584 || len(tracker.List()) != len(tracker.ByInstance("i1")) || (len(tracker.List()) == 1) != (used != none) {
			t.Errorf("%s: %+v, %v", when, u, tracker.List())
		}
		if err := tracker.Check(half); !errors.Is(err, fault.DoesNotFit) {
			t.Errorf("%s: another claim: %v, want it not to fit", when, err)
		}
	}
	o := instanceOwner("i1")
	claim := func() error {
		_, err := tracker.Claim(ctx, claims.Request{Owner: o, Resources: large})
		return err
	}
	release := func() error { return tracker.Release(ctx, o) }

	c := begin(claim)
	full("a claim is on its way: held and not told", none)
	c.settle(errors.New("no room"))
	if err := <-slow; err == nil {
		t.Fatal("a failed commit was answered as done")
	}
	if u := tracker.Usage(); u.Free.MemoryMB != 3584 {
		t.Errorf("a failed claim is still held: %+v", u)
	}
	g.pass(begin(claim))
	wantNil(t, <-slow)
	full("claimed", large)
	g.pass(begin(func() error { _, err := tracker.Bind(ctx, o); return err }))
	wantNil(t, <-slow)

	c = begin(release)
	full("a release is on its way: still held and told", large)
	c.settle(errors.New("no room"))
	if err := <-slow; err == nil {
		t.Fatal("a failed release was answered as done")
	}
	full("a release has failed", large)

	// The claim follows a guest that shrinks and grows: the larger side counts.
	adopt := func(r topology.Resources) func() error {
		return func() error { _, err := tracker.Adopt(ctx, guest("i1"), claims.Found{Resources: r}); return err }
	}
	c = begin(adopt(half))
	full("shrinking", large)
	g.pass(c)
	wantNil(t, <-slow)
	c = begin(adopt(large))
	full("growing", half)
	g.pass(c)
	wantNil(t, <-slow)

	c = begin(release)
	full("a release is on its way again", large)
	g.pass(c)
	wantNil(t, <-slow)
	if u := tracker.Usage(); u.Used != none || u.Free.MemoryMB != 3584 {
		t.Errorf("released: %+v", u)
	}
}

// A change of the same instance waits for the one on its way, and is then
// decided on what became of it.
func TestTracker_TheSecondChangeWaitsForTheFirst(t *testing.T) {
	for _, first := range []error{nil, errors.New("no room")} {
		tracker, g := newGate(t)
		o := moveOwner("i1", "m1", 1)
		answers := make(chan error, 2)
		go func() {
			_, err := tracker.Claim(ctx, claims.Request{Owner: o, Resources: small})
			answers <- err
		}()
		c := <-g.queued
		go func() {
			_, err := tracker.Arrive(ctx, o)
			answers <- err
		}()
		if first == nil {
			g.pass(c)
			wantNil(t, <-answers)
			g.pass(<-g.queued)
			wantNil(t, <-answers)
			continue
		}
		c.settle(first)
		one, two := <-answers, <-answers
		if !errors.Is(one, fault.NotFound) && !errors.Is(two, fault.NotFound) {
			t.Errorf("answers %v and %v: nobody saw that there is no claim", one, two)
		}
		if len(tracker.List()) != 0 || len(g.queued) != 0 {
			t.Error("something was built on a commit that failed")
		}
	}
}
