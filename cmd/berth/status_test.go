package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
	"berth/topology"
)

// TestStatusTable_IsOneScreen holds the words against a file; a reader of the file sees what an
// operator sees at three in the morning.
func TestStatusTable_IsOneScreen(t *testing.T) {
	since := time.Now().Add(-26*time.Hour - 30*time.Minute - 20*time.Second) // told in minutes
	usage := api.Usage{
		Total: topology.Resources{VCPUs: 16, PCPUs: 48, MemoryMB: 257000, DiskGB: 1800}, Used: topology.Resources{VCPUs: 20, PCPUs: 8, MemoryMB: 40000, DiskGB: 200},
		Reserved: topology.Resources{MemoryMB: 4096}, Free: topology.Resources{VCPUs: 44, PCPUs: 40, MemoryMB: 212904, DiskGB: 1600}, CPURatio: 4, RAMRatio: 1, DskRatio: 1,
	}
	fine := func(name, detail string) api.Condition {
		return api.Condition{Name: name, Health: api.HealthOK, Detail: detail, Since: since}
	}
	well := api.Status{
		Name: "host-a", Mode: "manage", Version: "0.11.0", Health: api.HealthOK, Ready: true, StartedAt: time.Now().Add(-60 * time.Hour), Usage: usage, Instances: 4, Claims: 5,
		Migrations: []string{"11111111-1111-4111-8111-111111111111"}, Unconfirmed: []string{"22222222-2222-4222-8222-222222222222"},
		Conditions: []api.Condition{
			fine("libvirt", "answers"), fine("hardware", "cells 2, cpus 64, memory 257000 MiB"), fine("placement", "nested, equal to the host, generation 12"),
			fine("ledger", "whole"), fine("claims", "5 held"), fine("peers", "listening on :16515, certificate good for 212 days"), fine("migrations", "1 going on"),
			fine("allocations", "audited 2026-11-22 03:00:00: 5 agree"),
			{Name: "guard", Health: api.HealthOK, Detail: "guard not active: libvirt has not called it since its daemon started", Reasons: []fault.Reason{{
				Code: "guard_not_active", Message: "guard not active: libvirt has not called it since its daemon started", Change: "restart libvirtd (guests go on) if the hook was installed after it started; else the next start shows",
			}}},
		},
	}
	// All that a host can have is set on this one, and well.
	full := well
	full.Migrations, full.Unconfirmed = nil, nil
	full.Conditions = append(slices.Clone(well.Conditions[:len(well.Conditions)-1]), fine("guard", "active, last called 3s ago"), fine("fleet", "etcd, records of guests 4"),
		fine("metrics", "served on 127.0.0.1:9179"), fine("page", "shown on 127.0.0.1:9180"), fine("lease", "stands, 20s"), fine("watchdog", "armed: /dev/watchdog0 (iTCO_wdt), 30s"))
	ill := well
	ill.Health, ill.Ready, ill.Migrations, ill.Unconfirmed = api.HealthDegraded, false, nil, nil
	ill.Disabled = &api.Disabled{Reason: "a fan is broken", By: "operator:anna", At: since}
	var many []fault.Reason
	for range mostReasons + 3 {
		many = append(many, fault.Reason{Code: "claim_forced", Message: "guest legacy was adopted though it does not fit", Change: "move it, or another, to a host with room"})
	}
	ill.Conditions = append([]api.Condition{
		{Name: "claims", Health: api.HealthDegraded, Detail: "guests that do not fit 9", Since: since, Reasons: many},
		{Name: "placement", Health: api.HealthDegraded, Detail: "no answer from http://127.0.0.1:8778 yet", Since: since, Reasons: []fault.Reason{{
			Code: "placement_unavailable", Message: "no answer from http://127.0.0.1:8778 yet", Change: "start it (berth placement serves one), or correct [placement] url",
		}}},
		{Name: "libvirt", Health: api.HealthDegraded, Detail: "connect to /run/libvirt/libvirt-sock: no such file or directory", Since: since, Reasons: []fault.Reason{{
			Code: "libvirt_unavailable", Message: "connect to /run/libvirt/libvirt-sock: no such file or directory", Change: "start libvirtd (systemctl start libvirtd), or set [libvirt] socket; Berth connects by itself",
		}}},
	}, slices.DeleteFunc(append(slices.Clone(full.Conditions), well.Conditions[len(well.Conditions)-1]), func(c api.Condition) bool {
		return slices.Contains([]string{"claims", "placement", "libvirt"}, c.Name) || c.Name == "guard" && len(c.Reasons) == 0
	})...)
	var b bytes.Buffer
	for _, is := range []struct {
		api.Status
		rows int // of a terminal: 24 are the fewest that one has
	}{{full, 24}, {well, 30}, {ill, 50}} {
		for _, look := range []screen.Style{{Width: 80}, {Width: 80, Colour: true}} {
			if look.Colour && is.Health == api.HealthOK {
				continue // one of the two is enough to look at
			}
			var shown bytes.Buffer
			tabbed(t, &shown, func(w *tabwriter.Writer) { statusTable(w, is.Status, look) })
			rows := 0
			for line := range strings.Lines(shown.String()) {
				rows += 1 + (len([]rune(strings.TrimRight(line, "\n")))-1)/look.Width // as the terminal breaks it
			}
			if rows > is.rows {
				t.Errorf("%d rows, want no more than %d:\n%s", rows, is.rows, &shown)
			}
			b.Write(shown.Bytes())
			b.WriteString("--\n")
		}
	}
	golden(t, "testdata/status.txt", b.String())
	for line := range strings.Lines(b.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 && !strings.Contains(line, "\x1b") && !strings.HasPrefix(line, "next: ") && !strings.Contains(line, "1111") {
			t.Errorf("%d columns wide: %s", n, line)
		}
	}
}
