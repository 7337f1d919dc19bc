package api_test

import (
	"context"
	"errors"
	"testing"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host/external"
	"berth/internal/fault"
	"berth/migration"
)

// fakeForeign answers the guard and tools, and remembers to whom a token went.
type fakeForeign struct {
	to []string
}

func (*fakeForeign) Guard(_ context.Context, c guard.Call) (guard.Answer, error) {
	return guard.Answer{Allow: c.Operation == guard.Start, DomainXML: c.DomainXML}, nil
}

func (*fakeForeign) Hook(_ context.Context, migration, phase string, r external.HookRequest) (external.HookAnswer, error) {
	return external.HookAnswer{Migration: migration, Claim: phase + " " + r.Instance, Reasons: []fault.Reason{}}, nil
}

func (f *fakeForeign) ReleaseOwnership(_ context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	f.to = append(f.to, to)
	return migration.Commit{Instance: ref.Instance, To: to}, nil
}

func TestGuard_IsAnsweredOnTheLocalSocketOnly(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	local := client(t, api.ClientOptions{Socket: w.socket})
	a, err := local.Guard(t.Context(), guard.Call{Operation: guard.Start, DomainXML: "<domain>&</domain>"})
	if err != nil || !a.Allow || a.DomainXML != "<domain>&</domain>" {
		t.Errorf("%+v, %v", a, err)
	}
	for name, o := range map[string]api.ClientOptions{
		"a host":      {Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"},
		"an operator": {Address: w.address, Name: "host-a", Identity: ours.operator("alice")},
	} {
		if _, err := client(t, o).Guard(t.Context(), guard.Call{Operation: guard.Start}); !errors.Is(err, fault.Forbidden) {
			t.Errorf("asked by %s: %v", name, err)
		}
	}
}

func TestSurrender_GoesToTheCallersOwnName(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	ref := migration.Ref{Migration: "m-1", Instance: "i-1", Attempt: 1}
	c, err := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"}).ReleaseOwnership(t.Context(), ref)
	if err != nil || c.To != "host-b" || c.Instance != "i-1" {
		t.Errorf("%+v, %v", c, err)
	}
	for name, o := range map[string]api.ClientOptions{
		"the socket":                      {Socket: w.socket},
		"an operator":                     {Address: w.address, Name: "host-a", Identity: ours.operator("alice")},
		"a host under another one's name": {Address: w.address, Name: "host-a", Identity: ours.host("host-c"), As: "host-b"},
	} {
		if _, err := client(t, o).ReleaseOwnership(t.Context(), ref); !errors.Is(err, fault.Forbidden) {
			t.Errorf("asked by %s: %v", name, err)
		}
	}
	if len(w.foreign.to) != 1 {
		t.Errorf("surrendered to %v", w.foreign.to)
	}
}

func TestMigrationHook_ByToolsAndNotByHosts(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	a, err := client(t, api.ClientOptions{Socket: w.socket}).MigrationHook(t.Context(), "m-1", external.PhasePreLive, external.HookRequest{Instance: "i-1"})
	if err != nil || a.Migration != "m-1" || a.Claim != "pre-live-migration i-1" {
		t.Errorf("%+v, %v", a, err)
	}
	o := api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"}
	if _, err := client(t, o).MigrationHook(t.Context(), "m-1", external.PhasePost, external.HookRequest{}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("asked by a host: %v", err)
	}
}
