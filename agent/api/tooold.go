package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"berth/internal/fault"
	"berth/migration"
)

// tooOld puts the answer of an agent that has no such route, or does not know a field of the
// request, into a refusal with its version (migration.ReasonPeerTooOld). Any other answer stays as
// it is.
func (c *Client) tooOld(ctx context.Context, err error) error {
	what := ""
	if e, ok := errors.AsType[*fault.Error](err); ok {
		switch {
		case e.Kind == fault.NotFound && len(e.Reasons) == 0 && strings.HasPrefix(e.Message, noRoute):
			what, _, _ = strings.Cut(strings.TrimPrefix(e.Message, noRoute), ": ")
		case e.Kind == fault.Invalid && len(e.Reasons) == 1 && e.Reasons[0].Code == codeUnknownField:
			what = strings.TrimPrefix(e.Reasons[0].Message, "unknown ")
		}
	}
	if what == "" {
		return err
	}
	name, runs := cmp.Or(c.host, c.opt.Name, "at "+c.where()), "an older berth"
	var d migration.Description
	// Best effort: the refusal stands without it.
	if _, err := c.attempt(ctx, http.MethodGet, "/v1/verbs/describe", nil, &d); err == nil {
		name, runs = d.Name, "berth "+d.BerthVersion
	}
	return fault.Refuse(fault.Forbidden, "ask host "+name, fault.Reason{
		Code: migration.ReasonPeerTooOld, Message: "host " + name + " runs " + runs + ", which does not know " + what, Have: runs,
		Change: "upgrade berth on " + name + " (its instances run on meanwhile)",
	})
}
