package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"berth/agent/api"
	"berth/placementclient"
)

// The views of Placement that people see beside the host's own: read afresh for
// each question, so that what is shown is what Placement says, not what was
// last written. An error is shown in their place: the host's own half is true
// without them.

// viewTime bounds how long a view waits for Placement: the rest of the answer
// should not wait for a service that is down.
const viewTime = 4 * time.Second

// providers is the host's provider tree as Placement has it, root first.
func (a *Agent) providers(ctx context.Context) ([]api.ProviderView, error) {
	ctx, cancel := a.rt.WithTimeout(ctx, viewTime)
	defer cancel()
	tree, err := a.placement.ProvidersInTree(ctx, a.uuid)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, p := range tree {
		names[p.UUID] = p.Name
	}
	out := make([]api.ProviderView, 0, len(tree))
	for _, p := range tree {
		inv, err := a.placement.Inventories(ctx, p.UUID)
		if err != nil {
			return nil, err
		}
		used, err := a.placement.Usages(ctx, p.UUID)
		if err != nil {
			return nil, err
		}
		out = append(out, api.ProviderView{
			Name: p.Name, UUID: p.UUID, Parent: names[p.ParentProviderUUID], Generation: p.Generation,
			Inventories: inv.Inventories, Usages: used.Usages,
		})
	}
	slices.SortFunc(out, func(x, y api.ProviderView) int {
		if (x.Parent == "") != (y.Parent == "") {
			return strings.Compare(x.Parent, y.Parent) // the root has no parent
		}
		return strings.Compare(x.Name, y.Name)
	})
	return out, nil
}

// held is what Placement holds for an instance, and for the move it is on.
func (a *Agent) held(ctx context.Context, instance string) ([]api.Allocation, error) {
	ctx, cancel := a.rt.WithTimeout(ctx, viewTime)
	defer cancel()
	consumers := []string{instance}
	if id, ok := a.moving(instance); ok {
		consumers = append(consumers, id)
	}
	for _, c := range a.tracker.ByInstance(instance) {
		if id := c.Owner.Migration; id != "" && !slices.Contains(consumers, id) {
			consumers = append(consumers, id)
		}
	}
	names := map[string]string{}
	var out []api.Allocation
	for _, c := range consumers {
		al, err := a.placement.Allocations(ctx, c)
		if err != nil {
			return nil, err
		}
		kind := al.ConsumerType
		if kind == "" { // below microversion 1.38 nobody tells
			kind = placementclient.ConsumerInstance
			if c != instance {
				kind = placementclient.ConsumerMigration
			}
		}
		for rp, res := range al.Allocations {
			if names[rp] == "" {
				p, err := a.placement.Provider(ctx, rp)
				if err != nil {
					return nil, err
				}
				names[rp] = p.Name
			}
			out = append(out, api.Allocation{Consumer: c, ConsumerType: kind, Provider: names[rp], ProviderUUID: rp, Resources: res})
		}
	}
	slices.SortFunc(out, func(x, y api.Allocation) int {
		if x.ConsumerType != y.ConsumerType {
			return strings.Compare(x.ConsumerType, y.ConsumerType)
		}
		return strings.Compare(x.Provider, y.Provider)
	})
	return out, nil
}
