package task

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"berth/internal/fault"
)

// Store is where journals are kept. A call that returned nil is durable; one
// that returned an error may or may not have happened.
type Store interface {
	Put(ctx context.Context, bucket, key string, value []byte) error
	Delete(ctx context.Context, bucket, key string) error
	List(ctx context.Context, bucket string) (map[string][]byte, error)
}

// Phase is the direction in which a task goes.
type Phase string

// The phases; the table in the package comment has the transitions.
const (
	Doing   Phase = "doing"
	Undoing Phase = "undoing"
	Done    Phase = "done"   // every step has ended
	Undone  Phase = "undone" // every step that may have had an effect was undone
)

// StepPhase is how far one step is.
type StepPhase string

// The phases of a step. A step that was never begun has none.
const (
	StepBegun  StepPhase = "begun"  // its effect may have happened, in part or whole
	StepEnded  StepPhase = "ended"  // its effect is complete
	StepFailed StepPhase = "failed" // Do gave an error; what it did half is still to be undone
	StepUndone StepPhase = "undone" // undone, or it had nothing to undo
)

// Error is a failure as it is kept in a journal: the kind, the text and every
// reason survive a restart; the chain of causes does not.
type Error struct {
	Kind    fault.Kind     `json:"kind"`
	Message string         `json:"message"`
	Reasons []fault.Reason `json:"reasons,omitempty"`
	// By is who gave it, or did not answer, where whoever asked has said so (see By).
	By string `json:"by,omitempty"`
}

// By says of an error whose it is: it is kept with it, also where the error is wrapped
// again. Nil stays nil, and an empty name says nothing.
func By(who string, err error) error {
	if err == nil || who == "" {
		return err
	}
	return &by{who, err}
}

type by struct {
	who string
	err error
}

func (b *by) Error() string { return b.err.Error() }
func (b *by) Unwrap() error { return b.err }

// Whose is who an error was said to be of; empty where nobody has said.
func Whose(err error) string {
	if b, ok := errors.AsType[*by](err); ok {
		return b.who
	}
	return ""
}

// Keep makes a failure fit for a journal. Nil stays nil.
func Keep(err error) *Error {
	if err == nil {
		return nil
	}
	return &Error{Kind: fault.KindOf(err), Message: err.Error(), Reasons: fault.ReasonsOf(err), By: Whose(err)}
}

// Err is the failure as an error again: its kind and reasons are found by
// package fault. Nil gives nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	return By(e.By, &kept{*e})
}

// kept prints the message alone: it already names the reasons.
type kept struct{ e Error }

func (k *kept) Error() string { return k.e.Message }

// Unwrap gives kind and reasons to package fault.
func (k *kept) Unwrap() error { return &fault.Error{Kind: k.e.Kind, Reasons: k.e.Reasons} }

// StepState is what the journal keeps of one step.
type StepState struct {
	Name   string          `json:"name"`
	State  StepPhase       `json:"state"`
	Begun  time.Time       `json:"begun,omitzero"`
	Ended  time.Time       `json:"ended,omitzero"` // when Do returned, well or not
	Tries  int             `json:"tries,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	Error  *Error          `json:"error,omitempty"`      // why Do failed, the last time
	Undo   *Error          `json:"undo_error,omitempty"` // why Undo failed, the last time
}

// State is a task as its journal keeps it.
type State struct {
	ID    string `json:"id"`
	Phase Phase  `json:"phase"`
	// Steps that were begun, in the story's order.
	Steps []StepState `json:"steps"`
	// Turned: an undo came too late, and only forward is left.
	Turned bool `json:"turned,omitempty"`
	// Cause is why the task is or was undone.
	Cause *Error `json:"cause,omitempty"`
	// Doubt is why the task cannot go on at present, though it keeps trying:
	// somebody who must answer does not. Not journaled, since a restart asks anew.
	Doubt *Error `json:"-"`
}

// Step finds the state of a step by name.
func (s *State) Step(name string) (StepState, bool) {
	if i := s.index(name); i >= 0 {
		return s.Steps[i], true
	}
	return StepState{}, false
}

// Over says whether nothing is left to do or to undo.
func (s *State) Over() bool { return s.Phase == Done || s.Phase == Undone }

// Undos joins what went wrong in undos that are still to be done; nil for nothing.
func (s *State) Undos() error {
	var errs []error
	for _, st := range s.Steps {
		if st.State != StepUndone && st.Undo != nil {
			errs = append(errs, st.Undo.Err())
		}
	}
	return errors.Join(errs...)
}

// end notes that a step is complete.
func (s *State) end(name string, now time.Time, out json.RawMessage) {
	st := &s.Steps[s.index(name)]
	st.State, st.Ended, st.Output, st.Error = StepEnded, now, out, nil
	s.Doubt = nil
}

func (s *State) index(name string) int {
	for i := range s.Steps {
		if s.Steps[i].Name == name {
			return i
		}
	}
	return -1
}

// clone is a copy that shares nothing that changes. Outputs and errors are
// never changed in place, only replaced.
func (s *State) clone() State {
	c := *s
	c.Steps = append([]StepState(nil), s.Steps...)
	return c
}
