package sim

import (
	"cmp"
	"context"
	"time"

	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
)

// confirmWindow is how long a move waits that confirms itself.
const confirmWindow = 2 * time.Minute

// begin has the agent's conductor accept a move.
func (a *agent) begin(ctx context.Context, m *move) error {
	r := conductor.Request{Instance: m.guest.uuid, Destination: m.to, Migration: m.uuid, Options: m.options, Priority: m.priority}
	if !m.cold() {
		_, err := a.conductor.LiveMigrate(ctx, r)
		return err
	}
	var window time.Duration // for ever
	if m.ending == itself {
		window = confirmWindow
	}
	r.Type, r.Change.Flavor, r.ConfirmWindow = m.kind, m.flavor, &window
	if m.kind == migration.TypeEvacuation {
		r.Source, r.Alternates, r.Stopped, r.AcceptLoss, r.ConfirmWindow = m.from, m.alternates, m.stopped, m.loss, nil
		if m.loss {
			r.Change.Image = &migration.Image{Path: imageFile, Format: "raw"}
		}
	}
	if m.apart {
		r.Source, r.ShareNothing, r.Alternates = m.from, true, m.alternates
	}
	if m.kind == migration.TypeRebuild {
		r.Destination, r.Change.Image = "", &migration.Image{Path: imageFile, Format: "raw"}
	}
	_, err := a.conductor.Start(ctx, r)
	return err
}

// The uses that a story names.
const (
	useStop  = 0
	usePause = 2
	useStart = 9
	// A volume that every host reaches is attached, for good.
	useAttach = 10
)

// read reads a move's record where it is conducted, if anybody answers.
func (w *world) read(m *move) {
	if a := w.conductor(m).agent; a != nil && !a.dead() && a.ready {
		if rec, err := a.conductor.Get(context.Background(), m.uuid); err == nil {
			m.last = rec
		}
	}
}

// word is the user of a guest that waits to be confirmed: he uses it, and then says his
// word, again while nobody answers.
func (w *world) word(m *move) {
	ctx := context.Background()
	for w.read(m); m.last.Status != migration.StatusFinished; w.read(m) {
		if m.last.Done() || w.conductor(m).lost {
			return
		}
		_ = w.outside.Sleep(ctx, 500*time.Millisecond)
	}
	for _, how := range m.uses {
		_ = w.outside.Sleep(ctx, time.Second)
		switch how {
		case useStart:
			m.guest.started(w)
			continue
		case useAttach:
			m.guest.attached(w)
			continue
		}
		m.guest.used(w, how)
	}
	if m.ending == itself || m.ending == leave {
		return
	}
	_ = w.outside.Sleep(ctx, m.later)
	// A revert may be given up, and then he says it again.
	for ; !m.last.Done() && !w.conductor(m).lost; _ = w.outside.Sleep(ctx, 2*time.Second) {
		w.read(m)
		if m.last.Status != migration.StatusFinished {
			continue
		}
		a := w.conductor(m).agent
		if a == nil || a.dead() || !a.ready {
			continue
		}
		var err error
		x := peer{a: a, m: a.m}.send(ctx, string(m.ending), func(ctx context.Context, b *agent) {
			if m.ending == confirmed {
				_, err = b.conductor.Confirm(ctx, m.uuid)
			} else {
				_, err = b.conductor.Revert(ctx, m.uuid)
			}
		})
		_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
		if s := m.guest.saved; s != nil && m.ending == reverted {
			m.guest.startedByHand(w, w.machines[s.host]) // a revert is refused beside it, until the guest has gone on from it
		}
		if err = cmp.Or(x.err, err); err != nil {
			w.note("user", string(m.ending), "was not accepted:", err.Error())
			continue
		}
		w.note("user", string(m.ending), m.uuid)
	}
}
