package conductor

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
	"berth/migration/transfer"
)

// shippedApart is the output of ship_disks of a move that shares nothing.
type shippedApart struct {
	shippedDisks
	Way    migration.Way `json:"way,omitempty"`
	Reason string        `json:"way_reason,omitempty"` // why not straight
}

// shipEitherWay brings the disks over straight where the source's agent reaches the
// destination's, and else by the conductor. A straight way that breaks off goes on by the
// conductor from where the destination is: whoever is at fault says so there himself, and
// to whoever has to know it.
func (s shareNothingSteps) shipEitherWay(ctx context.Context, t *task.Task) (any, error) {
	var prepared migration.PreparedCold
	if err := t.Output(migration.StepPrepResize, &prepared); err != nil {
		return nil, err
	}
	to, err := s.destination(t)
	if err != nil {
		return nil, err
	}
	out := shippedApart{}
	if len(prepared.Files) > 0 {
		out.Way, out.Reason = s.way(ctx, s.source, s.from, to)
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
	}
	s.showWay(out.Way, out.Reason)
	if out.Way == migration.WayStraight && s.from != s.c.cfg.Local && to != s.c.cfg.Local {
		p, err := s.shipStraight(ctx, t, to, prepared.Files)
		if err == nil {
			out.Progress = p
			return out, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		s.c.cfg.Logger.Warn("the straight way of the disks broke off, going on by the conductor", "migration", s.uuid, "instance", s.instance, "error", err)
		out.Way, out.Reason = migration.WayRelay, "the straight way broke off: "+err.Error()
		s.showWay(out.Way, out.Reason)
	}
	shipped, err := s.coldSteps().shipDisks(ctx, t)
	if err != nil {
		return nil, err
	}
	if d, ok := shipped.(shippedDisks); ok {
		out.shippedDisks = d
	}
	return out, nil
}

// way is how disks go from one host to another, and why not straight. Where the conductor
// is one of the two, its own way to the other is the straight one.
func (s shareNothingSteps) way(ctx context.Context, source finder, from, to string) (migration.Way, string) {
	local := s.c.cfg.Local
	if from == local || to == local {
		return migration.WayStraight, ""
	}
	return wayBetween(ctx, from, to, func(ctx context.Context, f func(context.Context, migration.Host) error) error {
		return s.askOnce(ctx, min(precheckTime, s.c.cfg.VerbTimeout), source, f)
	})
}

// wayBetween asks a source whether it reaches a destination.
func wayBetween(ctx context.Context, from, to string, ask func(context.Context, func(context.Context, migration.Host) error) error) (migration.Way, string) {
	err := ask(ctx, func(ctx context.Context, h migration.Host) error {
		return operation.Reaches.Ask(ctx, h, migration.Ref{}, migration.ReachRequest{Host: to})
	})
	if err != nil {
		return migration.WayRelay, from + " does not reach " + to + ": " + err.Error()
	}
	return migration.WayStraight, ""
}

// showWay tells whoever watches how the disks go.
func (s shareNothingSteps) showWay(w migration.Way, reason string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.rec.Way, s.rec.WayReason = w, reason
	s.rec.UpdatedAt = s.c.cfg.Runtime.Now()
	s.publishLocked()
}

// straightLook is between two questions to a destination how far it is, each of which
// makes durable what has come. Arbitrary: people wait for the figures.
const straightLook = 2 * time.Second

// straight is one shipment by the source itself, as its destination sees it.
type straight struct {
	s     *story
	t     *task.Task
	total uint64
	began time.Duration // boot clock

	// mu guards what follows. Leaf lock.
	mu    sync.Mutex
	far   uint64        // the farthest that all files together ever were
	moved time.Duration // when that was
	speed transfer.Rate
}

// shipStraight has the source ship, and goes on asking it as long as something moves: an
// answer that does not come says nothing of the files.
func (s shareNothingSteps) shipStraight(ctx context.Context, t *task.Task, to string, files []migration.ShipFile) (migration.Progress, error) {
	rt := s.c.cfg.Runtime
	x := &straight{s: s.story, t: t, total: s.toShip(t), began: rt.Boot().Since, moved: rt.Boot().Since}
	aside, stop := context.WithCancel(ctx)
	var watching runtime.Group
	watching.Go(rt, "watch disks of "+s.uuid, func() {
		for rt.Sleep(aside, max(straightLook, s.c.cfg.PollInterval)) == nil {
			x.look(aside)
		}
	})
	err := x.run(ctx, migration.SendRequest{Destination: to, Files: files, Bandwidth: s.rec.Options.Bandwidth})
	stop()
	watching.Wait(rt)
	if err != nil {
		return migration.Progress{}, err
	}
	return x.progress(x.total), nil
}

// toShip is the size of all that is to be shipped, as the source holds it.
func (s shareNothingSteps) toShip(t *task.Task) uint64 {
	var held migration.Snapshot
	if t.Output(migration.StepSnapshotDisks, &held) != nil {
		return 0
	}
	var sum uint64
	for _, f := range held.Files {
		sum += uint64(max(0, f.Size))
	}
	return sum
}

func (x *straight) run(ctx context.Context, r migration.SendRequest) error {
	s, rt := x.s, x.s.c.cfg.Runtime
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := s.askOnce(ctx, s.c.cfg.SlowVerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
			return operation.SendDisks.Ask(ctx, h, s.ref(migration.StepShipDisks), r)
		})
		if err == nil {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		switch fault.KindOf(err) {
		case fault.Unavailable, fault.InDoubt, fault.Busy:
		default:
			return err
		}
		x.look(ctx)
		x.mu.Lock()
		silent := rt.Boot().Since - x.moved
		x.mu.Unlock()
		if limit := s.timeLimits().limits().Setup; silent >= limit {
			return fmt.Errorf("no disk bytes moved for %s: %w", silent.Round(time.Millisecond), err)
		}
		if w, reason := s.shareNothingSteps().way(ctx, s.source, s.from, r.Destination); w != migration.WayStraight {
			return fmt.Errorf("%s: %w", reason, err)
		}
		if err := rt.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// look asks the destination how far it is. One that does not answer has not moved.
func (x *straight) look(ctx context.Context) {
	s := x.s
	var far migration.Shipped
	if err := s.once(ctx, x.t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		far, err = operation.ShippedSoFar.Ask(ctx, h, s.ref(migration.StepShipDisks))
		return err
	}); err != nil {
		return
	}
	var sum uint64
	for _, f := range far.Files {
		sum += uint64(max(0, f.Bytes))
	}
	s.progress(x.progress(sum))
}

// progress is that of so many bytes that have come.
func (x *straight) progress(sum uint64) migration.Progress {
	at := x.s.c.cfg.Runtime.Boot().Since
	x.mu.Lock()
	defer x.mu.Unlock()
	if sum > x.far {
		x.far, x.moved = sum, at
	}
	p := migration.Progress{Phase: "disk", Elapsed: at - x.began, DiskTotal: max(x.total, sum), DiskProcessed: sum}
	p.DiskRemaining = p.DiskTotal - p.DiskProcessed
	x.speed = x.speed.See(at, p)
	p.Rate = x.speed.Value()
	return p
}
