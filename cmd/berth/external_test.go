package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host/external"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// told is an agent that remembers what tools tell it.
type told struct {
	api.Foreign
	id, phase string
	got       external.HookRequest
}

func (f *told) Hook(_ context.Context, id, phase string, r external.HookRequest) (external.HookAnswer, error) {
	f.id, f.phase, f.got = id, phase, r
	return external.HookAnswer{Migration: id, Reasons: []fault.Reason{}}, nil
}

func TestHook_SaysWhatItsFlagsSay(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	agent := &told{}
	server := api.NewServer(api.Options{Services: api.Services{Foreign: agent}, Name: "host-a", Runtime: &runtime.System{}, Logger: slog.New(slog.DiscardHandler)})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		if err := server.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	for _, tt := range []struct {
		line, in string
		code     int
		want     external.HookRequest
		says     string
	}{
		{"resize-instance --migration u --instance i --destination host-b", "", 0, external.HookRequest{Instance: "i", Destination: "host-b"}, `"migration": "u"`},
		{"resize-instance --migration u --instance i", "", 2, external.HookRequest{}, "say --migration, --instance and --destination"},
		{"resize-instance --migration u --destination host-b", "", 2, external.HookRequest{}, "say --migration, --instance and --destination"},
		{"prep-resize --migration u --instance i --source host-a --flavor f", "<domain/>", 0,
			external.HookRequest{Instance: "i", Source: "host-a", FlavorName: "f", DomainXML: "<domain/>"}, `"migration": "u"`},
		{"prep-resize --migration u --instance i --source host-a", strings.Repeat("x", api.MaxBody+1), 2, external.HookRequest{}, "larger than 8 MiB"},
		{"finish-revert-resize --migration u", "", 0, external.HookRequest{}, `"migration": "u"`},
	} {
		*agent = told{}
		var out, errs bytes.Buffer
		code := execute(t.Context(), linked(), append(strings.Fields("external "+tt.line), "-c", socket), strings.NewReader(tt.in), &out, &errs)
		if code != tt.code || !strings.Contains(out.String()+errs.String(), tt.says) {
			t.Errorf("%s: exit code %d, want %d with %q:\n%s%s", tt.line, code, tt.code, tt.says, &out, &errs)
		}
		if diff := cmp.Diff(tt.want, agent.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.line, diff)
		}
		if phase, _, _ := strings.Cut(tt.line, " "); code == 0 && (agent.phase != phase || agent.id != "u") {
			t.Errorf("%s: asked for %s of %s", tt.line, agent.phase, agent.id)
		}
	}
}
