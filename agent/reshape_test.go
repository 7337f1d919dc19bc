package agent

import (
	"testing"

	"berth/agent/inventory"
	"berth/claims"
	"berth/internal/config"
	"berth/migration"
	"berth/placementclient"
)

// TestReload_TheShapeOfTheTreeFollowsWithItsGuests: and waits for moves.
func TestReload_TheShapeOfTheTreeFollowsWithItsGuests(t *testing.T) {
	onMadeUpMachine(t, func(b *hardwareBench) {
		pinned := b.mustClaim(tenant, pins(1, 100), "1563", 1)
		floating := b.mustClaim(second, nil, "", 0)
		consumers := map[string]claims.Claim{tenant: pinned, second: floating}
		for id, c := range consumers {
			tree, _ := b.a.reporter.Tree()
			given := placementclient.Allocations{Allocations: tree.Place(heldOf(c), nil), ProjectID: "p", UserID: "u", ConsumerType: placementclient.ConsumerInstance}
			if err := b.placement.PutAllocations(b.Context(), id, given); err != nil {
				b.Fatal(err)
			}
		}
		shaped := func(want inventory.Shape) func() bool {
			return func() bool {
				tree, known := b.a.reporter.Tree()
				if !known || tree.Shape != want {
					return false
				}
				for id, c := range consumers {
					got, err := b.placement.Allocations(b.Context(), id)
					if err != nil || !tree.Agrees(heldOf(c), got.Allocations) {
						return false
					}
				}
				return true
			}
		}
		numa := func(n config.NUMA) {
			c := b.a.config()
			c.Placement.NUMA = n
			b.a.conf.Store(&c)
			b.a.hardware.apply()
			b.a.reporter.Kick()
		}
		// A move that is leaving holds the shape.
		move := migration.Ref{Migration: moved, Attempt: 1, Step: "record_context", Instance: tenant}
		if err := b.a.tracker.RecordContext(b.Context(), move, claims.MigrationContext{Migration: moved, Instance: tenant, Source: b.a.name, Destination: "host-z"}); err != nil {
			b.Fatal(err)
		}
		numa(config.NUMANested)
		b.within("it is said that the shape waits", func() bool {
			s := b.a.reporter.Status()
			return s.Waiting != nil && s.Waiting.Reason.Code == "reshape_move" && s.Shape == inventory.Flat && s.InSync
		})
		if err := b.a.tracker.DropContext(b.Context(), move); err != nil {
			b.Fatal(err)
		}
		b.a.reporter.Kick()
		b.within("the tree is nested, with its guests", shaped(inventory.Nested))
		numa(config.NUMAFlat)
		b.within("the tree is flat again, with its guests", shaped(inventory.Flat))
	})
}
