package reporter

import (
	"context"
	"errors"
	"slices"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// What is read when. P is how many providers the tree has.
//
//	first look, and after a failure     in_tree, inventories and traits of each, aggregates of the root: 2P + 2;
//	                                    with aggregates, the sharing providers and their inventories: 1 + S
//	an interval                         in_tree, which tells every generation: 1
//	a generation that moved             that provider's inventories, in the same interval; its traits (and the
//	                                    root's aggregates) are owed, one an interval in place of in_tree
//	every fourth interval               in place of in_tree, the next part of the next provider, in turn, so that
//	                                    equal generations that hide other content are found: all within 4 (2P + 2)
//	every second, while guests have     in place of in_tree, the usages of one that they have something of: it is
//	what the host has no more           released without a generation that moves (DELETE /allocations)
//	before a write                      what is owed, of every provider
//
// A guest that starts moves one generation: two reads in that interval, and one in
// each after it, as ever.
const patrolEvery = 4

// part is one of the things that a provider's generation covers.
type part int

const (
	partInventories part = iota
	partTraits
	partAggregates
	parts
)

// watched is one provider as it was last read or written.
type watched struct {
	inventory.Standing
	// at is the generation that each part was read at. A part is owed while it is not
	// the provider's.
	at [parts]int
	// inUse are classes that somebody held when Placement last said so; of a provider
	// that is to go all of them. They are looked at again.
	inUse []string
	// barred says that somebody else's child is below a provider that is to go.
	barred bool
	// stuck says that a provider cannot be put below its parent: see place.
	stuck bool
}

const never = -1

func newWatched(p placementclient.ResourceProvider) *watched {
	return &watched{Standing: inventory.Standing{Provider: p}, at: [parts]int{never, never, never}}
}

// newMade is a provider that was made now. Everything that anybody gives it raises
// its generation from 0, at which it is known to be empty without a look.
func newMade(p placementclient.ResourceProvider) *watched {
	w := newWatched(p)
	if p.Generation == 0 {
		w.at = [parts]int{}
	}
	return w
}

// parts are what is watched of a provider: aggregates say who shares with the
// host, and are the root's.
func (w *watched) parts(root string) []part {
	if w.Provider.UUID == root {
		return []part{partInventories, partTraits, partAggregates}
	}
	return []part{partInventories, partTraits}
}

func (w *watched) owes(p part) bool { return w.at[p] != w.Provider.Generation }

// advance takes the generation that a write of ours made of the one before: what
// was known then is known still.
func (w *watched) advance(to int) {
	for p := range w.at {
		if !w.owes(part(p)) {
			w.at[p] = to
		}
	}
	w.Provider.Generation = to
}

// observation is what was last read or written.
type observation struct {
	tree map[string]*watched // every provider of the tree, others' children too
	// sharing are the providers that share their DISK_GB with the root, by its
	// aggregates, sorted by uuid.
	sharing []inventory.Standing
	turn    int // intervals since the first look
	patrol  int // parts looked at
}

// standing is what inventory.Compute wants of it.
func (o *observation) standing() []inventory.Standing {
	if o == nil {
		return nil
	}
	out := make([]inventory.Standing, 0, len(o.tree)+len(o.sharing))
	for _, id := range o.order() {
		out = append(out, o.tree[id].Standing)
	}
	return append(out, o.sharing...)
}

func (o *observation) order() []string {
	out := make([]string, 0, len(o.tree))
	for id := range o.tree {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// changed is what ends an observation: read everything again.
func changed(format string, args ...any) error {
	return fault.New(fault.GenerationConflict, format, args...)
}

// look observes; false where Placement has no provider of this host's uuid and
// name. A first look reads everything.
func (r *Reporter) look(ctx context.Context) (bool, error) {
	if r.seen == nil {
		return r.lookAtAll(ctx)
	}
	r.seen.turn++
	if r.seen.turn%2 == 1 {
		if w, p, owed := r.owed(); owed {
			return true, r.readPart(ctx, w, p)
		}
		if used := r.inUse(); len(used) > 0 {
			return true, r.readUsages(ctx, used[r.seen.turn/2%len(used)])
		}
	}
	if r.seen.turn%patrolEvery == 0 {
		return true, r.patrol(ctx)
	}
	return true, r.generations(ctx)
}

func (r *Reporter) inTree(ctx context.Context) ([]placementclient.ResourceProvider, error) {
	r.read()
	return r.opt.Placement.ProvidersInTree(ctx, r.opt.UUID)
}

// lookAtAll reads the whole tree. r.seen is set only when all of it was read.
func (r *Reporter) lookAtAll(ctx context.Context) (bool, error) {
	list, err := r.inTree(ctx)
	if err != nil {
		return false, err
	}
	o := &observation{tree: map[string]*watched{}}
	for _, p := range list {
		o.tree[p.UUID] = newWatched(p)
	}
	if found, err := r.identify(ctx, o); !found || err != nil {
		return false, err
	}
	before := r.seen
	r.seen = o
	err = r.settle(ctx)
	if err == nil {
		err = r.findSharing(ctx)
	}
	if err != nil {
		r.seen = before
		return false, err
	}
	return true, nil
}

// identify holds the root and the names of children against what is this host's;
// false where neither its uuid nor its name is known.
func (r *Reporter) identify(ctx context.Context, o *observation) (bool, error) {
	root, found := o.tree[r.opt.UUID]
	if !found {
		return false, r.nameIsFree(ctx)
	}
	p := root.Provider
	if p.Name != r.opt.Name {
		return true, r.conflict("resource provider "+p.UUID+" is named "+p.Name, p.Name+" ("+p.UUID+")",
			"this host is a copy of "+p.Name+" or was renamed: remove "+IdentityFile+" from its state directory if it is a copy, or set [agent] name")
	}
	if !p.IsRoot() {
		return true, r.conflict("resource provider "+p.UUID+" is a child of "+p.ParentProviderUUID, p.Name+" ("+p.UUID+") below "+p.ParentProviderUUID,
			"somebody hung it there; from microversion 1.37 it can be made a root again (openstack resource provider set)")
	}
	return true, nil
}

// nameIsFree refuses where another uuid has this host's name.
func (r *Reporter) nameIsFree(ctx context.Context) error {
	r.read()
	p, err := r.opt.Placement.ProviderByName(ctx, r.opt.Name)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.UUID == r.opt.UUID {
		return changed("resource provider %s appeared while it was looked for", p.UUID)
	}
	return r.conflict("resource provider "+p.Name+" has uuid "+p.UUID, p.Name+" ("+p.UUID+")",
		"if nothing else writes it, put its uuid into "+IdentityFile+" in the state directory; if nova-compute or another host does, do not manage this host with Berth")
}

// generations reads them all in one request, and the inventories of those that
// moved.
func (r *Reporter) generations(ctx context.Context) error {
	list, err := r.inTree(ctx)
	if err != nil {
		return err
	}
	o := r.seen
	here, parents := map[string]bool{}, map[string]bool{}
	for _, p := range list {
		here[p.UUID], parents[p.ParentProviderUUID] = true, true
		w, known := o.tree[p.UUID]
		switch {
		case !known:
			o.tree[p.UUID] = newWatched(p)
		case p.Generation < w.Provider.Generation:
			return changed("the generation of resource provider %s went back from %d to %d: placement was restored", p.UUID, w.Provider.Generation, p.Generation)
		default:
			w.stuck = w.stuck && p.Generation == w.Provider.Generation
			w.Provider = p
		}
	}
	for id := range o.tree {
		if !here[id] {
			delete(o.tree, id)
		}
	}
	if !here[r.opt.UUID] {
		return changed("resource provider %s is gone", r.opt.UUID)
	}
	if _, err := r.identify(ctx, o); err != nil {
		return err
	}
	for _, id := range o.order() {
		w := o.tree[id]
		for _, p := range w.parts(r.opt.UUID) {
			// All of a provider that is new, the inventories of one that moved.
			if w.owes(p) && (w.at[p] == never || p == partInventories) {
				if err := r.readPart(ctx, w, p); err != nil {
					return err
				}
			}
		}
		w.barred = w.barred && parents[id]
	}
	return nil
}

// owed gives something that was not read since its provider's generation moved.
func (r *Reporter) owed() (*watched, part, bool) {
	for _, id := range r.seen.order() {
		w := r.seen.tree[id]
		for _, p := range w.parts(r.opt.UUID) {
			if w.owes(p) {
				return w, p, true
			}
		}
	}
	return nil, 0, false
}

// settle reads all that is owed: what is written must be computed from the
// generation that it is written at.
func (r *Reporter) settle(ctx context.Context) error {
	for range 2*attempts + 3*len(r.seen.tree) {
		w, p, owed := r.owed()
		if !owed {
			return nil
		}
		if err := r.readPart(ctx, w, p); err != nil {
			return err
		}
	}
	return changed("resource provider %s changes all the time", r.opt.UUID)
}

// inUse are the providers with something that is to go and that guests have.
func (r *Reporter) inUse() []*watched {
	var out []*watched
	for _, id := range r.seen.order() {
		if w := r.seen.tree[id]; len(w.inUse) > 0 {
			out = append(out, w)
		}
	}
	return out
}

// patrol reads one thing: the next part of the next provider, or who shares with
// the host.
func (r *Reporter) patrol(ctx context.Context) error {
	o := r.seen
	o.patrol++
	type round struct {
		w *watched
		p part
	}
	var rounds []round
	for _, id := range o.order() {
		w := o.tree[id]
		for _, p := range w.parts(r.opt.UUID) {
			rounds = append(rounds, round{w, p})
		}
	}
	shares := 0
	if len(o.tree[r.opt.UUID].Aggregates) > 0 {
		shares = 1
	}
	at := o.patrol % (len(rounds) + shares)
	if at == len(rounds) {
		return r.findSharing(ctx)
	}
	return r.readPart(ctx, rounds[at].w, rounds[at].p)
}

// gone makes of a provider that vanished a reason to look at all again.
func gone(err error) error {
	if errors.Is(err, fault.NotFound) {
		return fault.New(fault.GenerationConflict, "a resource provider went away: %w", err)
	}
	return err
}

// readPart reads a part of a provider, and takes the generation that it says.
func (r *Reporter) readPart(ctx context.Context, w *watched, p part) error {
	id, generation := w.Provider.UUID, 0
	r.read()
	switch p {
	case partInventories:
		got, err := r.opt.Placement.Inventories(ctx, id)
		if err != nil {
			return gone(err)
		}
		w.Inventories, generation = got.Inventories, got.Generation
	case partTraits:
		got, err := r.opt.Placement.Traits(ctx, id)
		if err != nil {
			return gone(err)
		}
		w.Traits, generation = got.Traits, got.Generation
	default:
		got, err := r.opt.Placement.Aggregates(ctx, id)
		if err != nil {
			return gone(err)
		}
		before := w.Aggregates
		w.Aggregates, generation = got.Aggregates, got.Generation
		if w.at[p] != never && !slices.Equal(before, w.Aggregates) {
			if err := r.findSharing(ctx); err != nil {
				return err
			}
		}
	}
	return r.took(w, p, generation)
}

func (r *Reporter) took(w *watched, p part, generation int) error {
	if generation < w.Provider.Generation {
		return changed("the generation of resource provider %s went back from %d to %d: placement was restored", w.Provider.UUID, w.Provider.Generation, generation)
	}
	w.Provider.Generation, w.at[p] = generation, generation
	return nil
}

// readUsages asks which of a provider's classes somebody holds.
func (r *Reporter) readUsages(ctx context.Context, w *watched) error {
	r.read()
	got, err := r.opt.Placement.Usages(ctx, w.Provider.UUID)
	if err != nil {
		return gone(err)
	}
	w.inUse = nil
	for class, n := range got.Usages {
		if n > 0 {
			w.inUse = append(w.inUse, class)
		}
	}
	slices.Sort(w.inUse)
	if got.Generation > w.Provider.Generation {
		w.Provider.Generation = got.Generation
	}
	return nil
}

// findSharing reads who shares DISK_GB with the root by an aggregate.
func (r *Reporter) findSharing(ctx context.Context) error {
	o := r.seen
	in := o.tree[r.opt.UUID].Aggregates
	o.sharing = nil
	if len(in) == 0 {
		return nil
	}
	r.read()
	list, err := r.opt.Placement.Providers(ctx, placementclient.ProviderFilter{MemberOf: in, Required: []string{placementclient.TraitMiscSharesViaAggregate}})
	if err != nil {
		return err
	}
	var found []inventory.Standing
	for _, p := range list {
		if o.tree[p.UUID] != nil {
			continue // the host shares with others
		}
		r.read()
		inv, err := r.opt.Placement.Inventories(ctx, p.UUID)
		if err != nil {
			return gone(err)
		}
		if _, disks := inv.Inventories[placementclient.ClassDiskGB]; disks {
			found = append(found, inventory.Standing{Provider: p, Inventories: inv.Inventories})
		}
	}
	slices.SortFunc(found, func(a, b inventory.Standing) int {
		if a.Provider.UUID < b.Provider.UUID {
			return -1
		}
		return 1
	})
	o.sharing = found
	return nil
}
