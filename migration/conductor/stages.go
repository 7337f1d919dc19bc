package conductor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
)

// The names of stories.
const (
	storyLive           = "live-migration"
	storyLivePostCopy   = "live-migration-post-copy" // permitted, and used or not
	storyMigration      = "migration"
	storyResize         = "resize"
	storyApartMigration = "share-nothing-migration"
	storyApartResize    = "share-nothing-resize"
	storyResizeInPlace  = "resize-in-place"
	storyRebuild        = "rebuild"
	storyConfirm        = "confirm"
	storyConfirmInPlace = "confirm-in-place"
	storyRevert         = "revert"
	storyRevertInPlace  = "revert-in-place"
	storyRevertItself   = "revert-by-itself" // the guest cannot live at its destination
	storyEvacuation     = "evacuation"
)

// Who a step asks.
const (
	asksSource      = "source"
	asksDestination = "destination"
	asksPlacement   = "placement"
	asksFleet       = "fleet" // the records that hosts keep of each other
	asksNobody      = ""
)

// step is a step of a stage.
type step struct {
	task.Step
	asks   string // who does it
	undoes string // the name of its undo; empty for none
}

// shown is a status from one step on.
type shown struct {
	from   string
	status migration.Status
}

// stage is one story as it runs: its steps with what undoes each, what is shown of it,
// and what its end means.
type stage struct {
	name  string
	steps []step
	shown []shown
	// lease is the step with whose beginning the claim needs no lease any more; empty
	// for a stage without a claim.
	lease string
	// bounded: the attempt has a deadline, which holds until its final step.
	bounded bool
	// done and undone draw the consequence of the task's end in the record.
	done   func(rec *migration.Migration, st task.State) ending
	undone func(rec *migration.Migration, st task.State) ending
}

// ending is what comes after a task.
type ending int

const (
	over   ending = iota // nothing
	onward               // another attempt, of the stage that the record names
	rests                // the word that confirms or reverts
)

// stage is what the current attempt does. Of the record only what says so is read: type,
// stage, place, and whether the hosts share nothing.
func (s *story) stage(m migration.Migration) stage {
	switch {
	case m.Stage == migration.StageConfirm && m.InPlace:
		return s.inPlaceSteps().confirmInPlace()
	case m.Stage == migration.StageConfirm:
		return s.coldSteps().confirm()
	case m.Stage == migration.StageRevert && m.InPlace:
		return s.inPlaceSteps().revertInPlace()
	case m.Stage == migration.StageRevert && m.Unfit != nil:
		return s.revertSteps().revertByItself()
	case m.Stage == migration.StageRevert:
		return s.revertSteps().revert()
	case m.MigrationType == migration.TypeEvacuation:
		return s.evacuationSteps().evacuation()
	case m.MigrationType == migration.TypeRebuild:
		return s.inPlaceSteps().rebuild()
	case m.InPlace:
		return s.inPlaceSteps().resizeInPlace()
	case m.ShareNothing && m.MigrationType == migration.TypeMigration:
		return s.shareNothingSteps().shareNothing(storyApartMigration)
	case m.ShareNothing && m.MigrationType == migration.TypeResize:
		return s.shareNothingSteps().shareNothing(storyApartResize)
	case m.MigrationType == migration.TypeMigration, m.MigrationType == migration.TypeResize:
		return s.coldSteps().coldMove(m.MigrationType)
	}
	return s.liveSteps().live(m.Options)
}

// tasks are the stage's steps as the engine runs them.
func (g stage) tasks(mutate func([]task.Step) []task.Step) []task.Step {
	var out []task.Step
	for _, st := range g.steps {
		out = append(out, st.Step)
	}
	if mutate != nil {
		out = mutate(out)
	}
	return out
}

// status is what is shown from a step on.
func (g stage) status(name string) migration.Status {
	at, out := g.index(name), migration.Status("")
	for _, s := range g.shown {
		if g.index(s.from) <= at {
			out = s.status
		}
	}
	return out
}

// decides says whether a step, and so all after it, cannot be given up.
func (g stage) decides(name string) bool {
	i := g.index(name)
	return i >= 0 && (g.steps[i].Final || g.steps[i].Forward)
}

// onlyForward reports whether the move is in a step that is never undone. The commit itself is
// not one: it is refused, or done.
func (s endings) onlyForward() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	m := s.view()
	g := s.stage(m)
	i := g.index(m.Step)
	return m.Phase == task.Doing && i >= 0 && g.steps[i].Forward
}

func (g stage) index(name string) int {
	return slices.IndexFunc(g.steps, func(s step) bool { return s.Name == name })
}

// moveUndone is the end of a move that was refused, failed or given up.
func (s endings) moveUndone(rec *migration.Migration, st task.State) ending {
	refused, by := s.stage(*rec).refusedBy(st, rec.DestCompute)
	switch {
	case hasCode(st.Cause, codeAborted):
		rec.Status, rec.Outcome, rec.Error = migration.StatusCancelled, migration.OutcomeUndone, st.Cause
		return over
	case s.queueSteps().takesTurns() && rec.Queue == "" && hasCode(st.Cause, migration.CodeLinkCrowded) && st.Over() && !rec.AbortRequested:
		return onward // another one was on the link at the same moment; see crowded
	case refused && rec.DestCompute != "":
		rec.Refusals = append(rec.Refusals, migration.Refusal{
			Attempt: rec.Attempt, DestCompute: rec.DestCompute,
			Kind: st.Cause.Kind, Message: st.Cause.Message, Reasons: st.Cause.Reasons, Step: by, Left: !st.Over(),
		})
		if s.mayFollow(*rec, st.Cause) {
			rec.InPlace = false
			return onward
		}
		fallthrough
	case refused:
		rec.Status, rec.Outcome, rec.Error = migration.StatusFailed, migration.OutcomeRefused, refusals(*rec, st.Cause)
		if touches(by) || slices.ContainsFunc(rec.Refusals, func(r migration.Refusal) bool { return touches(r.Step) }) {
			rec.Outcome = migration.OutcomeUndone
		}
		return over
	}
	rec.Status, rec.Outcome, rec.Error = migration.StatusFailed, migration.OutcomeUndone, st.Cause
	return over
}

// mayFollow reports whether another destination may be tried after an attempt that was
// refused, as its record stands then.
func (s endings) mayFollow(rec migration.Migration, cause *task.Error) bool {
	// What speaks against a change in place speaks against it elsewhere too, but for room.
	elsewhere := !rec.InPlace || rec.MigrationType == migration.TypeResize && cause.Kind == fault.DoesNotFit
	return elsewhere && s.another(rec) && !rec.AbortRequested
}

// another reports whether there is another destination to be tried after the refusals of
// a record: one that was named, or, where none was, whatever Placement knows; or one that was
// only full.
func (s endings) another(rec migration.Migration) bool {
	switch {
	case s.backTo(rec) != "":
		return true
	case len(s.asked()) == 0:
		return len(rec.Refusals) < s.c.cfg.MaxAttempts
	}
	return untried(s.asked(), s.from, rec.Refusals) != ""
}

// ends is the end of a stage that did what it should.
func ends(status migration.Status, outcome migration.Outcome) func(*migration.Migration, task.State) ending {
	return func(rec *migration.Migration, _ task.State) ending {
		rec.Status, rec.Outcome, rec.Error = status, outcome, nil
		return over
	}
}

// never is the undoing of a stage that is only forward.
func never(rec *migration.Migration, st task.State) ending {
	rec.Status, rec.Outcome, rec.Error = migration.StatusError, migration.OutcomeInDoubt, st.Cause
	return onward
}

// finished is the end of a cold move or a resize: the guest is there.
func (s endings) finished(rec *migration.Migration, _ task.State) ending {
	rec.Stage, rec.Status, rec.Outcome, rec.Error = migration.StageFinished, migration.StatusFinished, migration.OutcomeNone, nil
	rec.Moved, rec.MoveSteps = rec.Attempt, rec.Steps
	if s.window > 0 {
		now := s.c.cfg.Runtime.Boot()
		s.confirmAt = runtime.BootTime{ID: now.ID, Since: now.Since + s.window}
		rec.ConfirmBy = s.c.cfg.Runtime.Now().Add(s.window)
	}
	return rests
}

// Confirm gives up, for good, what a finished migration keeps to go back. It returns when
// the word is durable; Watch tells what came of it. fault.Forbidden where the migration
// is not finished, fault.Busy while it is being reverted, fault.NotFound. Safe to repeat,
// also after the end.
func (c *Conductor) Confirm(ctx context.Context, uuid string) (migration.Migration, error) {
	c.mu.Lock()
	s := c.stories[uuid]
	shipped := s != nil && s.rec.Stage == migration.StageFinished && s.view().Progress.DiskTotal > 0
	c.mu.Unlock()
	if shipped { // the first step removes them at the source
		if missing := s.coldSteps().missingThere(ctx); len(missing) > 0 {
			return migration.Migration{}, fault.Refuse(fault.Unavailable, "confirm migration "+uuid, missing...)
		}
	}
	return c.leaveFinished(ctx, uuid, migration.StageConfirm)
}

// Revert takes the guest of a finished migration back to what and where it was. Like
// Confirm. Until the guest has been handed back a revert can be aborted, and may fail:
// then the migration is finished as before, says why in its Error, and is no longer
// confirmed by itself.
func (c *Conductor) Revert(ctx context.Context, uuid string) (migration.Migration, error) {
	return c.leaveFinished(ctx, uuid, migration.StageRevert)
}

func (c *Conductor) leaveFinished(ctx context.Context, uuid string, to migration.Stage) (migration.Migration, error) {
	doing := fmt.Sprintf("%s migration %s", to, uuid)
	c.mu.Lock()
	s, run := c.stories[uuid], c.run
	var m migration.Migration
	if s != nil {
		m = s.view()
	}
	resting := s != nil && s.resting
	switch {
	case s == nil:
		c.mu.Unlock()
		return migration.Migration{}, fault.New(fault.NotFound, "migration %s is not known here", uuid)
	case m.Stage == to:
		c.mu.Unlock()
		return m, nil
	case run == nil || run.Err() != nil:
		c.mu.Unlock()
		return migration.Migration{}, fault.New(fault.Unavailable, "%s: the conductor does not run", doing)
	case !resting:
		err := c.notFinishedLocked(doing, m)
		c.mu.Unlock()
		return migration.Migration{}, err
	}
	// From here on nobody else writes the record; it is given back if it cannot be written.
	s.resting = false
	rec := s.rec
	c.mu.Unlock()

	rec.Stage, rec.Status, rec.Error, rec.AbortRequested = to, migration.StatusConfirming, nil, false
	if to == migration.StageRevert {
		rec.Status, rec.ConfirmBy = migration.StatusReverting, time.Time{}
	}
	rec.Attempt++
	rec.Phase, rec.Step, rec.Steps, rec.Progress, rec.UpdatedAt = task.Doing, "", []migration.StepRecord{}, migration.Progress{}, c.cfg.Runtime.Now()
	s.timeLimits().setDeadline(&rec)
	err := s.put(ctx, rec)
	c.mu.Lock()
	if err != nil {
		// The write may have landed all the same: then the next start takes the word for given.
		s.resting = true
		c.mu.Unlock()
		return migration.Migration{}, fmt.Errorf("%s: %w", doing, err)
	}
	s.rec, s.state, s.task = rec, task.State{}, nil
	s.unwitnessed = nil
	if s.wake != nil {
		s.wake() // nobody waits for its time any more
	}
	s.publishLocked()
	m = s.view()
	c.mu.Unlock()
	c.spawn("migration "+uuid, func() { s.drive(run) })
	return m, nil
}

// notFinishedLocked says why a migration can be neither confirmed nor reverted now, and
// which one of the same guest can, if any.
func (c *Conductor) notFinishedLocked(doing string, m migration.Migration) error {
	kind, change := fault.Forbidden, ""
	switch {
	case m.MigrationType == migration.TypeLiveMigration || m.MigrationType == migration.TypeRebuild || m.MigrationType == migration.TypeEvacuation:
		change = "nothing is kept of a " + m.MigrationType + " to go back to"
	case m.Done():
		change = "nothing: it is over"
	case m.Stage == migration.StageMove:
		kind, change = fault.Busy, "wait until it is finished, or abort it"
	default:
		kind, change = fault.Busy, "wait for its end"
	}
	if id := c.busy[m.InstanceUUID]; id != m.UUID && c.stories[id] != nil {
		if s := c.stories[id]; s.resting {
			change += "; migration " + id + " is the one that waits: berth resize confirm " + id + ", or berth resize revert " + id
		} else {
			change += "; migration " + id + " is the one that goes on: berth migration show " + id
		}
	}
	return fault.Refuse(kind, doing, fault.Reason{
		Code: "not_finished", Message: fmt.Sprintf("migration %s of instance %s is %s", m.UUID, m.InstanceUUID, m.Status),
		Want: string(migration.StatusFinished), Have: string(m.Status), Change: change,
	})
}

// renewWindow begins the time of a finished migration anew after a reboot: instants of two
// boots cannot be compared. Once for each reboot, so it is durable; a record that cannot be
// written begins once more at the next start. Called while nobody else writes the record.
func (s timeLimits) renewWindow(ctx context.Context) {
	now := s.c.cfg.Runtime.Boot()
	s.c.mu.Lock()
	if s.rec.ConfirmBy.IsZero() || s.confirmAt.ID == now.ID {
		s.c.mu.Unlock()
		return
	}
	s.confirmAt = runtime.BootTime{ID: now.ID, Since: now.Since + s.window}
	s.rec.ConfirmBy = s.c.cfg.Runtime.Now().Add(s.window)
	rec := s.rec
	s.c.mu.Unlock()
	if err := s.put(ctx, rec); err != nil {
		s.c.cfg.Logger.Warn("when a migration confirms itself could not be written", "migration", s.uuid, "error", err)
	}
}

// awaitWindow confirms a finished migration by itself when its time is over. Called once
// for each time that the migration comes to rest, and after each start.
func (s timeLimits) awaitWindow(ctx context.Context) {
	s.c.mu.Lock()
	if !s.resting || s.rec.ConfirmBy.IsZero() {
		s.c.mu.Unlock()
		return
	}
	left := s.confirmAt.Since - s.c.cfg.Runtime.Boot().Since
	wait, wake := context.WithCancel(ctx)
	s.wake = wake
	s.c.mu.Unlock()
	s.c.spawn("confirm window of migration "+s.uuid, func() {
		defer wake()
		for left = max(0, left); s.c.cfg.Runtime.Sleep(wait, left) == nil; left = s.c.cfg.UndoLater {
			missing := s.coldSteps().missingThere(wait)
			if s.waitToConfirm(missing); len(missing) > 0 {
				continue
			}
			// The word itself is not the window's to take back, though it ends the wait.
			if _, err := s.c.Confirm(ctx, s.uuid); err == nil {
				return
			} else if ctx.Err() == nil {
				s.c.cfg.Logger.Error("a migration cannot be confirmed at the end of its time, trying again", "migration", s.uuid, "error", err)
			}
		}
	})
}

// waitToConfirm shows why a finished migration is not confirmed by itself though its time is over;
// nil for nothing.
func (s timeLimits) waitToConfirm(missing []fault.Reason) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.resting || len(missing) == 0 && len(s.unwitnessed) == 0 {
		return
	}
	s.unwitnessed = missing
	s.publishLocked()
}
