package migration

import (
	"context"

	"berth/migration/task"
)

func (s *story) claim(ctx context.Context, t *task.Task) (any, error) {
	src, err := s.inspected(t)
	if err != nil {
		return nil, err
	}
	var out ClaimAnswer
	err = s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h Host) (err error) {
		out, err = h.Claim(ctx, s.ref(StepClaim), ClaimRequest{
			Guest: src.Guest, Context: s.context(t, src.Guest, src.wanted()), Lease: s.c.cfg.Lease, Kind: s.checkRequest(src).Kind,
			Queued: s.rec.Queue != "",
		})
		return err
	})
	return out, err
}

func (s *story) abortClaim(ctx context.Context, t *task.Task) error {
	return s.undoAtDestination(ctx, t, func(ctx context.Context, h Host) error { return h.AbortClaim(ctx, s.ref(StepClaim)) })
}
