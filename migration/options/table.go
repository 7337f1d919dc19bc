package options

import "time"

// Kind is how an option is written.
type Kind string

// The kinds.
const (
	KindRate     Kind = "rate"     // bytes a second: "20MiB/s", "500000B/s"
	KindSize     Kind = "size"     // bytes: "64MiB"
	KindDuration Kind = "duration" // "500ms", "1m30s"
	KindPercent  Kind = "percent"  // "30", "30%"
	KindNumber   Kind = "number"
	KindSwitch   Kind = "switch" // "on", "off", and what else people write for them
	KindWord     Kind = "word"   // one of Option.Words
	KindWords    Kind = "words"  // some of Option.Words, with commas between them
	KindText     Kind = "text"
)

// Option is one row of the table.
type Option struct {
	Name string // in JSON, and in Migration.OptionsFrom
	Flag string // on the command line, virsh's word where it has one
	// Key is the option in [migration] of the configuration; behind SpecPrefix it is a
	// flavor's extra spec.
	Key   string
	Virsh string // what virsh calls it; empty where it has no such thing
	Nova  string // what nova.conf calls it, in [libvirt]; empty where it has no such thing
	Kind  Kind
	// Min and Max bound what is said: bytes, bytes a second, nanoseconds, or a plain number.
	Min, Max uint64
	Words    []string // of KindWord and KindWords
	// None: "none" is an answer too, which overrules who is asked next.
	None bool
	// Since is libvirt's version that has it first, of both hosts; empty where every libvirt
	// that Berth works with has it, or it is Berth's own.
	Since  string
	Unsaid string // what holds where nobody says, in words for people
	Help   string // one line: what it does

	at func(*Live) any
}

// SpecPrefix begins a flavor's extra specs for live migrations; Option.Key follows.
const SpecPrefix = specSpace + "live_migration_"

// NoRate is "none" of a rate and NoTime of a duration, as a request or flavor says that
// there is to be no bound whatever the configuration has. Merge makes 0 of them.
const (
	NoRate uint64        = 1<<63 - 1
	NoTime time.Duration = -1
)

// The bounds that come from elsewhere: QEMU's of multifd-channels, cpu-throttle-*,
// downtime-limit (2000 s) and compression levels, and libvirt's of rates, which it keeps as
// signed numbers. Those of times are arbitrary: sums and products with a guest's size stay
// far from the ends of a time.Duration.
const (
	mostParallel = 255
	mostThrottle = 99
	mostRate     = uint64(NoRate - 1)
	mostDowntime = uint64(2000 * time.Second)
	mostTimeout  = uint64(30 * 24 * time.Hour)
	mostPerGiB   = uint64(24 * time.Hour)
	mostSteps    = 1000
	mostSchedule = 1000 // letters
)

// All gives every option, in the order in which people are shown them.
func All() []Option { return table[:] }

// table is the one place where options are described; TestTable_HasEveryField holds it
// against Live.
var table = [...]Option{
	{
		Name: "bandwidth_bytes", Flag: "bandwidth", Key: "bandwidth", Virsh: "--bandwidth", Nova: "live_migration_bandwidth",
		Kind: KindRate, Min: 1, Max: mostRate, None: true, Unsaid: "no bound",
		Help: "bound of the transfer until post-copy; libvirt counts whole MiB/s, rounded up",
		at:   func(o *Live) any { return &o.Bandwidth },
	},
	{
		Name: "postcopy_bandwidth_bytes", Flag: "postcopy-bandwidth", Key: "postcopy_bandwidth", Virsh: "--postcopy-bandwidth",
		Kind: KindRate, Min: 1, Max: mostRate, None: true, Unsaid: "no bound",
		Help: "bound of the transfer in post-copy",
		at:   func(o *Live) any { return &o.PostCopyBandwidth },
	},
	{
		Name: "available_switchover_bandwidth_bytes", Flag: "available-switchover-bandwidth", Key: "available_switchover_bandwidth", Virsh: "--available-switchover-bandwidth",
		Kind: KindRate, Min: 1, Max: mostRate, None: true, Since: "11.1.0", Unsaid: "what QEMU measures",
		Help: "what the link gives to the last pass, for the estimate of the downtime",
		at:   func(o *Live) any { return &o.AvailableSwitchover },
	},
	{
		Name: "max_downtime", Flag: "max-downtime", Key: "max_downtime", Virsh: "migrate-setmaxdowntime", Nova: "live_migration_downtime",
		Kind: KindDuration, Min: uint64(time.Millisecond), Max: mostDowntime,
		Help: "how long the guest may stand still; the top of the ladder where there is one",
		at:   func(o *Live) any { return &o.MaxDowntime },
	},
	{
		Name: "downtime_steps", Flag: "downtime-steps", Key: "downtime_steps", Nova: "live_migration_downtime_steps",
		Kind: KindNumber, Min: 1, Max: mostSteps,
		Help: "above 1: the maximum downtime is raised to its value in so many steps",
		at:   func(o *Live) any { return &o.DowntimeSteps },
	},
	{
		Name: "downtime_delay", Flag: "downtime-delay", Key: "downtime_delay", Nova: "live_migration_downtime_delay",
		Kind: KindDuration, Min: uint64(time.Millisecond), Max: mostPerGiB,
		Help: "between two steps of the ladder, for each GiB of the guest's memory and copied disks",
		at:   func(o *Live) any { return &o.DowntimeDelay },
	},
	{
		Name: "auto_converge", Flag: "auto-converge", Key: "auto_converge", Virsh: "--auto-converge", Nova: "live_migration_permit_auto_converge",
		Kind: KindSwitch, Unsaid: "off",
		Help: "QEMU slows the guest down while its memory changes faster than it is sent",
		at:   func(o *Live) any { return &o.AutoConverge },
	},
	{
		Name: "auto_converge_initial", Flag: "auto-converge-initial", Key: "auto_converge_initial", Virsh: "--auto-converge-initial",
		Kind: KindPercent, Min: 1, Max: mostThrottle, Unsaid: "QEMU's own",
		Help: "by how much of its CPU time at first; with auto_converge",
		at:   func(o *Live) any { return &o.AutoConvergeInitial },
	},
	{
		Name: "auto_converge_increment", Flag: "auto-converge-increment", Key: "auto_converge_increment", Virsh: "--auto-converge-increment",
		Kind: KindPercent, Min: 1, Max: mostThrottle, Unsaid: "QEMU's own",
		Help: "by how much more each time; with auto_converge",
		at:   func(o *Live) any { return &o.AutoConvergeIncrement },
	},
	{
		Name: "parallel_connections", Flag: "parallel-connections", Key: "parallel_connections", Virsh: "--parallel --parallel-connections", Nova: "live_migration_parallel_connections",
		Kind: KindNumber, Min: 1, Max: mostParallel,
		Help: "above 1: memory goes by so many connections",
		at:   func(o *Live) any { return &o.Parallel },
	},
	{
		Name: "zero_copy", Flag: "zerocopy", Key: "zero_copy", Virsh: "--zerocopy",
		Kind: KindSwitch, Since: "8.5.0", Unsaid: "off",
		Help: "the kernel sends memory from where it is; by parallel connections, by libvirt-tls without tls, and for guests whose memory may be locked",
		at:   func(o *Live) any { return &o.ZeroCopy },
	},
	{
		Name: "compression", Flag: "comp-methods", Key: "compression", Virsh: "--comp-methods",
		Kind: KindWords, Words: []string{"none", methodXBZRLE, methodMT, methodZlib, methodZstd}, Unsaid: "none",
		Help: "of memory: xbzrle and mt by one connection (mt until QEMU 9.0), zlib or zstd by parallel ones (libvirt 9.4.0)",
		at:   func(o *Live) any { return &o.Compression },
	},
	{
		Name: "xbzrle_cache_bytes", Flag: "comp-xbzrle-cache", Key: "xbzrle_cache", Virsh: "--comp-xbzrle-cache",
		Kind: KindSize, Min: 4 << 10, Max: 1 << 38, Unsaid: "QEMU's own",
		Help: "memory in which xbzrle keeps pages that were sent; a power of two",
		at:   func(o *Live) any { return &o.XBZRLECache },
	},
	{
		Name: "compression_mt_level", Flag: "comp-mt-level", Key: "compression_mt_level", Virsh: "--comp-mt-level",
		Kind: KindNumber, Min: 1, Max: 9, Unsaid: "QEMU's own",
		Help: "1 is fast, 9 is small; of mt",
		at:   func(o *Live) any { return &o.MTLevel },
	},
	{
		Name: "compression_mt_threads", Flag: "comp-mt-threads", Key: "compression_mt_threads", Virsh: "--comp-mt-threads",
		Kind: KindNumber, Min: 1, Max: 255, Unsaid: "QEMU's own",
		Help: "threads that compress, at the source; of mt",
		at:   func(o *Live) any { return &o.MTThreads },
	},
	{
		Name: "compression_mt_dthreads", Flag: "comp-mt-dthreads", Key: "compression_mt_dthreads", Virsh: "--comp-mt-dthreads",
		Kind: KindNumber, Min: 1, Max: 255, Unsaid: "QEMU's own",
		Help: "threads that unpack, at the destination; of mt",
		at:   func(o *Live) any { return &o.MTUnpack },
	},
	{
		Name: "compression_zlib_level", Flag: "comp-zlib-level", Key: "compression_zlib_level", Virsh: "--comp-zlib-level",
		Kind: KindNumber, Min: 1, Max: 9, Since: "9.4.0", Unsaid: "QEMU's own",
		Help: "1 is fast, 9 is small; of zlib",
		at:   func(o *Live) any { return &o.ZlibLevel },
	},
	{
		Name: "compression_zstd_level", Flag: "comp-zstd-level", Key: "compression_zstd_level", Virsh: "--comp-zstd-level",
		Kind: KindNumber, Min: 1, Max: 20, Since: "9.4.0", Unsaid: "QEMU's own",
		Help: "1 is fast, 20 is small; of zstd",
		at:   func(o *Live) any { return &o.ZstdLevel },
	},
	{
		Name: "timeout", Flag: "timeout", Key: "timeout", Virsh: "--timeout",
		Kind: KindDuration, Min: uint64(time.Millisecond), Max: mostTimeout, None: true, Unsaid: "none",
		Help: "of the whole transfer, the switch-over included; of timeout and timeout_per_gib the longer counts",
		at:   func(o *Live) any { return &o.Timeout },
	},
	{
		Name: "timeout_per_gib", Flag: "timeout-per-gib", Key: "timeout_per_gib", Nova: "live_migration_completion_timeout",
		Kind: KindDuration, Min: uint64(time.Millisecond), Max: mostPerGiB, None: true, Unsaid: "none",
		Help: "the same for each GiB of the guest's memory and copied disks, of at least two",
		at:   func(o *Live) any { return &o.TimeoutPerGiB },
	},
	{
		Name: "timeout_action", Flag: "timeout-action", Key: "timeout_action", Virsh: "--timeout-suspend, --timeout-postcopy", Nova: "live_migration_timeout_action",
		Kind: KindWord, Words: []string{string(ActionAbort), string(ActionSuspend), string(ActionPostCopy), string(ActionForce)},
		Help: "then: abort undoes it, suspend lets the guest stand still until it is there, post-copy lets it run there at once, force is post-copy where that is permitted, else suspend",
		at:   func(o *Live) any { return &o.TimeoutAction },
	},
	{
		Name: "stall_timeout", Flag: "stall-timeout", Key: "stall_timeout",
		Kind: KindDuration, Min: uint64(time.Millisecond), Max: mostPerGiB,
		Help: "no byte and no change of phase for this long is a dead link: the move is undone",
		at:   func(o *Live) any { return &o.StallTimeout },
	},
	{
		Name: "post_copy", Flag: "postcopy", Key: "post_copy", Virsh: "--postcopy", Nova: "live_migration_permit_post_copy",
		Kind: KindSwitch, Unsaid: "off",
		Help: "permits post-copy, by timeout_action, schedule or force-complete: the guest runs at the destination before its memory is there, and from then on there is no way back; libvirt 8.5.0",
		at:   func(o *Live) any { return &o.PostCopy },
	},
	{
		Name: "copy_storage", Flag: "copy-storage", Key: "copy_storage", Virsh: "--copy-storage-all, --copy-storage-inc", Nova: "block_migration of the request",
		Kind: KindWord, Words: []string{StorageAll, StorageInc, StorageNone},
		Help: "disks that the hosts do not share: all copies them, inc what is above their backing file, none refuses guests that have such disks",
		at:   func(o *Live) any { return &o.CopyStorage },
	},
	{
		Name: "copy_storage_synchronous_writes", Flag: "copy-storage-synchronous-writes", Key: "copy_storage_synchronous_writes", Virsh: "--copy-storage-synchronous-writes",
		Kind: KindSwitch, Unsaid: "off",
		Help: "the guest waits for the destination with each write to a disk that is copied, so that the copy ends whatever it writes",
		at:   func(o *Live) any { return &o.SynchronousWrites },
	},
	{
		Name: "migrate_disks_detect_zeroes", Flag: "migrate-disks-detect-zeroes", Key: "migrate_disks_detect_zeroes", Virsh: "--migrate-disks-detect-zeroes",
		Kind: KindSwitch, Since: "10.9.0", Unsaid: "off",
		Help: "zeroes of disks that are copied take no room at the destination; costs CPU time",
		at:   func(o *Live) any { return &o.DetectZeroes },
	},
	{
		Name: "schedule", Flag: "schedule", Key: "schedule",
		Kind: KindText, Max: mostSchedule, None: true, Unsaid: "none",
		Help: "what is done about a transfer that does not converge, in steps: `start:throttle=30+20, 2:max-downtime=2s, 3:post-copy, 4:abort`",
		at:   func(o *Live) any { return &o.Schedule },
	},
	{
		Name: "observe_schedule", Flag: "observe-schedule", Key: "observe_schedule",
		Kind: KindSwitch, Unsaid: "off",
		Help: "the schedule tells what it would do, and does nothing",
		at:   func(o *Live) any { return &o.Observe },
	},
}

// The methods of compression, and how disks go that hosts do not share.
const (
	methodNone   = "none"
	methodXBZRLE = "xbzrle"
	methodMT     = "mt"
	methodZlib   = "zlib"
	methodZstd   = "zstd"

	StorageAll  = "all"
	StorageInc  = "inc"
	StorageNone = "none"
)

// Default is what holds where nobody says.
func Default() Live {
	return Live{
		MaxDowntime: 500 * time.Millisecond, DowntimeSteps: 1, DowntimeDelay: 75 * time.Second, Parallel: 1,
		TimeoutAction: ActionAbort, StallTimeout: 15 * time.Second, CopyStorage: StorageAll,
	}
}
