package host

import (
	"context"
	"maps"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/migration"
	"berth/migration/operation"
)

// FollowArrivals binds or ends the claims of foreign migrations, and lets go of
// guests that left by one, until ctx ends.
func (h *Host) FollowArrivals(ctx context.Context) error {
	for ctx.Err() == nil {
		if h.o.Mode() != ModeObserve {
			h.followArrivals(ctx)
		}
		h.o.Round("arrivals")
		_ = h.rt.Sleep(ctx, h.o.Agree/4) // its end is looked at in the loop
	}
	return nil
}

func (h *Host) followArrivals(ctx context.Context) {
	here := map[string]bool{}
	for _, c := range h.tracker.List() {
		o := c.Owner
		if c.BoundFrom != nil {
			o = *c.BoundFrom // until all of its arrival is done
		}
		if !h.Foreign(o) {
			continue
		}
		here[o.Instance] = true
		if o.Kind != claims.KindLiveMigration {
			continue // its tool says when it has come
		}
		h.note(ctx, o.Instance, h.FollowArrival(ctx, attempts.RefOf(o)))
	}
	h.followCold(ctx)
	h.mu.Lock()
	maps.DeleteFunc(h.unsettled, func(instance string, _ error) bool { return !here[instance] })
	h.mu.Unlock()
	for _, inst := range h.tracker.Instances() {
		if inst.Token.State == claims.TokenSurrendered {
			if err := h.followLeft(ctx, inst); err != nil && ctx.Err() == nil {
				h.log.Warn("could not follow a guest that has left", "instance", inst.UUID, "error", err)
			}
		}
	}
}

// note keeps, and logs once, why a foreign arrival cannot be settled.
func (h *Host) note(ctx context.Context, instance string, err error) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	was := h.unsettled[instance]
	if err == nil {
		delete(h.unsettled, instance)
	} else {
		h.unsettled[instance] = err
	}
	h.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		h.log.Warn("a guest that arrived by a foreign migration is not settled yet", "instance", instance, "error", err)
	}
}

// Unsettled gives why foreign arrivals are not settled, and why instances wait that the start has
// left for later, by instance. Those that are still on their way are not among them.
func (h *Host) Unsettled() map[string]error {
	out := h.later.all()
	h.mu.Lock()
	defer h.mu.Unlock()
	for instance, err := range h.unsettled {
		out[instance] = err
	}
	return out
}

// FollowArrival looks at one foreign claim:
//
//	domain                          action
//	none, or shut off               wait; once its time is over, or a domain was seen, and two reads agree: end the claim
//	paused (migrating), post-copy   wait: libvirt brings it, or takes it away
//	any other active                it has arrived: take the token, define, bind
//
// A claim that is bound is finished: see finishArrival.
//
// Arrived means that libvirt has handed over by its own rules, not that the guest
// is this host's. The token comes by its giver's surrender only; while no giver
// gives it, or one still has the guest's memory, the guest goes on, its claim
// stays, and why is kept for status. nil when there is nothing to complain of.
func (h *Host) FollowArrival(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	rec, found, err := h.foreignRecord(h.attempts.Owner(ref))
	if err != nil || !found {
		return err
	}
	if bound, ok := h.attempts.BoundBy(ref); ok {
		return h.finishArrival(ctx, ref, bound)
	}
	claim, ok := h.tracker.ByOwner(h.attempts.Owner(ref))
	if !ok {
		return nil
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case exists && d.Halfway():
		h.see(ref, true)
		return nil
	case exists && d.Active():
		h.see(ref, true)
		return h.bindArrival(ctx, ref, claim, rec, d)
	}
	if inst, known := h.tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		// It is this host's already, and has ended since, as any guest can.
		if exists {
			return h.bindArrival(ctx, ref, claim, rec, d)
		}
	}
	if !h.seen(ref) && !rec.over(h.rt.Boot()) {
		return nil
	}
	if err := h.rt.Sleep(ctx, h.o.Agree/4); err != nil {
		return err
	}
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == ref.Instance && d.Active() }) {
		return err
	}
	h.log.Info("a foreign migration brought nothing: its claim ends", "instance", ref.Instance, "migration", ref.Migration)
	return h.endForeign(ctx, ref)
}

// see remembers that a domain was there for a claim, for as long as this process
// lives: its end is then the arrival's.
func (h *Host) see(ref migration.Ref, there bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if there {
		h.arrivals[ref.Migration] = true
	} else {
		delete(h.arrivals, ref.Migration)
	}
}

func (h *Host) seen(ref migration.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.arrivals[ref.Migration]
}

// endForeign ends the claim of a foreign migration for which nothing can come any
// more: from its tombstone on the guard lets nothing of it in.
func (h *Host) endForeign(ctx context.Context, ref migration.Ref) error {
	for _, step := range []string{operation.StepClaim, operation.StepPreLiveMigration} {
		if err := h.tracker.Bury(ctx, memory.At(ref, step)); err != nil {
			return err
		}
	}
	if err := h.undoPreparation(ctx, ref); err != nil {
		return err
	}
	if err := h.tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	h.see(ref, false)
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// bindArrival makes a guest that has arrived this host's. Each step is safe to
// repeat.
func (h *Host) bindArrival(ctx context.Context, ref migration.Ref, claim claims.Claim, rec foreignArrival, d driver.Domain) error {
	inst, err := h.takeOwnership(ctx, ref, rec, d)
	if err != nil {
		return err
	}
	// The definition first: a bound claim is one of a defined domain. libvirt's
	// hook changes the live document only.
	what := driver.Migratable
	if d.Persistent {
		what = driver.Persistent
	}
	text, err := h.driver.XML(ctx, ref.Instance, what)
	if err != nil {
		return err
	}
	inst.Token.Epoch-- // documents writes the next one, which is here already
	if text, err = h.placed(ref, text, inst, claim); err != nil {
		return err
	}
	if err := h.driver.Define(ctx, text); err != nil {
		return err
	}
	bound, err := h.tracker.Bind(ctx, claim.Owner)
	if err != nil {
		return err
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	h.log.Info("a guest that came by a foreign migration is this host's", "instance", ref.Instance, "name", d.Name, "migration", ref.Migration, "claim", bound.ID)
	return h.finishArrival(ctx, ref, bound)
}

// finishArrival does what comes after the claim is bound. The guest runs and is
// this host's, so nothing of this fails it (law 6): what fails is asked for again
// by the next look, also after a restart, since the arrival's record goes last.
func (h *Host) finishArrival(ctx context.Context, ref migration.Ref, bound claims.Claim) error {
	h.see(ref, false)
	if _, moving := h.attempts.Moving(ref.Instance); moving {
		return nil // that move writes its allocation
	}
	if err := h.driver.SetAutostart(ctx, ref.Instance, false); err != nil {
		return err
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if known && inst.Token.State == claims.TokenHere && h.o.Fleet != nil {
		if err := h.o.Fleet.TakeAllocation(ctx, allocationOf(inst, bound)); err != nil {
			return wrap(err, "guest %s has arrived on %s, and its allocation could not be written", inst.Name, h.o.Name)
		}
	}
	return h.finishForeign(ctx, ref)
}

// takeOwnership brings the token here: from the host that holds it, or anew where
// every host has said that none does.
func (h *Host) takeOwnership(ctx context.Context, ref migration.Ref, rec foreignArrival, d driver.Domain) (claims.Instance, error) {
	if inst, known := h.tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		return inst, nil
	}
	guest := rec.Guest
	guest.Name = d.Name
	var c migration.Commit
	given := false
	if h.o.Fleet != nil {
		var err error
		if c, given, err = h.o.Fleet.TakeToken(ctx, ref, rec.Source); err != nil {
			return claims.Instance{}, wrap(err, "guest %s runs on %s, and its ownership token does not come", d.Name, h.o.Name)
		}
	}
	if !given {
		return h.tracker.Own(ctx, guest)
	}
	accepted := migration.Commit{Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To}
	guest.Token = claims.Token{}
	if err := h.tracker.AcceptToken(ctx, accepted, guest); err != nil {
		return claims.Instance{}, err
	}
	inst, _ := h.tracker.Instance(ref.Instance)
	return inst, nil
}
