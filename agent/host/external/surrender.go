package external

import (
	"context"
	"fmt"
	"slices"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// ReleaseOwnership gives the token of a guest that left by a migration which nobody here
// conducts to the host where it runs now. The rows, the first that holds counts:
//
//	ledger                              domain               answer
//	surrendered to it by this migration any                  the same commit again
//	not known                           any                  not found: it is not this host's
//	token elsewhere                     any                  refused
//	moving by another migration         any                  busy
//	left, and a tool has named another  any                  refused
//	host for it here
//	token here                          active               busy while migrating or paused by it, else refused:
//	                                                         the guest would run twice, and who is right is a person's word
//	token here                          shut off (migrated), surrendered
//	                                    or once seen so
//	token here                          gone, two reads      surrendered, where its definition and its process
//	                                                         are gone too (package vanished); else in doubt
//	token here                          shut off otherwise   refused: nothing tells that it left
//
// Its claim goes with the token, its definition stays as its user left it; the
// record stays as long as that does, so that nobody starts it here.
func (x *Migrations) ReleaseOwnership(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	surrender := x.surrender
	if ref.Step == hooks.FinishResize || ref.Step == hooks.FinishRevertResize {
		surrender = x.surrenderedCold // a tool moves it while it is off
	}
	c, err := surrender(ctx, ref, to)
	return c, fault.Wrap(err, "surrender instance %s to %s", ref.Instance, to)
}

func (x *Migrations) surrender(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	none := migration.Commit{}
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	if c, ok := x.o.Tracker.Committed(ref.Migration); !ok || c.Instance != ref.Instance || c.To != to {
		if err := x.hasLeftUnseen(ctx, ref); err != nil {
			return none, err
		}
		if err := x.given.elsewhere(ref, to); err != nil {
			return none, err
		}
	}
	if x.o.Owners != nil {
		done, err := x.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	// First what will be cleaned up, then what cannot be taken back.
	if _, found, err := memory.Recall[string](x.o.Memory, ref, memoryLeft); err != nil {
		return none, err
	} else if !found {
		if err := x.o.Memory.Remember(ctx, ref, memoryLeft, to); err != nil {
			return none, err
		}
	}
	// By its step: hookKeep leaves a tombstone there.
	c, err := x.o.Tracker.ReleaseOwnership(ctx, memory.At(ref, memoryLeft), to)
	if err != nil {
		return none, err
	}
	x.o.Logger.Info("the token of a guest that left by a foreign migration follows it", "instance", ref.Instance, "migration", ref.Migration, "to", to)
	// Best effort, both: followLeft comes back to them.
	if err := x.o.Instances.DropLeft(ctx, ref.Instance); err != nil {
		x.o.Logger.Warn("the record of a guest that has left is still kept", "instance", ref.Instance, "error", err)
	}
	if err := x.o.Tracker.Release(ctx, claims.Owner{Instance: ref.Instance, Kind: claims.KindInstance}); err != nil {
		x.o.Logger.Warn("the claim of a guest that has left is still held", "instance", ref.Instance, "error", err)
	}
	return migration.Commit{
		Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To, Power: migration.PowerRunning,
	}, nil
}

// hasLeftUnseen is nil when a guest of this host has left, though nobody here
// moved it.
func (x *Migrations) hasLeftUnseen(ctx context.Context, ref migration.Ref) error {
	inst, known := x.o.Tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "it is not in the ledger of %s", x.o.Host)
	}
	if err := x.o.Instances.Here(inst); err != nil {
		return err
	}
	if err := x.o.Instances.Still(ref.Instance); err != nil {
		return err
	}
	d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance)
	if err == nil && !exists {
		if err := x.o.Runtime.Sleep(ctx, x.o.Agree/4); err != nil {
			return err
		}
		d, exists, err = driver.Find(ctx, x.o.Driver, ref.Instance)
	}
	switch {
	case err != nil:
		return err
	case !exists:
		return x.o.Instances.Absent(ctx, inst)
	case d.HasLeft() || !d.Active() && x.o.Instances.LeftByHand(ref.Instance):
		return x.o.Instances.ProcessGone(d)
	case d.Active() && (d.Reason == driver.ReasonMigrating || d.InPostCopy()):
		return fault.New(fault.Busy, "its stream is not over: %s (%s)", d.State, d.Reason)
	case d.Active():
		return fault.Refuse(fault.InDoubt, "", fault.Reason{
			Code: "runs_twice", Message: fmt.Sprintf("guest %s is active on %s too: %s (%s), and the token is there", d.Name, x.o.Host, d.State, d.Reason),
			Change: "decide which copy is the guest, and end the other (virsh destroy DOMAIN) at once",
		})
	}
	return fault.Refuse(fault.InDoubt, "", fault.Reason{
		Code: "left_unseen", Message: fmt.Sprintf("guest %s is %s (%s) on %s, which does not say that it left", d.Name, d.State, d.Reason, x.o.Host),
		Change: "if it did leave, undefine what is left of it: virsh undefine " + d.Name + " on " + x.o.Host,
	})
}

// followLeft forgets a guest that left by a foreign migration once its definition
// is gone. Until then its record keeps it from being started here.
func (x *Migrations) followLeft(ctx context.Context, inst claims.Instance) error {
	ref := migration.Ref{Migration: inst.Token.Migration, Instance: inst.UUID, Attempt: 1}
	if _, left, err := memory.Recall[string](x.o.Memory, ref, memoryLeft); err != nil || !left {
		return err
	}
	unlock, err := x.o.Memory.Lock(ctx, inst.UUID)
	if err != nil {
		return err
	}
	defer unlock()
	if now, known := x.o.Tracker.Instance(inst.UUID); !known || now.Token != inst.Token {
		return nil
	}
	if err := x.o.Tracker.Release(ctx, claims.Owner{Instance: inst.UUID, Kind: claims.KindInstance}); err != nil {
		return err
	}
	if _, exists, err := driver.Find(ctx, x.o.Driver, inst.UUID); err != nil || exists {
		return err
	}
	all, err := x.o.Driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == inst.UUID }) {
		return err
	}
	if err := x.o.Instances.Absent(ctx, inst); err != nil {
		return err
	}
	if err := x.o.Instances.DropLeft(ctx, inst.UUID); err != nil {
		return err
	}
	if err := x.o.Tracker.Forget(ctx, inst.UUID); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}

// LeftBehind reports whether a domain is what a foreign migration left here of an instance
// whose token went with it to that host: the ledger's word, not the other host's.
func (x *Migrations) LeftBehind(d driver.Domain, holder string) (bool, error) {
	inst, known := x.o.Tracker.Instance(d.UUID)
	if !known || holder == "" || d.Active() || inst.Token.State != claims.TokenSurrendered || inst.Token.Holder != holder {
		return false, nil
	}
	_, left, err := memory.Recall[string](x.o.Memory, migration.Ref{Migration: inst.Token.Migration, Instance: d.UUID, Attempt: 1}, memoryLeft)
	return left, err
}
