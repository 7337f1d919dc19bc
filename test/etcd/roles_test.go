package etcd

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth/fleet"
	"berth/fleet/etcd"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// TestEtcd_RolesKeepAHostToItsKeys gives host-a and host-f, which fences, the roles that
// `berth host etcd-roles` prints, and has host-a try to write for others.
func TestEtcd_RolesKeepAHostToItsKeys(t *testing.T) {
	t.Parallel()
	Require(t)
	c := Start(t, Options{Members: 1})
	web := &http.Client{Transport: &http.Transport{}}
	defer web.CloseIdleConnections()
	tell := func(path, body string) {
		t.Helper()
		eventually(t, path, func() error { return c.Gateway(t.Context(), web, path, body) })
	}
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	tell("auth/user/add", `{"name":"root","password":"r"}`)
	tell("auth/role/add", `{"name":"root"}`)
	tell("auth/user/grant", `{"user":"root","role":"root"}`)
	for host, fences := range map[string]bool{"host-a": false, "host-f": true} {
		tell("auth/role/add", fmt.Sprintf(`{"name":"berth-%s"}`, host))
		for _, g := range etcd.Grants(host, fences) {
			perm, end := "READ", ""
			if g.Write {
				perm = "READWRITE"
			}
			if g.Prefix {
				end = clientv3.GetPrefixRangeEnd(g.Key)
			}
			tell("auth/role/grant", fmt.Sprintf(`{"name":"berth-%s","perm":{"permType":%q,"key":%q,"range_end":%q}}`, host, perm, b64(g.Key), b64(end)))
		}
		tell("auth/user/add", fmt.Sprintf(`{"name":%q,"password":"secret"}`, host))
		tell("auth/user/grant", fmt.Sprintf(`{"user":%q,"role":"berth-%s"}`, host, host))
	}
	all := fleet.New(open(t, etcd.Options{Endpoints: c.Endpoints, Timeout: 10 * time.Second}), &runtime.System{})
	if err := all.PutHost(t.Context(), fleet.Host{Name: "host-z", Boot: "1"}); err != nil {
		t.Fatal(err)
	}
	if others, err := all.WritesOthers(t.Context(), "host-a"); err != nil || len(others) != 1 {
		t.Errorf("without roles host-a may write %v, %v", others, err)
	}
	tell("auth/enable", `{}`)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	as := func(host string) *fleet.Records {
		return fleet.New(open(t, etcd.Options{Endpoints: c.Endpoints, User: host, PasswordFile: password, Timeout: 10 * time.Second}), &runtime.System{})
	}
	a, f := as("host-a"), as("host-f")
	ctx := t.Context()
	for what, do := range map[string]func(ctx context.Context) error{
		"another's record": func(ctx context.Context) error { return a.PutHost(ctx, fleet.Host{Name: "host-f", Boot: "2"}) },
		"another's lease":  func(ctx context.Context) error { return a.KeepAlive(ctx, "host-f", "1", 5) },
		"a death, asked":   func(ctx context.Context) error { return a.MayDeclareDead(ctx, "host-f") },
	} {
		if err := do(ctx); !errors.Is(err, fault.Forbidden) {
			t.Errorf("%s: %v, want %v", what, err, fault.Forbidden)
		}
	}
	const u = "11111111-1111-4111-8111-111111111111"
	good := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	// Whoever comes first names the incarnation of the store, and each host may replace it.
	moment, tells, err := a.Moment(ctx)
	good("the incarnation, named", err)
	if again, _, err := f.Moment(ctx); !tells || strings.HasSuffix(moment.Incarnation, "/") || err != nil || again.Incarnation != moment.Incarnation {
		t.Errorf("incarnation %q, and as another host reads it %q, %v", moment.Incarnation, again.Incarnation, err)
	}
	good("the incarnation, renewed", f.RenewIncarnation(ctx, moment.Incarnation))
	renewed, _, err := a.Moment(ctx)
	good("the incarnation, read", err)
	if renewed.Incarnation == moment.Incarnation {
		t.Error("the incarnation was not renewed")
	}
	good("its own record", a.PutHost(ctx, fleet.Host{Name: "host-a", Boot: "1"}))
	good("its own lease", a.KeepAlive(ctx, "host-a", "1", 5))
	good("the fencer's record", f.PutHost(ctx, fleet.Host{Name: "host-f", Boot: "1"}))
	good("that it has written again", a.Rewrote(ctx, "host-a", renewed.Incarnation))
	_, err = a.PutInstance(ctx, fleet.Instance{UUID: u, Host: "host-a", Epoch: 1, Guest: []byte("{}")})
	good("its instance", err)
	_, err = a.DeclareDead(ctx, fleet.Death{Host: "host-f", Proof: fleet.ProofOperator})
	if !errors.Is(err, fault.Forbidden) {
		t.Errorf("a death: %v, want %v", err, fault.Forbidden)
	}
	if others, err := a.WritesOthers(ctx, "host-a"); err != nil || len(others) != 0 {
		t.Errorf("host-a may write %v, %v", others, err)
	}
	if others, err := f.WritesOthers(ctx, "host-f"); err != nil || len(others) != 0 {
		t.Errorf("host-f may write %v, %v", others, err)
	}
	good("asked", f.MayDeclareDead(ctx, "host-a"))
	_, err = f.DeclareDead(ctx, fleet.Death{Host: "host-a", Proof: fleet.ProofFenced})
	good("declare dead", err)
	_, record, err := f.Instance(ctx, u)
	good("read", err)
	_, death, err := f.Dead(ctx, "host-a")
	good("read", err)
	_, err = f.TakeOver(ctx, fleet.TakeOver{Instance: u, Migration: "m", Attempt: 1, Source: "host-a", To: "host-f", Epoch: 1, Record: record, Death: death})
	good("take over", err)
	_, err = a.Return(ctx, "host-a", "2")
	good("return", err)
	good("clean up", a.CleanedUp(ctx, fleet.Evacuated{Source: "host-a", Migration: "m"}))
}
