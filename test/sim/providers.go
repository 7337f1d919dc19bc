package sim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"berth/agent/inventory"
	"berth/placementclient"
)

func (w *world) makeProviders(ctx context.Context) error {
	admin := w.placement.admin
	give := func(rp placementclient.ResourceProvider, amounts placementclient.Resources) error {
		inv := map[string]placementclient.Inventory{}
		for class, n := range amounts {
			inv[class] = placementclient.Inventory{Total: n}
		}
		_, err := admin.PutInventories(ctx, rp.UUID, placementclient.Inventories{Generation: rp.Generation, Inventories: inv})
		return err
	}
	share := func(rp string) error {
		have, err := admin.Aggregates(ctx, rp)
		if err == nil {
			_, err = admin.PutAggregates(ctx, rp, placementclient.Aggregates{Generation: have.Generation, Aggregates: []string{aggregate}})
		}
		return err
	}
	if w.story.Sharing {
		rp, err := admin.CreateProvider(ctx, placementclient.NewProvider{Name: "nfs", UUID: sharing})
		if err != nil {
			return err
		}
		traits, err := admin.PutTraits(ctx, rp.UUID, placementclient.Traits{Generation: rp.Generation, Traits: []string{"MISC_SHARES_VIA_AGGREGATE"}})
		if err != nil {
			return err
		}
		rp.Generation = traits.Generation
		if err := errors.Join(give(rp, placementclient.Resources{"DISK_GB": 100}), share(rp.UUID)); err != nil {
			return err
		}
	}
	for _, name := range w.names {
		m := w.machines[name]
		report := inventory.Compute(m.input(nil), nil)
		m.tree = report.Tree
		for _, p := range m.tree.Providers {
			rp, err := admin.CreateProvider(ctx, placementclient.NewProvider{Name: p.Name, UUID: p.UUID, ParentProviderUUID: p.Parent})
			if err != nil {
				return err
			}
			amounts := placementclient.Resources{}
			for class, inv := range p.Inventories {
				amounts[class] = inv.Total
			}
			if p.UUID == m.provider {
				m.promised(amounts)
			}
			for _, class := range slices.Sorted(maps.Keys(amounts)) {
				if strings.HasPrefix(class, placementclient.CustomPrefix) {
					if err := admin.EnsureResourceClass(ctx, class); err != nil {
						return err
					}
				}
			}
			if err := give(rp, amounts); err != nil {
				return err
			}
		}
		if w.story.Sharing {
			if err := share(m.provider); err != nil {
				return err
			}
		}
	}
	return nil
}

// promised are the amounts that Placement is told a host has: those of its plan.
func (m *machine) promised(amounts placementclient.Resources) {
	amounts["VCPU"], amounts["MEMORY_MB"] = int64(m.capacity.VCPUs), m.capacity.MemoryMB
	if !m.w.story.Sharing {
		amounts["DISK_GB"] = m.capacity.DiskGB
	}
	if h := m.w.story.host(m.name); h.Told.VCPUs > 0 {
		amounts["VCPU"] = int64(h.Told.VCPUs)
	}
}
