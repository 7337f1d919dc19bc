package sim

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
)

// keeper is agent.(*keeper) of one life of an agent, in its order: come back, look, clean up,
// keep. What decides is package fleet's and package host's own.
type keeper struct {
	a       *agent
	looked  bool
	suspect bool
	marks   map[string]string // by instance: host.RecordMark when its record was right
	host    bool              // its own record is
}

const keepEvery = 2 * time.Second

// keep is the task.
func (k *keeper) keep(ctx context.Context) error {
	for {
		limited, cancel := k.a.rt.WithTimeout(ctx, 30*time.Second)
		if err := k.round(limited); err != nil {
			k.a.w.note(k.a.m.name, "keeper:", err.Error())
		}
		cancel()
		if err := k.a.rt.Sleep(ctx, keepEvery); err != nil {
			return nil
		}
	}
}

func (k *keeper) round(ctx context.Context) error {
	a := k.a
	was, err := a.records.Return(ctx, a.m.name, a.rt.Boot().ID, func(context.Context) error {
		a.m.died = true
		return nil
	})
	if err != nil {
		return err
	}
	if was != nil {
		k.looked, k.suspect = false, true
		clear(k.marks)
	}
	if !k.looked || len(a.host.Held()) > 0 {
		if err := k.look(ctx); err != nil {
			return err
		}
	}
	return errors.Join(k.cleanUp(ctx), k.write(ctx), k.self(ctx))
}

// look is agent.(*keeper).look.
func (k *keeper) look(ctx context.Context) error {
	h, me := k.a.host, k.a.m.name
	left, err := k.a.records.Evacuated(ctx, me)
	if err != nil {
		return err
	}
	held := map[string]string{}
	for _, inst := range h.Owned() {
		rec, _, err := k.a.records.Instance(ctx, inst.UUID)
		switch {
		case errors.Is(err, fault.NotFound):
			continue
		case err != nil:
			return err
		case rec.Host != me && rec.Epoch > inst.Token.Epoch:
			ref := migration.Ref{Instance: inst.UUID, Migration: rec.Migration, Attempt: rec.Attempt}
			for _, e := range left {
				if e.Instance == inst.UUID && e.Epoch > inst.Token.Epoch {
					ref.Migration, ref.Attempt = e.Migration, e.Attempt
				}
			}
			if _, err := h.GiveWay(ctx, ref, rec.Epoch, rec.Host, k.a.m.died); err != nil {
				held[inst.UUID] = err.Error()
			}
		case rec.Host != me && rec.Epoch == inst.Token.Epoch:
			held[inst.UUID] = "two have it"
		case rec.Host == me && rec.Epoch > inst.Token.Epoch:
			held[inst.UUID] = "the ledger is older"
		}
	}
	for _, e := range left {
		ref := migration.Ref{Migration: e.Migration, Instance: e.Instance, Attempt: e.Attempt}
		gave, err := h.GiveWay(ctx, ref, e.Epoch, e.To, k.a.m.died)
		if err == nil && !gave {
			if err = h.CleanUpReturned(ctx, ref, migration.Guest{}); err == nil {
				err = k.a.records.CleanedUp(ctx, e)
			}
		}
		if err != nil {
			k.a.w.note(me, "gives way:", err.Error())
		}
	}
	changed, err := h.ConfirmBoot(ctx, held)
	if err != nil {
		return err
	}
	k.looked, k.suspect = true, false
	if changed && k.a.ready {
		return h.StartConfirmed(ctx)
	}
	return nil
}

// cleanUp is agent.(*keeper).cleanUp.
func (k *keeper) cleanUp(ctx context.Context) error {
	all, err := k.a.host.GivingWay()
	var errs []error
	for _, g := range all {
		errs = append(errs, k.cleanUpOne(ctx, g.Ref, g.Epoch, g.To))
	}
	return errors.Join(append(errs, err)...)
}

func (k *keeper) cleanUpOne(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	if _, err := k.a.host.GiveWay(ctx, ref, epoch, to, k.a.m.died); err != nil {
		return err
	}
	rec, _, err := k.a.records.Instance(ctx, ref.Instance)
	var there migration.Guest
	switch {
	case errors.Is(err, fault.NotFound):
	case err != nil:
		return err
	default:
		if err := json.Unmarshal(rec.Guest, &there); err != nil {
			return err
		}
		if rec.Host != k.a.m.name && (there.Epoch != rec.Epoch || rec.Epoch < epoch) {
			return nil // until its new host has made it its own
		}
	}
	if err := k.a.host.CleanUpReturned(ctx, ref, there); err != nil {
		return err
	}
	if err := k.a.records.CleanedUp(ctx, fleet.Evacuated{Source: k.a.m.name, Migration: ref.Migration}); err != nil {
		return err
	}
	return k.a.host.Cleaned(ctx, ref)
}

// write is agent.(*keeper).keep.
func (k *keeper) write(ctx context.Context) error {
	var errs []error
	for _, inst := range k.a.host.Owned() {
		if _, waits := k.a.host.Unconfirmed(inst.UUID); waits {
			continue
		}
		mark := k.a.host.RecordMark(inst.UUID) + k.a.host.OnMove(inst.UUID)
		if k.marks[inst.UUID] == mark {
			continue
		}
		err := k.put(ctx, inst)
		if err == nil {
			k.marks[inst.UUID] = mark
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (k *keeper) put(ctx context.Context, inst claims.Instance) error {
	was, _, err := k.a.records.Instance(ctx, inst.UUID)
	if err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	want := fleet.Instance{UUID: inst.UUID, Name: inst.Name, Host: k.a.m.name, Epoch: inst.Token.Epoch, Moving: k.a.host.OnMove(inst.UUID)}
	if same := err == nil && was.Host == want.Host && was.Epoch == want.Epoch; want.Moving != "" && same && len(was.Guest) > 0 {
		want.Guest = was.Guest
	} else {
		g, err := k.a.host.Record(ctx, inst.UUID)
		if err != nil {
			return err
		}
		if want.Guest, err = json.Marshal(g); err != nil {
			return err
		}
	}
	ahead, err := k.a.records.PutInstance(ctx, want)
	if err == nil && ahead != nil {
		k.looked = false // it gives way
	}
	return err
}

// self is agent.(*keeper).keepHost.
func (k *keeper) self(ctx context.Context) error {
	if k.host {
		return nil
	}
	now, err := k.a.records.Host(ctx, k.a.m.name)
	if err != nil {
		return err
	}
	d, err := k.a.host.Describe(ctx)
	if err != nil {
		return err
	}
	now.ProviderUUID, now.Boot, now.HostUUID = k.a.m.provider, k.a.rt.Boot().ID, d.HostUUID
	if now.Description, err = json.Marshal(d); err != nil {
		return err
	}
	err = k.a.records.PutHost(ctx, now)
	k.host = err == nil
	return err
}

// lostGuests is agent's evacuations: the fleet's records as a conductor asks them.
type lostGuests struct{ records *fleet.Records }

var _ conductor.Fleet = lostGuests{}

// Lost implements migration.Fleet.
func (f lostGuests) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	var out migration.LostGuest
	rec, revision, err := f.records.Instance(ctx, instance)
	if err != nil {
		return out, err
	}
	death, deathRevision, err := f.records.Dead(ctx, rec.Host)
	if errors.Is(err, fault.NotFound) {
		err = fault.New(fault.Forbidden, "host %s is not known to be dead", rec.Host)
	}
	if err == nil && rec.Moving != "" {
		err = fault.New(fault.Forbidden, "the guest is on migration %s", rec.Moving)
	}
	if err != nil {
		return out, err
	}
	h, err := f.records.Host(ctx, rec.Host)
	if err != nil {
		return out, err
	}
	if err := errors.Join(json.Unmarshal(rec.Guest, &out.Guest), json.Unmarshal(h.Description, &out.Source)); err != nil {
		return out, err
	}
	out.Guest.Epoch, out.Source.Name = rec.Epoch, rec.Host
	out.Record, out.Death = revision, deathRevision
	out.Proof = migration.DeathProof{Proof: string(death.Proof), By: death.By, Because: death.Because, At: death.At}
	return out, nil
}

func taking(ref migration.Ref, g migration.LostGuest, to string) fleet.TakeOver {
	return fleet.TakeOver{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Source: g.Source.Name, To: to,
		Epoch: g.Guest.Epoch, Record: g.Record, Death: g.Death,
	}
}

// TakeOver implements migration.Fleet.
func (f lostGuests) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	in, err := f.records.TakeOver(ctx, taking(ref, g, to))
	return migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: in.Epoch, From: g.Source.Name, To: to, Power: g.Guest.PowerState,
	}, err
}

// GiveUp implements migration.Fleet.
func (f lostGuests) GiveUp(ctx context.Context, ref migration.Ref, g migration.LostGuest) error {
	return f.records.GiveUp(ctx, taking(ref, g, "nobody"))
}

// Holder implements migration.Fleet.
func (f lostGuests) Holder(ctx context.Context, instance string) (string, uint64, error) {
	rec, _, err := f.records.Instance(ctx, instance)
	return rec.Host, rec.Epoch, err
}

// Cleaned implements migration.Fleet.
func (f lostGuests) Cleaned(ctx context.Context, ref migration.Ref, source string) (bool, error) {
	left, err := f.records.Evacuated(ctx, source)
	return err == nil && !slices.ContainsFunc(left, func(l fleet.Evacuated) bool { return l.Migration == ref.Migration }), err
}
