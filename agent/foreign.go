package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"berth/agent/counted"
	"berth/agent/host/allocation"
	"berth/agent/host/external"
	"berth/agent/inventory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// foreignFleet gives agent/host what a guest that came by foreign hands needs of
// the other hosts.
type foreignFleet struct{ a *Agent }

// hookService answers tools that move guests by themselves.
type hookService struct {
	*external.Migrations
	a *Agent
}

// Hook implements api.Foreign: a flavor by name is one of this host's.
func (s hookService) Hook(ctx context.Context, id, phase string, r external.HookRequest) (external.HookAnswer, error) {
	doing := phase + " of migration " + id
	switch {
	case r.FlavorName != "" && r.Flavor != nil:
		return external.HookAnswer{}, twoFlavors(doing)
	case r.FlavorName != "":
		f, known := (*s.a.flavors.Load())[r.FlavorName]
		if !known {
			return external.HookAnswer{}, s.a.noFlavor(doing, r.FlavorName)
		}
		r.Flavor = &f
	}
	return s.Migrations.Hook(ctx, id, phase, r)
}

// surrenderPatience bounds the question to one host.
const surrenderPatience = 5 * time.Second

// TakeToken implements external.Fleet. Every host of Placement and of [peers] is asked,
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
	without := func(host string) bool { return a.withoutBerth(asking, host) }
	return takeFrom(candidates(a.name, source, slices.Sorted(maps.Keys(a.config().Peers)), providers, held, without), func(name string) (migration.Commit, error) {
		return f.askOne(ctx, name, ref)
	})
}

// candidate is a host that may hold a token. Where its silence matters, the
// question stays open until it has answered.
type candidate struct {
	name    string
	matters bool
}

// candidates gives the hosts to ask, those first that are likeliest to hold the
// token; never self. The silence of a host without Berth does not matter.
func candidates(self, source string, peers []string, providers []placementclient.ResourceProvider, held placementclient.Allocations, without func(host string) bool) []candidate {
	name := map[string]string{}
	for _, p := range providers {
		if p.IsRoot() {
			name[p.UUID] = p.Name
		}
	}
	var out []candidate
	add := func(host string, matters bool) {
		i := slices.IndexFunc(out, func(c candidate) bool { return c.name == host })
		switch {
		case host == "" || host == self:
		case i >= 0:
			out[i].matters = out[i].matters || matters
		default:
			out = append(out, candidate{host, matters})
		}
	}
	if slices.Contains(peers, source) || slices.Contains(slices.Collect(maps.Values(name)), source) {
		add(source, true)
	}
	for _, p := range providers {
		if lives(held.Allocations[p.UUID]) {
			add(name[p.RootProviderUUID], true)
		}
	}
	for _, host := range peers {
		add(host, true)
	}
	for _, host := range slices.Sorted(maps.Values(name)) {
		add(host, false)
	}
	for i, c := range out {
		out[i].matters = c.matters && !without(c.name)
	}
	return out
}

// lives reports whether what a guest holds of a provider says that it is there: a disk
// alone may be one of a sharing provider, which runs no guests.
func lives(r placementclient.Resources) bool {
	_, disk := r[placementclient.ClassDiskGB]
	return len(r) > 1 || len(r) == 1 && !disk
}

// takeFrom asks one host after the other until one surrenders the token.
func takeFrom(hosts []candidate, ask func(host string) (migration.Commit, error)) (migration.Commit, bool, error) {
	var silent []fault.Reason
	for _, host := range hosts {
		c, err := ask(host.name)
		switch {
		case err == nil:
			return c, true, nil
		case errors.Is(err, fault.NotFound), fault.HasReason(err, "token_elsewhere"):
			// Not its guest, or not any more: where it went is asked too.
		case !errors.Is(err, fault.Unavailable):
			return migration.Commit{}, false, err
		case host.matters:
			silent = append(silent, fault.Reason{
				Code: "host_silent", Message: "host " + host.name + " may own it and does not answer: " + err.Error(), Change: "start its agent",
			})
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
	return peer.ReleaseOwnership(ctx, ref)
}

// HeldElsewhere implements external.Fleet.
func (f foreignFleet) HeldElsewhere(ctx context.Context, instance string) (bool, error) {
	a := f.a
	asking, cancel := a.rt.WithTimeout(ctx, surrenderPatience)
	defer cancel()
	held, err := a.placement.Allocations(asking, instance)
	if err != nil {
		return false, fault.New(fault.Unavailable, "ask which host has instance %s: %w", instance, err)
	}
	if len(held.Allocations) == 0 {
		return false, nil
	}
	providers, err := a.placement.Providers(asking, placementclient.ProviderFilter{})
	if err != nil {
		return false, fault.New(fault.Unavailable, "ask which host has instance %s: %w", instance, err)
	}
	tree, err := a.allocations().Standing()
	if err != nil {
		return false, err
	}
	return elsewhere(tree, providers, held), nil
}

// elsewhere reports whether an allocation has more than the providers of a tree, what
// others hang below its root, and the sharing one that it uses.
func elsewhere(tree *inventory.Tree, providers []placementclient.ResourceProvider, held placementclient.Allocations) bool {
	root := tree.Root()
	for uuid := range held.Allocations {
		own := tree.Uses(uuid) || slices.ContainsFunc(providers, func(p placementclient.ResourceProvider) bool {
			return p.UUID == uuid && p.RootProviderUUID == root
		})
		if !own {
			return true
		}
	}
	return false
}

// TakeAllocation implements external.Fleet.
func (f foreignFleet) TakeAllocation(ctx context.Context, a allocation.Allocation) error {
	if inst, ok := f.a.tracker.Instance(a.Consumer); !ok || inst.Token.State != claims.TokenHere {
		return fault.New(fault.Forbidden, "take the allocation of instance %s: its token is not on %s", a.Consumer, f.a.name)
	}
	// One write, in place of whatever the host had that it left.
	return f.a.allocations().Put(ctx, a.Consumer, func(t *inventory.Tree, now placementclient.Allocations) (placementclient.Allocations, bool, error) {
		want := counted.Wanted(t, a, now)
		return want, !now.SameResources(want), nil
	})
}
