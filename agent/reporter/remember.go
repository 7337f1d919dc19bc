package reporter

import (
	"context"

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
}

// keep makes durable what is about to be applied.
func (r *Reporter) keep(ctx context.Context, report inventory.Report) error {
	if report.Applied.Equal(r.remembered.Applied) {
		return nil
	}
	return r.remember(ctx, Remembered{Applied: report.Applied, Disk: r.remembered.Disk})
}

// keepDisk makes durable who has DISK_GB.
func (r *Reporter) keepDisk(ctx context.Context, disk string) error {
	if disk == r.remembered.Disk {
		return nil
	}
	return r.remember(ctx, Remembered{Applied: r.remembered.Applied, Disk: disk})
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
