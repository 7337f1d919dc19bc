package drivertest

import (
	"slices"

	"berth/driver"
	"berth/internal/fault"
)

// option is one of a live migration that a hypervisor may not know.
type option struct {
	name string // as driver.Node.MigrationOptions
	used func(m driver.Migration) bool
	// ask asks for it, with what it needs; nil for what not every machine can carry out.
	ask func(m *driver.Migration)
}

// migrationOptions are all, in the order in which a refusal names them. Those that ask
// together do not exclude each other: the ones of parallel connections are apart.
func migrationOptions() []option {
	method := func(name string) func(driver.Migration) bool {
		return func(m driver.Migration) bool { return slices.Contains(m.Compression.Methods, name) }
	}
	parallel := func(name string, ask func(c *driver.Compression)) func(*driver.Migration) {
		return func(m *driver.Migration) {
			m.ParallelConnections, m.Compression = 2, driver.Compression{Methods: []string{name}}
			ask(&m.Compression)
		}
	}
	add := func(m *driver.Migration, name string) {
		if !slices.Contains(m.Compression.Methods, name) {
			m.Compression.Methods = append(m.Compression.Methods, name)
		}
	}
	return []option{
		{"auto_converge_initial", func(m driver.Migration) bool { return m.AutoConverge && m.Throttle.Initial > 0 },
			func(m *driver.Migration) { m.AutoConverge, m.Throttle.Initial = true, 30 }},
		{"auto_converge_increment", func(m driver.Migration) bool { return m.AutoConverge && m.Throttle.Increment > 0 },
			func(m *driver.Migration) { m.AutoConverge, m.Throttle.Increment = true, 15 }},
		{"postcopy_bandwidth_bytes", func(m driver.Migration) bool { return m.PostCopy && m.PostCopyBandwidth > 0 },
			func(m *driver.Migration) { m.PostCopy, m.Paused, m.PostCopyBandwidth = true, false, 64<<20 }},
		{"parallel_connections", func(m driver.Migration) bool { return m.ParallelConnections > 1 },
			func(m *driver.Migration) { m.ParallelConnections = 2 }},
		{"copy_storage_synchronous_writes", func(m driver.Migration) bool { return len(m.CopyDisks) > 0 && m.SynchronousWrites },
			func(m *driver.Migration) { m.CopyDisks, m.SynchronousWrites = []string{"vda"}, true }},
		{"zero_copy", func(m driver.Migration) bool { return m.ZeroCopy },
			func(m *driver.Migration) { m.ParallelConnections, m.ZeroCopy = 2, true }},
		{"compression.xbzrle", method("xbzrle"), func(m *driver.Migration) { add(m, "xbzrle") }},
		{"compression.mt", method("mt"), func(m *driver.Migration) { add(m, "mt") }},
		{"compression.zlib", method("zlib"), parallel("zlib", func(*driver.Compression) {})},
		{"compression.zstd", method("zstd"), parallel("zstd", func(*driver.Compression) {})},
		{"xbzrle_cache_bytes", func(m driver.Migration) bool { return m.Compression.XBZRLECache > 0 },
			func(m *driver.Migration) { add(m, "xbzrle"); m.Compression.XBZRLECache = 16 << 20 }},
		{"compression_mt_level", func(m driver.Migration) bool { return m.Compression.Level > 0 },
			func(m *driver.Migration) { add(m, "mt"); m.Compression.Level = 3 }},
		{"compression_mt_threads", func(m driver.Migration) bool { return m.Compression.Threads > 0 },
			func(m *driver.Migration) { add(m, "mt"); m.Compression.Threads = 2 }},
		{"compression_mt_dthreads", func(m driver.Migration) bool { return m.Compression.UnpackThreads > 0 },
			func(m *driver.Migration) { add(m, "mt"); m.Compression.UnpackThreads = 2 }},
		{"compression_zlib_level", func(m driver.Migration) bool { return m.Compression.ZlibLevel > 0 },
			parallel("zlib", func(c *driver.Compression) { c.ZlibLevel = 2 })},
		{"compression_zstd_level", func(m driver.Migration) bool { return m.Compression.ZstdLevel > 0 },
			parallel("zstd", func(c *driver.Compression) { c.ZstdLevel = 3 })},
		{"migrate_disks_detect_zeroes", func(m driver.Migration) bool { return len(m.DetectZeroes) > 0 },
			func(m *driver.Migration) { m.CopyDisks, m.DetectZeroes = []string{"vda"}, []string{"vda"} }},
		{"available_switchover_bandwidth_bytes", func(m driver.Migration) bool { return m.AvailableSwitchover > 0 },
			func(m *driver.Migration) { m.AvailableSwitchover = 100 << 20 }},
	}
}

// optionsLocked refuses the options that the machine's Node says that it does not know.
func (h *machine) optionsLocked(uuid string, m driver.Migration) error {
	var reasons []fault.Reason
	for _, o := range migrationOptions() {
		if why, unknown := h.node.MigrationOptions[o.name]; unknown && o.used(m) {
			reasons = append(reasons, fault.Reason{Code: "migration_option_unknown", Message: o.name + ": " + why, Want: o.name})
		}
	}
	if reasons == nil {
		return nil
	}
	return fault.Refuse(fault.Invalid, "migrate "+uuid, reasons...)
}
