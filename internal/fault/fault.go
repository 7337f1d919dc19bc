// Package fault is how Berth says no.
//
// An error carries one Kind, for decisions (retry, ask the next host, exit with
// which code), and every Reason, for people and programs that must know what to
// change. Kinds are a closed set; test them with errors.Is(err, fault.NotFound)
// or read them with KindOf, never by text. The package holds values only: it
// reads nothing, writes nothing, and imports nothing of this module.
package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Kind is the decision an error asks for. A Kind is itself an error, so that
// errors.Is(err, fault.Busy) works. In JSON it is spelled with underscores.
type Kind string

// The closed set.
const (
	NotFound           Kind = "not_found"           // the thing named does not exist
	Exists             Kind = "exists"              // a thing of that name or place is already there
	Busy               Kind = "busy"                // another operation holds it; try later
	DoesNotFit         Kind = "does_not_fit"        // no room; Reasons say where and how much
	GenerationConflict Kind = "generation_conflict" // somebody else wrote first: read again, then decide
	Unavailable        Kind = "unavailable"         // the other party did not answer; nothing is known to have happened
	Invalid            Kind = "invalid"             // the input is wrong; repeating it is useless
	Forbidden          Kind = "forbidden"           // not allowed, whoever asks again
	InDoubt            Kind = "in_doubt"            // the outcome is unknown: look before doing anything
	Undone             Kind = "undone"              // it failed and everything was put back
	Internal           Kind = "internal"            // a bug or a broken disk
)

// Error makes a Kind usable as a target of errors.Is.
func (k Kind) Error() string { return strings.ReplaceAll(string(k), "_", " ") }

// Reason is one cause of a refusal, in an operator's words and in a program's.
// A refusal lists all of them, not the first.
type Reason struct {
	Code    string `json:"code"`             // stable, e.g. "memory_short"
	Message string `json:"message"`          // e.g. "memory: want 4096 MiB, 1024 MiB free"
	Cell    *int   `json:"cell,omitempty"`   // host NUMA cell the reason is about; nil for the whole host
	Want    string `json:"want,omitempty"`   // what was asked
	Have    string `json:"have,omitempty"`   // what there is
	Change  string `json:"change,omitempty"` // what would have to change
}

// Error is a failure with its kind, what was being done, its reasons and cause.
type Error struct {
	Kind    Kind
	Message string // what was being done to which thing; lower case
	Reasons []Reason
	Err     error // the cause; may be nil
}

// Error joins message, reasons and cause on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Message)
	for i, r := range e.Reasons {
		if i == 0 && b.Len() > 0 {
			b.WriteString(": ")
		} else if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(r.Message)
	}
	if _, printed := e.Err.(hidden); e.Err != nil && !printed {
		if b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(e.Err.Error())
	}
	if b.Len() == 0 {
		return e.Kind.Error()
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is this error's kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// New is an error of a kind with a formatted message; %w keeps a cause.
func New(kind Kind, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	e := &Error{Kind: kind, Message: err.Error()}
	if cause := errors.Unwrap(err); cause != nil {
		e.Err = hidden{cause}
	}
	return e
}

// Wrap says what was being done when err came, and keeps its kind and reasons; nil for nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return New(KindOf(err), format+": %w", append(args, err)...)
}

// Refuse is an error of a kind that lists every reason.
func Refuse(kind Kind, message string, reasons ...Reason) error {
	return &Error{Kind: kind, Message: message, Reasons: reasons}
}

// hidden keeps a cause reachable for errors.Is without printing it a second
// time: New's message already has its text.
type hidden struct{ error }

// Unwrap gives the cause that the message already printed.
func (h hidden) Unwrap() error { return h.error }

// KindOf gives the outermost kind in err's chain. An error without one is
// Unavailable when a deadline or cancellation caused it, else Internal; nil has
// the empty kind.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	if k, ok := errors.AsType[Kind](err); ok {
		return k
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return Unavailable
	}
	return Internal
}

// ReasonPerLine makes a reason of each line of a joined error; none for nil.
func ReasonPerLine(code string, err error) []Reason {
	if err == nil {
		return nil
	}
	var out []Reason
	for line := range strings.SplitSeq(err.Error(), "\n") {
		out = append(out, Reason{Code: code, Message: line})
	}
	return out
}

// ReasonsOf collects the reasons of every Error in err's tree, in order.
func ReasonsOf(err error) []Reason {
	var out []Reason
	var walk func(error)
	walk = func(err error) {
		if err == nil {
			return
		}
		if e, ok := err.(*Error); ok {
			out = append(out, e.Reasons...)
		}
		switch u := err.(type) {
		case interface{ Unwrap() error }:
			walk(u.Unwrap())
		case interface{ Unwrap() []error }:
			for _, e := range u.Unwrap() {
				walk(e)
			}
		}
	}
	walk(err)
	return out
}

// HasReason reports whether one of err's reasons has this code.
func HasReason(err error, code string) bool {
	return slices.ContainsFunc(ReasonsOf(err), func(r Reason) bool { return r.Code == code })
}

// RemedyOf returns the first remedy that err's reasons name; empty for none.
func RemedyOf(err error) string {
	for _, r := range ReasonsOf(err) {
		if r.Change != "" {
			return r.Change
		}
	}
	return ""
}
