package host

import (
	"context"
	"time"

	"berth/agent/host/attempts"
	"berth/agent/host/evacuation"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// recordsPatience bounds one question to the fleet's records. Arbitrary: a store elects another
// leader within it.
const recordsPatience = 5 * time.Second

// evacuations are the guests of dead hosts that come here and are not finished, and those of
// which the answer is kept still.
func (h *Host) evacuations() []pendingArrival {
	var out []pendingArrival
	seen := map[string]bool{}
	for _, c := range h.tracker.List() {
		if c.Owner.Kind != claims.KindEvacuation || c.State != claims.Pending && c.State != claims.Arriving {
			continue
		}
		a := pendingArrival{ref: attempts.RefOf(c.Owner), claim: arrivalArriving, way: wayEvacuated}
		if c.State == claims.Pending {
			a.claim = arrivalPending
		}
		if c.Context != nil {
			a.source, a.power = c.Context.Source, c.Context.OldPowerState
		}
		seen[memory.Key(a.ref)] = true
		out = append(out, a)
	}
	// A claim whose lease was over while it was prepared, and a guest that was bound.
	for _, r := range h.tracker.Remembering(memoryEvacuation) {
		rec, found, err := memory.Recall[lost](h.memory, r, memoryEvacuation)
		if err != nil || !found {
			continue
		}
		ref := migration.Ref{Migration: r.Migration, Instance: rec.Instance.UUID, Attempt: r.Attempt}
		if !seen[memory.Key(ref)] {
			out = append(out, pendingArrival{ref: ref, source: rec.Source, claim: arrivalNone, way: wayEvacuated})
		}
	}
	return out
}

func (h *Host) evacuationState(a pendingArrival) evacuation.State {
	s := evacuation.State{
		Token: evacuation.Unowned, Claim: evacuation.None, Conductor: evacuation.Quiet, Records: evacuation.Unasked,
	}
	switch a.claim {
	case arrivalPending:
		s.Claim = evacuation.Pending
	case arrivalArriving:
		s.Claim = evacuation.Arriving
	}
	arrival := h.arrivalState(a)
	switch arrival.token {
	case arrivalOwned:
		s.Token = evacuation.Owned
	case arrivalMoved:
		s.Token = evacuation.Moved
	case arrivalOther:
		s.Token = evacuation.Other
	}
	switch {
	case arrival.heard:
		s.Conductor = evacuation.Heard
	case h.conductorWord(a.ref) == conductorSilent:
		s.Conductor = evacuation.Silent
	}
	return s
}

// lookAtEvacuation does what the table of package evacuation says about a guest that comes from
// a dead host. Its error is what the guest waits for.
func (h *Host) lookAtEvacuation(ctx context.Context, a pendingArrival) error {
	rec, found, err := memory.Recall[lost](h.memory, a.ref, memoryEvacuation)
	if err != nil {
		return err
	}
	if !found {
		// Claimed, and no more: the lease of that claim ends it.
		rec = lost{Source: a.source}
	}
	s := h.evacuationState(a)
	if rec.Finished {
		if s.Conductor == evacuation.Silent {
			return h.tracker.ForgetMigration(ctx, a.ref.Migration)
		}
		return nil
	}
	then, why := evacuation.Decide(s)
	if then == evacuation.Ask {
		if !h.timeToAsk(a.ref) {
			return nil
		}
		if s.Records, _, err = h.askRecords(ctx, a.ref, rec); err != nil {
			s.Records = evacuation.Unanswered
		}
		then, why = evacuation.Decide(s)
	}
	log := h.log.With("instance", a.ref.Instance, "migration", a.ref.Migration, "attempt", a.ref.Attempt, "source", a.source, "why", why)
	switch then {
	case evacuation.Wait:
		waits := why
		if s.Conductor == evacuation.Heard {
			waits = ""
		}
		h.awaitSide(a, waits, false)
		return nil
	case evacuation.Doubt, evacuation.Ask:
		if err != nil {
			return fault.New(fault.InDoubt, "%s: %w", why, err)
		}
		return fault.New(fault.InDoubt, "%s", why)
	case evacuation.Accept:
		log.Info("accept the token of a dead host's guest whose conductor is silent")
		if err = h.acceptGiven(ctx, a.ref); err == nil {
			_, err = operation.FinishEvacuation.Ask(ctx, unasked{h}, a.ref)
		}
	case evacuation.Finish:
		if h.waits(a.ref) && !h.timeToAsk(a.ref) {
			return nil // it could not be finished a moment ago
		}
		log.Info("finish an evacuation alone")
		_, err = operation.FinishEvacuation.Ask(ctx, unasked{h}, a.ref)
	case evacuation.GiveUp:
		log.Warn("give an evacuation up whose conductor is silent")
		if err = h.giveEvacuationUp(ctx, a.ref, rec); err == nil {
			err = h.endArrival(ctx, a)
		}
	case evacuation.RollBack:
		log.Info("take back what was prepared for a guest that does not come")
		err = h.endArrival(ctx, a)
	}
	if err == nil {
		h.awaitSide(a, "", false)
		if h.o.Owners != nil {
			h.o.Owners.Kick()
		}
	}
	return err
}

// giveEvacuationUp has the guest given to this host by this attempt never more.
func (h *Host) giveEvacuationUp(ctx context.Context, ref migration.Ref, rec lost) error {
	word, take, _, err := h.readRecords(ctx, ref, rec)
	if err != nil || word != evacuation.Open || take.Death == 0 {
		return err
	}
	ctx, cancel := h.rt.WithTimeout(ctx, recordsPatience)
	defer cancel()
	return wrap(h.o.Records.GiveUp(ctx, take), "give the evacuation up in the fleet's records")
}

// settleEvacuation takes an operator's word on a guest that is to come from a dead host. That
// the guest is here only the fleet's records can say; that it is not to come is his to say, and
// theirs to make sure of.
func (h *Host) settleEvacuation(ctx context.Context, a pendingArrival, s migration.Settlement) (Waiting, error) {
	done := Waiting{Migration: a.ref.Migration, Instance: a.ref.Instance, Attempt: a.ref.Attempt, Source: a.source, Since: h.rt.Now().UTC()}
	rec, found, err := memory.Recall[lost](h.memory, a.ref, memoryEvacuation)
	if err != nil {
		return Waiting{}, err
	}
	if !found {
		rec = lost{Source: a.source}
	}
	word := evacuation.Given
	if !h.attempts.Accepted(a.ref) {
		if word, _, err = h.askRecords(ctx, a.ref, rec); err != nil {
			return Waiting{}, err
		}
	}
	refuse := func(code, message, change string) (Waiting, error) {
		return Waiting{}, fault.Refuse(fault.Forbidden, "", fault.Reason{Code: code, Message: message, Change: change})
	}
	switch {
	case s.GuestIsAt == h.o.Name && word != evacuation.Given:
		return refuse("not_given", "the fleet's records do not give the guest to "+h.o.Name, "evacuate it again")
	case s.GuestIsAt != h.o.Name && word == evacuation.Given:
		return refuse("given_here", "the fleet's records have given the guest to "+h.o.Name, "say that it is at "+h.o.Name)
	case s.GuestIsAt != h.o.Name && s.GuestIsAt != a.source:
		return refuse("not_a_party", "the guest comes from "+a.source+" to "+h.o.Name, "name one of the two")
	}
	if err := h.noteWord(ctx, a.ref, s, ""); err != nil {
		return Waiting{}, err
	}
	if s.GuestIsAt == h.o.Name {
		if err := h.acceptGiven(ctx, a.ref); err != nil {
			return Waiting{}, err
		}
		_, err := operation.FinishEvacuation.Ask(ctx, unasked{h}, a.ref)
		return done, err
	}
	if err := h.giveEvacuationUp(ctx, a.ref, rec); err != nil {
		return Waiting{}, err
	}
	return done, h.endArrival(ctx, a)
}
