package host_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/operation"
)

// TestCold_AGuestThatCannotLiveThereGoesBack before it was ever bound, defined or started at
// its destination.
func TestCold_AGuestThatCannotLiveThereGoesBack(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	before := l.picture()
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "accept handed")
	c.run(c.returning(), "accept back")
	// The undo of the way there comes late: it starts nobody before the guest is what it was.
	c.wantKind("power on late", operation.PowerOn.Ask(t.Context(), c.a, c.ref), fault.Forbidden)
	c.run(c.returning()[4:], "")
	c.lives(c.a, driver.Running, small, 3)
	l.same("after the return", before)
}

// TestRevert_DefinitionUndefinedMeanwhile_IsMadeAgain: somebody undefined what a resize left at
// its source. The record of the power-off and the disks are there, and the guest goes back.
func TestRevert_DefinitionUndefinedMeanwhile_IsMadeAgain(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	before := l.picture()
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "")
	l.must("undefine", c.a.fake.Undefine(t.Context(), v.UUID))
	for _, s := range c.returning() {
		if s.name == "hand back" {
			volumes, err := operation.ReadVolumes.Ask(t.Context(), c.b, c.back)
			l.must("read volumes", err)
			l.must("carry volumes", operation.CarryVolumes.Ask(t.Context(), c.a, c.back, volumes))
		}
		l.must(s.name, s.do())
		l.must(s.name+" again", s.do())
	}
	c.lives(c.a, driver.Running, small, 3)
	l.same("after the revert", before)
}

// TestHandOver_EndsACopyThatWasStartedMeanwhile: nobody is told of the token before, so that
// the guest never runs twice.
func TestHandOver_EndsACopyThatWasStartedMeanwhile(t *testing.T) {
	t.Parallel()
	c := poweredLab(t)
	c.run(c.there()[4:], "ship disks")
	_, err := operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "c"})
	c.wantKind("hand it to a third host", err, fault.Forbidden)
	c.must("its user starts it", c.a.fake.Start(t.Context(), c.ref.Instance, false))
	_, err = operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"})
	if got := codes(err); !slices.Equal(got, []string{"started_again"}) {
		t.Errorf("hand over a guest that runs: %v", err)
	}
	c.state("a", c.ref.Instance, driver.Running)
	c.must("its user ends it", c.a.fake.Destroy(t.Context(), c.ref.Instance))
	started := false // between the look and the record
	c.a.store.OnCommit(func(int, []store.Mutation) storetest.Outcome {
		if !started {
			started = true
			c.must("start by hand, amid it", c.a.fake.Start(t.Context(), c.ref.Instance, false))
		}
		return storetest.Commit
	})
	first, err := operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"})
	c.must("hand over", err)
	c.a.store.OnCommit(nil)
	c.state("a", c.ref.Instance, driver.ShutOff)
	c.must("start by hand, past the guard", c.a.fake.Start(t.Context(), c.ref.Instance, false))
	again, err := operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"})
	c.must("hand over again", err)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("another commit (-first +again):\n%s", diff)
	}
	c.state("a", c.ref.Instance, driver.ShutOff)
}
