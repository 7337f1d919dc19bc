package host

import (
	"context"
	"errors"
	"slices"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// Settle joins ledger and hypervisor once, at start, before the agent says that
// it is ready. It heals what is provably stale and leaves alone what it does
// not know:
//
//	ledger                          hypervisor              action
//	claim of kind instance, pending no domain               dropped: a creation that broke off
//	claim of kind instance, pending domain                  bound: a creation that was all but done
//	claim of kind instance, bound   no domain, two reads    guest deleted by somebody: released
//	claim of kind instance, bound   shut off (migrated)     kept, and noted: it is not started here
//	token surrendered               anything                the conductor's; nothing
//	claim of a migration            anything                the conductor's; nothing
//	nothing                         domain                  left alone: adopt is a person's word
//
// After a reboot of the host it then starts the guests whose wish is autostart
// and whose token is here. What could not be asked is an error, and nothing is
// done on account of it.
func (h *Host) Settle(ctx context.Context) error {
	if h.o.Mode() == ModeObserve {
		return nil
	}
	var errs []error
	for _, c := range h.tracker.List() {
		if c.Owner.Kind != claims.KindInstance {
			continue
		}
		if err := h.settleClaim(ctx, c); err != nil {
			errs = append(errs, wrap(err, "settle instance %s", c.Owner.Instance))
		}
	}
	errs = append(errs, h.autostart(ctx))
	return errors.Join(errs...)
}

func (h *Host) settleClaim(ctx context.Context, c claims.Claim) error {
	uuid := c.Owner.Instance
	if _, moving := h.moving(uuid); moving {
		return nil
	}
	if c.State == claims.Bound {
		return h.follow(ctx, uuid)
	}
	if c.State != claims.Pending {
		return nil
	}
	unlock, err := h.lock(ctx, uuid)
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
	h.log.Info("drop a creation that broke off", "instance", uuid)
	if err := h.undoMade(ctx, uuid); err != nil {
		return err
	}
	if h.o.Placement != nil {
		if err := h.o.Placement.DeleteAllocation(ctx, uuid, h.o.ProviderUUID); err != nil {
			return err
		}
	}
	if err := h.tracker.Abort(ctx, claims.Ref{Instance: uuid}); err != nil {
		return err
	}
	return h.tracker.DeleteInstance(ctx, uuid)
}

// autostartRef is under which an autostart is remembered: the boot that it was
// begun in, and the guests that are still to be tried. The ledger keeps verbs of
// migrations; this is none, and says so.
func autostartRef(step string) claims.Ref {
	return claims.Ref{Migration: "autostart", Instance: "host", Attempt: 1, Step: step}
}

// autostart tries once in a boot of the host to start each guest whose wish it
// is. One that cannot start is told and left to its user: trying it again would
// keep the host from ever being settled. Only a hypervisor that did not answer is
// asked again, for those guests alone: of the others, some were stopped since.
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
	for _, uuid := range left {
		err := h.autostartOne(ctx, uuid)
		switch fault.KindOf(err) {
		case "":
		case fault.Unavailable, fault.InDoubt, fault.Busy:
			again = append(again, uuid)
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

func (h *Host) autostartOne(ctx context.Context, uuid string) error {
	unlock, err := h.lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	inst, ok := h.tracker.Instance(uuid)
	if _, moving := h.moving(uuid); moving || !ok || inst.Token.State != claims.TokenHere {
		return nil
	}
	if _, ok := h.claimOf(uuid); !ok {
		return nil
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists || d.Active() {
		return err
	}
	if err := h.stays(d); err != nil {
		return err
	}
	h.log.Info("start a guest after the host's reboot, as it is its wish", "instance", uuid)
	return h.driver.Start(ctx, uuid, false)
}

// Follow keeps claims behind what people do with virsh, until ctx ends: the
// claim of a guest that was undefined while it was off is released, after two
// agreeing reads, and a guest that somebody migrated away is not started here any
// more. Events are hints; a resync, and every start of Follow, reads
// everything. It never frees anything on account of a read that failed. A
// hypervisor that does not give events is asked again.
func (h *Host) Follow(ctx context.Context) error {
	for ctx.Err() == nil {
		events, err := h.driver.Events(ctx)
		if err != nil {
			h.log.Warn("no events from the hypervisor", "error", err)
			_ = h.rt.Sleep(ctx, h.o.Agree) // only a pause before the next try
			continue
		}
		h.followAll(ctx)
		for e := range events {
			switch e.Kind {
			case driver.EventResync:
				h.followAll(ctx)
			case driver.EventUndefined, driver.EventStarted, driver.EventStopped, driver.EventCrashed:
				h.followOne(ctx, e.UUID)
			}
		}
		if ctx.Err() == nil {
			_ = h.rt.Sleep(ctx, h.o.Agree) // the driver was closed, or goes round again
		}
	}
	return nil
}

func (h *Host) followAll(ctx context.Context) {
	for _, inst := range h.tracker.Instances() {
		h.followOne(ctx, inst.UUID)
	}
}

func (h *Host) followOne(ctx context.Context, uuid string) {
	if h.o.Mode() == ModeObserve {
		return
	}
	if err := h.follow(ctx, uuid); err != nil && ctx.Err() == nil {
		// The next event or resync comes back to it.
		h.log.Warn("could not follow a guest", "instance", uuid, "error", err)
	}
}

func (h *Host) follow(ctx context.Context, uuid string) error {
	return errors.Join(h.followLeaving(ctx, uuid), h.followGone(ctx, uuid))
}

// followGone releases the claim of a managed guest whose domain is gone.
func (h *Host) followGone(ctx context.Context, uuid string) error {
	gone, err := h.gone(ctx, uuid)
	if err != nil || !gone {
		return err
	}
	if err := h.rt.Sleep(ctx, h.o.Agree); err != nil {
		return err
	}
	unlock, err := h.lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	if gone, err = h.gone(ctx, uuid); err != nil || !gone {
		return err
	}
	// A second opinion from the list: one domain's lookup and the list of all are
	// answered by different paths of libvirtd.
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == uuid }) {
		return err
	}
	h.log.Info("the guest was undefined: release its claim", "instance", uuid)
	return h.forget(ctx, uuid)
}

// gone reports whether a guest that lives here, and neither moves nor is being
// made, has no domain.
func (h *Host) gone(ctx context.Context, uuid string) (bool, error) {
	inst, ok := h.tracker.Instance(uuid)
	if !ok || inst.Token.State != claims.TokenHere {
		return false, nil
	}
	if _, bound := h.claimOf(uuid); !bound {
		return false, nil
	}
	if _, moving := h.moving(uuid); moving {
		return false, nil
	}
	_, exists, err := h.domain(ctx, uuid)
	return err == nil && !exists, err
}

// undoMade removes the disks that a creation which broke off had made.
func (h *Host) undoMade(ctx context.Context, uuid string) error {
	ref := creation(uuid)
	made, found, err := recall[[]madeDisk](h, ref, memoryCreate)
	if err != nil || !found {
		return err
	}
	for _, m := range slices.Backward(made) {
		if err := h.files.Unmake(m.Made); err != nil {
			return err
		}
	}
	return h.tracker.Unremember(ctx, at(ref, memoryCreate))
}

// creation is under which a creation remembers what it made: no migration, and
// named by the instance alone.
func creation(uuid string) migration.Ref {
	return migration.Ref{Migration: "create-" + uuid, Instance: uuid, Attempt: 1}
}
