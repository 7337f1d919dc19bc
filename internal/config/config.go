package config

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// DefaultPath is where the configuration stands unless the command line says
// otherwise.
const DefaultPath = "/etc/berth/berth.toml"

// Config is everything an operator can set.
type Config struct {
	Agent     Agent             `toml:"agent"`
	PKI       PKI               `toml:"pki"`
	Host      Host              `toml:"host"`
	Libvirt   Libvirt           `toml:"libvirt"`
	Placement Placement         `toml:"placement"`
	Migration Migration         `toml:"migration"`
	Guard     Guard             `toml:"guard"`
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
	Root             string   `toml:"root"`               // the folder that holds sys and proc
	ReservedVCPUs    int      `toml:"reserved_vcpus"`     // kept from guests
	ReservedMemoryMB int64    `toml:"reserved_memory_mb"` // MiB kept from guests
	ReservedDiskGB   int64    `toml:"reserved_disk_gb"`   // GiB kept from guests
	DiskPath         string   `toml:"disk_path"`          // its filesystem is DISK_GB; where disks of new guests are made
	DiscoverEvery    Duration `toml:"discover_interval"`  // slow full re-read of the hardware
}

// Libvirt is how the hypervisor is reached.
type Libvirt struct {
	Socket  string   `toml:"socket"` // empty: found by itself, virtqemud's before libvirtd's
	URI     string   `toml:"uri"`
	Timeout Duration `toml:"timeout"`  // of one call
	PeerURI string   `toml:"peer_uri"` // this host's libvirt as another libvirtd reaches it; {name} is the provider's name
}

// Placement is the service that the rest of the cloud sees this host by.
type Placement struct {
	URL       string   `toml:"url"`
	Token     string   `toml:"token"` // sent as X-Auth-Token; a secret
	Timeout   Duration `toml:"timeout"`
	Interval  Duration `toml:"interval"` // between two comparisons
	ProjectID string   `toml:"project_id"`
	UserID    string   `toml:"user_id"`
	// A ratio of 0 is unset: then what stands in Placement is kept, and the
	// initial one is used where nothing stands there.
	CPURatio         float64 `toml:"cpu_allocation_ratio"`
	RAMRatio         float64 `toml:"ram_allocation_ratio"`
	DiskRatio        float64 `toml:"disk_allocation_ratio"`
	InitialCPURatio  float64 `toml:"initial_cpu_allocation_ratio"`
	InitialRAMRatio  float64 `toml:"initial_ram_allocation_ratio"`
	InitialDiskRatio float64 `toml:"initial_disk_allocation_ratio"`
}

// TransportLibvirtTLS is libvirt's own TLS between the two libvirt daemons.
const TransportLibvirtTLS = "libvirt-tls"

// Migration bounds moves.
type Migration struct {
	Transport    string   `toml:"transport"`
	TLS          bool     `toml:"tls"`       // encrypt memory and disks too, with QEMU's own TLS
	Address      string   `toml:"address"`   // where memory and disks arrive on this host; empty for libvirt's choice
	Bandwidth    Rate     `toml:"bandwidth"` // 0 for no bound
	MaxDowntime  Duration `toml:"max_downtime"`
	Timeout      Duration `toml:"timeout"` // of the stream; 0 for none
	StallTimeout Duration `toml:"stall_timeout"`
}

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

// Hook is how one operator hook is run.
type Hook struct {
	Timeout   Duration `toml:"timeout"`    // 0 for 60s
	OnFailure string   `toml:"on_failure"` // fail or warn; empty for fail
}

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		Agent: Agent{
			Mode: Observe, StateDir: "/var/lib/berth", RuntimeDir: "/run/berth", SocketGroup: "berth",
			Listen: ":16515", FlavorsDir: "/etc/berth/flavors.d", HooksDir: "/etc/berth/hooks.d", LogLevel: "info",
		},
		PKI: PKI{CA: "/etc/berth/pki/ca.crt", Cert: "/etc/berth/pki/host.crt", Key: "/etc/berth/pki/host.key"},
		Host: Host{
			Root: "/", ReservedMemoryMB: 512, DiskPath: "/var/lib/libvirt/images", DiscoverEvery: Duration(10 * time.Minute),
		},
		Libvirt: Libvirt{
			URI: "qemu:///system", Timeout: Duration(10 * time.Second),
			PeerURI: "qemu+tls://{name}/system",
		},
		Placement: Placement{
			URL: "http://127.0.0.1:8778", Token: "admin", Timeout: Duration(30 * time.Second), Interval: Duration(time.Minute),
			ProjectID: "00000000-0000-0000-0000-000000000000", UserID: "00000000-0000-0000-0000-000000000000",
			InitialCPURatio: 4, InitialRAMRatio: 1, InitialDiskRatio: 1,
		},
		Migration: Migration{
			Transport: TransportLibvirtTLS, MaxDowntime: Duration(500 * time.Millisecond), StallTimeout: Duration(15 * time.Second),
		},
		Guard: Guard{Arrivals: ArrivalsRefuse, Hook: "/etc/libvirt/hooks/qemu.d/50-berth"},
		Peers: map[string]string{},
		Hooks: map[string]Hook{},
	}
}

// Duration is a time.Duration, written "1m30s".
type Duration time.Duration

// UnmarshalText reads the form of time.ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as \"30s\" or \"1m30s\"", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is time.Duration's.
func (d Duration) String() string { return time.Duration(d).String() }

// D is the value as the rest of the program uses it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Rate is bytes a second, written "20MiB/s"; "0" is no bound.
type Rate uint64

var rateForm = regexp.MustCompile(`^([0-9]+)\s*([KMGT]i?B|B)?(/s)?$`)

// ParseRate reads "20MiB/s", "1GB/s", "500000". Units without i are powers of
// ten, as everywhere but in virsh.
func ParseRate(text string) (Rate, error) {
	bad := func() (Rate, error) {
		return 0, fmt.Errorf("%q is not a rate such as \"20MiB/s\" or \"1GiB/s\"", text)
	}
	m := rateForm.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return bad()
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return bad()
	}
	unit := map[string]uint64{"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[m[2]]
	// libvirt keeps bandwidths as signed MiB/s and bytes/s.
	if n > (1<<63-1)/unit {
		return bad()
	}
	return Rate(n * unit), nil
}

// UnmarshalText reads the form of ParseRate.
func (r *Rate) UnmarshalText(text []byte) error {
	v, err := ParseRate(string(text))
	if err != nil {
		return err
	}
	*r = v
	return nil
}

// MarshalText writes the form that UnmarshalText reads.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String gives the rate with the largest unit that divides it.
func (r Rate) String() string {
	if r == 0 {
		return "0"
	}
	for _, u := range []struct {
		size Rate
		name string
	}{{1 << 30, "GiB/s"}, {1 << 20, "MiB/s"}, {1 << 10, "KiB/s"}} {
		if r%u.size == 0 {
			return fmt.Sprintf("%d%s", r/u.size, u.name)
		}
	}
	return fmt.Sprintf("%dB/s", uint64(r))
}
