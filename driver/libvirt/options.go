package libvirt

import (
	"context"
	"fmt"
	"slices"

	"berth/driver"
	"berth/internal/fault"
)

// option is one of a live migration that not every daemon and not every QEMU has. The
// versions of libvirt are those of libvirt-domain.h ("Since"), QEMU's those of its
// migration.json and of its list of what was removed; 0 for none.
type option struct {
	name    string // as driver.Node.MigrationOptions
	libvirt driver.Version
	qemu    driver.Version
	until   driver.Version // of QEMU, which has it no more
	used    func(driver.Migration) bool
}

// options are those that came with or after libvirt 1.3.4, in the order in which a refusal
// names them.
var options = []option{
	{"auto_converge_initial", 2_000_000, 2_005_000, 0, func(m driver.Migration) bool { return m.AutoConverge && m.Throttle.Initial > 0 }},
	{"auto_converge_increment", 2_000_000, 2_005_000, 0, func(m driver.Migration) bool { return m.AutoConverge && m.Throttle.Increment > 0 }},
	{"postcopy_bandwidth_bytes", 5_001_000, 3_000_000, 0, func(m driver.Migration) bool { return m.PostCopy && m.PostCopyBandwidth > 0 }},
	{"parallel_connections", 5_002_000, 4_000_000, 0, func(m driver.Migration) bool { return m.ParallelConnections > 1 }},
	{"copy_storage_synchronous_writes", 8_000_000, 3_000_000, 0, func(m driver.Migration) bool { return len(m.CopyDisks) > 0 && m.SynchronousWrites }},
	{"zero_copy", 8_005_000, 7_001_000, 0, func(m driver.Migration) bool { return m.ZeroCopy }},
	{"compression.xbzrle", 1_003_004, 1_002_000, 0, compressed("xbzrle")},
	{"compression.mt", 1_003_004, 2_004_000, 9_001_000, compressed("mt")},
	{"compression.zlib", 9_004_000, 5_000_000, 0, compressed("zlib")},
	{"compression.zstd", 9_004_000, 5_000_000, 0, compressed("zstd")},
	{"xbzrle_cache_bytes", 1_003_004, 1_002_000, 0, func(m driver.Migration) bool { return m.Compression.XBZRLECache > 0 }},
	{"compression_mt_level", 1_003_004, 2_004_000, 9_001_000, func(m driver.Migration) bool { return m.Compression.Level > 0 }},
	{"compression_mt_threads", 1_003_004, 2_004_000, 9_001_000, func(m driver.Migration) bool { return m.Compression.Threads > 0 }},
	{"compression_mt_dthreads", 1_003_004, 2_004_000, 9_001_000, func(m driver.Migration) bool { return m.Compression.UnpackThreads > 0 }},
	{"compression_zlib_level", 9_004_000, 5_000_000, 0, func(m driver.Migration) bool { return m.Compression.ZlibLevel > 0 }},
	{"compression_zstd_level", 9_004_000, 5_000_000, 0, func(m driver.Migration) bool { return m.Compression.ZstdLevel > 0 }},
	{"migrate_disks_detect_zeroes", 10_009_000, 0, 0, func(m driver.Migration) bool { return len(m.DetectZeroes) > 0 }},
	{"available_switchover_bandwidth_bytes", 11_001_000, 8_002_000, 0, func(m driver.Migration) bool { return m.AvailableSwitchover > 0 }},
}

func compressed(method string) func(driver.Migration) bool {
	return func(m driver.Migration) bool { return slices.Contains(m.Compression.Methods, method) }
}

// lacks says why a daemon and its QEMU have not an option; "" where they have it.
func (o option) lacks(libvirt, qemu driver.Version) string {
	switch {
	case libvirt < o.libvirt:
		return fmt.Sprintf("libvirt has it since %s, and this is %s", o.libvirt, libvirt)
	case qemu < o.qemu:
		return fmt.Sprintf("QEMU has it since %s, and this is %s", o.qemu, qemu)
	case o.until > 0 && qemu >= o.until:
		return fmt.Sprintf("QEMU has it no more since %s, and this is %s", o.until, qemu)
	}
	return ""
}

// migrationOptions is driver.Node's.
func migrationOptions(libvirt, qemu driver.Version) map[string]string {
	out := map[string]string{}
	for _, o := range options {
		if why := o.lacks(libvirt, qemu); why != "" {
			out[o.name] = why
		}
	}
	return out
}

// knows refuses what this side's daemon or QEMU has not: libvirt itself refuses some of it
// only after the destination has been prepared, and in words of its parameters.
func (d *Driver) knows(ctx context.Context, r request, m driver.Migration) error {
	if !slices.ContainsFunc(options, func(o option) bool { return o.used(m) }) {
		return nil
	}
	n, err := d.Node(ctx)
	if err != nil {
		return err
	}
	return refuse(r, m, n.LibraryVersion, n.HypervisorVersion)
}

func refuse(r request, m driver.Migration, libvirt, qemu driver.Version) error {
	var reasons []fault.Reason
	for _, o := range options {
		if why := o.lacks(libvirt, qemu); why != "" && o.used(m) {
			reasons = append(reasons, fault.Reason{Code: "migration_option_unknown", Message: o.name + ": " + why, Want: o.name})
		}
	}
	if reasons == nil {
		return nil
	}
	return fault.Refuse(fault.Invalid, r.String(), reasons...)
}
