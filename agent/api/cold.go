package api

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"berth/internal/fault"
)

// routeUnknown says whether an agent has answered that it has no such route. A guest
// that is not there is another answer of the same kind.
func routeUnknown(err error) bool {
	e, ok := errors.AsType[*fault.Error](err)
	return ok && e.Kind == fault.NotFound && len(e.Reasons) == 0 && strings.HasPrefix(e.Message, noRoute)
}

// coldTo says of the answer to a verb that older agents know without the move's kind
// whether it is theirs.
func coldTo(kind string) func(error) bool {
	return func(err error) bool { return kind != "" && unknownField(err) }
}

// unknownField says whether an agent has answered that it knows not all of a request.
func unknownField(err error) bool {
	return errors.Is(err, fault.Invalid) && slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return r.Code == "unknown_field" })
}

// orTooOld puts the answer of an agent that knows no cold moves into words; any other
// stays as it is.
func (c *Client) orTooOld(ctx context.Context, err error, old func(error) bool) error {
	return c.knowsNo(ctx, err, old, "cold moves")
}

// knowsNo puts the answer of an agent that is older than something into words.
func (c *Client) knowsNo(ctx context.Context, err error, old func(error) bool, what string) error {
	if err == nil || !old(err) {
		return err
	}
	name, runs := cmp.Or(c.host, c.opt.Name, "at "+c.where()), "an older berth"
	// Best effort: the refusal stands without it.
	if d, err := c.Describe(ctx); err == nil {
		name, runs = d.Name, "berth "+d.BerthVersion
	}
	return fault.Refuse(fault.Forbidden, "ask host "+name, fault.Reason{
		Code: "peer_too_old", Message: "host " + name + " runs " + runs + ", which knows no " + what, Have: runs,
		Change: "upgrade berth on " + name + " (its guests run on meanwhile)",
	})
}
