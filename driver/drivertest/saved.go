package drivertest

import (
	"context"
	"slices"

	"berth/driver"
)

// Saved implements driver.Driver.
func (h *Fake) Saved(ctx context.Context, uuid string) (s driver.Saved, err error) {
	err = h.call(ctx, "Saved", uuid, false, func() error {
		d, err := h.findLocked(uuid)
		if err == nil {
			s = d.saved
			s.Snapshots, s.Checkpoints = slices.Clone(s.Snapshots), slices.Clone(s.Checkpoints)
		}
		return err
	})
	return s, err
}

// DiscardSavedMemory implements driver.Driver.
func (h *Fake) DiscardSavedMemory(ctx context.Context, uuid string) error {
	return h.call(ctx, "DiscardSavedMemory", uuid, true, func() error {
		d, err := h.findLocked(uuid)
		if err == nil {
			d.saved.Memory = false
		}
		return err
	})
}

// SaveMemory is `virsh managedsave` of a running domain.
func (h *machine) SaveMemory(uuid string) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if d := h.domains[uuid]; d != nil && d.live != nil && d.persistent != nil {
		d.saved.Memory = true
		h.setLocked(d, driver.ShutOff, driver.ReasonSaved, driver.EventStopped, "saved")
	}
}

// AddSnapshot is `virsh snapshot-create-as`, AddCheckpoint `virsh checkpoint-create-as`.
func (h *machine) AddSnapshot(uuid, name string) {
	h.save(uuid, func(s *driver.Saved) { s.Snapshots = sorted(s.Snapshots, name) })
}

// AddCheckpoint see AddSnapshot.
func (h *machine) AddCheckpoint(uuid, name string) {
	h.save(uuid, func(s *driver.Saved) { s.Checkpoints = sorted(s.Checkpoints, name) })
}

// DropSnapshots is `virsh snapshot-delete --metadata` of each, and of checkpoints.
func (h *machine) DropSnapshots(uuid string) {
	h.save(uuid, func(s *driver.Saved) { s.Snapshots, s.Checkpoints = nil, nil })
}

func (h *machine) save(uuid string, change func(*driver.Saved)) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if d := h.domains[uuid]; d != nil {
		change(&d.saved)
	}
}

func sorted(names []string, name string) []string {
	out := append(slices.Clone(names), name)
	slices.Sort(out)
	return out
}
