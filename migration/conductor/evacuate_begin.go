package conductor

import (
	"cmp"
	"context"
	"slices"

	"berth/internal/fault"
	"berth/migration"
)

// readLost is the record of the guest that is to be evacuated, refused where the request says
// otherwise.
func (c *Conductor) readLost(ctx context.Context, r Request) (migration.LostGuest, error) {
	var g migration.LostGuest
	err := c.records(ctx, func(ctx context.Context, f Fleet) (err error) {
		g, err = f.Lost(ctx, r.Instance)
		return err
	})
	if err != nil {
		return g, err
	}
	var reasons []fault.Reason
	if r.Source != "" && r.Source != g.Source.Name {
		reasons = append(reasons, fault.Reason{
			Code: "source_compute", Message: "by the fleet's records the guest is of " + g.Source.Name, Want: r.Source, Have: g.Source.Name, Change: "name no source, or that one",
		})
	}
	if slices.Contains(r.destinations(), g.Source.Name) {
		reasons = append(reasons, fault.Reason{
			Code: "dest_compute", Message: g.Source.Name + " is the dead host", Have: g.Source.Name, Change: "name another host",
		})
	}
	if g.Source.Name == c.cfg.Local {
		reasons = append(reasons, fault.Reason{
			Code: "is_not_dead", Message: c.cfg.Local + " is asked to evacuate a guest of its own", Change: "start the guest here, or ask another host",
		})
	}
	if len(reasons) > 0 {
		return g, fault.Refuse(fault.Invalid, "", reasons...)
	}
	return g, nil
}

// precheckLost refuses an evacuation that cannot be, before it is accepted. It changes nothing.
func (s evacuationSteps) precheckLost(ctx context.Context, doing string, g migration.LostGuest) (migration.Guest, error) {
	src := inspectedSource{Guest: g.Guest, Source: g.Source}
	_, err := s.lostHalf(ctx, src)
	errs := []error{err}
	if len(s.asked()) > 0 {
		errs = append(errs, s.firstSteps().precheckNamed(ctx, src))
	} else if names, err := s.firstSteps().candidates(ctx, src, nil); err != nil || s.firstSteps().untried(names) == "" {
		errs = append(errs, cmp.Or(err, nowhere(s.instance)))
	}
	return g.Guest, together(doing, g.Guest.Name, errs)
}
