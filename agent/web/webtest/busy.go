// Package webtest has a host with something of everything that the page can show.
package webtest

import (
	"fmt"
	"time"

	"berth/agent/api"
	"berth/agent/drawing"
	"berth/agent/host"
	"berth/agent/web"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
	"berth/topology"
)

// At is the moment of Busy.
var At = time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC)

// The guests of Busy, by uuid.
const (
	Web      = "3f2c9a54-0b1e-4c7d-8a56-1d2e3f405162"
	Database = "7b90e1d2-5a3c-4f68-9e07-2b3c4d5e6f70"
	Queue    = "9d14c7aa-62f0-4b11-b0f3-3c4d5e6f7081"
	Stranger = "c0ffee00-1111-4222-8333-444455556666"
)

// Hostile is the name of a guest that somebody has thought about.
const Hostile = `</title><script>document.title="taken"</script><img src=x onerror=alert(1)>`

// Busy is a host of two cells with pinned, floating and unclaimed guests, one on its way by a
// live migration, one that waits for its turn, moves that ended well and badly, and a Placement
// that does not answer.
func Busy() web.Snapshot {
	cpus, nic := topology.NewCPUSet, topology.PCIAddress{Bus: 0x3b}
	vf := func(function uint8) topology.PCIAddress {
		return topology.PCIAddress{Bus: 0x3b, Device: 2, Function: function}
	}
	const kib4, mib2 = topology.PageSize(4 << 10), topology.PageSize(2 << 20)
	hardware := &topology.Host{
		BasePageSize: kib4, PageSizes: []topology.PageSize{kib4, mib2}, OfflineCPUs: cpus(),
		PCI: []topology.PCIDevice{{Address: nic, Vendor: "0x8086", Product: "0x1572", NUMANode: 0}},
	}
	for cell := range 2 {
		id := topology.CellID(cell)
		all := cpus()
		for core := range 4 {
			pair := cpus(cell*4+core, 8+cell*4+core)
			hardware.Cores = append(hardware.Cores, pair)
			all = all.Union(pair)
		}
		hardware.Cells = append(hardware.Cells, topology.Cell{ID: id, CPUs: all, MemoryBytes: 32 << 30, Pages: map[topology.PageSize]int64{kib4: 6 << 20, mib2: 4096}})
	}
	for f := range 4 {
		hardware.PCI = append(hardware.PCI, topology.PCIDevice{Address: vf(uint8(f)), Vendor: "0x8086", Product: "0x154c", NUMANode: 0, PhysFn: &nic})
	}
	rooms := []drawing.Room{
		{Cell: 0, Dedicated: cpus(1, 2, 3, 9, 10, 11), Shared: cpus(), Pools: pools(kib4, mib2, 1536)},
		{Cell: 1, Dedicated: cpus(6, 7, 14, 15), Shared: cpus(4, 5, 12, 13), Pools: pools(kib4, mib2, 0)},
	}
	held := []drawing.Claim{
		{Instance: Database, Name: "database", Stands: "lives here", Resources: topology.Resources{PCPUs: 4, MemoryMB: 3072, DiskGB: 80}, Assignment: topology.Assignment{
			Cells:   []topology.AssignedCell{{HostCell: 0, Pins: []topology.Pin{{VCPU: 0, CPU: 1}, {VCPU: 1, CPU: 9}, {VCPU: 2, CPU: 2}, {VCPU: 3, CPU: 10}}, Emulator: cpus(), Idle: cpus(), PageSize: mib2, MemoryMB: 3072}},
			Devices: []topology.AssignedDevice{{Address: vf(1), Vendor: "8086", Product: "154c", Type: topology.PCITypeVF, Cell: 0}},
		}},
		{Instance: Web, Name: "web", Stands: "lives here", Resources: topology.Resources{VCPUs: 4, MemoryMB: 8192, DiskGB: 40}},
		{Instance: Queue, Name: Hostile, Stands: "lives here", Resources: topology.Resources{VCPUs: 2, MemoryMB: 2048, DiskGB: 10}},
	}
	var devices []drawing.Device
	for f := range 4 {
		devices = append(devices, drawing.Device{Address: vf(uint8(f)), Product: "8086:154c", Type: topology.PCITypeVF})
	}
	return web.Snapshot{
		At:   At,
		Host: drawing.Of(drawing.Input{Name: "host-a.example", Hardware: hardware, Rooms: rooms, Devices: devices, Claims: held, Unclaimed: []string{"by-hand"}}),
		Status: api.Status{
			Name: "host-a.example", Mode: "manage", Version: "1.2.0", Health: api.HealthDegraded, Ready: true, StartedAt: At.Add(-72 * time.Hour),
			Conditions: conditions(),
			Usage: api.Usage{
				Total: topology.Resources{VCPUs: 4, PCPUs: 10, MemoryMB: 65536, DiskGB: 900},
				Used:  topology.Resources{VCPUs: 6, PCPUs: 4, MemoryMB: 13312, DiskGB: 130},
				Free:  topology.Resources{VCPUs: 10, PCPUs: 6, MemoryMB: 51712, DiskGB: 770},
			},
		},
		Guests: guests(held), GuestsAt: At,
		Migrations: moves(),
	}
}

func pools(small, large topology.PageSize, held int64) []drawing.Pool {
	return []drawing.Pool{{Size: small, Ordinary: true, Total: 6 << 20, Reserved: 131072}, {Size: large, Total: 4096, Used: held}}
}

func conditions() []api.Condition {
	since := At.Add(-3 * time.Hour)
	out := []api.Condition{{
		Name: "placement", Health: api.HealthDegraded, Since: At.Add(-11 * time.Minute), Detail: "does not answer: connection refused",
		Reasons: []fault.Reason{{Code: "placement_silent", Message: "http://192.0.2.10:8778 refuses the connection", Change: "start Placement, or correct [placement] url; guests and claims go on meanwhile"}},
	}}
	for _, c := range [][2]string{
		{"libvirt", "connected, 4 guests"}, {"hardware", "2 cells, 16 CPUs, read a moment ago"}, {"claims", "3 held; running without a claim, and counted: by-hand"},
		{"peers", "listening on :16515, certificate good for 412 days"}, {"migrations", "2 going on, of which 1 waits for its turn"}, {"guard", "active"},
	} {
		out = append(out, api.Condition{Name: c[0], Health: api.HealthOK, Detail: c[1], Since: since})
	}
	return out
}

func guests(held []drawing.Claim) []api.Instance {
	var out []api.Instance
	for _, c := range held {
		out = append(out, api.Instance{
			Instance: claims.Instance{UUID: c.Instance, Name: c.Name}, Managed: true, State: "running", Status: "ACTIVE", Host: "host-a.example",
			Claim: &claims.Claim{Owner: claims.Owner{Instance: c.Instance, Kind: claims.KindInstance}, State: claims.Bound, Resources: c.Resources, Assignment: c.Assignment},
		})
	}
	out[1].Migration, out[1].Status = liveMove, "MIGRATING"
	out[2].State, out[2].Status = "shut off", "SHUTOFF"
	return append(out, host.InstanceView{Instance: claims.Instance{UUID: Stranger, Name: "by-hand"}, State: "running", Host: "host-a.example"})
}

const liveMove = "51a0c3de-7788-4990-a1b2-c3d4e5f60718"

// moves are newest first.
func moves() []migration.Migration {
	live := migration.Migration{
		UUID: liveMove, InstanceUUID: Web, InstanceName: "web", SourceCompute: "host-a.example", DestCompute: "host-b.example", MigrationType: migration.TypeLiveMigration,
		Status: migration.StatusRunning, Attempt: 1, CreatedAt: At.Add(-41 * time.Second), UpdatedAt: At, By: "operator:alice", Phase: task.Doing, Step: migration.StepStream,
		Progress: migration.Progress{
			Phase: "memory", MemoryTotal: 8 << 30, MemoryProcessed: 6 << 30, MemoryRemaining: 3 << 30, Rate: 118 << 20, DirtyRate: 21 << 20, Iteration: 2,
			Remaining: 32 * time.Second, ExpectedDowntime: 180 * time.Millisecond,
		},
	}
	for i, name := range []string{migration.StepInspectSource, migration.StepCheckDestination, migration.StepClaim, migration.StepSwapAllocations, migration.StepPreLiveMigration, migration.StepStream, migration.StepCommit, migration.StepAcceptToken} {
		s := migration.StepRecord{Name: name}
		if i < 5 {
			s.State, s.Duration = task.StepEnded, time.Duration(i+1)*37*time.Millisecond
		}
		live.Steps = append(live.Steps, s)
	}
	live.Steps[5].State = task.StepBegun
	waits := migration.Migration{
		UUID: "62b1d4ef-8899-4aa1-b2c3-d4e5f6071829", InstanceUUID: Database, InstanceName: "database", SourceCompute: "host-a.example", DestCompute: "host-c.example", MigrationType: migration.TypeMigration,
		Status: migration.StatusQueued, Attempt: 1, CreatedAt: At.Add(-20 * time.Second), UpdatedAt: At, By: "user:root", Phase: task.Doing,
		Waits: []fault.Reason{{Code: "outbound_limit", Message: "as many guests leave host-a.example as may at once", Change: "raise [migration] max_outbound, or wait"}},
	}
	over := func(i int, guest, to string, outcome migration.Outcome, kind string) migration.Migration {
		begun := At.Add(-time.Duration(i) * 5 * time.Hour)
		return migration.Migration{
			UUID: fmt.Sprintf("73c2e5f0-99aa-4bb2-c3d4-%012d", i), InstanceName: guest, SourceCompute: "host-b.example", DestCompute: to, MigrationType: kind, Status: migration.StatusCompleted,
			Outcome: outcome, Phase: task.Done, CreatedAt: begun, UpdatedAt: begun.Add(time.Duration(i) * 17 * time.Second), By: "operator:alice",
		}
	}
	undone := over(2, "database", "host-c.example", migration.OutcomeUndone, migration.TypeLiveMigration)
	undone.Status, undone.Phase = migration.StatusFailed, task.Undone
	undone.Error = &task.Error{Kind: fault.Unavailable, Message: "pre-live-migration: host host-c.example does not answer", Reasons: []fault.Reason{{Code: "peer_silent", Message: "nobody answers on host-c.example:16515", Change: "look whether the agent runs there: systemctl status berth"}}}
	refused := over(3, "analytics", "", migration.OutcomeRefused, migration.TypeResize)
	refused.Status, refused.Phase = migration.StatusFailed, task.Undone
	refused.Error = &task.Error{Kind: fault.DoesNotFit, Message: "no host takes it", Reasons: []fault.Reason{{Code: "memory_short", Message: "host-a.example: cell 1: want 12 pages of 1GiB, 8 free", Change: "free 4 pages there"}}}
	return []migration.Migration{waits, live, over(1, "web", "host-a.example", migration.OutcomeCompleted, migration.TypeLiveMigration), undone, refused}
}
