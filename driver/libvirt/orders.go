package libvirt

import (
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// Flags of virDomainMigrateFlags, virDomainGetJobStatsFlags, virDomainAbortJobFlagsValues
// and virDomainMigrateMaxSpeedFlags (libvirt-domain.h).
const (
	migrateLive              = 1 << 0
	migratePeer2Peer         = 1 << 1
	migratePersistDest       = 1 << 3
	migratePaused            = 1 << 5
	migrateNonSharedDisk     = 1 << 6
	migrateChangeProtection  = 1 << 8
	migrateUnsafe            = 1 << 9
	migrateCompressed        = 1 << 11
	migrateAbortOnError      = 1 << 12
	migrateAutoConverge      = 1 << 13
	migratePostCopy          = 1 << 15
	migrateTLS               = 1 << 16
	migrateParallel          = 1 << 17
	migrateSynchronousWrites = 1 << 18
	migratePostCopyResume    = 1 << 19
	migrateZeroCopy          = 1 << 20

	jobStatsCompleted = 1 << 0
	abortPostCopy     = 1 << 0
	speedPostCopy     = 1 << 0
)

// orders turns a Migration into libvirt's flags and typed parameters.
//
// UNDEFINE_SOURCE is never among them: the source's definition is what a
// rollback needs, and its end is Berth's own step. CHANGE_PROTECTION keeps
// everybody's hands off the source's devices meanwhile, and a post-copy is recovered only
// with it. ABORT_ON_ERROR rolls back when the guest meets an I/O error on the way, rather
// than sending it paused for a reason that the destination would not have.
func orders(m driver.Migration) (uint32, []Param) {
	flags := uint32(migrateLive | migratePeer2Peer | migratePersistDest | migrateChangeProtection | migrateAbortOnError)
	for flag, on := range map[uint32]bool{
		migratePaused: m.Paused, migrateUnsafe: m.Unsafe, migrateTLS: m.TLS, migrateAutoConverge: m.AutoConverge,
		migratePostCopy: m.PostCopy, migrateCompressed: len(m.Compression.Methods) > 0, migrateZeroCopy: m.ZeroCopy,
		// Only with a list: without one libvirt copies every writable disk, shared
		// volumes included.
		migrateNonSharedDisk:     len(m.CopyDisks) > 0,
		migrateSynchronousWrites: len(m.CopyDisks) > 0 && m.SynchronousWrites,
		migrateParallel:          m.ParallelConnections > 1,
	} {
		if on {
			flags |= flag
		}
	}
	p := parameters{{"destination_xml", m.DestinationXML}, {"persistent_xml", m.PersistentXML}}
	p.text("migrate_uri", m.MigrateURI)
	p.text("disks_uri", m.DisksURI)
	p.text("migrate_disks", m.CopyDisks...)
	p.text("migrate_disks_detect_zeroes", m.DetectZeroes...)
	p.large("bandwidth", mebibytes(m.Bandwidth))
	p.large("bandwidth.avail.switchover", m.AvailableSwitchover) // the only one in bytes a second
	if m.PostCopy {
		p.large("bandwidth.postcopy", mebibytes(m.PostCopyBandwidth))
	}
	if m.ParallelConnections > 1 {
		p.number("parallel.connections", m.ParallelConnections)
	}
	if m.AutoConverge {
		p.number("auto_converge.initial", m.Throttle.Initial)
		p.number("auto_converge.increment", m.Throttle.Increment)
	}
	c := m.Compression
	p.text("compression", c.Methods...)
	p.large("compression.xbzrle.cache", c.XBZRLECache)
	p.number("compression.mt.level", c.Level)
	p.number("compression.mt.threads", c.Threads)
	p.number("compression.mt.dthreads", c.UnpackThreads)
	p.number("compression.zlib.level", c.ZlibLevel)
	p.number("compression.zstd.level", c.ZstdLevel)
	return flags, p
}

// parameters are typed ones. What is empty or 0 is left to libvirt, and not said.
type parameters []Param

func (p *parameters) text(name string, values ...string) {
	for _, v := range values {
		if v != "" {
			*p = append(*p, Param{name, v})
		}
	}
}

func (p *parameters) large(name string, v uint64) {
	if v > 0 {
		*p = append(*p, Param{name, v})
	}
}

func (p *parameters) number(name string, v int) {
	if v > 0 {
		*p = append(*p, Param{name, v})
	}
}

// mebibytes rounds up: a bound must never become 0, which means none.
func mebibytes(bytes uint64) uint64 { return bytes>>20 + min(1, bytes&(1<<20-1)) }

// milliseconds rounds up for the same reason.
func milliseconds(d time.Duration) uint64 {
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

func check(r request, m driver.Migration) error {
	var reasons []fault.Reason
	need := func(what, value string) {
		if value == "" {
			reasons = append(reasons, fault.Reason{Code: "missing", Message: what + " is required"})
		}
	}
	need("destination uri", m.DestinationURI)
	need("destination xml", m.DestinationXML)
	need("persistent xml", m.PersistentXML)
	if m.PostCopy && m.Paused {
		reasons = append(reasons, fault.Reason{Code: "post_copy_paused", Message: "post-copy lets the guest run at the destination: it cannot arrive paused"})
	}
	if reasons != nil {
		return fault.Refuse(fault.Invalid, r.String(), reasons...)
	}
	return nil
}
