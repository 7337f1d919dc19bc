package host

import (
	"context"

	"berth/agent/host/streams"
	"berth/driver"
	"berth/migration"
)

// leftByJournal reports whether the journal of the conductor, which is of this agent, says
// of a guest that is off and does not say why that it was seen to have left. It is as good
// as this host's own record, which is written beside the answer that the conductor went
// by: the agent may have died between the two. A log that tells of another end was written
// since, of a guest that somebody has started here.
func (h *Host) leftByJournal(ctx context.Context, ref migration.Ref, s sourceState) bool {
	if !s.forgotten() || h.o.Conducts == nil || h.o.Conducts(ref.Migration, ref.Attempt) != migration.ConductSeen {
		return false
	}
	if history, able := h.driver.(driver.Historian); able {
		end, err := history.LastEnd(ctx, ref.Instance)
		return err != nil || end == driver.ReasonMigrated || end == driver.ReasonUnknown
	}
	return true
}

// forgotten: the domain is off, nobody has written down why, and a stream was asked
// for. It may have left; libvirtd forgets the reason when it restarts.
func (s sourceState) forgotten() bool {
	return s.exists && s.domain.State == driver.ShutOff && s.domain.Reason == driver.ReasonUnknown && s.asked &&
		(s.result == resultNone || s.result == resultLost)
}

// held: the second job is over, and the guest has stood still since: libvirt's own hand-over
// may have let it run at the destination (SourceHeld in the conductor's table).
func (s sourceState) held() bool {
	return s.exists && s.postCopy && !s.under && s.domain.State == driver.Paused && s.domain.Reason == driver.ReasonMigrating
}

// unsettled: the domain is off for a reason that settles nothing, and a stream was asked
// for whose end nobody knows: its QEMU may have died before the guest had left, or just
// after. The conductor's table asks the destination (SourceOff there).
func (s sourceState) unsettled() bool {
	return s.exists && s.domain.State == driver.ShutOff && !streams.Settles(s.domain.Reason) && s.asked &&
		(s.result == resultNone || s.result == resultLost)
}
