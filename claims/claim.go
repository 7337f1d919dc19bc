package claims

import (
	"time"

	"berth/claims/fit"
	"berth/claims/pci"
	"berth/internal/runtime"
	"berth/topology"
)

// Kind says what a claim is for.
type Kind string

// The kinds, as design and Nova name them.
const (
	KindInstance      Kind = "instance"       // a guest that lives here: what it uses
	KindLiveMigration Kind = "live-migration" // one that arrives by live migration
	KindResize        Kind = "resize"         // the other half of a resize or a cold migration: what it will use, or used before
	KindRebuild       Kind = "rebuild"        // the same of a rebuild
	KindEvacuation    Kind = "evacuation"
)

// State is where a claim stands.
//
//	from \ to   pending  arriving     bound                   held                     gone
//	(none)      Claim    –            Adopt, Claim¹           –                        –
//	pending     Renew    Arrive       Bind, Exchange          Hold                     Abort, lease over, host rebooted
//	arriving    –        Arrive²      Bind, Exchange          CancelReturn             Abort³
//	bound       –        –            Bind²                   Hold, ReleaseHeldOwnership,     Release
//	                                                          Exchange, ExchangeBack⁴
//	held        –        AwaitReturn  Exchange, ExchangeBack  Hold²                    Release, Abort⁵
//	                                  ⁴, Retake, Bind⁶
//
// ¹ a claim of kind instance is pending until its domain is defined.
// ² safe to repeat: nothing changes.
// ³ only by a caller who has seen that nothing can arrive any more: the ticket
// is revoked, libvirt has no such domain, and its end was seen; never a source's half
// that waits for its guest.
// ⁴ of one commit that takes two claims: one becomes bound, the other held.
// ⁵ of what a change on one host claimed and does not use.
// ⁶ of a claim whose guest has not left.
type State string

// The states.
const (
	Pending  State = "pending"
	Arriving State = "arriving"
	Bound    State = "bound"
	Held     State = "held"
)

// Owner is who a claim belongs to. Releasing is removing an owner, so it cannot
// be done twice.
type Owner struct {
	Instance  string `json:"instance"`            // domain uuid = Nova's instance uuid = Placement's consumer
	Migration string `json:"migration,omitempty"` // empty for kind instance
	Attempt   int    `json:"attempt,omitempty"`
	Kind      Kind   `json:"kind"`
}

// Claim is an amount of this host held for one owner.
type Claim struct {
	ID        string             `json:"claim"` // uuid
	Owner     Owner              `json:"owner"`
	State     State              `json:"state"`
	Resources topology.Resources `json:"resources"`
	Forced    bool               `json:"forced,omitempty"` // adopted or changed by hand though it does not fit
	Ticket    string             `json:"ticket,omitempty"` // secret that admits this migration's stream; never logged
	Lease     *Lease             `json:"lease,omitempty"`  // pending claims only
	Context   *MigrationContext  `json:"context,omitempty"`
	CreatedAt time.Time          `json:"created_at"`

	// Topology and PCI are what was asked beyond amounts, and Assignment is what
	// was given for it. All three stay as they are for as long as the claim does,
	// whoever owns it by then: the domain document is written from them.
	Topology   *topology.GuestTopology `json:"numa_topology,omitempty"`
	PCI        []topology.PCIRequest   `json:"pci_requests,omitempty"`
	Assignment topology.Assignment     `json:"assignment,omitzero"`

	// Seen is what the guest's document showed when the claim was last held against
	// it; nil before the first time. ByHand says that the claim has followed a change
	// that somebody made past Berth: it is not what was asked for.
	Seen   *Seen `json:"seen,omitempty"`
	ByHand bool  `json:"changed_by_hand,omitempty"`

	// BoundFrom is the migration's owner whose claim became the instance's by
	// Bind; nil for a claim that was the instance's from the start. By it a
	// repeated Bind gives the same answer and a late Abort is refused.
	BoundFrom *Owner `json:"bound_from,omitempty"`
	// Boot is the boot (runtime.BootTime.ID) in which the claim was last made
	// or made arriving.
	Boot string `json:"boot,omitempty"`
}

// Redacted is the claim without its ticket, for logs and for whoever is not
// the claim's conductor.
func (c Claim) Redacted() Claim {
	c.Ticket = ""
	return c
}

// Lease is how long a pending claim lives unless it is renewed, on the boot
// clock. After an agent restart in the same boot each lease starts anew; after
// a reboot the claim is dropped, since nothing can arrive.
type Lease struct {
	Length time.Duration    `json:"length"`
	Until  runtime.BootTime `json:"until"`
}

// Instance is what this host's ledger knows about a guest: enough to start it,
// to move it, and to say who owns it.
type Instance struct {
	UUID      string          `json:"uuid"`
	Name      string          `json:"name"`
	Flavor    topology.Flavor `json:"flavor"`
	ProjectID string          `json:"project_id"`
	UserID    string          `json:"user_id"`
	Autostart bool            `json:"autostart"` // the wish; libvirt's own autostart stays off for managed guests
	Adopted   bool            `json:"adopted,omitempty"`
	Token     Token           `json:"token"`
	CreatedAt time.Time       `json:"created_at"`
	// Hidden: it is not listed unless it is asked for, since another host's record of it is
	// the one that people see. Of two that are not hidden the higher epoch is right.
	Hidden bool `json:"hidden,omitempty"`
	// Images are what its disks were made from, by target. Of a disk that is not named
	// nobody knows.
	Images map[string]Image `json:"images,omitempty"`
}

// Image is what a disk was made from.
type Image struct {
	Path   string `json:"path"` // empty for a disk that was made empty
	Format string `json:"format,omitempty"`
}

// TokenState says where an instance's ownership token is, seen from one ledger.
//
//	from \ to    here                   surrendered      gone
//	(none)       Own (create, adopt)    –                –
//	             AcceptToken (commit)
//	here         AcceptToken¹           ReleaseOwnership        Forget (delete)
//	surrendered  AcceptToken, higher    ReleaseOwnership¹       Forget
//	             epoch only; Retake
//	in doubt     Decide, Restore,       Restore          Forget
//	             AcceptToken
//
// In doubt is a token of a ledger that was lost (see Restore). ¹ safe to repeat with the same epoch.
type TokenState string

// The states.
const (
	TokenHere        TokenState = "here"        // this host alone may start or resume the guest
	TokenSurrendered TokenState = "surrendered" // given away; the epoch names the hand-over
	TokenDoubt       TokenState = "in doubt"    // the ledger was lost, and nobody knows: not started, not moved
)

// Token is the ownership token of an instance. The epoch rises by one with
// every hand-over; of two claims to own a guest the higher epoch is right.
type Token struct {
	Epoch     uint64     `json:"epoch"`
	State     TokenState `json:"state"`
	Holder    string     `json:"holder"`              // host that holds it, or that it was surrendered to
	Migration string     `json:"migration,omitempty"` // the migration of the last hand-over
}

// Capacity is what a host has to give. Free = Total − Reserved, times the
// ratio for vCPUs, memory and disk, minus the sum of claims.
type Capacity struct {
	Total     topology.Resources `json:"total"`
	Reserved  topology.Resources `json:"reserved"`
	CPURatio  float64            `json:"cpu_allocation_ratio"` // 0 and less stand for 1
	RAMRatio  float64            `json:"ram_allocation_ratio"`
	DiskRatio float64            `json:"disk_allocation_ratio"`

	// Cells and Devices are the machine as it would be with no guest; what they
	// say of use is ignored. Without cells no guest with a NUMA topology fits.
	Cells   []fit.Cell   `json:"-"`
	Devices []pci.Device `json:"-"`

	// Unusable are cells and devices that no new claim may touch, because a
	// mandatory fact about them could not be read. What is held there stays, and
	// claims that do not touch them go on.
	Unusable []Unusable `json:"unusable,omitempty"`
}

// Unusable is a cell or a device that no new claim may touch; one of the two is
// named.
type Unusable struct {
	Cell   *topology.CellID     `json:"cell,omitempty"`
	Device *topology.PCIAddress `json:"device,omitempty"`
	Reason string               `json:"reason"` // in an operator's words
}
