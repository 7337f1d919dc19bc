package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"berth/internal/fault"
)

// Run drives a task until nothing is left to do or to undo, and then returns
// nil: State says which it was. It returns ctx's cause when ctx ended first, and
// ErrLeft as LeaveWhen says; then the journal is as a crash would have left it, and
// Load finds the task. steps are the story that the task was begun with. Run is
// called once for each Task, and once more after ErrLeft.
func (e *Engine) Run(ctx context.Context, t *Task, steps []Step) error {
	for {
		var err error
		switch t.State().Phase {
		case Doing:
			err = e.doing(ctx, t, steps)
		case Undoing:
			err = e.undoing(ctx, t, steps)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// doing goes forward from the first step that has not ended. It returns nil
// when the task has changed its phase.
func (e *Engine) doing(ctx context.Context, t *Task, steps []Step) error {
	steps = t.ahead(steps)
	i, begun := t.position(steps)
	again := "" // the step that was begun before
	if i < len(steps) && begun && steps[i].UndoOnRestart && t.resumed && !t.State().Turned {
		return e.turn(ctx, t, steps[i].Name, fault.New(fault.Undone, "step %s was interrupted by a restart", steps[i].Name), StepFailed)
	}
	if !begun {
		i = past(steps, i, t.State())
		// The first step, or the one after a step whose end was journaled alone.
		if cause := t.enter(steps, i); cause != nil {
			return e.turn(ctx, t, "", cause, StepFailed)
		}
		if err := t.commit(ctx, func(s *State) { e.begin(s, steps, i) }); err != nil {
			return err
		}
	} else {
		t.enter(steps, i) // its intent stands in the journal: too late to stop before it
		again = steps[i].Name
	}
	for i < len(steps) {
		step := steps[i]
		t.log.Info("step begins", "step", step.Name)
		began := e.o.Runtime.Boot().Since
		out, err := e.do(ctx, t, step)
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		took := e.o.Runtime.Boot().Since - began
		if err != nil {
			t.log.Warn("step failed", "step", step.Name, "duration", took, "error", err)
			left := StepFailed
			if errors.Is(err, ErrNothingDone) && step.Name != again {
				left = StepUndone
			}
			return e.turn(ctx, t, step.Name, err, left)
		}
		t.log.Info("step ended", "step", step.Name, "duration", took)

		// The end of one step and the intent of the next are one write: one sync
		// fewer while the guest may be standing still.
		ended := t.State()
		ended.end(step.Name, e.o.Runtime.Now(), out)
		i = past(steps, i+1, ended)
		cause := t.enter(steps, i)
		err = t.commit(ctx, func(s *State) {
			*s = ended
			if cause != nil {
				s.Phase, s.Cause = Undoing, Keep(cause)
			} else {
				e.begin(s, steps, i)
			}
		})
		if err != nil || cause != nil {
			return err
		}
	}
	return nil
}

// past is the first step from i on that is not left out.
func past(steps []Step, i int, s State) int {
	for i < len(steps) && steps[i].Skip != nil && steps[i].Skip(s) {
		i++
	}
	return i
}

// begin notes the intent of step i, or the end of the task.
func (e *Engine) begin(s *State, steps []Step, i int) {
	if i == len(steps) {
		s.Phase = Done
		return
	}
	s.Steps = append(s.Steps, StepState{Name: steps[i].Name, State: StepBegun, Begun: e.o.Runtime.Now()})
}

// do runs one Do, and a forward one until it succeeds or ctx ends.
func (e *Engine) do(ctx context.Context, t *Task, step Step) (json.RawMessage, error) {
	began := e.o.Runtime.Boot().Since
	for try := 0; ; try++ {
		dctx, stop := t.stoppable(ctx)
		out, err := step.Do(dctx, t)
		stop()
		if err == nil {
			var raw json.RawMessage
			if out != nil {
				if raw, err = json.Marshal(out); err != nil {
					err = fault.New(fault.Internal, "output of step %s: %w", step.Name, err)
				}
			}
			if err == nil {
				return raw, nil
			}
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		if !step.Forward || errors.Is(err, ErrTurnBack) {
			return nil, err
		}
		t.log.Warn("step past the point of no return failed, trying again", "step", step.Name, "try", try+1, "error", err)
		patient := e.o.Runtime.Boot().Since-began < e.o.Patience
		t.change(func(s *State) bool {
			st := &s.Steps[s.index(step.Name)]
			st.Tries, st.Error = try+1, Keep(err)
			if !patient {
				s.Doubt = Keep(fault.New(fault.InDoubt, "step %s cannot be finished: %w", step.Name, err))
			}
			return true
		})
		if err := t.rest(ctx, e.backoff(try)); err != nil {
			return nil, err
		}
	}
}

// turn begins the undoing. step is the one that failed, or empty when the task
// was cancelled between two; left is what is still to be done about it.
func (e *Engine) turn(ctx context.Context, t *Task, step string, err error, left StepPhase) error {
	return t.commit(ctx, func(s *State) {
		cause := err
		t.mu.Lock()
		if t.canceled != nil {
			cause = t.canceled
		}
		t.mu.Unlock()
		if i := s.index(step); i >= 0 {
			s.Steps[i].State, s.Steps[i].Ended, s.Steps[i].Error = left, e.o.Runtime.Now(), Keep(err)
		}
		s.Phase, s.Cause, s.Doubt = Undoing, Keep(cause), nil
	})
}

// undoing goes back from the last step that was begun, pass after pass, until
// all is undone or an undo says that it is too late.
func (e *Engine) undoing(ctx context.Context, t *Task, steps []Step) error {
	for pass := 0; ; pass++ {
		if pass > 0 {
			if err := t.rest(ctx, e.later(pass)); err != nil {
				return err
			}
		}
		failed := false
		for i := len(t.State().Steps) - 1; i >= 0; i-- {
			ss := t.State().Steps[i]
			if ss.State == StepUndone {
				continue
			}
			step, err := find(steps, ss.Name)
			if err == nil {
				err = e.undo(ctx, t, step)
			}
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if errors.Is(err, ErrTooLate) {
				return e.turnRound(ctx, t, i, pass, err)
			}
			if err != nil {
				failed = true
				t.log.Warn("undo failed, to be tried again", "step", ss.Name, "error", err)
				if err := t.commit(ctx, func(s *State) {
					s.Steps[i].Undo = Keep(fmt.Errorf("undo step %s: %w", ss.Name, err))
				}); err != nil {
					return err
				}
				if !step.UndoMayLag {
					break
				}
				continue
			}
			if step.Undo == nil {
				// Nothing happened outside: needs no write of its own.
				t.change(func(s *State) bool { s.Steps[i].State = StepUndone; return false })
				continue
			}
			t.log.Info("step undone", "step", ss.Name)
			if err := t.commit(ctx, func(s *State) { s.Steps[i].State = StepUndone }); err != nil {
				return err
			}
		}
		if !failed {
			return t.commit(ctx, func(s *State) { s.Phase = Undone })
		}
		if t.leave != nil && t.leave(t.State()) {
			return ErrLeft
		}
	}
}

// undo tries one Undo a few times.
func (e *Engine) undo(ctx context.Context, t *Task, step Step) error {
	if step.Undo == nil {
		return nil
	}
	for try := 1; ; try++ {
		err := step.Undo(ctx, t)
		if err == nil || errors.Is(err, ErrTooLate) || try >= e.o.UndoTries {
			return err
		}
		if err := t.rest(ctx, e.backoff(try-1)); err != nil {
			return err
		}
	}
}

// turnRound goes forward again from step i, whose undo came too late. What was
// undone after it is to be done anew.
func (e *Engine) turnRound(ctx context.Context, t *Task, i, pass int, why error) error {
	t.log.Warn("too late to undo, going forward", "step", t.State().Steps[i].Name, "reason", why)
	if t.State().Turned {
		// The step failed again though only forward is left: told, and no hot loop.
		t.change(func(s *State) bool {
			s.Doubt = Keep(fault.New(fault.InDoubt, "step %s: %w", s.Steps[i].Name, errors.Join(s.Cause.Err(), why)))
			return true
		})
		if err := t.rest(ctx, e.o.BackoffMax); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.final, t.canceled = true, nil
	t.mu.Unlock()
	return t.commit(ctx, func(s *State) {
		s.Steps = s.Steps[:i+1]
		s.Steps[i].State, s.Steps[i].Undo = StepBegun, nil
		s.Phase, s.Cause, s.Turned = Doing, nil, true
	})
}

func (e *Engine) backoff(try int) time.Duration {
	d := e.o.BackoffMin
	for range try {
		if d *= 2; d >= e.o.BackoffMax {
			return e.o.BackoffMax
		}
	}
	return d
}

// later is the pause before a pass of undos: it doubles up to UndoLater, so that
// somebody who was away for a moment is asked again soon.
func (e *Engine) later(pass int) time.Duration {
	d := e.o.BackoffMax
	for range pass - 1 {
		if d >= e.o.UndoLater {
			break
		}
		d *= 2
	}
	return min(d, e.o.UndoLater)
}

func find(steps []Step, name string) (Step, error) {
	for _, s := range steps {
		if s.Name == name {
			return s, nil
		}
	}
	return Step{}, fault.New(fault.Internal, "step %s of the journal is not in this story", name)
}

// ahead is the story without the steps that the journal has passed by: it was begun by a
// release that did not have them yet, and what they come before has begun.
func (t *Task) ahead(steps []Step) []Step {
	s := t.State()
	last := -1
	for i := range steps {
		if s.index(steps[i].Name) >= 0 {
			last = i
		}
	}
	var out []Step
	for i, step := range steps {
		if i > last || s.index(step.Name) >= 0 {
			out = append(out, step)
		}
	}
	return out
}

// position is the first step that has not ended, and whether its intent is in
// the journal.
func (t *Task) position(steps []Step) (i int, begun bool) {
	s := t.State()
	for i = range steps {
		st, ok := s.Step(steps[i].Name)
		if !ok {
			return i, false
		}
		if st.State != StepEnded {
			return i, true
		}
	}
	return len(steps), false
}

// enter is asked before step i is begun: it gives the cause of a Cancel that
// came in time, or shuts the door to later ones if the step is final.
func (t *Task) enter(steps []Step, i int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.Turned || i == len(steps) || steps[i].Forward {
		t.final = true
		return nil
	}
	if t.canceled != nil {
		return t.canceled
	}
	t.final = steps[i].Final
	return nil
}

// stoppable is the context of one Do.
func (t *Task) stoppable(ctx context.Context) (context.Context, func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.final {
		return ctx, func() {}
	}
	dctx, cancel := context.WithCancelCause(ctx)
	if t.canceled != nil {
		cancel(t.canceled)
	}
	t.cancel = cancel
	return dctx, func() {
		t.mu.Lock()
		t.cancel = nil
		t.mu.Unlock()
		cancel(nil)
	}
}

// commit makes a change durable and only then visible. A store that fails is
// asked again until ctx ends: without its journal a task must neither go on nor
// turn. Only the task's own actor calls it.
func (t *Task) commit(ctx context.Context, f func(*State)) error {
	e := t.engine
	next := t.State()
	f(&next)
	for try := 0; ; try++ {
		err := t.write(ctx, next)
		if err == nil {
			break
		}
		t.log.Error("task journal cannot be written, trying again", "error", err)
		t.change(func(s *State) bool { s.Doubt = Keep(err); return true })
		if err := e.o.Runtime.Sleep(ctx, e.backoff(try)); err != nil {
			return err
		}
	}
	t.change(func(s *State) bool { *s = next; return true })
	return nil
}
