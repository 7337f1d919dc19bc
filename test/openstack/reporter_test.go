package openstack

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"berth/agent/reporter/reportertest"
)

// at leads every request to one server.
type at struct {
	url  *url.URL
	over http.RoundTripper
}

func (a at) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme, r.URL.Host = a.url.Scheme, a.url.Host
	return a.over.RoundTrip(r)
}

// TestReporter_KeepsOpenStacksPlacementEqualToTheHost: what the embedded one is
// kept equal by is right for OpenStack's own.
func TestReporter_KeepsOpenStacksPlacementEqualToTheHost(t *testing.T) {
	for database, suite := range map[Database]func(*testing.T, http.RoundTripper){SQLite: reportertest.Suite, MariaDB: reportertest.Database} {
		t.Run(string(database), func(t *testing.T) {
			t.Parallel()
			p := StartPlacement(t, PlacementOptions{Database: database})
			to, err := url.Parse(p.URL)
			must(t, err)
			p.Wait(t) // its start is none of the suite's time
			begun := time.Now()
			suite(t, at{to, &http.Transport{DisableKeepAlives: true}})
			t.Logf("the suite took %v", time.Since(begun))
		})
	}
}
