package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
	"berth/placementclient"
	"berth/topology"
)

func planned() migration.Plan {
	cell := 0
	claim := &migration.RoomAnswer{
		Resources: topology.Resources{PCPUs: 2, MemoryMB: 1024, DiskGB: 10},
		Assignment: topology.Assignment{Cells: []topology.AssignedCell{
			{HostCell: 1, Pins: []topology.Pin{{VCPU: 0, CPU: 18}, {VCPU: 1, CPU: 19}}, PageSize: topology.PageSize2M, MemoryMB: 1024},
		}},
		Allocations: map[string]placementclient.Resources{"u1": {"PCPU": 2}, "u2": {"MEMORY_MB": 1024}, "u3": {"DISK_GB": 10}},
	}
	return migration.Plan{
		Kind: migration.PlanLive, Instance: "11111111-1111-4111-8111-111111111111", InstanceName: "db-1", Source: "host-a", Flavor: "pinned",
		Wants: claim.Resources, Chosen: "host-b", Blockers: []fault.Reason{},
		Providers: map[string]string{"u1": "host-b_NUMA1", "u2": "host-b_NUMA1_2MiB", "u3": "pool"},
		Hosts: []migration.PlanHost{
			{Name: "host-c", Candidate: true, SameDisk: true, MemoryUsed: 0.125, Verdict: migration.VerdictRefuses, Reasons: []fault.Reason{
				{Code: "pages_short", Message: "cell 0: want 512 pages of 2MiB, 16 free", Cell: &cell, Change: "raise nr_hugepages of that size on the cell, or free guests that use them; a pool grows best right after the boot"},
				{Code: "qemu_older", Message: "QEMU 7.2.0 on host-c is older than 8.1.0 on host-a", Change: "upgrade QEMU on host-c"},
			}},
			{Name: "host-b", Candidate: true, MemoryUsed: 0.5, Verdict: migration.VerdictTakes, Claim: claim},
			{Name: "host-d", Verdict: migration.VerdictTakes, Claim: claim, Reasons: []fault.Reason{{
				Code: "host_disabled", Message: "host-d is disabled for new guests (COMPUTE_STATUS_DISABLED)", Change: "berth host set --enable on host-d, or name it in berth migrate",
			}}},
			{Name: "host-e.example.org", Verdict: migration.VerdictSilent, Reasons: []fault.Reason{{
				Code: "unreachable", Message: "the connection is refused: no agent listens there", Change: "start it (systemctl start berth)",
			}}},
		},
		Left: []string{"device gpu: it is not known what Placement counts it as"},
	}
}

// TestPlanTable_LooksWellInEightyColumns holds the words against a file; a reader of
// the file sees what an operator sees.
func TestPlanTable_LooksWellInEightyColumns(t *testing.T) {
	stays := planned()
	stays.Chosen, stays.Hosts, stays.Left = "", stays.Hosts[3:], nil
	stays.Blockers = []fault.Reason{{Code: "device_not_migratable", Message: "pci host device 0000:3b:00.0 cannot be live-migrated", Change: "say live_migratable in [pci] device_spec if its driver can, or move the guest shut off"}}
	fresh := planned()
	fresh.Kind, fresh.InstanceName, fresh.Source, fresh.Hosts, fresh.Left = migration.PlanNew, "", "", fresh.Hosts[1:2], nil
	resized := planned()
	resized.Kind, resized.Chosen, resized.Left = migration.PlanResize, "host-a", nil
	resized.Hosts = append([]migration.PlanHost{{Name: "host-a", OwnHost: true, Verdict: migration.VerdictTakes, Claim: resized.Hosts[1].Claim}}, resized.Hosts[1])
	var b bytes.Buffer
	apart := planned()
	apart.Kind, apart.Left = migration.PlanCold, nil
	apart.Hosts[1].Way, apart.Hosts[1].WayReason = migration.WayRelay, "host-a does not reach host-b: connect: no route to host"
	apart.Hosts[2].Way, apart.Hosts[2].WayReason = migration.WayNone, "the two hosts share all of its disks"
	weighed, apartWeighed, near, far := planned(), apart, true, false
	for p, hosts := range map[*migration.Plan][]migration.PlanHost{&weighed: weighed.Hosts, &apartWeighed: apart.Hosts} {
		p.Hosts = slices.Clone(hosts)
		for i := range 3 {
			p.Hosts[i].Near = &near
		}
		p.Hosts[0].Weight, p.Hosts[1].Weight, p.Hosts[2].Weight, p.Hosts[3].Near = 1e6, 1e6, -2.5, &far
	}
	apartWeighed.Hosts[1].Way = migration.WayStraight
	said := planned()
	said.Hosts, said.Left = slices.Clone(said.Hosts[1:3]), nil
	said.Hosts[0].Dropped = []fault.Reason{{
		Code: "post_copy_recovery", Message: "post-copy needs libvirt 8.5.0 on both hosts, and host-b has 8.0.0", Change: "upgrade libvirt on host-b",
	}}
	said.Options, said.OptionsFrom = options.Merge(
		options.Layer{From: options.FromFlavor, Live: options.Live{Schedule: "2:max-downtime=800ms, 3:post-copy, 4:abort", PostCopy: options.On}},
		options.Layer{From: options.FromConfig, Live: options.Live{Bandwidth: 50 << 20}},
	)
	for i, p := range []migration.Plan{planned(), stays, fresh, resized, apart, weighed, apartWeighed, said} {
		if i > 0 {
			b.WriteString("--\n")
		}
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		planTable(w, p, i == 4 || i == 6)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.SplitSeq(b.String(), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	golden := filepath.Join("testdata", "plan.txt")
	if os.Getenv("BERTH_UPDATE") != "" {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}
