package conductor_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime/simruntime"
	"berth/migration"
	"berth/migration/conductor"
)

// TestSwap_ThatPlacementForbidsIsOver: nothing was written, so nothing is written back, and
// the guest is not kept busy.
func TestSwap_ThatPlacementForbidsIsOver(t *testing.T) {
	w := apartly(t, script{request: apartCold, named: "b", want: undone}, faults{})
	w.placement.answers = func(int) error { return fault.New(fault.Forbidden, "placement answered 403") }
	m := w.run()
	w.report("forbidden")
	if w.placement.writes != 1 || m.Error == nil || m.Error.Kind != fault.Forbidden {
		t.Errorf("after %d writes: %v", w.placement.writes, m.Error)
	}
}

// TestSettle_APlacementThatForbidsIsGivenUp: an answer was lost, and since then Placement
// takes no write from here. It answers, and yet nobody but an operator can end that.
func TestSettle_APlacementThatForbidsIsGivenUp(t *testing.T) {
	w := apartly(t, script{request: apartCold}, faults{})
	says := fault.New(fault.InDoubt, "no answer")
	w.placement.answers = func(int) error { return says }
	w.inProcess(func(p *simruntime.Process, c *conductor.Conductor) {
		ctx := context.Background()
		if _, err := c.Start(ctx, asked(apartCold, "b")); err != nil {
			t.Fatal(err)
		}
		until(t, p, c, "stuck", func(m migration.Migration) bool { return m.Status == migration.StatusError })
		word := migration.Settlement{GuestIsAt: "a", Gone: []string{migration.GonePlacement}, Why: "it takes no write of ours", By: "ann"}
		if _, err := c.Settle(ctx, moveUUID, word); !slices.Equal(codes(err), []string{"answers"}) {
			t.Errorf("while it loses answers alone: %v", err)
		}
		says = fault.New(fault.Forbidden, "placement answered 403")
		until(t, p, c, "forbidden", func(m migration.Migration) bool { return strings.Contains(m.Error.Message, "403") })
		if _, err := c.Settle(ctx, moveUUID, word); err != nil {
			t.Errorf("settle: %v", err)
		}
		if m := until(t, p, c, "over", migration.Migration.Done); m.Outcome != migration.OutcomeUndone {
			t.Errorf("%s: %v", m.Outcome, m.Err())
		}
	})
	if w.hosts["a"].domain.state != "running" {
		t.Errorf("the guest is %s", w.hosts["a"].domain.state)
	}
}
