package conductor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/halves"
	"berth/migration/operation"
	"berth/migration/options"
	"berth/migration/task"
)

// live is the live migration.
//
// On a restart every step but one is repeated where it stood: the verbs answer
// the same again, and the stream's job in flight is adopted. Only
// pre_live_migration is undone, since it runs operators' programs half of which
// may have run.
//
// The undos at the destination and in Placement may lag: when the source has
// decided to keep the guest, a peer or a Placement that is down keeps nothing
// else from being put right. The undo of the stream may not: until the source
// has decided, nothing may be taken away from the destination's copy.
//
// Where the options permit post-copy it has two steps more, which are left out, without a
// trace, unless the stream was ended for it: the guest leaves by a second job, and is followed
// until all of its memory is there. Nothing is cleaned up at the source before.
func (s liveSteps) live(o migration.Options) stage {
	g := stage{
		name: storyLive,
		steps: append(s.firstSteps().steps(),
			step{Step: task.Step{Name: migration.StepPreLiveMigration, Do: s.preLiveMigration, Undo: s.order(s.undoAtDestination, operation.RollbackPreLiveMigration, migration.StepPreLiveMigration).undo, UndoMayLag: true, UndoOnRestart: true},
				asks: asksDestination, undoes: "rollback_live_migration_at_destination"},
			step{Step: task.Step{Name: migration.StepStream, Do: s.stream, Undo: s.reclaim}, asks: asksSource, undoes: "reclaim"},
			step{Step: task.Step{Name: migration.StepPostCopy, Do: s.postCopy, Undo: s.reclaim, Skip: withoutPostCopy}, asks: asksSource, undoes: "reclaim"},
			step{Step: task.Step{Name: migration.StepCommit, Do: s.commit, Undo: s.reclaim, Final: true}, asks: asksSource, undoes: "reclaim"},
			// The point of no return.
			step{Step: task.Step{Name: migration.StepAcceptToken, Do: s.acceptToken, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepFollowPostCopy, Do: s.followPostCopy, Forward: true, Skip: withoutPostCopy}, asks: asksSource},
			step{Step: task.Step{Name: migration.StepFinishDestination, Do: s.finishDestination, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepCleanUpSource, Do: s.order(s.sourceOnce, operation.CleanUpSource, migration.StepCleanUpSource).do, Forward: true}, asks: asksSource},
			step{Step: task.Step{Name: migration.StepDeleteAllocation, Do: s.placementSteps().deleteAllocation, Forward: true}, asks: asksPlacement},
		),
		shown:   []shown{{migration.StepInspectSource, migration.StatusPreparing}, {migration.StepStream, migration.StatusRunning}, {migration.StepAcceptToken, migration.StatusPostMigrating}},
		lease:   migration.StepAcceptToken,
		bounded: true,
		done:    ends(migration.StatusCompleted, migration.OutcomeCompleted),
		undone:  s.endings().moveUndone,
	}
	if permitsPostCopy(o) {
		g.name = storyLivePostCopy
		g.shown = []shown{{migration.StepInspectSource, migration.StatusPreparing}, {migration.StepStream, migration.StatusRunning}, {migration.StepPostCopy, migration.StatusPostCopy}, {migration.StepFinishDestination, migration.StatusPostMigrating}}
		return g
	}
	g.steps = slices.DeleteFunc(g.steps, func(st step) bool { return st.Skip != nil })
	return g
}

// liveAs is the live migration as a journal shows it: one that did not go by post-copy is shown
// as if its options did not permit it.
func (s liveSteps) liveAs(o migration.Options, st task.State) stage {
	if _, used := st.Step(migration.StepPostCopy); !used {
		o.PostCopy = options.Off
	}
	return s.live(o)
}

// Outputs of steps that are not verbs' answers.
type (
	inspectedSource struct {
		Guest  migration.Guest       `json:"guest"`
		Source migration.Description `json:"source"`
		// Wanted is what the guest is to be; nil of a live migration.
		Wanted *migration.Wanted `json:"wanted,omitempty"`
		halves.Start
	}
	chosenDestination struct {
		Name string `json:"name"`
	}
	checkedDestination struct {
		migration.CheckAnswer
		Evacuated migration.EvacuatedDisks `json:"evacuated_disks,omitzero"`
	}
	streamEnd struct {
		Stopped  runtime.BootTime   `json:"stopped"` // when the source's domain was seen stopped
		Progress migration.Progress `json:"progress"`
		// PostCopy: the job was ended, with the guest whole at the source, for a second one, and
		// Why.
		PostCopy bool   `json:"post_copy,omitempty"`
		Why      string `json:"post_copy_why,omitempty"`
	}
	finishedDestination struct {
		Progress *migration.Progress `json:"progress,omitempty"` // the stream's, when it was over
	}
	acceptedToken struct {
		Downtime time.Duration `json:"downtime"`
	}
)

// inspectSource is step 0: the guest, what it is to be, and an allocation equal to its
// claim.
func (s firstSteps) inspectSource(ctx context.Context, _ *task.Task) (any, error) {
	out, err := s.lookAtSource(ctx, s.ask)
	if err != nil {
		return nil, fmt.Errorf("inspect instance %s: %w", s.instance, err)
	}
	if err := s.movable(out); err != nil {
		return nil, err
	}
	if s.rec.InPlace {
		if err := s.checkRoom(ctx, out); err != nil {
			return nil, err
		}
	}
	out.Start, err = s.placementSteps().settleSource(ctx, out)
	return out, err
}

// chooseDestination takes the first that was named and has not refused yet, or the best of
// Placement's candidates that has not; then one that was only full.
func (s firstSteps) chooseDestination(ctx context.Context, t *task.Task) (any, error) {
	src, err := s.inspected(t)
	if err != nil {
		return nil, err
	}
	names := s.asked()
	if len(names) == 0 {
		if names, err = s.candidates(ctx, src, s.rec.Refusals); err != nil {
			return nil, err
		}
	}
	name := s.untried(names)
	exhausted := len(s.asked()) == 0 && len(s.rec.Refusals) >= s.c.cfg.MaxAttempts
	switch back := s.backTo(s.rec); {
	case back != "" && (name == "" || exhausted):
		name = back
	case name == "" && len(s.asked()) > 0:
		name = s.named // the source itself, which its check refuses
	case name == "":
		return nil, nowhere(s.instance)
	}
	return chosenDestination{Name: name}, nil
}

func (s firstSteps) checkDestination(ctx context.Context, t *task.Task) (any, error) {
	src, err := s.inspected(t)
	if err != nil {
		return nil, err
	}
	var out migration.CheckAnswer
	err = s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.CheckDestination.Ask(ctx, h, s.ref(migration.StepCheckDestination), s.checkRequest(src))
		return err
	})
	if err != nil {
		return nil, err
	}
	request := s.checkRequest(src) // of an agent that does not give it back
	out.Kind, out.Options, out.PostCopyAsked = request.Kind, request.Options, request.PostCopyAsked
	disks, err := s.evacuationSteps().suits(src, out)
	return checkedDestination{CheckAnswer: out, Evacuated: disks}, err
}

func (s firstSteps) checkSource(ctx context.Context, t *task.Task) (any, error) {
	var answer migration.CheckAnswer
	if err := t.Output(migration.StepCheckDestination, &answer); err != nil {
		return nil, err
	}
	var out migration.SourceAnswer
	err := s.ask(ctx, s.c.cfg.VerbTimeout, s.source, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.CheckSource.Ask(ctx, h, s.ref(migration.StepCheckSource), answer)
		return err
	})
	if err == nil {
		s.liveSteps().dropped(ctx, append(slices.Clone(answer.Dropped), out.Dropped...))
	}
	return out, err
}

func (s firstSteps) recordContext(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	var claim migration.ClaimAnswer
	if err := outputs(t, migration.StepInspectSource, &src, migration.StepClaim, &claim); err != nil {
		return nil, err
	}
	to := src.wanted()
	to.Resources = claim.Resources
	c := s.context(t, src.Guest, to)
	c.NewAssignment = claim.Assignment
	return nil, s.ask(ctx, s.c.cfg.VerbTimeout, s.source, func(ctx context.Context, h migration.Host) error {
		return operation.RecordContext.Ask(ctx, h, s.ref(migration.StepRecordContext), c)
	})
}

func (s liveSteps) preLiveMigration(ctx context.Context, t *task.Task) (any, error) {
	var src inspectedSource
	var disks migration.SourceAnswer
	if err := outputs(t, migration.StepInspectSource, &src, migration.StepCheckSource, &disks); err != nil {
		return nil, err
	}
	var out migration.Prepared
	err := s.atDestination(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.PreLiveMigration.Ask(ctx, h, s.ref(migration.StepPreLiveMigration), migration.PreLiveRequest{
			Guest: src.Guest, CopyDisks: disks.CopyDisks, Source: s.from, PostCopy: permitsPostCopy(s.sendOptions(t)),
		})
		return err
	})
	return out, err
}

// acceptToken gives the token to the destination, and with it the guest.
func (s liveSteps) acceptToken(ctx context.Context, t *task.Task) (any, error) {
	var commit migration.Commit
	var end streamEnd
	if err := t.Output(migration.StepCommit, &commit); err != nil {
		return nil, err
	}
	if err := s.takenBack(ctx, t); err != nil {
		return nil, err
	}
	err := s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.AcceptToken.Ask(ctx, h, s.ref(migration.StepAcceptToken), commit)
	})
	if err != nil {
		return nil, err
	}
	now := s.c.cfg.Runtime.Boot()
	// After a commit that went forward without a stream seen to its end, a reboot or
	// post-copy, there is nothing to measure.
	if t.Output(migration.StepStream, &end) != nil || end.Stopped.ID != now.ID || end.PostCopy {
		return acceptedToken{}, nil
	}
	return acceptedToken{Downtime: now.Since - end.Stopped.Since}, nil
}

func (s liveSteps) finishDestination(ctx context.Context, t *task.Task) (any, error) {
	if err := s.takenBack(ctx, t); err != nil {
		return nil, err
	}
	err := s.once(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.FinishDestination.Ask(ctx, h, s.ref(migration.StepFinishDestination))
	})
	if err != nil {
		return nil, err
	}
	// The stream's last figures come with the end of the hypervisor's job, and
	// nobody waited for them while the guest stood still. Best effort: they are
	// gone when the source has forgotten them.
	var out finishedDestination
	for wait := s.c.cfg.PollNear; ; wait *= 2 {
		st := s.look(ctx)
		if st == nil {
			return out, nil
		}
		if !st.InFlight {
			if st.Progress.Elapsed > 0 {
				out.Progress = &st.Progress
			}
			return out, nil
		}
		// Its libvirt has ended the job, and the call that waits for it is about to return.
		if wait > lastFigures || s.c.cfg.Runtime.Sleep(ctx, wait) != nil {
			return out, nil
		}
	}
}

// lastFigures is the longest pause in which a busy source's hypervisor is waited for; all
// of them are some twice as long. Arbitrary.
const lastFigures = 400 * time.Millisecond

// renewLease keeps the destination's claim alive until the step begins from which on it
// needs no lease: the token has left, or the claim is the guest's own. A
// claim that is gone ends the attempt; a peer that does not answer does not: the
// claim may outlive the silence, and if not, the next verb is refused.
func (s firstSteps) renewLease(ctx context.Context, t *task.Task, ref migration.Ref, until string) {
	for s.c.cfg.Runtime.Sleep(ctx, s.c.cfg.Lease/3) == nil {
		st := t.State()
		claim, _ := st.Step(migration.StepClaim)
		if _, begun := st.Step(until); begun || st.Over() {
			return
		}
		if st.Phase != task.Doing || claim.State != task.StepEnded {
			continue
		}
		err := s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error { return operation.RenewClaim.Ask(ctx, h, ref) })
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, fault.NotFound) || errors.Is(err, fault.Forbidden):
			s.c.cfg.Logger.Warn("the destination's claim is gone", "migration", s.uuid, "error", err)
			// Refused from the commit step on, where the claim no longer has a lease.
			_ = t.Cancel(task.By(task.Whose(err), fault.Refuse(fault.Unavailable, s.kind, fault.Reason{
				Code: codeClaimLost, Message: "the claim on the destination is gone: " + err.Error(),
			})))
		default:
			s.c.cfg.Logger.Warn("the destination's claim could not be renewed", "migration", s.uuid, "error", err)
		}
	}
}
