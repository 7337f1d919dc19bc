package claims

import (
	"context"

	"berth/topology"
)

// Prune is one look of Run's at tombstones past their use.
func (t *Tracker) Prune(ctx context.Context) error { return t.prune(ctx) }

// Miscount spoils what the tracker counts from moment to moment.
func (t *Tracker) Miscount() {
	t.machine.used.VCPUs++
	t.machine.cells[0].Pinned = topology.NewCPUSet(9)
}
