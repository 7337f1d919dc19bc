package sim

import (
	"context"
	"errors"

	"berth/placementclient"
	"berth/topology"
)

func (w *world) makeProviders(ctx context.Context) error {
	admin := w.placement.admin
	inventory := func(m *machine, rp placementclient.ResourceProvider, amounts placementclient.Resources) error {
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
		if err := errors.Join(inventory(nil, rp, placementclient.Resources{"DISK_GB": 100}), share(rp.UUID)); err != nil {
			return err
		}
	}
	for _, name := range w.names {
		m := w.machines[name]
		rp, err := admin.CreateProvider(ctx, placementclient.NewProvider{Name: name, UUID: m.provider})
		if err != nil {
			return err
		}
		amounts := placementclient.Resources{"VCPU": int64(m.capacity.VCPUs), "MEMORY_MB": m.capacity.MemoryMB}
		if !w.story.Sharing {
			amounts["DISK_GB"] = m.capacity.DiskGB
		}
		if h := w.story.host(name); h.Told.VCPUs > 0 {
			amounts["VCPU"] = int64(h.Told.VCPUs)
		}
		if err := inventory(m, rp, amounts); err != nil {
			return err
		}
		if w.story.Sharing {
			if err := share(rp.UUID); err != nil {
				return err
			}
		}
	}
	return nil
}

// place is where a host counts amounts.
func (m *machine) place(r topology.Resources) map[string]placementclient.Resources {
	own := placementclient.Resources{"VCPU": int64(r.VCPUs), "MEMORY_MB": r.MemoryMB}
	out := map[string]placementclient.Resources{m.provider: own}
	switch {
	case r.DiskGB == 0:
	case m.w.story.Sharing:
		out[sharing] = placementclient.Resources{"DISK_GB": r.DiskGB}
	default:
		own["DISK_GB"] = r.DiskGB
	}
	return out
}

func (m *machine) providers() []string {
	if m.w.story.Sharing {
		return []string{m.provider, sharing}
	}
	return []string{m.provider}
}
