package agent

import (
	"context"

	"berth/agent/api"
	"berth/migration"
)

// recordedMoves gives the migration that a reference names, by its uuid or its instance's name or
// uuid, from this agent's own journal and ledger alone. It asks libvirt for a name at most.
func recordedMoves(a *Agent) func(ctx context.Context, ref string) (api.Between, bool) {
	between := func(m migration.Migration) (api.Between, bool) {
		b := api.Between{Source: m.SourceCompute, Destination: m.DestCompute, Conductor: a.name, Instance: m.InstanceUUID}
		return b, true
	}
	return func(ctx context.Context, ref string) (api.Between, bool) {
		refs := []string{ref}
		if id, err := a.host.Resolve(ctx, ref); err == nil && id != ref {
			refs = append(refs, id)
		}
		ledger := parties{a.tracker}
		for _, r := range refs {
			if m, ok := a.conductedHere(ctx, r); ok {
				return between(m)
			}
			if b, known := ledger.Parties(r, ""); known {
				return b, true
			}
			if c, ok := a.conductedElsewhere(r); ok {
				return ledger.Parties(c.migration, "")
			}
		}
		if m, ok, err := a.conductedByName(ctx, "look for the move", ref); err == nil && ok {
			return between(m)
		}
		return api.Between{}, false
	}
}
