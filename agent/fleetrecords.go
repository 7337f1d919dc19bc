package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
)

// evacuations are the fleet's records as the conductor of an evacuation asks them.
type evacuations struct {
	records func() (*fleet.Records, error)
	// prove gives the death of a host with its revision, or fault.Forbidden with what is known.
	prove func(ctx context.Context, host, by string) (fleet.Death, uint64, error)
	// ready refuses while the store that answers lost records, which another host may have of an
	// instance of source; nil for a store that is believed.
	ready func(source string) error
	// provider gives the uuid of a host's provider in Placement, for a host whose record is lost.
	provider func(ctx context.Context, host string) (string, error)
	// elsewhere refuses while a living host has an instance of source, or does not say; nil to ask none.
	elsewhere func(ctx context.Context, records *fleet.Records, instance, source string, epoch uint64) error
	self      string
}

var _ conductor.Fleet = evacuations{}

// Lost implements migration.Fleet.
func (e evacuations) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	g, err := e.lost(ctx, instance)
	return g, fault.Wrap(err, "read what is known of instance %s, whose host is lost", instance)
}

func (e evacuations) lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	none := migration.LostGuest{}
	records, err := e.records()
	if err != nil {
		return none, err
	}
	rec, revision, err := records.Instance(ctx, instance)
	if err != nil {
		return none, storeThere(err)
	}
	if err := e.believed(rec.Host); err != nil {
		return none, err
	}
	death, deathRevision, err := e.prove(ctx, rec.Host, "host:"+e.self)
	if err != nil {
		return none, err
	}
	// The evacuation that has brought it to this host is none that takes it away: its token is here.
	if rec.Moving != "" && rec.Moving != rec.Migration {
		return none, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "on_a_move", Message: "when host " + rec.Host + " was lost, the guest was on migration " + rec.Moving + ", which may have taken it elsewhere", Have: rec.Moving,
			Change: "berth migration settle " + rec.Moving + " --guest-is-at HOST --gone " + rec.Host + ` --reason "what you have checked"`,
		})
	}
	var g migration.Guest
	if err := json.Unmarshal(rec.Guest, &g); err != nil {
		return none, fault.New(fault.Internal, "its record cannot be read: %w", err)
	}
	if len(rec.Guest) == 0 || string(rec.Guest) == "null" {
		return none, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "no_description", Message: "its record says that host " + rec.Host + " had it, and not what it is", Have: rec.Host,
			Change: unrecordedAdvice,
		})
	}
	// One that was lost twice, before its second host could write it, is still described as the first
	// had it; the epoch is the record's.
	g.Epoch = rec.Epoch
	h, err := records.Host(ctx, rec.Host)
	if err = storeThere(err); errors.Is(err, fault.NotFound) {
		h, err = e.unrecordedHost(ctx, rec.Host)
	}
	if err != nil {
		return none, err
	}
	source := migration.Description{}
	if len(h.Description) > 0 {
		if err := json.Unmarshal(h.Description, &source); err != nil {
			return none, fault.New(fault.Internal, "the record of host %s cannot be read: %w", rec.Host, err)
		}
	}
	source.Name = rec.Host
	if source.ProviderUUID == "" {
		source.ProviderUUID, source.HostUUID = h.ProviderUUID, h.HostUUID
	}
	if err := e.nowhereElse(ctx, records, instance, rec.Host, rec.Epoch); err != nil {
		return none, err
	}
	return migration.LostGuest{
		Guest: g, Source: source, Record: revision, Death: deathRevision,
		Proof: migration.DeathProof{Proof: string(death.Proof), By: death.By, Because: death.Because, At: death.At},
	}, nil
}

// unrecordedHost gives what is known of a host without a record: which provider is its own.
func (e evacuations) unrecordedHost(ctx context.Context, host string) (fleet.Host, error) {
	provider, err := e.provider(ctx, host)
	if err == nil && provider == "" {
		err = fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "host_unknown", Message: "neither the fleet's records nor Placement have host " + host + ", so what the instance holds there cannot be given up", Want: host,
			Change: unrecordedAdvice,
		})
	}
	return fleet.Host{Name: host, ProviderUUID: provider}, err
}

func (e evacuations) nowhereElse(ctx context.Context, records *fleet.Records, instance, source string, epoch uint64) error {
	if e.elsewhere == nil {
		return nil
	}
	return e.elsewhere(ctx, records, instance, source, epoch)
}

func (e evacuations) believed(source string) error {
	if e.ready == nil {
		return nil
	}
	return e.ready(source)
}

// storeThere tells a record that is not there from a store that is not.
func storeThere(err error) error {
	if errors.Is(err, fault.NotFound) && fault.HasReason(err, fleet.NoStore) {
		return noFleetStore()
	}
	return err
}

func taking(ref migration.Ref, g migration.LostGuest, to string) fleet.TakeOver {
	return fleet.TakeOver{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Source: g.Source.Name, To: to,
		Epoch: g.Guest.Epoch, Record: g.Record, Death: g.Death,
	}
}

// TakeOver implements migration.Fleet.
func (e evacuations) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	records, err := e.records()
	if err != nil {
		return migration.Commit{}, err
	}
	if err := e.believed(g.Source.Name); err != nil {
		return migration.Commit{}, err
	}
	// Of one that was taken over before, the answer may have been lost: it is told again.
	if now, _, err := records.Instance(ctx, ref.Instance); err == nil && now.Host == g.Source.Name {
		if err := e.nowhereElse(ctx, records, ref.Instance, now.Host, now.Epoch); err != nil {
			return migration.Commit{}, err
		}
	}
	in, err := records.TakeOver(ctx, taking(ref, g, to))
	if err != nil {
		return migration.Commit{}, err
	}
	return migration.Commit{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: in.Epoch, From: g.Source.Name, To: to, Power: g.Guest.PowerState,
	}, nil
}

// GiveUp implements migration.Fleet.
func (e evacuations) GiveUp(ctx context.Context, ref migration.Ref, g migration.LostGuest) error {
	records, err := e.records()
	if err != nil {
		return err
	}
	return records.GiveUp(ctx, taking(ref, g, e.self))
}

// Cleaned implements migration.Fleet.
func (e evacuations) Cleaned(ctx context.Context, ref migration.Ref, source string) (bool, error) {
	records, err := e.records()
	if err != nil {
		return false, err
	}
	left, err := records.Evacuated(ctx, source)
	if keys, rest := fleet.Unreadable(err); rest != nil || slices.ContainsFunc(keys, func(key string) bool { return fleet.NameOf(key) == ref.Migration }) {
		return false, err
	}
	return !slices.ContainsFunc(left, func(l fleet.Evacuated) bool { return l.Migration == ref.Migration }), nil
}

// Holder implements migration.Fleet.
func (e evacuations) Holder(ctx context.Context, instance string) (host string, epoch uint64, err error) {
	records, err := e.records()
	if err != nil {
		return "", 0, err
	}
	in, _, err := records.Instance(ctx, instance)
	return in.Host, in.Epoch, storeThere(err)
}

// prove gives the death of a host with its revision, or what is known of it.
func (a *Agent) prove(ctx context.Context, host, by string) (fleet.Death, uint64, error) {
	return a.deaths.Prove(ctx, host, by)
}

func notDead(host string) fault.Reason {
	return fault.Reason{
		Code: "not_dead", Message: "host " + host + " does not count as dead", Change: "berth host fence " + host + ", or berth host declare-dead " + host + ` --reason "how you know"`,
	}
}
