package task

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// Step is one named step of a story.
type Step struct {
	// Name is unique in the story and stays the same across releases while
	// journals with it may exist. A step that a release adds is done by tasks that
	// have not begun a later one; its output is not there for the others.
	Name string
	// Do has the effect and returns the step's output, which is journaled as
	// JSON (nil for none). Safe to repeat. ctx ends with the cause given to
	// Cancel, except in Forward and Final steps, and when the process stops.
	Do func(ctx context.Context, t *Task) (output any, err error)
	// Undo takes back whatever Do may have done, whole or half. Nil for a step
	// that has nothing to undo. Safe to repeat. An error that wraps ErrTooLate
	// turns the task round.
	Undo func(ctx context.Context, t *Task) error
	// Skip leaves the step out where it says so of the journal as it is when the step would
	// be begun, the end of the one before included: without a write, and without a trace.
	// A pure function; nil for never.
	Skip func(State) bool
	// Forward: past the point of no return. Retried until done, never undone.
	Forward bool
	// Final: from its beginning on, Cancel is refused. It may still fail and be
	// undone. Forward steps are final too.
	Final bool
	// UndoOnRestart: if a restart finds the step begun and not ended, the task is
	// undone. Otherwise Do is repeated.
	UndoOnRestart bool
	// UndoMayLag: while its undo fails, the undos of earlier steps go on. Without
	// it nothing earlier is undone before this is.
	UndoMayLag bool
}

// ErrTooLate is what an Undo answers when the effect can no longer be taken back
// and the only way is forward.
var ErrTooLate = errors.New("past the point of no return")

// ErrLeft is what Run answers of a task that was left as it is (see Task.LeaveWhen).
var ErrLeft = errors.New("left with undos that lag")

// ErrTurnBack is what the Do of a forward step answers that is not to be tried again:
// somebody outside has decided that the task goes back after all. The step is then
// undone like any other, and so is all before it.
var ErrTurnBack = errors.New("to be taken back")

// ErrNothingDone is what a Do answers that is certain to have had no effect: every
// order it gave was answered with a refusal. It is believed, and nothing undone, of a Do
// that ran once only: what an earlier run of it sent may still have an effect.
var ErrNothingDone = errors.New("nothing was done")

// Options configure an Engine. Zero durations mean the defaults.
type Options struct {
	Runtime runtime.Runtime
	Store   Store
	Bucket  string       // of the journals; default "tasks"
	Logger  *slog.Logger // nil discards

	// BackoffMin and BackoffMax bound the doubling pause between tries
	// (default 100 ms and 10 s).
	BackoffMin, BackoffMax time.Duration
	// UndoTries is how often an undo is tried in one pass (default 4). When a
	// pass has failed, the next comes after BackoffMax, and then after twice as
	// long each time, up to UndoLater (default 30 s).
	UndoTries int
	UndoLater time.Duration
	// Patience is how long a forward step may fail before State.Doubt says so
	// (default 1 minute).
	Patience time.Duration
	// OnChange sees every change of a task's state, from the task's own actor.
	// It must not block. May be nil.
	OnChange func(State)
}

// Engine runs tasks and keeps their journals. Its methods may be called from
// several actors.
type Engine struct{ o Options }

// New makes an engine.
func New(o Options) *Engine {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.BackoffMin, 100*time.Millisecond)
	def(&o.BackoffMax, 10*time.Second)
	def(&o.UndoLater, 30*time.Second)
	def(&o.Patience, time.Minute)
	if o.UndoTries <= 0 {
		o.UndoTries = 4
	}
	if o.Bucket == "" {
		o.Bucket = "tasks"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Engine{o}
}

// Task is one run of a story.
type Task struct {
	engine  *Engine
	resumed bool // made from a journal
	log     *slog.Logger

	leave func(State) bool // nil for never

	// mu guards what follows. Leaf lock; nothing that blocks happens under it.
	mu       sync.Mutex
	state    State
	final    bool // Cancel is refused
	canceled error
	cancel   context.CancelCauseFunc // of the Do that runs; nil between
	hurry    context.CancelFunc      // ends the pause that is being made; nil between
}

// Begin makes a task and its journal; when it returns, a restart will find it.
func (e *Engine) Begin(ctx context.Context, id string) (*Task, error) {
	t := &Task{engine: e, log: e.o.Logger.With("task", id), state: State{ID: id, Phase: Doing}}
	if err := t.write(ctx, t.State()); err != nil {
		return nil, err
	}
	return t, nil
}

// Load reads every task of the journal, by id. A journal that cannot be read is
// in broken, with the reason: its task must not be begun anew, since nobody
// knows what it has done.
func (e *Engine) Load(ctx context.Context) (tasks map[string]*Task, broken map[string]error, err error) {
	all, err := e.o.Store.List(ctx, e.o.Bucket)
	if err != nil {
		return nil, nil, fmt.Errorf("read the task journal: %w", err)
	}
	tasks, broken = map[string]*Task{}, map[string]error{}
	for id, raw := range all {
		t := &Task{engine: e, log: e.o.Logger.With("task", id), resumed: true}
		err := json.Unmarshal(raw, &t.state)
		if err == nil && t.state.ID != id {
			err = fmt.Errorf("it names task %q", t.state.ID)
		}
		if err != nil {
			broken[id] = fault.New(fault.Internal, "read the journal of task %s: %w", id, err)
			continue
		}
		tasks[id] = t
	}
	return tasks, broken, nil
}

// Forget deletes a task's journal. Safe to repeat.
func (e *Engine) Forget(ctx context.Context, id string) error {
	if err := e.o.Store.Delete(ctx, e.o.Bucket, id); err != nil {
		return fmt.Errorf("delete the journal of task %s: %w", id, err)
	}
	return nil
}

// ID is the id given to Begin.
func (t *Task) ID() string { return t.state.ID }

// LogTo replaces the engine's logger, to say more about the task on each line.
// Before Run only.
func (t *Task) LogTo(l *slog.Logger) { t.log = l }

// LeaveWhen has Run return ErrLeft after a pass of undos of which some failed, when f says
// so of what the journal has then; the task can be run again. Before Run only.
func (t *Task) LeaveWhen(f func(State) bool) { t.leave = f }

// State is the task at this moment.
func (t *Task) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.state.clone()
}

// Output reads the output of an earlier step into v, also after a restart. It
// is fault.NotFound when the step has not ended.
func (t *Task) Output(step string, v any) error {
	s := t.State()
	st, ok := s.Step(step)
	if !ok || st.Output == nil {
		return fault.New(fault.NotFound, "task %s: step %s has no output", s.ID, step)
	}
	if err := json.Unmarshal(st.Output, v); err != nil {
		return fault.New(fault.Internal, "task %s: output of step %s: %w", s.ID, step, err)
	}
	return nil
}

// Cancel asks the task to be undone, for a cause. The Do that runs sees its
// context end with that cause. It is fault.Forbidden from a Final step on, and
// when the task is over. A task that is being undone already takes no second
// cause, and that is no error.
func (t *Task) Cancel(cause error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.state.Over():
		return fault.New(fault.Forbidden, "cancel task %s: it is over", t.state.ID)
	case t.state.Phase == Undoing:
		return nil
	case t.final:
		return fault.New(fault.Forbidden, "cancel task %s: it is past the point of no return", t.state.ID)
	}
	if t.canceled == nil {
		t.canceled = cause
		if t.cancel != nil {
			t.cancel(cause)
		}
	}
	return nil
}

// Hurry ends the pause before the next try of a step or an undo, if one is being made:
// what it waited for may have come.
func (t *Task) Hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.hurry != nil {
		t.hurry()
	}
}

// rest pauses between two tries; Hurry ends it early. Its error is ctx's cause.
func (t *Task) rest(ctx context.Context, d time.Duration) error {
	pause, end := context.WithCancel(ctx)
	defer end()
	t.mu.Lock()
	t.hurry = end
	t.mu.Unlock()
	_ = t.engine.o.Runtime.Sleep(pause, d) // how it ended is asked of ctx
	t.mu.Lock()
	t.hurry = nil
	t.mu.Unlock()
	return context.Cause(ctx)
}

// Doubt tells why the running step cannot go on at present; nil takes it back.
// It is for a Do that keeps asking, and an Undo that will be asked again.
func (t *Task) Doubt(err error) {
	t.change(func(s *State) bool {
		if (s.Doubt == nil) == (err == nil) && (err == nil || s.Doubt.Message == err.Error()) {
			return false
		}
		s.Doubt = Keep(err)
		return true
	})
}

// change alters the state in memory and tells OnChange when f says so.
func (t *Task) change(f func(*State) bool) State {
	t.mu.Lock()
	changed := f(&t.state)
	c := t.state.clone()
	t.mu.Unlock()
	if changed && t.engine.o.OnChange != nil {
		t.engine.o.OnChange(c)
	}
	return c
}

// write makes a state durable, once.
func (t *Task) write(ctx context.Context, s State) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fault.New(fault.Internal, "write the journal of task %s: %w", s.ID, err)
	}
	if err := t.engine.o.Store.Put(ctx, t.engine.o.Bucket, s.ID, b); err != nil {
		return fmt.Errorf("write the journal of task %s: %w", s.ID, err)
	}
	return nil
}
