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
			return out, c.knowsNo(ctx, err, routeUnknown, "operation "+op.Name)
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

// Inspect implements migration.SourceVerbs.
func (c *Client) Inspect(ctx context.Context, instance string) (out migration.Guest, err error) {
	return out, c.verb(ctx, "inspect", quickVerb, alone(migration.Ref{Instance: instance}), &out)
}

// CheckSource implements migration.SourceVerbs.
func (c *Client) CheckSource(ctx context.Context, ref migration.Ref, a migration.CheckAnswer) (out migration.SourceAnswer, err error) {
	return out, c.verb(ctx, "check-source", quickVerb, with(ref, a), &out)
}

// RecordContext implements migration.SourceVerbs.
func (c *Client) RecordContext(ctx context.Context, ref migration.Ref, m migration.Context) error {
	return c.verb(ctx, "record-context", quickVerb, with(ref, m), nil)
}

// DropContext implements migration.SourceVerbs.
func (c *Client) DropContext(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "drop-context", quickVerb, alone(ref), nil)
}

// StartStream implements migration.SourceVerbs.
func (c *Client) StartStream(ctx context.Context, ref migration.Ref, s migration.Stream) error {
	return c.verb(ctx, "start-stream", slowVerb, with(ref, s), nil)
}

// StreamStatus implements migration.SourceVerbs.
func (c *Client) StreamStatus(ctx context.Context, ref migration.Ref) (out migration.StreamStatus, err error) {
	return out, c.verb(ctx, "stream-status", quickVerb, alone(ref), &out)
}

// TuneStream implements migration.SourceVerbs.
func (c *Client) TuneStream(ctx context.Context, ref migration.Ref, t migration.Tuning) error {
	return c.verb(ctx, "tune-stream", quickVerb, with(ref, t), nil)
}

// Commit implements migration.SourceVerbs.
func (c *Client) Commit(ctx context.Context, ref migration.Ref) (out migration.Commit, err error) {
	return out, c.verb(ctx, "commit", quickVerb, alone(ref), &out)
}

// Reclaim implements migration.SourceVerbs.
func (c *Client) Reclaim(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "reclaim", slowVerb, alone(ref), nil)
}

// CleanUpSource implements migration.SourceVerbs.
func (c *Client) CleanUpSource(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "clean-up-source", slowVerb, alone(ref), nil)
}

// CheckDestination implements migration.DestinationVerbs.
func (c *Client) CheckDestination(ctx context.Context, ref migration.Ref, r migration.CheckRequest) (out migration.CheckAnswer, err error) {
	if r.Kind == migration.TypeLiveMigration {
		r.Kind = "" // an agent that knows live migrations only would not know the field
	}
	ask := func() error { return c.verb(ctx, "check-destination", quickVerb, with(ref, r), &out) }
	if r.Kind == migration.TypeEvacuation {
		return out, c.tooOldToEvacuate(ctx, ask())
	}
	err = orPlainer(ask, func() (changed bool) {
		r.Guest, changed = plainGuest(r.Guest)
		return changed
	})
	return out, c.orTooOld(ctx, err, coldTo(r.Kind))
}

// Claim implements migration.DestinationVerbs.
func (c *Client) Claim(ctx context.Context, ref migration.Ref, r migration.ClaimRequest) (out migration.ClaimAnswer, err error) {
	if r.Kind == migration.TypeLiveMigration {
		r.Kind = ""
	}
	ask := func() error { return c.verb(ctx, "claim", quickVerb, with(ref, r), &out) }
	if r.Kind == migration.TypeEvacuation {
		return out, c.tooOldToEvacuate(ctx, ask())
	}
	err = orPlainer(ask, func() bool {
		guest, images := plainGuest(r.Guest)
		queued := r.Queued // an agent that has no bound on arrivals has nobody wait
		r.Guest, r.Queued = guest, false
		return images || queued
	})
	return out, c.orTooOld(ctx, err, coldTo(r.Kind))
}

// RenewClaim implements migration.DestinationVerbs.
func (c *Client) RenewClaim(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "renew-claim", quickVerb, alone(ref), nil)
}

// AbortClaim implements migration.DestinationVerbs.
func (c *Client) AbortClaim(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "abort-claim", slowVerb, alone(ref), nil)
}

// PreLiveMigration implements migration.DestinationVerbs.
func (c *Client) PreLiveMigration(ctx context.Context, ref migration.Ref, p migration.PreLiveRequest) (out migration.Prepared, err error) {
	return out, orPlainer(func() error { return c.verb(ctx, "pre-live-migration", slowVerb, with(ref, p), &out) }, func() (changed bool) {
		p.Guest, changed = plainGuest(p.Guest)
		return changed
	})
}

// RollbackPreLiveMigration implements migration.DestinationVerbs.
func (c *Client) RollbackPreLiveMigration(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "rollback-pre-live-migration", slowVerb, alone(ref), nil)
}

// AcceptToken implements migration.DestinationVerbs.
func (c *Client) AcceptToken(ctx context.Context, ref migration.Ref, m migration.Commit) error {
	return c.verb(ctx, "accept-token", slowVerb, with(ref, m), nil)
}

// DestinationStatus implements migration.DestinationVerbs.
func (c *Client) DestinationStatus(ctx context.Context, ref migration.Ref) (out migration.DestinationStatus, err error) {
	return out, c.verb(ctx, "destination-status", quickVerb, alone(ref), &out)
}

// FinishDestination implements migration.DestinationVerbs.
func (c *Client) FinishDestination(ctx context.Context, ref migration.Ref) error {
	return c.verb(ctx, "finish-destination", slowVerb, alone(ref), nil)
}
