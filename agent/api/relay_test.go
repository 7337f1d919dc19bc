package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
)

func TestRelay_PassesOnWithThisHostsCertificate(t *testing.T) {
	ours := newCA(t, "ours")
	idA := ours.host("host-a")
	a := serve(t, "host-a", idA)
	b := serve(t, "host-b", ours.host("host-b"))
	b.rights.give(&fakeRights{relays: []string{"host-a"}})
	peer := client(t, api.ClientOptions{Address: b.address, Name: "host-b", Identity: idA, As: "host-a"})
	a.peer = func(name string) (*api.Client, error) {
		if name != "host-b" {
			return nil, fault.New(fault.NotFound, "no host %s", name)
		}
		return peer, nil
	}
	local := client(t, api.ClientOptions{Socket: a.socket})
	if s, err := local.Via("host-b").Status(t.Context()); err != nil || s.Name != "host-b" {
		t.Errorf("status of host-b by host-a: %+v, %v", s, err)
	}
	if s, err := local.Via("host-a").Status(t.Context()); err != nil || s.Name != "host-a" {
		t.Errorf("a host asked for itself: %+v, %v", s, err)
	}
	if m, err := local.Via("host-b").Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-1"}); err != nil || m.SourceCompute != "host-b" {
		t.Errorf("migrate on host-b by host-a: %+v, %v", m, err)
	}
	b.agent.records = make(chan migration.Migration, 2)
	b.agent.records <- migration.Migration{UUID: "m-1", Status: migration.StatusRunning}
	b.agent.records <- migration.Migration{UUID: "m-1", Status: migration.StatusCompleted}
	close(b.agent.records)
	var seen []migration.Status
	err := local.Via("host-b").WatchMigration(t.Context(), "m-1", time.Second, func(m migration.Migration) error {
		seen = append(seen, m.Status)
		return nil
	})
	if diff := cmp.Diff([]migration.Status{migration.StatusRunning, migration.StatusCompleted}, seen); err != nil || diff != "" {
		t.Errorf("watched over two hosts: %v (-want +got):\n%s", err, diff)
	}
	// A request that was passed on is not passed on again.
	status, body := raw(t, a.socket, "GET", "/v1/status?host=host-b", "", "Berth-Relayed", "host-c")
	if status != 403 {
		t.Errorf("%d %+v, want 403", status, body)
	}
	// A host asks for itself: through another it would ask as that one.
	third := client(t, api.ClientOptions{Address: a.address, Name: "host-a", Identity: ours.host("host-c"), As: "host-c"})
	if _, err := third.Via("host-b").Status(t.Context()); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a host that asks through another: %v, want %v", err, fault.Forbidden)
	}
	// Its wrong certificate is told through both.
	a.peer = func(string) (*api.Client, error) {
		return client(t, api.ClientOptions{Address: b.address, Name: "host-b", Identity: newCA(t, "theirs").host("host-a"), As: "host-a"}), nil
	}
	if _, err := local.Via("host-b").Status(t.Context()); !errors.Is(err, fault.Forbidden) {
		t.Errorf("a wrong certificate behind a relay: %v, want %v", err, fault.Forbidden)
	}
}

func TestWatch_EndsWhenAskedAndWhenTheServerStops(t *testing.T) {
	w := serve(t, "host-a", nil)
	w.agent.records = make(chan migration.Migration, 1)
	w.agent.records <- migration.Migration{UUID: "m-1"}
	c := client(t, api.ClientOptions{Socket: w.socket})
	enough := errors.New("enough")
	if err := c.WatchMigration(t.Context(), "m-1", time.Second, func(migration.Migration) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("error %v, want the caller's own", err)
	}
	w.agent.records = nil
	if err := c.WatchMigration(t.Context(), "m-2", time.Second, nil); !errors.Is(err, fault.NotFound) {
		t.Errorf("a migration that is not there: %v, want %v", err, fault.NotFound)
	}
}

func TestOpenAPI_CoversEveryRouteAndResolves(t *testing.T) {
	text, err := json.Marshal(api.OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string                               `json:"openapi"`
		Paths      map[string]map[string]map[string]any `json:"paths"`
		Components struct {
			Schemas   map[string]map[string]any `json:"schemas"`
			Responses map[string]any            `json:"responses"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" || len(doc.Paths) < 30 {
		t.Errorf("version %s, %d paths", doc.OpenAPI, len(doc.Paths))
	}
	for _, m := range []string{"claim", "migrate", "status"} {
		if !bytes.Contains(text, []byte(`"operationId":"`+m)) {
			t.Errorf("no operation %s", m)
		}
	}
	ids := map[string]bool{}
	for path, ops := range doc.Paths {
		for method, op := range ops {
			id, _ := op["operationId"].(string)
			if id == "" || ids[id] {
				t.Errorf("%s %s: operation id %q is empty or taken", method, path, id)
			}
			ids[id] = true
		}
	}
	for _, part := range strings.Split(string(text), `"$ref":"`)[1:] {
		target, _, _ := strings.Cut(part, `"`)
		name, ok := strings.CutPrefix(target, "#/components/schemas/")
		if ok && doc.Components.Schemas[name] == nil {
			t.Errorf("%s leads nowhere", target)
		}
	}
	w := serve(t, "host-a", nil)
	if status, _ := raw(t, w.socket, "GET", "/v1/openapi.json", ""); status != 200 {
		t.Errorf("served with %d", status)
	}
}
