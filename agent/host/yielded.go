package host

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// Another host's word that it has an instance with a higher epoch keeps that instance from being started
// here, since two copies are the worst. It takes nothing else: that host may be hostile, or in error. So
// where no open move bears it out, definition, claim and files stay until a second witness names another
// host, or an operator decides.

// yielded is what is on record of an instance whose token was given up on one host's word.
type yielded struct {
	Instance  string `json:"instance_uuid"`
	Name      string `json:"name"`
	Migration string `json:"migration"`
	Attempt   int    `json:"attempt"`
	Host      string `json:"host"` // that said so
	Epoch     uint64 `json:"epoch"`
	// Decided: this host had refused the commit, so that no conductor asks it to clean up.
	Decided bool `json:"decided,omitempty"`
}

const memoryYielded = "yielded"

func yieldedRef(uuid string) migration.Ref {
	return migration.Ref{Migration: "yielded-" + uuid, Instance: uuid, Attempt: 1}
}

// needsWitness reports whether nothing of this host bears out that an instance is elsewhere: its token is
// here, it was not undefined, no move of it by that migration is open, and no operator has said so.
func needsWitness(h *Host, ref migration.Ref, inst claims.Instance, known, undefined bool) bool {
	if !known || undefined || inst.Token.State == claims.TokenSurrendered {
		return false
	}
	if mc, open := h.tracker.Context(ref.Migration); open && mc.Instance == ref.Instance && (mc.Source != h.o.Name || !h.tracker.CommitRefused(ref.Migration, ref.Attempt)) {
		return false
	}
	if said, err := saidElsewhere(h, ref); err != nil || said {
		return false
	}
	return !slices.ContainsFunc(h.tracker.ByInstance(ref.Instance), func(c claims.Claim) bool { return c.Owner.Migration == ref.Migration })
}

// saidElsewhere reports whether an operator has said of a migration that its instance is on the other host.
func saidElsewhere(h *Host, ref migration.Ref) (bool, error) {
	if w, word := h.tracker.Word(ref.Migration); word && w.GuestIsAt != h.o.Name {
		return true, nil
	}
	w, word, err := memory.Recall[settling](h.memory, settled(ref), memorySettle)
	return word && !w.Here, err
}

// waitingYield gives what is on record of an instance whose token was given up on one host's word, while
// no second witness has borne it out.
func waitingYield(h *Host, uuid string) (y yielded, waits bool, err error) {
	y, found, err := memory.Recall[yielded](h.memory, yieldedRef(uuid), memoryYielded)
	return y, err == nil && found && !y.over(h), err
}

// over: the instance is here again, or nothing of it is.
func (y yielded) over(h *Host) bool {
	inst, known := h.tracker.Instance(y.Instance)
	return !known || inst.Token.State == claims.TokenHere && inst.Token.Epoch >= y.Epoch
}

// witnessed refuses to end what is here of an instance whose token was given up on one host's word, before
// a second witness has it elsewhere: fault.Busy. An operator's decision is one. Of one that was undefined there
// is nothing to end; that libvirt does not list it is no proof. decided is that of the record.
func witnessed(ctx context.Context, h *Host, ref migration.Ref) (decided bool, err error) {
	y, waits, err := waitingYield(h, ref.Instance)
	if err != nil || !waits {
		return false, err
	}
	if said, err := saidElsewhere(h, ref); err != nil || said {
		return y.Decided, err
	}
	inst, _ := h.tracker.Instance(ref.Instance)
	_, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return false, err
	}
	var unloaded error
	if !exists {
		unloaded = h.absent(ctx, inst)
	}
	if (exists || unloaded != nil) && !hasElsewhere(ctx, h, y) {
		return false, fault.Refuse(fault.Busy, "", append([]fault.Reason{y.reason(h.o.Name)}, fault.ReasonsOf(unloaded)...)...)
	}
	return y.Decided, nil
}

// forgetYielded drops what is on record of it, once what is here was ended. Safe to repeat.
func forgetYielded(ctx context.Context, h *Host, uuid string) error {
	return h.tracker.Unremember(ctx, memory.At(yieldedRef(uuid), memoryYielded))
}

// hasElsewhere asks the fleet's records, and Placement where they do not say so. A store with leases is
// etcd, which lets the host that said so write every instance's record: then Placement alone is asked.
func hasElsewhere(ctx context.Context, h *Host, y yielded) bool {
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	if h.o.Records != nil && !h.o.Records.HasLeases() {
		rec, _, err := h.o.Records.Instance(ctx, y.Instance)
		if err == nil && rec.Host != h.o.Name && rec.Epoch >= y.Epoch {
			return true
		}
	}
	moved, asks := h.o.Placement.(Moved)
	if !asks {
		return h.o.Records == nil // there is nobody to ask
	}
	elsewhere, err := moved.SettledElsewhere(ctx, y.Instance, y.Migration)
	return err == nil && elsewhere
}

func (y yielded) reason(self string) fault.Reason {
	return fault.Reason{
		Code: "yield_unproven",
		Message: fmt.Sprintf("host %s says that it has instance %s with epoch %d: it is not started on %s any more, and what is here of it stays until the fleet's records (those in etcd do not count) or Placement have it elsewhere",
			y.Host, y.Name, y.Epoch, self),
		Have: self, Want: y.Host,
		Change: fmt.Sprintf(`look for it on %s; if it is there, wait, or virsh undefine %s --keep-nvram on %s; if it is nowhere else, berth instance start %s --force-owner --reason "how you know"`, y.Host, y.Name, self, y.Name),
	}
}

// noteYielded makes durable, before the token goes, that one host's word is all there is (alone). Where an
// earlier one is on record, a higher epoch takes its place: record and token have the same epoch and migration.
func noteYielded(ctx context.Context, h *Host, ref migration.Ref, inst claims.Instance, d driver.Domain, epoch uint64, to string, alone bool) error {
	y, waits, err := waitingYield(h, ref.Instance)
	switch {
	case err != nil:
		return err
	case waits && inst.Token.State != claims.TokenDoubt && inst.Token.Epoch >= epoch: // the token stays where it is
		return nil
	case waits && y.Epoch == epoch && y.Host == to && y.Migration == ref.Migration && y.Attempt == ref.Attempt:
		return nil
	case !waits && !alone:
		return nil
	}
	h.log.Error("another host says that it has an instance that is off here: it is not started any more, and its definition, claim and disks stay",
		"instance", ref.Instance, "name", inst.Name, "migration", ref.Migration, "host", to, "epoch", epoch, "had", inst.Token.Epoch)
	return h.memory.Remember(ctx, yieldedRef(ref.Instance), memoryYielded, yielded{
		Instance: ref.Instance, Name: cmp.Or(inst.Name, d.Name, ref.Instance), Migration: ref.Migration, Attempt: ref.Attempt, Host: to, Epoch: epoch,
		Decided: h.tracker.CommitRefused(ref.Migration, ref.Attempt) || waits && y.Decided,
	})
}

// allYielded gives them, in order of instance. From memory.
func allYielded(h *Host) (waiting, over []yielded) {
	for _, ref := range h.memory.Remembering(memoryYielded) {
		y, found, err := memory.Recall[yielded](h.memory, ref, memoryYielded)
		if err != nil || !found {
			continue
		}
		if y.over(h) {
			over = append(over, y)
		} else {
			waiting = append(waiting, y)
		}
	}
	return waiting, over
}

// YieldUnproven reports whether the token of an instance was given up on one host's word, which no second
// witness has borne out yet: its record in the fleet's store is not to be handed over. From memory.
func YieldUnproven(h *Host, uuid string) bool {
	waiting, _ := allYielded(h)
	return slices.ContainsFunc(waiting, func(y yielded) bool { return y.Instance == uuid })
}

// yieldedEvery is how long nobody is asked after a round. Arbitrary: nothing waits for its end.
const yieldedEvery = 5 * time.Second

// yieldedRounds says what the next round of followYielded asks, and when. For one goroutine.
type yieldedRounds struct {
	next time.Duration // on the boot clock
	last string        // the instance that was asked about last: the next round goes on after it
}

// followYielded ends what is here of those that a second witness has elsewhere by now. All questions of
// one round share one bound of time: paused arrivals wait for its end.
func followYielded(ctx context.Context, h *Host, rounds *yieldedRounds) {
	waiting, over := allYielded(h)
	for _, y := range over {
		if err := forgetYielded(ctx, h, y.Instance); err != nil && ctx.Err() == nil {
			h.log.Warn("that another host claimed an instance is still on record", "instance", y.Instance, "error", err)
		}
	}
	if len(waiting) == 0 || h.rt.Boot().Since < rounds.next {
		return
	}
	asking, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	byUUID := map[string]yielded{}
	for _, y := range waiting {
		byUUID[y.Instance] = y
	}
	for _, uuid := range nextInTurn(slices.Sorted(maps.Keys(byUUID)), rounds.last, len(byUUID)) {
		if asking.Err() != nil {
			break
		}
		rounds.last = uuid
		y := byUUID[uuid]
		ref := migration.Ref{Migration: y.Migration, Instance: y.Instance, Attempt: y.Attempt}
		var err error
		if inst, _ := h.tracker.Instance(uuid); inst.Token.State == claims.TokenSurrendered {
			_, err = witnessed(asking, h, ref)
		}
		if err == nil { // it asks again, and what it ends may take longer than the questions may
			err = h.yieldToken(ctx, ref, y.Epoch, y.Host)
		}
		if err != nil && ctx.Err() == nil {
			h.log.Debug("what is here of an instance that another host claims stays", "instance", y.Instance, "host", y.Host, "error", err)
		}
	}
	rounds.next = h.rt.Boot().Since + yieldedEvery
}

// takeYieldedBack takes the token of an instance back, with a higher epoch, that was given up on one host's
// word: an operator has said that the instance is here. That host is told. Nothing is done for any other.
func takeYieldedBack(ctx context.Context, h *Host, uuid, because, by string) error {
	y, found, err := memory.Recall[yielded](h.memory, yieldedRef(uuid), memoryYielded)
	if err != nil || !found {
		return err
	}
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return err
	}
	defer unlock()
	ref := migration.Ref{Migration: y.Migration, Instance: uuid, Attempt: y.Attempt}
	if inst, _ := h.tracker.Instance(uuid); inst.Token.State == claims.TokenSurrendered {
		if err := h.noteWord(ctx, ref, migration.Settlement{GuestIsAt: h.o.Name, Gone: []string{y.Host}, Why: because, By: by}, y.Host); err != nil {
			return err
		}
		if err := h.tracker.Retake(ctx, memory.At(ref, "")); err != nil {
			return err
		}
	}
	return forgetYielded(ctx, h, uuid)
}
