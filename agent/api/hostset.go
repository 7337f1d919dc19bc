package api

import (
	"context"
	"net/http"
	"time"
)

// SetHost is what an operator wants of a host. What is left out stays.
type SetHost struct {
	// Disabled keeps new guests away, or lets them come again.
	Disabled *bool  `json:"disabled,omitempty"`
	Reason   string `json:"reason,omitempty"` // why it is disabled; must be given then
}

// Disabled is why a host gets no new guests, by whom and since when. The guests
// that are there run on, and can be moved away.
type Disabled struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"` // "local" for the unix socket, else the name in an operator's certificate
	At     time.Time `json:"at"`
}

// HostState is what operators have set of a host.
type HostState struct {
	Name     string    `json:"name"`
	Disabled *Disabled `json:"disabled"` // null for a host that takes guests
}

// CallerName says who sent the request of ctx, for what is kept of who did a
// thing: "local" for the unix socket, else the name in the certificate.
func CallerName(ctx context.Context) string { return callerOf(ctx).name }

// CallerWords is the same with what he is, for words that a death, a drain or a guest's start
// hangs on: "operator:alice", "user:root", "host:host-a". Of what a host passes on it is whom that
// has it from, by its word: "operator:alice by host:host-a".
func CallerWords(ctx context.Context) string {
	id := callerOf(ctx)
	if id.caller == callerHost && id.asker != "" {
		return id.asker + " by " + id.words()
	}
	return id.words()
}

// hostRows are the rows that change this host's own settings.
func hostRows() []route {
	return []route{
		write(http.MethodPatch, "/v1/host", "host-set", "Disable this host for new guests, with the reason, or enable it again.", operators,
			func(s *Server, r *http.Request, in SetHost) (HostState, error) {
				return s.svc.Agent.SetHost(r.Context(), in)
			}),
	}
}

// SetHost changes a host's settings; safe to repeat.
func (c *Client) SetHost(ctx context.Context, r SetHost) (out HostState, err error) {
	return out, c.do(ctx, http.MethodPatch, "/v1/host", r, &out, repeatable)
}
