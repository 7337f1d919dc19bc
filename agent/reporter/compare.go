package reporter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// goal is what Placement shall say, and how it gets there.
type goal struct {
	report inventory.Report
	// reshape says that what guests hold must change its provider together with the
	// inventories; holders are who that concerns.
	reshape bool
	holders map[string]placementclient.Allocations
	// waiting is why the wanted shape, or the wanted provider of disks, is not gone
	// for: the report is of what stands.
	waiting *Waiting
	words   []string // what would be written
}

// syncOnce observes, compares, and writes what differs.
func (r *Reporter) syncOnce(ctx context.Context) error {
	in, known, why := r.opt.Input()
	if !known {
		return fault.Refuse(fault.Unavailable, "report the host to placement", fault.Reason{
			Code: "host_unknown", Message: why, Change: "see `berth host show` for what cannot be read",
		})
	}
	in.UUID, in.Name = r.opt.UUID, r.opt.Name
	exists, err := r.look(ctx)
	if err != nil {
		return err
	}
	if !exists && r.opt.Observe {
		r.tell(goal{report: inventory.Compute(in, nil), words: []string{
			fmt.Sprintf("create resource provider %s (%s)", r.opt.Name, r.opt.UUID), "put inventories", "put traits",
		}})
		return nil
	}
	if !exists {
		root, err := r.create(ctx, placementclient.NewProvider{UUID: r.opt.UUID, Name: r.opt.Name})
		if err != nil {
			return err
		}
		r.seen = &observation{tree: map[string]*watched{root.UUID: newMade(root)}}
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	reshaped, err := r.compare(ctx, in)
	if err != nil || !reshaped {
		return err
	}
	// Placement has the new shape. What is left over is found by another look.
	r.seen = nil
	if _, err := r.look(ctx); err != nil {
		return err
	}
	_, err = r.compare(ctx, in)
	return err
}

// between makes Tree unknown: from a reshape's request to the comparison after it nobody
// can say where a claim is counted. What it gives takes that back.
func (r *Reporter) between() (known func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.tree
	r.tree, r.status.InSync = nil, false
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tree = was
	}
}

// compare makes Placement say what in says; true when a reshape was made, and all
// is to be read again.
func (r *Reporter) compare(ctx context.Context, in inventory.Input) (reshaped bool, err error) {
	g, err := r.decide(ctx, in)
	if err != nil {
		return false, err
	}
	if _, _, owed := r.owed(); owed && len(g.words) > 0 && !r.opt.Observe {
		// Written is only what was computed from all that stands now.
		if err := r.settle(ctx); err != nil {
			return false, err
		}
		if g, err = r.decide(ctx, in); err != nil {
			return false, err
		}
	}
	r.tell(g)
	if r.opt.Observe {
		return false, nil
	}
	if err := r.keep(ctx, g.report); err != nil {
		return false, err
	}
	if len(g.words) > 0 {
		if err := r.prepare(ctx, g.report.Tree); err != nil {
			return false, err
		}
		if g.reshape {
			known := r.between()
			err := r.reshape(ctx, g)
			switch fault.KindOf(err) {
			case fault.DoesNotFit, fault.Busy, fault.Invalid:
				known() // it was refused, and all stands as it did
			}
			return true, err
		}
		if err := r.write(ctx, g); err != nil {
			return false, err
		}
	}
	// What was taken out is forgotten: it may be somebody else's from now on.
	in.Shape, in.Sharing, in.Applied = g.report.Tree.Shape, g.report.Tree.Disk, r.remembered.Applied
	if err := r.keep(ctx, inventory.Compute(in, r.seen.standing())); err != nil {
		return false, err
	}
	if err := r.keepEqual(ctx, g.report.Tree.Disk); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tree = g.report.Tree
	r.status.Generation = r.seen.tree[r.opt.UUID].Provider.Generation
	r.status.Kept = r.kept(g.report.Tree)
	return false, nil
}

// decide says what shall stand, from what was last observed.
func (r *Reporter) decide(ctx context.Context, in inventory.Input) (goal, error) {
	sharing, ambiguous := r.sharing()
	in.Sharing = sharing
	stands := r.diskStands()
	if in.Holding && stands != "" {
		in.Sharing = stands
	}
	report, err := r.compute(ctx, in)
	if err != nil {
		return goal{}, err
	}
	g := goal{report: report}
	if report.Tree.Shape != report.Wanted || in.Sharing != sharing {
		g.waiting = &Waiting{Shape: report.Wanted, Reason: fault.Reason{
			Code: "reshape_move", Message: "a move has a half on this host", Change: "nothing: it goes on when the move is over",
		}}
	}
	if report.Reshapes() || stands != "" && stands != report.Tree.Disk {
		if _, _, owed := r.owed(); owed && r.refusedFor == 0 && !r.opt.Observe {
			// Before everybody's allocations are read, which would be read again.
			if err := r.settle(ctx); err != nil {
				return goal{}, err
			}
			return r.decide(ctx, in)
		}
		holders, wait, err := r.mayReshape(ctx, report)
		if err != nil {
			return goal{}, err
		}
		if wait == nil {
			g.reshape, g.holders = true, holders
		} else {
			if report.Standing != "" {
				in.Shape = report.Standing
			}
			in.Sharing = stands
			g.waiting = &Waiting{Shape: report.Wanted, Reason: *wait}
			if g.report, err = r.compute(ctx, in); err != nil {
				return goal{}, err
			}
			// Where both shapes stand, after a crash in reshapeEmpty or by somebody else's
			// hand, this takes the wanted one back, but for what guests hold of it.
		}
	}
	if g.waiting == nil && !g.reshape {
		r.refusals = 0
	}
	if g.waiting == nil && ambiguous != nil {
		g.waiting = &Waiting{Shape: report.Tree.Shape, Reason: *ambiguous}
	}
	g.words = r.differences(g)
	return g, nil
}

// compute gives the report without the traits that this Placement does not have.
func (r *Reporter) compute(ctx context.Context, in inventory.Input) (inventory.Report, error) {
	in.Applied = r.applied()
	report := inventory.Compute(in, r.seen.standing())
	tree := *report.Tree
	tree.Providers = slices.Clone(tree.Providers)
	var unknown []string
	for i, p := range tree.Providers {
		var stand []string
		if w := r.seen.tree[p.UUID]; w != nil {
			stand = w.Traits
		}
		known, not, err := r.withoutUnknown(ctx, p.Traits, stand)
		if err != nil {
			return report, err
		}
		tree.Providers[i].Traits = known
		unknown = append(unknown, not...)
	}
	slices.Sort(unknown)
	unknown = slices.Compact(unknown)
	r.note(func(s *Status) { s.UnknownTraits = unknown })
	report.Tree = &tree
	return report, nil
}

// withoutUnknown leaves out the traits that Placement does not have. Those that
// stand on the provider it has, so in a steady state nothing is asked. Custom ones
// can be made, see prepare.
func (r *Reporter) withoutUnknown(ctx context.Context, traits, stand []string) (out, unknown []string, err error) {
	var ask []string
	for _, t := range traits {
		if _, asked := r.settable[t]; !asked && !custom(t) && !slices.Contains(stand, t) {
			ask = append(ask, t)
		}
	}
	if len(ask) > 0 {
		r.read()
		have, err := r.opt.Placement.KnownTraits(ctx, ask)
		if err != nil {
			return nil, nil, err
		}
		var news []string
		for _, t := range ask {
			if r.settable == nil {
				r.settable = map[string]bool{}
			}
			if r.settable[t] = slices.Contains(have, t); !r.settable[t] {
				news = append(news, t)
			}
		}
		if len(news) > 0 {
			r.opt.Logger.Info("traits that this placement does not know are not reported", "provider", r.opt.UUID, "traits", news)
		}
	}
	out = []string{}
	for _, t := range traits {
		if known, asked := r.settable[t]; asked && !known && !slices.Contains(stand, t) {
			unknown = append(unknown, t)
		} else {
			out = append(out, t)
		}
	}
	return out, unknown, nil
}

func custom(name string) bool { return strings.HasPrefix(name, placementclient.CustomPrefix) }

// differences are what would be written, in an operator's words.
func (r *Reporter) differences(g goal) []string {
	var out []string
	tree := g.report.Tree
	if g.reshape {
		out = append(out, fmt.Sprintf("reshape to %s, with what %d consumers hold", tree.Shape, len(g.holders)))
	}
	// The root's are named as they ever were.
	of := func(p inventory.Provider) string {
		if p.Parent == "" {
			return ""
		}
		return " of " + p.Name
	}
	for _, p := range tree.Providers {
		w := r.seen.tree[p.UUID]
		if w == nil {
			out = append(out, fmt.Sprintf("create resource provider %s (%s)", p.Name, p.UUID))
			continue
		}
		if misplaced(w, p) {
			out = append(out, "put the name or parent of "+p.Name)
		}
		want := p
		want.Inventories, _ = withKept(w, p.Inventories)
		sameInventories, sameTraits := want.Equal(w.Standing)
		if !sameInventories {
			out = append(out, "put inventories"+of(p))
		}
		if !sameTraits {
			out = append(out, "put traits"+of(p))
		}
	}
	for _, p := range tree.Retired {
		w := r.seen.tree[p.UUID]
		if w == nil {
			continue
		}
		if len(w.inUse) == 0 && !w.barred {
			out = append(out, fmt.Sprintf("delete resource provider %s (%s)", p.Name, p.UUID))
		} else if same, _ := p.Equal(w.Standing); !same {
			out = append(out, "put inventories of "+p.Name)
		}
	}
	return out
}

// misplaced says that a child has another name or parent than it should, and can
// have it.
func misplaced(w *watched, p inventory.Provider) bool {
	return !w.stuck && elsewhere(w, p)
}

func elsewhere(w *watched, p inventory.Provider) bool {
	return w.Provider.Name != p.Name || w.Provider.ParentProviderUUID != p.Parent
}

// withKept is what shall stand, with the classes that the host has no more of and
// guests still have: Placement lets a total fall below what is allocated of it, but
// not a class go, and then takes nothing of the whole write (409
// placement.inventory.inuse). CPUs may go while guests are pinned to them. Such a
// class stays as it stands with all of it reserved, so that nobody gets more of it.
func withKept(w *watched, want map[string]placementclient.Inventory) (map[string]placementclient.Inventory, []string) {
	var kept []string
	for class, stands := range w.Inventories {
		if _, has := want[class]; has || !slices.Contains(w.inUse, class) {
			continue
		}
		if len(kept) == 0 {
			want = maps.Clone(want)
		}
		stands.Reserved = stands.Total
		want[class], kept = stands, append(kept, class)
	}
	slices.Sort(kept)
	return want, kept
}

// kept names what the host has no more of and guests still have: classes of the
// root by their names, others with their provider's.
func (r *Reporter) kept(tree *inventory.Tree) []string {
	var out []string
	for _, p := range tree.Providers {
		if w := r.seen.tree[p.UUID]; w != nil {
			_, kept := withKept(w, p.Inventories)
			for _, class := range kept {
				if p.Parent != "" {
					class = p.Name + " " + class
				}
				out = append(out, class)
			}
		}
	}
	for _, p := range tree.Retired {
		if w := r.seen.tree[p.UUID]; w != nil && (len(w.inUse) > 0 || w.barred) {
			out = append(out, p.Name)
		}
	}
	return out
}

// tell makes known what was decided, before anything of it is written.
func (r *Reporter) tell(g goal) {
	tree := g.report.Tree
	r.note(func(s *Status) {
		s.Traits = tree.Providers[0].Traits
		s.Disabled = slices.Contains(s.Traits, placementclient.TraitComputeStatusDisabled)
		s.Shape, s.Waiting, s.Disk = tree.Shape, g.waiting, tree.Disk
		s.InSync = s.InSync && !g.reshape // the shape does not stand yet
		s.Reasons = nil
		for _, reason := range g.report.Reasons {
			s.Reasons = append(s.Reasons, fault.Reason{Code: reason.Code, Message: reason.Message, Change: reason.Change})
		}
		if r.seen != nil {
			s.Generation = r.seen.tree[r.opt.UUID].Provider.Generation
		}
		if s.Pending = nil; r.opt.Observe {
			s.Pending = g.words
		}
	})
	if r.opt.Found != nil {
		r.opt.Found(g.report)
	}
}
