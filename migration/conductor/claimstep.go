package conductor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// The pauses before a destination is asked again that has no room for one more guest on its
// way: doubled each time, and some more by chance. Arbitrary.
const (
	firstPause = 2 * time.Second
	mostPause  = 15 * time.Second
)

// claim asks the destination for the guest's place. A live move takes its turn of the link
// before. Where that or the destination is full it goes on to the next one, if one is left, and
// is busy if it belongs to a queue; else it waits here. While it waits nothing is held for it
// anywhere, and the attempt's time begins anew with the claim.
func (s firstSteps) claim(ctx context.Context, t *task.Task) (any, error) {
	src, err := s.inspected(t)
	if err != nil {
		return nil, err
	}
	r := migration.ClaimRequest{
		Guest: src.Guest, Context: s.context(t, src.Guest, src.wanted()), Lease: s.c.cfg.Lease, Kind: s.checkRequest(src).Kind,
		Queued: s.rec.Queue != "" || s.queueSteps().takesTurns(),
	}
	if !s.queueSteps().takesTurns() {
		return s.askClaim(ctx, t, r)
	}
	to, err := s.destination(t)
	if err != nil {
		return nil, err
	}
	before := s.rec.Waited
	asked, held := s.mayBeHeld(ctx, t)
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		if !held {
			if err := s.queueSteps().takeLink(ctx, src, to); err != nil && !asked {
				return nil, fmt.Errorf("%w: %w", err, task.ErrNothingDone)
			} else if err != nil {
				return nil, err
			}
		}
		asked, held = true, false
		out, err := s.askClaim(ctx, t, r)
		switch {
		case err == nil:
			s.queueSteps().claimed()
			if err := s.queueSteps().crowded(to); err != nil {
				return nil, err
			}
			if s.rec.Waited > before {
				err = s.timeLimits().renewDeadline(ctx)
			}
			return out, err
		case s.rec.Queue != "" || !noRoom(err) || s.elsewhere(ctx, src, to):
			return nil, err
		}
		if err := s.queueSteps().pauseTurn(ctx, to, fault.ReasonsOf(err), pause+s.c.cfg.Jitter(pause/4)); err != nil {
			return nil, err
		}
	}
}

func (s firstSteps) askClaim(ctx context.Context, t *task.Task, r migration.ClaimRequest) (out migration.ClaimAnswer, err error) {
	err = s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.Claim.Ask(ctx, h, s.ref(migration.StepClaim), r)
		return err
	})
	return out, err
}

// mayBeHeld reports of an attempt that an earlier process began whether its claim was asked
// for, and whether it may be held: then its turn is kept until the destination has answered.
func (s firstSteps) mayBeHeld(ctx context.Context, t *task.Task) (asked, held bool) {
	if s.resumed != s.rec.Attempt {
		return false, false
	}
	err := s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.RenewClaim.Ask(ctx, h, s.ref(migration.StepClaim))
	})
	return true, !errors.Is(err, fault.NotFound) && !errors.Is(err, fault.Forbidden)
}

// elsewhere reports whether another destination is left to be tried where one is full. Whether
// Placement knows one is asked for with each refusal: there may be one meanwhile. Where it does
// not answer there is none.
func (s firstSteps) elsewhere(ctx context.Context, src inspectedSource, to string) bool {
	refused := append(slices.Clone(s.rec.Refusals), migration.Refusal{DestCompute: to})
	names := s.asked()
	if len(names) == 0 {
		if len(refused) >= s.c.cfg.MaxAttempts {
			return false
		}
		var err error
		if names, err = s.candidates(ctx, src, refused); err != nil {
			return false
		}
	}
	return untried(names, s.from, refused) != ""
}

// backTo is the destination to wait at, once no other one takes the guest: the first that was
// only full, or whose link was; empty for none, and of a queue's move, which does not wait.
func (s *story) backTo(rec migration.Migration) string {
	if !s.queueSteps().takesTurns() || rec.Queue != "" {
		return ""
	}
	for _, r := range rec.Refusals {
		if !slices.ContainsFunc(rec.Refusals, func(o migration.Refusal) bool { return o.DestCompute == r.DestCompute && !isFull(o) }) {
			return r.DestCompute
		}
	}
	return ""
}

// isFull reports whether there was nothing else against the destination.
func isFull(r migration.Refusal) bool {
	return r.Kind == fault.Busy && slices.ContainsFunc(r.Reasons, func(why fault.Reason) bool {
		return slices.Contains([]string{migration.CodeInboundLimit, migration.CodeLinkLimit, migration.CodeLinkCrowded}, why.Code)
	})
}

// noRoom reports whether a destination has a move wait for its turn.
func noRoom(err error) bool {
	return errors.Is(err, fault.Busy) && fault.HasReason(err, migration.CodeInboundLimit)
}
