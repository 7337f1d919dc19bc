// Package options is what may be said about a live migration, in the words of virsh and
// Nova: one table of options, from which requests, flavors, configuration and command line
// are read, and into which they are merged. It is pure.
package options

import "time"

// Live are the options of one live migration. A zero field leaves it to whoever is asked
// next: request, flavor, configuration, default; see Merge.
type Live struct {
	Bandwidth uint64 `json:"bandwidth_bytes,omitempty"` // bytes a second; 0 for no bound
	// PostCopyBandwidth bounds the transfer in post-copy, bytes a second.
	PostCopyBandwidth uint64 `json:"postcopy_bandwidth_bytes,omitempty"`
	// AvailableSwitchover is the bandwidth that counts for the last pass; bytes a second.
	AvailableSwitchover uint64 `json:"available_switchover_bandwidth_bytes,omitempty"`

	MaxDowntime time.Duration `json:"max_downtime,omitempty"` // the ceiling of the ladder, where there is one
	// DowntimeSteps above 1 is a ladder to MaxDowntime, as Nova's: each step after another
	// DowntimeDelay for each GiB of the guest's data.
	DowntimeSteps int           `json:"downtime_steps,omitempty"`
	DowntimeDelay time.Duration `json:"downtime_delay,omitempty"`

	AutoConverge          Switch `json:"auto_converge,omitempty"`
	AutoConvergeInitial   int    `json:"auto_converge_initial,omitempty"`   // per cent of the guest's CPU time
	AutoConvergeIncrement int    `json:"auto_converge_increment,omitempty"` // per cent more each time

	Parallel int    `json:"parallel_connections,omitempty"` // above 1 sends memory by that many connections
	ZeroCopy Switch `json:"zero_copy,omitempty"`
	// Compression are methods: xbzrle, mt, zlib, zstd. "none" alone for none of them.
	Compression []string `json:"compression,omitempty"`
	XBZRLECache uint64   `json:"xbzrle_cache_bytes,omitempty"`
	MTLevel     int      `json:"compression_mt_level,omitempty"`
	MTThreads   int      `json:"compression_mt_threads,omitempty"`
	MTUnpack    int      `json:"compression_mt_dthreads,omitempty"`
	ZlibLevel   int      `json:"compression_zlib_level,omitempty"`
	ZstdLevel   int      `json:"compression_zstd_level,omitempty"`

	// Timeout is of the whole transfer, the switch-over included; TimeoutPerGiB is the same
	// for each GiB of the guest's data, of at least two (Nova's completion timeout). The
	// longer of them counts; 0 for none.
	Timeout       time.Duration `json:"timeout,omitempty"`
	TimeoutPerGiB time.Duration `json:"timeout_per_gib,omitempty"`
	TimeoutAction Action        `json:"timeout_action,omitempty"`
	// StallTimeout: no byte for this long is a dead link.
	StallTimeout time.Duration `json:"stall_timeout,omitempty"`

	PostCopy Switch `json:"post_copy,omitempty"` // permitted
	// CopyStorage is how disks go that hosts do not share: "all", "inc" (what is above the
	// backing file), or "none", which refuses a guest that has such disks.
	CopyStorage       string `json:"copy_storage,omitempty"`
	SynchronousWrites Switch `json:"copy_storage_synchronous_writes,omitempty"`
	DetectZeroes      Switch `json:"migrate_disks_detect_zeroes,omitempty"`

	// Schedule is what is done about a transfer that does not converge, as text; see
	// package converge.
	Schedule string `json:"schedule,omitempty"`
	// Observe has the schedule tell what it would do, and do nothing.
	Observe Switch `json:"observe_schedule,omitempty"`
}

// Switch is an option that is on, off, or not said.
type Switch string

// The switches.
const (
	Unsaid Switch = ""
	On     Switch = "on"
	Off    Switch = "off"
)

// Action is what is done at a transfer's deadline.
type Action string

// The actions.
const (
	ActionAbort    Action = "abort"     // it is undone; the default
	ActionSuspend  Action = "suspend"   // the guest's CPUs stand still until its memory is there
	ActionPostCopy Action = "post-copy" // it runs at the destination while its memory follows
	ActionForce    Action = "force"     // post-copy where it is permitted, else suspend
)

// From is who said an option.
type From string

// Who may have said it, the first that did counts.
const (
	FromRequest From = "request"
	FromFlavor  From = "flavor"
	FromConfig  From = "config"
	FromDefault From = "default"
)
