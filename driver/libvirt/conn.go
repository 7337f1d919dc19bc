package libvirt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// Conn is one connection to one libvirt daemon, and all that this package needs
// of a binding. It speaks libvirt's own numbers and units; what they mean for
// Berth is decided above it, once for all bindings.
//
// Every method may block until the daemon answers or the connection ends: no
// binding of libvirt has deadlines, so they are kept above. Methods may be
// called from many goroutines. A method answers an *Error when libvirt refused,
// ErrLost (wrapped) when the connection ended before the answer came, and
// ErrNotSent (wrapped) when the request certainly did not leave.
//
// Domains are named by UUID in its usual spelling; see UUID.
type Conn interface {
	// Type, versions, host name and capabilities of the daemon.
	Type() (string, error)
	Version() (uint64, error)    // the hypervisor's
	LibVersion() (uint64, error) // the daemon's; also the ping
	Hostname() (string, error)
	Capabilities() (string, error)
	// DomainCapabilities is virConnectGetDomainCapabilities; empty strings mean
	// the daemon's own default.
	DomainCapabilities(emulator, arch, machine, virtType string, flags uint32) (string, error)

	// List gives the domains that virConnectListAllDomains gives for flags.
	List(flags uint32) ([]Ref, error)
	// Stats is virConnectGetAllDomainStats: of all domains that flags choose, the
	// groups of types (virDomainStatsTypes), in one call. What a domain has nothing
	// to say of is left out.
	Stats(types, flags uint32) ([]Stats, error)
	LookupName(name string) (Ref, error)
	LookupUUID(uuid string) (Ref, error)
	State(uuid string) (State, error)
	Info(uuid string) (Info, error)
	IsPersistent(uuid string) (bool, error)
	Autostart(uuid string) (bool, error)
	XML(uuid string, flags uint32) (string, error)

	// HasManagedSave is virDomainHasManagedSaveImage, RemoveManagedSave
	// virDomainManagedSaveRemove; Snapshots and Checkpoints give the names of
	// virDomainListAllSnapshots and virDomainListAllCheckpoints.
	HasManagedSave(uuid string) (bool, error)
	RemoveManagedSave(uuid string) error
	Snapshots(uuid string) ([]string, error)
	Checkpoints(uuid string) ([]string, error)

	Define(xml string) error
	Undefine(uuid string, flags uint32) error
	Create(uuid string, flags uint32) error
	Suspend(uuid string) error
	Resume(uuid string) error
	Shutdown(uuid string) error
	Destroy(uuid string) error
	SetAutostart(uuid string, on bool) error

	// CompareCPU is virConnectCompareHypervisorCPU for the machine, type and
	// emulator of a guest; flags as libvirt's.
	CompareCPU(c CPU, flags uint32) error
	// BaselineHypervisorCPU is virConnectBaselineHypervisorCPU: the best CPU that
	// the hypervisor runs and that all of cpus, each a <cpu> element or a document
	// with one, can be. It asks for the machine, type and emulator of c, whose XML
	// is not looked at.
	BaselineHypervisorCPU(c CPU, cpus []string, flags uint32) (string, error)
	// Migrate is the peer-to-peer virDomainMigrateToURI3. It blocks as long as
	// the migration lasts.
	Migrate(uuid, uri string, params []Param, flags uint32) error
	// JobStats is virDomainGetJobStats: the job's type and its typed
	// parameters, integers as uint64, strings as string.
	JobStats(uuid string, flags uint32) (int, map[string]any, error)
	AbortJob(uuid string, flags uint32) error // virDomainAbortJobFlags
	// StartPostCopy is virDomainMigrateStartPostCopy.
	StartPostCopy(uuid string) error
	// BlockJob is virDomainGetBlockJobInfo of one disk, by its target; found is
	// false when the disk has no job.
	BlockJob(uuid, target string) (info BlockJob, found bool, err error)
	// Agent is virDomainQemuAgentCommand: one command to the agent inside the
	// guest and its answer, as JSON. The daemon waits for the answer no longer than
	// the seconds given. libvirt notes the domain as tainted by it.
	Agent(uuid, command string, seconds int) (string, error)
	// Monitor is virDomainQemuMonitorCommand: one QMP command and its answer, as
	// JSON. libvirt notes the domain as tainted by it.
	Monitor(uuid, command string) (string, error)
	MaxDowntime(uuid string) (milliseconds uint64, err error)
	SetMaxDowntime(uuid string, milliseconds uint64) error
	MaxSpeed(uuid string) (mib uint64, err error)            // before post-copy
	SetMaxSpeed(uuid string, mib uint64, flags uint32) error // virDomainMigrateMaxSpeedFlags

	// Devices names the devices of the host (virConnectListAllNodeDevices),
	// DeviceXML is the document of one.
	Devices() ([]string, error)
	DeviceXML(name string) (string, error)

	// Network, pools, volumes and secrets, by name; libvirt's numbers of errors say what
	// is not there.
	Network(name string) (NetworkInfo, error)
	Pool(name string) (PoolInfo, error)
	StartPool(name string) error
	StopPool(name string) error
	RefreshPool(name string) error
	Volume(pool, name string) (VolumeInfo, error)
	SecretByUUID(uuid string) error
	SecretByUsage(kind int, id string) error // virSecretUsageType

	// Subscribe gives the domains' events, those of EventID, from now on to f, in
	// the order of the daemon, until the connection ends. f does not block. To be
	// called once at most.
	Subscribe(f func(Event)) error
	// SubscribeDevices is Subscribe for the events of the host's devices. Daemons
	// without a driver of devices refuse it.
	SubscribeDevices(f func(DeviceEvent)) error

	// Done is closed when the connection has ended, for whatever reason.
	Done() <-chan struct{}
	// Close ends the connection at once, without asking the daemon: methods that
	// wait return ErrLost.
	Close()
}

// Dialer opens a connection. It returns no later than ctx ends.
type Dialer func(ctx context.Context, t Target) (Conn, error)

// Target is where a daemon is.
type Target struct {
	Socket string // path of a unix socket; empty for drivers inside the process
	URI    string // libvirt's, e.g. qemu:///system
}

// ErrLost says that the connection ended before the answer came: what was asked
// may have happened.
var ErrLost = errors.New("connection to libvirt lost")

// ErrNotSent says that the request did not leave: nothing happened.
var ErrNotSent = errors.New("not connected to libvirt")

// UUID reads a UUID in its usual spelling. What is none names no domain, which is
// said as libvirt says it of one that is unknown.
func UUID(id string) (u [16]byte, err error) {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	if err != nil || len(raw) != len(u) {
		return u, &Error{Code: errNoDomain, Message: fmt.Sprintf("no domain has uuid %q", id)}
	}
	return [16]byte(raw), nil
}

// Error is libvirt's own refusal.
type Error struct {
	Code    int // virErrorNumber
	Message string
}

// Error is libvirt's text and number.
func (e *Error) Error() string { return fmt.Sprintf("%s (libvirt error %d)", e.Message, e.Code) }

// Ref names a domain.
type Ref struct {
	UUID string
	Name string
	ID   int // −1 when not active
}

// State is virDomainState and its reason.
type State struct{ State, Reason int }

// Info is what virDomainGetInfo knows beside the state.
type Info struct {
	MaxMemKiB uint64
	VCPUs     int
}

// CPU is a guest's CPU and where it shall run.
type CPU struct {
	Emulator, Arch, Machine, VirtType string // empty means the daemon's default
	XML                               string // the <cpu> element
}

// Param is one typed parameter of a migration: an int is an INT, a uint64 an
// ULLONG, a string a STRING, as libvirt-domain.h says for each name.
type Param struct {
	Name  string
	Value any
}

// Stats is what one domain has counted, under the names of libvirt-domain.h
// (VIR_DOMAIN_STATS_*, "cpu.time"): integers as uint64, strings as string,
// booleans as bool.
type Stats struct {
	UUID, Name string
	Values     map[string]any
}

// BlockJob is virDomainBlockJobInfo. While a copy is not ready Done is less than
// Total, by libvirt's own doing.
type BlockJob struct {
	Type        int // virDomainBlockJobType
	Done, Total uint64
}

// EventID is virDomainEventID.
type EventID int

// The events that Subscribe gives: what happens to a domain, and what says that
// something that it has is not what it was, and how far a migration is. libvirt has none
// for vCPUs.
const (
	LifecycleEvent              EventID = 0
	BlockJobEvent               EventID = 8 // a job that ends may leave a disk on another file
	DiskChangeEvent             EventID = 9
	BalloonChangeEvent          EventID = 13
	DeviceRemovedEvent          EventID = 15
	TunableEvent                EventID = 17 // pins, shares, block limits
	DeviceAddedEvent            EventID = 19
	MigrationIterationEvent     EventID = 20
	MetadataChangeEvent         EventID = 23
	MemoryDeviceSizeChangeEvent EventID = 26
)

// Event is one of a domain's.
type Event struct {
	ID         EventID
	UUID, Name string
	// Of a LifecycleEvent virDomainEventType and its detail, of a MigrationIterationEvent
	// the iteration.
	Event, Detail int
}

// DeviceEvent is one of a host's device.
type DeviceEvent struct {
	Name  string
	Event int // virNodeDeviceEventLifecycleType, or DeviceUpdated
}

// DeviceUpdated marks VIR_NODE_DEVICE_EVENT_ID_UPDATE, which is no lifecycle event.
const DeviceUpdated = -1

// codeOf is libvirt's error number in err's chain, 0 when there is none.
func codeOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 0
}
