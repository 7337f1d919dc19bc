package api_test

import (
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// trail is an audit log that a test reads.
type trail struct {
	mu      sync.Mutex
	entries []api.AuditEntry
}

func (l *trail) write(e api.AuditEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// since gives what came after the first n lines.
func (l *trail) since(n int) []api.AuditEntry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries[min(n, len(l.entries)):])
}

// TestAuditLog_WhoDidWhatAndWhatCameOfIt has each kind of caller ask for changes that are
// done, refused and fail. A line is there when the answer is.
func TestAuditLog_WhoDidWhatAndWhatCameOfIt(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	alice, peer := ours.operator("alice"), ours.host("host-b")
	operator := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: alice})
	host := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: peer, As: "host-b"})
	local := client(t, api.ClientOptions{Socket: w.socket})
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	me := uint32(os.Getuid())

	byOperator := api.AuditEntry{Host: "host-a", By: "operator:alice", Cert: alice.Leaf.SerialNumber.Text(16)}
	byHost := api.AuditEntry{Host: "host-a", By: "host:host-b", Cert: peer.Leaf.SerialNumber.Text(16)}
	byMe := api.AuditEntry{Host: "host-a", By: "user:me", UID: &me}
	with := func(e api.AuditEntry, do string, status int, result, kind string, reasons []string, on ...string) []api.AuditEntry {
		e.Do, e.Status, e.Result, e.Kind, e.Reasons, e.On = do, status, result, kind, reasons, on
		return []api.AuditEntry{e}
	}
	for _, c := range []struct {
		name string
		ask  func() error
		want []api.AuditEntry
	}{
		{"a local user starts a guest that does not fit", func() error { _, err := local.StartInstance(t.Context(), "web"); return err },
			with(byMe, "instance-start", http.StatusConflict, api.AuditRefused, "does_not_fit", []string{"memory_short", "vcpu_short"}, "instance=web")},
		{"an operator disables the host", func() error {
			yes := true
			_, err := operator.SetHost(t.Context(), api.SetHost{Disabled: &yes, Reason: "disk"})
			return err
		}, with(byOperator, "host-set", http.StatusOK, api.AuditDone, "", nil, "disabled=true", "reason=disk")},
		{"an operator asks for a migration", func() error {
			_, err := operator.Migrate(t.Context(), api.Migrate{Instance: "web", Destination: "host-b", Migration: "m-9"})
			return err
		}, with(byOperator, "migrate", http.StatusAccepted, api.AuditDone, "", nil, "instance=web", "dest_compute=host-b", "uuid=m-9")},
		{"a host claims", func() error {
			_, err := operation.Claim.Ask(t.Context(), host, ref, migration.ClaimRequest{Context: migration.Context{Source: "host-b"}})
			return err
		}, with(byHost, "verb-claim", http.StatusOK, api.AuditDone, "", nil, "migration=m-1", "instance=i-1", "attempt=2", "step=claim")},
		{"a host renews its claim", func() error { return operation.RenewClaim.Ask(t.Context(), host, ref) }, nil},
		{"a host starts a guest, which is not for hosts", func() error { _, err := host.StartInstance(t.Context(), "web"); return err },
			with(byHost, "instance-start", http.StatusForbidden, api.AuditRefused, "forbidden", []string{"caller"}, "instance=web")},
		{"an operator looks around", func() error { _, err := operator.Status(t.Context()); return err }, nil},
		{"an operator asks where a guest could go", func() error {
			_, err := operator.Plan(t.Context(), api.PlanRequest{Instance: "web"})
			return err
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := len(w.trail.since(0))
			err := c.ask()
			got := w.trail.since(before)
			ignore := cmpopts.IgnoreFields(api.AuditEntry{}, "At", "Took", "Request", "Error", "From")
			if diff := cmp.Diff(c.want, got, ignore, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("asked with %v (-want +got):\n%s", err, diff)
			}
			for _, e := range got {
				if e.At.IsZero() || e.Request == "" || (e.From == "") != (e.UID != nil) || (e.Error == "") != (e.Kind == "") {
					t.Errorf("a line that lacks something: %+v", e)
				}
			}
		})
	}
}

// TestAuditLog_FollowsARequestThatIsPassedOn: both hosts have a line with one id, and the
// second knows who has asked the first.
func TestAuditLog_FollowsARequestThatIsPassedOn(t *testing.T) {
	ours := newCA(t, "ours")
	a, b := serve(t, "host-a", ours.host("host-a")), serve(t, "host-b", ours.host("host-b"))
	peer := client(t, api.ClientOptions{Address: b.address, Name: "host-b", Identity: ours.host("host-a"), As: "host-a"})
	a.peer = func(string) (*api.Client, error) { return peer, nil }
	b.rights.give(&fakeRights{relays: []string{"host-a"}})
	asker := client(t, api.ClientOptions{Address: a.address, Name: "host-a", Identity: ours.operator("alice")})
	if _, err := asker.Via("host-b").AbortMigration(t.Context(), "m-1"); err != nil {
		t.Fatal(err)
	}
	first, second := a.trail.since(0), b.trail.since(0)
	if len(first) != 1 || len(second) != 1 {
		t.Fatalf("lines %+v and %+v", first, second)
	}
	if x, y := first[0], second[0]; x.To != "host-b" || x.By != "operator:alice" || y.By != "host:host-a" || y.For != "operator:alice" || x.Request != y.Request || y.To != "" {
		t.Errorf("passed on %+v, got %+v", x, y)
	}
}

// TestAuditLog_HasAPanicAndABodyThatIsNone: what went wrong on the way has a line too.
func TestAuditLog_HasAPanicAndABodyThatIsNone(t *testing.T) {
	w := serve(t, "host-a", nil)
	w.instances.panics = true
	local := client(t, api.ClientOptions{Socket: w.socket})
	if _, err := local.StopInstance(t.Context(), "web", api.StopInstance{}); fault.KindOf(err) != fault.Internal {
		t.Fatalf("stopped: %v", err)
	}
	raw(t, w.socket, http.MethodPost, "/v1/instances/web/stop", `{"force":true,"forec":true}`)
	got := w.trail.since(0)
	if len(got) != 2 || got[0].Result != api.AuditFailed || got[0].Kind != "internal" || got[1].Result != api.AuditRefused || !slices.Equal(got[1].Reasons, []string{"unknown_field"}) {
		t.Errorf("lines %+v", got)
	}
}
