package api_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
	"berth/migration"
)

// operatorsActs are the acts of people that a host may send, as a client asks for them.
func operatorsActs(c *api.Client, ref string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"migrate": func(ctx context.Context) error {
			_, err := c.Migrate(ctx, api.Migrate{Instance: ref, Migration: "m-7"})
			return err
		},
		"rebuild": func(ctx context.Context) error {
			_, err := c.Migrate(ctx, api.Migrate{Instance: ref, Migration: "m-8", MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: "/i"}})
			return err
		},
		"abort":   func(ctx context.Context) error { _, err := c.AbortMigration(ctx, ref); return err },
		"confirm": func(ctx context.Context) error { _, err := c.ConfirmMigration(ctx, ref); return err },
		"revert":  func(ctx context.Context) error { _, err := c.RevertMigration(ctx, ref); return err },
		"set": func(ctx context.Context) error {
			_, err := c.SetMigration(ctx, ref, api.SetMigration{Bandwidth: 1 << 20})
			return err
		},
		"force": func(ctx context.Context) error { _, err := c.ForceComplete(ctx, ref); return err },
	}
}

// TestPassedOn_AHostIsNoOperator has hosts with good certificates send operators' acts to host-a,
// which has on record that migration m-1 is between host-a and host-b. host-x writes whatever
// headers it likes.
func TestPassedOn_AHostIsNoOperator(t *testing.T) {
	ours := newCA(t, "ours")
	for _, c := range []struct {
		name   string
		host   string
		rights []pki.Right // in its certificate
		given  *fakeRights // at host-a
		want   []string    // the acts that pass
	}{
		{name: "no party", host: "host-x"},
		{name: "no party, that conducts for others", host: "host-x", rights: []pki.Right{pki.RightConduct}},
		{name: "no party, an operator of its name in the list", host: "host-x", given: &fakeRights{operators: []string{"host-x"}, operate: []string{"operator:host-x"}}},
		{name: "the destination", host: "host-b", want: []string{"abort", "revert"}},
		{name: "the source of a move to here", host: "host-s", want: []string{"abort", "confirm"}},
		{name: "no party, with the right relay", host: "host-x", given: &fakeRights{relays: []string{"host-x"}}, want: []string{"abort", "confirm", "force", "migrate", "rebuild", "revert", "set"}},
		{name: "no party, with the right relay in its certificate", host: "host-x", rights: []pki.Right{pki.RightRelay}, want: []string{"abort", "confirm", "force", "migrate", "rebuild", "revert", "set"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := serve(t, "host-a", ours.host("host-a"))
			w.rights.give(c.given)
			w.parties["m-1"] = [2]string{"host-a", "host-b"}
			if c.host == "host-s" {
				w.parties["m-1"] = [2]string{"host-s", "host-a"}
			}
			peer := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host(c.host, c.rights...), As: c.host})
			var got []string
			for name, act := range operatorsActs(peer, "m-1") {
				err := act(t.Context())
				r := fault.ReasonsOf(err)
				if refused := slices.ContainsFunc(r, func(r fault.Reason) bool { return r.Code == api.ReasonAskThere }); !refused {
					got = append(got, name)
				} else if !errors.Is(err, fault.Forbidden) || r[0].Want != "host-a" || !strings.Contains(r[0].Change, "--connect host-a --cert") || !strings.Contains(r[0].Change, `relay = ["host:`+c.host+`"]`) {
					t.Errorf("%s: %v (%+v), want it to say where to ask", name, err, r)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("passed: %v, want %v", got, c.want)
			}
			if !slices.Contains(c.want, "migrate") && len(w.agent.started) != 0 {
				t.Errorf("moves were started: %+v", w.agent.started)
			}
			// It looks all the same.
			if _, err := peer.Status(t.Context()); err != nil {
				t.Errorf("looks: %v", err)
			}
		})
	}
}

// TestPassedOn_ForgedHeadersGiveNothing: what a host writes of whom it asks for, and that it passes
// something on, changes no answer.
func TestPassedOn_ForgedHeadersGiveNothing(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.parties["m-1"] = [2]string{"host-a", "host-b"}
	for _, headers := range [][]string{
		{"Berth-Asker", "operator:alice", "Berth-Asker-Rights", "share-nothing"}, {"Berth-Relayed", "host-x"}, {"Berth-Relayed", "host-a", "Berth-Asker", "user:root"},
	} {
		for _, path := range []string{"/v1/migrations/m-1/confirm", "/v1/migrations/m-1/abort", "/v1/migrations/m-1/revert"} {
			status, body := rawTLS(t, w.address, ours.host("host-x"), "POST", path, "{}", append(headers, "Berth-Host", "host-x")...)
			if r := fault.ReasonsOf(body.Err()); status != 403 || len(r) != 1 || r[0].Code != api.ReasonAskThere {
				t.Errorf("%s with %v: %d %+v", path, headers, status, body)
			}
		}
	}
	if len(w.agent.from) != 0 {
		t.Errorf("asked for: %v", w.agent.from)
	}
}

// TestPassedOn_AnOperatorsClientAsksThere has an operator ask host-a for what host-b has to be
// asked: host-a passes it on, host-b refuses, and the client asks host-b with the same certificate.
func TestPassedOn_AnOperatorsClientAsksThere(t *testing.T) {
	ours := newCA(t, "ours")
	alice := ours.operator("alice")
	a, b := serve(t, "host-a", ours.host("host-a")), serve(t, "host-b", ours.host("host-b"))
	peer := client(t, api.ClientOptions{Address: b.address, Name: "host-b", Identity: ours.host("host-a"), As: "host-a"})
	a.peer = func(string) (*api.Client, error) { return peer, nil }
	followed := 0
	follow := func(host string) (*api.Client, error) {
		followed++
		if host != "host-b" {
			t.Errorf("sent to %s", host)
		}
		return api.NewClient(api.ClientOptions{Address: b.address, Name: host, Identity: alice})
	}
	asker := client(t, api.ClientOptions{Address: a.address, Name: "host-a", Identity: alice, Follow: follow})
	if m, err := asker.Via("host-b").Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-1"}); err != nil || m.SourceCompute != "host-b" || followed != 1 {
		t.Errorf("%+v, %v, followed %d times", m, err, followed)
	}
	if n := len(b.agent.started); n != 1 {
		t.Errorf("started %d times", n)
	}
	// Root of host-a has no certificate, and is told where to ask.
	local := client(t, api.ClientOptions{Socket: a.socket})
	_, err := local.Via("host-b").Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-2"})
	if r := fault.ReasonsOf(err); len(r) != 1 || r[0].Code != api.ReasonAskThere || r[0].Want != "host-b" {
		t.Errorf("a local user: %v (%+v)", err, r)
	}
	// A host that sends an operator round in a circle is followed once.
	follow = func(string) (*api.Client, error) {
		return api.NewClient(api.ClientOptions{Address: a.address, Name: "host-a", Identity: ours.host("host-x"), As: "host-x"})
	}
	circle := client(t, api.ClientOptions{Address: a.address, Name: "host-a", Identity: alice, Follow: follow})
	if _, err := circle.Via("host-b").AbortMigration(t.Context(), "m-1"); !errors.Is(err, fault.Forbidden) {
		t.Errorf("in a circle: %v", err)
	}
}
