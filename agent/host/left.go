package host

import (
	"context"

	"berth/agent/host/memory"
	"berth/agent/host/vanished"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// leftByHand is the record of a guest whose token is here, and whose domain was
// seen `shut off (migrated)` though no migration of Berth's took it: somebody sent
// it to a host that does not ask for its token, or has not asked yet. libvirt
// forgets why a domain is off when its daemon restarts; the record does not.
type leftByHand struct {
	// Kept is an operator's word that the guest is this host's all the same.
	Kept bool `json:"kept,omitempty"`
}

const memoryLeftByHand = "left_by_hand"

// leaving is under which it is remembered: no migration, and named by the
// instance alone.
func leaving(uuid string) migration.Ref {
	return migration.Ref{Migration: "left-" + uuid, Instance: uuid, Attempt: 1}
}

// LeftByHand reports whether a guest whose token is here has left by a migration
// that Berth did not conduct, so that nothing may start it here. From memory. A
// record that cannot be read is one that is there.
func (h *Host) LeftByHand(uuid string) bool {
	rec, found, err := memory.Recall[leftByHand](h.memory, leaving(uuid), memoryLeftByHand)
	return err != nil || found && !rec.Kept
}

// followLeaving makes the record follow the domain of a guest that lives here and
// that no migration of Berth's has.
func (h *Host) followLeaving(ctx context.Context, uuid string) error {
	stale := func() (d driver.Domain, left, back bool, err error) {
		inst, known := h.tracker.Instance(uuid)
		if _, moving := h.attempts.Moving(uuid); moving && !h.Lives(uuid) || !known || inst.Token.State != claims.TokenHere {
			return d, false, false, nil
		}
		d, exists, err := h.domain(ctx, uuid)
		if err != nil || !exists {
			return d, false, false, err
		}
		_, found, err := memory.Recall[leftByHand](h.memory, leaving(uuid), memoryLeftByHand)
		return d, d.HasLeft() && !found, d.Active() && !d.Halfway() && found, err
	}
	// Most have not left: no turn is taken for those.
	if _, left, back, err := stale(); err != nil || !left && !back {
		return err
	}
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	d, left, back, err := stale()
	switch {
	case err != nil:
		return err
	case left:
		h.log.Warn("a guest has left by a migration that is not Berth's; until its token is asked for, it is not started here", "instance", uuid, "name", d.Name)
		err = h.memory.Remember(ctx, leaving(uuid), memoryLeftByHand, leftByHand{})
	case back:
		err = h.dropLeft(ctx, uuid)
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return err
}

// keepLeft takes an operator's word that a guest which left is this host's.
func (h *Host) keepLeft(ctx context.Context, d driver.Domain) error {
	if !d.HasLeft() && !h.LeftByHand(d.UUID) {
		return nil
	}
	if err := h.memory.Remember(ctx, leaving(d.UUID), memoryLeftByHand, leftByHand{Kept: true}); err != nil {
		return err
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return nil
}

func (h *Host) dropLeft(ctx context.Context, uuid string) error {
	return h.tracker.Unremember(ctx, memory.At(leaving(uuid), memoryLeftByHand))
}

// stays refuses to start, or to remove the disks of, a guest that has left.
func (h *Host) stays(d driver.Domain) error {
	rec, found, err := memory.Recall[leftByHand](h.memory, leaving(d.UUID), memoryLeftByHand)
	if err == nil && (rec.Kept || !found && !d.HasLeft()) {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "has_left", Message: "guest " + d.Name + " has left by a migration that Berth did not conduct: it runs on another host",
		Change: "manage it there; if that copy is no more, berth instance adopt " + d.Name + " here first",
	})
}

// dropRecords drops what is remembered of a guest that goes, beside its record.
func (h *Host) dropRecords(ctx context.Context, uuid string) error {
	if claim, ok := h.attempts.ClaimOf(uuid); ok && claim.BoundFrom != nil && h.external.Foreign(*claim.BoundFrom) {
		// Its arrival was never finished.
		if err := h.tracker.ForgetMigration(ctx, claim.BoundFrom.Migration); err != nil {
			return err
		}
	}
	if err := h.tracker.ForgetMigration(ctx, creation(uuid).Migration); err != nil { // it could not be taken back
		return err
	}
	if err := h.tracker.Unremember(ctx, keptRef(uuid)); err != nil {
		return err
	}
	return h.dropLeft(ctx, uuid)
}

// absent is nil where an instance that libvirt does not list has neither a definition nor a
// process here. A definition that libvirtd did not load is no departure, whatever a peer says.
func (h *Host) absent(ctx context.Context, inst claims.Instance) error {
	return absentBy(ctx, h, inst, h.vanished.Absent)
}

func absentBy(ctx context.Context, h *Host, inst claims.Instance, ask func(context.Context, vanished.Instance, []driver.Domain, []string) error) error {
	all, err := h.driver.Domains(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, i := range h.tracker.Instances() {
		known = append(known, i.Name)
	}
	return ask(ctx, vanished.Instance{UUID: inst.UUID, Name: inst.Name}, all, known)
}

// notLoaded refuses to end what is here of an instance that libvirt does not list, while its definition
// may only not have been loaded: libvirt would have it again, and nobody would know that it is
// elsewhere. Of an instance that the ledger does not know, nothing is kept by waiting.
func notLoaded(ctx context.Context, h *Host, uuid string) error {
	inst, known := h.tracker.Instance(uuid)
	if !known || definitionsOf(h.driver) == nil {
		return nil
	}
	return absentBy(ctx, h, inst, h.vanished.Gone)
}

// mayReplaceLeft refuses to have such a definition replaced while something is saved of it, or
// a process of it lives. Its disks are not asked about: the instance may use them where it is.
func (h *Host) mayReplaceLeft(ctx context.Context, no *refusal, d driver.Domain) error {
	if err := no.take(h.nothingSaved(ctx, d)); err != nil {
		return err
	}
	return no.take(h.witness.Off(d.UUID, d.Name, nil))
}
