package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"berth/agent/counted"
	"berth/agent/host"
	"berth/agent/inventory"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

// comeBack says that this host lives, in this boot: a death that stands goes, and from that
// commit on nobody takes a guest from it.
func (k *keeper) comeBack(ctx context.Context) error {
	if err := k.note(ctx); err != nil {
		return err
	}
	if !k.a.host.Waits() {
		// The first time that the store is seen: what is off waits for the look, a moment.
		if err := k.a.host.AwaitRecords(ctx, false); err != nil {
			return err
		}
	}
	was, err := k.records.Return(ctx, k.a.name, k.a.rt.Boot().ID)
	if err != nil {
		return err
	}
	if was != nil {
		k.a.log.Error("this host was declared dead, and lives: it looks at each of its guests before it starts any",
			"proof", was.Proof, "by", was.By, "because", was.Because, "at", was.At, "forgotten", was.Forgotten)
		k.looked, k.suspect = false, true
		clear(k.owned)
	}
	return nil
}

// look holds every guest of the ledger against its record. The answer of one that cannot be read
// holds that one; a store that does not answer ends the look, and nothing is confirmed.
func (k *keeper) look(ctx context.Context) error {
	h := k.a.host
	// A guest that was evacuated is given way for by its own record: no other waits for one of these
	// that cannot be read.
	left, err := k.records.Evacuated(ctx, k.a.name)
	if _, err = fleet.Unreadable(err); err != nil {
		return err
	}
	whole, witness := !k.looked, !h.BootConfirmed() || k.suspect
	was, held := h.Held(), map[string]string{}
	for _, inst := range h.Owned() {
		_, before := was[inst.UUID]
		if !whole && !before {
			continue
		}
		why, err := k.judge(ctx, inst, left, witness || before)
		switch {
		case err != nil:
			return err
		case why == "":
		case h.FreedByHand(inst.UUID):
			k.a.log.Warn("a guest is kept by an operator's word", "instance", inst.UUID, "name", inst.Name, "although", why)
		default:
			held[inst.UUID] = why
			if was[inst.UUID] != why {
				k.a.log.Error("whose a guest is is in doubt: it is not started here, and not moved", "instance", inst.UUID, "name", inst.Name, "why", why)
			}
		}
	}
	// What has to be cleaned up of guests that the ledger does not have any more, or never knew.
	for _, e := range left {
		ref := migration.Ref{Migration: e.Migration, Instance: e.Instance, Attempt: e.Attempt}
		gave, err := h.GiveWay(ctx, ref, e.Epoch, e.To)
		if err == nil && !gave {
			// It has come back here since.
			if err = h.CleanUpReturned(ctx, ref, migration.Guest{}); err == nil {
				err = k.records.CleanedUp(ctx, e)
			}
		}
		k.fail(e.Instance, err)
	}
	if whole {
		k.seek, k.seekAt = true, 0
	}
	changed, err := h.ConfirmBoot(ctx, held)
	if err != nil {
		return err
	}
	k.looked, k.suspect = true, false
	if changed {
		k.a.log.Info("the fleet's records were asked in this boot: guests may be started", "held", len(held))
		k.starts = true
	}
	return nil
}

// start starts the guests that waited. Before ledger and hypervisor are joined that is Settle's
// to do.
func (k *keeper) start(ctx context.Context) error {
	if err := k.a.settled.Load(); !k.starts || err == nil || *err != nil {
		return nil
	}
	err := k.a.host.StartConfirmed(ctx)
	k.starts = err != nil
	return err
}

// judge says why a guest whose token the ledger has is held; empty where it is this host's, or
// this host gave way. The rows, the first that holds counts:
//
//	record                       Placement          then
//	cannot be read               any                held
//	another host, higher epoch   any                gives way
//	another host, same epoch     any                held: two have it
//	this host, higher epoch      any                held: the ledger is older
//	any other                    on others alone    held: the records may be older
//	any other                    any                this host's
//
// Placement is asked for a guest that stands still, in a boot that is not confirmed. Where it is
// silent for too long the records alone count.
func (k *keeper) judge(ctx context.Context, inst claims.Instance, left []fleet.Evacuated, witness bool) (why string, err error) {
	rec, _, err := k.records.Instance(ctx, inst.UUID)
	epoch := inst.Token.Epoch
	switch kind := fault.KindOf(err); {
	case kind == fault.NotFound && !hasReason(err, fleet.NoStore):
	case kind == fault.Internal || kind == fault.Invalid:
		return "its record cannot be read: " + err.Error(), nil
	case err != nil:
		return "", err
	case rec.Host != k.a.name && rec.Epoch > epoch:
		ref := refOf(rec, inst, left)
		k.a.log.Error("a guest of this host was given to another while this one was taken for dead", "instance", inst.UUID, "name", inst.Name,
			"host", rec.Host, "epoch", rec.Epoch, "had", epoch, "migration", ref.Migration)
		if _, err := k.a.host.GiveWay(ctx, ref, rec.Epoch, rec.Host); err != nil {
			return "it is " + rec.Host + "'s by now, and could not be given up: " + err.Error(), nil
		}
		return "", nil
	case rec.Host != k.a.name && rec.Epoch == epoch:
		return fmt.Sprintf("host %s says that it has it too, with the same epoch %d", rec.Host, epoch), nil
	case rec.Host == k.a.name && rec.Epoch > epoch:
		return fmt.Sprintf("its record has epoch %d, the ledger of this host %d: the ledger is older", rec.Epoch, epoch), nil
	}
	if !witness || k.a.host.OnMove(inst.UUID) != "" {
		return "", nil
	}
	asking, cancel := k.a.rt.WithTimeout(ctx, keepPatience)
	defer cancel()
	switch where, err := k.a.allocations().countedElsewhere(asking, inst.UUID); {
	case err != nil && k.a.rt.Boot().Since-k.began < witnessPatience:
		return "", fault.New(fault.Unavailable, "ask Placement where instance %s is counted: %w", inst.UUID, err)
	case err != nil:
		k.a.log.Warn("Placement does not say where a guest is counted: the fleet's records alone count", "instance", inst.UUID, "error", err)
	case where != "":
		return "Placement counts it on " + where + " alone, though its record is this host's: the records may be older", nil
	}
	return "", nil
}

// refOf names the attempt by which a guest left this host: the one that it has to clean up after,
// else the one of the record. A guest that has left without a word of either, since this ledger was
// restored, leaves by one whose uuid follows from the guest and the epoch.
func refOf(rec fleet.Instance, inst claims.Instance, left []fleet.Evacuated) migration.Ref {
	ref := migration.Ref{Instance: inst.UUID, Migration: rec.Migration, Attempt: cmp.Or(rec.Attempt, 1)}
	var last uint64
	for _, e := range left {
		if e.Instance == inst.UUID && e.Epoch > max(last, inst.Token.Epoch) {
			ref.Migration, ref.Attempt, last = e.Migration, e.Attempt, e.Epoch
		}
	}
	if ref.Migration == "" {
		ref.Migration = uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "berth:gave-way:%s:%d", inst.UUID, rec.Epoch)).String()
	}
	return ref
}

// seekOrphans looks for them after a whole look, and again after a while where it could not, and
// while there are any: no guest waits for it, since it reads the records of all hosts, one of which
// may be garbled. While one is, it looks again, so that this host says so for as long.
func (k *keeper) seekOrphans(ctx context.Context) {
	now := k.a.rt.Boot().Since
	if !k.seek || now < k.seekAt {
		return
	}
	k.seekAt = now + absentEvery
	found, err := k.findOrphans(ctx)
	if err != nil {
		k.a.log.Warn("whether the fleet's records have guests here that the ledger does not know could not be seen", "error", err)
	}
	if found == nil { // nothing was seen: what was found before stands
		return
	}
	sure := map[string]string{}
	for id, name := range found {
		if k.found[id] != "" {
			sure[id] = name
		}
	}
	if len(sure) < len(found) {
		k.seekAt = now + askEvery
	}
	k.found, k.seek = found, err != nil || len(found) > 0
	k.mu.Lock()
	k.orphans = slices.Sorted(maps.Values(sure))
	k.mu.Unlock()
}

// findOrphans gives the names of the records of this host of which its ledger knows nothing, by
// their guests. They stay: a ledger that was restored, or a host that was made anew, is no proof
// that they were deleted. One look alone names guests, too, that leave or are deleted meanwhile.
func (k *keeper) findOrphans(ctx context.Context) (map[string]string, error) {
	all, err := k.records.Instances(ctx, k.a.name)
	unreadable, rest := fleet.Unreadable(err)
	if rest != nil {
		return nil, rest
	}
	_, err = k.records.Evacuated(ctx, k.a.name)
	more, rest := fleet.Unreadable(err)
	if rest != nil {
		return nil, rest
	}
	unreadable = append(unreadable, more...)
	names := map[string]string{}
	for _, rec := range all {
		_, written := k.written[rec.UUID]
		if _, known := k.a.tracker.Instance(rec.UUID); !known && !written {
			names[rec.UUID] = cmp.Or(rec.Name, rec.UUID)
		}
	}
	k.mu.Lock()
	k.unreadable = unreadable
	k.mu.Unlock()
	if len(unreadable) > 0 {
		return names, fault.New(fault.Internal, "records that cannot be read: %s", strings.Join(unreadable, ", "))
	}
	return names, nil
}

// cleanUp removes what is left of guests that this host gave way for and whose new hosts have
// written them; what is on record of each goes last.
func (k *keeper) cleanUp(ctx context.Context) error {
	all, err := k.a.host.GivingWay()
	if err != nil {
		return err
	}
	giving := map[string]string{}
	var silent error
	for _, g := range all {
		words := "instance " + g.Ref.Instance + " was given to " + g.To
		why, err := k.cleanUpOne(ctx, g)
		switch {
		case err != nil:
			k.fail(g.Ref.Instance, err)
			giving[g.Ref.Instance] = words + ": " + err.Error()
			if storeSilent(err) {
				silent = err
			}
		case why != "":
			giving[g.Ref.Instance] = words + ": " + why
		default:
			k.fail(g.Ref.Instance, nil)
		}
		if silent != nil || ctx.Err() != nil {
			break
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if silent != nil {
		maps.Copy(giving, k.giving)
	}
	k.giving = giving
	return silent
}

// cleanUpOne says what it waits for; empty where nothing is left.
func (k *keeper) cleanUpOne(ctx context.Context, g host.GaveWay) (waits string, err error) {
	// A process that died in between may have left the copy.
	if _, err := k.a.host.GiveWay(ctx, g.Ref, g.Epoch, g.To); err != nil {
		return "", err
	}
	rec, _, err := k.records.Instance(ctx, g.Ref.Instance)
	var there migration.Guest
	switch {
	case errors.Is(err, fault.NotFound) && !hasReason(err, fleet.NoStore): // it was deleted where it went
	case err != nil:
		return "", errStore{err}
	default:
		if err := json.Unmarshal(rec.Guest, &there); err != nil {
			return "", fault.New(fault.Internal, "read the record of instance %s: %w", g.Ref.Instance, err)
		}
		if rec.Host != k.a.name && (there.Epoch != rec.Epoch || rec.Epoch < g.Epoch) {
			return "waits until " + rec.Host + " has made it its own", nil
		}
	}
	if err := k.a.host.CleanUpReturned(ctx, g.Ref, there); err != nil {
		return "", err
	}
	if err := k.records.CleanedUp(ctx, fleet.Evacuated{Source: k.a.name, Migration: g.Ref.Migration}); err != nil {
		return "", errStore{err}
	}
	k.a.log.Info("cleaned up after a guest that was evacuated", "instance", g.Ref.Instance, "migration", g.Ref.Migration, "host", g.To)
	return "", k.a.host.Cleaned(ctx, g.Ref)
}

// countedElsewhere names the first provider that an instance is counted on, where none of this
// host is; empty else.
func (p allocations) countedElsewhere(ctx context.Context, instance string) (string, error) {
	now, err := p.client.Allocations(ctx, instance)
	if err != nil {
		return "", err
	}
	t, err := p.Standing()
	if err != nil {
		return "", err
	}
	elsewhere := counted.NotOf(t, now.Allocations)
	if len(elsewhere) == 0 || ownOf(t, now.Allocations) > 0 {
		return "", nil
	}
	return "provider " + elsewhere[0], nil
}

// ownOf counts the providers of this host alone that something is held of: a disk that hosts
// share says nothing.
func ownOf(t *inventory.Tree, held map[string]placementclient.Resources) int {
	return len(slices.DeleteFunc(slices.Collect(maps.Keys(held)), func(rp string) bool { return !t.Owns(rp) }))
}
