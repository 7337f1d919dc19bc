// Package driver is the contract between Berth and a hypervisor.
//
// # Lifecycle
//
// A Driver is made connected or not: it connects by itself, reconnects by
// itself after the hypervisor's daemon went away, and re-subscribes its event
// streams when it does. Close ends it; calls after Close fail with
// fault.Unavailable. All methods may be called from many goroutines.
//
// # What may block, and for how long
//
// Every call takes a context and returns no later than its deadline; where the
// caller gave none the driver sets its own (Options of the implementation;
// 10 s unless told). A hung daemon therefore costs a deadline, never a
// goroutine that nobody waits for. Migrate alone lasts as long as a migration:
// its context bounds the wait for the answer, not the job, which goes on in the
// hypervisor and is found by Job.
//
// # Outcomes
//
// A call that changes something and loses its reply returns fault.InDoubt: it
// may have happened. The caller looks (Domain, XML) before doing anything else.
// A call that only reads returns fault.Unavailable. A domain that does not
// exist is fault.NotFound; "could not ask" is never reported as "not there".
//
// # What is safe to repeat
//
// Everything is: Define with an equal document changes nothing, Start of a
// running domain, Destroy of a stopped one and Undefine of an unknown one
// succeed, and so on; each method says so. One instance has one domain UUID,
// the same as Placement's consumer uuid, on all hosts.
//
// # Units
//
// Bytes are bytes, durations are time.Duration, bandwidths are bytes a second,
// memory_mb is MiB. An implementation converts at its own edge.
//
// # Optional abilities
//
// Live migration, copied storage, post-copy, the agent inside a guest, statistics
// and the host's devices are interfaces of their own. They are found by the
// finders of this package (LiveMigration, PostCopy, …), which ask what the driver's
// code knows and what the hypervisor at its other end can: one driver may be
// connected to hypervisors of different abilities. Nobody asks for a driver's type
// or name.
package driver

import (
	"context"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/topology"
)

// Driver is what every hypervisor can do.
type Driver interface {
	// Node describes the hypervisor and the machine as it sees it.
	Node(ctx context.Context) (Node, error)

	// Domains lists every domain, running or defined. An error means nothing is
	// known; the list is never a part of the truth.
	Domains(ctx context.Context) ([]Domain, error)

	// Domain reads one by UUID; fault.NotFound when the hypervisor says that
	// there is none.
	Domain(ctx context.Context, uuid string) (Domain, error)

	// XML gives a domain's document.
	XML(ctx context.Context, uuid string, what Document) (string, error)

	// Define makes or replaces the persistent definition; a running domain goes
	// on as it is. fault.Invalid when the hypervisor rejects the document.
	Define(ctx context.Context, xml string) error

	// Undefine removes the persistent definition. A running domain becomes
	// transient; a stopped one is gone. Files of the guest's own stay, disks and
	// firmware variables alike: on storage that hosts share they are in use where the
	// guest went. fault.Forbidden, with the reasons of Saved, for a stopped domain of
	// which something is saved. Success when there is no such domain.
	Undefine(ctx context.Context, uuid string) error

	// Saved reads what the hypervisor keeps for a domain beside its definition.
	Saved(ctx context.Context, uuid string) (Saved, error)

	// DiscardSavedMemory removes the saved memory of a domain, so that its next start is a
	// boot. It returns when that is durable. Success when none is saved.
	DiscardSavedMemory(ctx context.Context, uuid string) error

	// Start boots a defined domain; with paused its CPUs stay stopped. Success
	// when it is active already.
	Start(ctx context.Context, uuid string, paused bool) error

	// Suspend stops a running domain's CPUs; success when they are stopped.
	Suspend(ctx context.Context, uuid string) error

	// Resume lets a paused domain's CPUs run; success when they run. Only the
	// holder of the instance's ownership token may ask for it.
	Resume(ctx context.Context, uuid string) error

	// Shutdown asks the guest to power off and returns at once.
	Shutdown(ctx context.Context, uuid string) error

	// Destroy ends a domain's process at once, as pulling the plug does; the
	// definition of a persistent domain stays. Success when it is not active.
	Destroy(ctx context.Context, uuid string) error

	// SetAutostart turns the hypervisor's own autostart on or off.
	SetAutostart(ctx context.Context, uuid string, on bool) error

	// Events gives what happens to domains from now on, until ctx ends, then
	// closes the channel. Events are hints: some may be lost while the daemon
	// is away, and after each reconnection one event of kind EventResync tells
	// the reader to read everything again. A slow reader loses events to a
	// resync, it never blocks the driver.
	Events(ctx context.Context) (<-chan Event, error)

	// Health is nil while the daemon answers, else the reason why not, with
	// since when. It does not block.
	Health() error

	// Close ends connections and event streams and waits for every goroutine of
	// the driver.
	Close() error
}

// Node is the hypervisor's view of its machine.
type Node struct {
	UUID              string   // host uuid of the hypervisor's daemon (libvirt capabilities, host/uuid)
	Hostname          string   // as the daemon gives it
	Hypervisor        string   // "QEMU", "TEST"
	HypervisorVersion Version  // QEMU's
	LibraryVersion    Version  // libvirt's
	Arch              string   // "x86_64"
	CPUModel          string   // host CPU model name; empty when unknown
	Machines          []string // machine types of the host's own architecture, sorted
	Emulated          bool     // no hardware virtualization: QEMU under TCG
	Emulators         []string // programs that the hypervisor runs instances in, of every architecture, sorted
	// Capabilities is what guests can have here; nil where the hypervisor does not
	// tell. CapabilitiesError then says why; with Capabilities it says why the
	// features of the CPU are not among them.
	Capabilities      *topology.Capabilities
	CapabilitiesError string
	// Socket is the unix socket at which the daemon answers, and URI what is opened
	// there; empty where there is none.
	Socket, URI string
	// GuestUser is who the processes of guests are, unless a guest's own document says
	// otherwise; nil where the hypervisor does not tell.
	GuestUser *User
	// Cannot says which optional abilities this hypervisor lacks, and why.
	Cannot map[Ability]string
	// MigrationOptions says which options of a live migration this hypervisor does not
	// know, and why: by the names that package migration/options gives them in JSON; a
	// method of compression as "compression.zstd". What is absent it knows.
	MigrationOptions map[string]string
}

// User is a user of the hypervisor's machine, by number.
type User struct{ UID, GID int }

// Version orders as libvirt's numbers do: major*1,000,000 + minor*1,000 + micro.
type Version uint64

// String is the form that people write, "8.0.0".
func (v Version) String() string {
	return fmt.Sprintf("%d.%d.%d", uint64(v)/1_000_000, uint64(v)/1000%1000, uint64(v)%1000)
}

// Document says which form of a domain's XML is meant.
type Document int

// The forms.
const (
	Live       Document = iota // as it runs (its persistent form when it is not active)
	Persistent                 // as it will start next time
	Migratable                 // live, in the form that a destination accepts; with secrets
)

// Find reads a domain; false when the hypervisor says that there is none. Every other
// failure is fault.Unavailable: what could not be asked is never taken for "not there".
func Find(ctx context.Context, d Driver, uuid string) (Domain, bool, error) {
	dom, err := d.Domain(ctx, uuid)
	switch fault.KindOf(err) {
	case "":
		return dom, true, nil
	case fault.NotFound:
		return Domain{}, false, nil
	}
	return Domain{}, false, fault.New(fault.Unavailable, "read domain %s: %w", uuid, err)
}

// Definition reads the definition of a domain; empty where there is none.
func Definition(ctx context.Context, d Driver, uuid string) (string, error) {
	text, err := d.XML(ctx, uuid, Persistent)
	if fault.KindOf(err) == fault.NotFound {
		return "", nil
	}
	return text, err
}

// Domain is a guest as the hypervisor sees it at one moment.
type Domain struct {
	UUID       string
	Name       string
	ID         int // the hypervisor's number while active, −1 else
	State      State
	Reason     Reason
	Persistent bool
	Autostart  bool
	VCPUs      int   // current
	MemoryMB   int64 // maximum, MiB, rounded up
}

// Active reports whether the domain has a process. A crashed one has: its guest has
// panicked, and its document says that it is kept as it is (on_crash preserve). One
// whose process ended is shut off, for the reason crashed.
func (d Domain) Active() bool {
	return d.State != ShutOff && d.State != NoState
}

// HasLeft reports whether the domain's memory is at a migration's destination and nowhere
// else.
func (d Domain) HasLeft() bool { return d.State == ShutOff && d.Reason == ReasonMigrated }

// InPostCopy reports whether part of the domain's memory is on another host, whichever of the two
// has the domain.
func (d Domain) InPostCopy() bool {
	return d.Active() && (d.Reason == ReasonPostCopy || d.Reason == ReasonPostCopyFailed)
}

// Halfway reports whether the hypervisor has the domain for a migration that is not over.
func (d Domain) Halfway() bool {
	switch {
	case d.Reason == ReasonPostCopy || d.Reason == ReasonPostCopyFailed:
		return true
	case d.State == Paused:
		return d.Reason == ReasonMigrating || d.Reason == ReasonStartingUp
	}
	return false
}

// State is libvirt's virDomainState by name.
type State string

// The states.
const (
	NoState      State = "no state"
	Running      State = "running"
	Blocked      State = "blocked"
	Paused       State = "paused"
	ShuttingDown State = "in shutdown"
	ShutOff      State = "shut off"
	Crashed      State = "crashed"
	PMSuspended  State = "pmsuspended"
)

// Reason is libvirt's reason of a state, spelled as virsh domstate --reason
// does. Neither state nor reason tells who owns a guest: `paused (migrating)`
// is seen on sources, `running (migrated)` beside a second running copy.
type Reason string

// The reasons that decisions depend on; others pass through as virsh spells them.
const (
	ReasonUnknown           Reason = "unknown"
	ReasonBooted            Reason = "booted"
	ReasonMigrated          Reason = "migrated"
	ReasonMigrationCanceled Reason = "migration canceled"
	ReasonUser              Reason = "user"
	ReasonMigrating         Reason = "migrating"
	ReasonStartingUp        Reason = "starting up"
	ReasonPostCopy          Reason = "post-copy"
	ReasonPostCopyFailed    Reason = "post-copy failed"
	ReasonCrashed           Reason = "crashed"
	ReasonShutdown          Reason = "shutdown"
	ReasonDestroyed         Reason = "destroyed"
	ReasonIOError           Reason = "I/O error"
	ReasonUnpaused          Reason = "unpaused"
	ReasonFailed            Reason = "failed"
	ReasonDaemon            Reason = "daemon"
	ReasonShuttingDown      Reason = "shutting down"
	ReasonFromSnapshot      Reason = "from snapshot"
	ReasonRestored          Reason = "restored"
	ReasonSaved             Reason = "saved"
	ReasonSaveCanceled      Reason = "save canceled"
	ReasonWakeup            Reason = "event wakeup"
	ReasonSaving            Reason = "saving"
	ReasonDumping           Reason = "dumping"
	ReasonWatchdog          Reason = "watchdog"
	ReasonSnapshot          Reason = "creating snapshot"
	ReasonAPIError          Reason = "api error"
	ReasonGuestPanicked     Reason = "panicked"
)

// EventKind says what happened.
type EventKind string

// The kinds. An event carries the domain's state after it where the driver
// knows it; a reader that needs certainty asks again.
const (
	EventResync    EventKind = "resync"    // events may have been lost: read everything again; no domain
	EventDefined   EventKind = "defined"   // or redefined
	EventUndefined EventKind = "undefined" // persistent definition gone
	EventStarted   EventKind = "started"
	EventSuspended EventKind = "suspended"
	EventResumed   EventKind = "resumed"
	EventStopped   EventKind = "stopped"
	EventCrashed   EventKind = "crashed"
	// EventChanged: what a domain has is not what it was, running or for its next
	// start: devices, pins, memory, its definition. Not every change brings one
	// (libvirt sends none for a vCPU plugged in).
	EventChanged EventKind = "changed"
	EventOther   EventKind = "other"
	// EventIteration: a migration's job has begun another pass over the memory, whose number
	// is the detail; sent at the source alone.
	EventIteration EventKind = "iteration"
)

// Event is a hint that a domain changed.
type Event struct {
	Kind   EventKind
	UUID   string
	Name   string
	Detail string // libvirt's detail by name, e.g. "migrated"; may be empty
	At     time.Time
}

// LiveMigrator is the ability to move a running domain to another host of the
// same kind.
type LiveMigrator interface {
	// CheckCPU reports whether this host's hypervisor can run a guest with the
	// CPU of the given migratable domain document: nil, or fault.DoesNotFit
	// with one reason for each missing feature (cpu_feature_missing), for another
	// vendor (cpu_vendor_differs), or, where nothing can be named, one of the
	// hypervisor's own words (cpu_incompatible). A guest that has its host's own CPU
	// names none, and is not refused here; a machine type or emulator that is not
	// here is not this method's matter.
	CheckCPU(ctx context.Context, domainXML string) error

	// Migrate sends a running domain and blocks until the hypervisor calls the
	// transfer over. A nil error says only that the hypervisor on this side
	// believes that the destination's copy is complete; with Paused (which
	// Berth's own hand-over always sets) nobody runs the guest then, and this
	// side's domain stands `shut off (migrated)`. fault.InDoubt when the answer
	// was lost or ctx ended: the job may go on, see Job. fault.Undone when the
	// hypervisor rolled back and this side's domain runs on.
	//
	// It must not be repeated while a job is in flight (fault.Busy).
	Migrate(ctx context.Context, uuid string, m Migration) error

	// Job is the state of the job in flight by which the domain leaves this host, or
	// JobNone. Of one by which it arrives the source alone tells.
	Job(ctx context.Context, uuid string) (Job, error)

	// CompletedJob is the statistics of the last completed job of the domain,
	// read once where the hypervisor keeps it; fault.NotFound when there is none.
	CompletedJob(ctx context.Context, uuid string) (Job, error)

	// AbortJob asks the hypervisor to give the job up; the domain runs on here.
	// Success when there is no job. It returns when the order is given, or a
	// little later, not when the job has ended; an implementation whose
	// hypervisor waits for a dead connection ends that connection.
	AbortJob(ctx context.Context, uuid string) error

	// SetMaxDowntime bounds the time for which the guest may stand still, for
	// the job in flight. Success without one. Of the next job it changes nothing: that has
	// what its Migration says.
	SetMaxDowntime(ctx context.Context, uuid string, d time.Duration) error

	// SetBandwidth bounds the rate of the job in flight, bytes a second, 0 for no bound; in
	// post-copy what bounds that. As SetMaxDowntime.
	SetBandwidth(ctx context.Context, uuid string, bytesPerSecond uint64) error
}

// Migration is how a domain is to be sent.
type Migration struct {
	// DestinationURI is the destination's hypervisor as this side's daemon
	// reaches it, e.g. qemu+tls://host-b/system.
	DestinationURI string
	// MigrateURI is where the memory goes, e.g. tcp://192.0.2.2; empty lets the
	// destination say.
	MigrateURI string
	// DisksURI is where copied disks go; empty lets the destination say. Where
	// MigrateURI is a unix socket it must be one too, and at both ends they have the
	// same path.
	DisksURI string
	// DestinationXML is the live document on the destination, PersistentXML
	// what is defined there. Both are required: what is defined must come from
	// the destination's claim too (Nova bug 1890501).
	DestinationXML string
	PersistentXML  string
	// CopyDisks names the targets (vda) of the disks to copy; the destination's
	// files must exist, with the same virtual size. None means none: an empty
	// list never means all.
	CopyDisks []string
	// Paused leaves the destination's copy paused (VIR_MIGRATE_PAUSED).
	Paused bool
	// Unsafe says that shared storage was recognised by Berth itself
	// (filesystem id on both hosts), where libvirt's own list of shared
	// filesystems does not know it.
	Unsafe bool
	// TLS encrypts memory and disks by QEMU's own TLS.
	TLS bool
	// Bandwidth bounds the transfer, bytes a second; 0 for no bound.
	Bandwidth uint64
	// MaxDowntime bounds how long the guest may stand still; 0 for the
	// hypervisor's default.
	MaxDowntime time.Duration
	// ParallelConnections above 1 sends memory by that many connections.
	ParallelConnections int
	// AutoConverge slows the guest when its memory changes faster than it can be sent:
	// by Throttle.Initial per cent of its CPU time first, then by Throttle.Increment more
	// each time; 0 for the hypervisor's own.
	AutoConverge bool
	Throttle     Throttle
	// Compression of memory; the zero value for none.
	Compression Compression
	// ZeroCopy has the kernel send guest memory from where it is; only with
	// ParallelConnections above 1, and QEMU must be allowed to lock all of it.
	ZeroCopy bool
	// SynchronousWrites has the guest wait for the destination with each write to a disk
	// that is being copied, so that the copy ends whatever it writes.
	SynchronousWrites bool
	// DetectZeroes are targets of CopyDisks whose zeroes are left out at the destination.
	DetectZeroes []string
	// PostCopy permits PostCopier.StartPostCopy while it runs, and PostCopyBandwidth bounds
	// the transfer from then on, bytes a second; 0 for no bound. It excludes Paused:
	// fault.Invalid.
	PostCopy          bool
	PostCopyBandwidth uint64
	// AvailableSwitchover is the bandwidth that the hypervisor may count with for the last
	// pass, where it estimates the downtime; bytes a second, 0 for what it measures.
	AvailableSwitchover uint64
}

// Throttle bounds how a guest is slowed down, in per cent of its CPU time.
type Throttle struct{ Initial, Increment int }

// Compression is how memory is packed on its way. A level or number of 0 is the
// hypervisor's own choice.
type Compression struct {
	// Methods are of "xbzrle", "mt", "zlib" and "zstd"; the last two are of parallel
	// connections alone, and exclude each other.
	Methods                       []string
	XBZRLECache                   uint64 // bytes
	Level, Threads, UnpackThreads int    // of mt
	ZlibLevel, ZstdLevel          int
}

// JobKind is libvirt's virDomainJobType by name.
type JobKind string

// The kinds.
const (
	JobNone      JobKind = "none"
	JobBounded   JobKind = "bounded"
	JobUnbounded JobKind = "unbounded"
	JobCompleted JobKind = "completed"
	JobFailed    JobKind = "failed"
	JobCancelled JobKind = "cancelled"
)

// Job is a migration's statistics at one moment. In its first one or two
// seconds a job says unbounded with iteration 0 and nothing remaining (the
// destination still starts): that is not done.
type Job struct {
	Kind            JobKind       `json:"kind"`
	Elapsed         time.Duration `json:"elapsed"`
	Downtime        time.Duration `json:"downtime"` // measured when completed, expected before
	Setup           time.Duration `json:"setup"`
	MemoryTotal     uint64        `json:"memory_total_bytes"`
	MemoryProcessed uint64        `json:"memory_processed_bytes"`
	MemoryRemaining uint64        `json:"memory_remaining_bytes"`
	MemoryRate      uint64        `json:"memory_rate_bytes"`       // bytes a second
	DirtyRate       uint64        `json:"memory_dirty_rate_bytes"` // bytes a second; 0 is often unknown
	Iteration       uint64        `json:"memory_iteration"`
	DiskTotal       uint64        `json:"disk_total_bytes"`
	DiskProcessed   uint64        `json:"disk_processed_bytes"`
	DiskRemaining   uint64        `json:"disk_remaining_bytes"`
	DiskRate        uint64        `json:"disk_rate_bytes"` // bytes a second
	// Throttle is by how much the guest is slowed down, per cent.
	Throttle int `json:"auto_converge_throttle"`
	// PageRequests are those that a destination in post-copy had to ask for.
	PageRequests uint64 `json:"post_copy_requests"`
	Error        string `json:"error,omitempty"`
}

// InFlight reports whether the hypervisor is at the job.
func (j Job) InFlight() bool { return j.Kind == JobBounded || j.Kind == JobUnbounded }
