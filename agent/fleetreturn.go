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
	"berth/agent/witness"
	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
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
	if err := k.recognise(ctx); err != nil {
		return err
	}
	was, err := k.records.Return(ctx, k.a.name, k.a.rt.Boot().ID, k.noteDeath)
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

// noteDeath makes durable that a death of this host stands, before Return takes it away: only an
// operator, or a host with the right to fence, writes one. Without it no instance that runs here is
// given up for a record, which every host of an etcd can write.
func (k *keeper) noteDeath(ctx context.Context) error {
	if k.trust.memory.Died {
		return nil
	}
	next := k.trust.memory
	next.Died = true
	return k.remember(ctx, next)
}

// givenWay forgets the death once each instance that was evacuated by it has been given up. What is
// left to clean up of them needs no death.
func (k *keeper) givenWay(ctx context.Context) error {
	if !k.trust.memory.Died {
		return nil
	}
	next := k.trust.memory
	next.Died = false
	return k.remember(ctx, next)
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
	whole, unsure := !k.looked, !h.BootConfirmed() || k.suspect
	if err := k.beforeLook(ctx, unsure); err != nil {
		return err
	}
	was, held, waiting := h.Held(), map[string]string{}, map[string]bool{}
	// Nothing is left to give up. An evacuation that cannot be read hides nothing: each instance is judged
	// by its own record, too.
	given := !k.trust.unproven()
	for _, inst := range h.Owned() {
		_, before := was[inst.UUID]
		if !whole && !before {
			continue
		}
		v, why, err := k.judge(ctx, inst, left, unsure || before)
		switch {
		case err != nil:
			return err
		case v.Action == witness.Start:
		case v.Action == witness.GiveWay:
		case h.FreedByHand(inst.UUID):
			k.a.log.Warn("a guest is kept by an operator's word", "instance", inst.UUID, "name", inst.Name, "although", why)
			if v.Code == "given_away_unproven" {
				// The operator decided before this record was read.
				if err := host.KeepOwner(ctx, h, inst.UUID, "said in this boot before its record was read", "operator"); err != nil {
					return err
				}
			}
		default:
			held[inst.UUID] = why
			given = given && v.Code != "given_away" && v.Action != witness.Wait && v.Code != "record_unreadable"
			waiting[inst.UUID] = v.Action == witness.Wait
			if was[inst.UUID] != why {
				k.a.log.Error("an instance is held: it is not started here, and not moved", "instance", inst.UUID, "name", inst.Name, "waits", waiting[inst.UUID], "why", why)
			}
			if v.Code == "ledger_rolled_back" {
				if err := k.doubt(ctx, inst.UUID); err != nil {
					return err
				}
			}
		}
	}
	if err := k.afterLook(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	k.waiting = waiting
	k.mu.Unlock()
	// What has to be cleaned up of guests that the ledger does not have any more, or never knew.
	for _, e := range left {
		if inst, known := k.a.tracker.Instance(e.Instance); known && inst.Token.State == claims.TokenHere && inst.Token.Epoch < e.Epoch {
			continue // it was judged, and stays
		}
		ref := migration.Ref{Migration: e.Migration, Instance: e.Instance, Attempt: e.Attempt}
		gave, err := h.GiveWay(ctx, ref, e.Epoch, e.To, k.trust.memory.Died)
		given = given && err == nil
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
	if given {
		if err := k.givenWay(ctx); err != nil {
			return err
		}
	}
	if changed {
		k.a.log.Info("the fleet's records were asked in this boot: guests may be started", "held", len(held))
		k.starts = true
	}
	return nil
}

// start starts the guests that waited. Before ledger and hypervisor are joined that is Settle's
// to do.
func (k *keeper) start(ctx context.Context) error {
	if !k.starts || !k.a.settled() {
		return nil
	}
	err := k.a.host.StartConfirmed(ctx)
	k.starts = err != nil
	return err
}

// judge says what to do with an instance whose token the ledger has, and why; an instance that
// another host has with a higher epoch is given up here. Where unsure is false nobody needs to
// confirm it: in a boot that is confirmed only a contradiction counts.
//
// Placement is asked for an instance that stands still. Where it is silent for too long it is no
// witness; the records decide then, if they can.
func (k *keeper) judge(ctx context.Context, inst claims.Instance, left []fleet.Evacuated, unsure bool) (v witness.Verdict, why string, err error) {
	rec, _, err := k.records.Instance(ctx, inst.UUID)
	epoch := inst.Token.Epoch
	f := witness.Facts{Store: witness.StoreProven, SameDatabase: k.sameDatabase(), LedgerBehind: k.trust.behind || slices.Contains(k.trust.memory.Doubted, inst.UUID)}
	if unsure && k.trust.unproven() {
		f.Store = witness.StoreUnproven
	}
	unreadable := err
	switch kind := fault.KindOf(err); {
	case kind == fault.NotFound && !fault.HasReason(err, fleet.NoStore):
		f.Record = witness.NoRecord
	case kind == fault.Internal || kind == fault.Invalid:
		f.Record = witness.RecordUnreadable
	case err != nil:
		return v, "", err
	default:
		f.Record = recordFact(rec, k.a.name, epoch)
	}
	f.Died = k.trust.memory.Died
	evacuated := false
	for _, e := range left {
		evacuated = evacuated || e.Instance == inst.UUID
		if e.Instance == inst.UUID && e.Epoch > max(epoch, rec.Epoch) && (f.Died || f.Record == witness.NoRecord) {
			// It was deleted where it went, or its record is no witness of its own.
			f.Record, rec.Host, rec.Epoch = witness.OtherHigher, e.To, e.Epoch
		}
	}
	f.Moves = host.MovesWith(k.a.host, inst.UUID, rec.Host)
	// An operator may have decided against that very claim. One that was evacuated is not started for it:
	// the decision may be older than the evacuation, of which the record may be lost.
	if f.Record == witness.OtherHigher && !evacuated && !f.Died && host.Kept(k.a.host, inst.UUID, rec.Host, rec.Epoch) {
		f.Record = witness.OtherLower
	}
	var where string
	if v = witness.Decide(f); v.Code == "ledger_rolled_back" || v.Code == "given_away" && !f.Died || v.Code == "given_away_unproven" {
		// One that was made a moment before its ledger was lost has no record yet, and runs. And one
		// that runs is not ended for a record alone.
		d, exists, err := driver.Find(ctx, k.a.driver, inst.UUID)
		if err != nil {
			return v, "", err
		}
		f.Running = exists && d.Active()
		v = witness.Decide(f)
	}
	if unsure && (v.Action == witness.Start || v.Action == witness.Wait) && k.a.host.OnMove(inst.UUID) == "" {
		if f.Placement, where, err = k.placementFact(ctx, inst.UUID); err != nil {
			return v, "", err
		}
		v = witness.Decide(f)
	}
	switch why = v.Why; v.Code {
	case "record_unreadable":
		why += ": " + unreadable.Error()
	case "given_away_unproven":
		host.NoteRecorded(k.a.host, inst, rec.Host, rec.Epoch)
		end := ""
		if f.Running {
			end = "virsh destroy " + inst.Name + " and then "
		}
		why = fmt.Sprintf("its record has host %s with epoch %d, the ledger of this host %d, and no death of this host is known by which it was evacuated: if the instance is the one on %s, %sberth instance delete %s here (its disks stay)", rec.Host, rec.Epoch, epoch, rec.Host, end, inst.Name)
	case "epoch_twice":
		why = fmt.Sprintf("host %s says that it has it too, with the same epoch %d", rec.Host, epoch)
	case "ledger_behind":
		why = fmt.Sprintf("its record has epoch %d, the ledger of this host %d: the ledger is older", rec.Epoch, epoch)
	case "counted_elsewhere":
		why = "Placement counts it on " + where + " alone, though the fleet's records do not: they may be older"
	case "store_unproven":
		if names := k.missingHosts(); len(names) > 0 {
			why += ": " + strings.Join(names, ", ")
		}
	}
	if v.Action == witness.GiveWay {
		ref := refOf(rec, inst, left)
		k.a.log.Error("a guest of this host was given to another while this one was taken for dead", "instance", inst.UUID, "name", inst.Name,
			"host", rec.Host, "epoch", rec.Epoch, "had", epoch, "migration", ref.Migration)
		if _, err := k.a.host.GiveWay(ctx, ref, rec.Epoch, rec.Host, f.Died); err != nil {
			v.Action, why = witness.InDoubt, "it is "+rec.Host+"'s by now, and could not be given up: "+err.Error()
			for _, r := range fault.ReasonsOf(err) {
				if r.Change != "" {
					why += "; " + r.Change
				}
			}
		}
	}
	return v, why, nil
}

// recordFact compares a record with the epoch of this host's ledger.
func recordFact(rec fleet.Instance, self string, epoch uint64) witness.Record {
	switch own := rec.Host == self; {
	case own && rec.Epoch > epoch:
		return witness.OwnHigher
	case own && rec.Epoch == epoch:
		return witness.OwnSame
	case own:
		return witness.OwnLower
	case rec.Epoch > epoch:
		return witness.OtherHigher
	case rec.Epoch == epoch:
		return witness.OtherSame
	}
	return witness.OtherLower
}

// placementFact asks Placement where an instance is counted; where names another provider that it
// is counted on. fault.Unavailable while it may still answer soon after this agent's start.
func (k *keeper) placementFact(ctx context.Context, id string) (f witness.Placement, where string, err error) {
	asking, cancel := k.a.rt.WithTimeout(ctx, keepPatience)
	defer cancel()
	f, where, err = k.a.allocations().countedAt(asking, id)
	if err == nil {
		return f, where, nil
	}
	if k.a.rt.Boot().Since-k.began < witnessTimeout {
		return f, "", fault.New(fault.Unavailable, "ask Placement where instance %s is counted: %w", id, err)
	}
	k.a.log.Warn("Placement does not say where an instance is counted: it is no witness", "instance", id, "error", err)
	return witness.PlacementSilent, "", nil
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
	old, err := k.old.look(ctx, k.a.rt, k.a.host) // the loop alone writes it
	k.mu.Lock()
	defer k.mu.Unlock()
	if silent != nil {
		maps.Copy(giving, k.giving)
	}
	k.giving = giving
	if err == nil {
		k.old = old
	}
	return errors.Join(silent, err)
}

// cleanUpOne says what it waits for; empty where nothing is left.
func (k *keeper) cleanUpOne(ctx context.Context, g host.GaveWay) (waits string, err error) {
	// A process that died in between may have left the copy.
	if _, err := k.a.host.GiveWay(ctx, g.Ref, g.Epoch, g.To, k.trust.memory.Died); err != nil {
		return "", err
	}
	rec, _, err := k.records.Instance(ctx, g.Ref.Instance)
	var there migration.Guest
	switch {
	case errors.Is(err, fault.NotFound) && !fault.HasReason(err, fleet.NoStore): // it was deleted where it went
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

// countedAt says where Placement counts an instance; where names the first provider of others,
// where none is this host's.
func (p allocations) countedAt(ctx context.Context, instance string) (f witness.Placement, where string, err error) {
	now, err := p.client.Allocations(ctx, instance)
	if err != nil {
		return witness.PlacementSilent, "", err
	}
	t, err := p.Standing()
	if err != nil {
		return witness.PlacementSilent, "", err
	}
	elsewhere := counted.NotOf(t, now.Allocations)
	switch {
	case counted.OwnOf(t, now.Allocations) > 0:
		return witness.CountedHere, "", nil
	case len(elsewhere) > 0:
		return witness.CountedElsewhere, "provider " + elsewhere[0], nil
	}
	return witness.NotCounted, "", nil
}
