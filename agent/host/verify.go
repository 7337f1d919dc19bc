package host

import (
	"strings"

	"berth/agent/host/attempts"
	"berth/agent/host/change"
	"berth/agent/host/external"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
)

// unconfirmed is a guest that was moved cold or resized and waits to be confirmed, as
// one of its hosts has it:
//
//	here                                            lives  the guest may be
//	token, its claim came by the move, its context  yes    started, stopped, paused; nothing else
//	the same, and it is being taken back            no     nothing
//	it stayed, and was not started since            no     nothing
//	token gone by the move, a claim held for it     no     nothing: what it had before is kept
type unconfirmed struct {
	context claims.MigrationContext
	lives   bool // it is here, and nobody takes it back
}

// waitsFor gives the move that a guest of this host waits to have confirmed; false for
// every other guest, also for one whose move is still on its way.
func (h *Host) waitsFor(uuid string) (unconfirmed, bool) {
	inst, known := h.tracker.Instance(uuid)
	if !known {
		return unconfirmed{}, false
	}
	var own, other *claims.Claim
	for _, c := range h.tracker.ByInstance(uuid) {
		switch c.Owner.Kind {
		case claims.KindInstance:
			own = &c
		case claims.KindResize:
			other = &c
		}
	}
	switch {
	case inst.Token.State == claims.TokenSurrendered && own == nil && other != nil && other.State == claims.Held && other.Owner.Migration == inst.Token.Migration:
		x, ok := h.tracker.Context(other.Owner.Migration)
		return unconfirmed{context: x}, ok
	case inst.Token.State != claims.TokenHere || own == nil || own.State != claims.Bound || own.BoundFrom == nil || own.BoundFrom.Kind != claims.KindResize:
		return unconfirmed{}, false
	}
	from := *own.BoundFrom
	x, ok := h.tracker.Context(from.Migration)
	started := true
	if other != nil {
		// It stayed here, and what it had before is held with the context.
		if other.Owner != from || other.Context == nil {
			return unconfirmed{}, false
		}
		x, ok = *other.Context, true
		rec, _, err := memory.Recall[change.Record](h.memory, attempts.RefOf(from), change.Memory)
		started = err == nil && rec.Started // before, its definition may be the one without the change
	} else if x.Destination != h.o.Name {
		return unconfirmed{}, false // it has come back, and its source's context is not dropped yet
	}
	return unconfirmed{context: x, lives: ok && started && !h.takenBack(from)}, ok
}

// takenBack reports whether a guest that came by this attempt was powered off for a
// later one, which reverts it.
func (h *Host) takenBack(by claims.Owner) bool {
	for _, r := range h.tracker.Remembering(memoryPower) {
		if r.Migration == by.Migration && r.Attempt > by.Attempt {
			return true
		}
	}
	return false
}

// Lives reports whether a guest that is on a move may be started, stopped and paused
// here all the same: it waits to have it confirmed, or this host keeps it by itself.
func (h *Host) Lives(uuid string) bool {
	u, ok := h.waitsFor(uuid)
	return ok && u.lives || h.StaysAlone(uuid)
}

// toConfirm says what keeps a guest that waits to be confirmed from anything else.
func (h *Host) toConfirm(uuid string, u unconfirmed) error {
	inst, _ := h.tracker.Instance(uuid)
	return fault.Refuse(fault.Busy, "", fault.Reason{
		Code: "unconfirmed", Message: "migration " + u.context.Migration + " of the instance waits to be confirmed or reverted: " + movedBetween(u.context),
		Have: u.context.Migration, Change: strings.Join(h.NextOf(u.context, inst.Name), ", or "),
	})
}

// NextOf are the commands that end a move which waits to be confirmed or reverted: one of
// Berth's own by the name of its guest, a tool's as its tool does.
func (h *Host) NextOf(x claims.MigrationContext, name string) []string {
	if !h.external.Foreign(claims.Owner{Migration: x.Migration}) {
		return []string{"berth resize confirm " + name, "berth resize revert " + name}
	}
	return []string{
		"berth external " + external.PhaseConfirmResize + " --migration " + x.Migration + " on " + x.Source + " and on " + x.Destination,
		"with the guest off berth external " + external.PhaseRevertResize + " on " + x.Destination + ", and then " + external.PhaseFinishRevertResize + " on " + x.Source,
	}
}

func movedBetween(x claims.MigrationContext) string {
	what := "it went from " + x.Source + " to " + x.Destination
	if x.Source == x.Destination {
		what = "it stayed on " + x.Source
	}
	if x.OldFlavor.Name != x.NewFlavor.Name && x.NewFlavor.Name != "" {
		what += ", and from flavor " + x.OldFlavor.Name + " to " + x.NewFlavor.Name
	}
	return what
}
