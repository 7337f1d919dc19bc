package host

import (
	"context"

	"berth/migration"
)

// beginUndo is how every undo of a verb begins that may still be at work: the verb's step is
// buried, so that it does not come late; what works on it is ended, since its caller may be long
// dead, and a hook, a copy or a guest take their minutes; and the undo gets the instance's turn.
//
// refused says why there is nothing to undo any more. It is asked before the burial, too: an undo
// that is refused must leave no trace in a move that has succeeded.
func (h *Host) beginUndo(ctx context.Context, ref migration.Ref, step string, refused func() error) (unlock func(), err error) {
	if err := refused(); err != nil {
		return nil, err
	}
	if err := h.tracker.Bury(ctx, at(ref, step)); err != nil {
		return nil, err
	}
	h.stopPreparing(ref)
	if unlock, err = h.lock(ctx, ref.Instance); err != nil {
		return nil, err
	}
	if err := refused(); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
