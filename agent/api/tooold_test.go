package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// TestClient_WhatAnOlderAgentDoesNotKnowIsRefusedByItsVersion: routes, and fields of requests.
func TestClient_WhatAnOlderAgentDoesNotKnowIsRefusedByItsVersion(t *testing.T) {
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/verbs/describe":
			fmt.Fprint(w, `{"name":"host-b","berth_version":"0.5.0"}`)
		case "/v1/migrations", "/v1/verbs/claim":
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"kind":"invalid","message":"read the request","reasons":[{"code":"unknown_field","message":"unknown field \"priority\""}]}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprintf(w, `{"error":{"kind":"not_found","message":"no route %s %s: see GET /v1/openapi.json","reasons":[]}}`, r.Method, r.URL.Path)
		}
	})
	route := func(method, path string) string { return "which does not know " + method + " " + path }
	refused := func(name string, err error, want string) {
		t.Helper()
		reasons := fault.ReasonsOf(err)
		if !errors.Is(err, fault.Forbidden) || len(reasons) != 1 || reasons[0].Code != migration.ReasonPeerTooOld ||
			!strings.Contains(reasons[0].Message, "host host-b runs berth 0.5.0, "+want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	for _, op := range operation.All() {
		_, in := op.Unpack(op.NewRequest())
		want := route(http.MethodPost, "/v1/verbs/"+op.Name)
		if op.Name == operation.Claim.Name {
			want = `which does not know field "priority"`
		}
		_, err := c.Ask(t.Context(), ref, op, in)
		refused(op.Name, err, want)
	}
	for name, call := range fleetCalls(c) {
		refused(name, call(t.Context()), "which does not know ")
	}
	for name, call := range map[string]func(context.Context) error{
		`field "priority"`: func(ctx context.Context) error {
			_, err := c.Migrate(ctx, api.Migrate{Instance: "web", Priority: 1})
			return err
		},
		"POST /v1/migrations/web/confirm": func(ctx context.Context) error { _, err := c.ConfirmMigration(ctx, "web"); return err },
		"POST /v1/migrations/m-1/set": func(ctx context.Context) error {
			_, err := c.SetMigration(ctx, "m-1", api.SetMigration{Bandwidth: 1})
			return err
		},
		"GET /v1/doctor": func(ctx context.Context) error { _, err := c.Examine(ctx); return err },
	} {
		refused(name, call(t.Context()), "which does not know "+name)
	}
}

// TestClient_AnOlderAgentThatDoesNotDescribeItselfIsAskedOnce: a refusal needs no version.
func TestClient_AnOlderAgentThatDoesNotDescribeItselfIsAskedOnce(t *testing.T) {
	asked := 0
	c := answering(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"error":{"kind":"not_found","message":"no route %s %s: see GET /v1/openapi.json","reasons":[]}}`, r.Method, r.URL.Path)
	})
	if _, err := c.Describe(t.Context()); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "an older berth") || asked != 2 {
		t.Errorf("%v, asked %d times", err, asked)
	}
}
