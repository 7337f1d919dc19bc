package reporter

import (
	"context"
	"errors"
	"maps"
	"slices"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// prepare makes what the tree needs before anything of it can be put: custom
// classes and traits, and children, each below its parent.
func (r *Reporter) prepare(ctx context.Context, tree *inventory.Tree) error {
	for _, p := range tree.Providers {
		w := r.seen.tree[p.UUID]
		for _, class := range slices.Sorted(maps.Keys(p.Inventories)) {
			if w != nil {
				if _, stands := w.Inventories[class]; stands {
					continue
				}
			}
			if err := r.ensure(ctx, "class", class, r.opt.Placement.EnsureResourceClass); err != nil {
				return err
			}
		}
		for _, trait := range p.Traits {
			if w != nil && slices.Contains(w.Traits, trait) {
				continue
			}
			if err := r.ensure(ctx, "trait", trait, r.opt.Placement.EnsureTrait); err != nil {
				return err
			}
		}
	}
	for _, p := range tree.Providers {
		if w := r.seen.tree[p.UUID]; w != nil && misplaced(w, p) {
			if err := r.place(ctx, w, p); err != nil {
				return err
			}
		}
		if r.seen.tree[p.UUID] != nil {
			continue
		}
		made, err := r.create(ctx, placementclient.NewProvider{UUID: p.UUID, Name: p.Name, ParentProviderUUID: p.Parent})
		if err != nil {
			return err
		}
		r.seen.tree[p.UUID] = newMade(made)
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// place gives a child its name and its parent. Below microversion 1.37 nobody gets
// another parent: it is deleted then, to be made anew; one that somebody holds
// something of stays where it is, which harms nobody.
func (r *Reporter) place(ctx context.Context, w *watched, p inventory.Provider) error {
	version, err := r.opt.Placement.Version(ctx)
	if err != nil {
		return err
	}
	if version < reparentVersion && w.Provider.ParentProviderUUID != p.Parent {
		r.wrote()
		err := r.opt.Placement.DeleteProvider(ctx, p.UUID)
		switch placementclient.ConflictOf(err) {
		case placementclient.ConflictProviderInUse, placementclient.ConflictHasChildren:
			w.stuck = true
			r.opt.Logger.Warn("a resource provider cannot be put below its parent: this placement is too old", "provider", p.UUID, "name", p.Name, "parent", p.Parent)
			return nil
		}
		if err != nil && !errors.Is(err, fault.NotFound) {
			return err
		}
		delete(r.seen.tree, p.UUID)
		return nil
	}
	r.wrote()
	moved, err := r.opt.Placement.PlaceProvider(ctx, p.UUID, p.Name, p.Parent)
	if err != nil {
		return gone(err)
	}
	w.Provider.Name, w.Provider.ParentProviderUUID = moved.Name, moved.ParentProviderUUID
	w.Provider.Generation = max(w.Provider.Generation, moved.Generation)
	r.opt.Logger.Info("resource provider has another name or parent", "provider", p.UUID, "name", p.Name, "parent", p.Parent)
	return nil
}

// ensure makes a custom class or trait, once in this process's life and again after
// a failure: nothing of Placement's tells cheaply that it is there.
func (r *Reporter) ensure(ctx context.Context, kind, name string, make func(context.Context, string) error) error {
	key := kind + " " + name // one name may be both
	if !custom(name) || r.ensured[key] {
		return nil
	}
	r.wrote()
	if err := make(ctx, name); err != nil {
		return err
	}
	if r.ensured == nil {
		r.ensured = map[string]bool{}
	}
	r.ensured[key] = true
	return nil
}

// create makes a provider. One whose name another uuid has, or that hangs below
// another root, is named.
func (r *Reporter) create(ctx context.Context, p placementclient.NewProvider) (placementclient.ResourceProvider, error) {
	r.wrote()
	made, err := r.opt.Placement.CreateProvider(ctx, p)
	if err == nil {
		r.opt.Logger.Info("resource provider created", "provider", made.UUID, "name", made.Name, "parent", p.ParentProviderUUID)
		return made, nil
	}
	if !errors.Is(err, fault.Exists) {
		return made, gone(err)
	}
	// Made in between, by a lost request of ours or by somebody else: a look tells.
	again := fault.New(fault.GenerationConflict, "create resource provider: %w", err)
	if p.ParentProviderUUID == "" {
		return made, again
	}
	r.read()
	there, err := r.opt.Placement.ProviderByName(ctx, p.Name)
	if errors.Is(err, fault.NotFound) {
		r.read()
		there, err = r.opt.Placement.Provider(ctx, p.UUID)
	}
	if err != nil || there.UUID == p.UUID && there.RootProviderUUID == r.opt.UUID {
		return made, again
	}
	want, have := p.Name+" ("+p.UUID+") below "+r.opt.UUID, there.Name+" ("+there.UUID+") below "+there.RootProviderUUID
	return made, fault.Refuse(fault.Forbidden, "report the host to placement", fault.Reason{
		Code: "child_identity", Message: "resource provider " + have + " is in the way of this host's " + want, Want: want, Have: have,
		Change: "rename or delete it, if nobody needs it (openstack resource provider set|delete)",
	})
}

// write puts what differs, traits first: a host that is disabled must not be chosen
// because its inventory came before the trait. Then leftovers go.
func (r *Reporter) write(ctx context.Context, g goal) error {
	tree := g.report.Tree
	for _, p := range tree.Providers {
		w := r.seen.tree[p.UUID]
		if _, same := p.Equal(w.Standing); !same {
			if err := r.putTraits(ctx, w, p.Traits); err != nil {
				return err
			}
		}
	}
	for _, p := range tree.Providers {
		if err := r.putInventories(ctx, r.seen.tree[p.UUID], p); err != nil {
			return err
		}
	}
	for _, p := range tree.Retired {
		if w := r.seen.tree[p.UUID]; w != nil {
			if err := r.retire(ctx, w, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// putInventories puts what differs; see withKept for classes that are in use.
func (r *Reporter) putInventories(ctx context.Context, w *watched, p inventory.Provider) error {
	for range 2 {
		want, kept := withKept(w, p.Inventories)
		if same, _ := (inventory.Provider{Inventories: want}).Equal(w.Standing); same {
			return nil
		}
		err := r.put(ctx, w, want)
		if placementclient.ConflictOf(err) != placementclient.ConflictInventoryInUse {
			if err == nil && len(kept) > 0 {
				r.opt.Logger.Warn("the host has no more of classes that guests have: nobody gets more of them", "provider", p.UUID, "name", p.Name, "classes", kept)
			}
			return err
		}
		if err := r.readUsages(ctx, w); err != nil {
			return err
		}
		if w.owes(partInventories) || len(w.inUse) == 0 {
			break
		}
	}
	return changed("what guests hold of resource provider %s changes while it is put", p.UUID)
}

func (r *Reporter) put(ctx context.Context, w *watched, inventories map[string]placementclient.Inventory) error {
	r.wrote()
	got, err := r.opt.Placement.PutInventories(ctx, w.Provider.UUID, placementclient.Inventories{
		Generation: w.Provider.Generation, Inventories: inventories,
	})
	if err != nil {
		return gone(err)
	}
	w.Inventories = got.Inventories
	w.advance(got.Generation)
	r.opt.Logger.Info("inventories put", "provider", w.Provider.UUID, "name", w.Provider.Name, "generation", got.Generation)
	return nil
}

func (r *Reporter) putTraits(ctx context.Context, w *watched, traits []string) error {
	r.wrote()
	got, err := r.opt.Placement.PutTraits(ctx, w.Provider.UUID, placementclient.Traits{Generation: w.Provider.Generation, Traits: traits})
	if err != nil {
		return gone(err)
	}
	w.Traits = got.Traits
	w.advance(got.Generation)
	r.opt.Logger.Info("traits put", "provider", w.Provider.UUID, "name", w.Provider.Name, "generation", got.Generation, "traits", got.Traits)
	return nil
}

// retire deletes a provider of ours that is no more. One that guests still have
// something of stays, all of it reserved; one with somebody else's children stays
// for as long as these do.
func (r *Reporter) retire(ctx context.Context, w *watched, p inventory.Provider) error {
	if len(w.inUse) == 0 && !w.barred {
		r.wrote()
		err := r.opt.Placement.DeleteProvider(ctx, p.UUID)
		switch placementclient.ConflictOf(err) {
		case placementclient.ConflictProviderInUse:
			if err := r.readUsages(ctx, w); err != nil {
				return err
			}
			if len(w.inUse) == 0 {
				return changed("what guests hold of resource provider %s changes while it is deleted", p.UUID)
			}
			r.opt.Logger.Warn("the host has no more of what guests have: nobody gets more of it", "provider", p.UUID, "name", p.Name, "classes", w.inUse)
		case placementclient.ConflictHasChildren:
			w.barred = true
			r.opt.Logger.Warn("a resource provider that is no more has children of somebody else", "provider", p.UUID, "name", p.Name)
		default:
			if err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
			delete(r.seen.tree, p.UUID)
			r.opt.Logger.Info("resource provider deleted", "provider", p.UUID, "name", p.Name)
			return nil
		}
	}
	if same, _ := p.Equal(w.Standing); same {
		return nil
	}
	return r.put(ctx, w, p.Inventories)
}
