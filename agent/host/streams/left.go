package streams

import (
	"context"

	"berth/agent/host/memory"
	"berth/driver"
	"berth/migration"
)

// LeftOnRecord reports whether a domain that is off and does not say why has left by the
// stream of ref, as its hypervisor has written down, and makes that durable. libvirt
// forgets a domain's reason when its daemon restarts, and keeps it in the log of the
// domain's runs: the same word by the same witness, so that it is no inference. Whose
// daemon died before it wrote, or whose log is gone, stays in doubt.
func (s *Streams) LeftOnRecord(ctx context.Context, ref migration.Ref, d driver.Domain, asked bool, got Result) bool {
	history, able := s.o.Driver.(driver.Historian)
	if !able || !asked || d.Active() || d.Reason != driver.ReasonUnknown || got == Left || got == Undone {
		return false
	}
	end, err := history.LastEnd(ctx, ref.Instance)
	if err != nil || end != driver.ReasonMigrated {
		return false
	}
	s.log.Info("the hypervisor's log says that a guest has left, which its daemon has forgotten", "instance", ref.Instance, "migration", ref.Migration)
	j, _, _, err := s.current(ref)
	if err == nil {
		err = s.outcome(ctx, ref, j, nil, 0)
	}
	if err != nil {
		s.log.Warn("that the guest has left could not be recorded", "instance", ref.Instance, "migration", ref.Migration, "error", err)
		return false
	}
	return true
}

// Settles reports whether the reason of a domain that is off settles what
// became of it.
func Settles(r driver.Reason) bool {
	return r == driver.ReasonMigrated || r == driver.ReasonShutdown || r == driver.ReasonDestroyed
}

// noteTold keeps whether the last answer to the conductor of an attempt was that the domain
// is off for a reason that settles nothing, or stands still since its second job: then it asks
// the destination before it takes the guest back.
// A conductor that was told anything else, or nothing, has not asked.
func (s *Streams) noteTold(ref migration.Ref, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off {
		s.told[memory.Key(ref)] = true
	} else {
		delete(s.told, memory.Key(ref))
	}
}

func (s *Streams) ToldOff(ref migration.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[memory.Key(ref)]
}
