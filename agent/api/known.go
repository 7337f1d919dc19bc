package api

import (
	"context"
	"net/http"

	"berth/claims"
)

// Knowledge is what a host knows that another one, whose ledger is lost, asks for:
// whose the guests are, and which open moves are between the two.
type Knowledge struct {
	Host string `json:"host"`
	// Partial is why this host's own ledger is not whole, so that what it does not
	// say proves nothing; empty for a whole one.
	Partial   string          `json:"partial,omitempty"`
	Instances []KnownInstance `json:"instances"` // all that its ledger knows
	Moves     []KnownMove     `json:"moves"`     // with the host that asks
}

// KnownInstance is a guest's token as one ledger has it.
type KnownInstance struct {
	UUID  string       `json:"uuid"`
	Token claims.Token `json:"token"`
}

// KnownMove is a migration between the host that answers and the one that asks, of
// which the first still has something.
type KnownMove struct {
	Migration   string `json:"migration"`
	Instance    string `json:"instance_uuid"`
	Attempt     int    `json:"attempt"`
	Source      string `json:"source_compute"`
	Destination string `json:"dest_compute"`
	// Context is the source's, or that of a destination where the guest waits; else nil.
	Context *claims.MigrationContext `json:"context,omitempty"`
	// Claim is the state of the destination's claim; empty from a source.
	Claim claims.State `json:"claim,omitempty"`
	// Kind is that of the move's claims; empty for a live migration's. Finished: the guest
	// was brought by Attempt, and waits to have that confirmed.
	Kind     claims.Kind `json:"kind,omitempty"`
	Finished bool        `json:"finished,omitempty"`
}

func knownRows() []route {
	return []route{
		read(http.MethodGet, "/v1/known", "known", "Whose guests are, by this host's ledger, and its moves with the host that asks.", hostsOnly|callerOperator,
			func(s *Server, r *http.Request) (Knowledge, error) {
				from, _ := FromHost(r.Context())
				return s.svc.Agent.Known(r.Context(), from)
			}),
	}
}

// Known asks what the host knows.
func (c *Client) Known(ctx context.Context) (out Knowledge, err error) {
	return out, c.do(ctx, http.MethodGet, "/v1/known", nil, &out, repeatable)
}
