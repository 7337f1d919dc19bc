package migration

import (
	"context"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration/options"
	"berth/migration/turns"
	"berth/placementclient"
	"berth/topology"
)

// Ref names one verb of one attempt of one migration. Every verb and every undo
// carries it: an undo leaves a durable tombstone for (migration, attempt, step)
// and a verb at or below it is refused as fault.Forbidden, so that a message
// that arrives late does nothing.
type Ref struct {
	Migration string `json:"migration"` // uuid, also the migration consumer in Placement
	Instance  string `json:"instance"`  // uuid of domain, instance and consumer
	Attempt   int    `json:"attempt"`   // from 1, one for each destination tried
	Step      string `json:"step"`
}

// Host is one hypervisor host as a conductor sees it: the host verbs. The local
// host implements it over claims and driver (agent/host), a peer over HTTP
// (agent/api). All verbs are safe to repeat with the same Ref: a repeated one
// gives the same answer. All return within ctx. A verb that changes something
// and whose answer was lost is repeated by the conductor, or undone.
type Host interface {
	// Describe says who the host is and what it runs.
	Describe(ctx context.Context) (Description, error)

	// Ask does an operation of package operation, whose Ask gives it its types. The host that is
	// asked does what every operation needs, and wraps its error in the operation's name. It
	// blocks until the operation is done or ctx ends.
	Ask(ctx context.Context, ref Ref, op *Operation, in any) (any, error)
}

// PostCopySource is an ability of a Host whose guests may leave by post-copy, found by a type
// assertion. A source conducts its own live migrations, so that nobody asks it of a peer.
//
// Post-copy is a second job of the same attempt: the first, by which the guest arrives
// paused, has been ended, and its guest has all its memory here. From the moment at which the
// source's domain is in post-copy there is no way back: half of the guest is there.
type PostCopySource interface {
	// EndStream ends the attempt's first job and waits for its end; the guest goes on here.
	// Nil where it has ended. fault.Forbidden where the domain has left by it meanwhile: then
	// the move goes on as if nobody had asked. fault.Unavailable: ask again.
	EndStream(ctx context.Context, ref Ref) error
	// StartPostCopy begins the second job, or adopts the one in flight, and turns it into
	// post-copy as soon as it is under way; that it will is durable before. It returns when
	// the domain is in post-copy, or has left. Its undo is Reclaim, which is
	// fault.Forbidden from then on.
	StartPostCopy(ctx context.Context, ref Ref, s Stream) error
	// RecoverPostCopy goes on with a post-copy that broke: it closes what is left of both
	// ends' connections, makes new ones, and returns when the job is seen in flight again, or
	// over. Nil where nothing is broken. fault.Unavailable: ask again.
	RecoverPostCopy(ctx context.Context, ref Ref, s Stream) error
}

// StreamWaiter is an ability of a Host that is told when its hypervisor's job
// ends: found by a type assertion, used in place of sleeping between two looks.
// The guest stands still from that moment until the token is accepted.
type StreamWaiter interface {
	// AwaitStream returns when the stream's job ends, after d at the latest, or
	// with ctx's cause when ctx ends first. Of a job that ended before, or that
	// this process never watched, it knows nothing and takes all of d.
	AwaitStream(ctx context.Context, ref Ref, d time.Duration) error
}

// Description is who a host is. Field names follow Nova's API and Placement.
type Description struct {
	Name              string `json:"name"`          // the provider's name = the hypervisor's host name
	ProviderUUID      string `json:"provider_uuid"` // root resource provider
	HostUUID          string `json:"host_uuid"`     // libvirt's host uuid
	Mode              string `json:"mode"`          // observe or manage
	Hypervisor        string `json:"hypervisor"`
	HypervisorVersion uint64 `json:"hypervisor_version"` // libvirt's numbers: major*1e6 + minor*1e3 + micro
	LibvirtVersion    uint64 `json:"libvirt_version"`
	BerthVersion      string `json:"berth_version"`
	Arch              string `json:"arch"`
	// CPU is the best that guests can have here; nil where nobody knows, also for
	// agents that did not send it yet: then it is not compared.
	CPU *topology.HypervisorCPU `json:"cpu,omitempty"`
	// LibvirtURI is this host's libvirt as another libvirtd reaches it;
	// MigrateURI where memory and disks go, on [migration] address.
	LibvirtURI string `json:"libvirt_uri"`
	MigrateURI string `json:"migrate_uri"`
	// Transport is how guests come to this host, Transports the ways in which they can
	// leave it. Both empty from agents that did not send them yet: libvirt's own TLS.
	// StreamDir is where its streams' sockets lie, which must be the same on two hosts
	// for a stream between them: libvirt has one path for both ends.
	Transport  Transport   `json:"transport,omitempty"`
	Transports []Transport `json:"transports,omitempty"`
	StreamDir  string      `json:"stream_dir,omitempty"`
	// Providers are all on which a guest of the host may be counted: its tree and the
	// sharing one with its disks. Empty from agents that did not send it yet, and
	// while a host does not know its tree.
	Providers []string `json:"providers,omitempty"`
}

// Transport is how a guest travels between two hosts.
type Transport string

// The transports.
const (
	// TransportStream is by a process of Berth's own on each side.
	TransportStream Transport = "stream"
	// TransportLibvirtTLS is between the two libvirt daemons, and from QEMU to QEMU.
	TransportLibvirtTLS Transport = "libvirt-tls"
)

// PowerState is what the user has chosen, not what a migration does meanwhile.
type PowerState string

// The power states that matter to a move.
const (
	PowerRunning PowerState = "running"
	PowerPaused  PowerState = "paused"
	PowerShutOff PowerState = "shut off"
)

// Guest is what is to be moved.
type Guest struct {
	UUID      string             `json:"uuid"`
	Name      string             `json:"name"`
	Flavor    topology.Flavor    `json:"flavor"`
	Resources topology.Resources `json:"resources"` // its claim on the source
	// Topology is its NUMA topology as it runs: a page size that its flavor left
	// open is the one it has, since memory cannot change its pages while it is
	// sent. Nil for a guest that floats over its host.
	Topology    *topology.GuestTopology `json:"numa_topology,omitempty"`
	PCIRequests []topology.PCIRequest   `json:"pci_requests,omitempty"`
	Assignment  topology.Assignment     `json:"assignment,omitzero"` // what it has of the source
	// Allocations is what its claim holds of the source by provider: what its consumer
	// holds in Placement while it stands still. Nil from agents that did not send it
	// yet: then all is on the source's root.
	Allocations map[string]placementclient.Resources `json:"allocations,omitempty"`
	ProjectID   string                               `json:"project_id"`
	UserID      string                               `json:"user_id"`
	Autostart   bool                                 `json:"autostart"`
	Adopted     bool                                 `json:"adopted"`
	Epoch       uint64                               `json:"epoch"`
	PowerState  PowerState                           `json:"power_state"`
	Persistent  bool                                 `json:"persistent"`
	XML         string                               `json:"xml"`            // live, migratable
	Definition  string                               `json:"definition_xml"` // persistent; empty for a transient domain
	// CPU is the <cpu> element that it has while it runs: XML has the one that it
	// was started with, of which QEMU left out what its host lacks. Empty for a guest
	// that does not run or names no model, and from agents that did not send it yet.
	CPU   string `json:"cpu_xml,omitempty"`
	Disks []Disk `json:"disks"`
	// Variables identifies the file of its firmware's variables, as Disk.Filesystem does. Empty
	// where it has none, and from agents that did not send it yet.
	Variables string `json:"firmware_variables,omitempty"`
}

// Disk is one disk of a guest.
type Disk struct {
	Target      string `json:"target"` // vda
	Path        string `json:"path"`   // file or block device on the source; empty for network disks and empty drives
	Format      string `json:"format"` // raw, qcow2
	VirtualSize int64  `json:"virtual_size_bytes"`
	ActualSize  int64  `json:"actual_size_bytes"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Shareable   bool   `json:"shareable,omitempty"`
	Network     bool   `json:"network,omitempty"` // reached by both hosts through the network (rbd, iscsi, nbd)
	// Filesystem identifies the filesystem and the file on it, where the file is
	// on one that several hosts can mount; equal on two hosts means shared.
	Filesystem string `json:"filesystem,omitempty"`
	// BackingFile is the next file below it in its chain; empty for none.
	BackingFile string `json:"backing_file,omitempty"`
	// Chain are all files below it, the nearest first, but for those that both hosts
	// reach through the network. Nil from agents that did not send it yet.
	Chain []BackingFile `json:"backing_chain,omitempty"`
	// Outside are files in which the image keeps its data apart from its tables.
	Outside []string `json:"data_files,omitempty"`
	// Image is what its host made it from, an empty path for a disk that was made empty. Nil
	// where nobody knows.
	Image *Image `json:"image,omitempty"`
}

// BackingFile is a file below a disk.
type BackingFile struct {
	Path       string `json:"path"`
	Size       int64  `json:"size_bytes"`        // its length
	ActualSize int64  `json:"actual_size_bytes"` // what it occupies
	Filesystem string `json:"filesystem,omitempty"`
}

// CheckRequest is asked of a destination.
type CheckRequest struct {
	Guest  Guest       `json:"guest"`
	Source Description `json:"source"`
	// Kind is the move's type; empty from agents that knew live migrations only. Wanted
	// is what the guest is to be; nil of a live migration. A resize or a rebuild that is
	// asked of the Source itself is one that stays: what the guest holds there counts as
	// free, and that it is there is no hindrance.
	Kind   string  `json:"migration_type,omitempty"`
	Wanted *Wanted `json:"wanted,omitempty"`
	// Options are the move's, merged; zero from agents that did not send them yet.
	// PostCopyAsked: the request itself permits post-copy, so that a guest which cannot have
	// it is refused; where a flavor or the configuration does, post-copy is dropped for it.
	Options       Options `json:"options,omitzero"`
	PostCopyAsked bool    `json:"post_copy_asked,omitempty"`
}

// CheckAnswer is a destination that would take the guest.
type CheckAnswer struct {
	Destination Description `json:"destination"`
	// Disks gives for each of the guest's disks what the destination sees at
	// the same path.
	Disks []DiskView `json:"disks"`
	// Definition gives the same for the disks that stand only in the instance's definition, of a
	// live move; none from agents that did not send it yet.
	Definition []DiskView `json:"definition_disks,omitempty"`
	// WouldClaim is what it would claim now. Told where no migration is named, which
	// is a plan; else nil, and so from agents that did not send it yet.
	WouldClaim *RoomAnswer `json:"would_claim,omitempty"`
	// Kind, Options and PostCopyAsked are the request's: the source's check depends on them.
	// Who asks sets them, for agents that do not give them back.
	Kind          string  `json:"migration_type,omitempty"`
	Options       Options `json:"options,omitzero"`
	PostCopyAsked bool    `json:"post_copy_asked,omitempty"`
	// Dropped is what the destination cannot do of what nobody asked for by name; as
	// SourceAnswer.Dropped.
	Dropped []fault.Reason `json:"dropped,omitempty"`
}

// DiskView is one disk path as the destination sees it.
type DiskView struct {
	Target     string `json:"target"`
	Shared     bool   `json:"shared"`     // the same file on the same filesystem: nothing to copy
	Filesystem string `json:"filesystem"` // see Disk.Filesystem; empty where it does not exist
}

// SourceAnswer is the source's decision about disks.
type SourceAnswer struct {
	CopyDisks []string `json:"copy_disks"` // targets to be copied by libvirt
	Shared    bool     `json:"shared"`     // some disk is on shared storage
	// Dropped are the options that this guest goes without, each with why: those that no
	// request named. At present nothing but post-copy is ever dropped.
	Dropped []fault.Reason `json:"dropped,omitempty"`
}

// PostCopyDropped reports whether a guest goes without post-copy though its options permit it,
// by what either host has dropped.
func PostCopyDropped(dest CheckAnswer, source SourceAnswer) bool {
	return len(dest.Dropped) > 0 || len(source.Dropped) > 0
}

// Context is a MigrationContext on the wire.
type Context struct {
	Source       string             `json:"source_compute"`
	Destination  string             `json:"dest_compute"`
	Conductor    string             `json:"conductor,omitempty"` // host whose agent conducts it; empty for the source
	OldResources topology.Resources `json:"old_resources"`
	NewResources topology.Resources `json:"new_resources"`
	OldFlavor    topology.Flavor    `json:"old_flavor"`
	NewFlavor    topology.Flavor    `json:"new_flavor"`
	PowerState   PowerState         `json:"old_power_state"`

	OldTopology    *topology.GuestTopology `json:"old_numa_topology,omitempty"`
	NewTopology    *topology.GuestTopology `json:"new_numa_topology,omitempty"`
	OldPCIRequests []topology.PCIRequest   `json:"old_pci_requests,omitempty"`
	NewPCIRequests []topology.PCIRequest   `json:"new_pci_requests,omitempty"`
	OldAssignment  topology.Assignment     `json:"old_assignment,omitzero"`
	NewAssignment  topology.Assignment     `json:"new_assignment,omitzero"` // zero until the destination has claimed
}

// ClaimRequest asks a destination to hold a guest's resources.
type ClaimRequest struct {
	Guest   Guest         `json:"guest"`
	Context Context       `json:"context"`
	Lease   time.Duration `json:"lease"`
	// Kind is the move's type; empty for a live migration. A resize or rebuild whose
	// context names one host twice is claimed beside what the guest holds there.
	Kind string `json:"migration_type,omitempty"`
	// Queued: the move can wait, by itself or in its queue. Where as many guests are on their
	// way to this host as [migration] max_inbound allows, it is fault.Busy with the reason
	// CodeInboundLimit, and nothing is held.
	Queued bool `json:"queued,omitempty"`
}

// The reasons by which a move waits for its turn; a destination has one wait by the first.
const (
	CodeInboundLimit  = turns.CodeInbound
	CodeOutboundLimit = turns.CodeOutbound
	CodeLinkLimit     = turns.CodeLink
	// CodeLinkCrowded: one of each host set out towards the other at the same moment, and this
	// one gives way.
	CodeLinkCrowded = "link_crowded"
)

// ClaimAnswer is a claim that is durable.
type ClaimAnswer struct {
	Claim     string             `json:"claim"`
	Resources topology.Resources `json:"resources"`
	Ticket    string             `json:"ticket"`
	Lease     time.Duration      `json:"lease"`
	// Assignment is what the destination chose for the guest.
	Assignment topology.Assignment `json:"assignment,omitzero"`
	// Allocations is the same by provider; nil from agents that did not send it yet:
	// then all is on the destination's root.
	Allocations map[string]placementclient.Resources `json:"allocations,omitempty"`
}

// PreLiveRequest asks a destination to get ready.
type PreLiveRequest struct {
	Guest     Guest    `json:"guest"`
	CopyDisks []string `json:"copy_disks"`
	Source    string   `json:"source_compute"`
	// PostCopy: the guest may come by post-copy, which lets it run here before its memory is
	// whole.
	PostCopy bool `json:"post_copy,omitempty"`
}

// Prepared is a destination that waits for the stream.
type Prepared struct {
	DestinationXML string `json:"destination_xml"`
	PersistentXML  string `json:"persistent_xml"`
	LibvirtURI     string `json:"libvirt_uri"`
	MigrateURI     string `json:"migrate_uri"`
	DisksURI       string `json:"disks_uri,omitempty"`
	// StreamAddress is where the destination's stream process listens, host:port; a
	// host that is left out is the one at which the destination's agent is reached.
	// LibvirtURI is then what is to be opened there. Empty: the guest comes by
	// libvirt's own TLS.
	StreamAddress string `json:"stream_address,omitempty"`
}

// Stream is how the guest is to be sent.
type Stream struct {
	Prepared  Prepared `json:"prepared"`
	Ticket    string   `json:"ticket"`
	CopyDisks []string `json:"copy_disks"`
	Shared    bool     `json:"shared"`
	Options   Options  `json:"options"`
}

// Options are what a user may say about a live migration.
type Options = options.Live

// Tuning changes a job in flight; zero leaves as is.
type Tuning struct {
	Bandwidth   uint64        `json:"bandwidth_bytes,omitempty"`
	MaxDowntime time.Duration `json:"max_downtime,omitempty"`
	// Suspend has the guest's CPUs stand still until its memory is there; the hand-over, or
	// the undo, lets it run again. Of agents that know it.
	Suspend bool `json:"suspend,omitempty"`
}

// StreamStatus is the source's view of its own job and domain.
type StreamStatus struct {
	// InFlight: the hypervisor has a job. Over: the call has returned or the
	// job is gone; then Domain says what came of it.
	InFlight bool       `json:"in_flight"`
	Domain   DomainView `json:"domain"`
	Progress Progress   `json:"progress"`
	Error    string     `json:"error,omitempty"` // what the hypervisor said when the job ended
	// Ledger is the source ledger's word on this migration and attempt.
	Ledger Ledger `json:"ledger"`
	// Left: the source has durably recorded that its domain left by this stream.
	// libvirt forgets the reason of a stopped domain when its daemon restarts,
	// and a transient one leaves no trace at all.
	Left bool `json:"left,omitempty"`
	// Epoch is the source's epoch of the guest's token, wherever the token is; 0 where
	// it is not known, and from agents that did not tell it yet.
	Epoch uint64 `json:"epoch,omitempty"`
	// Settled is the host at which an operator has said that the guest of this attempt
	// is; empty where nobody has.
	Settled string `json:"settled,omitempty"`
	// EndWanted: the end of the attempt's first job was asked for (EndStream), so that a job
	// which is over and a domain that has its memory are no failure of the move.
	EndWanted bool `json:"end_wanted,omitempty"`
	// PostCopy: the attempt's second job has been asked for. All else here is of that one then.
	PostCopy bool `json:"post_copy,omitempty"`
	// Half: the domain was seen in post-copy by it.
	Half bool `json:"half,omitempty"`
}

// DestinationStatus is the destination's view of its own copy.
type DestinationStatus struct {
	Domain DomainView `json:"domain"`
	Ledger Ledger     `json:"ledger"`
	// Claim is the state of the claim that names this migration and attempt:
	// pending, arriving, bound; empty for none.
	Claim string `json:"claim"`
	// Nothing: the host has nothing of the instance at all, by whatever migration: no
	// domain, no claim, no token, no context. False from agents that did not tell it
	// yet.
	Nothing bool `json:"nothing,omitempty"`
	// Epoch is this host's epoch of the guest's token; 0 where it is not known, and from
	// agents that did not tell it yet.
	Epoch uint64 `json:"epoch,omitempty"`
}

// Ledger is what one host's ledger says about the ownership token, seen from
// one attempt of one migration.
type Ledger string

// What a ledger can say.
const (
	LedgerUnknown     Ledger = ""            // not answered
	LedgerHere        Ledger = "here"        // the token is on this host
	LedgerSurrendered Ledger = "surrendered" // given away by the commit of this migration and attempt
	LedgerReclaimed   Ledger = "reclaimed"   // here, and any later Commit of this attempt is refused
	LedgerElsewhere   Ledger = "elsewhere"   // not here, by another hand-over, or never was
	LedgerAccepted    Ledger = "accepted"    // here, by the commit of this migration and attempt: a destination's
)

// DomainView is a domain as one host's hypervisor reports it.
type DomainView struct {
	Exists bool   `json:"exists"`
	State  string `json:"state"`  // virsh's words: running, paused, shut off
	Reason string `json:"reason"` // virsh's words: migrated, user, migrating
}

// Progress is what a person watching wants to know. Names follow Nova's API.
type Progress struct {
	Phase           string        `json:"phase"` // setup, memory, disk, switchover, post-copy, post-copy failed
	Elapsed         time.Duration `json:"elapsed"`
	MemoryTotal     uint64        `json:"memory_total_bytes"`
	MemoryProcessed uint64        `json:"memory_processed_bytes"`
	MemoryRemaining uint64        `json:"memory_remaining_bytes"`
	DiskTotal       uint64        `json:"disk_total_bytes"`
	DiskProcessed   uint64        `json:"disk_processed_bytes"`
	DiskRemaining   uint64        `json:"disk_remaining_bytes"`
	Rate            uint64        `json:"rate_bytes"`       // bytes a second, memory and disk
	DirtyRate       uint64        `json:"dirty_rate_bytes"` // bytes a second, smoothed; 0 when unknown
	Iteration       uint64        `json:"iteration"`
	Downtime        time.Duration `json:"downtime"` // expected by the hypervisor, or measured when over
	// Remaining is how long it will still take; 0 for unknown. Never: it does not end by
	// itself, since memory changes as fast as it is sent.
	Remaining time.Duration `json:"remaining,omitempty"`
	Never     bool          `json:"never,omitempty"`
	// ExpectedDowntime is for how long the guest would stand still, if the rest were sent
	// now; 0 for unknown.
	ExpectedDowntime time.Duration `json:"expected_downtime,omitempty"`
	Stalls           int           `json:"stalls,omitempty"`   // passes in a row that came no nearer to the end
	Throttle         int           `json:"throttle,omitempty"` // by how much the guest is slowed down, per cent
	PageRequests     uint64        `json:"post_copy_requests,omitempty"`
	// Next is what will be done about the transfer if it goes on as it does, in words; empty
	// for nothing.
	Next string `json:"next,omitempty"`
}

// Commit is the source's durable record that the token has left it: the point of no return. It is
// on the source's disk before anybody sees it.
type Commit struct {
	Instance  string     `json:"instance"`
	Migration string     `json:"migration"`
	Attempt   int        `json:"attempt"`
	Epoch     uint64     `json:"epoch"` // what the receiver gets
	From      string     `json:"source_compute"`
	To        string     `json:"dest_compute"`
	Power     PowerState `json:"power_state,omitempty"` // what the user had chosen when it left; the instance is resumed unless paused
	// Seal proves that From has written it, to a receiver that only its conductor talks to;
	// nil where the source conducts.
	Seal *Seal `json:"seal,omitempty"`
}

// Ref is the attempt that the commit is of; it names no step.
func (c Commit) Ref() Ref {
	return Ref{Migration: c.Migration, Instance: c.Instance, Attempt: c.Attempt}
}

// Seal is a host's signature, with its key, over a record that others carry.
type Seal struct {
	Chain     [][]byte  `json:"chain"` // the host's certificate and those between it and the CA, DER
	Signature []byte    `json:"signature"`
	At        time.Time `json:"at"` // of the signing: when the certificate had to be valid
}

// Counts reports whether a guest of the host may be counted on a provider.
func (d Description) Counts(rp string) bool {
	return rp == d.ProviderUUID || slices.Contains(d.Providers, rp)
}
