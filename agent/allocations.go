package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"berth/agent/host"
	"berth/internal/fault"
	"berth/placementclient"
	"berth/topology"
)

// allocations gives agent/host the two calls it needs of Placement. Both write
// guarded by the consumer's generation, and neither touches what a consumer holds
// of another host's provider: the guest is there, or goes there, and its
// allocation is that host's to write, or its conductor's.
type allocations struct{ client *placementclient.Client }

// allocationAttempts bounds how often a lost race for a consumer's generation is
// read again: the instance stands still, so nobody else should write it.
const allocationAttempts = 4

func (p allocations) put(ctx context.Context, consumer string, change func(now placementclient.Allocations) (placementclient.Allocations, bool, error)) error {
	var err error
	for range allocationAttempts {
		var now placementclient.Allocations
		if now, err = p.client.Allocations(ctx, consumer); err != nil {
			return err
		}
		next, differs, refused := change(now)
		if refused != nil || !differs {
			return refused
		}
		next.ConsumerGeneration = now.ConsumerGeneration
		if err = p.client.PutAllocations(ctx, consumer, next); !errors.Is(err, fault.GenerationConflict) {
			return err
		}
	}
	return err
}

// PutAllocation implements host.Placement.
func (p allocations) PutAllocation(ctx context.Context, a host.Allocation) error {
	want := placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{a.Provider: classes(a.Resources)},
		ProjectID:   a.ProjectID, UserID: a.UserID, ConsumerType: placementclient.ConsumerInstance,
	}
	return p.put(ctx, a.Consumer, func(now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		var elsewhere []fault.Reason
		for _, rp := range slices.Sorted(maps.Keys(now.Allocations)) {
			if rp != a.Provider {
				elsewhere = append(elsewhere, fault.Reason{
					Code: "allocation_elsewhere", Message: fmt.Sprintf("instance %s holds %v of provider %s, which is not this host's", a.Consumer, now.Allocations[rp], rp),
					Want: a.Provider, Have: rp, Change: "look where the guest lives; delete there what is a leftover",
				})
			}
		}
		if len(elsewhere) > 0 {
			return now, false, fault.Refuse(fault.Forbidden, "put the allocation of instance "+a.Consumer, elsewhere...)
		}
		return want, !now.SameResources(want) || now.ProjectID != want.ProjectID || now.UserID != want.UserID, nil
	})
}

// DeleteAllocation implements host.Placement.
func (p allocations) DeleteAllocation(ctx context.Context, consumer, provider string) error {
	return p.put(ctx, consumer, func(now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		if _, here := now.Allocations[provider]; !here {
			return now, false, nil
		}
		next := now.Clone()
		delete(next.Allocations, provider)
		return next, true, nil
	})
}

// classes are amounts by resource class; a class of nothing is left out, as
// Placement knows no allocation of zero.
func classes(r topology.Resources) placementclient.Resources {
	out := placementclient.Resources{}
	for class, n := range map[string]int64{
		placementclient.ClassVCPU: int64(r.VCPUs), placementclient.ClassPCPU: int64(r.PCPUs),
		placementclient.ClassMemoryMB: r.MemoryMB, placementclient.ClassDiskGB: r.DiskGB,
	} {
		if n > 0 {
			out[class] = n
		}
	}
	return out
}
