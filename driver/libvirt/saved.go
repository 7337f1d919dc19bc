package libvirt

import (
	"context"
	"slices"

	"berth/driver"
	"berth/internal/fault"
)

// Saved implements driver.Driver.
func (d *Driver) Saved(ctx context.Context, uuid string) (driver.Saved, error) {
	return do(ctx, d.control, request{verb: "look what is saved of", uuid: uuid}, func(c Conn) (driver.Saved, error) { return saved(c, uuid) })
}

func saved(c Conn, uuid string) (s driver.Saved, err error) {
	if s.Memory, err = c.HasManagedSave(uuid); err != nil {
		return s, err
	}
	if s.Snapshots, err = c.Snapshots(uuid); err != nil && !notKnown(err) {
		return s, err
	}
	// Not every hypervisor knows checkpoints: then there are none.
	if s.Checkpoints, err = c.Checkpoints(uuid); err != nil && !notKnown(err) {
		return s, err
	}
	slices.Sort(s.Snapshots)
	slices.Sort(s.Checkpoints)
	return s, nil
}

// notKnown reports whether a hypervisor has no such thing.
func notKnown(err error) bool {
	code := codeOf(err)
	return code == errNoSupport || code == errOperationUnsupported
}

// DiscardSavedMemory implements driver.Driver. libvirt unlinks the file before it answers.
func (d *Driver) DiscardSavedMemory(ctx context.Context, uuid string) error {
	return run(ctx, d.control, request{verb: "discard the saved memory of", uuid: uuid, changes: true}, func(c Conn) error {
		has, err := c.HasManagedSave(uuid)
		if err != nil || !has {
			return err
		}
		return c.RemoveManagedSave(uuid)
	})
}

// keeps refuses to undefine a domain that is off and of which something is saved.
func keeps(c Conn, uuid string) error {
	r, err := c.LookupUUID(uuid)
	if err != nil || r.ID >= 0 {
		return err
	}
	s, err := saved(c, uuid)
	if err != nil {
		return err
	}
	if reasons := s.Reasons(r.Name); len(reasons) > 0 {
		return fault.Refuse(fault.Forbidden, "undefine "+uuid, reasons...)
	}
	return nil
}
