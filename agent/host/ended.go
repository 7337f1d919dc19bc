package host

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"berth/agent/host/allocation"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// The last step of a move is its conductor's, in Placement alone: what the guest left behind
// there is given up. A third host that is gone for good between the last verb that it asked
// here and that step leaves a guest that is counted where it is not, or a half that nobody
// needs; and no host has anything of the move any more but its tombstones, which name the
// conductor. So does a destination whose claim had a lease that was over, while the source
// knows nothing of the move yet: by what it has kept of that claim it counts the guest back,
// where it is counted here. The host that has the guest looks at the migration's consumer until it holds
// nothing, and does that step by the table below. The write is guarded by the generations of
// both consumers, so what its conductor has sent before is turned away.

// endedState is what this host knows of such a move.
type endedState struct {
	kept      keptWord
	conductor conductorWord
	answers   answerWord
}

// keptWord is what Placement says of the migration's consumer.
type keptWord string

const (
	keptUnknown keptWord = "unknown" // it does not answer
	keptNothing keptWord = "nothing" // it was ended
	keptHalf    keptWord = "half"    // it holds what its conductor gives up at the very end
)

// answerWord is whether the conductor says anything when this host asks.
type answerWord string

const (
	answerUnasked answerWord = "unasked"
	answerGiven   answerWord = "given"
	answerNone    answerWord = "none"
)

// endedAction is what this host does about it by itself.
type endedAction string

const (
	endedOver  endedAction = "over"  // nothing, ever again
	endedRest  endedAction = "rest"  // nothing
	endedTell  endedAction = "tell"  // nothing, and say so
	endedAsk   endedAction = "ask"   // the conductor
	endedCount endedAction = "count" // what the guest holds here, and nothing for the migration
)

// endedRow is one row of the table. An empty set stands for any value.
type endedRow struct {
	kept      []keptWord
	conductor []conductorWord
	answers   []answerWord
	then      endedAction
	why       string
}

// endedTable is looked through from the top; the first row that matches counts, and the last
// matches everything.
var endedTable = []endedRow{
	{kept: []keptWord{keptNothing},
		then: endedOver, why: "both consumers are written"},
	{kept: []keptWord{keptUnknown},
		then: endedRest, why: "Placement does not answer"},
	{conductor: []conductorWord{conductorHeard},
		then: endedRest, why: "the conductor works on it"},
	{conductor: []conductorWord{conductorQuiet},
		then: endedTell, why: "the conductor is silent, and has not given up yet what Placement counts for the move"},
	{answers: []answerWord{answerUnasked},
		then: endedAsk, why: "the conductor may be at work elsewhere"},
	{answers: []answerWord{answerGiven},
		then: endedTell, why: "the conductor answers, and has not given up yet what Placement counts for the move"},
	{then: endedCount, why: "the conductor is silent for too long"},
}

func decideEnded(s endedState) (endedAction, string) {
	i := slices.IndexFunc(endedTable, func(r endedRow) bool {
		return in(r.kept, s.kept) && in(r.conductor, s.conductor) && in(r.answers, s.answers)
	})
	return endedTable[i].then, endedTable[i].why
}

func endedRef(e claims.Ended) migration.Ref {
	return migration.Ref{Migration: e.Migration, Instance: e.Instance, Attempt: e.Attempt}
}

// conductorWord is how long the conductor of an attempt was not heard of.
func (h *Host) conductorWord(ref migration.Ref) conductorWord {
	switch silent := h.silentFor(ref); {
	case silent >= h.o.ConductorSilence:
		return conductorSilent
	case silent >= h.o.ConductorSilence/5: // arbitrary: a verb may take its minutes
		return conductorQuiet
	}
	return conductorHeard
}

// lookAtEnded does what the table says about each, forgets what verbs of such moves remember
// still, and gives those that are not known to be over.
func (h *Host) lookAtEnded(ctx context.Context) []migration.Ref {
	moved, asks := h.o.Placement.(Moved)
	if !asks {
		return nil
	}
	if gone, err := h.tracker.ForgetEnded(ctx); err != nil && ctx.Err() == nil {
		h.log.Warn("what verbs of moves that are over remember is kept still", "error", err)
	} else if len(gone) > 0 {
		h.log.Info("forgot what verbs of moves that are over remembered", "migrations", gone)
	}
	var open []migration.Ref
	all := h.tracker.Ended()
	for _, e := range all {
		ref := endedRef(e)
		if h.endedOver(e.Migration) {
			continue
		}
		open = append(open, ref)
		// An operator's word does it by itself.
		if _, word, err := memory.Recall[settling](h.memory, settled(ref), memorySettle); ctx.Err() != nil || err != nil || word || !h.timeToAsk(ref) {
			continue
		}
		if err := h.lookAtEndedOne(ctx, moved, e); err != nil && ctx.Err() == nil {
			h.log.Warn("what is counted for a move that nobody conducts stays", "instance", e.Instance, "migration", e.Migration, "conductor", e.Conductor, "error", err)
		}
	}
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	for id := range h.sides.ended {
		if !slices.ContainsFunc(all, func(e claims.Ended) bool { return e.Migration == id }) {
			delete(h.sides.ended, id)
		}
	}
	return open
}

func (h *Host) lookAtEndedOne(ctx context.Context, moved Moved, e claims.Ended) error {
	ref := endedRef(e)
	s := endedState{kept: h.keptFor(ctx, moved, e), conductor: h.conductorWord(ref), answers: answerUnasked}
	h.noteEnded(e.Migration, s.kept)
	side := pendingArrival{ref: ref, source: e.Other, conductor: e.Conductor}
	for range len(endedTable) {
		then, why := decideEnded(s)
		switch then {
		case endedRest:
			return nil
		case endedOver:
			h.awaitSide(side, "", false)
			return nil
		case endedTell:
			left := max(h.o.ConductorSilence-h.silentFor(ref), 0).Round(time.Second)
			h.awaitSide(side, fmt.Sprintf("host %s: %s; in %s this host does, if it does not answer then", e.Conductor, why, left), false)
			return nil
		case endedAsk:
			s.answers = answerNone
			if h.answersOf(ctx, apartMove{id: e.Migration, instance: e.Instance, conductor: e.Conductor}) {
				s.answers = answerGiven
			}
			if ctx.Err() != nil {
				return nil // this host's own end is no silence of the conductor
			}
		case endedCount:
			h.log.Warn("count a guest by itself, since the conductor of its move is silent", "instance", e.Instance, "migration", e.Migration, "conductor", e.Conductor)
			if err := h.countEnded(ctx, moved, e); err != nil {
				return err
			}
			h.awaitSide(side, "", false)
			return nil
		}
	}
	return nil
}

func (h *Host) keptFor(ctx context.Context, moved Moved, e claims.Ended) keptWord {
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	kept, err := moved.Kept(ctx, e.Migration)
	if e.Old != nil && err == nil && kept {
		kept, err = moved.Swapped(ctx, e.Instance, e.Migration)
	}
	switch {
	case err != nil:
		return keptUnknown
	case kept:
		return keptHalf
	}
	return keptNothing
}

// countEnded writes what the conductor would have written last. A guest that has gone on from
// here, or was deleted, is not this host's to count.
func (h *Host) countEnded(ctx context.Context, moved Moved, e claims.Ended) error {
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	err := error(nil)
	switch inst, claim, bound := h.toCount(endedRef(e)); {
	case e.Old != nil:
		err = moved.SettleBack(ctx, e.Instance, e.Migration, *e.Old)
	case inst.Token.State != claims.TokenHere || inst.Token.Migration != e.Migration:
		err = moved.SettleNobody(ctx, e.Instance, e.Migration)
	case !bound:
		err = fault.New(fault.Unavailable, "instance %s has no claim of its own on %s yet", e.Instance, h.o.Name)
	default:
		err = moved.SettleHere(ctx, allocation.Of(inst, claim), e.Migration)
	}
	if err == nil {
		h.noteEnded(e.Migration, keptNothing)
	}
	return err
}

// noteEnded keeps what Placement has said of a move that is over here. It is asked again after
// a start of the agent.
func (h *Host) noteEnded(id string, kept keptWord) {
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	h.sides.ended[id] = kept
}

func (h *Host) endedOver(id string) bool {
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	return h.sides.ended[id] == keptNothing
}

// Uncounted gives the moves that are over here, and whose consumers Placement was seen to have
// as they are amid the move: they are their conductor's to write, or this host's in its place.
func (h *Host) Uncounted() []claims.Ended {
	all := h.tracker.Ended()
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	return slices.DeleteFunc(all, func(e claims.Ended) bool { return h.sides.ended[e.Migration] != keptHalf })
}

// settleEnded takes an operator's word on a move that is over here, and of which Placement
// holds something still: it does the conductor's last step at once. false for none.
func (h *Host) settleEnded(ctx context.Context, id string, s migration.Settlement) (Waiting, bool, error) {
	moved, asks := h.o.Placement.(Moved)
	all := h.tracker.Ended()
	i := slices.IndexFunc(all, func(e claims.Ended) bool { return e.Migration == id })
	if i < 0 || !asks {
		return Waiting{}, false, nil
	}
	e := all[i]
	ref := endedRef(e)
	if _, word, err := memory.Recall[settling](h.memory, settled(ref), memorySettle); word || err != nil {
		return Waiting{}, false, err
	}
	switch h.keptFor(ctx, moved, e) {
	case keptNothing:
		h.noteEnded(id, keptNothing)
		return Waiting{}, false, nil
	case keptUnknown:
		if slices.Contains(s.Gone, migration.GonePlacement) {
			return Waiting{}, false, nil
		}
		return Waiting{}, true, fault.New(fault.Unavailable, "all that is left of it is in Placement, which does not answer")
	}
	var no refusal
	if inst, _ := h.tracker.Instance(e.Instance); s.GuestIsAt != h.o.Name && inst.Token.State == claims.TokenHere && inst.Token.Migration == id {
		no.add(fault.Forbidden, fault.Reason{
			Code: "guest_is_here", Message: "the move is over on " + h.o.Name + ", which has the guest", Change: "say that it is at " + h.o.Name,
		})
	}
	if e.Old != nil && s.GuestIsAt == h.o.Name {
		no.add(fault.Forbidden, fault.Reason{
			Code: "never_came", Message: "nothing of the guest has come to " + h.o.Name, Change: "say that it is at " + e.Other,
		})
	}
	h.refuseConductor(ctx, &no, apartMove{id: id, instance: e.Instance, conductor: e.Conductor}, s)
	if err := no.err(""); err != nil {
		return Waiting{}, true, err
	}
	if err := h.noteWord(ctx, ref, s, ""); err != nil {
		return Waiting{}, true, err
	}
	w := Waiting{
		Migration: id, Instance: e.Instance, Attempt: e.Attempt, Source: cmp.Or(e.Other, s.GuestIsAt), Conductor: e.Conductor, Since: h.rt.Now().UTC(),
	}
	return w, true, h.countEnded(ctx, moved, e)
}
