package drivertest

import (
	"berth/internal/fault"
)

// Fault sets a hook before every call's effect: an error is the call's answer,
// and nothing happens. call is the method's name; on a destination "Arrive" is
// libvirt's question before a guest's memory moves. The hook runs without locks
// and may break the fleet in other ways. nil removes it.
func (h *machine) Fault(hook func(call, uuid string) error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.before = hook
}

// FaultReply sets a hook after every successful call's effect: an error
// replaces the answer, as a lost reply does. Migrate's hook is asked when the
// job has ended, well or badly.
func (h *machine) FaultReply(hook func(call, uuid string) error) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.after = hook
}

// LoseReply makes the next answer to a call get lost: it happens, and the caller
// hears fault.InDoubt.
func (h *machine) LoseReply(call string) {
	lost := false
	h.FaultReply(func(c, uuid string) error {
		if c != call || lost {
			return nil
		}
		lost = true
		return fault.New(fault.InDoubt, "%s %s on %s: the answer was lost", c, uuid, h.name)
	})
}

// FailReads makes every call that only reads fail from now on, or work again: a
// libvirtd that is overwhelmed, or whose files cannot be read. Changes go on.
func (h *machine) FailReads(on bool) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.blind = on
}

func (h *machine) loseLocked() {
	for _, s := range h.streamsLocked() {
		s.lose()
	}
}

func (h *machine) resyncLocked() {
	for _, s := range h.streamsLocked() {
		s.resync(h.fleet.rt.Now())
	}
}
