package conductor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/operation"
	"berth/migration/task"
	"berth/migration/transfer"
)

// stream is step 8a: start the job or adopt the one in flight, and watch it
// until the hand-over table says that the source's domain has left. What is due about a job
// that does not come to its end is done on the way; it may end the job for post-copy, which
// ends the step too. An error gives the move up; its undo is reclaim.
func (s liveSteps) stream(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return nil, err
	}
	job, err := s.streamOf(t)
	if err != nil {
		return nil, err
	}
	ctl, err := s.controller(job.Options, src.Guest)
	if err != nil {
		return nil, err
	}
	if job.Options, err = jobOptions(job.Options); err != nil {
		return nil, err
	}
	err = s.ask(ctx, s.c.cfg.VerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
		return operation.StartStream.Ask(ctx, h, s.ref(migration.StepStream), job)
	})
	if err != nil {
		return nil, fmt.Errorf("start the stream: %w", err)
	}

	limits := s.timeLimits().limits()
	var watch StreamWatch
	var speed transfer.Rate
	var last string // what the hypervisor said when the job ended
	settled := s.c.cfg.Runtime.Boot().Since
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		status := s.look(ctx)
		now := s.c.cfg.Runtime.Boot()
		for _, tuning := range s.takeTunings() {
			ctl = ctl.tuned(tuning)
		}
		before := ctl
		var due []converge.Action
		var est converge.Estimate
		ctl, due, est = ctl.see(now.Since, status)
		if status != nil {
			if status.InFlight {
				speed = speed.See(now.Since, status.Progress)
				status.Progress.Rate = speed.Value()
			}
			last = status.Error
		}
		var verdict Verdict
		watch, verdict = watch.Judge(Sample{At: now.Since, Status: status}, limits)
		if status != nil {
			s.progress(estimated(watch.last, est))
		}

		f, action, why := s.decide(ctx, t, status, src.Guest.Persistent, JournalStreaming)
		switch action {
		case ActionCommit:
			// By the second job where its step came to be undone too late.
			return streamEnd{Stopped: now, Progress: watch.last, PostCopy: status != nil && status.PostCopy}, nil
		case ActionYield:
			if err := s.yield(ctx, t); err == nil {
				return streamEnd{Stopped: now, Progress: watch.last}, nil
			}
		case ActionReclaim:
			if status != nil && status.EndWanted && f.Source == SourceMemory && f.Word == migration.WordNone && f.Ledger == migration.LedgerHere {
				break // it was ended for post-copy
			}
			if last != "" {
				why += ": " + last
			}
			return nil, fault.Refuse(fault.Unavailable, "the stream broke off", fault.Reason{Code: "stream_failed", Message: why})
		}
		if verdict.Abort != nil {
			return nil, verdict.Abort
		}
		if f.Source == SourceJob || action == ActionReclaim {
			came, err := s.steer(ctx, t, due, status)
			switch {
			case err != nil:
				return nil, err
			case came.leave != "":
				return streamEnd{Stopped: now, Progress: watch.last, PostCopy: true, Why: came.leave}, nil
			case came.failed:
				ctl = before
			case came.refused != nil:
				ctl = ctl.refused(before, *came.refused)
			}
		}
		// A stream that goes on is no reason to doubt; whoever is silent is one
		// after a while, and what no rule decides is at once.
		switch {
		case f.Source == SourceJob:
			settled = now.Since
			t.Doubt(nil)
		case action == ActionInDoubt || now.Since-settled >= s.c.cfg.Patience:
			t.Doubt(fault.New(fault.InDoubt, "%s", why))
		}
		if err := s.pause(ctx, verdict.Next); err != nil {
			return nil, err
		}
	}
}

// controller begins to watch how the stream converges.
func (s liveSteps) controller(o migration.Options, g migration.Guest) (controller, error) {
	s.c.mu.Lock()
	rec := s.view()
	s.tunings = nil // of before: the record has them
	s.c.mu.Unlock()
	rec.Options = o
	return newController(rec, g, s.c.cfg)
}

// pause waits before the next look at the stream: where the source can tell, no
// longer than until its job ends.
func (s *story) pause(ctx context.Context, d time.Duration) error {
	if h, err := s.source(ctx); err == nil {
		if w, ok := h.(migration.StreamWaiter); ok {
			return w.AwaitStream(ctx, s.ref(migration.StepStream), d)
		}
	}
	return s.c.cfg.Runtime.Sleep(ctx, d)
}

// commit is step 8b: the source durably surrenders the token. It is asked at
// once, since its domain was seen to have left and the guest stands still. Only
// when it refuses is the table asked again: somebody may have started the guest
// at the source meanwhile.
func (s liveSteps) commit(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return nil, err
	}
	began := s.c.cfg.Runtime.Boot().Since
	for pause := s.c.cfg.PollNear; ; pause = min(2*pause, s.c.cfg.PollInterval) {
		var c migration.Commit
		err := s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
			c, err = operation.Commit.Ask(ctx, h, s.ref(migration.StepCommit))
			return err
		})
		if err == nil {
			return c, nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if errors.Is(err, fault.Forbidden) {
			_, action, why := s.decide(ctx, t, s.look(ctx), src.Guest.Persistent, JournalSeen)
			if action == ActionReclaim {
				return nil, fault.Refuse(fault.Forbidden, "the source keeps the guest", fault.Reason{Code: "source_keeps_guest", Message: why})
			}
		}
		if s.c.cfg.Runtime.Boot().Since-began >= s.c.cfg.Patience {
			t.Doubt(fault.New(fault.InDoubt, "the source does not surrender the token: %w", err))
		}
		if err := s.c.cfg.Runtime.Sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// reclaim is the undo of stream, post_copy and commit: the source decides to keep the guest. Its refusal
// means that the token or the domain has left, and only forward is possible;
// except when nothing arrived, which the table calls in doubt.
//
// The source decides by its own domain alone. One that is off and does not say
// why may have left unseen: then the destination is asked first, since what undoes
// the rest ends its copy, and that may be the only whole one. So it is before a guest goes on
// here that may have been let run there.
func (s liveSteps) reclaim(ctx context.Context, t *task.Task) error {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return err
	}
	status := s.look(ctx)
	if _, settled := s.word(ctx); status == nil && !settled {
		return fault.New(fault.Unavailable, "the source or its hypervisor does not answer")
	}
	fact := sourceFact(status, src.Guest.Persistent)
	if s.recovered || fact == SourceOff || fact == SourceHeld {
		f, action, why := s.decide(ctx, t, status, src.Guest.Persistent, JournalUndoing)
		switch {
		case action == ActionYield:
			if err := s.yield(ctx, t); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s", task.ErrTooLate, why)
		case f.Source != SourceOff && f.Source != SourceHeld:
		case action == ActionInDoubt:
			err := fault.New(fault.InDoubt, "%s", why)
			t.Doubt(err)
			return err
		case action == ActionWait:
			return fault.New(fault.InDoubt, "%s", why)
		}
	}
	t.Doubt(nil)
	again := func() error {
		return s.atSource(ctx, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error {
			return operation.Reclaim.Ask(ctx, h, s.ref(migration.StepStream))
		})
	}
	err := again()
	if errors.Is(err, fault.Forbidden) && s.nothingArrived(ctx, t, src.Guest.Persistent) {
		err = again()
	}
	if errors.Is(err, fault.Forbidden) {
		return fmt.Errorf("%w: %w", task.ErrTooLate, err)
	}
	return err
}

// nothingArrived tells a source whose transient domain is gone, and which by itself can only
// take it for one that left, that nothing has arrived: the destination was asked. Else
// the two would send each other forward and back for ever. The word is kept as an
// operator's is, with its reason.
func (s liveSteps) nothingArrived(ctx context.Context, t *task.Task, persistent bool) bool {
	f, action, why := s.decide(ctx, t, s.look(ctx), persistent, JournalUndoing)
	if f.Source != SourceVanished || f.Destination != DestinationNone || action != ActionReclaim {
		return false
	}
	return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		source, ok := h.(migration.Settler)
		if !ok {
			return fault.New(fault.Internal, "the source takes nobody's word")
		}
		return source.TakeWord(ctx, s.ref(migration.StepStream), migration.Settlement{GuestIsAt: s.from, Why: why, By: "the conductor of the move"})
	}) == nil
}

// decide joins what is known by the hand-over table, and asks the destination
// only where the table wants it.
func (s liveSteps) decide(ctx context.Context, t *task.Task, status *migration.StreamStatus, persistent bool, journal JournalFact) (Facts, Action, string) {
	f := Facts{
		Source: sourceFact(status, persistent), Destination: DestinationUnasked, Journal: journal, Word: wordFact(status, s.from),
	}
	if status != nil {
		f.Ledger = status.Ledger
	}
	action, why := Decide(f)
	patience := s.c.cfg.VerbTimeout
	switch {
	case action == ActionAsk:
	case action == ActionReclaim && s.recovered:
		// While this conductor was away an operator may have said at the destination that
		// the guest is there. One that is silent has not heard of the source for as long.
		patience = min(patience, recoveredAsk)
	default:
		return f, action, why
	}
	there := s.lookThere(ctx, t, patience)
	f.Destination, f.There = destinationFact(there), thereFact(status, there)
	action, why = Decide(f)
	return f, action, why
}

// recoveredAsk bounds the question to a destination that need not be answered.
// Arbitrary: the guest may stand still.
const recoveredAsk = time.Second

// lookThere reads the destination's status; nil when it does not come.
func (s liveSteps) lookThere(ctx context.Context, t *task.Task, patience time.Duration) *migration.DestinationStatus {
	var there migration.DestinationStatus
	if err := s.once(ctx, t, patience, func(ctx context.Context, h migration.Host) (err error) {
		there, err = operation.DestinationStatus.Ask(ctx, h, s.ref(migration.StepStream))
		return err
	}); err != nil {
		s.c.cfg.Logger.Debug("the destination's status did not come", "migration", s.uuid, "error", err)
		return nil
	}
	return &there
}

// yield has the source give way to the destination, whose epoch is higher.
func (s liveSteps) yield(ctx context.Context, t *task.Task) error {
	var dst chosenDestination
	if err := t.Output(migration.StepChooseDestination, &dst); err != nil {
		return err
	}
	there := s.lookThere(ctx, t, s.c.cfg.VerbTimeout)
	if there == nil {
		return fault.New(fault.Unavailable, "host %s does not say with which epoch it has the guest", dst.Name)
	}
	return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		side, ok := h.(migration.Side)
		if !ok {
			return fault.New(fault.Internal, "the source cannot give way")
		}
		return side.YieldToken(ctx, s.ref(migration.StepStream), there.Epoch, dst.Name)
	})
}

// look reads the stream's status; nil when the source does not answer.
func (s liveSteps) look(ctx context.Context) *migration.StreamStatus {
	var st migration.StreamStatus
	if err := s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		st, err = operation.StreamStatus.Ask(ctx, h, s.ref(migration.StepStream))
		return err
	}); err != nil {
		s.c.cfg.Logger.Debug("the stream's status did not come", "migration", s.uuid, "error", err)
		return nil
	}
	return &st
}

func (s timeLimits) limits() StreamLimits {
	cfg, o := s.c.cfg, s.rec.Options
	l := StreamLimits{Stall: o.StallTimeout, Poll: cfg.PollInterval, Near: cfg.PollNear}
	if l.Stall == 0 {
		l.Stall = cfg.StallTimeout
	}
	// Four times is arbitrary: a destination's QEMU starts in one to three seconds.
	l.Setup = 4 * max(l.Stall, cfg.StallTimeout)
	return l
}
