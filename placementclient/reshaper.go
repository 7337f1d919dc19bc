package placementclient

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"berth/internal/fault"
)

// versionReshaper is the first microversion with POST /reshaper.
const versionReshaper Microversion = 30

// Reshape is a tree's inventories and what its consumers hold, to be replaced
// together.
type Reshape struct {
	// Inventories is by provider UUID, each guarded by its generation; one that is
	// left without a class is given as empty.
	Inventories map[string]Inventories
	// Allocations is by consumer UUID, each guarded by its generation: all that holds
	// anything of a class that goes away must be there.
	Allocations map[string]Allocations
}

// Reshape replaces inventories and allocations in one step, so that what guests
// hold moves from one provider to another and at no moment is held twice or not at
// all. fault.GenerationConflict (ConflictProviderGeneration or
// ConflictConsumerGeneration) when somebody else wrote: read everything again.
// fault.DoesNotFit or fault.Busy (ConflictInventoryInUse) when the new inventories
// do not hold the allocations; fault.Invalid for an unknown provider, and below
// microversion 1.30, which has no reshaper.
func (c *Client) Reshape(ctx context.Context, r Reshape) error {
	const doing = "reshape providers"
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	if v < versionReshaper {
		return fault.Refuse(fault.Invalid, doing, fault.Reason{
			Code: "reshaper_missing", Message: "this placement speaks microversion " + v.String() + ", and the reshaper came with " + versionReshaper.String(),
			Want: versionReshaper.String(), Have: v.String(), Change: "upgrade placement, or move the guests away first",
		})
	}
	inventories := map[string]Inventories{}
	for rp, inv := range r.Inventories {
		whole := make(map[string]Inventory, len(inv.Inventories))
		for class, i := range inv.Inventories {
			whole[class] = i.WithDefaults()
		}
		inventories[rp] = Inventories{Generation: inv.Generation, Inventories: whole}
	}
	r.Inventories = inventories
	return c.do(ctx, doing, call{
		method: http.MethodPost, route: "/reshaper", path: "/reshaper",
		body: func(v Microversion) any {
			allocations := map[string]wireAllocations{}
			for consumer, a := range r.Allocations {
				allocations[consumer] = a.wire(v)
			}
			return map[string]any{"inventories": r.Inventories, "allocations": allocations}
		},
		landed: func(ctx context.Context, _ *APIError) (bool, error) { return c.reshapeLanded(ctx, r) },
	})
}

// reshapeLanded says whether everything reads as the reshape would have left it.
// Generations are not compared: by how much one rises is the server's own.
func (c *Client) reshapeLanded(ctx context.Context, r Reshape) (bool, error) {
	for _, rp := range slices.Sorted(maps.Keys(r.Inventories)) {
		want := r.Inventories[rp]
		got, err := c.Inventories(ctx, rp)
		if err != nil || got.Generation == want.Generation || !maps.Equal(got.Inventories, want.Inventories) {
			return false, err
		}
	}
	for _, consumer := range slices.Sorted(maps.Keys(r.Allocations)) {
		want := r.Allocations[consumer]
		got, err := c.Allocations(ctx, consumer)
		if err != nil || !got.SameResources(want) {
			return false, err
		}
	}
	return true, nil
}
