package main

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"berth/agent/api"
	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/claims"
	"berth/internal/fault"
)

func auditOf(silent map[string]string, rows ...audit.Row) api.AuditReport {
	return api.AuditReport{Hosts: []api.AuditHost{{Result: auditor.Result{Host: "host-a", Rows: rows, Silent: silent, Verdicts: map[audit.Verdict]int{audit.Agree: 3}}}}}
}

func TestAudit_WhatIsKnownToBeWrongGoesBeforeWhatIsNotKnown(t *testing.T) {
	silent := map[string]string{"placement": "connection refused"}
	left := audit.Row{Verdict: audit.Differs, Code: audit.CodeTwoOwners}
	healed := audit.Row{Verdict: audit.Differs, Heal: audit.HealPut, Healed: true}
	unknown := audit.Row{Verdict: audit.Unknown, Code: audit.CodePlacementUnknown}
	unmanaged := audit.Row{Verdict: audit.LibvirtOnly, Code: audit.CodeUnmanaged}
	ledger := auditOf(nil)
	ledger.Hosts[0].Ledger = &api.Audit{Audit: claims.Audit{Differences: []string{"cpu 1: 2 counted, the claims add up to 1"}}}
	other := auditOf(nil)
	other.Silent = map[string]string{"host-b": "connection refused"}
	for _, tt := range []struct {
		name   string
		report api.AuditReport
		code   int
	}{
		{"all agree", auditOf(nil), exitOK},
		{"all was healed", auditOf(nil, healed), exitOK},
		{"something is left", auditOf(nil, healed, left), exitDegraded},
		{"something is provable and was not healed", auditOf(nil, audit.Row{Verdict: audit.LedgerOnly, Heal: audit.HealPut}), exitDegraded},
		{"placement is silent", auditOf(silent, unknown), exitUnavailable},
		{"a row could not be judged", auditOf(nil, unknown), exitUnavailable},
		{"another host is silent", other, exitUnavailable},
		{"guests run unmanaged", auditOf(nil, unmanaged), exitOK},
		{"guests run unmanaged, and something is left", auditOf(nil, unmanaged, left), exitDegraded},
		{"guests run unmanaged, and placement is silent", auditOf(silent, unmanaged), exitUnavailable},
		{"one runs that nobody manages and somebody counts", auditOf(nil, audit.Row{Verdict: audit.LibvirtOnly, Code: audit.CodeUnmanagedCounted}), exitDegraded},
		{"the ledger does not add up", ledger, exitDegraded},
		{"both", auditOf(silent, unknown, left), exitDegraded},
	} {
		err := auditEnd(tt.report)
		if got := codeOf(err); got != tt.code {
			t.Errorf("%s: exit code %d (%v), want %d", tt.name, got, err, tt.code)
		}
		if tt.code == exitUnavailable && (!errors.Is(err, fault.Unavailable) || len(fault.ReasonsOf(err)) == 0) {
			t.Errorf("%s: %v names nobody", tt.name, err)
		}
	}
}

func TestAudit_TheTableSaysWhatIsWrongSinceWhenAndWhatToDo(t *testing.T) {
	report := auditOf(map[string]string{"libvirt": "no socket"},
		audit.Row{Verdict: audit.LedgerOnly, Message: "guest web is not counted", Heal: audit.HealPut, Change: "berth audit --heal", Since: time.Now().Add(-3 * time.Minute)},
		audit.Row{Verdict: audit.PlacementOnly, Message: "consumer 7f holds", Quarantine: "another host may own it", Change: "berth audit --all"},
		audit.Row{Verdict: audit.Unknown, Message: "not judged"},
		audit.Row{Verdict: audit.LibvirtOnly, Code: audit.CodeUnmanaged, Message: "guest old runs, and nobody manages it; what it uses is given to nobody", Quarantine: "only a person takes a guest under Berth's hand"},
		audit.Row{Verdict: audit.LedgerOnly, Heal: audit.HealPut, Message: "guest big is not counted", Failed: "it does not fit", Change: "make room for it there"},
	)
	report.Silent = map[string]string{"host-b": "connection refused"}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	auditTable(w, report, false)
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"host-a could not ask libvirt: no socket", "ledger only: guest web is not counted (for 3m", "provable", "to do: berth audit --heal",
		"left alone: another host may own it", "to do: berth audit --all", "host host-b was not audited: connection refused",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	if f := strings.Fields(strings.Split(out.String(), "\n")[1]); len(f) < 6 || !slices.Equal(f[:6], []string{"host-a", "3", "0", "3", "1", "1"}) {
		t.Errorf("the counts are %q in\n%s", f, &out)
	}
	if strings.Contains(out.String(), "not judged") {
		t.Errorf("what could not be judged has a line of its own:\n%s", &out)
	}
}

// Who has healed is told what is left to do where a write was refused, and not to heal.
func TestAudit_AfterAHealThatFailedItSaysWhatToDo(t *testing.T) {
	var out bytes.Buffer
	auditTable(&out, auditOf(nil,
		audit.Row{Verdict: audit.LedgerOnly, Heal: audit.HealPut, Message: "guest big is not counted", Failed: "it does not fit", Change: "make room for it there"},
		audit.Row{Verdict: audit.LedgerOnly, Heal: audit.HealPut, Message: "guest web is not counted", Healed: true, Change: "berth audit --heal"},
	), true)
	if got := out.String(); !strings.Contains(got, "not healed: it does not fit") || !strings.Contains(got, "to do: make room for it there") || strings.Contains(got, "--heal") {
		t.Errorf("%s", got)
	}
}
