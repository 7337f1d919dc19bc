package conductor

import (
	"context"
	"errors"
	"fmt"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/halves"
)

// EvacuationPlan asks where a guest of a dead host could go.
type EvacuationPlan struct {
	Instance   string           // uuid
	Named      string           // only this host; empty for all
	Image      *migration.Image // see Request.Change
	AcceptLoss bool
}

// Evacuation plans the evacuation of a guest by the fleet's records. A guest whose host is not
// known to be dead, or that is on a move, has blockers and no hosts; the error is of what
// cannot be planned at all: a guest of which there is no record, records that do not answer.
func (p Planner) Evacuation(ctx context.Context, f Fleet, e EvacuationPlan) (migration.Plan, error) {
	g, err := f.Lost(ctx, e.Instance)
	if errors.Is(err, fault.Forbidden) || migration.SilentElsewhere(err) {
		return migration.Plan{Kind: migration.PlanEvacuation, Instance: e.Instance, Blockers: reasonsOr(err), Hosts: []migration.PlanHost{}, Questions: []string{}}, nil
	}
	if err != nil {
		return migration.Plan{}, fmt.Errorf("read the record of instance %s: %w", e.Instance, err)
	}
	r := migration.PlanRequest{Kind: migration.PlanEvacuation, Guest: g.Guest, Source: g.Source, Named: e.Named, Proof: &g.Proof, Image: e.Image, AcceptLoss: e.AcceptLoss}
	if counted, ok := p.Placement.(halves.Placement); ok {
		// Whether what is counted elsewhere is left over the move itself asks those hosts.
		_, err = halves.Move{Placement: counted, Instance: e.Instance}.Lost(ctx, halves.Source{
			Root: g.Source.ProviderUUID, Uses: g.Source.Counts, Claim: amounts(g.Source, g.Guest.Allocations, g.Guest.Resources),
		})
		r.Blockers = reasonsOf(err)
	}
	return p.Plan(ctx, r)
}

// suits holds the answer of a host that would take a guest of a dead one against it.
func (p *planning) suits(host *migration.PlanHost, a migration.CheckAnswer) error {
	if err := sameHost(p.request.Source, a.Destination); err != nil {
		return err
	}
	disks, reasons := migration.EvacuateDisks(p.request.Guest, a.Disks, p.request.Image, p.request.AcceptLoss)
	host.Disks = &disks
	if len(reasons) > 0 {
		return fault.Refuse(fault.Forbidden, "", reasons...)
	}
	return nil
}
