package fleet

import (
	"context"
	"errors"
	"time"

	"berth/internal/fault"
)

// Moment is a state of a store: which incarnation of it, and how far that has come.
type Moment struct {
	// Incarnation is new when the store is created empty, restored from a backup, or found to be
	// older than it was.
	Incarnation string
	// Revision is that of the last commit. Within an incarnation it never goes back.
	Revision uint64
	// Session names the run of the server that told this; empty where the store has none.
	Session string
	// Serving is for how long the server process has served; 0 where it does not matter.
	Serving time.Duration
}

// Incarnations is an ability of a Store that can say which incarnation of it answers. It is found
// by a type assertion.
type Incarnations interface {
	// Moment gives the state that the newest answer came from. It may ask the store.
	Moment(ctx context.Context) (Moment, error)
	// Renew gives the store another incarnation, unless it has another than was by now: the
	// caller has seen a later revision of was, so what was committed since is lost. Safe to repeat.
	Renew(ctx context.Context, was string) error
}

// History is an ability of a Store whose revisions go by a clock: in one that was rolled back they
// soon pass those that were lost. It is found by a type assertion.
type History interface {
	// Has reports whether what was committed up to a moment that was told is in the store still.
	// fault.Invalid from a server that is older than the question.
	Has(ctx context.Context, told Moment) (bool, error)
}

// Has reports whether the store has still what it had at a moment that it told. It is true where
// the store cannot say.
func (r *Records) Has(ctx context.Context, told Moment) (bool, error) {
	h, ok := r.store.(History)
	if !ok || told.Session == "" {
		return true, nil
	}
	has, err := h.Has(ctx, told)
	if errors.Is(err, fault.Invalid) {
		return true, nil
	}
	return has, err
}

// Moment gives the state of the store; ok is false where the store does not tell.
func (r *Records) Moment(ctx context.Context) (m Moment, ok bool, err error) {
	i, ok := r.store.(Incarnations)
	if !ok {
		return Moment{}, false, nil
	}
	m, err = i.Moment(ctx)
	return m, m.Incarnation != "", err
}

// RenewIncarnation gives the store another incarnation than was.
func (r *Records) RenewIncarnation(ctx context.Context, was string) error {
	i, ok := r.store.(Incarnations)
	if !ok {
		return fault.New(fault.Invalid, "renew the store's incarnation: it has none")
	}
	return i.Renew(ctx, was)
}

// Rewrote notes in a host's record that all records of this host are written in an incarnation
// of the store. fault.NotFound before the host has written itself; refused as PutHost.
func (r *Records) Rewrote(ctx context.Context, host, incarnation string) error {
	found := false
	err := r.changeHost(ctx, host, func(old *Host) bool {
		if found = old.Name != ""; !found || old.Incarnation == incarnation {
			return false
		}
		old.Incarnation = incarnation
		return true
	})
	if err == nil && !found {
		return fault.New(fault.NotFound, "host %s has no record", host)
	}
	return err
}
