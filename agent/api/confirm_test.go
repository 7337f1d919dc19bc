package api_test

import (
	"errors"
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
