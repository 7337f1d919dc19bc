package death

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

// Evacuations are the fleet's records as the conductor of an evacuation asks them.
type Evacuations struct {
	Records func() (*fleet.Records, error)
	// Prove gives the death of a host with its revision, or fault.Forbidden with what is known.
	Prove func(ctx context.Context, host, by string) (fleet.Death, uint64, error)
	// Ready refuses while the store that answers lost records, which another host may have of an
	// instance of source; nil for a store that is believed.
	Ready func(source string) error
	// Provider gives the uuid of a host's provider in Placement, for a host whose record is lost.
	Provider func(ctx context.Context, host string) (string, error)
	// Elsewhere refuses while a living host has the instance of a record, or the migration that it was on,
	// or does not say; nil to ask none, and to refuse each that was on one.
	Elsewhere func(ctx context.Context, records *fleet.Records, in fleet.Instance) error
	Self      string
}

var _ conductor.Fleet = Evacuations{}

// Lost implements migration.Fleet.
func (e Evacuations) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	g, err := e.lost(ctx, instance)
	return g, fault.Wrap(err, "read what is known of instance %s, whose host is lost", instance)
}

func (e Evacuations) lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	none := migration.LostGuest{}
	records, err := e.Records()
	if err != nil {
		return none, err
	}
	rec, revision, err := records.Instance(ctx, instance)
	if err != nil {
		return none, fleet.StoreThere(err)
	}
	if err := e.believed(rec.Host); err != nil {
		return none, err
	}
	death, deathRevision, err := e.Prove(ctx, rec.Host, "host:"+e.Self)
	if err != nil {
		return none, err
	}
	// The evacuation that has brought it to this host is none that takes it away: its token is here.
	if e.Elsewhere == nil && rec.Moving != "" && rec.Moving != rec.Migration {
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
			Change: UnrecordedAdvice,
		})
	}
	// One that was lost twice, before its second host could write it, is still described as the first
	// had it; the epoch is the record's.
	g.Epoch = rec.Epoch
	h, err := records.Host(ctx, rec.Host)
	if err = fleet.StoreThere(err); errors.Is(err, fault.NotFound) {
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
	if err := e.nowhereElse(ctx, records, rec); err != nil {
		return none, err
	}
	return migration.LostGuest{
		Guest: g, Source: source, Record: revision, Death: deathRevision,
		Proof: migration.DeathProof{Proof: string(death.Proof), By: death.By, Because: death.Because, At: death.At},
	}, nil
}

// unrecordedHost gives what is known of a host without a record: which provider is its own.
func (e Evacuations) unrecordedHost(ctx context.Context, host string) (fleet.Host, error) {
	provider, err := e.Provider(ctx, host)
	if err == nil && provider == "" {
		err = fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "host_unknown", Message: "neither the fleet's records nor Placement have host " + host + ", so what the instance holds there cannot be given up", Want: host,
			Change: UnrecordedAdvice,
		})
	}
	return fleet.Host{Name: host, ProviderUUID: provider}, err
}

func (e Evacuations) nowhereElse(ctx context.Context, records *fleet.Records, in fleet.Instance) error {
	if e.Elsewhere == nil {
		return nil
	}
	return e.Elsewhere(ctx, records, in)
}

func (e Evacuations) believed(source string) error {
	if e.Ready == nil {
		return nil
	}
	return e.Ready(source)
}

// UnrecordedAdvice is what an operator can do for an instance without a record.
const UnrecordedAdvice = "define it by hand where its disks are, then berth instance adopt NAME there"

func taking(ref migration.Ref, g migration.LostGuest, to string) fleet.TakeOver {
	return fleet.TakeOver{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Source: g.Source.Name, To: to,
		Epoch: g.Guest.Epoch, Record: g.Record, Death: g.Death,
	}
}

// TakeOver implements migration.Fleet.
func (e Evacuations) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	records, err := e.Records()
	if err != nil {
		return migration.Commit{}, err
	}
	if err := e.believed(g.Source.Name); err != nil {
		return migration.Commit{}, err
	}
	// Of one that was taken over before, the answer may have been lost: it is told again.
	if now, _, err := records.Instance(ctx, ref.Instance); err == nil && now.Host == g.Source.Name {
		if err := e.nowhereElse(ctx, records, now); err != nil {
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
func (e Evacuations) GiveUp(ctx context.Context, ref migration.Ref, g migration.LostGuest) error {
	records, err := e.Records()
	if err != nil {
		return err
	}
	return records.GiveUp(ctx, taking(ref, g, e.Self))
}

// Cleaned implements migration.Fleet.
func (e Evacuations) Cleaned(ctx context.Context, ref migration.Ref, source string) (bool, error) {
	records, err := e.Records()
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
func (e Evacuations) Holder(ctx context.Context, instance string) (host string, epoch uint64, err error) {
	records, err := e.Records()
	if err != nil {
		return "", 0, err
	}
	in, _, err := records.Instance(ctx, instance)
	return in.Host, in.Epoch, fleet.StoreThere(err)
}
