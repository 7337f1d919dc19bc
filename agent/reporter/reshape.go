package reporter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// A reshape moves what guests hold from the providers that have it to those that
// shall, together with the inventories, in one request (POST /reshaper), so that at
// no moment it is held twice or by nobody:
//
//	children are made, without inventory    a crash here leaves leftovers of the standing shape, which are deleted
//	traits are put                          so that nobody chooses a child for what it is not
//	POST /reshaper                          guarded by the generation of each provider and each consumer; when its
//	                                        answer is lost, what stands tells whether it was done
//	all is read again, leftovers deleted
//
// Before the first step it is made sure that it may be: see mayReshape.

// reshapeAgain is after how many comparisons a reshape that was refused is tried
// again; arbitrary: what refused it is a guest's or an operator's to change. Where
// Placement itself refused, children were made for it and go again, so that the
// pause doubles each time, up to reshapeSeldom.
const (
	reshapeAgain  = 5
	reshapeSeldom = 60
)

// mayReshape gives all who hold something of the tree as it stands, or why the
// standing shape must stay for now. It writes nothing.
func (r *Reporter) mayReshape(ctx context.Context, report inventory.Report) (map[string]placementclient.Allocations, *fault.Reason, error) {
	if r.opt.Observe {
		return nil, nil, nil
	}
	if r.refusedFor > 0 {
		r.refusedFor--
		return nil, r.refused, nil
	}
	r.refused = nil
	holders, err := r.holders(ctx, report)
	if err != nil {
		return nil, nil, err
	}
	version, err := r.opt.Placement.Version(ctx)
	if err != nil {
		return nil, nil, err
	}
	wait := r.mustWait(report, version, holders)
	if wait != nil {
		r.refused, r.refusedFor = wait, reshapeAgain
	}
	return holders, wait, nil
}

// The first microversions with POST /reshaper, and with a PUT that gives a provider
// another parent.
const (
	reshaperVersion placementclient.Microversion = 30
	reparentVersion placementclient.Microversion = 37
)

func (r *Reporter) mustWait(report inventory.Report, version placementclient.Microversion, holders map[string]placementclient.Allocations) *fault.Reason {
	for _, consumer := range slices.Sorted(maps.Keys(holders)) {
		if r.opt.Moving != nil && r.opt.Moving(consumer) {
			return &fault.Reason{
				Code: "reshape_move", Message: "migration " + consumer + " is not over and holds of this host", Change: "nothing: it goes on when the move is over",
			}
		}
	}
	if version < reshaperVersion && len(holders) > 0 {
		return &fault.Reason{
			Code:    "reshaper_missing",
			Message: fmt.Sprintf("%d consumers hold of this host, and this placement speaks microversion %s: the reshaper came with %s", len(holders), version, reshaperVersion),
			Want:    reshaperVersion.String(), Have: version.String(), Change: "upgrade placement, or move the guests away first",
		}
	}
	if version < reparentVersion {
		for _, p := range report.Tree.Providers {
			held := func(a placementclient.Allocations) bool { return len(a.Allocations[p.UUID]) > 0 }
			if w := r.seen.tree[p.UUID]; w != nil && w.Provider.ParentProviderUUID != p.Parent && slices.ContainsFunc(slices.Collect(maps.Values(holders)), held) {
				return &fault.Reason{
					Code:    "reparent_missing",
					Message: fmt.Sprintf("resource provider %s, of which guests hold something, gets another parent, and this placement speaks microversion %s: that came with %s", p.Name, version, reparentVersion),
					Want:    reparentVersion.String(), Have: version.String(), Change: "upgrade placement, or move these guests away first",
				}
			}
		}
	}
	return nil
}

// holders reads everything that is held by whoever holds something of the tree as
// it stands.
func (r *Reporter) holders(ctx context.Context, report inventory.Report) (map[string]placementclient.Allocations, error) {
	out := map[string]placementclient.Allocations{}
	for _, id := range r.seen.order() {
		w := r.seen.tree[id]
		if !report.Tree.Owns(id) || len(w.Inventories) == 0 && id != r.opt.UUID {
			continue
		}
		r.read()
		got, err := r.opt.Placement.ProviderAllocations(ctx, id)
		if err != nil {
			return nil, gone(err)
		}
		if got.Generation > w.Provider.Generation {
			w.Provider.Generation = got.Generation // its parts are owed, and read before anything is written
		}
		for _, consumer := range slices.Sorted(maps.Keys(got.Allocations)) {
			if _, read := out[consumer]; read {
				continue
			}
			r.read()
			held, err := r.opt.Placement.Allocations(ctx, consumer)
			if err != nil {
				return nil, err
			}
			if held.Exists() { // else it went away meanwhile
				out[consumer] = held
			}
		}
	}
	return out, nil
}

// reshape makes the tree stand, with what everybody holds.
func (r *Reporter) reshape(ctx context.Context, g goal) error {
	tree := g.report.Tree
	for _, p := range tree.Providers {
		w := r.seen.tree[p.UUID]
		if _, same := p.Equal(w.Standing); !same {
			if err := r.putTraits(ctx, w, p.Traits); err != nil {
				return err
			}
		}
	}
	version, err := r.opt.Placement.Version(ctx)
	if err != nil {
		return err
	}
	if version < reshaperVersion {
		return r.reshapeEmpty(ctx, tree)
	}
	body := placementclient.Reshape{Inventories: map[string]placementclient.Inventories{}, Allocations: map[string]placementclient.Allocations{}}
	used := map[string]bool{}
	for consumer, next := range r.rehome(tree, g.holders) {
		if !next.SameResources(g.holders[consumer]) {
			body.Allocations[consumer] = next
		}
		for rp := range next.Allocations {
			used[rp] = true
		}
	}
	put := func(p inventory.Provider, want map[string]placementclient.Inventory) {
		w := r.seen.tree[p.UUID]
		if same, _ := (inventory.Provider{Inventories: want}).Equal(w.Standing); !same {
			body.Inventories[p.UUID] = placementclient.Inventories{Generation: w.Provider.Generation, Inventories: want}
		}
	}
	for _, p := range tree.Providers {
		put(p, p.Inventories)
	}
	for _, p := range tree.Retired {
		// What guests hold there still is reserved later, when it is theirs alone.
		if !used[p.UUID] && r.seen.tree[p.UUID] != nil {
			put(p, map[string]placementclient.Inventory{})
		}
	}
	if len(body.Inventories)+len(body.Allocations) == 0 {
		return nil
	}
	r.wrote()
	err = r.opt.Placement.Reshape(ctx, body)
	switch {
	case err == nil:
		r.opt.Logger.Info("resource providers reshaped", "provider", r.opt.UUID, "shape", tree.Shape, "disk", tree.Disk, "consumers", len(body.Allocations))
		return nil
	case errors.Is(err, fault.DoesNotFit), errors.Is(err, fault.Busy), errors.Is(err, fault.Invalid):
		reason := fault.Reason{Code: "reshape_refused", Message: "placement refuses it: " + err.Error(), Change: "move guests away, or go back to the shape that stands"}
		r.refused, r.refusedFor = &reason, min(reshapeAgain<<r.refusals, reshapeSeldom)
		r.refusals = min(r.refusals+1, 8)
	}
	return err
}

// reshapeEmpty does without a reshaper what nobody holds anything of: who gets a
// class has it all reserved, so that its ratio is not forgotten, until who loses it
// has lost it. A guest that comes in between makes Placement refuse that, and all is
// read again.
func (r *Reporter) reshapeEmpty(ctx context.Context, tree *inventory.Tree) error {
	lose := func(p inventory.Provider, want map[string]placementclient.Inventory) error {
		w := r.seen.tree[p.UUID]
		if w == nil {
			return nil
		}
		less := maps.Clone(w.Inventories)
		maps.DeleteFunc(less, func(class string, _ placementclient.Inventory) bool { _, has := want[class]; return !has })
		if len(less) == len(w.Inventories) {
			return nil
		}
		err := r.put(ctx, w, less)
		if placementclient.ConflictOf(err) == placementclient.ConflictInventoryInUse {
			return fault.New(fault.GenerationConflict, "a guest came while the host changes its shape: %w", err)
		}
		return err
	}
	for _, p := range tree.Providers {
		w := r.seen.tree[p.UUID]
		both, news := maps.Clone(w.Inventories), false
		if both == nil {
			both = map[string]placementclient.Inventory{}
		}
		for class, inv := range p.Inventories {
			if _, stands := both[class]; !stands {
				inv.Reserved = inv.Total
				both[class], news = inv, true
			}
		}
		if news {
			if err := r.put(ctx, w, both); err != nil {
				return err
			}
		}
	}
	for _, p := range tree.Retired {
		if err := lose(p, nil); err != nil {
			return err
		}
	}
	for _, p := range tree.Providers {
		if err := lose(p, p.Inventories); err != nil {
			return err
		}
	}
	for _, p := range tree.Providers {
		if err := r.putInventories(ctx, r.seen.tree[p.UUID], p); err != nil {
			return err
		}
	}
	return nil
}

// rehome gives what each consumer shall hold: of this host what the tree says, of
// others what it holds.
func (r *Reporter) rehome(tree *inventory.Tree, holders map[string]placementclient.Allocations) map[string]placementclient.Allocations {
	out := map[string]placementclient.Allocations{}
	var consumers []inventory.Consumer
	for _, id := range slices.Sorted(maps.Keys(holders)) {
		held := holders[id]
		c, next := inventory.Consumer{UUID: id, Now: map[string]placementclient.Resources{}}, held.Clone()
		for rp, res := range held.Allocations {
			if tree.Uses(rp) || rp == r.remembered.Disk {
				c.Now[rp] = res
				delete(next.Allocations, rp)
			}
		}
		guest := false
		if r.opt.Held != nil {
			var claimed inventory.Held
			if claimed, guest = r.opt.Held(id); guest && sameSums(tree.Place(claimed, c.Now), c.Now) {
				// A claim that says otherwise than Placement is the audit's to settle: a reshape
				// changes no sum.
				c.Held = &claimed
			}
		}
		if next.ConsumerType == placementclient.ConsumerUnknown {
			// It was written below 1.38, when nobody told, and cannot be written so.
			next.ConsumerType = placementclient.ConsumerInstance
			if !guest && r.opt.Migration != nil && r.opt.Migration(id) {
				next.ConsumerType = placementclient.ConsumerMigration
			}
		}
		out[id], consumers = next, append(consumers, c)
	}
	for id, to := range tree.Settle(consumers, nil) {
		maps.Copy(out[id].Allocations, to)
	}
	return out
}

// sameSums says whether both hold the same of each class, wherever.
func sameSums(a, b map[string]placementclient.Resources) bool {
	return maps.Equal(sums(a), sums(b))
}

func sums(of map[string]placementclient.Resources) placementclient.Resources {
	out := placementclient.Resources{}
	for _, res := range of {
		for class, n := range res {
			out[class] += n
		}
	}
	return out
}
