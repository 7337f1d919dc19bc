// Package counted keeps what a host's instances hold in Placement: of instances that stand still,
// and of moves whose conductor is gone. It writes guarded by the consumer's generation, and
// nothing of another host's providers.
package counted

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// Allocations gives agent/host what it needs of Placement. It writes guarded by the
// consumer's generation, and never touches what a consumer holds of another host's
// providers: the guest is there, or goes there, and its allocation is that host's
// to write, or its conductor's.
//
// On which provider something is counted is asked of the standing tree within each
// attempt, after the consumer was read: a host that changed its shape meanwhile has
// raised the consumer's generation, and the next attempt sees both.
type Allocations struct {
	Client *placementclient.Client
	// Tree is the host's as it stands in Placement, false while that is not known.
	Tree func() (*inventory.Tree, bool)
}

var _ host.Placement = Allocations{}

// allocationAttempts bounds how often a lost race for a consumer's generation is
// read again: the instance stands still, so nobody else should write it.
const allocationAttempts = 4

// Standing is the tree, or why nothing can be counted in it.
func (p Allocations) Standing() (*inventory.Tree, error) {
	if t, known := p.Tree(); known {
		return t, nil
	}
	return nil, fault.Refuse(fault.Unavailable, "", fault.Reason{
		Code: "tree_unknown", Message: "the host has not been compared with Placement yet: on which provider a guest is counted is not known",
		Change: "wait, or see berth status for what keeps it",
	})
}

// Put changes what a consumer holds, by what it holds and by the tree as both stand.
func (p Allocations) Put(ctx context.Context, consumer string, change func(t *inventory.Tree, now placementclient.Allocations) (placementclient.Allocations, bool, error)) error {
	var err error
	for range allocationAttempts {
		var now placementclient.Allocations
		if now, err = p.Client.Allocations(ctx, consumer); err != nil {
			return err
		}
		t, err2 := p.Standing()
		if err2 != nil {
			return fmt.Errorf("write the allocation of instance %s: %w", consumer, err2)
		}
		next, differs, refused := change(t, now)
		if refused != nil || !differs {
			return refused
		}
		next.ConsumerGeneration = now.ConsumerGeneration
		if err = p.Client.PutAllocations(ctx, consumer, next); !errors.Is(err, fault.GenerationConflict) {
			return err
		}
	}
	return err
}

// beside gives a tree that knows what others hold of it, where that decides on which
// cell a guest is counted that floats over them and is not counted yet.
func (p Allocations) beside(ctx context.Context, t *inventory.Tree, a allocation.Allocation, now placementclient.Allocations) (*inventory.Tree, error) {
	cells := t.Undecided(inventory.Held{Resources: a.Resources, Assignment: a.Assignment, Consumer: a.Consumer}, now.Allocations)
	if len(cells) == 0 {
		return t, nil
	}
	used := map[string]placementclient.Resources{}
	for _, rp := range cells {
		u, err := p.Client.Usages(ctx, rp)
		if err != nil {
			return nil, fmt.Errorf("find a cell for instance %s: %w", a.Consumer, err)
		}
		used[rp] = placementclient.Resources{}
		maps.Copy(used[rp], u.Usages)
		for class, n := range now.Allocations[rp] {
			used[rp][class] -= n // its own
		}
	}
	return t.Beside(used), nil
}

// Wanted is the allocation that a claim stands for.
func Wanted(t *inventory.Tree, a allocation.Allocation, now placementclient.Allocations) placementclient.Allocations {
	return placementclient.Allocations{
		Allocations: t.Place(inventory.Held{Resources: a.Resources, Assignment: a.Assignment, Consumer: a.Consumer}, now.Allocations),
		ProjectID:   a.ProjectID, UserID: a.UserID, ConsumerType: placementclient.ConsumerInstance,
	}
}

// PutAllocation implements host.Placement.
func (p Allocations) PutAllocation(ctx context.Context, a allocation.Allocation) error {
	return p.Put(ctx, a.Consumer, func(t *inventory.Tree, now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		var elsewhere []fault.Reason
		for _, rp := range NotOf(t, now.Allocations) {
			elsewhere = append(elsewhere, fault.Reason{
				Code: "allocation_elsewhere", Message: fmt.Sprintf("instance %s holds %v of provider %s, which is not this host's", a.Consumer, now.Allocations[rp], rp),
				Want: t.Root(), Have: rp, Change: "look where the guest lives; delete there what is a leftover",
			})
		}
		if len(elsewhere) > 0 {
			return now, false, fault.Refuse(fault.Forbidden, "put the allocation of instance "+a.Consumer, elsewhere...)
		}
		t, err := p.beside(ctx, t, a, now)
		if err != nil {
			return now, false, err
		}
		want := Wanted(t, a, now)
		return want, !now.SameResources(want) || now.ProjectID != want.ProjectID || now.UserID != want.UserID, nil
	})
}

// NotOf are the providers, in order, that no guest of the tree's host is counted on.
func NotOf(t *inventory.Tree, held map[string]placementclient.Resources) []string {
	var out []string
	for _, rp := range slices.Sorted(maps.Keys(held)) {
		if !t.Uses(rp) {
			out = append(out, rp)
		}
	}
	return out
}

// OwnOf counts the providers of this host alone that something is held of: a disk that hosts
// share says nothing.
func OwnOf(t *inventory.Tree, held map[string]placementclient.Resources) int {
	return len(slices.DeleteFunc(slices.Collect(maps.Keys(held)), func(rp string) bool { return !t.Owns(rp) }))
}

// DeleteAllocation implements host.Placement.
func (p Allocations) DeleteAllocation(ctx context.Context, consumer string) error {
	return p.Put(ctx, consumer, func(t *inventory.Tree, now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		next := now.Clone()
		next.Allocations, next.ConsumerType = without(t, now.Allocations), placementclient.ConsumerInstance
		return next, len(next.Allocations) != len(now.Allocations), nil
	})
}

// without is what a consumer holds but for what it holds of this host. Its disk on
// a sharing provider is this host's, unless the guest lives on another one: that
// is, it holds of other providers, and no disk of them.
func without(t *inventory.Tree, held map[string]placementclient.Resources) map[string]placementclient.Resources {
	rest, ownDisk := map[string]placementclient.Resources{}, false
	for _, rp := range NotOf(t, held) {
		rest[rp] = maps.Clone(held[rp])
		ownDisk = ownDisk || held[rp][placementclient.ClassDiskGB] > 0
	}
	if disk, shares := held[t.Disk]; shares && !t.Owns(t.Disk) && len(rest) > 0 && !ownDisk {
		rest[t.Disk] = maps.Clone(disk)
	}
	return rest
}

// Place implements host.Placement. What the consumer holds matters only where a
// guest floats over the cells of a nested tree.
func (p Allocations) Place(ctx context.Context, a allocation.Allocation) (map[string]placementclient.Resources, error) {
	t, err := p.Standing()
	if err != nil {
		return nil, fmt.Errorf("find the providers of instance %s: %w", a.Consumer, err)
	}
	var now placementclient.Allocations
	if t.Shape == inventory.Nested && len(a.Assignment.Cells) == 0 {
		if now, err = p.Client.Allocations(ctx, a.Consumer); err != nil {
			return nil, err
		}
	}
	if t, err = p.beside(ctx, t, a, now); err != nil {
		return nil, err
	}
	return Wanted(t, a, now).Allocations, nil
}

// Providers implements host.Placement.
func (p Allocations) Providers() []string {
	t, known := p.Tree()
	if !known {
		return nil
	}
	var out []string
	for _, rp := range t.Providers {
		out = append(out, rp.UUID)
	}
	if t.Disk != "" && !t.Owns(t.Disk) {
		out = append(out, t.Disk)
	}
	return out
}
