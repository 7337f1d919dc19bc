package agent

import (
	"strings"
	"testing"
	"time"

	"berth/agent/api"
)

// TestDoctor_AsksTheHostsThatItKnows: two agents with certificates believe each other, until
// one of them is gone.
func TestDoctor_AsksTheHostsThatItKnows(t *testing.T) {
	t.Parallel()
	p := newPair(t, time.Hour)
	look := func() map[string]api.Check {
		d, err := p.clients["host-a"].Examine(t.Context())
		p.must(err)
		out := map[string]api.Check{}
		for _, c := range d.Checks {
			if c.Detail == "" || (c.Outcome == api.CheckOK) != (c.Remedy == "") {
				t.Errorf("%+v: it says what it found, and what to do unless it is well", c)
			}
			if _, twice := out[c.Name]; twice {
				t.Errorf("two checks are called %s", c.Name)
			}
			out[c.Name] = c
		}
		return out
	}
	// Placement knows the other as soon as it has reported itself.
	var checks map[string]api.Check
	p.until("placement is equal, and the peer answers", func() bool {
		checks = look()
		return checks["placement"].Outcome == api.CheckOK && strings.HasPrefix(checks["peers"].Detail, "1 of 1")
	})
	for name, want := range map[string]string{"peers": "1 of 1 answer", "certificate": "host-a", "placement": "microversion"} {
		if c := checks[name]; c.Outcome != api.CheckOK || !strings.Contains(c.Detail, want) {
			t.Errorf("%s: %+v, want %q", name, c, want)
		}
	}
	p.must(p.stop["host-b"]())
	checks = look()
	if c := checks["peer host-b"]; c.Outcome != api.CheckWrong || c.Remedy == "" {
		t.Errorf("a host that [peers] names and that is gone: %+v", c)
	}
	if c := checks["peers"]; !strings.Contains(c.Detail, "0 of 1") {
		t.Errorf("peers: %+v", c)
	}
}
