package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// evacuationRows are the verbs of migration.EvacuationVerbs. The source is dead and asks
// nothing, so that another host conducts: the one that the claim here names. For the first
// contact a host's certificate is enough, since the token is given by the fleet's records
// alone, which the asked host reads itself.
func evacuationRows() []route {
	type host = migration.Host
	type ref = migration.Ref
	return []route{
		verb("prep-evacuation", "Get ready for a guest of a dead host: all but the start.", sideDestination, slow,
			func(e migration.EvacuationRequest) named { return named{source: e.Source, evacuates: true} },
			func(ctx context.Context, h host, r ref, e migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
				return h.PrepEvacuation(ctx, r, e)
			}),
		plain("rollback-prep-evacuation", "Undo prep-evacuation.", sideDestination, slow, host.RollbackPrepEvacuation),
		act("accept-evacuated", "Accept the token of a guest of a dead host, by the fleet's records.", sideDestination, quick,
			func(c migration.Commit) named { return named{source: c.From, evacuates: true} },
			func(ctx context.Context, h host, r ref, c migration.Commit) error {
				return h.AcceptEvacuated(ctx, r, c)
			}),
		verb("finish-evacuation", "Make the guest live here: disks, definition, claim bound, power state.", sideDestination, slow, nil,
			func(ctx context.Context, h host, r ref, _ nothing) (migration.FinishedEvacuation, error) {
				return h.FinishEvacuation(ctx, r)
			}),
	}
}

// evacuationRoute is there in every agent that knows evacuations.
const evacuationRoute = "/v1/verbs/prep-evacuation"

const evacuations = "evacuations"

// evacuate asks a verb of migration.EvacuationVerbs. A host whose agent is older than these
// verbs is refused by its version.
func (c *Client) evacuate(ctx context.Context, name string, most time.Duration, in, out any) error {
	return c.knowsNo(ctx, c.verb(ctx, name, most, in, out), routeUnknown, evacuations)
}

// lacks says of an answer that refuses whether it may be because the agent is too old: it
// has no such route. Requests that are older than a kind of move are refused in many ways.
func (c *Client) lacks(ctx context.Context, path string) func(error) bool {
	return func(err error) bool {
		switch fault.KindOf(err) {
		case fault.Forbidden, fault.Invalid, fault.NotFound, fault.Internal:
			return routeUnknown(c.do(ctx, http.MethodGet, path, nil, nil, once))
		}
		return false
	}
}

// PrepEvacuation implements migration.EvacuationVerbs.
func (c *Client) PrepEvacuation(ctx context.Context, ref migration.Ref, r migration.EvacuationRequest) (out migration.PreparedEvacuation, err error) {
	return out, c.evacuate(ctx, "prep-evacuation", slowVerb, with(ref, r), &out)
}

// RollbackPrepEvacuation implements migration.EvacuationVerbs. An agent that knows no
// evacuations has prepared none.
func (c *Client) RollbackPrepEvacuation(ctx context.Context, ref migration.Ref) error {
	return c.evacuate(ctx, "rollback-prep-evacuation", slowVerb, alone(ref), nil)
}

// AcceptEvacuated implements migration.EvacuationVerbs.
func (c *Client) AcceptEvacuated(ctx context.Context, ref migration.Ref, m migration.Commit) error {
	return c.evacuate(ctx, "accept-evacuated", quickVerb, with(ref, m), nil)
}

// FinishEvacuation implements migration.EvacuationVerbs.
func (c *Client) FinishEvacuation(ctx context.Context, ref migration.Ref) (out migration.FinishedEvacuation, err error) {
	return out, c.evacuate(ctx, "finish-evacuation", slowVerb, alone(ref), &out)
}

// operatorsWord refuses an evacuation that a host asks for, also one that it passes on:
// that a guest's host is dead is a person's business.
func operatorsWord(ctx context.Context, in Migrate) error {
	if in.MigrationType != migration.TypeEvacuation {
		if in.Stopped || in.AcceptLoss {
			return fault.New(fault.Invalid, "stopped and accept_data_loss are of an evacuation")
		}
		return nil
	}
	who := callerOf(ctx)
	if who.caller&operators != 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "evacuate instance "+in.Instance, fault.Reason{
		Code: "caller", Message: "a caller by " + who.caller.String() + " may not ask for an evacuation", Have: who.caller.String(),
		Change: "use the local socket or an operator's certificate",
	})
}

// tooOldToEvacuate puts the refusal of an agent that knows no evacuations into words.
func (c *Client) tooOldToEvacuate(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, fault.Unavailable) {
		return err
	}
	return c.knowsNo(ctx, err, c.lacks(ctx, evacuationRoute), evacuations)
}
