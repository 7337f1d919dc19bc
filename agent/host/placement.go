package host

import (
	"context"

	"berth/agent/host/allocation"
	"berth/placementclient"
)

// Placement is what instance verbs need of it: the allocation of an instance
// that stands still on this host. Moves are the conductor's. Which provider of the
// host's tree what a claim holds is counted on is its business alone, computed
// afresh for each call: the tree may change its shape between two. All calls that
// write are safe to repeat.
//
// Each of them is fault.Unavailable while the host's tree is not known: nothing is
// guessed.
type Placement interface {
	// PutAllocation makes the consumer's allocation exactly what the claim holds.
	// fault.Forbidden when it holds something of a provider that no guest of this
	// host is counted on: then the guest is another host's, or moves.
	PutAllocation(ctx context.Context, a allocation.Allocation) error
	// DeleteAllocation removes what the consumer holds of this host's tree, and its
	// disk of the sharing provider, unless it lives on another host that shares it;
	// success when that is nothing. What it holds of others stays: a guest that
	// somebody moved by hand lives there.
	DeleteAllocation(ctx context.Context, consumer string) error
	// Place gives what the claim holds by provider, as PutAllocation would write it.
	// It reads what the consumer holds only where the answer depends on it.
	Place(ctx context.Context, a allocation.Allocation) (map[string]placementclient.Resources, error)
	// Providers are the uuids of all providers on which a guest of this host may be
	// counted: its tree and the sharing one with its disks, root first. nil while the
	// tree is not known. It never blocks.
	Providers() []string
}

func (h *Host) providers() []string {
	if h.o.Placement == nil {
		return nil
	}
	return h.o.Placement.Providers()
}

// countedOn gives what a claim holds by provider; nil where nobody keeps allocations.
func (h *Host) countedOn(ctx context.Context, a allocation.Allocation) (map[string]placementclient.Resources, error) {
	if h.o.Placement == nil {
		return nil, nil
	}
	return h.o.Placement.Place(ctx, a)
}
