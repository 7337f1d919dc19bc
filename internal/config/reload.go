package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// reloadable are the keys that a running agent takes from a reload. All others
// name a place, an identity or a promise already given (state_dir, name, listen,
// transport), and need a restart, which touches no guest.
var reloadable = []string{
	"agent.log_level", "agent.flavors_dir",
	"host.reserved_vcpus", "host.reserved_memory_mb", "host.reserved_disk_gb",
	"placement.cpu_allocation_ratio", "placement.ram_allocation_ratio", "placement.disk_allocation_ratio",
	"placement.numa", "placement.provider_config_dir",
	"migration.bandwidth", "migration.postcopy_bandwidth", "migration.available_switchover_bandwidth",
	"migration.max_downtime", "migration.downtime_steps", "migration.downtime_delay",
	"migration.auto_converge", "migration.auto_converge_initial", "migration.auto_converge_increment",
	"migration.parallel_connections", "migration.zero_copy", "migration.compression", "migration.xbzrle_cache",
	"migration.compression_mt_level", "migration.compression_mt_threads", "migration.compression_mt_dthreads",
	"migration.compression_zlib_level", "migration.compression_zstd_level",
	"migration.timeout", "migration.timeout_per_gib", "migration.timeout_action",
	"migration.post_copy", "migration.copy_storage", "migration.copy_storage_synchronous_writes", "migration.migrate_disks_detect_zeroes",
	"migration.schedule", "migration.observe_schedule",
	"host.hosts_without_berth", "migration.allowed_paths", "migration.allowed_emulators", "migration.allowed_labels", "migration.allow_qemu_arguments",
	"migration.resize_confirm_window", "migration.max_inbound", "migration.max_outbound", "migration.max_per_link", "migration.near_weight", "migration.near_weight_by_aggregate",
	"drain.attempts", "drain.on_shutdown", "guard.arrivals", "rights.operate", "rights.share_nothing", "rights.conduct", "rights.relay", "peers",
}

// Change is one key whose value differs between two configurations.
type Change struct {
	Key        string
	Reloadable bool // a running agent takes it from a reload; else it needs a restart
}

// Diff lists the keys that differ, in the order of the structs. It never gives
// values: one may be a secret.
func Diff(old, new Config) []Change {
	var out []Change
	var walk func(key string, a, b reflect.Value)
	walk = func(key string, a, b reflect.Value) {
		if a.Kind() != reflect.Struct {
			if !reflect.DeepEqual(a.Interface(), b.Interface()) {
				out = append(out, Change{Key: key, Reloadable: slices.Contains(reloadable, key)})
			}
			return
		}
		for i := range a.NumField() {
			walk(strings.TrimPrefix(fmt.Sprintf("%s.%s", key, a.Type().Field(i).Tag.Get("toml")), "."), a.Field(i), b.Field(i))
		}
	}
	walk("", reflect.ValueOf(old), reflect.ValueOf(new))
	return out
}

// Reload gives the configuration that a running agent goes on with: the new
// values of what can change, the old ones of the rest.
func Reload(running, read Config) Config {
	out := running
	out.Agent.LogLevel = read.Agent.LogLevel
	out.Agent.FlavorsDir = read.Agent.FlavorsDir
	out.Host.ReservedVCPUs = read.Host.ReservedVCPUs
	out.Host.ReservedMemoryMB = read.Host.ReservedMemoryMB
	out.Host.ReservedDiskGB = read.Host.ReservedDiskGB
	out.Host.HostsWithoutBerth = read.Host.HostsWithoutBerth
	out.Placement.CPURatio = read.Placement.CPURatio
	out.Placement.RAMRatio = read.Placement.RAMRatio
	out.Placement.DiskRatio = read.Placement.DiskRatio
	out.Placement.NUMA = read.Placement.NUMA
	out.Placement.ProviderConfigDir = read.Placement.ProviderConfigDir
	out.Migration = read.Migration.in(running.Migration)
	out.Drain = read.Drain
	out.Guard.Arrivals = read.Guard.Arrivals
	out.Rights = read.Rights
	out.Peers = read.Peers
	return out
}

// in keeps what a running agent has given to others: how guests come here, and the times of
// what has begun. All else is asked for anew by each move.
func (m Migration) in(running Migration) Migration {
	m.Transport, m.TLS, m.Address, m.Ports = running.Transport, running.TLS, running.Address, running.Ports
	m.StallTimeout, m.AttemptTimeout, m.ClaimLease = running.StallTimeout, running.AttemptTimeout, running.ClaimLease
	m.ShutdownTimeout, m.ConductorSilence = running.ShutdownTimeout, running.ConductorSilence
	return m
}
