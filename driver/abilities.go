package driver

import (
	"context"
	"fmt"
	"time"

	"berth/internal/fault"
)

// Ability names one of the optional interfaces. That a Driver's type has the
// methods says only that its code knows how; whether the hypervisor at the other
// end can is in Node.Cannot, read from the hypervisor itself. The finders of this
// file ask both, so nobody needs to know which driver it is.
type Ability string

// The abilities, each with the interface that it stands for.
const (
	AbilityLiveMigration Ability = "live_migration"     // LiveMigrator
	AbilityStorageCopy   Ability = "storage_copy"       // StorageCopier
	AbilityPostCopy      Ability = "post_copy"          // PostCopier
	AbilityGuestAgent    Ability = "guest_agent"        // GuestAgent
	AbilityStatistics    Ability = "statistics"         // Statistician
	AbilityDevices       Ability = "devices"            // DeviceWatcher
	AbilityConnections   Ability = "connections"        // Connector
	AbilityRecovery      Ability = "post_copy_recovery" // PostCopyRecoverer
)

// Abilities lists them all, in the order of this file.
func Abilities() []Ability {
	return []Ability{
		AbilityLiveMigration, AbilityStorageCopy, AbilityPostCopy, AbilityGuestAgent, AbilityStatistics, AbilityDevices,
		AbilityConnections, AbilityRecovery,
	}
}

// LiveMigration finds the ability to live-migrate. n is what d.Node gave;
// fault.Forbidden, with the reason no_live_migration, where it is missing.
func LiveMigration(d Driver, n Node) (LiveMigrator, error) {
	return find[LiveMigrator](d, n, AbilityLiveMigration)
}

// StorageCopy finds the ability to copy disks on the way; as LiveMigration.
func StorageCopy(d Driver, n Node) (StorageCopier, error) {
	return find[StorageCopier](d, n, AbilityStorageCopy)
}

// PostCopy finds the ability to start a guest before its memory is whole; as
// LiveMigration.
func PostCopy(d Driver, n Node) (PostCopier, error) {
	return find[PostCopier](d, n, AbilityPostCopy)
}

// PostCopyRecovery finds the ability to go on with a broken post-copy; as LiveMigration.
func PostCopyRecovery(d Driver, n Node) (PostCopyRecoverer, error) {
	return find[PostCopyRecoverer](d, n, AbilityRecovery)
}

// Agent finds the ability to talk with the agent inside a guest; as
// LiveMigration. Whether one guest has such an agent is that guest's matter.
func Agent(d Driver, n Node) (GuestAgent, error) {
	return find[GuestAgent](d, n, AbilityGuestAgent)
}

// Statistics finds the ability to count what guests use; as LiveMigration.
func Statistics(d Driver, n Node) (Statistician, error) {
	return find[Statistician](d, n, AbilityStatistics)
}

// Devices finds the ability to tell of the host's devices; as LiveMigration.
func Devices(d Driver, n Node) (DeviceWatcher, error) {
	return find[DeviceWatcher](d, n, AbilityDevices)
}

// Connections finds the ability to tell of what guests are connected to; as
// LiveMigration.
func Connections(d Driver, n Node) (Connector, error) {
	return find[Connector](d, n, AbilityConnections)
}

func find[I any](d Driver, n Node, a Ability) (I, error) {
	able, ok := d.(I)
	why, cannot := n.Cannot[a]
	switch {
	case !ok:
		why = "the driver has no such ability"
	case !cannot:
		return able, nil
	}
	var none I
	return none, fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "no_" + string(a), Message: fmt.Sprintf("the hypervisor of %s has no %s: %s", n.Hostname, a, why), Have: n.Hypervisor,
	})
}

// StorageCopier is the ability of a LiveMigrator to send disks too
// (Migration.CopyDisks), and to tell how far each copy is.
type StorageCopier interface {
	// DiskCopies reads the copies in flight of a domain's disks, by target
	// ("vda"). A disk that is not being copied is absent; without any the map is
	// empty. fault.NotFound when there is no such domain.
	DiskCopies(ctx context.Context, uuid string) (map[string]DiskCopy, error)
}

// DiskCopy is how far the copy of one disk is. Ready is not the end: writes of
// the guest are copied on until the memory has been sent.
type DiskCopy struct {
	Total  uint64 // bytes to copy, which grows with what the guest writes
	Copied uint64 // bytes
	Ready  bool   // everything is there; what is written now goes to both
}

// PostCopier is the ability to let a guest run at the destination before all its
// memory has arrived. From that moment neither side alone has the whole guest:
// there is no way back, and a lost connection stops it until it is recovered.
type PostCopier interface {
	// StartPostCopy turns the migration in flight, which must have been begun with
	// Migration.PostCopy, into post-copy. It returns when the hypervisor has taken
	// the order, not when the guest runs there. fault.Invalid where there is no
	// such migration. To be repeated only after a look at Job and Domain: a second
	// order in post-copy changes nothing and may be refused as fault.Invalid.
	StartPostCopy(ctx context.Context, uuid string) error
}

// PostCopyRecoverer is the ability of a PostCopier to go on with a post-copy whose connection
// broke, from where it stopped. Before: the source's domain is `paused (post-copy failed)`,
// the destination's `running` or `paused (post-copy failed)`.
type PostCopyRecoverer interface {
	// FailPostCopy breaks a post-copy whose connection is dead and which the hypervisor has
	// not noticed, and waits, within ctx, until this side is `paused (post-copy failed)`.
	// Success where it is that already. fault.Invalid where there is no post-copy. The call
	// that sent the guest goes on until the destination has noticed too.
	FailPostCopy(ctx context.Context, uuid string) error

	// RecoverPostCopy goes on with it, by the same addresses as Migrate had, and blocks as
	// Migrate does until all memory has been sent: then this side is `shut off (migrated)`.
	// fault.InDoubt when the connection broke once more (this side is `paused (post-copy
	// failed)` again), the destination has not noticed yet, or the answer was lost. It may go
	// on all the same: libvirt can give up one that has just gone on, calls it failed on this
	// side alone, and refuses each further call, while memory comes by the connections that it
	// made. Whoever can ends those before the next call; else it comes to its end by itself.
	// fault.Invalid where nothing failed; fault.Busy while the hypervisor still has the job
	// in flight, or a call that sends the guest has not ended.
	RecoverPostCopy(ctx context.Context, uuid string, m Migration) error
}

// GuestAgent is the ability to ask the QEMU guest agent, a process inside the
// guest that its owner installed. A guest without one that answers is
// fault.Unavailable; a guest that is not running is fault.Invalid. Each call
// waits for the guest no longer than its context and then is fault.InDoubt, where
// it changes something.
type GuestAgent interface {
	// PingAgent is nil when the agent answers.
	PingAgent(ctx context.Context, uuid string) error

	// FreezeFilesystems flushes and freezes the guest's filesystems and says how
	// many. Frozen ones may be frozen again only after Thaw; some agents refuse it.
	FreezeFilesystems(ctx context.Context, uuid string) (int, error)

	// ThawFilesystems ends that, and says how many. Safe to repeat.
	ThawFilesystems(ctx context.Context, uuid string) (int, error)
}

// Statistician is the ability to count what guests use.
type Statistician interface {
	// Statistics reads all active domains at once, without waiting for one that
	// is busy: what such a one could not tell is zero. An error means that nothing
	// is known.
	Statistics(ctx context.Context) ([]Usage, error)
}

// Usage is what one active domain uses at one moment. Counters rise from the
// domain's start, and begin anew on each host that it comes to.
type Usage struct {
	UUID, Name  string
	State       State
	CPUTime     time.Duration // of vCPUs and emulator together
	VCPUs       int           // plugged in
	VCPUsMax    int
	Memory      uint64 // bytes that the guest has at present (the balloon's)
	MemoryMax   uint64 // bytes
	RSS         uint64 // bytes of the host that the process has resident
	DiskRead    uint64 // bytes, all disks
	DiskWritten uint64
	Received    uint64 // bytes, all interfaces
	Sent        uint64
}

// DeviceWatcher is the ability to tell of the host's devices.
type DeviceWatcher interface {
	// HostDevices lists the host's devices as the hypervisor's daemon knows them.
	HostDevices(ctx context.Context) ([]HostDevice, error)

	// DeviceEvents tells of devices that come, go and change, under the terms of
	// Driver.Events: hints, a resync after each connection, closed when ctx ends.
	DeviceEvents(ctx context.Context) (<-chan DeviceEvent, error)
}

// HostDevice is one device of the host.
type HostDevice struct {
	Name   string // the daemon's, e.g. pci_0000_3b_00_0
	Parent string
	Kind   string // first capability: "pci", "net", "mdev", …
	PCI    string // address 0000:3b:00.0; empty for others
	Driver string // kernel driver bound to it; empty for none
}

// DeviceEvent is a hint that a device changed.
type DeviceEvent struct {
	Kind DeviceEventKind
	Name string // as HostDevice.Name; empty for a resync
	At   time.Time
}

// DeviceEventKind says what happened to a device.
type DeviceEventKind string

// The kinds.
const (
	DeviceResync  DeviceEventKind = "resync" // read everything again
	DeviceAdded   DeviceEventKind = "added"
	DeviceRemoved DeviceEventKind = "removed"
	DeviceChanged DeviceEventKind = "changed"
)

// Connector is the ability to tell of what guests are connected to beside the host
// itself: the hypervisor's networks, storage pools and secrets. What is not there is
// fault.NotFound; a hypervisor whose daemon has no driver of such things refuses with
// fault.Invalid.
type Connector interface {
	// Network reads a network by its name.
	Network(ctx context.Context, name string) (Network, error)

	// Pool reads a storage pool by its name.
	Pool(ctx context.Context, name string) (Pool, error)

	// OpenPool makes a pool active, where it is not, and reads anew what is in it. Safe
	// to repeat.
	OpenPool(ctx context.Context, name string) error

	// ClosePool makes a pool inactive; what is in it stays. Success when it is not
	// active. A transient pool, which would be gone then, is fault.Invalid.
	ClosePool(ctx context.Context, name string) error

	// Volume reads a volume of an active pool. Of one that is not active it is
	// fault.Invalid.
	Volume(ctx context.Context, pool, name string) (Volume, error)

	// Secret is nil when the hypervisor has that secret; of its value nothing is asked.
	Secret(ctx context.Context, s SecretRef) error
}

// Network is one of the hypervisor's networks.
type Network struct {
	Name       string
	Active     bool
	Autostart  bool
	Bridge     string // that guests are plugged into; empty where there is none
	PortGroups []string
}

// Pool is a storage pool.
type Pool struct {
	Name       string
	Active     bool
	Autostart  bool
	Persistent bool
	Type       string // dir, netfs, logical, iscsi, rbd, …
	Path       string // below which its volumes are; empty where they have no path
}

// Volume is a volume of a pool.
type Volume struct {
	Name     string
	Path     string // or what stands for one; empty for none
	Capacity int64  // bytes
}

// SecretRef names a secret: by its UUID, or by what it is for.
type SecretRef struct {
	UUID  string
	Type  string // volume, ceph, iscsi, tls, vtpm
	Usage string // of that type
}
