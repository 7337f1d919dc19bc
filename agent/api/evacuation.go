package api

import (
	"context"
	"errors"
	"net/http"

	"berth/internal/fault"
	"berth/migration"
)

// evacuationRoute is there in every agent that knows evacuations.
const evacuationRoute = "/v1/verbs/prep-evacuation"

const evacuations = "evacuations"

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
