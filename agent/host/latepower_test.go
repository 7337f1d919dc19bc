package host_test

import (
	"testing"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// TestPowerOff_ThatComesLateEndsNobody repeats the power-off of a move that is past it, as a
// message does that was held up on its way: nobody would start the guest again.
func TestPowerOff_ThatComesLateEndsNobody(t *testing.T) {
	t.Run("after its return", func(t *testing.T) {
		t.Parallel()
		l, v := coldLab(t)
		c := newCold(t, l, v.UUID, &large)
		c.run(c.there(), "")
		c.run(c.returning(), "finish revert")
		for _, s := range []step{{name: "its host finishes"}, c.returning()[5]} {
			if s.do != nil {
				c.must(s.name, s.do())
			}
			_, err := c.off(time.Minute)
			c.wantKind("late power off after "+s.name, err, fault.Forbidden)
			c.state("a", c.ref.Instance, driver.Running)
		}
	})
	for _, end := range []string{"", "finish", "powered on", "revert"} {
		t.Run("after a change in place, "+end, func(t *testing.T) {
			t.Parallel()
			b := newChange(t, floats2, driver.Running, migration.Change{Flavor: &pinned3})
			b.look()
			b.must("change", b.forward(0))
			refs := []migration.Ref{b.ref}
			switch end {
			case "finish":
				b.finish()
			case "powered on", "revert":
				again := b.ref
				again.Attempt++
				refs = append(refs, again)
				if end == "revert" {
					b.revert()
					break
				}
				_, err := operation.PowerOff.Ask(t.Context(), b.a, again, migration.PowerOffRequest{Kind: b.kind})
				b.must("power off", err)
				b.must("unapply", operation.UnapplyChange.Ask(t.Context(), b.a, b.ref))
				b.must("power on", operation.PowerOn.Ask(t.Context(), b.a, b.ref))
			}
			for _, ref := range refs {
				_, err := operation.PowerOff.Ask(t.Context(), b.a, ref, migration.PowerOffRequest{Timeout: time.Minute, Kind: b.kind})
				b.wantKind("late power off", err, fault.Forbidden)
				b.state("a", b.uuid, driver.Running)
			}
		})
	}
}
