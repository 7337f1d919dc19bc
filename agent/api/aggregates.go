package api

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"berth/internal/fault"
)

// HostAggregates are the aggregates that a host is in, as Placement has them.
type HostAggregates struct {
	Name         string   `json:"name"`
	ProviderUUID string   `json:"provider_uuid"` // the root of the host's tree, which is in them
	Aggregates   []string `json:"aggregates"`    // uuids, sorted
}

// ChangeAggregates puts a host into aggregates and takes it out of others. Those that it
// does not name stay. An aggregate is there as soon as somebody is in it.
type ChangeAggregates struct {
	Add    []string `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

var aggregateUUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Validate refuses, as fault.Invalid and with every reason, what is no uuid in Placement's
// form, what is to be added and removed, and a change of nothing.
func (r ChangeAggregates) Validate() error {
	var reasons []fault.Reason
	for _, list := range []struct {
		name  string
		uuids []string
	}{{"add", r.Add}, {"remove", r.Remove}} {
		for _, uuid := range list.uuids {
			switch {
			case !aggregateUUID.MatchString(uuid):
				reasons = append(reasons, fault.Reason{
					Code: "aggregate_uuid", Message: fmt.Sprintf("%s %q: want the uuid of an aggregate, in small letters: 8-4-4-4-12 hexadecimal digits", list.name, uuid),
					Have: uuid, Change: "correct it",
				})
			case list.name == "add" && slices.Contains(r.Remove, uuid):
				reasons = append(reasons, fault.Reason{
					Code: "aggregate_twice", Message: "aggregate " + uuid + " is to be added and removed", Have: uuid, Change: "say one of them",
				})
			}
		}
	}
	if len(r.Add)+len(r.Remove) == 0 {
		reasons = append(reasons, fault.Reason{Code: "aggregate_missing", Message: "no aggregate is named", Change: "say which to add, or to remove"})
	}
	if len(reasons) > 0 {
		return fault.Refuse(fault.Invalid, "read the aggregates", reasons...)
	}
	return nil
}

// Of gives what the change makes of aggregates, sorted, each once.
func (r ChangeAggregates) Of(have []string) []string {
	out := slices.DeleteFunc(slices.Concat(have, r.Add), func(uuid string) bool { return slices.Contains(r.Remove, uuid) })
	slices.Sort(out)
	return append([]string{}, slices.Compact(out)...)
}

// aggregateRows are the rows of a host's aggregates. A change is asked of the host itself:
// an embedded Placement lets a host's certificate write that host's providers alone.
func aggregateRows() []route {
	return []route{
		read(http.MethodGet, "/v1/host/aggregates", "host-aggregates", "Placement's aggregates that this host is in: hosts in one are near to each other.", everyone,
			func(s *Server, r *http.Request) (HostAggregates, error) { return s.svc.Agent.Aggregates(r.Context()) }).canRelay(),
		write(http.MethodPatch, "/v1/host/aggregates", "host-aggregates-change", "Put this host into aggregates of Placement's, or take it out.", operators,
			func(s *Server, r *http.Request, in ChangeAggregates) (HostAggregates, error) {
				return s.svc.Agent.ChangeAggregates(r.Context(), in)
			}),
	}
}

// Aggregates reads the aggregates that the host is in.
func (c *Client) Aggregates(ctx context.Context) (out HostAggregates, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/host/aggregates", nil, &out, repeatable)
}

// ChangeAggregates puts the host into aggregates and takes it out of others; safe to repeat.
func (c *Client) ChangeAggregates(ctx context.Context, r ChangeAggregates) (out HostAggregates, err error) {
	return out, c.do(ctx, http.MethodPatch, "/v1/host/aggregates", r, &out, repeatable)
}
