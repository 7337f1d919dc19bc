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

// Preview gives what Claim would choose for this request now, and takes nothing:
// a moment later it may be another's. For an owner that has its claim already it
// is that claim's. Errors as of Claim.
func (t *Tracker) Preview(r Request) (topology.Assignment, error) {
	if err := r.validate(); err != nil {
		return topology.Assignment{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	existing, a, err := t.admitLocked(r)
	if existing != nil {
		a = existing.claim.Assignment.Clone()
	}
	return a, err
}

// CheckClaim is Preview's error.
func (t *Tracker) CheckClaim(r Request) error {
	_, err := t.Preview(r)
	return err
}
