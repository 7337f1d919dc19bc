package config

import (
	"cmp"
	"path/filepath"
	"time"

	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/migration/options"
	"berth/topology"
)

// DefaultPath is where the configuration stands unless the command line says
// otherwise.
const DefaultPath = "/etc/berth/berth.toml"

// Config is everything an operator can set.
type Config struct {
	Agent     Agent             `toml:"agent"`
	PKI       PKI               `toml:"pki"`
	Host      Host              `toml:"host"`
	PCI       PCI               `toml:"pci"`
	Devices   Devices           `toml:"devices"`
	Libvirt   Libvirt           `toml:"libvirt"`
	Placement Placement         `toml:"placement"`
	Migration Migration         `toml:"migration"`
	Drain     Drain             `toml:"drain"`
	Fleet     Fleet             `toml:"fleet"`
	Guard     Guard             `toml:"guard"`
	Rights    Rights            `toml:"rights"`
	Metrics   Metrics           `toml:"metrics"`
	Web       Web               `toml:"web"`
	Peers     map[string]string `toml:"peers"` // provider's name → host:port, where the name itself is not the address
	Hooks     map[string]Hook   `toml:"hooks"` // "<phase>/NN-name" → how to run it
}

// Mode says whether an agent acts.
type Mode string

// The modes.
const (
	// Observe discovers, reads and shows, and writes nothing to libvirt,
	// Placement or hooks.
	Observe Mode = "observe"
	// Manage owns the host's guests and its provider in Placement.
	Manage Mode = "manage"
)

// Agent is the daemon itself.
type Agent struct {
	Mode        Mode   `toml:"mode"`
	Name        string `toml:"name"`         // the provider's name; empty for the machine's host name, by which libvirt goes too
	StateDir    string `toml:"state_dir"`    // berth.db, provider_uuid, lock
	RuntimeDir  string `toml:"runtime_dir"`  // the socket and owner files
	Socket      string `toml:"socket"`       // empty for berth.sock in RuntimeDir
	SocketGroup string `toml:"socket_group"` // may use the socket beside root; a group that does not exist is root alone
	Listen      string `toml:"listen"`       // for peers and operators, over mutual TLS; empty for none
	FlavorsDir  string `toml:"flavors_dir"`
	HooksDir    string `toml:"hooks_dir"`
	LogLevel    string `toml:"log_level"` // debug, info, warn, error
	// AuditLog is a file of JSON lines: who asked for which change, and what came of it.
	// Empty for the agent's own log.
	AuditLog string `toml:"audit_log"`
}

// SocketPath is where the local API listens.
func (a Agent) SocketPath() string {
	if a.Socket != "" {
		return a.Socket
	}
	return filepath.Join(a.RuntimeDir, "berth.sock")
}

// PKI is where this host's identity lies.
type PKI struct {
	CA   string `toml:"ca"`
	Cert string `toml:"cert"`
	Key  string `toml:"key"`
}

// Host is what the machine has and keeps for itself.
type Host struct {
	Root             string `toml:"root"`               // the folder that holds sys and proc
	ReservedVCPUs    int    `toml:"reserved_vcpus"`     // kept from guests; not beside a CPU set
	ReservedMemoryMB int64  `toml:"reserved_memory_mb"` // MiB kept from guests
	ReservedDiskGB   int64  `toml:"reserved_disk_gb"`   // GiB kept from guests

	// DedicatedCPUs may be pinned, SharedCPUs are what other vCPUs float over
	// (Nova's cpu_dedicated_set and cpu_shared_set). Both empty: every CPU is
	// shared. One empty: there are none of its kind. What stands in neither is the
	// host's own.
	DedicatedCPUs topology.CPUSet `toml:"dedicated_cpus"`
	SharedCPUs    topology.CPUSet `toml:"shared_cpus"`

	ReservedPages []ReservedPages `toml:"reserved_hugepages"`
	DiskPath      string          `toml:"disk_path"`   // its filesystem is DISK_GB; where disks of new guests are made
	SharedDirs    []string        `toml:"shared_dirs"` // that other hosts see, whatever their filesystem
	// HostsWithoutBerth are hosts of Placement on which Berth does not run, and which use none of
	// this host's disk files: their silence keeps no file.
	HostsWithoutBerth []string `toml:"hosts_without_berth"`

	DiscoverEvery Duration `toml:"discover_interval"` // slow full re-read of the hardware
}

// ReservedPages are memory pages of one cell that no guest gets (Nova's
// reserved_huge_pages): those of a virtual switch, for one.
type ReservedPages struct {
	Node  topology.CellID `toml:"node"`
	Size  PageSize        `toml:"size"`
	Count int64           `toml:"count"`
}

// PCI says which functions guests may have, and under which names flavors ask
// for them.
type PCI struct {
	DeviceSpec []pci.Spec     `toml:"device_spec"`
	Alias      []flavor.Alias `toml:"alias"`
}

// Devices says which mediated devices guests may have.
type Devices struct {
	MdevTypes []MdevType `toml:"mdev_types"`
}

// MdevType is one type of mediated devices; the keys are those of Nova's
// [mdev_TYPE].
type MdevType struct {
	Type      string                `toml:"type"`             // "nvidia-35", as in mdev_supported_types
	Addresses []topology.PCIAddress `toml:"device_addresses"` // functions that make it; empty for every one that can and is not named otherwise
	Class     string                `toml:"mdev_class"`       // VGPU or CUSTOM_…; empty for VGPU
	Max       int                   `toml:"max_instances"`    // of one function; 0 for as many as its driver makes
}

// Libvirt is how the hypervisor is reached.
type Libvirt struct {
	Socket string `toml:"socket"` // empty: found by itself, virtqemud's before libvirtd's
	URI    string `toml:"uri"`
	// Definitions is the folder where libvirt keeps persistent definitions; empty for the one that
	// goes with URI, /etc/libvirt/qemu for qemu:///system.
	Definitions string   `toml:"definitions"`
	Timeout     Duration `toml:"timeout"`  // of one call
	PeerURI     string   `toml:"peer_uri"` // this host's libvirt as another libvirtd reaches it; {name} is the provider's name
}

// How the agent says to Placement who it is.
const (
	AuthToken    = "token"    // the token that is set; for an embedded one, or noauth2
	AuthKeystone = "keystone" // a token of Keystone's
)

// DefaultPlacement is where an embedded Placement listens.
const DefaultPlacement = "http://127.0.0.1:8778"

// Placement is the service that the rest of the cloud sees this host by.
type Placement struct {
	URL   string `toml:"url"`   // empty: DefaultPlacement, or with Keystone what its catalogue says
	Auth  string `toml:"auth"`  // AuthToken or AuthKeystone
	Token string `toml:"token"` // sent as X-Auth-Token; a secret; not with Keystone

	// With Keystone: an entry of clouds.yaml, or empty for what the OS_* variables
	// say; the file, or empty for the usual places; and which of Placement's
	// endpoints, or empty for what the cloud says.
	Cloud      string `toml:"cloud"`
	CloudsFile string `toml:"clouds_file"`
	Region     string `toml:"region"`
	Interface  string `toml:"interface"`

	Timeout  Duration `toml:"timeout"`
	Interval Duration `toml:"interval"` // between two comparisons
	// AuditInterval is between two audits of the allocations, give or take a tenth.
	AuditInterval Duration `toml:"audit_interval"`
	ProjectID     string   `toml:"project_id"`
	UserID        string   `toml:"user_id"`
	// A ratio of 0 is unset: then what stands in Placement is kept, and the
	// initial one is used where nothing stands there.
	CPURatio         float64 `toml:"cpu_allocation_ratio"`
	RAMRatio         float64 `toml:"ram_allocation_ratio"`
	DiskRatio        float64 `toml:"disk_allocation_ratio"`
	InitialCPURatio  float64 `toml:"initial_cpu_allocation_ratio"`
	InitialRAMRatio  float64 `toml:"initial_ram_allocation_ratio"`
	InitialDiskRatio float64 `toml:"initial_disk_allocation_ratio"`

	NUMA              NUMA   `toml:"numa"`                // the shape of the host's provider tree
	ProviderConfigDir string `toml:"provider_config_dir"` // Nova's provider config files, *.yaml
}

// NUMA is the shape of the host's provider tree.
type NUMA string

// The shapes.
const (
	NUMAFlat   NUMA = "flat"   // CPUs, memory and disk on the host's own provider
	NUMANested NUMA = "nested" // CPUs, memory and devices below a provider for each NUMA node
)

// Endpoint is Placement's URL, or empty where Keystone's catalogue is to be asked.
func (p Placement) Endpoint() string {
	if p.URL == "" && p.Auth != AuthKeystone {
		return DefaultPlacement
	}
	return p.URL
}

// How guests come to this host.
const (
	// TransportStream is a process of Berth's own for each migration.
	TransportStream = "stream"
	// TransportLibvirtTLS is libvirt's own TLS between the two libvirt daemons.
	TransportLibvirtTLS = "libvirt-tls"
)

// Migration bounds moves.
type Migration struct {
	Transport string `toml:"transport"` // of guests that come here; those that leave go by their destination's
	TLS       bool   `toml:"tls"`       // with libvirt-tls: encrypt memory and disks too, with QEMU's own TLS
	Address   string `toml:"address"`   // where guests arrive on this host; empty for every address, or libvirt's choice
	Ports     Ports  `toml:"ports"`     // of streams; empty for any
	// The options of live migrations, for moves that do not say themselves, and of the
	// bandwidth for cold ones too; see package options. What is false, zero or empty says
	// nothing.
	Bandwidth             Rate     `toml:"bandwidth"`
	PostCopyBandwidth     Rate     `toml:"postcopy_bandwidth"`
	AvailableSwitchover   Rate     `toml:"available_switchover_bandwidth"`
	MaxDowntime           Duration `toml:"max_downtime"`
	DowntimeSteps         int      `toml:"downtime_steps"`
	DowntimeDelay         Duration `toml:"downtime_delay"`
	AutoConverge          bool     `toml:"auto_converge"`
	AutoConvergeInitial   int      `toml:"auto_converge_initial"`
	AutoConvergeIncrement int      `toml:"auto_converge_increment"`
	Parallel              int      `toml:"parallel_connections"`
	ZeroCopy              bool     `toml:"zero_copy"`
	Compression           []string `toml:"compression"`
	XBZRLECache           Size     `toml:"xbzrle_cache"`
	MTLevel               int      `toml:"compression_mt_level"`
	MTThreads             int      `toml:"compression_mt_threads"`
	MTUnpack              int      `toml:"compression_mt_dthreads"`
	ZlibLevel             int      `toml:"compression_zlib_level"`
	ZstdLevel             int      `toml:"compression_zstd_level"`
	Timeout               Duration `toml:"timeout"`
	TimeoutPerGiB         Duration `toml:"timeout_per_gib"`
	TimeoutAction         string   `toml:"timeout_action"`
	StallTimeout          Duration `toml:"stall_timeout"`
	PostCopy              bool     `toml:"post_copy"`
	CopyStorage           string   `toml:"copy_storage"`
	SynchronousWrites     bool     `toml:"copy_storage_synchronous_writes"`
	DetectZeroes          bool     `toml:"migrate_disks_detect_zeroes"`
	Schedule              string   `toml:"schedule"`
	Observe               bool     `toml:"observe_schedule"`

	// What a domain XML that comes from another host may name of this one, beside what it may
	// anyway; see package agent/host/admission.
	AllowedPaths       []string `toml:"allowed_paths"`
	AllowedEmulators   []string `toml:"allowed_emulators"`
	AllowedLabels      []string `toml:"allowed_labels"` // MODEL:LABEL, or MODEL:none
	AllowQEMUArguments bool     `toml:"allow_qemu_arguments"`

	// AttemptTimeout bounds one attempt of a move; 0 for 800 s for each GiB of the
	// guest's memory and disks, of at least two.
	AttemptTimeout Duration `toml:"attempt_timeout"`
	ClaimLease     Duration `toml:"claim_lease"` // of a claim that this host, as the source, holds at a destination
	// ResizeConfirmWindow is after how long a resize or cold migration of a guest of this
	// host confirms itself; 0 for never.
	ResizeConfirmWindow Duration `toml:"resize_confirm_window"`
	// ShutdownTimeout is how long a guest is given to shut itself down before it is moved
	// or changed while it is off, where neither request nor flavor say; 0 pulls the plug
	// at once.
	ShutdownTimeout Duration `toml:"shutdown_timeout"`
	// ConductorSilence is after how long without a word of a move's conductor, which is a
	// third host, this host takes a guest back that it has powered off and not handed over.
	ConductorSilence Duration `toml:"conductor_silence"`
	// MaxInbound is how many guests are on their way to this host, and MaxOutbound how many
	// leave it, before one more waits for its turn; MaxPerLink how many are on their way
	// between it and any one other host, 0 for no bound.
	MaxInbound  int `toml:"max_inbound"`
	MaxOutbound int `toml:"max_outbound"`
	MaxPerLink  int `toml:"max_per_link"`
	// NearWeight is what it counts, where Placement chooses a destination, that a host
	// shares an aggregate with the one that the guest leaves: below 0 such hosts go last,
	// and 0 is for no matter. NearWeightByAggregate, by an aggregate's uuid, stands in its
	// place for hosts in that aggregate; of several the smallest counts.
	NearWeight            float64            `toml:"near_weight"`
	NearWeightByAggregate map[string]float64 `toml:"near_weight_by_aggregate"`
}

// Fleet is where the records of all hosts are, by which a guest is evacuated from a dead one.
type Fleet struct {
	// Etcd are the URLs of the members' client ports. Empty: the records are beside an embedded
	// Placement, at placement.url; with OpenStack's there are none.
	Etcd     []string `toml:"etcd"`
	EtcdCA   string   `toml:"etcd_ca"`   // with https; empty for pki.ca
	EtcdCert string   `toml:"etcd_cert"` // with https; empty for pki.cert
	EtcdKey  string   `toml:"etcd_key"`  // with https; empty for pki.key
	EtcdUser string   `toml:"etcd_user"` // where etcd asks for a name and a password
	// EtcdPasswordFile is a file with the password of EtcdUser, white space at its ends left out.
	EtcdPasswordFile string   `toml:"etcd_password_file"`
	Lease            Duration `toml:"lease"` // how long this host counts as alive after its last word; whole seconds
	// SelfFence is the device of a watchdog that resets this host before its lease is over, or
	// the unix socket of a daemon that does; empty for none.
	SelfFence        string   `toml:"self_fence"`
	SelfFenceTimeout Duration `toml:"self_fence_timeout"` // of the watchdog; whole seconds
}

// FleetCA, FleetCert and FleetKey are the files with which etcd is talked to over https.
func (c Config) FleetCA() string { return cmp.Or(c.Fleet.EtcdCA, c.PKI.CA) }

// FleetCert is this host's certificate; see FleetCA.
func (c Config) FleetCert() string { return cmp.Or(c.Fleet.EtcdCert, c.PKI.Cert) }

// FleetKey is the certificate's key; see FleetCA.
func (c Config) FleetKey() string { return cmp.Or(c.Fleet.EtcdKey, c.PKI.Key) }

// What becomes of an arrival that no claim announces while the agent is down.
const (
	ArrivalsRefuse = "refuse"
	ArrivalsAllow  = "allow"
)

// Guard is what libvirt's hook goes by.
type Guard struct {
	Arrivals  string `toml:"arrivals"`  // refuse or allow
	Directory string `toml:"directory"` // owner files; empty for guard in agent.runtime_dir
	Hook      string `toml:"hook"`      // where libvirt finds the hook, for status; nothing writes there
}

// GuardDir is where owner files are kept.
func (c Config) GuardDir() string {
	if c.Guard.Directory != "" {
		return c.Guard.Directory
	}
	return filepath.Join(c.Agent.RuntimeDir, "guard")
}

// HookPhases are the phases that hooks may stand in: those of package hooks, which
// says what each is.
var HookPhases = []string{
	"pre_live_migration", "rollback_live_migration_at_destination", "post_live_migration_at_destination", "post_live_migration",
	"prep_resize", "rollback_prep_resize", "resize_instance", "rollback_resize_instance",
	"prep_snapshot_based_resize_at_source", "rollback_prep_snapshot_based_resize_at_source", "finish_resize", "confirm_resize",
	"revert_resize", "finish_revert_resize",
	"pre_rebuild_instance", "rollback_rebuild_instance", "post_rebuild_instance",
	"fence", "pre_evacuate", "rollback_evacuate", "post_evacuate",
}

// Hook is how one operator hook is run.
type Hook struct {
	Timeout   Duration `toml:"timeout"`    // 0 for 60s
	OnFailure string   `toml:"on_failure"` // fail or warn; empty for fail
}

// Default is the configuration of an empty file.
func Default() Config {
	live := options.Default()
	return Config{
		Agent: Agent{
			Mode: Observe, StateDir: "/var/lib/berth", RuntimeDir: "/run/berth", SocketGroup: "berth",
			Listen: ":16515", FlavorsDir: "/etc/berth/flavors.d", HooksDir: "/etc/berth/hooks.d", LogLevel: "info",
		},
		PKI: PKI{CA: "/etc/berth/pki/ca.crt", Cert: "/etc/berth/pki/host.crt", Key: "/etc/berth/pki/host.key"},
		Host: Host{
			Root: "/", ReservedMemoryMB: 512, DiskPath: "/var/lib/libvirt/images", SharedDirs: []string{}, HostsWithoutBerth: []string{}, DiscoverEvery: Duration(10 * time.Minute),
			ReservedPages: []ReservedPages{},
		},
		PCI:     PCI{DeviceSpec: []pci.Spec{}, Alias: []flavor.Alias{}},
		Devices: Devices{MdevTypes: []MdevType{}},
		Libvirt: Libvirt{
			URI: "qemu:///system", Timeout: Duration(10 * time.Second),
			PeerURI: "qemu+tls://{name}/system",
		},
		Placement: Placement{
			Auth: AuthToken, Token: "admin", Timeout: Duration(30 * time.Second), Interval: Duration(time.Minute), AuditInterval: Duration(10 * time.Minute),
			ProjectID: "00000000-0000-0000-0000-000000000000", UserID: "00000000-0000-0000-0000-000000000000",
			InitialCPURatio: 4, InitialRAMRatio: 1, InitialDiskRatio: 1,
			NUMA: NUMAFlat, ProviderConfigDir: "/etc/berth/provider_config",
		},
		Migration: Migration{
			Transport: TransportStream, Ports: "49152-49215",
			MaxDowntime: Duration(live.MaxDowntime), DowntimeSteps: live.DowntimeSteps, DowntimeDelay: Duration(live.DowntimeDelay), Parallel: live.Parallel, Compression: []string{},
			AllowedPaths: []string{}, AllowedEmulators: []string{}, AllowedLabels: []string{},
			TimeoutAction: string(live.TimeoutAction), StallTimeout: Duration(live.StallTimeout), CopyStorage: live.CopyStorage,
			ClaimLease: Duration(time.Minute), ShutdownTimeout: Duration(time.Minute), ConductorSilence: Duration(15 * time.Minute),
			MaxInbound: 2, MaxOutbound: 2, NearWeight: 1e6, NearWeightByAggregate: map[string]float64{},
		},
		Fleet:   Fleet{Etcd: []string{}, Lease: Duration(30 * time.Second), SelfFenceTimeout: Duration(10 * time.Second)},
		Rights:  Rights{Operate: []string{}, ShareNothing: []string{}, Conduct: []string{}, Relay: []string{}},
		Drain:   Drain{Attempts: 3},
		Guard:   Guard{Arrivals: ArrivalsRefuse, Hook: "/etc/libvirt/hooks/qemu.d/50-berth"},
		Metrics: Metrics{Listen: "127.0.0.1:9178"},
		Peers:   map[string]string{},
		Hooks:   map[string]Hook{},
	}
}
