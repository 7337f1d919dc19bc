package reporter

import (
	"context"
	"maps"
	"slices"

	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/placementclient"
)

// Remembered is what a reporter needs to know after a restart and cannot read from
// Placement: see inventory.Applied. It is kept before what it tells of is written.
type Remembered struct {
	Applied inventory.Applied `json:"applied"`
	// Disk is the uuid of who had DISK_GB when all was last equal: when that is a
	// sharing provider, nothing on the root tells.
	Disk string `json:"disk,omitempty"`
	// Past is what was given once and taken back, by provider and by name of class or
	// trait: the provider's generation when it was gone. What stands at an older
	// generation comes from a backup of Placement's, and is Berth's to take back again;
	// at a newer one somebody else has set it.
	Past map[string]map[string]int `json:"past,omitempty"`
}

// applied is what was given, with what a restored Placement has again.
func (r *Reporter) applied() inventory.Applied {
	out := r.remembered.Applied
	out.Providers = maps.Clone(out.Providers)
	if out.Providers == nil {
		out.Providers = map[string]inventory.Given{}
	}
	for rp, names := range r.remembered.Past {
		w := r.seen.tree[rp]
		if w == nil {
			continue
		}
		given := out.Providers[rp]
		for name, generation := range names {
			if w.Provider.Generation >= generation {
				continue
			}
			if _, stands := w.Inventories[name]; stands && !slices.Contains(given.Classes, name) {
				given.Classes = append(slices.Clone(given.Classes), name)
			}
			if slices.Contains(w.Traits, name) && !slices.Contains(given.Traits, name) {
				given.Traits = append(slices.Clone(given.Traits), name)
			}
		}
		out.Providers[rp] = given
	}
	return out
}

// past notes what is given no more, now that Placement does not have it.
func (r *Reporter) past(next inventory.Applied) map[string]map[string]int {
	out := r.remembered.Past
	for rp, before := range r.remembered.Applied.Providers {
		w := r.seen.tree[rp]
		if w == nil {
			continue
		}
		now := next.Providers[rp]
		for _, name := range slices.Concat(before.Classes, before.Traits) {
			if slices.Contains(now.Classes, name) || slices.Contains(now.Traits, name) {
				continue
			}
			if out = maps.Clone(out); out == nil {
				out = map[string]map[string]int{}
			}
			if out[rp] = maps.Clone(out[rp]); out[rp] == nil {
				out[rp] = map[string]int{}
			}
			out[rp][name] = w.Provider.Generation
		}
	}
	return out
}

// keep makes durable what is about to be applied.
func (r *Reporter) keep(ctx context.Context, report inventory.Report) error {
	if report.Applied.Equal(r.remembered.Applied) {
		return nil
	}
	return r.remember(ctx, Remembered{Applied: report.Applied, Disk: r.remembered.Disk, Past: r.past(report.Applied)})
}

// keepEqual makes durable what is so now that both are equal: who has DISK_GB, and
// what of the past does not stand in a Placement that has lower generations, having
// been restored or wiped. What comes to stand there from now on somebody else sets.
func (r *Reporter) keepEqual(ctx context.Context, disk string) error {
	next := r.remembered
	next.Disk, next.Past = disk, nil
	changed := disk != r.remembered.Disk
	for rp, names := range r.remembered.Past {
		names = maps.Clone(names)
		if w := r.seen.tree[rp]; w != nil {
			for name, generation := range names {
				_, stands := w.Inventories[name]
				if generation > w.Provider.Generation && !stands && !slices.Contains(w.Traits, name) {
					names[name], changed = w.Provider.Generation, true
				}
			}
		}
		if next.Past == nil {
			next.Past = map[string]map[string]int{}
		}
		next.Past[rp] = names
	}
	if !changed {
		return nil
	}
	return r.remember(ctx, next)
}

func (r *Reporter) remember(ctx context.Context, next Remembered) error {
	if r.opt.Keep != nil {
		if err := r.opt.Keep(ctx, next); err != nil {
			return fault.New(fault.KindOf(err), "remember what is reported to placement: %w", err)
		}
	}
	r.remembered = next
	return nil
}

// diskStands is who has DISK_GB now: the root, or the sharing provider that was
// used last; empty where nobody is known to.
func (r *Reporter) diskStands() string {
	if _, has := r.seen.tree[r.opt.UUID].Inventories[placementclient.ClassDiskGB]; has {
		return r.opt.UUID
	}
	if r.remembered.Disk != r.opt.UUID {
		return r.remembered.Disk
	}
	return ""
}

// sharing is the provider outside the tree that has the guests' disks, empty for
// none. Of several none is guessed: the one that is used stays, else the root.
func (r *Reporter) sharing() (string, *fault.Reason) {
	list := r.seen.sharing
	switch len(list) {
	case 0:
		return "", nil
	case 1:
		return list[0].Provider.UUID, nil
	}
	names, used := "", ""
	for i, s := range list {
		if i > 0 {
			names += ", "
		}
		names += s.Provider.Name + " (" + s.Provider.UUID + ")"
		if s.Provider.UUID == r.remembered.Disk {
			used = s.Provider.UUID
		}
	}
	return used, &fault.Reason{
		Code: "sharing_ambiguous", Message: "several providers share DISK_GB with this host: " + names, Have: names,
		Change: "take this host, or all of them but one, out of the aggregate",
	}
}
