package host

import (
	"context"

	"berth/driver"
	"berth/internal/fault"
)

// AdoptStarted looks at a guest that the guard let in without a claim: it is
// adopted if it fits. One that arrived from another host, or that Placement has at
// one, is claimed as an arrival, since its token has to follow (FollowArrivals). One that does not fit is left
// alone, never stopped, and the error names every reason: fault.DoesNotFit. A
// guest that is not active any more, is managed already, or moves, is no business
// of this.
func (h *Host) AdoptStarted(ctx context.Context, uuid string, arrived bool) error {
	return wrap(h.adoptStarted(ctx, uuid, arrived), "adopt guest %s, which was let in", uuid)
}

func (h *Host) adoptStarted(ctx context.Context, uuid string, arrived bool) error {
	if h.o.Mode() == ModeObserve {
		return nil
	}
	if _, known := h.tracker.Instance(uuid); known {
		return nil
	}
	if _, moving := h.attempts.Moving(uuid); moving {
		return nil
	}
	d, exists, err := h.domain(ctx, uuid)
	switch {
	case err != nil || !exists || !d.Active():
		return err
	case d.State == driver.Paused && d.Reason == driver.ReasonStartingUp:
		return fault.New(fault.Busy, "it is still starting")
	}
	if !arrived && h.o.Fleet != nil {
		// libvirt forgets that a guest came by a migration, once it was paused.
		if arrived, err = h.o.Fleet.HeldElsewhere(ctx, uuid); err != nil {
			return err
		}
	}
	_, found, _, err := h.read(ctx, d)
	if err != nil {
		return err
	}
	if arrived {
		text, err := h.driver.XML(ctx, uuid, driver.Live)
		if err == nil {
			_, err = h.external.ClaimFound(ctx, text, &found)
		}
		return err
	}
	if err := h.tracker.CheckFound(uuid, found); err != nil {
		return err
	}
	a, err := h.adoptOne(ctx, uuid, true)
	if err != nil {
		return err
	}
	if a.UUID != "" {
		h.log.Info("a guest that was started by hand is adopted", "instance", uuid, "name", a.Name)
	}
	return nil
}
