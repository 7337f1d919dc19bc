package agent

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/migration"
)

// keptRecord is one guest's record.
type keptRecord struct {
	mark string        // host.RecordMark when it was right
	next time.Duration // looked at again then, whatever the mark; on the boot clock
	last time.Duration // looked at
	// busy is since when another verb works on the guest, so that it could not be looked at; 0 for not.
	busy time.Duration
	// right: since the store's incarnation was seen, the record was found to name this host and epoch.
	right bool
}

// keepHost keeps this host's own record. One that is not what was seen last is of a store that
// was restored: then nothing is believed to be written.
func (k *keeper) keepHost(ctx context.Context) error {
	now, err := k.records.Host(ctx, k.a.name)
	if err != nil {
		return err
	}
	if was := k.self; was != nil && now.UpdatedAt.Before(was.UpdatedAt) {
		k.a.log.Warn("the fleet's records are older than they were: all of this host's are looked at again", "was", was.UpdatedAt, "is", now.UpdatedAt)
		if err := k.rolledBack(ctx); err != nil {
			return err
		}
	}
	want := now
	want.ProviderUUID, want.Boot = k.a.uuid, k.a.rt.Boot().ID
	d, err := k.a.host.Describe(ctx)
	if err != nil {
		k.self = &now
		return err
	}
	want.HostUUID = d.HostUUID
	if want.Description, err = json.Marshal(d); err != nil {
		return err
	}
	if k.trust.counts {
		if want.Ledger, err = k.count(ctx, now.Ledger); err != nil {
			return err
		}
	}
	if want.Ledger != now.Ledger || string(want.Description) != string(now.Description) || want.HostUUID != now.HostUUID || want.ProviderUUID != now.ProviderUUID || want.Boot != now.Boot {
		if err := k.records.PutHost(ctx, want); err != nil {
			return err
		}
		if now, err = k.records.Host(ctx, k.a.name); err != nil {
			return err
		}
	}
	k.trust.counts = false
	k.self = &now
	return nil
}

// keep looks at the records that may be wrong, the one that waits longest first.
func (k *keeper) keep(ctx context.Context) error {
	now := k.a.rt.Boot().Since
	type due struct {
		inst claims.Instance
		mark string
		last time.Duration
	}
	var list []due
	here := map[string]bool{}
	for _, inst := range k.a.host.Owned() {
		here[inst.UUID] = true
		if !k.writes(inst.UUID) {
			continue
		}
		mark := k.a.host.RecordMark(inst.UUID) + k.a.host.OnMove(inst.UUID)
		was := k.owned[inst.UUID]
		switch {
		case was == nil:
			list = append(list, due{inst, mark, -1})
		case now >= was.next, was.mark != mark && now >= was.last+keepEvery:
			list = append(list, due{inst, mark, was.last})
		}
	}
	maps.DeleteFunc(k.owned, func(id string, _ *keptRecord) bool { return !here[id] })
	// First what a hook without an agent goes by, then what a guest is taken by.
	if err := k.mark(); err != nil {
		return err
	}
	slices.SortStableFunc(list, func(a, b due) int { return int(a.last - b.last) })
	var stopped error
	for _, d := range list[:min(len(list), keepEach)] {
		named, err := k.put(ctx, d.inst)
		rec := &keptRecord{mark: d.mark, next: now + keepAgain + spread(d.inst.UUID), last: now}
		rec.right = named || fault.HasReason(err, "epoch_twice") || fault.HasReason(err, "ledger_behind")
		switch {
		case errors.Is(err, fault.Busy):
			// It is being started, or the like, and looks another way in a moment.
			rec.mark, rec.next, rec.busy = "", now+keepEvery, now
			if was := k.owned[d.inst.UUID]; was != nil && was.busy > 0 {
				rec.busy = was.busy
			}
			if now-rec.busy < keepPatient {
				err = nil
			}
		case storeSilent(err):
			rec.mark, rec.next = "", now+keepEvery // no round comes here before the store is back
		case err != nil:
			rec.mark, rec.next = "", now+keepRetry
		}
		k.owned[d.inst.UUID] = rec
		k.fail(d.inst.UUID, err)
		if ctx.Err() != nil {
			break
		}
		if storeSilent(err) {
			stopped = err // so are the others
			break
		}
	}
	k.mu.Lock()
	k.kept = len(k.owned)
	maps.DeleteFunc(k.failed, func(id string, _ error) bool { return !here[id] && k.giving[id] == "" })
	k.mu.Unlock()
	return errors.Join(stopped, k.drop(ctx))
}

// put makes the record of a guest right. Of one that is on a move what it was before stays, and
// that it moves is added: the hypervisor has other things to do. Whatever it fails by, it reports
// whether the record names this host and its epoch.
func (k *keeper) put(ctx context.Context, inst claims.Instance) (named bool, err error) {
	ctx, cancel := k.a.rt.WithTimeout(ctx, keepPatience)
	defer cancel()
	was, _, err := k.records.Instance(ctx, inst.UUID)
	there := err == nil
	if err != nil && (!errors.Is(err, fault.NotFound) || fault.HasReason(err, fleet.NoStore)) {
		return false, errStore{err}
	}
	want := fleet.Instance{UUID: inst.UUID, Name: inst.Name, Host: k.a.name, Epoch: inst.Token.Epoch, Moving: k.a.host.OnMove(inst.UUID)}
	named = there && was.Host == want.Host && was.Epoch == want.Epoch
	same := named && describes(was)
	if want.Moving != "" && same && len(was.Guest) > 0 {
		want.Guest = was.Guest
	} else {
		if want.Guest, err = k.describe(ctx, inst.UUID, was.Guest); err != nil {
			return named, err
		}
		if same && atRest(was.Guest) == atRest(want.Guest) {
			want.Guest = was.Guest // only what changes with each write differs
		}
	}
	if same && want.Moving == was.Moving && want.Name == was.Name && string(want.Guest) == string(was.Guest) {
		return true, nil
	}
	if k.written[inst.UUID] != want.Epoch {
		if err := k.noteWritten(ctx, inst.UUID, want.Epoch); err != nil {
			return named, err
		}
	}
	ahead, err := k.records.PutInstance(ctx, want)
	switch {
	case err != nil:
		switch {
		case fault.HasReason(err, "epoch_twice"), fault.HasReason(err, "ledger_behind"):
			k.looked = false // it is held
		case fault.HasReason(err, "declared_dead"):
			k.asks = 0
		case fault.HasReason(err, permit.ReasonNotYours):
			// Its host before hands the record over in a moment.
			return named, fault.Refuse(fault.Busy, "write the record of instance "+inst.UUID, fault.ReasonsOf(err)...)
		}
		return named, errStore{err}
	case ahead != nil:
		k.looked = false // it gives way
	}
	return true, nil
}

// noteWritten makes durable that a record of a guest may be in the store, so that it goes when
// the guest was deleted.
func (k *keeper) noteWritten(ctx context.Context, id string, epoch uint64) error {
	raw, err := json.Marshal(epoch)
	if err != nil {
		return err
	}
	if err := k.a.db.Put(ctx, store.BucketAgent, prefixFleet+id, raw); err != nil {
		return err
	}
	k.written[id], k.trust.counts = epoch, true
	return nil
}

// drop deletes the records of instances that this host wrote and has deleted since. Of one that has
// left the record is handed over, whether or not its new host has written: an instance is never
// without one. A record that cannot be read keeps no other from its turn.
func (k *keeper) drop(ctx context.Context) error {
	done, failed := 0, error(nil)
	for _, id := range slices.Sorted(maps.Keys(k.written)) {
		inst, known := k.a.tracker.Instance(id)
		if known && (inst.Token.State != claims.TokenSurrendered || host.YieldUnproven(k.a.host, id)) {
			continue
		}
		if done == keepEach {
			break
		}
		var err error
		if c, gave := k.gave(id); known || gave && c.Epoch > k.written[id] {
			err = k.records.HandOver(ctx, id, k.a.name, c.To, c.Epoch)
		} else {
			err = k.records.DropInstance(ctx, id, k.a.name, k.written[id])
		}
		if fault.KindOf(err) == fault.Unavailable || ctx.Err() != nil {
			return errors.Join(failed, err)
		}
		if err != nil {
			failed = errors.Join(failed, fault.Wrap(err, "give up the record of instance %s", id))
			continue
		}
		if err := k.a.db.Delete(ctx, store.BucketAgent, prefixFleet+id); err != nil {
			return errors.Join(failed, err)
		}
		delete(k.written, id)
		k.trust.counts = true
		done++
	}
	return failed
}

// describes reports whether a record's description is of the host that the record names. One that
// was handed over or taken over has that of the host before, until its new host writes.
func describes(in fleet.Instance) bool {
	var g migration.Guest
	return json.Unmarshal(in.Guest, &g) == nil && g.Epoch == in.Epoch
}

// atRest is a guest without what changes by itself while it runs.
func atRest(raw json.RawMessage) string {
	var g migration.Guest
	if json.Unmarshal(raw, &g) != nil {
		return ""
	}
	for i := range g.Disks {
		g.Disks[i].ActualSize = 0
		for j := range g.Disks[i].Chain {
			g.Disks[i].Chain[j].ActualSize = 0
		}
	}
	out, err := json.Marshal(g)
	if err != nil {
		return ""
	}
	return string(out)
}
