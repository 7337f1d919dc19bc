package migration

import (
	"berth/internal/fault"
	"berth/migration/options"
	"berth/placementclient"
	"berth/topology"
)

// PlanKind is what is planned.
type PlanKind string

// The kinds.
const (
	PlanLive PlanKind = "live-migration"
	// PlanCold is of a guest that does not run, or is to be shut off for its move.
	PlanCold PlanKind = "cold-migration"
	// PlanResize is of a guest that gets another flavor, on its own host or on another.
	PlanResize PlanKind = "resize"
	PlanNew    PlanKind = "new" // of a guest that is not there yet
	// PlanEvacuation is of a guest of a dead host.
	PlanEvacuation PlanKind = "evacuation"
)

// PlanVerdict is what a host says.
type PlanVerdict string

// The verdicts.
const (
	VerdictTakes   PlanVerdict = "takes it"
	VerdictRefuses PlanVerdict = "refuses"
	VerdictSilent  PlanVerdict = "no answer"
	VerdictUnasked PlanVerdict = "not asked"
)

// Plan says where a guest could go now. It holds nothing: by the time of a move
// another guest may have the room.
type Plan struct {
	Kind         PlanKind           `json:"kind"`
	Instance     string             `json:"instance_uuid,omitempty"` // empty for a new guest
	InstanceName string             `json:"instance_name,omitempty"`
	Flavor       string             `json:"flavor,omitempty"` // of a resize the new one
	Source       string             `json:"source_compute,omitempty"`
	Wants        topology.Resources `json:"wants"`
	// Proof is by what the host counts as dead whose guest is to be evacuated.
	Proof *DeathProof `json:"proof,omitempty"`
	// Options are those of a live migration, merged, and OptionsFrom who said each.
	Options     Options                 `json:"options,omitzero"`
	OptionsFrom map[string]options.From `json:"options_from,omitempty"`
	// Chosen is the host that a move would go to, empty for none.
	Chosen string `json:"chosen,omitempty"`
	// Blockers are what keeps the guest where it is, whatever the destination.
	Blockers []fault.Reason `json:"blockers"`
	// Hosts are the candidates of Placement in the order in which a move would try
	// them, then every other host, by name.
	Hosts []PlanHost `json:"hosts"`
	// Questions are what Placement was asked for candidates, and Left what of the
	// guest's wish is in none of them; the hosts' own checks look at it all.
	Questions []string `json:"questions"`
	Left      []string `json:"left_to_hosts,omitempty"`
	// Truncated says that Placement's answer ended at its limit: hosts that it does
	// not offer here may be candidates all the same.
	Truncated bool `json:"truncated,omitempty"`
	// Providers gives the name of each provider in Hosts, by uuid.
	Providers map[string]string `json:"providers"`
}

// PlanHost is one host of a plan.
type PlanHost struct {
	Name         string `json:"name"`
	ProviderUUID string `json:"provider_uuid,omitempty"`
	Candidate    bool   `json:"candidate"` // Placement offers it
	// OwnHost is the one that the guest is on: a resize tries it first, without asking
	// Placement for candidates.
	OwnHost  bool `json:"own_host,omitempty"`
	SameDisk bool `json:"same_disk,omitempty"`
	// Near says that the host shares an aggregate of Placement's with the one that the guest
	// is on; nil where that counts nothing, or the guest's host is in no aggregate. Weight
	// is what it counts: of candidates the greatest goes first, whatever else there is.
	Near   *bool   `json:"near,omitempty"`
	Weight float64 `json:"weight"`
	// MemoryUsed is the part of the host's memory that is allocated, 0 to 1; of
	// candidates only.
	MemoryUsed float64 `json:"memory_used,omitempty"`
	// Proposed is what Placement would have it hold, by provider. The host's own
	// claim decides.
	Proposed map[string]placementclient.Resources `json:"proposed,omitempty"`
	Verdict  PlanVerdict                          `json:"verdict"`
	Reasons  []fault.Reason                       `json:"reasons,omitempty"` // why not, Placement's and its own
	Claim    *RoomAnswer                          `json:"would_claim,omitempty"`
	// Dropped are options that the guest would go there without; see SourceAnswer.Dropped.
	Dropped []fault.Reason `json:"dropped,omitempty"`
	// Way is how the guest's disks would go there, and WayReason why so; of a host that
	// would take a guest from one with which it shares nothing.
	Way       Way    `json:"way,omitempty"`
	WayReason string `json:"way_reason,omitempty"`
	// Disks are what the host would do about the disks of a guest of a dead host, also where
	// that speaks against it; nil where it was not asked, and of other plans.
	Disks *EvacuatedDisks `json:"evacuated_disks,omitempty"`
}

// RoomRequest asks what a host would claim for a guest: one that is there, or one
// of a flavor, which the host reads by its own aliases.
type RoomRequest struct {
	Flavor    topology.Flavor         `json:"flavor"`
	Instance  string                  `json:"instance_uuid,omitempty"` // empty for a new guest; then only Flavor is read
	Resources topology.Resources      `json:"resources,omitzero"`
	Topology  *topology.GuestTopology `json:"numa_topology,omitempty"`
	Devices   []topology.PCIRequest   `json:"pci_requests,omitempty"`
}

// RoomAnswer is what a host would claim now.
type RoomAnswer struct {
	Resources  topology.Resources  `json:"resources"`
	Assignment topology.Assignment `json:"assignment,omitzero"`
	// Allocations is the same by provider; nil while the host does not know its tree.
	Allocations map[string]placementclient.Resources `json:"allocations,omitempty"`
}

// PlanRequest asks for a plan.
type PlanRequest struct {
	Kind   PlanKind
	Guest  Guest       // of live and cold moves, and resizes
	Source Description // of the same
	// Wanted is what a cold move or a resize makes of the guest, as PlanChange has told; nil
	// where it could not. Then hosts are asked for the room alone of a guest that stays as it
	// is, and for nothing of one that was to be resized.
	Wanted *Wanted
	// Options are those of a live migration, merged, and OptionsFrom who said each.
	Options     Options
	OptionsFrom map[string]options.From
	Room        RoomRequest // of new guests: Resources, Topology and Devices as this host reads the flavor
	Named       string      // only this host; empty for all
	// ShareNothing plans a cold move or a resize that this host would conduct, whether it has
	// the guest or not: the source is asked by its verbs, as the others are.
	ShareNothing bool
	// Of evacuations: the proof, what disks may be made from, and whether their loss is accepted.
	Proof      *DeathProof
	Image      *Image
	AcceptLoss bool
	// Blockers are found already.
	Blockers []fault.Reason
}
