package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// foreignFleet gives agent/host what a guest that came by foreign hands needs of
// the other hosts.
type foreignFleet struct{ a *Agent }

// surrenderPatience bounds the question to one host.
const surrenderPatience = 5 * time.Second

// TakeToken implements host.Fleet. Every host of Placement and of [peers] is asked,
// first the one that it is said to come from and those that Placement says hold
// its allocation. A host that is silent keeps the answer open where it may be the
// owner: one that was named, or holds an allocation. A provider of Placement's that
// runs no agent is no such host.
func (f foreignFleet) TakeToken(ctx context.Context, ref migration.Ref, source string) (migration.Commit, bool, error) {
	a := f.a
	asking, cancel := a.rt.WithTimeout(ctx, surrenderPatience)
	defer cancel()
	providers, err := a.placement.Providers(asking, placementclient.ProviderFilter{})
	if err != nil {
		return migration.Commit{}, false, fault.New(fault.Unavailable, "find the host that owns instance %s: %w", ref.Instance, err)
	}
	held, err := a.placement.Allocations(asking, ref.Instance)
	if err != nil {
		return migration.Commit{}, false, fault.New(fault.Unavailable, "find the host that owns instance %s: %w", ref.Instance, err)
	}
	name := map[string]string{}
	for _, p := range providers {
		if p.IsRoot() {
			name[p.UUID] = p.Name
		}
	}
	counts := map[string]bool{} // hosts whose silence leaves it open
	var order []string
	ask := func(host string, matters bool) {
		if host == "" || host == a.name {
			return
		}
		if !slices.Contains(order, host) {
			order = append(order, host)
		}
		counts[host] = counts[host] || matters
	}
	if _, known := a.config().Peers[source]; known || slices.Contains(slices.Collect(maps.Values(name)), source) {
		ask(source, true)
	}
	for _, p := range providers {
		if _, holds := held.Allocations[p.UUID]; holds {
			ask(name[p.RootProviderUUID], true)
		}
	}
	for _, host := range slices.Sorted(maps.Keys(a.config().Peers)) {
		ask(host, true)
	}
	for _, host := range slices.Sorted(maps.Values(name)) {
		ask(host, false)
	}
	var silent []fault.Reason
	for _, host := range order {
		c, err := f.askOne(ctx, host, ref)
		switch {
		case err == nil:
			return c, true, nil
		case errors.Is(err, fault.NotFound), hasReason(err, "token_elsewhere"):
			// Not its guest, or not any more: where it went is asked too.
		case !errors.Is(err, fault.Unavailable):
			return migration.Commit{}, false, err
		case counts[host]:
			silent = append(silent, fault.Reason{Code: "host_silent", Message: "host " + host + " may own it and does not answer: " + err.Error(), Change: "start its agent"})
		}
	}
	if len(silent) > 0 {
		return migration.Commit{}, false, fault.Refuse(fault.Unavailable, "", silent...)
	}
	return migration.Commit{}, false, nil
}

func (f foreignFleet) askOne(ctx context.Context, host string, ref migration.Ref) (migration.Commit, error) {
	peer, err := f.a.peers.client(host)
	if err != nil {
		return migration.Commit{}, err
	}
	ctx, cancel := f.a.rt.WithTimeout(ctx, surrenderPatience)
	defer cancel()
	return peer.Surrender(ctx, ref)
}

func hasReason(err error, code string) bool {
	return slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == code })
}

// TakeAllocation implements host.Fleet.
func (f foreignFleet) TakeAllocation(ctx context.Context, a host.Allocation) error {
	if inst, ok := f.a.tracker.Instance(a.Consumer); !ok || inst.Token.State != claims.TokenHere {
		return fault.New(fault.Forbidden, "take the allocation of instance %s: its token is not on %s", a.Consumer, f.a.name)
	}
	want := placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{a.Provider: classes(a.Resources)},
		ProjectID:   a.ProjectID, UserID: a.UserID, ConsumerType: placementclient.ConsumerInstance,
	}
	// One write, in place of whatever the host had that it left.
	return allocations{f.a.placement}.put(ctx, a.Consumer, func(now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		return want, !now.SameResources(want), nil
	})
}
