package api_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

func (h *fakeHost) AttemptFate(_ context.Context, r migration.Ref) (migration.AttemptFate, error) {
	return migration.AttemptFate{Fate: migration.FateCommitted, Commit: &migration.Commit{Migration: r.Migration, Epoch: 7}}, h.note("AttemptFate", r)
}

func (h *fakeHost) YieldToken(_ context.Context, r migration.Ref, epoch uint64, to string) error {
	h.mu.Lock()
	h.seen = migration.Commit{Epoch: epoch, To: to}
	h.mu.Unlock()
	return h.note("YieldToken", r)
}

func (h *fakeHost) Settle(_ context.Context, id string, s migration.Settlement) (api.Settled, error) {
	return api.Settled{Migration: id, GuestIsAt: s.GuestIsAt, By: s.By, Host: h.name}, h.note("Settle "+strings.Join(s.Gone, ","), migration.Ref{Migration: id})
}

func TestSides_TheOtherHostOfAMoveAloneMayAsk(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	as := func(name string) *api.Client {
		return client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host(name), As: name})
	}
	b, third := as("host-b"), as("host-c")
	asked := func(c *api.Client) (fate, yield error) {
		_, fate = c.AttemptFate(t.Context(), ref)
		return fate, c.YieldToken(t.Context(), ref, 9, "host-x")
	}

	// Of a migration of which nothing is recorded nothing can be told, and nothing ended.
	fate, yield := asked(b)
	if fate != nil || !errors.Is(yield, fault.Forbidden) {
		t.Errorf("of an unknown migration: %v, %v", fate, yield)
	}
	w.parties["m-1"] = [2]string{"host-a", "host-b"}
	if fate, yield = asked(third); !errors.Is(fate, fault.Forbidden) || !errors.Is(yield, fault.Forbidden) {
		t.Errorf("a third host: %v, %v", fate, yield)
	}
	for who, opt := range map[string]api.ClientOptions{
		"an operator": {Address: w.address, Name: "host-a", Identity: ours.operator("alice")}, "the local socket": {Socket: w.socket},
	} {
		if fate, yield = asked(client(t, opt)); !errors.Is(fate, fault.Forbidden) || !errors.Is(yield, fault.Forbidden) {
			t.Errorf("%s: %v, %v", who, fate, yield)
		}
	}
	if w.verbs.count("YieldToken") != 0 || w.verbs.count("AttemptFate") != 1 {
		t.Fatalf("asked all the same: %v", w.verbs.calls)
	}
	f, err := b.AttemptFate(t.Context(), ref)
	if err != nil || f.Fate != migration.FateCommitted || f.Commit == nil || f.Commit.Epoch != 7 {
		t.Errorf("fate %+v, %v", f, err)
	}
	// A third host that conducts asks for the one that does not reach this one.
	w.parties["conducted"] = [2]string{"host-c"}
	if fate, yield = asked(third); fate != nil || !errors.Is(yield, fault.Forbidden) {
		t.Errorf("the third host that conducts: %v, %v", fate, yield)
	}
	delete(w.parties, "conducted")
	// The giver is the caller, whatever it says.
	if err := b.YieldToken(t.Context(), ref, 9, "host-x"); err != nil || w.verbs.seen.To != "host-b" || w.verbs.seen.Epoch != 9 {
		t.Errorf("yield to %+v, %v", w.verbs.seen, err)
	}
}

func TestSettle_IsAnOperatorsWord(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	word := migration.Settlement{GuestIsAt: "host-b", Gone: []string{"host-c", "placement"}, Why: "looked", By: "somebody else"}
	got, err := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")}).SettleMigration(t.Context(), "m-1", word)
	if err != nil || got.By != "alice" || got.Migration != "m-1" || got.Host != "host-a" || got.GuestIsAt != "host-b" {
		t.Errorf("%+v, %v", got, err)
	}
	if w.verbs.count("Settle host-c,placement") != 1 {
		t.Errorf("calls %v", w.verbs.calls)
	}
	if got, err := client(t, api.ClientOptions{Socket: w.socket}).SettleMigration(t.Context(), "m-1", word); err != nil || got.By != "local" {
		t.Errorf("by the local socket: %+v, %v", got, err)
	}
	_, err = client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"}).SettleMigration(t.Context(), "m-1", word)
	if !errors.Is(err, fault.Forbidden) {
		t.Errorf("by a host: %v", err)
	}
}
