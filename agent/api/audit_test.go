package api_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/internal/fault"
)

// fakeAudits remembers what it was asked.
type fakeAudits struct {
	mu    sync.Mutex
	asked []api.AuditRequest
}

func (f *fakeAudits) Audit(_ context.Context, r api.AuditRequest) (api.AuditReport, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r)
	row := audit.Row{Subject: "i-1", Kind: audit.KindInstance, Verdict: audit.Differs, Code: audit.CodeAmounts, Message: "m", Heal: audit.HealPut}
	return api.AuditReport{Hosts: []api.AuditHost{{Result: auditor.Result{Host: "host-a", Rows: []audit.Row{row}}}}}, nil
}

func (f *fakeAudits) Knows(_ context.Context, consumers []string) ([]auditor.Known, error) {
	var out []auditor.Known
	for _, c := range consumers {
		out = append(out, auditor.Known{Consumer: c, Owner: c == "i-1", Epoch: 3})
	}
	return out, nil
}

func TestAudit_AHostThatAsksHasNoOthersAsked(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	local := client(t, api.ClientOptions{Socket: w.socket})
	peer := client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host("host-b"), As: "host-b"})
	all := api.AuditRequest{Heal: true, All: true, AskAll: true}
	for _, c := range []*api.Client{local, peer} {
		report, err := c.Audit(t.Context(), all)
		if err != nil || len(report.Hosts) != 1 || report.Hosts[0].Host != "host-a" || report.Hosts[0].Rows[0].Heal != audit.HealPut {
			t.Errorf("%+v, %v", report, err)
		}
	}
	if _, err := local.Audit(t.Context(), api.AuditRequest{}); err != nil {
		t.Error(err)
	}
	alone := all
	alone.All = false
	if diff := cmp.Diff([]api.AuditRequest{all, alone, {}}, w.audits.asked); diff != "" {
		t.Errorf("what was asked (-want +got):\n%s", diff)
	}
	known, err := peer.Knows(t.Context(), []string{"i-1", "i-2"})
	if diff := cmp.Diff([]auditor.Known{{Consumer: "i-1", Owner: true, Epoch: 3}, {Consumer: "i-2", Epoch: 3}}, known); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if _, err := peer.Knows(t.Context(), make([]string, api.MaxConsumers+1)); !errors.Is(err, fault.Invalid) {
		t.Errorf("too many at once: %v, want %v", err, fault.Invalid)
	}
}
