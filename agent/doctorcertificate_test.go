package agent

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/pki"
)

// papers is a host with certificates, and the folders of two authorities.
type papers struct {
	t             *testing.T
	a             *Agent // with an agent's own certificates once begin was called
	now           time.Time
	before, after *pki.Authority // the one that signed first, and one that is made later
	dir           string         // of the host's own files
}

// authorityOf makes one that ends so long after now; it lives ten years.
func authorityOf(t *testing.T, name string, now time.Time, left time.Duration) *pki.Authority {
	t.Helper()
	a, err := pki.Init(filepath.Join(t.TempDir(), name), name, now.Add(left-10*365*24*time.Hour), false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// newPapers is a host whose authority ends so long after now.
func newPapers(t *testing.T, left time.Duration) *papers {
	t.Helper()
	a := newShutdownAgent(false)
	p := &papers{t: t, a: a, now: time.Now(), dir: t.TempDir()}
	p.before, p.after = authorityOf(t, "old", p.now, left), authorityOf(t, "new", p.now, 6*365*24*time.Hour)
	c := a.config()
	c.PKI = config.PKI{CA: filepath.Join(p.dir, pki.CACertFile), Cert: filepath.Join(p.dir, pki.HostCertFile), Key: filepath.Join(p.dir, pki.HostKeyFile)}
	c.Agent.Listen = "127.0.0.1:0"
	a.opt.Config = c
	a.conf.Store(&c)
	return p
}

// issue has an authority sign the host's certificate so long before now.
func (p *papers) issue(by *pki.Authority, ago time.Duration) {
	p.t.Helper()
	if _, err := by.IssueHost(p.dir, "host-a", nil, p.now.Add(-ago)); err != nil {
		p.t.Fatal(err)
	}
}

// both puts the two authorities into the host's ca.crt, the old one first.
func (p *papers) both() {
	p.t.Helper()
	var text []byte
	for _, a := range []*pki.Authority{p.before, p.after} {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.Cert.Raw})...)
	}
	if err := os.WriteFile(p.a.config().PKI.CA, text, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// begin has the agent read its files, so long before now.
func (p *papers) begin(ago time.Duration) {
	p.t.Helper()
	c := p.a.config().PKI
	id, err := pki.Load(pki.Paths{CA: c.CA, Cert: c.Cert, Key: c.Key}, p.now.Add(-ago))
	if err != nil {
		p.t.Fatal(err)
	}
	p.a.identity = id
}

// TestDoctor_SaysOfEachIllCertificateWhatHelps makes one thing ill at a time.
func TestDoctor_SaysOfEachIllCertificateWhatHelps(t *testing.T) {
	t.Parallel()
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name    string
		left    time.Duration // of the old authority
		files   func(t *testing.T, p *papers)
		outcome api.CheckOutcome
		found   []string // in the detail
		remedy  []string
		never   string // in neither
	}{
		{"all is well", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, 0); p.begin(0) }, api.CheckOK, []string{"host-a", "good for 7"}, nil, "old authority"},
		{"the host's ends soon", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, 2*year-10*day); p.begin(day) },
			api.CheckWrong, []string{"this host's certificate ends on"}, []string{"berth pki host host-a", "--san, --right", "host.crt and host.key"}, "berth pki init"},
		{"the host's has ended", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, 2*year+10*day); p.begin(20 * day) },
			api.CheckWrong, []string{"this host's certificate ended on"}, []string{"berth pki host host-a"}, "berth pki init"},
		{"the authority ends soon, and what it signed with it", 10 * day, func(_ *testing.T, p *papers) { p.issue(p.before, day); p.begin(0) },
			api.CheckWrong, []string{`the authority "old" of this host's certificate ends on`}, []string{"berth pki init", "both, the old and the new", "names and rights"}, "berth pki host"},
		{"the authority has ended", -10 * day, func(_ *testing.T, p *papers) { p.issue(p.before, year); p.begin(20 * day) },
			api.CheckWrong, []string{`the authority "old" of this host's certificate ended on`}, []string{"berth pki init"}, "berth pki host"},
		{"half way: both are believed, and the host's is of the one that ends", 10 * day, func(_ *testing.T, p *papers) { p.issue(p.before, day); p.both(); p.begin(0) },
			api.CheckWrong, []string{`the authority "old"`}, []string{"renew each host's certificate by the new one"}, "restart the agent (systemctl"},
		{"through: both are believed, and the old one has ended", -10 * day, func(_ *testing.T, p *papers) { p.issue(p.after, 0); p.both(); p.begin(0) },
			api.CheckOK, []string{`signed by "new"`}, nil, "old"},
		{"an authority was added", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, 0); p.begin(0); p.both() },
			api.CheckWrong, []string{"ca.crt was changed"}, []string{"systemctl restart berth"}, "pki init"},
		{"renewed, and not begun anew", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, year); p.begin(0); p.issue(p.before, 0) },
			api.CheckWrong, []string{"was renewed, and the agent still shows the one before"}, []string{"systemctl restart berth"}, "pki host"},
		{"renewed without its key", 6 * year, func(t *testing.T, p *papers) {
			p.issue(p.before, year)
			p.begin(0)
			key, err := os.ReadFile(p.a.config().PKI.Key)
			must(t, err)
			p.issue(p.before, 0)
			must(t, os.WriteFile(p.a.config().PKI.Key, key, 0o600))
		}, api.CheckWrong, []string{"host.key"}, []string{"belong together"}, "systemctl"},
		{"the files of another host", 6 * year, func(t *testing.T, p *papers) {
			p.issue(p.before, 0)
			p.begin(0)
			_, err := p.before.IssueHost(p.dir, "host-b", nil, p.now)
			must(t, err)
		}, api.CheckWrong, []string{"host certificate of host-b", "this host is host-a"}, []string{"the files of this host"}, "systemctl"},
		{"the files of another host, from the start", 6 * year, func(t *testing.T, p *papers) {
			_, err := p.before.IssueHost(p.dir, "host-b", nil, p.now)
			must(t, err)
			p.a.noPeers = errors.New("not this host's")
		}, api.CheckWrong, []string{"not this host's"}, []string{"make it: berth pki host host-a"}, "systemctl"},
		{"everybody can read the key, and it ends", 6 * year, func(t *testing.T, p *papers) {
			p.issue(p.before, 2*year-10*day)
			p.begin(0)
			must(t, os.Chmod(p.a.config().PKI.Key, 0o644))
		}, api.CheckWrong, []string{"by everybody (-rw-r--r--)", "ends on"}, []string{"chmod 600", "berth pki host host-a"}, "pki init"},
		{"a file is gone", 6 * year, func(t *testing.T, p *papers) {
			p.issue(p.before, 0)
			p.begin(0)
			must(t, os.Remove(p.a.config().PKI.CA))
		}, api.CheckWrong, []string{"ca.crt: no such file"}, []string{"put it back"}, "belong together"},
		{"the key is gone", 6 * year, func(t *testing.T, p *papers) {
			p.issue(p.before, 0)
			p.begin(0)
			must(t, os.Remove(p.a.config().PKI.Key))
		}, api.CheckWrong, []string{"host.key: no such file"}, []string{"put it back"}, "belong together"},
		{"the agent began after the authority had ended", -10 * day, func(_ *testing.T, p *papers) { p.issue(p.before, year); p.a.noPeers = errors.New("not good") },
			api.CheckWrong, []string{"not good"}, []string{"berth pki init"}, "make it"},
		{"there were none, and are now", 6 * year, func(_ *testing.T, p *papers) { p.issue(p.before, 0); p.a.noPeers = errors.New("no files") },
			api.CheckWrong, []string{"no files"}, []string{"systemctl restart berth"}, "make it"},
		{"there are none", 6 * year, func(_ *testing.T, p *papers) { p.a.noPeers = errors.New("no files") },
			api.CheckWrong, []string{"no files"}, []string{"make it: berth pki host host-a"}, "pki init"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPapers(t, tt.left)
			tt.files(t, p)
			c := newDoctor(p.a).certificate()
			if c.Outcome != tt.outcome || (c.Outcome == api.CheckOK) != (c.Remedy == "") {
				t.Errorf("%+v, want %q, and what to do unless it is well", c, tt.outcome)
			}
			for _, want := range tt.found {
				if !strings.Contains(c.Detail, want) {
					t.Errorf("found %q, want %q", c.Detail, want)
				}
			}
			for _, want := range tt.remedy {
				if !strings.Contains(c.Remedy, want) {
					t.Errorf("to do: %q, want %q", c.Remedy, want)
				}
			}
			if strings.Contains(c.Detail+c.Remedy, tt.never) {
				t.Errorf("%+v, without %q", c, tt.never)
			}
		})
	}
}

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
			p.issue(p.before, tt.ago)
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
