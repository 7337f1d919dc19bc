package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/agent/counted"
	"berth/internal/fault"
	"berth/placementclient"
)

// endConsumer gives up all that a consumer holds, guarded by its generation. Success where it
// holds nothing.
func (p allocations) endConsumer(ctx context.Context, consumer string) error {
	var err error
	for range allocationAttempts {
		var now placementclient.Allocations
		if now, err = p.client.Allocations(ctx, consumer); err != nil || len(now.Allocations) == 0 {
			return err
		}
		next := counted.Nothing(now)
		next.ConsumerType = placementclient.ConsumerMigration
		if err = p.client.PutAllocations(ctx, consumer, next); !errors.Is(err, fault.GenerationConflict) {
			return err
		}
	}
	return err
}

// endProvider takes what a dead host's guests hold of its tree away, and then the tree. It says why
// the provider stays, empty where it is gone: what others than the guests named hold of it is
// theirs, and so is one that has another name by now.
func (p allocations) endProvider(ctx context.Context, root, name string, guests map[string]bool) (kept string, err error) {
	tree, err := p.client.ProvidersInTree(ctx, root)
	if err != nil {
		return "", err
	}
	if len(tree) == 0 {
		return "", nil
	}
	depth := map[string]int{}
	parent := map[string]string{}
	for _, rp := range tree {
		if rp.UUID == root && rp.Name != name {
			return fmt.Sprintf("provider %s is called %s by now", root, rp.Name), nil
		}
		parent[rp.UUID] = rp.ParentProviderUUID
	}
	for id := range parent {
		for at := id; parent[at] != ""; at = parent[at] {
			depth[id]++
		}
	}
	var others []string
	for _, rp := range tree {
		held, err := p.client.ProviderAllocations(ctx, rp.UUID)
		if err != nil {
			return "", err
		}
		for _, consumer := range slices.Sorted(maps.Keys(held.Allocations)) {
			if !guests[consumer] {
				others = append(others, consumer)
				continue
			}
			if err := p.withoutTree(ctx, consumer, parent); err != nil {
				return "", err
			}
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		return "consumers hold of it: " + strings.Join(slices.Compact(others), ", "), nil
	}
	slices.SortStableFunc(tree, func(a, b placementclient.ResourceProvider) int { return depth[b.UUID] - depth[a.UUID] })
	for _, rp := range tree {
		if err := p.client.DeleteProvider(ctx, rp.UUID); errors.Is(err, fault.Busy) {
			return err.Error(), nil
		} else if errors.Is(err, fault.Forbidden) {
			// A Placement that goes by certificates and does not know of deaths, which are in etcd.
			return fmt.Sprintf("Placement lets an operator alone remove %s: openstack resource provider delete %s", rp.Name, rp.UUID), nil
		} else if err != nil && !errors.Is(err, fault.NotFound) {
			return "", err
		}
	}
	return "", nil
}

// withoutTree takes from an abandoned guest what it holds of a tree. Its disk on a provider that
// hosts share goes with it: nobody runs the guest.
func (p allocations) withoutTree(ctx context.Context, consumer string, tree map[string]string) error {
	var err error
	for range allocationAttempts {
		var now placementclient.Allocations
		if now, err = p.client.Allocations(ctx, consumer); err != nil || len(now.Allocations) == 0 {
			return err
		}
		next := now.Clone()
		maps.DeleteFunc(next.Allocations, func(rp string, held placementclient.Resources) bool {
			_, in := tree[rp]
			return in || len(held) == 1 && held[placementclient.ClassDiskGB] > 0
		})
		next.ConsumerType = placementclient.ConsumerInstance
		if err = p.client.PutAllocations(ctx, consumer, next); !errors.Is(err, fault.GenerationConflict) {
			return err
		}
	}
	return err
}
