package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// The methods of migration.Host. Each carries its Ref, so that each is safe to
// repeat, and is repeated when its answer was lost. When no answer comes at all
// the error is fault.Unavailable.

// quickVerb and slowVerb bound a verb whose caller gave no deadline.
const (
	quickVerb = quick
	slowVerb  = slow
)

func (c *Client) verb(ctx context.Context, name string, most time.Duration, in, out any) error {
	ctx, cancel := c.rt.WithTimeout(ctx, most)
	defer cancel()
	return c.do(ctx, http.MethodPost, "/v1/verbs/"+name, in, out, repeatable)
}

// Ask implements migration.Host. It blocks for the operation's limit at most; an operation that goes
// on after a request is asked again. An agent that does not know the operation is refused by its
// version (migration.ReasonPeerTooOld).
func (c *Client) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	limit := op.Limit
	if op.LimitOf != nil {
		limit = op.LimitOf(in)
	}
	if op.Joins > 0 {
		var cancel context.CancelFunc
		ctx, cancel = c.rt.WithTimeout(ctx, op.Joins)
		defer cancel()
	}
	for {
		began := c.rt.Boot().Since
		out, err := c.ask(ctx, op, limit, op.Pack(ref, in))
		if op.Joins == 0 || fault.KindOf(err) != fault.Busy || ctx.Err() != nil || c.rt.Boot().Since-began < limit/2 {
			return out, err
		}
	}
}

// ask sends one request. A piece of a disk travels as a frame.
func (c *Client) ask(ctx context.Context, op *migration.Operation, limit time.Duration, body any) (any, error) {
	out := op.NewAnswer()
	var err error
	switch piece, answered := body.(operation.Request[migration.DiskPiece]); {
	case answered:
		var head []byte
		if head, err = frame(body); err == nil {
			err = c.piece(ctx, op.Name, frameType, nil, head, piece.Args.Data)
		}
	default:
		got, framed := out.(*migration.DiskPiece)
		if !framed {
			if op.Joins > 0 {
				limit += quickVerb // the agent ends the request itself
			}
			err = c.verb(ctx, op.Name, limit, body, out)
			break
		}
		var text []byte
		if text, err = json.Marshal(body); err == nil {
			err = c.piece(ctx, op.Name, "application/json", got, text)
		}
	}
	if err != nil {
		return nil, err
	}
	return op.Answer(out), nil
}

func with[A any](ref migration.Ref, args A) operation.Request[A] {
	return operation.Request[A]{Ref: ref, Args: args}
}

func alone(ref migration.Ref) operation.Request[operation.None] {
	return operation.Request[operation.None]{Ref: ref}
}

// Describe implements migration.Host.
func (c *Client) Describe(ctx context.Context) (out migration.Description, err error) {
	ctx, cancel := c.rt.WithTimeout(ctx, quickVerb)
	defer cancel()
	return out, c.do(ctx, http.MethodGet, "/v1/verbs/describe", nil, &out, repeatable)
}
