package host

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth/agent/host/memory"
	"berth/agent/witness"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// Settle joins ledger and hypervisor once, at start, before the agent says that
// it is ready. It heals what is provably stale and leaves alone what it does
// not know:
//
//	ledger                          hypervisor              action
//	claim of kind instance, pending no domain, no process   dropped: a creation that broke off
//	                                                        before it was defined, or that the folder
//	                                                        of definitions has no file of
//	claim of kind instance, pending no domain, a process or kept, and named (later.go)
//	                                a file not loaded
//	claim of kind instance, pending domain                  bound: a creation that was all but done
//	claim of kind instance, bound   no domain, two reads    released where a second witness says that it was undefined (package vanished)
//	claim of kind instance, bound   shut off (migrated)     kept, and noted: it is not started here
//	token surrendered               anything                the conductor's; nothing
//	claim of a migration            anything                the conductor's; nothing
//	its move waits to be confirmed  anything                nothing: it is started, where it lives, like any other
//	nothing                         domain, running         counted; adopted if it was started since (see strangers.go)
//	nothing                         domain, shut off        left alone: adopt is a person's word
//
// After a reboot of the host it then starts the guests whose wish is autostart
// and whose token is here. What could not be asked is an error, and nothing is
// done on account of it. A file system that does not answer is none: the instances that need it
// wait, and are tried again (later.go).
func (h *Host) Settle(ctx context.Context) error {
	if h.o.Mode() == ModeObserve {
		return nil
	}
	var errs []error
	for _, c := range h.tracker.List() {
		if c.Owner.Kind != claims.KindInstance {
			continue
		}
		if err := h.settleClaim(ctx, c); err != nil && !h.later.put(c.Owner.Instance, wrap(err, "settle instance %s", c.Owner.Instance), h.rt.Boot().Since) {
			errs = append(errs, wrap(err, "settle instance %s", c.Owner.Instance))
		}
	}
	// Before anybody is given a claim: what runs here is not free.
	_, err := h.lookAround(ctx)
	if err == nil {
		err = h.countStrangers(ctx)
	}
	return errors.Join(append(errs, err, h.autostart(ctx))...)
}

func (h *Host) settleClaim(ctx context.Context, c claims.Claim) error {
	uuid := c.Owner.Instance
	if _, moving := h.attempts.Moving(uuid); moving {
		return nil
	}
	if c.State == claims.Bound {
		return h.settleBound(ctx, uuid)
	}
	if c.State != claims.Pending {
		return nil
	}
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	d, exists, err := h.domain(ctx, uuid)
	if err != nil {
		return err
	}
	if exists {
		if _, err := h.tracker.Bind(ctx, c.Owner); err != nil {
			return err
		}
		if _, known := h.tracker.Instance(uuid); known {
			return nil
		}
		inst, _, _, err := h.read(ctx, d)
		if err != nil {
			return err
		}
		inst.Adopted = false
		_, err = h.tracker.Own(ctx, inst)
		return err
	}
	err = h.witness.Off(uuid, uuid, nil) // libvirt may have lost its domain while it runs
	if err == nil {
		err = neverDefined(ctx, h, c.Owner)
	}
	if err != nil {
		// It is looked at again: what it holds is kept for as long.
		_, renewed := h.tracker.Renew(ctx, c.Owner)
		return errors.Join(err, renewed)
	}
	h.log.Info("drop a creation that broke off", "instance", uuid)
	if err := h.undoMade(ctx, uuid); err != nil {
		return err
	}
	if h.o.Placement != nil {
		if err := h.o.Placement.DeleteAllocation(ctx, uuid); err != nil {
			return err
		}
	}
	if err := h.tracker.Abort(ctx, migration.Ref{Instance: uuid}); err != nil {
		return err
	}
	return h.tracker.DeleteInstance(ctx, uuid)
}

// autostartRef is under which an autostart is remembered: the boot that it was
// begun in, and the guests that are still to be tried. The ledger keeps verbs of
// migrations; this is none, and says so.
func autostartRef(step string) migration.Ref {
	return migration.Ref{Migration: "autostart", Instance: "host", Attempt: 1, Step: step}
}

// autostart tries once in a boot of the host to start each guest whose wish it
// is. One that cannot start is told and left to its user: trying it again would
// keep the host from ever being settled. Only a hypervisor that did not answer is
// asked again, for those guests alone: of the others, some were stopped since. Guests that
// wait for the fleet's records are left for StartConfirmed, and those that wait for the host
// that they came from for followOrigins.
func (h *Host) autostart(ctx context.Context) error {
	var last string
	var left []string
	if _, err := h.tracker.Recall(autostartRef("boot"), &last); err != nil {
		return err
	}
	boot := h.rt.Boot().ID
	if last == boot {
		if _, err := h.tracker.Recall(autostartRef("left"), &left); err != nil {
			return err
		}
	} else {
		for _, inst := range h.tracker.Instances() {
			if inst.Autostart && inst.Token.State == claims.TokenHere {
				left = append(left, inst.UUID)
			}
		}
		// The list before the boot that it is of: a crash between them makes it anew.
		if err := h.tracker.Remember(ctx, autostartRef("left"), left); err != nil {
			return err
		}
		if err := h.tracker.Remember(ctx, autostartRef("boot"), boot); err != nil {
			return err
		}
	}
	var errs []error
	var again []string
	round, end := newOriginRound(ctx, h.rt, askOwners)
	defer end()
	for _, uuid := range left {
		if _, waits := h.Unconfirmed(uuid); waits && h.Waits() {
			again = append(again, uuid) // see returned.go
			continue
		}
		action, err := askOrigin(ctx, h, uuid, round)
		if err != nil {
			again, errs = append(again, uuid), append(errs, wrap(err, "autostart instance %s", uuid))
			continue
		}
		if action == witness.Wait || action == witness.InDoubt {
			again = append(again, uuid)
			continue
		}
		err = h.autostartOne(ctx, uuid)
		switch kind := fault.KindOf(err); kind {
		case "":
		case fault.Unavailable, fault.InDoubt, fault.Busy:
			again = append(again, uuid)
			if kind == fault.Unavailable && h.later.put(uuid, wrap(err, "autostart instance %s", uuid), h.rt.Boot().Since) {
				continue // of this one alone nothing can be said
			}
			errs = append(errs, wrap(err, "autostart instance %s", uuid))
		default:
			h.log.Error("a guest could not be started after the host's reboot", "instance", uuid, "error", err)
		}
	}
	if len(again) < len(left) {
		errs = append(errs, h.tracker.Remember(ctx, autostartRef("left"), again))
	}
	return errors.Join(errs...)
}

// askOwners bounds, for all instances together, the questions to hosts whether an operator has given
// them to somebody else while this host was down. Arbitrary: those that are not asked for then
// are a moment later.
const askOwners = 5 * time.Second

func (h *Host) autostartOne(ctx context.Context, uuid string) error {
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	inst, ok := h.tracker.Instance(uuid)
	if _, moving := h.attempts.Moving(uuid); moving && !h.Lives(uuid) || !ok || inst.Token.State != claims.TokenHere {
		return nil
	}
	if _, ok := h.attempts.ClaimOf(uuid); !ok {
		return nil
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists || d.Active() {
		return err
	}
	if err := h.stays(d); err != nil {
		return err
	}
	if err := h.provenOff(ctx, d); err != nil {
		return err
	}
	h.log.Info("start a guest after the host's reboot, as it is its wish", "instance", uuid)
	return h.driver.Start(ctx, uuid, false)
}

// undoMade removes the disks that a creation which broke off had made.
func (h *Host) undoMade(ctx context.Context, uuid string) error {
	ref := creation(uuid)
	made, _, err := memory.Recall[[]madeDisk](h.memory, ref, memoryCreate)
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(made) {
		if err := h.files.Unmake(m.Made); err != nil {
			return err
		}
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// creation is under which a creation remembers what it made: no migration, and
// named by the instance alone.
func creation(uuid string) migration.Ref {
	return migration.Ref{Migration: "create-" + uuid, Instance: uuid, Attempt: 1}
}
