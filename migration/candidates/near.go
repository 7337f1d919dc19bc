package candidates

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"berth/internal/fault"
	"berth/placementclient"
)

// NearWeight is what it counts that a host is near to the one that a guest leaves: that
// the two providers, each the root of its tree, share an aggregate of Placement's,
// whatever that aggregate is for. As Nova's cross-cell weigher, by the same names: above 0
// near hosts go first, below 0 the others do, which drains; 0 makes no difference. The zero
// value asks Placement nothing.
type NearWeight struct {
	Multiplier float64
	// ByAggregate, by an aggregate's uuid, stands in the place of Multiplier for hosts in
	// it; of several the smallest counts.
	ByAggregate map[string]float64
}

func (w NearWeight) off() bool {
	for _, x := range w.ByAggregate {
		if x != 0 {
			return false
		}
	}
	return w.Multiplier == 0
}

// Nearness says of hosts whether they are near to the one that a guest leaves, and what
// that counts. The zero value knows nothing: no host is nearer than another, and each
// weighs 0.
type Nearness struct {
	near map[string]float64 // the weight of each root that is near; nil where nothing is known
	top  float64
}

// Known is false where there is nothing to tell hosts apart by: near hosts count as
// others do, or the guest is on no host, or on one that is in no aggregate.
func (n Nearness) Known() bool { return n.near != nil }

// Of gives what is known of a host by its root provider. A host that is not near weighs 0.
func (n Nearness) Of(root string) (near bool, weight float64) {
	weight, near = n.near[root]
	return near, weight
}

// best are those of ranked hosts that none which is not found yet can outweigh.
func (n Nearness) best(hosts []Host) []Host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h Host) bool { return h.Weight < n.top })
}

// nearness asks Placement which providers are near to a wish's source: for the source's
// aggregates, then who is in them, then who is in each aggregate that has a weight of its
// own. Where the first answer is empty the others are not asked for.
func nearness(ctx context.Context, p Placement, w Wish) (Nearness, error) {
	if w.Source == "" || w.Near.off() {
		return Nearness{}, nil
	}
	mine, err := p.Aggregates(ctx, w.Source)
	switch {
	case fault.KindOf(err) == fault.NotFound || err == nil && len(mine.Aggregates) == 0:
		// A source that Placement does not know yet is in no aggregate either.
		return Nearness{}, nil
	case err != nil:
		return Nearness{}, fmt.Errorf("ask Placement for the aggregates of the guest's host: %w", err)
	}
	of := func(aggregates ...string) (roots []string, err error) {
		list, err := p.Providers(ctx, placementclient.ProviderFilter{MemberOf: aggregates})
		for _, rp := range list {
			if rp.IsRoot() && rp.UUID != w.Source {
				roots = append(roots, rp.UUID)
			}
		}
		return roots, err
	}
	roots, err := of(mine.Aggregates...)
	if err != nil {
		return Nearness{}, fmt.Errorf("ask Placement which hosts are near to the guest's: %w", err)
	}
	out := Nearness{near: map[string]float64{}}
	if len(roots) == 0 {
		return out, nil
	}
	own := map[string]float64{} // by root
	for _, aggregate := range slices.Sorted(maps.Keys(w.Near.ByAggregate)) {
		members, err := of(aggregate)
		if err != nil {
			return Nearness{}, fmt.Errorf("ask Placement which hosts are in aggregate %s: %w", aggregate, err)
		}
		for _, root := range members {
			x := w.Near.ByAggregate[aggregate]
			if had, there := own[root]; there {
				x = min(x, had)
			}
			own[root] = x
		}
	}
	for _, root := range roots {
		x, there := own[root]
		if !there {
			x = w.Near.Multiplier
		}
		out.near[root], out.top = x, max(out.top, x)
	}
	return out, nil
}
