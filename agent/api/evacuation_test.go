package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/operation/operationtest"
)

func (h *fakeHost) PrepEvacuation(_ context.Context, r migration.Ref, e migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
	return migration.PreparedEvacuation{Made: []string{e.Source}}, h.note("PrepEvacuation", r)
}
func (h *fakeHost) RollbackPrepEvacuation(_ context.Context, r migration.Ref) error {
	return h.note("RollbackPrepEvacuation", r)
}
func (h *fakeHost) AcceptEvacuated(_ context.Context, r migration.Ref, _ migration.Commit) error {
	return h.note("AcceptEvacuated", r)
}
func (h *fakeHost) FinishEvacuation(_ context.Context, r migration.Ref) (migration.FinishedEvacuation, error) {
	return migration.FinishedEvacuation{NotStarted: "no room"}, h.note("FinishEvacuation", r)
}

// Ask implements migration.Host.
func (h *fakeHost) Ask(ctx context.Context, r migration.Ref, op *migration.Operation, in any) (any, error) {
	return operationtest.Ask(ctx, h, r, op, in)
}

// evacuationVerbs calls each verb that a guest of host-s is taken in by, as host conductor
// asks it.
func evacuationVerbs(c *api.Client, conductor string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"CheckDestination": func(ctx context.Context) error {
			_, err := operation.CheckDestination.Ask(ctx, c, ref, migration.CheckRequest{Kind: migration.TypeEvacuation, Source: migration.Description{Name: "host-s"}})
			return err
		},
		"Claim": func(ctx context.Context) error {
			_, err := operation.Claim.Ask(ctx, c, ref, migration.ClaimRequest{Kind: migration.TypeEvacuation, Context: migration.Context{Source: "host-s", Destination: "host-d", Conductor: conductor}})
			return err
		},
		"PrepEvacuation": func(ctx context.Context) error {
			p, err := operation.PrepEvacuation.Ask(ctx, c, ref, migration.EvacuationRequest{Source: "host-s"})
			if err == nil && len(p.Made) != 1 {
				err = fmt.Errorf("answer %+v", p)
			}
			return err
		},
		"RollbackPrepEvacuation": func(ctx context.Context) error { return operation.RollbackPrepEvacuation.Ask(ctx, c, ref) },
		"AcceptEvacuated": func(ctx context.Context) error {
			return operation.AcceptEvacuated.Ask(ctx, c, ref, migration.Commit{From: "host-s", To: "host-d"})
		},
		"FinishEvacuation": func(ctx context.Context) error {
			f, err := operation.FinishEvacuation.Ask(ctx, c, ref)
			if err == nil && f.NotStarted == "" {
				err = fmt.Errorf("answer %+v", f)
			}
			return err
		},
	}
}

// TestEvacuation_AnyHostMayBeginAndTheOneOnRecordGoesOn: a host's certificate is enough for
// the first contact, without a right; from the claim on the recorded conductor alone is heard.
func TestEvacuation_AnyHostMayBeginAndTheOneOnRecordGoesOn(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-d", ours.host("host-d"))
	as := func(name string) *api.Client {
		return client(t, api.ClientOptions{Address: w.address, Name: "host-d", Identity: ours.host(name), As: name})
	}
	for name, call := range evacuationVerbs(as("host-c"), "host-c") {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("first contact, %s: %v, asked %d times", name, err, w.verbs.count(name))
		}
	}
	// A claim that another is to conduct, and a live move in the name of another host.
	if err := evacuationVerbs(as("host-x"), "host-c")["Claim"](t.Context()); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a claim in the name of another conductor: %v", err)
	}
	if _, err := operation.CheckDestination.Ask(t.Context(), as("host-c"), ref, migration.CheckRequest{Kind: migration.TypeMigration, Source: migration.Description{Name: "host-s"}}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a cold move of another host's guest, without the right: %v", err)
	}
	w.parties[ref.Migration], w.parties["conducted"] = [2]string{"host-s", "host-d"}, [2]string{"host-c"}
	for _, who := range []struct {
		name string
		may  bool
	}{{"host-c", true}, {"host-x", false}, {"host-s", false}} {
		for name, call := range evacuationVerbs(as(who.name), who.name) {
			before := w.verbs.count(name)
			err := call(t.Context())
			if who.may != (err == nil) || w.verbs.count(name)-before != map[bool]int{true: 1}[who.may] {
				t.Errorf("%s asks %s of the claim of host-c: %v", who.name, name, err)
			}
		}
	}
	// Of another source than is on record.
	c := as("host-c")
	if err := operation.AcceptEvacuated.Ask(t.Context(), c, ref, migration.Commit{From: "host-y"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("another source than the claim names: %v", err)
	}
}

// TestEvacuation_IsAnOperatorsOrTheSocketsToAsk holds who may begin one.
func TestEvacuation_IsAnOperatorsOrTheSocketsToAsk(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-d", ours.host("host-d"))
	want := api.Migrate{Instance: "web", Migration: "m-7", MigrationType: migration.TypeEvacuation, Stopped: true, AcceptLoss: true, Alternates: []string{"host-e"}, Image: &migration.Image{Path: "/i"}}
	for name, o := range map[string]api.ClientOptions{
		"socket": {Socket: w.socket}, "operator": {Address: w.address, Name: "host-d", Identity: ours.operator("alice")},
	} {
		before := len(w.agent.started)
		if _, err := client(t, o).Migrate(t.Context(), want); err != nil || len(w.agent.started) != before+1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.rights.give(&fakeRights{relays: []string{"host-c"}}) // which is for other moves
	_, err := client(t, api.ClientOptions{Address: w.address, Name: "host-d", Identity: ours.host("host-c"), As: "host-c"}).Migrate(t.Context(), want)
	if r := fault.ReasonsOf(err); !errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != "caller" {
		t.Errorf("a host: %v", err)
	}
	if _, err := client(t, api.ClientOptions{Socket: w.socket}).Migrate(t.Context(), api.Migrate{Instance: "web", AcceptLoss: true}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a loss that no move has: %v", err)
	}
}
