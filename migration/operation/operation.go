// Package operation has what one host asks of another for a migration, as values: each with its
// name, its input and its answer, who may ask for it, and how long it may take. A new operation is
// a value here and its implementation on the host.
package operation

import (
	"context"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// Quick is how long a request may take that does no slow work.
const Quick = 30 * time.Second

const (
	// Slow requests make disks, run hooks (60 s each by default), or wait for a hypervisor's job to
	// end.
	slow = 10 * time.Minute
	// A piece of a disk: the destination writes it to a disk that may have to sync what came before.
	pieceTime = 2 * time.Minute
	// One request to send disks straight. While it lasts, its conductor is alive for the source; one
	// that is gone is not believed in for longer.
	sendWait = 20 * time.Second
)

// Request is the body of a request: what it belongs to, and the operation's input.
type Request[In any] struct {
	Ref  migration.Ref `json:"ref"`
	Args In            `json:"args"`
}

// None is the input of operations that take only their reference, and the answer of those that only
// say that they are done.
type None struct{}

// Operation is an operation with the types of its input and its answer.
type Operation[In, Out any] struct{ *migration.Operation }

// Ask asks a host for the operation. It blocks until the host has answered or ctx ends. An answer
// that was lost is fault.InDoubt or fault.Unavailable; the operation may be repeated with the same
// reference and gives the same answer.
func (o Operation[In, Out]) Ask(ctx context.Context, h migration.Host, ref migration.Ref, in In) (Out, error) {
	answer, err := h.Ask(ctx, ref, o.Operation, in)
	out, ok := answer.(Out)
	if !ok && err == nil {
		return out, fault.New(fault.Internal, "%s: the host answers with %T", o.Name, answer)
	}
	return out, err
}

// By says how a host does the operation.
func (o Operation[In, Out]) By(do func(context.Context, migration.Ref, In) (Out, error)) Handler {
	return Handler{Operation: o.Operation, Do: func(ctx context.Context, ref migration.Ref, in any) (any, error) {
		arg, ok := in.(In)
		if !ok {
			return nil, fault.New(fault.Internal, "%s: asked with %T", o.Name, in)
		}
		return do(ctx, ref, arg)
	}}
}

// Query is an operation that takes only its reference.
type Query[Out any] struct{ Operation[None, Out] }

// Ask is Operation's without an input.
func (q Query[Out]) Ask(ctx context.Context, h migration.Host, ref migration.Ref) (Out, error) {
	return q.Operation.Ask(ctx, h, ref, None{})
}

// By is Operation's without an input.
func (q Query[Out]) By(do func(context.Context, migration.Ref) (Out, error)) Handler {
	return q.Operation.By(func(ctx context.Context, ref migration.Ref, _ None) (Out, error) { return do(ctx, ref) })
}

// Order is an operation that only says that it is done.
type Order[In any] struct{ Operation[In, None] }

// Ask is Operation's without an answer.
func (o Order[In]) Ask(ctx context.Context, h migration.Host, ref migration.Ref, in In) error {
	_, err := o.Operation.Ask(ctx, h, ref, in)
	return err
}

// By is Operation's without an answer.
func (o Order[In]) By(do func(context.Context, migration.Ref, In) error) Handler {
	return o.Operation.By(func(ctx context.Context, ref migration.Ref, in In) (None, error) { return None{}, do(ctx, ref, in) })
}

// Step is an operation that takes only its reference and only says that it is done.
type Step struct{ Operation[None, None] }

// Ask is Operation's without an input and an answer.
func (s Step) Ask(ctx context.Context, h migration.Host, ref migration.Ref) error {
	_, err := s.Operation.Ask(ctx, h, ref, None{})
	return err
}

// By is Operation's without an input and an answer.
func (s Step) By(do func(context.Context, migration.Ref) error) Handler {
	return s.Operation.By(func(ctx context.Context, ref migration.Ref, _ None) (None, error) { return None{}, do(ctx, ref) })
}

// Handler is an operation and how one host does it.
type Handler struct {
	Operation *migration.Operation
	Do        func(ctx context.Context, ref migration.Ref, in any) (any, error)
	// What follows is nil where the operation needs none; see UnlessDone, Unless and Then.
	Done    func(ref migration.Ref) (bool, error)
	Refused func(ctx context.Context, ref migration.Ref) error
	Then    func(ctx context.Context, ref migration.Ref, in, out any) (any, error)
}

// Handlers are what one host does, by the operations' names.
type Handlers map[string]Handler

// Handle makes Handlers of a list. An operation that stands in it twice is a fault of the program.
func Handle(list ...Handler) Handlers {
	out := Handlers{}
	for _, h := range list {
		if _, twice := out[h.Operation.Name]; twice {
			panic("two handlers of " + h.Operation.Name)
		}
		out[h.Operation.Name] = h
	}
	return out
}

// Without is a host that does some operations in another way, and all others as h does.
type Without struct {
	migration.Host
	Instead Handlers
}

// Ask implements migration.Host.
func (w Without) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	if h, ok := w.Instead[op.Name]; ok {
		return h.Do(ctx, ref, in)
	}
	return w.Host.Ask(ctx, ref, op, in)
}

func define[In, Out any](name, summary string, access migration.Access, limit time.Duration, names func(In) migration.Named) Operation[In, Out] {
	op := &migration.Operation{
		Name: name, Summary: summary, Access: access, Limit: limit, ReadOnly: access == migration.AccessLook,
		NewRequest: func() any { return new(Request[In]) },
		Pack:       func(ref migration.Ref, in any) any { return Request[In]{ref, in.(In)} },
		Unpack: func(body any) (migration.Ref, any) {
			r := body.(*Request[In])
			return r.Ref, r.Args
		},
		NewAnswer: func() any { return new(Out) },
		Answer:    func(decoded any) any { return *decoded.(*Out) },
	}
	if names != nil {
		op.Names = func(in any) migration.Named { return names(in.(In)) }
	}
	all = append(all, op)
	return Operation[In, Out]{op}
}

// readOnly marks an operation that changes nothing, but is asked of a migration that is under way.
func readOnly[In, Out any](o Operation[In, Out]) Operation[In, Out] {
	o.ReadOnly = true
	return o
}

// limited gives an operation a limit by its input.
func limited[In, Out any](o Operation[In, Out], limit func(In) time.Duration) Operation[In, Out] {
	o.LimitOf = func(in any) time.Duration { return limit(in.(In)) }
	return o
}

// joined makes an operation one that goes on when a request for it has ended as fault.Busy.
func joined[In, Out any](o Operation[In, Out]) Operation[In, Out] {
	o.Joins = slow
	return o
}

func namesOfContext(c migration.Context) migration.Named {
	return migration.Named{Source: c.Source, Conductor: c.Conductor, Conducts: true}
}

func namesOfCommit(c migration.Commit) migration.Named {
	return migration.Named{Source: c.From, Gives: true}
}

// all are the operations in the order in which they stand here.
var all []*migration.Operation
