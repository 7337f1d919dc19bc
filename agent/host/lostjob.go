package host

import (
	"context"
	"errors"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// lostJobPatience bounds one try of EndLostJob; arbitrary, above what libvirt takes to
// cancel a job over a network that answers.
const lostJobPatience = 3 * time.Second

// EndLostJob ends the stream of a move whose journal this host has lost: nobody would
// commit it, and once the guest has left nobody could say whose it is. It returns when
// no job of the guest is in flight; whether the guest has its memory here then, or has
// left before, a survey tells. A move that this host conducts, or has decided, is left
// alone. fault.Busy when the job has not ended yet: it is asked again.
func (h *Host) EndLostJob(ctx context.Context, ref migration.Ref) error {
	return wrap(h.endLostJob(ctx, ref), "end the stream of migration %s, whose journal is lost", ref.Migration)
}

func (h *Host) endLostJob(ctx context.Context, ref migration.Ref) error {
	if h.migrator == nil || h.o.Conducts != nil && h.o.Conducts(ref.Migration, ref.Attempt) != migration.ConductNone {
		return nil
	}
	if _, left := h.tracker.Committed(ref.Migration); left {
		return nil
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := h.rt.WithTimeout(ctx, lostJobPatience)
	defer cancel()
	for turn := 0; ; turn++ {
		job, err := h.migrator.Job(ctx, ref.Instance)
		switch {
		case errors.Is(err, fault.NotFound), err == nil && !inFlight(job):
			return nil
		case err != nil:
			return err
		case turn == 0:
			h.log.Warn("end a migration whose journal is lost, while the guest is here", "instance", ref.Instance, "migration", ref.Migration)
		case turn == 2:
			if err := h.streams.End(ctx, ref); err != nil {
				return err
			}
		}
		if err := h.migrator.AbortJob(ctx, ref.Instance); err != nil && !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.NotFound) {
			return err
		}
		if h.rt.Sleep(ctx, h.o.Poll/4) != nil {
			return fault.New(fault.Busy, "its job has not ended yet")
		}
	}
}
