package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/migration"
)

func TestMigrationFilter_EachField_LeavesWhatMatches(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	moves := []migration.Migration{
		{UUID: "1", Status: migration.StatusCompleted, InstanceName: "web", InstanceUUID: "u1", SourceCompute: "a", DestCompute: "b", CreatedAt: now.Add(-time.Hour)},
		{UUID: "2", Status: migration.StatusError, InstanceName: "db", InstanceUUID: "u2", SourceCompute: "b", DestCompute: "c", Conductor: "a", CreatedAt: now.Add(-48 * time.Hour)},
	}
	for _, tt := range []struct {
		filter migrationFilter
		want   string
	}{
		{migrationFilter{}, "1 2"},
		{migrationFilter{status: []string{"error"}}, "2"},
		{migrationFilter{status: []string{"error", "completed"}}, "1 2"},
		{migrationFilter{instance: "web"}, "1"},
		{migrationFilter{instance: "u2"}, "2"},
		{migrationFilter{host: "a"}, "1 2"},
		{migrationFilter{host: "c"}, "2"},
		{migrationFilter{since: "2h"}, "1"},
		{migrationFilter{since: "2026-02-28"}, "1"},
		{migrationFilter{since: "2026-02-27T11:00:00Z", host: "b"}, "1 2"},
		{migrationFilter{since: "2h", status: []string{"error"}}, ""},
	} {
		got, err := tt.filter.take(slices.Clone(moves), now)
		var uuids []string
		for _, m := range got {
			uuids = append(uuids, m.UUID)
		}
		if text := strings.Join(uuids, " "); err != nil || text != tt.want {
			t.Errorf("%+v: %q, %v, want %q", tt.filter, text, err, tt.want)
		}
	}
	for _, since := range []string{"yesterday", "-3h", "2026-13-01"} {
		if _, err := sinceWhen(since, now); err == nil || !strings.Contains(err.Error(), since) {
			t.Errorf("--since %s: %v", since, err)
		}
	}
}

// serveHosts is the agent of host a, which passes questions on: b answers, c does not, d is known to be silent.
func serveHosts(t *testing.T) (socket string) {
	t.Helper()
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	waits := migration.Migration{UUID: "m-of-a", Status: migration.StatusRunning, CreatedAt: begun}
	conducted := waits
	conducted.Steps = []migration.StepRecord{{}}
	newest := migration.Migration{UUID: "m-of-b", Status: migration.StatusError, CreatedAt: begun.Add(time.Minute)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hosts", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.HostList{Hosts: []api.HostEntry{
			{Name: "a", Local: true, Reachable: true}, {Name: "b", Reachable: true}, {Name: "c", Reachable: true}, {Name: "d", Error: "no route to host"},
		}})
	})
	mux.HandleFunc("GET /v1/migrations", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Query().Get("host") {
		case "":
			_ = json.NewEncoder(w).Encode(api.MigrationList{Migrations: []migration.Migration{conducted}})
		case "b":
			_ = json.NewEncoder(w).Encode(api.MigrationList{Migrations: []migration.Migration{newest, waits}})
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(l) }() // ends with Close
	return socket
}

func TestMigrationList_All_NamesThoseThatDoNotAnswer(t *testing.T) {
	code, out, errs := executeLine(t, "migration list --all --json -c "+serveHosts(t))
	var got listedMigrations
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(got.Migrations) != 2 || got.Migrations[0].UUID != "m-of-b" || len(got.Migrations[1].Steps) != 1 {
		t.Errorf("listed: %+v", got.Migrations)
	}
	if code != exitUnavailable || got.Silent["c"] == "" || got.Silent["d"] != "no route to host" || len(got.Silent) != 2 || !strings.Contains(errs, "host_silent") {
		t.Errorf("exit code %d, silent %v, %s", code, got.Silent, errs)
	}
	code, out, _ = executeLine(t, "migration list --limit -1 -c "+serveHosts(t))
	if code != exitUsage || out != "" {
		t.Errorf("--limit -1: exit code %d, %q", code, out)
	}
}

func TestOutput_YAML_HasTheFieldsInTheirOrder(t *testing.T) {
	code, out, _ := executeLine(t, "migration list -o yaml -c "+serveHosts(t))
	if code != exitOK || !strings.HasPrefix(out, "migrations:\n  - uuid: m-of-a\n") {
		t.Errorf("exit code %d, %s", code, out)
	}
	if code, _, errs := executeLine(t, "migration list -o xml"); code != exitUsage || !strings.Contains(errs, "yaml") {
		t.Errorf("-o xml: exit code %d, %s", code, errs)
	}
}

func executeLine(t *testing.T, line string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr strings.Builder
	code = execute(t.Context(), linked(), strings.Fields(line), strings.NewReader(""), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}
