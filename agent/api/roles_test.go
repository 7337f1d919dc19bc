package api_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/pki"
)

// TestRoles_WhoLooksAndWhoChanges has each caller, under each list, look, ask a question that has
// a body, and ask for a change, by one host and through another.
func TestRoles_WhoLooksAndWhoChanges(t *testing.T) {
	ours := newCA(t, "ours")
	me := fmt.Sprintf("user:%d", os.Getuid())
	root := os.Getuid() == 0
	for _, c := range []struct {
		name    string
		id      *pki.Identity // nil for the local socket
		operate []string
		changes bool
		code    string // of the refusal
	}{
		{name: "an operator", id: ours.operator("alice"), changes: true},
		{name: "an operator in the list", id: ours.operator("alice"), operate: []string{"operator:alice"}, changes: true},
		{name: "an operator, others in the list", id: ours.operator("alice"), operate: []string{"operator:bob", me}, code: "reads_only"},
		{name: "an operator, a list that has nobody", id: ours.operator("alice"), operate: []string{}, code: "reads_only"},
		{name: "a reader", id: ours.reader("carol"), code: "caller"},
		{name: "a reader called as one in the list", id: ours.reader("carol"), operate: []string{"operator:carol", "operator:"}, code: "caller"},
		{name: "a local user", changes: true},
		{name: "a local user in the list", operate: []string{me}, changes: true},
		{name: "a local user, others in the list", operate: []string{"operator:bob"}, changes: root, code: "reads_only"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := serve(t, "host-a", ours.host("host-a")), serve(t, "host-b", ours.host("host-b"))
			peer := client(t, api.ClientOptions{Address: b.address, Name: "host-b", Identity: ours.host("host-a"), As: "host-a"})
			a.peer = func(string) (*api.Client, error) { return peer, nil }
			a.rights.give(&fakeRights{operate: c.operate})
			b.rights.give(&fakeRights{relays: []string{"host-a"}})
			o := api.ClientOptions{Socket: a.socket}
			if c.id != nil {
				o = api.ClientOptions{Address: a.address, Name: "host-a", Identity: c.id}
			}
			direct := client(t, o)
			for how, asker := range map[string]*api.Client{"here": direct, "through": direct.Via("host-b")} {
				if _, err := asker.Status(t.Context()); err != nil {
					t.Errorf("%s, looks: %v", how, err)
				}
				if _, err := asker.Plan(t.Context(), api.PlanRequest{Instance: "web"}); err != nil {
					t.Errorf("%s, asks: %v", how, err)
				}
				_, err := asker.AbortMigration(t.Context(), "m-1")
				if c.changes != (err == nil) {
					t.Errorf("%s, changes: %v, want %v", how, err, c.changes)
				}
				if r := fault.ReasonsOf(err); err != nil && (!errors.Is(err, fault.Forbidden) || len(r) != 1 || r[0].Code != c.code || r[0].Change == "") {
					t.Errorf("%s, is refused with %v (%+v), want %s and what to do", how, err, r, c.code)
				}
			}
			if _, err := direct.Hosts(t.Context()); err != nil {
				t.Errorf("looks at what only people may: %v", err)
			}
			if got := b.trail.since(0); !c.changes && len(got) != 0 {
				t.Errorf("host-b was asked for a change: %+v", got)
			}
		})
	}
}
