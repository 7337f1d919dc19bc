package external

import (
	"context"
	"slices"

	"berth/agent/host/allocation"
	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// FollowArrivals binds or ends the claims of foreign migrations, and lets go of
// guests that left by one, until ctx ends.
func (x *Migrations) FollowArrivals(ctx context.Context) error {
	for ctx.Err() == nil {
		if x.o.Managing("") == nil {
			x.followArrivals(ctx)
		}
		x.o.Round("arrivals")
		_ = x.o.Runtime.Sleep(ctx, x.o.Agree/4) // its end is looked at in the loop
	}
	return nil
}

func (x *Migrations) followArrivals(ctx context.Context) {
	here := map[string]bool{}
	for _, c := range x.o.Tracker.List() {
		o := c.Owner
		if c.BoundFrom != nil {
			o = *c.BoundFrom // until all of its arrival is done
		}
		if !x.Foreign(o) {
			continue
		}
		here[o.Instance] = true
		if o.Kind != claims.KindLiveMigration {
			continue // its tool says when it has come
		}
		x.progress.note(ctx, o.Instance, x.FollowArrival(ctx, attempts.RefOf(o)))
	}
	x.followCold(ctx)
	for _, inst := range x.o.Tracker.Instances() {
		if inst.Token.State != claims.TokenSurrendered {
			continue
		}
		if err := x.followLeft(ctx, inst); err != nil {
			here[inst.UUID] = true
			x.progress.note(ctx, inst.UUID, fault.Wrap(err, "follow instance %s, which has left", inst.UUID))
		}
	}
	x.progress.keep(here)
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
func (x *Migrations) FollowArrival(ctx context.Context, ref migration.Ref) error {
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	rec, found, err := x.foreignRecord(x.o.Attempts.Owner(ref))
	if err != nil || !found {
		return err
	}
	if bound, ok := x.o.Attempts.BoundBy(ref); ok {
		return x.finishArrival(ctx, ref, bound)
	}
	claim, ok := x.o.Tracker.ByOwner(x.o.Attempts.Owner(ref))
	if !ok {
		return nil
	}
	d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance)
	switch {
	case err != nil:
		return err
	case exists && d.Halfway():
		x.progress.see(ref, true)
		return nil
	case exists && d.Active():
		x.progress.see(ref, true)
		return x.bindArrival(ctx, ref, claim, rec, d)
	}
	if inst, known := x.o.Tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		// It is this host's already, and has ended since, as any guest can.
		if exists {
			return x.bindArrival(ctx, ref, claim, rec, d)
		}
	}
	if !x.progress.seen(ref) && !rec.over(x.o.Runtime.Boot()) {
		return nil
	}
	if err := x.o.Runtime.Sleep(ctx, x.o.Agree/4); err != nil {
		return err
	}
	all, err := x.o.Driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == ref.Instance && d.Active() }) {
		return err
	}
	x.o.Logger.Info("a foreign migration brought nothing: its claim ends", "instance", ref.Instance, "migration", ref.Migration)
	return x.endForeign(ctx, ref)
}

// endForeign ends the claim of a foreign migration for which nothing can come any
// more: from its tombstone on the guard lets nothing of it in.
func (x *Migrations) endForeign(ctx context.Context, ref migration.Ref) error {
	for _, step := range []string{operation.StepClaim, operation.StepPreLiveMigration} {
		if err := x.o.Tracker.WriteTombstone(ctx, memory.At(ref, step)); err != nil {
			return err
		}
	}
	if err := x.o.Arrivals.Undo(ctx, ref); err != nil {
		return err
	}
	if err := x.o.Tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
		return err
	}
	x.progress.see(ref, false)
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}

// bindArrival makes a guest that has arrived this host's. Each step is safe to
// repeat.
func (x *Migrations) bindArrival(ctx context.Context, ref migration.Ref, claim claims.Claim, rec foreignArrival, d driver.Domain) error {
	inst, err := x.takeOwnership(ctx, ref, rec, d)
	if err != nil {
		return err
	}
	// The definition first: a bound claim is one of a defined domain. libvirt's
	// hook changes the live document only.
	what := driver.Migratable
	if d.Persistent {
		what = driver.Persistent
	}
	text, err := x.o.Driver.XML(ctx, ref.Instance, what)
	if err != nil {
		return err
	}
	inst.Token.Epoch-- // documents writes the next one, which is here already
	if text, err = x.placed(ref, text, inst, claim); err != nil {
		return err
	}
	if err := x.o.Driver.Define(ctx, text); err != nil {
		return err
	}
	bound, err := x.o.Tracker.Bind(ctx, claim.Owner)
	if err != nil {
		return err
	}
	if x.o.Owners != nil {
		x.o.Owners.Kick()
	}
	x.o.Logger.Info("a guest that came by a foreign migration is this host's", "instance", ref.Instance, "name", d.Name, "migration", ref.Migration, "claim", bound.ID)
	return x.finishArrival(ctx, ref, bound)
}

// finishArrival does what comes after the claim is bound. The guest runs and is
// this host's, so nothing of this fails it (law 6): what fails is asked for again
// by the next look, also after a restart, since the arrival's record goes last.
func (x *Migrations) finishArrival(ctx context.Context, ref migration.Ref, bound claims.Claim) error {
	x.progress.see(ref, false)
	if _, moving := x.o.Attempts.Moving(ref.Instance); moving {
		return nil // that move writes its allocation
	}
	if err := x.o.Driver.SetAutostart(ctx, ref.Instance, false); err != nil {
		return err
	}
	inst, known := x.o.Tracker.Instance(ref.Instance)
	if known && inst.Token.State == claims.TokenHere && x.o.Fleet != nil {
		if err := x.o.Fleet.TakeAllocation(ctx, allocation.Of(inst, bound)); err != nil {
			return fault.Wrap(err, "guest %s has arrived on %s, and its allocation could not be written", inst.Name, x.o.Host)
		}
	}
	return x.finishForeign(ctx, ref)
}

// takeOwnership brings the token here: from the host that holds it, or anew where
// every host has said that none does.
func (x *Migrations) takeOwnership(ctx context.Context, ref migration.Ref, rec foreignArrival, d driver.Domain) (claims.Instance, error) {
	if inst, known := x.o.Tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		return inst, nil
	}
	guest := rec.Guest
	guest.Name = d.Name
	var c migration.Commit
	given := false
	if x.o.Fleet != nil {
		var err error
		if c, given, err = x.o.Fleet.TakeToken(ctx, ref, rec.Source); err != nil {
			return claims.Instance{}, fault.Wrap(err, "guest %s runs on %s, and its ownership token does not come", d.Name, x.o.Host)
		}
	}
	if !given {
		return x.o.Tracker.Own(ctx, guest)
	}
	accepted := migration.Commit{Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To}
	guest.Token = claims.Token{}
	if err := x.o.Tracker.AcceptToken(ctx, accepted, guest); err != nil {
		return claims.Instance{}, err
	}
	inst, _ := x.o.Tracker.Instance(ref.Instance)
	return inst, nil
}
