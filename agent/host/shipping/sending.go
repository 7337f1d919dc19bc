package shipping

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/agent/host/memory"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/transfer"
)

// Bounds of a shipment from here. Arbitrary, as a conductor's own are: a piece that comes
// may have to wait for the sync of what came before, and a seal for all of it.
const (
	pieceTime = 30 * time.Second
	slowTime  = 10 * time.Minute
)

// sending is a shipment that this process brings to another host. err is read after done is
// closed; the rest never changes.
type sending struct {
	to   string
	stop context.CancelCauseFunc
	done chan struct{}
	err  error
}

// Send ships files of a guest that is off, and held by this attempt, straight to another
// host, and returns when all is sealed there. While it is under way a second call joins it;
// after a restart of either agent it goes on from where the destination is. It goes on when
// whoever called is gone, until Stop. fault.Unavailable when nothing moved for a while, and
// fault.Busy when ctx ended first.
func (k *Dock) Send(ctx context.Context, ref migration.Ref, r migration.SendRequest) error {
	s, err := k.sendOrJoin(ctx, ref, r)
	if err == nil {
		if err = runtime.Await(ctx, k.c.Runtime, s.done); err != nil {
			err = fault.New(fault.Busy, "it is under way")
		} else {
			err = s.err
		}
	}
	return fault.Wrap(err, "send the disks of migration %s from %s to %s", ref.Migration, k.c.Name, r.Destination)
}

func (k *Dock) sendOrJoin(ctx context.Context, ref migration.Ref, r migration.SendRequest) (*sending, error) {
	// With the turn: an undo of what this stands on stops what began before it, with its own.
	unlock, err := k.c.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := k.c.Guests.Off(ctx, ref); err != nil {
		return nil, err
	}
	if _, err := k.mustHold(ref); err != nil {
		return nil, err
	}
	key := memory.Key(ref)
	sending, stop := context.WithCancelCause(k.c.Context)
	s, fresh := k.join(key, r.Destination, stop)
	if !fresh {
		stop(nil)
		if s.to != r.Destination {
			return nil, fault.New(fault.Forbidden, "this attempt sends them to %s", s.to)
		}
		return s, nil
	}
	end := func(err error) {
		stop(nil)
		s.err = err
		k.mu.Lock()
		delete(k.sending, key)
		k.mu.Unlock()
		close(s.done)
	}
	if !k.c.Go("send disks of "+ref.Migration, func() { end(k.ship(sending, ref, r)) }) {
		end(fault.New(fault.Unavailable, "the agent ends"))
	}
	return s, nil
}

// join finds what is under way, or makes it.
func (k *Dock) join(key, to string, stop context.CancelCauseFunc) (s *sending, fresh bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.sending[key]; s != nil {
		return s, false
	}
	s = &sending{to: to, stop: stop, done: make(chan struct{})}
	k.sending[key] = s
	return s, true
}

func (k *Dock) ship(ctx context.Context, ref migration.Ref, r migration.SendRequest) error {
	_, err := transfer.Copy(ctx, transfer.Job{
		Ref: ref, Files: r.Files, From: holder{k}, To: peer{k, r.Destination}, Rate: r.Bandwidth, Stall: k.c.Stall, Runtime: k.c.Runtime,
		Logger: k.log.With("instance", ref.Instance, "migration", ref.Migration, "destination", r.Destination),
	})
	if err != nil && k.c.Context.Err() != nil {
		return fault.New(fault.Unavailable, "the agent ends")
	}
	return err
}

// Stop ends what Send began for an attempt, and waits until it has: nothing is read for it
// any more. Its caller has the instance's turn, and has buried what Send stands on.
func (k *Dock) Stop(ctx context.Context, ref migration.Ref) error {
	k.mu.Lock()
	s := k.sending[memory.Key(ref)]
	k.mu.Unlock()
	if s == nil {
		return nil
	}
	s.stop(fault.New(fault.Forbidden, "the disks are not held any more"))
	return runtime.Await(ctx, k.c.Runtime, s.done)
}

// mustHold gives what an attempt holds here.
func (k *Dock) mustHold(ref migration.Ref) (migration.Snapshot, error) {
	s, held, err := k.c.Guests.Held(ref)
	if err == nil && !held {
		err = fault.New(fault.Forbidden, "attempt %d of this migration holds no disks on %s", ref.Attempt, k.c.Name)
	}
	return s, err
}

// ofHeld refuses a piece of what is not held as it was, where an attempt holds anything.
func (k *Dock) ofHeld(ref migration.Ref, path, version string) error {
	s, held, err := k.c.Guests.Held(ref)
	if err != nil || !held {
		return err
	}
	i := slices.IndexFunc(s.Files, func(f migration.SnapshotFile) bool { return f.Path == path })
	switch {
	case i < 0:
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_held", Message: path + " is not among the files that are held for the move", Want: path,
		})
	case s.Files[i].Version != version:
		return changedMeanwhile(path)
	}
	return nil
}

// holder reads what is held here, and nothing once it is not.
type holder struct{ k *Dock }

func (h holder) ReadDisk(ctx context.Context, ref migration.Ref, r migration.DiskRange) (migration.DiskPiece, error) {
	if _, err := h.k.mustHold(ref); err != nil {
		return migration.DiskPiece{}, err
	}
	return h.k.ReadDisk(ctx, ref, r)
}

// peer asks another host, each question once.
type peer struct {
	k    *Dock
	name string
}

func (p peer) ask(ctx context.Context, limit time.Duration, f func(context.Context, transfer.Destination) error) error {
	ctx, cancel := p.k.c.Runtime.WithTimeout(ctx, limit)
	defer cancel()
	h, err := p.k.c.Peer(ctx, p.name)
	if err != nil {
		return err
	}
	if err := f(ctx, h); err != nil {
		return fmt.Errorf("host %s: %w", p.name, err)
	}
	return nil
}

func (p peer) ShippedSoFar(ctx context.Context, ref migration.Ref) (far migration.Shipped, err error) {
	err = p.ask(ctx, slowTime, func(ctx context.Context, h transfer.Destination) error {
		far, err = h.ShippedSoFar(ctx, ref)
		return err
	})
	return far, err
}

func (p peer) WriteDisk(ctx context.Context, ref migration.Ref, d migration.DiskPiece) error {
	return p.ask(ctx, pieceTime, func(ctx context.Context, h transfer.Destination) error { return h.WriteDisk(ctx, ref, d) })
}

func (p peer) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return p.ask(ctx, slowTime, func(ctx context.Context, h transfer.Destination) error { return h.SealDisks(ctx, ref, want) })
}
