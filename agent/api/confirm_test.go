package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/topology"
)

func TestConfirm_ByOperatorsAndByHostsThatPassItOn(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	w.rights.give(&fakeRights{relays: []string{"host-b"}})
	for name, o := range map[string]api.ClientOptions{
		"local":  {Socket: w.socket},
		"host-b": {Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"},
	} {
		c := client(t, o)
		m, err := c.ConfirmMigration(t.Context(), "web 1/x")
		if err != nil || m.UUID != "web 1/x" || m.Status != migration.StatusConfirming || w.agent.from[len(w.agent.from)-1] != name {
			t.Errorf("confirm by %q: %+v, %v, from %q", name, m, err, w.agent.from)
		}
		if _, err := c.RevertMigration(t.Context(), "m-1"); !errors.Is(err, fault.Busy) {
			t.Errorf("revert by %q: %v, want %v", name, err, fault.Busy)
		}
		got, err := c.Stories(t.Context())
		if diff := cmp.Diff(conductor.Stories(), got); err != nil || diff != "" {
			t.Errorf("stories: %v (-want +got):\n%s", err, diff)
		}
	}
}

func TestMigrate_OfEveryTypeArrivesWhole(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	zero, day := time.Duration(0), 24*time.Hour
	for _, want := range []api.Migrate{
		{Instance: "web", Migration: "m-1", MigrationType: migration.TypeMigration, Destination: "host-b", Offline: true, ConfirmWindow: &day},
		{Instance: "web", Migration: "m-2", MigrationType: migration.TypeResize, FlavorName: "large", ShutdownTimeout: &zero},
		{Instance: "web", Migration: "m-3", MigrationType: migration.TypeResize, Flavor: &topology.Flavor{Name: "own", VCPUs: 2, ExtraSpecs: map[string]string{"a": "b"}}, ConfirmWindow: &zero},
		{Instance: "web", Migration: "m-4", MigrationType: migration.TypeRebuild, Image: &migration.Image{Path: "/srv/x.raw", Format: "raw", Properties: map[string]string{"hw_numa_nodes": "2"}}},
	} {
		if _, err := c.Migrate(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, w.agent.started[len(w.agent.started)-1]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.MigrationType, diff)
		}
	}
}

// TestMigrate_OfAnOlderAgent asks one that knows live migrations alone, and no field
// beside theirs.
func TestMigrate_OfAnOlderAgent(t *testing.T) {
	asked := 0
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/verbs/describe" {
			fmt.Fprint(w, `{"name":"host-b","berth_version":"0.5.0"}`)
			return
		}
		if r.URL.Path != "/v1/migrations" {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"error":{"kind":"not_found","message":"no route POST %s: see GET /v1/openapi.json","reasons":[]}}`, r.URL.Path)
			return
		}
		asked++
		var in map[string]any
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		if _, has := in["migration_type"]; has {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"kind":"invalid","message":"read the request","reasons":[{"code":"unknown_field","message":"unknown field \"migration_type\""}]}}`)
			return
		}
		fmt.Fprint(w, `{"uuid":"m-1"}`)
	})
	if m, err := c.Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-1", MigrationType: migration.TypeLiveMigration}); err != nil || m.UUID != "m-1" || asked != 2 {
		t.Errorf("a live migration: %+v, %v, asked %d times", m, err, asked)
	}
	want := "host host-b runs berth 0.5.0, which knows no cold moves"
	if _, err := c.Migrate(t.Context(), api.Migrate{Instance: "web", Migration: "m-2", MigrationType: migration.TypeResize}); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), want) {
		t.Errorf("a resize: %v, want %q", err, want)
	}
	if _, err := c.ConfirmMigration(t.Context(), "web"); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), want) {
		t.Errorf("a confirmation: %v, want %q", err, want)
	}
}
