package fleet

import (
	"context"
	"fmt"
	"slices"

	"berth/internal/fault"
)

// Instance reads the record of a guest and its revision; fault.NotFound where nobody keeps one.
func (r *Records) Instance(ctx context.Context, uuid string) (Instance, uint64, error) {
	k, err := key(InstancesPrefix, uuid)
	if err != nil {
		return Instance{}, 0, err
	}
	var in Instance
	rev, err := r.read(ctx, k, &in)
	if err == nil && rev == 0 {
		err = fault.New(fault.NotFound, "instance %s has no record", uuid)
	}
	return in, rev, err
}

// Instances lists the guests that a host has by their records, by uuid; of every host for "". Whose
// a guest is of which the record cannot be read nobody knows.
func (r *Records) Instances(ctx context.Context, host string) ([]Instance, error) {
	all, err := listOf[Instance](ctx, r, InstancesPrefix, host)
	if host == "" {
		return all, err
	}
	return slices.DeleteFunc(all, func(in Instance) bool { return in.Host != host }), err
}

// PutInstance writes a guest as the host with its token has it, where that differs from what is
// written; UpdatedAt is set here, and by what it was taken over stays while host and epoch do.
//
// A record with a higher epoch and another host is not overwritten: it is ahead, and the caller
// has to give way to it. fault.Forbidden, with a reason, and nothing written, where the caller
// itself counts as dead (declared_dead: Return first), where the record has a higher epoch of
// the same host (ledger_behind: its ledger is older than the record), or the same epoch of
// another (epoch_twice: who has the guest is for people to say).
func (r *Records) PutInstance(ctx context.Context, in Instance) (ahead *Instance, err error) {
	k, err := key(InstancesPrefix, in.UUID)
	if err != nil {
		return nil, err
	}
	deathKey, err := key(DeathsPrefix, in.Host)
	if err != nil {
		return nil, err
	}
	err = again(ctx, "write record "+k, func() error {
		var old Instance
		rev, err := r.read(ctx, k, &old)
		if err != nil {
			return err
		}
		now := in
		if rev != 0 {
			switch elsewhere := old.Host != in.Host; {
			case elsewhere && old.Epoch > in.Epoch:
				ahead = &old
				return nil
			case elsewhere && old.Epoch == in.Epoch:
				return refuse("epoch_twice", fmt.Sprintf("instance %s: hosts %s and %s both say that they have its epoch %d", in.UUID, old.Host, in.Host, in.Epoch),
					"look which of them has it: berth instance show "+in.UUID+" on each; then say so: berth migration settle MIGRATION")
			case old.Epoch > in.Epoch:
				return refuse("ledger_behind", fmt.Sprintf("instance %s: its record has epoch %d, the ledger of %s %d", in.UUID, old.Epoch, in.Host, in.Epoch),
					"the ledger is older than the record: look whether the guest is whole, and evacuate or delete it")
			case !elsewhere && old.Epoch == in.Epoch && in.Migration == "":
				now.Migration, now.Attempt = old.Migration, old.Attempt
			}
			now.UpdatedAt = old.UpdatedAt
			if same(old, now) {
				return nil
			}
		}
		var d Death
		if deathRev, err := r.read(ctx, deathKey, &d); err != nil {
			return err
		} else if deathRev != 0 {
			return declared(in.Host, d)
		}
		now.UpdatedAt = r.now()
		return r.store.Commit(ctx, []Condition{{k, rev}, {deathKey, 0}}, put(k, now))
	})
	return ahead, err
}

// HandOver writes that a host has given an instance to another, with the epoch that the other has:
// from then on that one writes the record. It is for the host that had it, once its own ledger says
// so. Nothing is written where the record is another's, or as new, and none is made where there is
// none. fault.Forbidden as PutInstance while the giver counts as dead.
func (r *Records) HandOver(ctx context.Context, uuid, from, to string, epoch uint64) error {
	k, err := key(InstancesPrefix, uuid)
	if err != nil {
		return err
	}
	deathKey, err := key(DeathsPrefix, from)
	if err != nil {
		return err
	}
	return again(ctx, "hand over record "+k, func() error {
		var in Instance
		rev, err := r.read(ctx, k, &in)
		if err != nil || rev == 0 || in.Host != from || in.Epoch >= epoch {
			return err
		}
		var d Death
		if deathRev, err := r.read(ctx, deathKey, &d); err != nil {
			return err
		} else if deathRev != 0 {
			return declared(from, d)
		}
		in.Host, in.Epoch, in.Migration, in.Attempt, in.UpdatedAt = to, epoch, "", 0, r.now()
		return r.store.Commit(ctx, []Condition{{k, rev}, {deathKey, 0}}, put(k, in))
	})
}

// DropInstance deletes the record of a guest that a host has deleted, if it is that host's and of
// no higher epoch; else it is another's, and stays.
func (r *Records) DropInstance(ctx context.Context, uuid, host string, epoch uint64) error {
	k, err := key(InstancesPrefix, uuid)
	if err != nil {
		return err
	}
	return again(ctx, "delete record "+k, func() error {
		var old Instance
		rev, err := r.read(ctx, k, &old)
		if err != nil || rev == 0 || old.Host != host || old.Epoch > epoch {
			return err
		}
		return r.store.Commit(ctx, []Condition{{k, rev}}, Change{Key: k})
	})
}

// TakeOver is what an attempt of an evacuation asks: the guest from Source to To. Record and Death
// are the revisions with which the guest's record and its host's death were read, and Epoch is
// the record's.
type TakeOver struct {
	Instance  string
	Migration string
	Attempt   int
	Source    string
	To        string
	Epoch     uint64
	Record    uint64
	Death     uint64
}

// TakeOver gives a dead host's guest to another, with the next epoch: the record is as it was
// read, and the death stands as it was read, in the very commit. The same attempt asking again
// gets the same answer, also after the source has cleaned up and the guest's new host has
// written it. fault.Forbidden, with every reason, where it cannot be any more: source_returned,
// death_changed, taken_over (by another), record_changed (GiveUp was, or somebody wrote),
// destination_dead. On
// fault.Unavailable and fault.InDoubt nobody knows: ask again, or GiveUp.
func (r *Records) TakeOver(ctx context.Context, t TakeOver) (Instance, error) {
	k, evacuatedKey, err := t.keys()
	if err != nil {
		return Instance{}, err
	}
	deathKey, toKey := DeathsPrefix+t.Source, DeathsPrefix+t.To
	var out Instance
	err = again(ctx, "take over instance "+t.Instance, func() error {
		old, rev, done, err := r.taken(ctx, t)
		if err != nil || done {
			out = old
			return err
		}
		var no fault.Refusal
		if rev != t.Record || old.Host != t.Source || old.Epoch != t.Epoch {
			code, message := "record_changed", "its record was written since it was read, or the attempt was given up"
			switch {
			case rev == 0:
				message = "it was deleted"
			case old.Host != t.Source:
				code, message = "taken_over", fmt.Sprintf("host %s has it, with epoch %d", old.Host, old.Epoch)
			}
			no.Add(fault.Forbidden, fault.Reason{Code: code, Message: "instance " + t.Instance + ": " + message, Change: "look at the guest again"})
		}
		var d Death
		deathRev, err := r.read(ctx, deathKey, &d)
		if err != nil {
			return err
		}
		switch {
		case deathRev == 0:
			no.Add(fault.Forbidden, fault.Reason{Code: "source_returned", Message: "host " + t.Source + " has come back since it was declared dead", Change: "look at the guest again"})
		case deathRev != t.Death:
			no.Add(fault.Forbidden, fault.Reason{Code: "death_changed", Message: "host " + t.Source + " was forgotten, or declared dead anew, since its death was read", Change: "look at the guest again"})
		}
		var toDeath Death
		toRev, err := r.read(ctx, toKey, &toDeath)
		if err != nil {
			return err
		}
		if toRev != 0 {
			no.Add(fault.Forbidden, fault.Reason{Code: "destination_dead", Message: "host " + t.To + " counts as dead itself", Change: "choose another host"})
		}
		if err := no.Err("take over instance %s", t.Instance); err != nil {
			return err
		}
		at := r.now()
		out = old
		out.Host, out.Epoch, out.Migration, out.Attempt, out.Moving, out.UpdatedAt = t.To, t.Epoch+1, t.Migration, t.Attempt, "", at
		left := Evacuated{
			Migration: t.Migration, Attempt: t.Attempt, Instance: t.Instance, Name: old.Name,
			Source: t.Source, To: t.To, Epoch: out.Epoch, At: at,
		}
		return r.store.Commit(ctx, []Condition{{k, t.Record}, {deathKey, t.Death}, {toKey, 0}}, put(k, out), put(evacuatedKey, left))
	})
	if err != nil {
		return Instance{}, err
	}
	return out, nil
}

func (t TakeOver) keys() (instance, evacuated string, err error) {
	if instance, err = key(InstancesPrefix, t.Instance); err != nil {
		return "", "", err
	}
	if evacuated, err = key(evacuatedPrefix, t.Source, t.Migration); err != nil {
		return "", "", err
	}
	if _, err = key(DeathsPrefix, t.To); err != nil {
		return "", "", err
	}
	if t.Record == 0 || t.Death == 0 {
		return "", "", fault.New(fault.Invalid, "take over instance %s: record revision %d, death revision %d: both must have been read", t.Instance, t.Record, t.Death)
	}
	return instance, evacuated, nil
}

// taken reads the record of the guest, and whether this attempt has taken it over: by its record,
// or by what the source has to clean up, should the guest be further on already.
func (r *Records) taken(ctx context.Context, t TakeOver) (in Instance, rev uint64, done bool, err error) {
	rev, err = r.read(ctx, InstancesPrefix+t.Instance, &in)
	if err != nil {
		return in, 0, false, err
	}
	if rev != 0 && in.Migration == t.Migration && in.Attempt == t.Attempt && in.Host == t.To && in.Epoch == t.Epoch+1 {
		return in, rev, true, nil
	}
	var left Evacuated
	leftRev, err := r.read(ctx, evacuatedPrefix+t.Source+"/"+t.Migration, &left)
	if err != nil {
		return in, 0, false, err
	}
	if leftRev != 0 && left.Attempt == t.Attempt && left.Instance == t.Instance {
		in.UUID, in.Host, in.Epoch, in.Migration, in.Attempt = t.Instance, left.To, left.Epoch, left.Migration, left.Attempt
		return in, rev, true, nil
	}
	return in, rev, false, nil
}

// GiveUp has every later TakeOver of the same reading refused, one whose answer was lost and that
// is still on its way too: the record is written anew as it is. fault.Forbidden, with reason
// was_taken_over, where the attempt has succeeded.
func (r *Records) GiveUp(ctx context.Context, t TakeOver) error {
	k, _, err := t.keys()
	if err != nil {
		return err
	}
	return again(ctx, "give up the evacuation of instance "+t.Instance, func() error {
		in, rev, done, err := r.taken(ctx, t)
		if err != nil {
			return err
		}
		if done {
			return refuse("was_taken_over", fmt.Sprintf("instance %s: this attempt has given it to host %s with epoch %d", t.Instance, in.Host, in.Epoch), "the move can only go on")
		}
		if rev != t.Record {
			return nil // revisions never come back: what was read is gone for good
		}
		return r.store.Commit(ctx, []Condition{{k, rev}}, put(k, in))
	})
}

// Evacuated lists what a source has to clean up when it returns, by migration.
func (r *Records) Evacuated(ctx context.Context, source string) ([]Evacuated, error) {
	prefix, err := key(evacuatedPrefix, source)
	if err != nil {
		return nil, err
	}
	return list[Evacuated](ctx, r, prefix+"/")
}

// CleanedUp says that nothing of an evacuated guest is left at its source, and its half in
// Placement is given up.
func (r *Records) CleanedUp(ctx context.Context, e Evacuated) error {
	k, err := key(evacuatedPrefix, e.Source, e.Migration)
	if err != nil {
		return err
	}
	return r.store.Commit(ctx, nil, Change{Key: k})
}
