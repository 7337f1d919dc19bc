package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration/task"
	"berth/placementclient"
)

// forever is a sleep that only its context ends.
const forever = 365 * 24 * time.Hour

// Reason codes by which the end of a task is told.
const (
	codeAborted   = "aborted"
	codeClaimLost = "claim_lost"
	codeDeadline  = "attempt_deadline"
	codeSettled   = "settled"
)

var errAborted = fault.Refuse(fault.Undone, "", fault.Reason{Code: codeAborted, Message: "aborted on request"})

// story is one migration in memory. c.mu guards rec, state, task, watchers and known;
// the rest never changes. rec is written by the story's own actor alone (but for
// AbortRequested), so that this actor reads it without the lock.
type story struct {
	c        *Conductor
	uuid     string
	instance string
	from     string // source
	named    string // destination asked for; empty when candidates decide
	called   string // by hosts and the steps' journal, where not by its uuid; see unnamed.go

	rec      Migration  // what is stored; the rest of what people see comes from state
	state    task.State // of the current attempt
	task     *task.Task // nil between attempts
	watchers map[chan Migration]func() bool
	limit    time.Duration    // of one attempt
	until    runtime.BootTime // the current attempt's deadline
	// recovered: the journal is of an earlier process, and an operator may have settled
	// the move at its destination while this one was away. Never changes.
	recovered bool
	known     *placementclient.Allocations // what the instance was just read to hold; nil once it was used
}

func newStory(c *Conductor, kept stored) *story {
	m := kept.Migration
	return &story{
		c: c, uuid: m.UUID, instance: m.InstanceUUID, from: m.SourceCompute, named: kept.Named, called: kept.Called,
		rec: m, watchers: map[chan Migration]func() bool{}, limit: kept.Limit, until: kept.Until,
	}
}

// taskID names the journal of the current attempt.
func (s *story) taskID() string { return s.name() + "/" + strconv.Itoa(s.rec.Attempt) }

// name is how hosts and the steps' journal name the migration.
func (s *story) name() string { return cmp.Or(s.called, s.uuid) }

// drive runs attempts until the migration is over or ctx ends.
func (s *story) drive(ctx context.Context) {
	for ctx.Err() == nil {
		t, err := s.attempt(ctx)
		if err != nil {
			s.c.cfg.Logger.Error("an attempt cannot be journaled, trying again", "migration", s.uuid, "error", err)
			_ = s.c.cfg.Runtime.Sleep(ctx, s.c.cfg.UndoLater)
			continue
		}
		lease, stop := context.WithCancel(ctx)
		ref := s.ref(StepClaim)
		s.c.spawn("lease "+s.uuid, func() { s.renewLease(lease, t, ref) })
		s.c.spawn("deadline "+s.uuid, func() { s.deadline(lease, t) })
		err = s.c.engine.Run(ctx, t, s.steps())
		stop()
		if err != nil || s.conclude(ctx, t.State()) {
			return
		}
	}
}

// attempt finds the current attempt's task, or begins it.
func (s *story) attempt(ctx context.Context) (*task.Task, error) {
	s.c.mu.Lock()
	t := s.task
	s.c.mu.Unlock()
	if t == nil {
		var err error
		if t, err = s.c.engine.Begin(ctx, s.taskID()); err != nil {
			return nil, err
		}
	}
	t.LogTo(s.c.cfg.Logger.With("instance", s.instance, "migration", s.uuid, "attempt", s.rec.Attempt))
	s.c.mu.Lock()
	s.task, s.state = t, t.State()
	aborted := s.rec.AbortRequested
	if w, ok := s.word(ctx); ok {
		s.rec.Settled = &w
	}
	s.publishLocked()
	s.c.mu.Unlock()
	if aborted {
		// Past the point of no return this is refused, and rightly so.
		_ = t.Cancel(errAborted)
	}
	return t, nil
}

// conclude draws the consequence of an attempt that is done or undone: the next
// one, or the end. It says whether the migration is over.
func (s *story) conclude(ctx context.Context, st task.State) bool {
	s.c.mu.Lock()
	rec := s.viewOf(st)
	s.c.mu.Unlock()
	refused, step := refusedBy(st)
	next := false
	switch {
	case st.Phase == task.Done:
		rec.Status, rec.Outcome, rec.Error = StatusCompleted, OutcomeCompleted, nil
	case hasCode(st.Cause, codeAborted):
		rec.Status, rec.Outcome, rec.Error = StatusCancelled, OutcomeUndone, st.Cause
	case refused && rec.DestCompute != "":
		rec.Refusals = append(rec.Refusals, Refusal{
			Attempt: rec.Attempt, DestCompute: rec.DestCompute,
			Kind: st.Cause.Kind, Message: st.Cause.Message, Reasons: st.Cause.Reasons,
		})
		if next = s.named == "" && rec.Attempt < s.c.cfg.MaxAttempts && !rec.AbortRequested; next {
			break
		}
		fallthrough
	case refused:
		rec.Status, rec.Outcome, rec.Error = StatusFailed, OutcomeRefused, refusals(rec, st.Cause)
		if step == StepSwapAllocations {
			rec.Outcome = OutcomeUndone
		}
	default:
		rec.Status, rec.Outcome, rec.Error = StatusFailed, OutcomeUndone, st.Cause
	}
	old := s.taskID()
	if next {
		rec.Attempt++
		rec.DestCompute, rec.Steps, rec.Step, rec.Phase, rec.Status = "", nil, "", task.Doing, StatusPreparing
		rec.Error, rec.Progress = nil, Progress{}
		s.setDeadline(&rec)
	}
	rec.UpdatedAt = s.c.cfg.Runtime.Now()
	if !s.replace(ctx, rec, next) {
		return true // ctx ended: the next start concludes again
	}
	// The journal goes only after the record says what it came to.
	s.c.dropTask(ctx, old)
	if !next {
		s.c.dropAbort(ctx, rec.UUID)
		s.c.cfg.Logger.Info("migration over", "migration", rec.UUID, "instance", rec.InstanceUUID, "status", string(rec.Status),
			"outcome", string(rec.Outcome), "source", rec.SourceCompute, "destination", rec.DestCompute)
		s.c.prune(ctx)
	}
	return !next
}

// replace makes a new record durable, then visible; tried until ctx ends, since
// an instance stays busy without it.
func (s *story) replace(ctx context.Context, rec Migration, next bool) bool {
	for {
		err := s.put(ctx, rec)
		if err == nil {
			break
		}
		s.c.cfg.Logger.Error("a migration record cannot be written, trying again", "migration", rec.UUID, "error", err)
		if s.c.cfg.Runtime.Sleep(ctx, time.Second) != nil {
			return false
		}
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	rec.AbortRequested, rec.Settled = s.rec.AbortRequested, s.rec.Settled
	s.rec, s.state, s.task = rec, task.State{}, nil
	if !next {
		delete(s.c.busy, rec.InstanceUUID)
	}
	s.publishLocked()
	return true
}

func (s *story) save(ctx context.Context) error { return s.put(ctx, s.rec) }

func (s *story) put(ctx context.Context, rec Migration) error {
	raw, err := json.Marshal(stored{Migration: rec, Named: s.named, Called: s.called, Until: s.until, Limit: s.limit})
	if err != nil {
		return fault.New(fault.Internal, "write migration %s: %w", rec.UUID, err)
	}
	if err := s.c.cfg.Store.Put(ctx, bucketMigrations, rec.UUID, raw); err != nil {
		return fmt.Errorf("write migration %s: %w", rec.UUID, err)
	}
	return nil
}

// refusedBy says whether an undone attempt was a refusal rather than a failure,
// and by which step: then another destination may take the guest. A lost race
// for Placement's room counts as one.
func refusedBy(st task.State) (bool, string) {
	for _, step := range st.Steps {
		if step.Error == nil {
			continue
		}
		switch step.Name {
		case StepInspectSource, StepChooseDestination, StepCheckDestination, StepClaim:
			return true, step.Name
		case StepSwapAllocations:
			return step.Error.Kind == fault.DoesNotFit, step.Name
		}
	}
	return false, ""
}

// refusals tells all refusals of all attempts together.
func refusals(rec Migration, last *task.Error) *task.Error {
	if len(rec.Refusals) == 0 || len(rec.Refusals) == 1 && rec.Refusals[0].Message == last.Message {
		return last
	}
	all := &task.Error{Kind: rec.Refusals[0].Kind, Message: fmt.Sprintf("no host takes instance %s", rec.InstanceUUID)}
	for _, r := range rec.Refusals {
		all.Message += "; " + r.Message
		for _, reason := range r.Reasons {
			reason.Message = r.DestCompute + ": " + reason.Message
			all.Reasons = append(all.Reasons, reason)
		}
		if r.Kind == fault.DoesNotFit {
			all.Kind = fault.DoesNotFit
		}
	}
	return all
}

func hasCode(e *task.Error, code string) bool {
	return e != nil && slices.ContainsFunc(e.Reasons, func(r fault.Reason) bool { return r.Code == code })
}

// abort cancels what runs, or keeps the next attempt from beginning.
func (s *story) abort() error {
	s.c.mu.Lock()
	s.rec.AbortRequested = true
	t := s.task
	s.publishLocked()
	s.c.mu.Unlock()
	if t == nil {
		return nil
	}
	err := t.Cancel(errAborted)
	if err != nil {
		s.c.mu.Lock()
		s.rec.AbortRequested = false
		s.publishLocked()
		s.c.mu.Unlock()
		return fmt.Errorf("abort migration %s: %w", s.uuid, err)
	}
	return nil
}

// abortable says whether an abort may still have an effect.
func (s *story) abortable(m Migration) bool {
	if m.Phase == task.Undoing {
		return true
	}
	switch m.Step {
	case StepCommit, StepAcceptToken, StepFinishDestination, StepCleanUpSource, StepDeleteAllocation:
		return false
	}
	return true
}

// publishLocked hands the present view to every watcher; one that has not read
// the last view gets only this one.
func (s *story) publishLocked() {
	m := s.view()
	for ch, stop := range s.watchers {
		select {
		case <-ch:
		default:
		}
		ch <- m
		if m.Done() {
			stop()
			delete(s.watchers, ch)
			close(ch)
		}
	}
}

// progress keeps the last look at the stream for whoever watches.
func (s *story) progress(p Progress) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.rec.Progress = p
	s.rec.UpdatedAt = s.c.cfg.Runtime.Now()
	s.publishLocked()
}

// view is the migration as people see it. Called with c.mu held.
func (s *story) view() Migration {
	if s.rec.Done() || s.task == nil {
		return s.rec
	}
	return s.viewOf(s.state)
}

// statusOf is the status while a step runs.
var statusOf = map[string]Status{
	StepInspectSource:     StatusPreparing,
	StepChooseDestination: StatusPreparing,
	StepCheckDestination:  StatusPreparing,
	StepClaim:             StatusPreparing,
	StepSwapAllocations:   StatusPreparing,
	StepCheckSource:       StatusPreparing,
	StepRecordContext:     StatusPreparing,
	StepPreLiveMigration:  StatusPreparing,
	StepStream:            StatusRunning,
	StepCommit:            StatusRunning,
	StepAcceptToken:       StatusPostMigrating,
	StepFinishDestination: StatusPostMigrating,
	StepCleanUpSource:     StatusPostMigrating,
	StepDeleteAllocation:  StatusPostMigrating,
}

// viewOf joins the record with a state of its current attempt.
func (s *story) viewOf(st task.State) Migration {
	m := s.rec
	m.Phase, m.Step, m.Outcome, m.Error = st.Phase, "", OutcomeNone, nil
	m.Steps = make([]StepRecord, 0, len(st.Steps))
	for _, step := range st.Steps {
		r := StepRecord{Name: step.Name, State: step.State, Begun: step.Begun, Ended: step.Ended, Tries: step.Tries}
		if !step.Ended.IsZero() {
			r.Duration = step.Ended.Sub(step.Begun)
		}
		if e := errors.Join(step.Error.Err(), step.Undo.Err()); e != nil {
			r.Error = e.Error()
		}
		m.Steps = append(m.Steps, r)
		if step.State != task.StepUndone {
			m.Step, m.Status = step.Name, statusOf[step.Name]
		}
		switch step.Name {
		case StepChooseDestination:
			var chosen chosenDestination
			if json.Unmarshal(step.Output, &chosen) == nil && chosen.Name != "" {
				m.DestCompute = chosen.Name
			}
		case StepStream:
			var end streamEnd
			if json.Unmarshal(step.Output, &end) == nil {
				m.Progress = end.Progress
			}
		case StepAcceptToken:
			var accepted acceptedToken
			if json.Unmarshal(step.Output, &accepted) == nil {
				m.HandoverDowntime = accepted.Downtime
			}
		case StepFinishDestination:
			var finished finishedDestination
			if json.Unmarshal(step.Output, &finished) == nil && finished.Progress != nil {
				m.Progress = *finished.Progress
			}
		}
	}
	switch {
	case st.Over():
		m.Step = ""
	case st.Phase == task.Undoing:
		m.Error = st.Cause
		undo := st.Undos()
		if st.Doubt != nil {
			m.Outcome, undo = OutcomeInDoubt, st.Doubt.Err()
		}
		if undo != nil {
			m.Status = StatusError
			m.Error = task.Keep(errors.Join(st.Cause.Err(), undo))
		}
	case st.Doubt != nil:
		m.Status, m.Outcome, m.Error = StatusError, OutcomeInDoubt, st.Doubt
	}
	return m
}
