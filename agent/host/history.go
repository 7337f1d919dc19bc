package host

import (
	"context"

	"berth/driver"
	"berth/migration"
)

// leftOnRecord reports whether a domain that is off and does not say why has left by the
// stream of ref, as its hypervisor has written down, and makes that durable. libvirt
// forgets a domain's reason when its daemon restarts, and keeps it in the log of the
// domain's runs: the same word by the same witness, so that it is no inference. Whose
// daemon died before it wrote, or whose log is gone, stays in doubt.
func (h *Host) leftOnRecord(ctx context.Context, ref migration.Ref, d driver.Domain, asked bool, got result) bool {
	history, able := h.driver.(driver.Historian)
	if !able || !asked || d.Active() || d.Reason != driver.ReasonUnknown || got == resultLeft || got == resultUndone {
		return false
	}
	end, err := history.LastEnd(ctx, ref.Instance)
	if err != nil || end != driver.ReasonMigrated {
		return false
	}
	h.log.Info("the hypervisor's log says that a guest has left, which its daemon has forgotten", "instance", ref.Instance, "migration", ref.Migration)
	if err := h.outcome(ctx, ref, nil, 0); err != nil {
		h.log.Warn("that the guest has left could not be recorded", "instance", ref.Instance, "migration", ref.Migration, "error", err)
		return false
	}
	return true
}

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

// unsettled: the domain is off for a reason that settles nothing, and a stream was asked
// for whose end nobody knows: its QEMU may have died before the guest had left, or just
// after. The conductor's table asks the destination (SourceOff there).
func (s sourceState) unsettled() bool {
	return s.exists && s.domain.State == driver.ShutOff && !endedOrLeft(s.domain.Reason) && s.asked &&
		(s.result == resultNone || s.result == resultLost)
}

// endedOrLeft are the reasons of a domain that is off which settle what became of it.
func endedOrLeft(r driver.Reason) bool {
	return r == driver.ReasonMigrated || r == driver.ReasonShutdown || r == driver.ReasonDestroyed
}

// noteTold keeps whether the last answer to the conductor of an attempt was that the domain
// is off for a reason that settles nothing: then it asks the destination before it takes the guest back.
// A conductor that was told anything else, or nothing, has not asked.
func (h *Host) noteTold(ref migration.Ref, off bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if off {
		h.told[streamKey(ref)] = true
	} else {
		delete(h.told, streamKey(ref))
	}
}

func (h *Host) toldOff(ref migration.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.told[streamKey(ref)]
}
