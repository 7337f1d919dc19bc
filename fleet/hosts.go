package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
)

// PutHost writes what a host says of itself, where it differs from what is written. UpdatedAt is
// set here, Incarnation is Rewrote's alone, and SelfFence is believed only of a host that is new: after that it is Armed's alone, as
// Witnesses are, and ends with the boot. fault.Forbidden, with reason declared_dead, while the host counts as dead: then it
// has to Return first.
func (r *Records) PutHost(ctx context.Context, h Host) error {
	return r.changeHost(ctx, h.Name, func(old *Host) bool {
		h.UpdatedAt, h.Incarnation = old.UpdatedAt, old.Incarnation
		if old.Name != "" {
			h.SelfFence, h.Lease, h.Witnesses = old.SelfFence && old.Boot == h.Boot, old.Lease, old.Witnesses
		}
		if same(*old, h) {
			return false
		}
		*old = h
		return true
	})
}

// Armed writes whether a host's watchdog is fed by its lease alone, in this boot, and leaves the
// rest as it is. witnesses are Host.Witnesses. length is the lease's; 0 says that it is not fed so. That is written in any case,
// so that a call before whose outcome nobody knows cannot come after it. fault.NotFound before
// the host has written itself; refused as PutHost.
func (r *Records) Armed(ctx context.Context, host, boot string, length Seconds, witnesses []string) error {
	found, armed := false, length > 0
	err := r.changeHost(ctx, host, func(old *Host) bool {
		if found = old.Name != ""; !found || armed && old.SelfFence && old.Boot == boot && old.Lease == length && (old.Witnesses == nil) == (witnesses == nil) && slices.Equal(old.Witnesses, witnesses) {
			return false
		}
		old.SelfFence, old.Boot, old.Lease, old.Witnesses = armed, boot, length, witnesses
		return true
	})
	if err == nil && !found {
		return fault.New(fault.NotFound, "host %s has no record", host)
	}
	return err
}

// changeHost writes a host's record unless change says that it is right. change may be called
// again.
func (r *Records) changeHost(ctx context.Context, host string, change func(*Host) bool) error {
	hostKey, err := key(hostsPrefix, host)
	if err != nil {
		return err
	}
	return again(ctx, "write record "+hostKey, func() error {
		var h Host
		rev, err := readOwn(ctx, r, hostKey, &h)
		if err != nil || !change(&h) {
			return err
		}
		var d Death
		if deathRev, err := readOwn(ctx, r, DeathsPrefix+host, &d); err != nil {
			return err
		} else if deathRev != 0 {
			return declared(host, d)
		}
		h.UpdatedAt = r.now()
		return r.store.Commit(ctx, []Condition{{hostKey, rev}, {DeathsPrefix + host, 0}}, put(hostKey, h))
	})
}

// Hosts lists all hosts that have written themselves, by name.
func (r *Records) Hosts(ctx context.Context) ([]Host, error) { return list[Host](ctx, r, hostsPrefix) }

// Host reads one; fault.NotFound where it never wrote itself, or was forgotten.
func (r *Records) Host(ctx context.Context, host string) (Host, error) {
	hostKey, err := key(hostsPrefix, host)
	if err != nil {
		return Host{}, err
	}
	var h Host
	rev, err := r.read(ctx, hostKey, &h)
	if err == nil && rev == 0 {
		err = fault.New(fault.NotFound, "host %s has no record", host)
	}
	return h, err
}

// leases is the store's ability, or the refusal of one that has it not.
func (r *Records) leases() (Leases, error) {
	if l, ok := r.store.(Leases); ok {
		return l, nil
	}
	return nil, refuse("no_leases", "the store of the fleet's records cannot tell who is alive", "set [fleet] etcd on all hosts")
}

// HasLeases reports whether the store can tell who is alive.
func (r *Records) HasLeases() bool {
	_, err := r.leases()
	return err == nil
}

// Alive gives the hosts whose lease stands, with the boot each is in. fault.Forbidden, with
// reason no_leases, where the store has none.
func (r *Records) Alive(ctx context.Context) (map[string]string, error) {
	if _, err := r.leases(); err != nil {
		return nil, err
	}
	recs, err := r.store.List(ctx, alivePrefix)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, rec := range recs {
		var boot string
		if err := decode(rec, &boot); err != nil {
			return nil, err
		}
		out[strings.TrimPrefix(rec.Key, alivePrefix)] = boot
	}
	return out, nil
}

// KeepAlive has a host count as alive for at least length after this call began.
// fault.Forbidden as Alive.
func (r *Records) KeepAlive(ctx context.Context, host, boot string, length Seconds) error {
	aliveKey, err := key(alivePrefix, host)
	if err != nil {
		return err
	}
	l, err := r.leases()
	if err != nil {
		return err
	}
	value, err := json.Marshal(boot)
	if err != nil {
		return err
	}
	return l.Lease(ctx, aliveKey, value, length)
}

// Leave ends the host's lease at once: an orderly stop. fault.Forbidden as Alive.
func (r *Records) Leave(ctx context.Context, host string) error {
	aliveKey, err := key(alivePrefix, host)
	if err != nil {
		return err
	}
	l, err := r.leases()
	if err != nil {
		return err
	}
	return l.Release(ctx, aliveKey)
}

// NoQuorum is Leases.NoQuorum; fault.Forbidden as Alive.
func (r *Records) NoQuorum(ctx context.Context) (refused bool, err error) {
	l, err := r.leases()
	if err != nil {
		return false, err
	}
	return l.NoQuorum(ctx)
}

// DeclareDead writes that a host is dead, and gives the death that stands: an older one where
// there is one, which is left as it is, since evacuations go by it. At is set here, and Boot to
// the host's last where the caller names none. A host that never wrote itself, or whose record was
// lost, can be declared dead too: the caller knows of it otherwise. fault.Forbidden, with reason host_came_back, where it is in another boot than
// the one named: it was started again after it was fenced.
func (r *Records) DeclareDead(ctx context.Context, d Death) (Death, error) {
	return r.declareDead(ctx, d, func(Host) ([]Condition, error) { return nil, nil })
}

// DeclareDeadUnrecorded is DeclareDead by a caller that saw no record of the host: there must be none
// in the very commit. fault.Forbidden, with reason host_came_back, where it has written one since.
func (r *Records) DeclareDeadUnrecorded(ctx context.Context, d Death) (Death, error) {
	return r.declareDead(ctx, d, func(h Host) ([]Condition, error) {
		if h.Name == "" {
			return nil, nil
		}
		return nil, refuse("host_came_back", fmt.Sprintf("host %s had no record, and has written one since, in boot %s", h.Name, h.Boot), "look at it again")
	})
}

// DeclareDeadByLease declares a host dead that fences itself and whose lease is over: both hold
// in the very commit, and this process has seen for a whole length that it is over. Before that it
// is fault.Busy, with reason lease_over_lately, which says how long it still takes; WatchLapsed looks
// meanwhile. declarer is the host of this process: it has to be one of the witnesses on record, since
// the silence of another does not stop the host. fault.Forbidden with the reason where one does not
// hold, lease_stands, no_self_fence, not_a_witness or no_leases; else as DeclareDead.
func (r *Records) DeclareDeadByLease(ctx context.Context, host, declarer, by string) (Death, error) {
	if _, err := r.leases(); err != nil {
		return Death{}, err
	}
	d := Death{Host: host, Proof: ProofSelfFence, By: by, Because: "its lease is over, and its watchdog resets it before that"}
	return r.declareDead(ctx, d, func(h Host) ([]Condition, error) {
		if !h.SelfFence {
			return nil, refuse("no_self_fence", "host "+host+" does not fence itself: an expired lease is no proof that it is dead",
				"fence it (berth host fence "+host+"), or say that it is dead (berth host declare-dead "+host+" --reason \"how you know\")")
		}
		// An older agent tells none. It asks all hosts that it read within the last minute.
		if h.Witnesses != nil && !slices.Contains(h.Witnesses, declarer) {
			return nil, notAWitness(h, declarer)
		}
		left, err := r.lapsed(ctx, host, h.Lease)
		switch {
		case err != nil:
			return nil, err
		case left > 0:
			return nil, lately(host, left)
		}
		return []Condition{{alivePrefix + host, 0}}, nil
	})
}

// notAWitness refuses a death by a lease to a host that the dead one would not have asked.
func notAWitness(h Host, declarer string) error {
	change := "berth host fence " + h.Name + `, or, once you have checked that it is off, berth host declare-dead ` + h.Name + ` --reason "how you know"`
	if len(h.Witnesses) > 0 {
		change = "ask one of these hosts (-c " + h.Witnesses[0] + "); or " + change
	}
	have := strings.Join(h.Witnesses, ", ")
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "not_a_witness", Message: "host " + declarer + " is not among the hosts that " + h.Name + " asks before it runs on without its lease: " + h.Name + " may be running",
		Have: have, Want: declarer, Change: change,
	})
}

// MayDeclareDead says whether the store lets this process write that a host is dead;
// fault.Forbidden with the reason where not. Ask it before a host is fenced.
func (r *Records) MayDeclareDead(ctx context.Context, host string) error {
	k, err := key(DeathsPrefix, host)
	if err != nil {
		return err
	}
	if p, ok := r.store.(Permits); ok {
		return p.Allowed(ctx, put(k, Death{Host: host}))
	}
	return nil
}

// WritesOthers gives the other hosts whose leases the store lets this process write, which nobody
// needs: it has no roles then. It writes none. nil where the store does not say.
func (r *Records) WritesOthers(ctx context.Context, self string) (others []string, err error) {
	p, ok := r.store.(Permits)
	if !ok {
		return nil, nil
	}
	hosts, err := r.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if h.Name == self {
			continue
		}
		switch err := p.Allowed(ctx, put(alivePrefix+h.Name, "asked")); {
		case err == nil:
			others = append(others, h.Name)
		case !errors.Is(err, fault.Forbidden):
			return nil, err
		}
	}
	return others, nil
}

func (r *Records) declareDead(ctx context.Context, d Death, proof func(Host) ([]Condition, error)) (Death, error) {
	deathKey, err := key(DeathsPrefix, d.Host)
	if err != nil {
		return Death{}, err
	}
	hostKey, told := hostsPrefix+d.Host, d.Boot
	var out Death
	err = again(ctx, "declare host "+d.Host+" dead", func() error {
		out = Death{}
		if rev, err := r.read(ctx, deathKey, &out); err != nil || rev != 0 {
			return err
		}
		var h Host
		rev, err := r.read(ctx, hostKey, &h)
		switch {
		case err != nil:
			return err
		case rev == 0 && d.Proof == ProofSelfFence:
			return fault.New(fault.NotFound, "declare host %s dead: it has no record", d.Host)
		case told != "" && h.Boot != told:
			return refuse("host_came_back", fmt.Sprintf("host %s is in another boot (%s) than the one that ended (%s)", d.Host, h.Boot, told), "look at it again")
		}
		when, err := proof(h)
		if err != nil {
			return err
		}
		out = d
		out.Boot, out.At, out.Forgotten = h.Boot, r.now(), false
		return r.store.Commit(ctx, append(when, Condition{deathKey, 0}, Condition{hostKey, rev}), put(deathKey, out))
	})
	if err != nil {
		return Death{}, err
	}
	return out, nil
}

// now is the time as it is read back: without what JSON loses.
func (r *Records) now() time.Time { return r.rt.Now().UTC().Round(0) }

// Dead reads the death of a host and its revision; fault.NotFound where it does not count as
// dead.
func (r *Records) Dead(ctx context.Context, host string) (Death, uint64, error) {
	deathKey, err := key(DeathsPrefix, host)
	if err != nil {
		return Death{}, 0, err
	}
	var d Death
	rev, err := r.read(ctx, deathKey, &d)
	if err == nil && rev == 0 {
		err = fault.New(fault.NotFound, "host %s does not count as dead", host)
	}
	return d, rev, err
}

// Deaths lists all that stand, by host.
func (r *Records) Deaths(ctx context.Context) ([]Death, error) {
	return list[Death](ctx, r, DeathsPrefix)
}

// Return says that a host is back, in this boot: from here on nobody can take a guest from it by
// what was known before. was is the death that this call took away, nil for none, and for one that an
// earlier call took of which the answer was lost. In another boot than
// the one of its record it does not fence itself until it says so anew. Neither its record nor its
// death has to be readable for that. After that, and before
// it starts anything, it reads what is evacuated from it and gives way. Each of before is called while a
// death stands, and where it fails nothing is written.
func (r *Records) Return(ctx context.Context, host, boot string, before ...func(context.Context) error) (was *Death, err error) {
	hostKey, err := key(hostsPrefix, host)
	if err != nil {
		return nil, err
	}
	deathKey := DeathsPrefix + host
	err = again(ctx, "return of host "+host, func() error {
		var h Host
		rev, err := readOwn(ctx, r, hostKey, &h)
		if err != nil {
			return err
		}
		var d Death
		deathRev, err := readOwn(ctx, r, deathKey, &d)
		if err != nil {
			return err
		}
		was = nil
		if deathRev == 0 && rev != 0 && h.Boot == boot {
			return nil
		}
		if h.Boot != boot {
			h.SelfFence, h.Lease, h.Witnesses = false, 0, nil
		}
		h.Name, h.Boot, h.UpdatedAt = host, boot, r.now()
		if deathRev != 0 {
			was = &d
			for _, note := range before {
				if err := note(ctx); err != nil {
					return err
				}
			}
		}
		// The host's record is written in any case, so that a death by its lease, which was
		// decided by the old one, fails.
		return r.store.Commit(ctx, []Condition{{hostKey, rev}, {deathKey, deathRev}}, put(hostKey, h), Change{Key: deathKey})
	})
	if err != nil {
		return nil, err
	}
	return was, nil
}

// Forget ends the records of a dead host that never returns: its death says so, and its own record
// goes unless guests are still recorded there. The caller has given up what it holds in Placement
// before, and said CleanedUp of everything evacuated from it. fault.NotFound where the host does
// not count as dead; fault.Busy where something evacuated is left, since guests were taken over
// meanwhile: their halves are to be given up first, and then it is asked again.
func (r *Records) Forget(ctx context.Context, host string) error {
	// The death is written first, so that no take-over that has read it before can follow.
	err := again(ctx, "forget host "+host, func() error {
		d, rev, err := r.Dead(ctx, host)
		if err != nil {
			return err
		}
		d.Forgotten = true
		return r.store.Commit(ctx, []Condition{{DeathsPrefix + host, rev}}, put(DeathsPrefix+host, d))
	})
	if err != nil {
		return err
	}
	gone, err := r.Evacuated(ctx, host)
	if err != nil {
		return err
	}
	if len(gone) > 0 {
		return fault.New(fault.Busy, "forget host %s: %d guests were evacuated from it whose halves are not given up", host, len(gone))
	}
	left, err := r.Instances(ctx, host)
	if err != nil || len(left) > 0 {
		return err
	}
	return again(ctx, "forget host "+host, func() error {
		d, rev, err := r.Dead(ctx, host)
		if errors.Is(err, fault.NotFound) || err == nil && !d.Forgotten {
			return nil // it has come back meanwhile
		}
		if err != nil {
			return err
		}
		return r.store.Commit(ctx, []Condition{{DeathsPrefix + host, rev}}, Change{Key: hostsPrefix + host})
	})
}
