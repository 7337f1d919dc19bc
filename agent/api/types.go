package api

import (
	"time"

	"berth/agent/host"
	"berth/agent/reporter"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
	"berth/topology"
)

// Health says whether all is well.
type Health string

// The healths.
const (
	HealthOK       Health = "ok"
	HealthDegraded Health = "degraded" // works, but not with everything; the reasons say what and since when
)

// Condition is one thing the agent depends on, and how it is.
type Condition struct {
	Name    string         `json:"name"` // "libvirt", "placement", "discovery", "claims", …
	Health  Health         `json:"health"`
	Detail  string         `json:"detail,omitempty"` // one line, also when all is well
	Reasons []fault.Reason `json:"reasons,omitempty"`
	Since   time.Time      `json:"since"` // of this health
}

// OK is the condition of a part that is well.
func OK(name, detail string) Condition {
	return Condition{Name: name, Health: HealthOK, Detail: detail}
}

// Degraded is the condition of a part that needs somebody, with the reasons.
func Degraded(name, detail string, reasons ...fault.Reason) Condition {
	return Condition{Name: name, Health: HealthDegraded, Detail: detail, Reasons: reasons}
}

// Status is one screen: is all well, and if not what, since when, what to do.
type Status struct {
	Name         string      `json:"name"` // the provider's name
	ProviderUUID string      `json:"provider_uuid"`
	Mode         string      `json:"mode"`
	Version      string      `json:"berth_version"`
	Health       Health      `json:"health"`
	Ready        bool        `json:"ready"`
	StartedAt    time.Time   `json:"started_at"`
	StartupTime  int64       `json:"startup_milliseconds"` // from the process's start until it was ready
	Conditions   []Condition `json:"conditions"`
	Usage        Usage       `json:"usage"`
	Instances    int         `json:"instances"`
	Claims       int         `json:"claims"`
	Migrations   []string    `json:"migrations"`      // uuids of those that go on
	Unconfirmed  []string    `json:"unconfirmed"`     // uuids of those that are finished and wait to be confirmed or reverted
	Audit        *Audit      `json:"audit,omitempty"` // nil until the first
	Disabled     *Disabled   `json:"disabled"`        // null for a host that takes guests
}

// Usage is what the host has, holds and can still give.
type Usage struct {
	Total    topology.Resources `json:"total"`
	Reserved topology.Resources `json:"reserved"`
	Used     topology.Resources `json:"used"` // the sum of all claims
	Free     topology.Resources `json:"free"` // (total − reserved) × ratio − used, never below 0
	CPURatio float64            `json:"cpu_allocation_ratio"`
	RAMRatio float64            `json:"ram_allocation_ratio"`
	DskRatio float64            `json:"disk_allocation_ratio"`
	Forced   []string           `json:"forced,omitempty"` // instances that do not fit, by uuid: adopted or changed by hand

	// Doubled is what is promised more often than it is there, by forced claims.
	Doubled []claims.Doubled `json:"doubled,omitempty"`
}

// HostInfo is one host with its hardware.
type HostInfo struct {
	migration.Description
	Health    Health          `json:"health"`
	Disabled  *Disabled       `json:"disabled"` // null for a host that takes guests
	Usage     Usage           `json:"usage"`
	Placement reporter.Status `json:"placement"`
	// Providers is the host's tree as Placement has it now, ProvidersError why it
	// could not be read.
	Providers      []ProviderView `json:"providers"`
	ProvidersError string         `json:"providers_error,omitempty"`
	Topology       *topology.Host `json:"topology"` // null while the hardware has not been read
	// Capabilities is what guests can have here, as the hypervisor last told; null
	// while it has not.
	Capabilities *topology.Capabilities `json:"capabilities"`

	// Cells are what guests are fitted in, with what is in use; none while the
	// hardware has not been read. Loose are devices whose cell nobody knows.
	Cells []HostCell   `json:"cells"`
	Loose []HostDevice `json:"devices_of_no_cell,omitempty"`
}

// HostEntry is one host of the fleet as Placement and [peers] know it.
type HostEntry struct {
	Name         string `json:"name"`
	ProviderUUID string `json:"provider_uuid,omitempty"`
	Address      string `json:"address"`
	Local        bool   `json:"local"`
	Reachable    bool   `json:"reachable"`
	Mode         string `json:"mode,omitempty"`
	Version      string `json:"berth_version,omitempty"`
	Disabled     string `json:"disabled,omitempty"` // why it gets no new guests; empty for one that does
	Error        string `json:"error,omitempty"`    // why it is not reachable
}

// HostList is the answer of GET /v1/hosts.
type HostList struct {
	Hosts []HostEntry `json:"hosts"`
}

// Instance is a guest as ledger and hypervisor know it.
type Instance = host.InstanceView

// InstanceDetail is one guest, what its document says beyond its claim, and what
// Placement holds for it and for the move that it is on.
type InstanceDetail struct {
	Instance
	// Remarks are what the claim had to guess, and what is kept as it is: no claim
	// holds it. They are read from its document at each look.
	Remarks          []fault.Reason `json:"remarks,omitempty"`
	Allocations      []Allocation   `json:"allocations"`
	AllocationsError string         `json:"allocations_error,omitempty"` // why Placement could not be asked
}

// Allocation is what one consumer holds on one provider.
type Allocation struct {
	Consumer     string                    `json:"consumer"`      // uuid of an instance or a migration
	ConsumerType string                    `json:"consumer_type"` // INSTANCE, MIGRATION
	Provider     string                    `json:"provider"`      // name
	ProviderUUID string                    `json:"provider_uuid"`
	Resources    placementclient.Resources `json:"resources"`
}

// ProviderView is one resource provider of a host's tree as Placement has it.
type ProviderView struct {
	Name        string                               `json:"name"`
	UUID        string                               `json:"uuid"`
	Parent      string                               `json:"parent,omitempty"` // name; empty for the root
	Generation  int                                  `json:"generation"`
	Inventories map[string]placementclient.Inventory `json:"inventories"`
	Usages      placementclient.Resources            `json:"usages"`
}

// InstanceList is the answer of GET /v1/instances.
type InstanceList struct {
	Instances []Instance `json:"instances"`
	// Error is why the hypervisor could not be asked: then the list is what the
	// ledger knows, and unmanaged guests are missing.
	Error string `json:"error,omitempty"`
}

// CreateInstance asks for a new guest.
type CreateInstance struct {
	host.CreateRequest
	// FlavorName is a flavor of this host, in place of flavor.
	FlavorName string `json:"flavor_name,omitempty"`
}

// AdoptInstances takes domains that are there already under claims.
type AdoptInstances struct {
	Instances []string `json:"instances,omitempty"` // names or uuids
	All       bool     `json:"all,omitempty"`
}

// AdoptedList is what came of it, a row for each domain.
type AdoptedList struct {
	Instances []host.Adopted `json:"instances"`
}

// StartInstance says whether a guest that waits may be started all the same.
type StartInstance struct {
	// ConfirmOwnership is an operator's word that the guest is this host's, in a boot in which
	// the fleet's records could not be asked yet; Because is why he knows, and must be given.
	ConfirmOwnership bool   `json:"confirm_ownership,omitempty"`
	Because          string `json:"because,omitempty"`
	By               string `json:"-"` // whose word it is, as CallerWords spells him
}

// StopInstance says how.
type StopInstance = host.StopOptions

// DeleteInstance says what goes with the guest.
type DeleteInstance = host.DeleteOptions

// Deleted tells what a deletion left behind.
type Deleted = host.Deleted

// Claim is a claim without its ticket.
type Claim struct {
	ID        string             `json:"claim"`
	Kind      string             `json:"kind"`
	State     string             `json:"state"`
	Instance  string             `json:"instance"`
	Name      string             `json:"instance_name,omitempty"`
	Migration string             `json:"migration,omitempty"`
	Attempt   int                `json:"attempt,omitempty"`
	Resources topology.Resources `json:"resources"`
	Forced    bool               `json:"forced,omitempty"`
	ByHand    bool               `json:"changed_by_hand,omitempty"` // it followed a change past Berth: not what was asked for
	Lease     time.Duration      `json:"lease,omitempty"`           // nanoseconds, pending claims only
	ExpiresIn time.Duration      `json:"expires_in,omitempty"`      // nanoseconds left of it
	Context   *migration.Context `json:"context,omitempty"`         // the MigrationContext
	WaitsFor  string             `json:"waits_for,omitempty"`       // what an arrival whose conductor is silent waits for
	CreatedAt time.Time          `json:"created_at"`

	// What was asked beyond amounts, and what was given for it.
	Topology   *topology.GuestTopology `json:"numa_topology,omitempty"`
	PCI        []topology.PCIRequest   `json:"pci_requests,omitempty"`
	Assignment topology.Assignment     `json:"assignment,omitzero"`
}

// ClaimList is the answer of GET /v1/claims.
type ClaimList struct {
	Claims []Claim `json:"claims"`
	Usage  Usage   `json:"usage"`
}

// Migrate asks for a guest to be moved, or changed.
type Migrate struct {
	Instance string `json:"instance"` // name or uuid
	// Destination is a provider's name. Empty lets Placement decide; a resize may then
	// stay on the guest's own host, and is asked to by that host's name.
	Destination string `json:"dest_compute,omitempty"`
	Migration   string `json:"uuid,omitempty"` // makes the request safe to repeat
	// MigrationType is live-migration, migration (cold), resize, rebuild or evacuation. Empty
	// for live-migration where the guest runs or is paused, else migration.
	MigrationType string            `json:"migration_type,omitempty"`
	Options       migration.Options `json:"options"` // of a live migration
	// Priority is its place among moves that wait for their turn; 0 for a user's.
	Priority Priority `json:"priority,omitempty"`

	// Flavor is what a resize makes of the guest; FlavorName in its place is a flavor of
	// the host that has the guest.
	Flavor     *topology.Flavor `json:"flavor,omitempty"`
	FlavorName string           `json:"flavor_name,omitempty"`
	// Image is what a rebuilt guest boots from, and what the disks of an evacuated one are
	// made from that no host shares, where its record names none.
	Image *migration.Image `json:"image,omitempty"`

	// ShareNothing asks the agent that is asked to conduct a cold migration or a resize
	// between two hosts that need not reach each other; it is not passed on to the guest's
	// host. Whoever asks needs the right share-nothing here.
	ShareNothing bool `json:"share_nothing,omitempty"`
	// Alternates are hosts that are tried in order when the destination before refuses; of
	// a cold migration, a resize or an evacuation.
	Alternates []string `json:"alternates,omitempty"`

	// Offline refuses a guest that is not shut off, in place of powering it off. Of a
	// cold migration or a resize.
	Offline bool `json:"offline,omitempty"`
	// ShutdownTimeout is how long the guest may take to shut itself down; 0 pulls the
	// plug at once. Nil for what its host is set to.
	ShutdownTimeout *time.Duration `json:"shutdown_timeout,omitempty"` // nanoseconds
	// DiscardSavedState removes the memory that libvirt saved of the instance, before anything
	// else. Without it an instance with saved memory is refused. Not of moves that share nothing,
	// nor of an evacuation.
	DiscardSavedState bool `json:"discard_saved_state,omitempty"`
	// ConfirmWindow is after how long a cold migration or a resize confirms itself; 0 for
	// never. Nil for what the guest's host is set to.
	ConfirmWindow *time.Duration `json:"confirm_window,omitempty"` // nanoseconds

	// Stopped leaves an evacuated guest off, whatever it was. AcceptLoss: what was written to
	// a disk of it that is made anew is lost, and may be.
	Stopped    bool `json:"stopped,omitempty"`
	AcceptLoss bool `json:"accept_data_loss,omitempty"`
}

// MigrationList is the answer of GET /v1/migrations.
type MigrationList struct {
	Migrations []migration.Migration `json:"migrations"`
}

// ErrorBody is the body of every answer that says no.
type ErrorBody struct {
	Error ErrorDetail `json:"error"`
}

// ErrorDetail is what went wrong, for programs and people.
type ErrorDetail struct {
	Kind    fault.Kind     `json:"kind"`
	Message string         `json:"message"`
	Reasons []fault.Reason `json:"reasons"`
}
