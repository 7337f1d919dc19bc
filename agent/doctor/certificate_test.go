package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/config"
	"berth/internal/pki/pkitest"
)

// papers is a host with certificates, and what its doctor is told of them.
type papers struct {
	*pkitest.Papers
	o Options
}

// newPapers is a host whose authority ends so long after now.
func newPapers(t *testing.T, left time.Duration) *papers {
	t.Helper()
	p := &papers{pkitest.New(t, "host-a", left), optionsOf(config.Default())}
	c := p.o.Config()
	c.PKI = config.PKI{CA: p.Paths.CA, Cert: p.Paths.Cert, Key: p.Paths.Key}
	p.o.Config = func() config.Config { return c }
	return p
}

// begin has the agent read its files, so long before now.
func (p *papers) begin(ago time.Duration) { p.o.Identity = p.Load(ago) }

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
		{"all is well", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, 0); p.begin(0) }, api.CheckOK, []string{"host-a", "good for 7"}, nil, "old authority"},
		{"the host's ends soon", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, 2*year-10*day); p.begin(day) },
			api.CheckWrong, []string{"this host's certificate ends on"}, []string{"berth pki host host-a", "--san, --right", "host.crt and host.key"}, "berth pki init"},
		{"the host's has ended", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, 2*year+10*day); p.begin(20 * day) },
			api.CheckWrong, []string{"this host's certificate ended on"}, []string{"berth pki host host-a"}, "berth pki init"},
		{"the authority ends soon, and what it signed with it", 10 * day, func(_ *testing.T, p *papers) { p.Issue(p.Before, day); p.begin(0) },
			api.CheckWrong, []string{`the authority "old" of this host's certificate ends on`}, []string{"berth pki init", "both, the old and the new", "names and rights"}, "berth pki host"},
		{"the authority has ended", -10 * day, func(_ *testing.T, p *papers) { p.Issue(p.Before, year); p.begin(20 * day) },
			api.CheckWrong, []string{`the authority "old" of this host's certificate ended on`}, []string{"berth pki init"}, "berth pki host"},
		{"half way: both are believed, and the host's is of the one that ends", 10 * day, func(_ *testing.T, p *papers) { p.Issue(p.Before, day); p.Both(); p.begin(0) },
			api.CheckWrong, []string{`the authority "old"`}, []string{"renew each host's certificate by the new one"}, "restart the agent (systemctl"},
		{"through: both are believed, and the old one has ended", -10 * day, func(_ *testing.T, p *papers) { p.Issue(p.After, 0); p.Both(); p.begin(0) },
			api.CheckOK, []string{`signed by "new"`}, nil, "old"},
		{"an authority was added", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, 0); p.begin(0); p.Both() },
			api.CheckWrong, []string{"ca.crt was changed"}, []string{"systemctl restart berth"}, "pki init"},
		{"renewed, and not begun anew", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, year); p.begin(0); p.Issue(p.Before, 0) },
			api.CheckWrong, []string{"was renewed, and the agent still shows the one before"}, []string{"systemctl restart berth"}, "pki host"},
		{"renewed without its key", 6 * year, func(t *testing.T, p *papers) {
			p.Issue(p.Before, year)
			p.begin(0)
			key, err := os.ReadFile(p.Paths.Key)
			must(t, err)
			p.Issue(p.Before, 0)
			must(t, os.WriteFile(p.Paths.Key, key, 0o600))
		}, api.CheckWrong, []string{"host.key"}, []string{"belong together"}, "systemctl"},
		{"the files of another host", 6 * year, func(t *testing.T, p *papers) {
			p.Issue(p.Before, 0)
			p.begin(0)
			_, err := p.Before.IssueHost(p.Dir, "host-b", nil, p.Now)
			must(t, err)
		}, api.CheckWrong, []string{"host certificate of host-b", "this host is host-a"}, []string{"the files of this host"}, "systemctl"},
		{"the files of another host, from the start", 6 * year, func(t *testing.T, p *papers) {
			_, err := p.Before.IssueHost(p.Dir, "host-b", nil, p.Now)
			must(t, err)
			p.o.NoIdentity = errors.New("not this host's")
		}, api.CheckWrong, []string{"not this host's"}, []string{"make it: berth pki host host-a"}, "systemctl"},
		{"everybody can read the key, and it ends", 6 * year, func(t *testing.T, p *papers) {
			p.Issue(p.Before, 2*year-10*day)
			p.begin(0)
			must(t, os.Chmod(p.Paths.Key, 0o644))
		}, api.CheckWrong, []string{"by everybody (-rw-r--r--)", "ends on"}, []string{"chmod 600", "berth pki host host-a"}, "pki init"},
		{"a file is gone", 6 * year, func(t *testing.T, p *papers) {
			p.Issue(p.Before, 0)
			p.begin(0)
			must(t, os.Remove(p.Paths.CA))
		}, api.CheckWrong, []string{"ca.crt: no such file"}, []string{"put it back"}, "belong together"},
		{"the key is gone", 6 * year, func(t *testing.T, p *papers) {
			p.Issue(p.Before, 0)
			p.begin(0)
			must(t, os.Remove(p.Paths.Key))
		}, api.CheckWrong, []string{"host.key: no such file"}, []string{"put it back"}, "belong together"},
		{"the agent began after the authority had ended", -10 * day, func(_ *testing.T, p *papers) { p.Issue(p.Before, year); p.o.NoIdentity = errors.New("not good") },
			api.CheckWrong, []string{"not good"}, []string{"berth pki init"}, "make it"},
		{"there were none, and are now", 6 * year, func(_ *testing.T, p *papers) { p.Issue(p.Before, 0); p.o.NoIdentity = errors.New("no files") },
			api.CheckWrong, []string{"no files"}, []string{"systemctl restart berth"}, "make it"},
		{"there are none", 6 * year, func(_ *testing.T, p *papers) { p.o.NoIdentity = errors.New("no files") },
			api.CheckWrong, []string{"no files"}, []string{"make it: berth pki host host-a"}, "pki init"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPapers(t, tt.left)
			tt.files(t, p)
			c := New(p.o).certificate()
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
