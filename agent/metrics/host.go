package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What is told of the agent, of its host and of what it depends on. Amounts by resource class
// are in Placement's units (MEMORY_MB in MiB, DISK_GB in GiB), so that they can be held
// against Placement's own; everything else is in bytes and seconds.
var (
	agentInfo    = desc("agent_info", "Who this agent is; always 1.", "name", "mode", "version")
	agentStart   = desc("agent_start_time_seconds", "When the process began, Unix time.")
	agentReady   = desc("agent_ready", "1 where /readyz says yes.")
	hostDisabled = desc("host_disabled", "1 where an operator lets no new guests come (berth host set --disable).")

	healthOK    = desc("health", "1 where all is well with a part that the agent depends on, 0 where it is degraded.", "part")
	healthSince = desc("health_since_timestamp_seconds", "Since when that is so, Unix time.", "part")
	expiry      = desc("certificate_expiry_timestamp_seconds", "When a certificate of this host ends, and that of the authority that signed it, Unix time.", "use", "name")

	capacity = desc("resource_capacity", "What the host has of a resource class, in Placement's unit.", "resource_class")
	reserved = desc("resource_reserved", "What of it is kept from guests.", "resource_class")
	used     = desc("resource_used", "What of it is claimed.", "resource_class")
	free     = desc("resource_free", "What a claim could get of it now.", "resource_class")
	ratio    = desc("resource_allocation_ratio", "By how much more may be claimed than there is.", "resource_class")

	cellMemory        = desc("cell_memory_bytes", "Memory of a NUMA cell, in pages of all sizes.", "cell")
	cellMemoryUsed    = desc("cell_memory_used_bytes", "Memory of guests that are bound to the cell.", "cell")
	cellDedicated     = desc("cell_dedicated_cpus", "CPUs of the cell that guests may have to themselves.", "cell")
	cellDedicatedFree = desc("cell_dedicated_cpus_free", "Those of them that nobody has.", "cell")
	cellShared        = desc("cell_shared_cpus", "CPUs of the cell that all other vCPUs float over.", "cell")
	cellSharedVCPUs   = desc("cell_shared_vcpus", "vCPUs that float over the cell's shared CPUs and over no others.", "cell")
	cellInstances     = desc("cell_instances", "Guests that have something of the cell.", "cell")
	pages             = desc("cell_pages", "Memory pages of a cell, by size.", "cell", "page_size")
	pagesReserved     = desc("cell_pages_reserved", "Pages that no guest gets.", "cell", "page_size")
	pagesUsed         = desc("cell_pages_used", "Pages that are claimed.", "cell", "page_size")
	pagesFree         = desc("cell_pages_free", "Pages that a claim could get.", "cell", "page_size")

	devices      = desc("devices", "PCI functions and mediated devices for guests, by class and cell.", "cell", "device_class")
	devicesUsed  = desc("devices_used", "Devices that are claimed.", "cell", "device_class")
	devicesUnfit = desc("devices_unfit", "Devices that no guest may get at present.", "cell", "device_class")

	claimsHeld = desc("claims", "Claims on this host, by what they are for and how far they are.", "kind", "state")
	instances  = desc("instances", "Guests that the ledger has.")
	unclaimed  = desc("instances_unclaimed", "Guests that run here without a claim.")
	forced     = desc("instances_forced", "Guests that were found here and do not fit.")
	doubled    = desc("resources_doubled", "CPUs, devices and pools of pages that are promised more often than they are there.")

	placementCalls      = desc("placement_calls_total", "Calls of Placement, by what was asked and answered; status 000 for no answer. Repeats within a call are not counted.", "method", "route", "status")
	placementTook       = desc("placement_call_duration_seconds", "How long calls of Placement took, repeats and pauses included.", "method", "route")
	placementConflicts  = desc("placement_conflicts_total", "Calls of Placement that were answered 409, by what that means.", "conflict")
	placementRequests   = desc("placement_requests_total", "Requests sent to Placement, repeats included.")
	placementRetries    = desc("placement_retries_total", "Requests to Placement that were repeated.")
	placementRaces      = desc("placement_races_total", "Races that Placement lost inside itself.")
	placementInDoubt    = desc("placement_writes_in_doubt_total", "Writes to Placement whose outcome stayed unknown; they are looked into.")
	placementGeneration = desc("placement_generation", "Generation of the host's provider as last seen.")
	placementSynced     = desc("placement_synced_timestamp_seconds", "When Placement and the host were last known to be equal, Unix time; absent before.")
	placementWaiting    = desc("placement_reshape_waiting", "1 while the providers do not have the wanted shape.")

	auditTime   = desc("audit_timestamp_seconds", "When ledger, libvirt and Placement were last held against each other, Unix time; absent before.")
	auditRows   = desc("audit_rows", "What the last audit found, by verdict.", "verdict")
	auditHealed = desc("audit_healed", "What the last audit has healed.")
	auditSilent = desc("audit_silent", "Parties that did not answer the last audit.")
)

// ofHost are the descriptions above, for Describe.
var ofHost = []*prometheus.Desc{
	agentInfo, agentStart, agentReady, hostDisabled, healthOK, healthSince, expiry,
	capacity, reserved, used, free, ratio,
	cellMemory, cellMemoryUsed, cellDedicated, cellDedicatedFree, cellShared, cellSharedVCPUs, cellInstances,
	pages, pagesReserved, pagesUsed, pagesFree, devices, devicesUsed, devicesUnfit,
	claimsHeld, instances, unclaimed, forced, doubled,
	placementCalls, placementTook, placementConflicts, placementRequests, placementRetries, placementRaces, placementInDoubt,
	placementGeneration, placementSynced, placementWaiting,
	auditTime, auditRows, auditHealed, auditSilent,
}

// agent shows the process and what it depends on.
func (s shown) agent(a Agent, health []Condition, certificates []Certificate) {
	if a.Name == "" {
		return
	}
	s.gauge(agentInfo, 1, a.Name, a.Mode, a.Version)
	s.time(agentStart, a.Started)
	s.is(agentReady, a.Ready)
	s.is(hostDisabled, a.Disabled)
	for _, c := range health {
		s.is(healthOK, c.OK, c.Part)
		s.time(healthSince, c.Since, c.Part)
	}
	for _, c := range certificates {
		s.time(expiry, c.NotAfter, c.Use, c.Name)
	}
}

// host shows what there is and what is claimed.
func (s shown) host(h *Host) {
	if h == nil {
		return
	}
	for _, r := range h.Resources {
		s.number(capacity, r.Capacity, r.Class)
		s.number(reserved, r.Reserved, r.Class)
		s.number(used, r.Used, r.Class)
		s.number(free, r.Free, r.Class)
		if r.Ratio > 0 {
			s.gauge(ratio, r.Ratio, r.Class)
		}
	}
	for _, c := range h.Cells {
		s.number(cellMemory, c.MemoryBytes, c.ID)
		s.number(cellMemoryUsed, c.MemoryUsed, c.ID)
		s.number(cellDedicated, int64(c.Dedicated), c.ID)
		s.number(cellDedicatedFree, int64(c.DedicatedFree), c.ID)
		s.number(cellShared, int64(c.Shared), c.ID)
		s.number(cellSharedVCPUs, int64(c.SharedVCPUs), c.ID)
		s.number(cellInstances, int64(c.Instances), c.ID)
		for _, p := range c.Pages {
			s.number(pages, p.Total, c.ID, p.Size)
			s.number(pagesReserved, p.Reserved, c.ID, p.Size)
			s.number(pagesUsed, p.Used, c.ID, p.Size)
			s.number(pagesFree, p.Free, c.ID, p.Size)
		}
	}
	for _, d := range h.Devices {
		s.number(devices, d.Total, d.Cell, d.Class)
		s.number(devicesUsed, d.Used, d.Cell, d.Class)
		s.number(devicesUnfit, d.Unfit, d.Cell, d.Class)
	}
	for k, n := range h.Claims {
		s.number(claimsHeld, int64(n), k.Kind, k.State)
	}
	s.number(instances, int64(h.Instances))
	s.number(unclaimed, int64(h.Unclaimed))
	s.number(forced, int64(h.Forced))
	s.number(doubled, int64(h.Doubled))
}

// placement shows what was asked of Placement, and how equal it is.
func (s shown) placement(p Placement) {
	type of struct{ method, route string }
	type sum struct {
		count int64
		took  time.Duration
	}
	all := map[of]sum{}
	for _, c := range p.Calls {
		s.count(placementCalls, c.Count, c.Method, c.Route, c.Status)
		n := all[of{c.Method, c.Route}]
		all[of{c.Method, c.Route}] = sum{n.count + c.Count, n.took + c.Took}
	}
	for k, n := range all {
		s.ch <- prometheus.MustNewConstSummary(placementTook, uint64(n.count), n.took.Seconds(), nil, k.method, k.route)
	}
	for conflict, n := range p.Conflicts {
		s.count(placementConflicts, n, conflict)
	}
	s.count(placementRequests, p.Requests)
	s.count(placementRetries, p.Retries)
	s.count(placementRaces, p.Races)
	s.count(placementInDoubt, p.InDoubt)
	if !p.SyncedAt.IsZero() {
		s.number(placementGeneration, int64(p.Generation))
		s.time(placementSynced, p.SyncedAt)
	}
	s.is(placementWaiting, p.Waiting)
}

// audit shows the last comparison.
func (s shown) audit(a *Audit) {
	if a == nil {
		return
	}
	s.time(auditTime, a.At)
	for verdict, n := range a.Verdicts {
		s.number(auditRows, int64(n), verdict)
	}
	s.number(auditHealed, int64(a.Healed))
	s.number(auditSilent, int64(a.Silent))
}
