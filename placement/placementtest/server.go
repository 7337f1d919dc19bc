// Package placementtest holds what every Placement must pass, the embedded one
// and OpenStack's alike: the suite of the client, recorded traffic, random
// traffic and odd requests, each sent to one server, or to two whose answers are
// compared.
//
// It knows a server by its URL alone, makes its own providers there, and some of
// its tests empty the server.
package placementtest

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"berth/placementclient"
)

// Server is a Placement under test.
type Server struct {
	URL string
	// Tokens gives what is sent as X-Auth-Token; nil means the token admin, which
	// noauth2 and the embedded server take.
	Tokens placementclient.TokenSource
	// Transport carries the client's requests; nil means the client's own.
	Transport http.RoundTripper
}

// patience is for a service on a loaded machine, which is slow, not gone.
const patience = 2 * time.Minute

// Client is one of this server that speaks up to v, and ends with the test.
func (s Server) Client(t *testing.T, v placementclient.Microversion) *placementclient.Client {
	t.Helper()
	c, err := placementclient.New(placementclient.Config{URL: s.URL, Token: "admin", TokenSource: s.Tokens, Transport: s.Transport,
		MaxVersion: v, Retries: 8, RetryWait: 20 * time.Millisecond, Timeout: patience, AttemptTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func (s Server) token(t *testing.T) string {
	t.Helper()
	if s.Tokens == nil {
		return "admin"
	}
	token, err := s.Tokens.Token(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// id is a uuid that says which of the made-up ones it is.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
