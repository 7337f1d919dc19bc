package browser

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/web"
	"berth/internal/pki"
)

// wallet is where a browser keeps certificates: NSS's database below its home.
type wallet struct {
	t    *testing.T
	home string
}

func newWallet(t *testing.T) wallet {
	t.Helper()
	w := wallet{t, t.TempDir()}
	if err := os.MkdirAll(w.nss(), 0o700); err != nil {
		t.Fatal(err)
	}
	w.run("certutil", "-d", "sql:"+w.nss(), "-N", "--empty-password")
	return w
}

func (w wallet) nss() string { return filepath.Join(w.home, ".pki", "nssdb") }

func (w wallet) run(name string, args ...string) {
	w.t.Helper()
	if out, err := exec.CommandContext(w.t.Context(), name, args...).CombinedOutput(); err != nil {
		w.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// trust has the browser believe servers of an authority.
func (w wallet) trust(ca string) {
	w.t.Helper()
	w.run("certutil", "-d", "sql:"+w.nss(), "-A", "-n", "authority", "-t", "C,,", "-i", ca)
}

// add gives it a certificate with its key, by the file and the password that a person would
// bring them by.
func (w wallet) add(cert, key string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "bundle.p12")
	w.run("openssl", "pkcs12", "-export", "-in", cert, "-inkey", key, "-out", file, "-passout", "pass:berth")
	w.run("pk12util", "-d", "sql:"+w.nss(), "-i", file, "-W", "berth")
}

// choose says which certificate is shown at which address, by its subject's name: a person
// is asked for it, and here nobody is there to answer.
func (w wallet) choose(names map[string]string) {
	w.t.Helper()
	chosen := map[string]any{}
	for url, name := range names {
		filter := map[string]any{"SUBJECT": map[string]string{"CN": name}}
		chosen[strings.TrimSuffix(url, "/")+",*"] = map[string]any{"setting": map[string]any{"filters": []any{filter}}}
	}
	text, err := json.Marshal(map[string]any{"profile": map[string]any{"content_settings": map[string]any{"exceptions": map[string]any{"auto_select_certificate": chosen}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(w.home, "Default"), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.home, "Default", "Preferences"), text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// authority is one with a host's certificate, by which a page is shown on loopback.
type authority struct {
	*pki.Authority
	t   *testing.T
	dir string
	id  *pki.Identity // host-a's
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	a, now := authority{t: t, dir: t.TempDir()}, time.Now()
	var err error
	if a.Authority, err = pki.Init(a.dir, name, now, false); err != nil {
		t.Fatal(err)
	}
	cert, key := a.host("host-a")
	if a.id, err = pki.Load(pki.Paths{CA: a.ca(), Cert: cert, Key: key}, now); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a authority) ca() string { return filepath.Join(a.dir, pki.CACertFile) }

func (a authority) host(name string) (cert, key string) {
	a.t.Helper()
	dir := a.t.TempDir()
	if _, err := a.IssueHost(dir, name, []string{"127.0.0.1"}, time.Now()); err != nil {
		a.t.Fatal(err)
	}
	return filepath.Join(dir, pki.HostCertFile), filepath.Join(dir, pki.HostKeyFile)
}

func (a authority) operator(name string) (cert, key string) {
	a.t.Helper()
	dir := a.t.TempDir()
	if _, err := a.IssueOperator(dir, name, time.Now()); err != nil {
		a.t.Fatal(err)
	}
	return filepath.Join(dir, pki.OperatorCertFile), filepath.Join(dir, pki.OperatorKeyFile)
}

func (a authority) reader(name string) (cert, key string) {
	a.t.Helper()
	dir := a.t.TempDir()
	if _, err := a.IssueReader(dir, name, time.Now()); err != nil {
		a.t.Fatal(err)
	}
	return filepath.Join(dir, pki.OperatorCertFile), filepath.Join(dir, pki.OperatorKeyFile)
}

// TestPage_OverMutualTLS has a browser look that trusts the fleet's authority and shows the
// certificate of an operator, a reader and a host, and one that has only somebody else's.
func TestPage_OverMutualTLS(t *testing.T) {
	needBrowser(t)
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	asOperator, asReader, asHost := newAgentWith(t, ours.id), newAgentWith(t, ours.id), newAgentWith(t, ours.id)

	with := newWallet(t)
	with.trust(ours.ca())
	with.add(ours.operator("alice"))
	with.add(ours.reader("eve"))
	with.add(ours.host("host-b"))
	with.choose(map[string]string{asOperator.url(): "alice", asReader.url(): "eve", asHost.url(): "host-b"})
	b := start(t, with.home)
	for who, a := range map[string]*agent{"operator": asOperator, "reader": asReader} {
		t.Run("the page lives for "+who, func(t *testing.T) {
			p := open(t, b, a.url(), 1120)
			a.change(func(m *web.Snapshot) { m.Guests[0].Status = "PAUSED" })
			await(t, p, `document.body.innerText.includes("PAUSED")`)
			quiet(t, p)
		})
	}
	t.Run("it is not for a host", func(t *testing.T) { refused(t, b, asHost, "for operators and readers, and that is a host") })

	without := newWallet(t)
	without.trust(ours.ca())
	without.add(theirs.operator("alice"))
	b = start(t, without.home)
	t.Run("it is not for somebody else's operator", func(t *testing.T) { refused(t, b, asOperator, "openssl pkcs12 -export") })
}

// refused opens a page and holds that it says why and nothing else.
func refused(t *testing.T, b *Browser, a *agent, why string) {
	t.Helper()
	p, err := b.Open(t.Context(), a.url(), 1120, 800)
	if err != nil {
		t.Fatal(err)
	}
	text := eval[string](t, p, `document.body.innerText`)
	if !strings.Contains(text, why) || strings.Contains(text, "host-a.example") || strings.Contains(text, "database") {
		t.Errorf("the browser shows %q", text)
	}
}
