package host

import (
	"context"

	"berth/driver"
	"berth/internal/fault"
)

// AdoptStarted looks at a guest that nobody managed and that the guard let start:
// it is adopted if it fits. One that does not fit is left alone, never stopped,
// and the error names every reason: fault.DoesNotFit. A guest that is not active
// any more, is managed already, or moves, is no business of this.
func (h *Host) AdoptStarted(ctx context.Context, uuid string) error {
	return wrap(h.adoptStarted(ctx, uuid), "adopt guest %s, which was started", uuid)
}

func (h *Host) adoptStarted(ctx context.Context, uuid string) error {
	if h.o.Mode() == ModeObserve {
		return nil
	}
	if _, known := h.tracker.Instance(uuid); known {
		return nil
	}
	if _, moving := h.moving(uuid); moving {
		return nil
	}
	d, exists, err := h.domain(ctx, uuid)
	switch {
	case err != nil || !exists || !d.Active():
		return err
	case d.State == driver.Paused && d.Reason == driver.ReasonStartingUp:
		return fault.New(fault.Busy, "it is still starting")
	}
	_, uses, _, err := h.read(ctx, d)
	if err != nil {
		return err
	}
	if err := h.tracker.Check(uses); err != nil {
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
