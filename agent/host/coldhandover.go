package host

import (
	"cmp"
	"context"
	"errors"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// A guest that is off leaves by one record and arrives by one. Its source decides by its
// own facts alone:
//
//	powered off by     its domain        handing it over
//	this attempt
//	no, or undone      any               refused
//	yes                active            refused: its user, or an undo, has started it
//	yes                off               surrendered; refused when a disk that was shipped, or
//	                                     is held in a snapshot, has been written to since, and
//	                                     where it is not proven off (package processes)
//	yes                gone              refused; going back to its source, with no process of it
//	                                     here: surrendered
//	refused (keep)     any               refused for good

// handOver does operation.HandOver.
func (h *Host) handOver(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	none := migration.Commit{}
	back, by := h.attempts.Came(ref), ref
	if back {
		by.Attempt = h.tracker.Accepted(ref.Migration) // of whose claim the context is until it is bound
	}
	mc, ok := h.attempts.ContextOf(by)
	if c, left := h.tracker.Committed(ref.Migration); left && c.Attempt == ref.Attempt && c.Instance == ref.Instance && c.To == to {
		if err := h.letGo(ctx, ref); err != nil {
			return none, err
		}
		return h.sealed(mc, c)
	}
	if !ok || mc.Instance != ref.Instance {
		return none, fault.New(fault.Forbidden, "nothing of migration %s is recorded on %s", ref.Migration, h.o.Name)
	}
	if peer := otherSide(mc, back); to != peer {
		return none, fault.New(fault.Forbidden, "the guest goes to %s, by what is recorded on %s", peer, h.o.Name)
	}
	rec, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return none, err
	}
	if !found || !rec.Off || rec.On {
		return none, fault.New(fault.Forbidden, "the guest was not powered off by attempt %d", ref.Attempt)
	}
	if err := h.memory.Late(ref, operation.StepPowerOff); err != nil {
		return none, err
	}
	if err := h.isOff(ctx, ref, back); err != nil {
		return none, err
	}
	if err := h.dock.AsShipped(ref); err != nil {
		return none, err
	}
	if err := h.heldStill(ref); err != nil {
		return none, err
	}
	if err := h.maySeal(mc, ref, to); err != nil {
		return none, err
	}
	inst, _ := h.tracker.Instance(ref.Instance)
	if err := h.confirmed(ref.Instance, inst.Name); err != nil {
		return none, err
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	if back {
		if err := h.giveBack(ctx, ref); err != nil {
			return none, err
		}
	}
	c, err := h.tracker.ReleaseHeldOwnership(ctx, memory.At(ref, ""), claims.KindResize, to, rec.Power)
	if err != nil {
		return none, err
	}
	h.log.Info("the token of a guest that is off leaves", "instance", ref.Instance, "migration", ref.Migration, "to", to, "epoch", c.Epoch)
	if err := h.letGo(ctx, ref); err != nil {
		return none, err
	}
	return h.sealed(mc, c)
}

// otherSide is the host to which a guest goes by a migration, or back.
func otherSide(mc claims.MigrationContext, back bool) string {
	if back {
		return mc.Source
	}
	return mc.Destination
}

// isOff is nil when nothing of the guest runs here.
func (h *Host) isOff(ctx context.Context, ref migration.Ref, back bool) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case !exists && back:
		return h.witness.Off(ref.Instance, ref.Instance, nil)
	case !exists:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "definition_gone", Message: "the guest's definition was removed from " + h.o.Name + " while it was off", Change: "define it again, and move it anew",
		})
	case d.Active():
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "started_again", Message: "guest " + d.Name + " was powered off, and is " + string(d.State) + " again (" + string(d.Reason) + ")",
			Change: "leave it off until its move is over",
		})
	}
	if err := h.stays(d); err != nil {
		return err
	}
	if err := h.nothingSaved(ctx, d); err != nil {
		return err
	}
	return h.provenOff(ctx, d)
}

// giveBack makes the host ready to give a guest back that came by this migration: what
// it has of the host is its own, whether it could be started here or not.
func (h *Host) giveBack(ctx context.Context, ref migration.Ref) error {
	came := ref
	came.Attempt = h.tracker.Accepted(ref.Migration)
	if c, ok := h.tracker.ByOwner(attempts.OwnerOf(came, claims.KindResize)); ok && c.State == claims.Arriving {
		if _, err := h.tracker.Bind(ctx, c.Owner); err != nil {
			return err
		}
	}
	return nil
}

// letGo ends what of a guest must be over before it may start elsewhere, now that its
// token has left: a copy that was started meanwhile, and larger files in the place of
// disks that both hosts share and that it had before. Safe to repeat. Nobody is told of
// the token before.
func (h *Host) letGo(ctx context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known || inst.Token.State != claims.TokenSurrendered || inst.Token.Migration != ref.Migration {
		return nil // all that is over, and a guest that is here now came by another move
	}
	if err := h.endLeft(ctx, ref); err != nil {
		return err
	}
	if !h.attempts.Came(ref) {
		return nil
	}
	rec, at, err := memory.RecallEarlier[coldPreparation](h.memory, ref, memoryPreparedCold)
	if err != nil {
		return err
	}
	return h.putBackGrown(ctx, at, &rec)
}

// letGoCold is letGo for whoever asks what became of an attempt by which a guest was
// handed over while it was off: its conductor may have died before it was done.
func (h *Host) letGoCold(ctx context.Context, ref migration.Ref) error {
	if _, cold, err := memory.Recall[poweredOff](h.memory, ref, memoryPower); err != nil || !cold {
		return err
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	return h.letGo(ctx, ref)
}

// endLeft ends a domain that somebody started between the look and the record: its token
// has left, so it is a second copy (law 6's one exception). Nobody starts the guest
// elsewhere before this has returned.
func (h *Host) endLeft(ctx context.Context, ref migration.Ref) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil || !exists || !d.Active() {
		return err
	}
	h.log.Error("end a copy whose token has left", "instance", ref.Instance, "migration", ref.Migration, "state", d.State, "reason", d.Reason)
	if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	if d, exists, err = h.domain(ctx, ref.Instance); err == nil && exists && d.Active() {
		return fault.New(fault.Busy, "a copy of the guest is still %s here", d.State)
	}
	return cmp.Or(err, h.witness.Off(ref.Instance, d.Name, nil))
}

// keepGuest does operation.KeepGuest.
func (h *Host) keepGuest(ctx context.Context, ref migration.Ref) error {
	// Before its turn: a hand-over under way either was first, or never happens.
	err := h.tracker.RefuseCommit(ctx, memory.At(ref, ""))
	if errors.Is(err, fault.NotFound) {
		return nil // the guest was deleted: there is nothing to hand over
	}
	return err
}

// acceptProven does operation.AcceptHanded.
func (h *Host) acceptProven(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	if err := h.proven(ref, c); err != nil {
		return err
	}
	return h.acceptHanded(ctx, ref, c)
}

// acceptHanded is for a commit that the host itself has given which the guest left, or
// that was seen to be its own (proven).
func (h *Host) acceptHanded(ctx context.Context, ref migration.Ref, c migration.Commit) error {
	if c.Migration != ref.Migration || c.Attempt != ref.Attempt || c.Instance != ref.Instance {
		return fault.New(fault.Forbidden, "the commit is of attempt %d of migration %s for %s", c.Attempt, c.Migration, c.Instance)
	}
	if h.attempts.Accepted(ref) || h.attempts.GoneOn(ref) {
		return nil
	}
	inst, err := h.comes(ctx, ref)
	if err != nil {
		return err
	}
	return h.tracker.AcceptToken(ctx, c, inst)
}

// comes is the record of a guest whose token comes: as its preparation has it; of one
// that comes back, as it was kept here.
func (h *Host) comes(ctx context.Context, ref migration.Ref) (claims.Instance, error) {
	rec, found, err := memory.Recall[coldPreparation](h.memory, ref, memoryPreparedCold)
	if err != nil {
		return claims.Instance{}, err
	}
	if found {
		return rec.Instance, nil
	}
	if inst, known := h.tracker.Instance(ref.Instance); known && inst.Token.Migration == ref.Migration {
		return inst, nil
	}
	// The claim without its preparation, as after a lost record: the commit is the proof
	// that counts.
	claim, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
	if !ok || claim.Context == nil {
		return claims.Instance{}, fault.New(fault.Forbidden, "no claim here names migration %s, attempt %d", ref.Migration, ref.Attempt)
	}
	return claims.Instance{UUID: ref.Instance, Name: ref.Instance, Flavor: claim.Context.NewFlavor}, nil
}
