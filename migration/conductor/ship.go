package conductor

import (
	"context"
	"fmt"

	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
	"berth/migration/transfer"
)

// shippedDisks is the output of ship_disks.
type shippedDisks struct {
	Progress migration.Progress `json:"progress"`
}

// shipDisks brings over what the two hosts do not share, through the conductor.
func (s coldSteps) shipDisks(ctx context.Context, t *task.Task) (any, error) {
	var prepared migration.PreparedCold
	if err := t.Output(migration.StepPrepResize, &prepared); err != nil {
		return nil, err
	}
	if len(prepared.Files) == 0 {
		return nil, nil
	}
	cfg := s.c.cfg
	p, err := transfer.Copy(ctx, transfer.Job{
		Ref: s.ref(migration.StepShipDisks), Files: prepared.Files, From: relayed{s.story, t}, To: relayed{s.story, t}, Rate: s.rec.Options.Bandwidth,
		// As long as a destination of a live migration may take to begin: an agent that is
		// restarted is back by then.
		Stall:   s.timeLimits().limits().Setup,
		Runtime: cfg.Runtime, Logger: cfg.Logger.With("migration", s.uuid, "instance", s.instance), Show: s.progress, Look: cfg.PollInterval,
	})
	if err != nil {
		return nil, fmt.Errorf("ship the disks of %s: %w", s.instance, err)
	}
	return shippedDisks{Progress: p}, nil
}

// relayed asks both hosts of a story, each question once: a round that broke off is the
// repetition.
type relayed struct {
	s *story
	t *task.Task
}

func (r relayed) ReadDisk(ctx context.Context, ref migration.Ref, d migration.DiskRange) (p migration.DiskPiece, err error) {
	err = r.s.atSource(ctx, r.s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		p, err = operation.ReadDisk.Ask(ctx, h, ref, d)
		return err
	})
	return p, err
}

func (r relayed) ShippedSoFar(ctx context.Context, ref migration.Ref) (far migration.Shipped, err error) {
	err = r.s.once(ctx, r.t, r.s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		far, err = operation.ShippedSoFar.Ask(ctx, h, ref)
		return err
	})
	return far, err
}

func (r relayed) WriteDisk(ctx context.Context, ref migration.Ref, p migration.DiskPiece) error {
	return r.s.once(ctx, r.t, r.s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error { return operation.WriteDisk.Ask(ctx, h, ref, p) })
}

func (r relayed) SealDisks(ctx context.Context, ref migration.Ref, want migration.Shipped) error {
	return r.s.once(ctx, r.t, r.s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error { return operation.SealDisks.Ask(ctx, h, ref, want) })
}
