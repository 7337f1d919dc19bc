package host

import (
	"context"
	"fmt"
	"slices"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/vanished"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// Surrender gives the token of a guest that left by a migration which nobody here
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
func (h *Host) Surrender(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	surrender := h.surrender
	if ref.Step == hooks.FinishResize || ref.Step == hooks.FinishRevertResize {
		surrender = h.surrenderedCold // a tool moves it while it is off
	}
	c, err := surrender(ctx, ref, to)
	return c, wrap(err, "surrender instance %s to %s", ref.Instance, to)
}

func (h *Host) surrender(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	none := migration.Commit{}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	if c, ok := h.tracker.Committed(ref.Migration); !ok || c.Instance != ref.Instance || c.To != to {
		if err := h.hasLeftUnseen(ctx, ref); err != nil {
			return none, err
		}
		if err := givenElsewhere(h, ref, to); err != nil {
			return none, err
		}
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	// First what will be cleaned up, then what cannot be taken back.
	if _, found, err := memory.Recall[string](h.memory, ref, memoryLeft); err != nil {
		return none, err
	} else if !found {
		if err := h.memory.Remember(ctx, ref, memoryLeft, to); err != nil {
			return none, err
		}
	}
	// By its step: hookKeep leaves a tombstone there.
	c, err := h.tracker.Surrender(ctx, memory.At(ref, memoryLeft), to)
	if err != nil {
		return none, err
	}
	h.log.Info("the token of a guest that left by a foreign migration follows it", "instance", ref.Instance, "migration", ref.Migration, "to", to)
	// Best effort, both: followLeft comes back to them.
	if err := h.dropLeft(ctx, ref.Instance); err != nil {
		h.log.Warn("the record of a guest that has left is still kept", "instance", ref.Instance, "error", err)
	}
	if err := h.tracker.Release(ctx, claims.Owner{Instance: ref.Instance, Kind: claims.KindInstance}); err != nil {
		h.log.Warn("the claim of a guest that has left is still held", "instance", ref.Instance, "error", err)
	}
	return migration.Commit{
		Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To, Power: migration.PowerRunning,
	}, nil
}

// hasLeftUnseen is nil when a guest of this host has left, though nobody here
// moved it.
func (h *Host) hasLeftUnseen(ctx context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "it is not in the ledger of %s", h.o.Name)
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	if err := h.still(ref.Instance); err != nil {
		return err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err == nil && !exists {
		if err := h.rt.Sleep(ctx, h.o.Agree/4); err != nil {
			return err
		}
		d, exists, err = h.domain(ctx, ref.Instance)
	}
	switch {
	case err != nil:
		return err
	case !exists:
		return h.absent(ctx, inst)
	case d.HasLeft() || !d.Active() && h.LeftByHand(ref.Instance):
		return h.witness.Off(d.UUID, d.Name, nil)
	case d.Active() && (d.Reason == driver.ReasonMigrating || d.InPostCopy()):
		return fault.New(fault.Busy, "its stream is not over: %s (%s)", d.State, d.Reason)
	case d.Active():
		return fault.Refuse(fault.InDoubt, "", fault.Reason{
			Code: "runs_twice", Message: fmt.Sprintf("guest %s is active on %s too: %s (%s), and the token is there", d.Name, h.o.Name, d.State, d.Reason),
			Change: "decide which copy is the guest, and end the other (virsh destroy DOMAIN) at once",
		})
	}
	return fault.Refuse(fault.InDoubt, "", fault.Reason{
		Code: "left_unseen", Message: fmt.Sprintf("guest %s is %s (%s) on %s, which does not say that it left", d.Name, d.State, d.Reason, h.o.Name),
		Change: "if it did leave, undefine what is left of it: virsh undefine " + d.Name + " on " + h.o.Name,
	})
}

// absent is nil where an instance that libvirt does not list has neither a definition nor a
// process here. A definition that libvirtd did not load is no departure, whatever a peer says.
func (h *Host) absent(ctx context.Context, inst claims.Instance) error {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, i := range h.tracker.Instances() {
		known = append(known, i.Name)
	}
	return h.vanished.Absent(ctx, vanished.Instance{UUID: inst.UUID, Name: inst.Name}, all, known)
}

// followLeft forgets a guest that left by a foreign migration once its definition
// is gone. Until then its record keeps it from being started here.
func (h *Host) followLeft(ctx context.Context, inst claims.Instance) error {
	ref := migration.Ref{Migration: inst.Token.Migration, Instance: inst.UUID, Attempt: 1}
	if _, left, err := memory.Recall[string](h.memory, ref, memoryLeft); err != nil || !left {
		return err
	}
	unlock, err := h.memory.Lock(ctx, inst.UUID)
	if err != nil {
		return err
	}
	defer unlock()
	if now, known := h.tracker.Instance(inst.UUID); !known || now.Token != inst.Token {
		return nil
	}
	if err := h.tracker.Release(ctx, claims.Owner{Instance: inst.UUID, Kind: claims.KindInstance}); err != nil {
		return err
	}
	if _, exists, err := h.domain(ctx, inst.UUID); err != nil || exists {
		return err
	}
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == inst.UUID }) {
		return err
	}
	if err := h.dropLeft(ctx, inst.UUID); err != nil {
		return err
	}
	if err := h.tracker.Forget(ctx, inst.UUID); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// leftBehind reports whether a domain is what a foreign migration left here of an instance
// whose token went with it to that host: the ledger's word, not the other host's.
func (h *Host) leftBehind(d driver.Domain, holder string) (bool, error) {
	inst, known := h.tracker.Instance(d.UUID)
	if !known || holder == "" || d.Active() || inst.Token.State != claims.TokenSurrendered || inst.Token.Holder != holder {
		return false, nil
	}
	_, left, err := memory.Recall[string](h.memory, migration.Ref{Migration: inst.Token.Migration, Instance: d.UUID, Attempt: 1}, memoryLeft)
	return left, err
}

// mayReplaceLeft refuses to have such a definition replaced while something is saved of it, or
// a process of it lives. Its disks are not asked about: the instance may use them where it is.
func (h *Host) mayReplaceLeft(ctx context.Context, no *refusal, d driver.Domain) error {
	if err := no.take(h.nothingSaved(ctx, d)); err != nil {
		return err
	}
	return no.take(h.witness.Off(d.UUID, d.Name, nil))
}
