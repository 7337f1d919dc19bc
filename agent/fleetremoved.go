package agent

import (
	"context"

	"berth/agent/witness"
	"berth/internal/fault"
	"berth/internal/store"
)

// A host that had records in a store may have been evacuated by them, also where its configuration
// names none any more. So in each boot Placement is asked for what was here before, where that was
// another database than the store. Of the rest an operator decides, once: then the note of an
// embedded store goes. That of etcd stays, since other hosts may use it still.

// runRemoved looks until nothing waits in this boot.
func (k *keeper) runRemoved(ctx context.Context) {
	k.began = k.a.rt.Boot().Since
	for ctx.Err() == nil {
		if k.a.estranged() == nil {
			done, err := k.lookRemoved(ctx)
			if err != nil {
				k.a.log.Warn("the instances of an earlier boot are not looked at yet", "store", k.removed, "error", err)
			}
			if done {
				return
			}
		}
		_ = k.a.rt.Sleep(ctx, askEvery) // its end is looked at in the loop
	}
}

// lookRemoved judges what waits, and starts what is confirmed. done is that nothing waits any more.
func (k *keeper) lookRemoved(ctx context.Context) (done bool, err error) {
	ctx, cancel := k.a.rt.WithTimeout(ctx, roundLimit)
	defer cancel()
	h := k.a.host
	if err := k.mark(); err != nil { // an agent with a store again, or none, goes by it
		return false, err
	}
	was, held, waiting := h.Held(), map[string]string{}, map[string]bool{}
	for _, inst := range h.Owned() {
		if _, waits := h.Unconfirmed(inst.UUID); !waits {
			continue
		}
		f := witness.Facts{Store: witness.StoreRemoved, SameDatabase: k.removed == kindEmbedded}
		var where string
		if f.Placement, where, err = k.placementFact(ctx, inst.UUID); err != nil {
			return false, err
		}
		v := witness.Decide(f)
		if v.Action == witness.Start {
			continue
		}
		why := v.Why
		if v.Code == "counted_elsewhere" {
			why += ": " + where
		}
		held[inst.UUID], waiting[inst.UUID] = why, v.Action == witness.Wait
		if was[inst.UUID] != why {
			k.a.log.Error("an instance is held: it is not started here, and not moved", "instance", inst.UUID, "name", inst.Name, "waits", waiting[inst.UUID], "why", why)
		}
	}
	k.mu.Lock()
	k.waiting = waiting
	k.mu.Unlock()
	changed, err := h.ConfirmBoot(ctx, held)
	if err != nil {
		return false, err
	}
	k.starts = k.starts || changed
	if err := k.start(ctx); err != nil {
		return false, err
	}
	if len(held) > 0 || k.starts {
		return false, nil
	}
	if k.removed == kindEmbedded {
		err = k.a.db.Delete(ctx, store.BucketAgent, keyFleet)
	}
	return err == nil, fault.Wrap(err, "forget that this host had records in a store")
}
