package conductor

import (
	"context"
	"strings"

	"berth/internal/fault"
	"berth/migration"
)

// byAThird says of a host that this one does not reach how the guest can come to it all the
// same.
func (p *planning) byAThird(name string) []fault.Reason {
	if p.request.ShareNothing || p.request.Kind != migration.PlanCold && p.request.Kind != migration.PlanResize {
		return nil
	}
	return []fault.Reason{{
		Code: "share_nothing", Message: p.Local + " does not reach " + name + ", and a host that reaches both can conduct", Have: name,
		Change: "ask such a host: berth -c HOST " + strings.TrimPrefix(p.naming(), "berth ") + " " + name + " --share-nothing",
	}}
}

// disksWay says how disks would go to a host that would take the guest.
func (p *planning) disksWay(ctx context.Context, to string, disks migration.SourceAnswer) (migration.Way, string) {
	from := p.request.Source.Name
	switch {
	case len(disks.CopyDisks) == 0:
		return migration.WayNone, "the two hosts share all of its disks"
	case p.Local == from || p.Local == to:
		return migration.WayStraight, p.Local + " conducts, and reaches the other"
	}
	w, why := wayBetween(ctx, from, to, func(ctx context.Context, f func(context.Context, migration.Host) error) error {
		h, err := p.Hosts(ctx, from)
		if err != nil {
			return err
		}
		return f(ctx, h)
	})
	if w == migration.WayStraight {
		why = from + " reaches " + to
	}
	return w, why
}
