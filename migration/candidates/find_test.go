package candidates_test

import (
	"net/http/httptest"
	"testing"

	"berth/migration/candidates/candidatestest"
	"berth/placement"
	"berth/placementclient"
)

// embedded gives clients of an empty Placement of ours.
func embedded(t testing.TB) func(placementclient.Microversion) *placementclient.Client {
	t.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return func(v placementclient.Microversion) *placementclient.Client {
		c, err := placementclient.New(placementclient.Config{URL: h.URL, Token: "admin", MaxVersion: v, Retries: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
}

func TestFind_FindsEveryKindOfHost(t *testing.T) {
	candidatestest.Suite(t, embedded(t))
}
