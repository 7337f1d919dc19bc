// Package converge decides what is done about a live migration that does not come to its
// end: from samples of the hypervisor's job and a schedule to actions. It is pure; whoever
// watches the job feeds it, and does what it says.
package converge

import "time"

// Sample is the job at one moment.
type Sample struct {
	At time.Duration // boot clock

	Phase           string // setup, memory, disk, switchover, post-copy
	Elapsed         time.Duration
	MemoryTotal     uint64 // bytes
	MemoryProcessed uint64
	MemoryRemaining uint64
	DiskTotal       uint64
	DiskProcessed   uint64
	DiskRemaining   uint64
	Rate            uint64 // bytes a second, as the hypervisor has it; 0 for unknown
	DirtyRate       uint64 // bytes a second, as the hypervisor has it; often 0
	Iteration       uint64
	Throttle        int // per cent
	// Downtime is what the hypervisor expects; 0 for unknown.
	Downtime  time.Duration
	Suspended bool // the guest's CPUs stand still already
}

// Act is one kind of action.
type Act string

// The actions of a schedule.
const (
	ActDowntime Act = "max-downtime" // raise what the guest may stand still for
	ActThrottle Act = "throttle"     // slow the guest down: only from the beginning, see Plan
	ActPostCopy Act = "post-copy"
	ActSuspend  Act = "suspend"
	ActAbort    Act = "abort"
)

// Action is one action that is due.
type Action struct {
	Do       Act           `json:"do"`
	Downtime time.Duration `json:"max_downtime,omitempty"` // of ActDowntime
	// Why is a code for programs, and Message the same for people.
	Why     string `json:"why"`
	Message string `json:"message"`
}

// Estimate is how it will go on, as far as one can tell.
type Estimate struct {
	Rate      uint64 `json:"rate_bytes"`       // smoothed, bytes a second; 0 for unknown
	DirtyRate uint64 `json:"dirty_rate_bytes"` // smoothed, bytes a second; 0 for unknown
	// Remaining is how long it will take; 0 for unknown, and Never where it does not end by
	// itself.
	Remaining time.Duration `json:"remaining"`
	Never     bool          `json:"never"`
	// Downtime is for how long the guest would stand still, if the rest were sent now; 0
	// for unknown.
	Downtime time.Duration `json:"downtime"`
	// Stalls counts the passes in a row that came no nearer to the end.
	Stalls int `json:"stalls"`
}
