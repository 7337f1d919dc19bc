package host_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/internal/fault"
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
	c.wantKind("power on late", c.a.PowerOn(t.Context(), c.ref), fault.Forbidden)
	c.run(c.returning()[4:], "")
	c.lives(c.a, driver.Running, small, 3)
	l.same("after the return", before)
}

// TestHandOver_EndsACopyThatWasStartedMeanwhile: nobody is told of the token before, so that
// the guest never runs twice.
func TestHandOver_EndsACopyThatWasStartedMeanwhile(t *testing.T) {
	t.Parallel()
	c := poweredLab(t)
	c.run(c.there()[4:], "ship disks")
	_, err := c.a.HandOver(t.Context(), c.ref, "c")
	c.wantKind("hand it to a third host", err, fault.Forbidden)
	first, err := c.a.HandOver(t.Context(), c.ref, "b")
	c.must("hand over", err)
	c.must("start by hand, past the guard", c.a.fake.Start(t.Context(), c.ref.Instance, false))
	again, err := c.a.HandOver(t.Context(), c.ref, "b")
	c.must("hand over again", err)
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("another commit (-first +again):\n%s", diff)
	}
	c.state("a", c.ref.Instance, driver.ShutOff)
}
