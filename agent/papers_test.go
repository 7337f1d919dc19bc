package agent

import (
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/pki/pkitest"
)

// papers is an agent, with certificates of its own once begin was called.
type papers struct {
	*pkitest.Papers
	a *Agent
}

// newPapers is a host whose authority ends so long after now.
func newPapers(t *testing.T, left time.Duration) *papers {
	t.Helper()
	p := &papers{pkitest.New(t, "host-a", left), newShutdownAgent(false)}
	c := p.a.config()
	c.PKI = config.PKI{CA: p.Paths.CA, Cert: p.Paths.Cert, Key: p.Paths.Key}
	c.Agent.Listen = "127.0.0.1:0"
	p.a.opt.Config = c
	p.a.conf.Store(&c)
	return p
}

// begin has the agent read its files, so long before now.
func (p *papers) begin(ago time.Duration) { p.a.identity = p.Load(ago) }

// TestHealth_TellsOfACertificateThatEnds: status says what the doctor does, with the same remedy.
func TestHealth_TellsOfACertificateThatEnds(t *testing.T) {
	t.Parallel()
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for _, tt := range []struct {
		name, code, remedy string
		left, ago          time.Duration
	}{
		{"well", "", "", 6 * year, 0},
		{"the host's ends", "certificate_ends", "names and rights of the one before", 6 * year, 2*year - 10*day},
		{"the authority ends", "authority_ends", "berth pki init", 10 * day, day},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPapers(t, tt.left)
			p.Issue(p.Before, tt.ago)
			p.begin(0)
			c := newHealth(p.a).peers()
			if tt.code == "" {
				if c.Health != api.HealthOK || !strings.Contains(c.Detail, "certificate good for 7") {
					t.Errorf("%+v", c)
				}
				return
			}
			if c.Health != api.HealthDegraded || len(c.Reasons) != 1 || c.Reasons[0].Code != tt.code || !strings.Contains(c.Reasons[0].Change, tt.remedy) {
				t.Errorf("%+v, want %s, and %q to do", c, tt.code, tt.remedy)
			}
		})
	}
}
