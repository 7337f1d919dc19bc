package openstack

import (
	"net/http"
	"testing"
	"time"
)

func TestStart_PlacementAndKeystoneAnswer(t *testing.T) {
	begun := time.Now()
	k := StartKeystone(t)
	lite := StartPlacement(t, PlacementOptions{})
	maria := StartPlacement(t, PlacementOptions{Database: MariaDB})
	guarded := StartPlacement(t, PlacementOptions{Keystone: k})
	t.Logf("started after %v", time.Since(begun))
	for _, p := range []*Placement{lite, maria, guarded} {
		p.Wait(t)
	}
	k.Wait(t)
	t.Logf("all answer after %v", time.Since(begun))
	k.SetEndpoint(t, guarded.URL)
	for _, c := range []struct {
		p     *Placement
		token string
		want  int
	}{
		{lite, "admin", 200}, {lite, "", 401}, {maria, "admin", 200},
		{guarded, k.Token(t, User("agent", "service")), 200}, {guarded, "admin", 401}, {guarded, k.Token(t, User("reader", "service")), 403},
	} {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.p.URL+"/resource_providers", nil)
		must(t, err)
		if c.token != "" {
			q.Header.Set("X-Auth-Token", c.token)
		}
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s with token %.8q answered %s, want %d", c.p.web.name, c.token, resp.Status, c.want)
		}
	}
	t.Logf("done after %v", time.Since(begun))
}
