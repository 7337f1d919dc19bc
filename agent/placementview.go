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

// providers is the host's provider tree as Placement has it, each parent before its
// children and root first, then the sharing provider with its disks.
func (a *Agent) providers(ctx context.Context) ([]api.ProviderView, error) {
	ctx, cancel := a.rt.WithTimeout(ctx, viewTime)
	defer cancel()
	tree, err := a.placement.ProvidersInTree(ctx, a.uuid)
	if err != nil {
		return nil, err
	}
	if t, known := a.reporter.Tree(); known && t.Disk != "" && !t.Owns(t.Disk) {
		sharing, err := a.placement.Provider(ctx, t.Disk)
		if err != nil {
			return nil, err
		}
		tree = append(tree, sharing)
	}
	sortTree(tree, a.uuid)
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
	return out, nil
}

// sortTree puts root's tree first, each provider after its parent and beside its
// siblings by name.
func sortTree(tree []placementclient.ResourceProvider, root string) {
	byUUID := map[string]placementclient.ResourceProvider{}
	for _, p := range tree {
		byUUID[p.UUID] = p
	}
	path := func(p placementclient.ResourceProvider) []string {
		names := []string{p.Name}
		// As deep as there are providers, and no deeper, whatever the answer says.
		for range tree {
			parent, there := byUUID[p.ParentProviderUUID]
			if !there {
				break
			}
			p, names = parent, append(names, parent.Name)
		}
		slices.Reverse(names)
		if p.UUID != root {
			names = append([]string{"\xff"}, names...) // no name of a tree begins with it
		} else {
			names[0] = ""
		}
		return names
	}
	slices.SortFunc(tree, func(x, y placementclient.ResourceProvider) int { return slices.Compare(path(x), path(y)) })
}

// held is what Placement holds for an instance, and for the move it is on.
func (a *Agent) held(ctx context.Context, instance string) ([]api.Allocation, error) {
	ctx, cancel := a.rt.WithTimeout(ctx, viewTime)
	defer cancel()
	consumers := []string{instance}
	if m, ok := a.conductedHere(ctx, instance); ok {
		consumers = append(consumers, m.UUID)
	} else if c, ok := a.conductedElsewhere(instance); ok {
		consumers = append(consumers, c.migration)
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
