package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"berth/fleet"
	"berth/fleet/etcd"
	"berth/fleet/fleettest"
	"berth/internal/fault"
	"berth/internal/pki"
)

// stores counts tests' keys apart.
var stores atomic.Int64

// on gives clients of a cluster, each test below a prefix of its own.
func on(o etcd.Options) fleettest.Open {
	return func(t *testing.T) func() fleet.Store {
		o := o
		o.Prefix = fmt.Sprintf("/test/%d/", stores.Add(1))
		return func() fleet.Store { return open(t, o) }
	}
}

func open(t *testing.T, o etcd.Options) *etcd.Store {
	t.Helper()
	s, err := etcd.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// within bounds one of everything while a member is gone: some attempts that fail, two seconds
// each, on a machine that is busy.
const within = time.Minute

// use does one of everything, and says what it took.
func use(t *testing.T, s *etcd.Store, key string) {
	t.Helper()
	began := time.Now()
	// A commit is in doubt where its member went, or the leader changed, at that moment. Every
	// step of the protocol looks first, which finds a member that answers, and after a doubt
	// looks and commits again.
	var err error
	for tries := range 3 {
		if _, err = s.Get(t.Context(), key); err != nil && !errors.Is(err, fault.NotFound) {
			t.Errorf("get: %v", err)
		}
		if err = s.Commit(t.Context(), nil, fleet.Change{Key: key, Value: []byte("x")}); !errors.Is(err, fault.InDoubt) {
			break
		}
		t.Logf("%s: commit %d: %v", key, tries+1, err)
	}
	if err != nil {
		t.Errorf("commit: %v", err)
	}
	if got, err := s.List(t.Context(), key); err != nil || len(got) != 1 {
		t.Errorf("list: %v, %v", got, err)
	}
	if err := s.Lease(t.Context(), "alive/"+key, []byte("boot"), 2); err != nil {
		t.Errorf("lease: %v", err)
	}
	if took := time.Since(began); took > within {
		t.Errorf("it took %v", took)
	} else {
		t.Logf("%s: %v", key, took)
	}
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	began := time.Now()
	for {
		err := f()
		if err == nil {
			t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond) // between two looks at processes that are not ours
	}
}

func TestEtcd_IsAStoreOfTheFleetsRecords(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	o := etcd.Options{Endpoints: c.Endpoints}
	eventually(t, "the cluster serves", func() error {
		_, err := open(t, o).List(t.Context(), "")
		return err
	})
	t.Run("Store", func(t *testing.T) { fleettest.TestStore(t, on(o)) })
	t.Run("Records", func(t *testing.T) { fleettest.TestRecords(t, on(o), true) })
	t.Run("Leases", func(t *testing.T) { fleettest.TestLeases(t, on(o), 5, time.Sleep) })
	t.Run("Incarnations", func(t *testing.T) { fleettest.TestIncarnations(t, on(o)) })
	t.Run("Finder", func(t *testing.T) { fleettest.TestFinder(t, on(o)) })

	s := on(o)(t)().(*etcd.Store)
	use(t, s, "before")
	for _, gone := range []struct {
		how        string
		take, give func(int)
	}{
		{"killed", c.Kill, c.Run}, {"cut", c.Cut, c.Heal}, {"stopped", c.Stop, c.Continue},
	} {
		// Each time the one that the store asked last.
		i := s.Asks()
		gone.take(i)
		use(t, s, gone.how)
		eventually(t, "with one "+gone.how+" there is a quorum", func() error {
			// Without a leader, in an election, there is none for a moment.
			if _, err := s.NoQuorum(t.Context()); !errors.Is(err, fault.Unavailable) {
				return fmt.Errorf("it says %v", err)
			}
			return nil
		})
		use(t, s, gone.how+", again")
		gone.give(i)
		c.ready(i)
		c.Agree()
	}
}

func TestEtcd_WithoutAQuorumNothingIsAnsweredAndNoLeaseEnds(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{})
	s := open(t, etcd.Options{Endpoints: c.Endpoints, Timeout: 3 * time.Second})
	other := open(t, etcd.Options{Endpoints: c.Endpoints, Timeout: 3 * time.Second})
	impatient := open(t, etcd.Options{Endpoints: c.Endpoints, Timeout: time.Second})
	eventually(t, "the cluster serves", func() error {
		_, err := s.List(t.Context(), "")
		return err
	})
	if _, err := s.NoQuorum(t.Context()); err == nil {
		t.Error("who the members are was never heard, and it says that there is no quorum")
	}
	use(t, s, "before")
	// Shorter than each time without a quorum below, and long enough that a slow machine looks
	// before it ends after one.
	const length = 6
	lease := func() {
		t.Helper()
		if err := s.Lease(t.Context(), "alive/host", []byte("boot"), length); err != nil {
			t.Fatalf("lease: %v", err)
		}
	}
	bounded := func(how string) {
		t.Helper()
		began := time.Now()
		if _, err := impatient.Get(t.Context(), "before"); !errors.Is(err, fault.Unavailable) {
			t.Errorf("%s: get: %v", how, err)
		}
		err := impatient.Commit(t.Context(), nil, fleet.Change{Key: "during", Value: []byte("x")})
		if !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.InDoubt) {
			t.Errorf("%s: commit: %v", how, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: it took %v", how, took)
		}
	}

	// One is dead, and one is silent: it may have died, or serve others with a third.
	lease()
	dead := c.Leader()
	silent := (dead + 1) % 3
	gone := time.Now()
	c.Kill(dead)
	c.Stop(silent) // not the leader: a leader that stood still ends leases when it goes on
	eventually(t, "the one that is left has no leader, and one is dead: no quorum", func() error {
		refused, err := s.NoQuorum(t.Context())
		if err == nil && !refused {
			t.Error("one of two that are counted is dead, and it counts as having said so")
		}
		return err
	})
	bounded("killed and stopped")
	time.Sleep(time.Until(gone.Add((length + 1) * time.Second)))
	c.Continue(silent)
	eventually(t, "two serve again", func() error {
		_, err := other.Get(t.Context(), "alive/host")
		return err
	})

	// All are dead for longer than the lease, and come back by themselves.
	lease()
	c.Kill((dead + 1) % 3)
	c.Kill((dead + 2) % 3)
	down := time.Now()
	if refused, err := s.NoQuorum(t.Context()); err != nil || !refused {
		t.Errorf("all are dead, and it says %v, by refused connections %v", err, refused)
	}
	bounded("all killed")
	time.Sleep(time.Until(down.Add((length + 1) * time.Second))) // the clock of real members
	back := time.Now()
	for i := range 3 {
		c.Run(i)
	}
	eventually(t, "all are back, and the lease stands", func() error {
		_, err := other.Get(t.Context(), "alive/host")
		if errors.Is(err, fault.NotFound) {
			t.Fatal("the lease ended while nobody could renew it")
		}
		return err
	})
	eventually(t, "its holder is silent, and it ends", func() error {
		_, err := other.Get(t.Context(), "alive/host")
		if errors.Is(err, fault.NotFound) {
			return nil
		}
		return fmt.Errorf("it stands: %v", err)
	})
	if lived := time.Since(back); lived < length*time.Second {
		t.Errorf("a lease of %d s ended %v after all were started again: it did not begin anew", length, lived)
	}
	use(t, s, "before") // and the store goes on by itself, with a lease anew
	lease()
	if _, err := other.Get(t.Context(), "alive/host"); err != nil {
		t.Errorf("leased again: %v", err)
	}

	// Two stand still: a silent member proves nothing.
	c.Stop(0)
	c.Stop(1)
	if _, err := s.NoQuorum(t.Context()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("two are silent, and it says %v", err)
	}
	c.Continue(0)
	c.Continue(1)
}

func TestEtcd_CertificatesAndPasswords(t *testing.T) {
	t.Parallel()
	Require(t)
	dir := t.TempDir()
	now := time.Now()
	a, err := pki.Init(filepath.Join(dir, "ca"), "test", now, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.IssueHost(dir, "host-a", []string{"127.0.0.1"}, now); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, pattern := range []string{"*.crt", "*.key", "ca/*.crt"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, f := range found {
			files[filepath.Base(f)] = f
		}
	}
	ca, cert, key := files["ca.crt"], files["host.crt"], files["host.key"]
	c := Start(t, Options{Members: 1, CA: ca, Cert: cert, Key: key})
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatalf("%v: %v", files, err)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	defer transport.CloseIdleConnections()
	web := &http.Client{Transport: transport}
	for _, q := range [][2]string{
		{"auth/user/add", `{"name":"root","password":"r"}`}, {"auth/role/add", `{"name":"root"}`}, {"auth/user/grant", `{"user":"root","role":"root"}`},
		{"auth/user/add", `{"name":"berth","password":"secret"}`}, {"auth/role/add", `{"name":"berth"}`},
		// L2JlcnRoL2ZsZWV0L3YxLw== is /berth/fleet/v1/, and the end is the key after all with it.
		{"auth/role/grant", `{"name":"berth","perm":{"permType":"READWRITE","key":"L2JlcnRoL2ZsZWV0L3YxLw==","range_end":"L2JlcnRoL2ZsZWV0L3YxMA=="}}`},
		{"auth/user/grant", `{"user":"berth","role":"berth"}`}, {"auth/enable", `{}`},
	} {
		eventually(t, q[0], func() error { return c.Gateway(t.Context(), web, q[0], q[1]) })
	}
	password := filepath.Join(dir, "password")
	write := func(text string) {
		if err := os.WriteFile(password, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret\n")
	o := etcd.Options{Endpoints: c.Endpoints, CA: ca, Cert: cert, Key: key, User: "berth", PasswordFile: password, Timeout: 3 * time.Second}
	s := open(t, o)
	use(t, s, "hosts")
	if err := s.Lease(t.Context(), "alive/hosts", []byte("boot"), 2); err != nil {
		t.Errorf("renew: %v", err)
	}
	// A member that was started anew knows no token: another login, by itself.
	c.Kill(0)
	c.Run(0)
	c.ready(0)
	use(t, s, "hosts")
	bad := func(what string, o etcd.Options, kind fault.Kind) {
		t.Helper()
		if _, err := open(t, o).Get(t.Context(), "hosts"); !errors.Is(err, kind) {
			t.Errorf("%s: %v, want %v", what, err, kind)
		}
	}
	elsewhere := o
	elsewhere.Prefix = "/other/"
	bad("keys of others", elsewhere, fault.Forbidden)
	write("wrong")
	bad("a wrong password", o, fault.Forbidden)
	o.User, o.PasswordFile = "", ""
	bad("no user", o, fault.Forbidden)
	o.Cert, o.Key, o.Timeout = "", "", time.Second
	bad("no certificate", o, fault.Unavailable)
}
