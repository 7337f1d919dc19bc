// Package converge decides what is done about a live migration that does not come to its
// end: from samples of the hypervisor's job and a schedule to actions. It is pure; whoever
// watches the job feeds it, and does what it says.
//
// # What it goes by
//
// A hypervisor sends memory in passes. What the guest has written during one is found when
// the next begins, and only then: within a pass what remains just shrinks, and says nothing.
// So evidence is one number for each pass, what remained at its beginning, and a stall is a
// pass that begins no nearer to the end than the nearest since the last action. Looks between
// two passes make that number more exact, and tell the rates.
//
// The schedule's steps are taken in order, each after its number of stalls since the action
// before. A step that cannot help is passed over: a downtime in which what remains could not be
// sent, or post-copy of a guest that may not. Should it help later, it is taken then.
//
// Nothing is decided by what the guest is not to blame for: the time before the first byte,
// disks, and a link whose rate has broken down. A guest that stands still changes no memory, and
// one in post-copy has left: of the first only the deadline is looked at, of the second nothing.
package converge

import (
	"strings"
	"time"
)

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

// postCopy reports whether the guest has left.
func (x Sample) postCopy() bool { return strings.HasPrefix(x.Phase, "post-copy") }

// begun reports whether memory is being sent. In its first seconds a job says iteration 0
// and nothing remaining, while the destination starts; that is not done. Disks go first.
func (x Sample) begun() bool {
	return x.Phase != "setup" && x.Phase != "disk" && x.MemoryTotal > 0 && (x.Iteration > 0 || x.MemoryProcessed > 0)
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
	// Want, Have and Change are of an abort, as in a refusal: what there had to be, what
	// there is, and what would have to change.
	Want   string `json:"want,omitempty"`
	Have   string `json:"have,omitempty"`
	Change string `json:"change,omitempty"`
	// Observed: the plan only looks on, and it is not to be carried out.
	Observed bool `json:"observed,omitempty"`
}

// Why an action is due.
const (
	WhyStalled  = "stalled"         // the schedule's step, after its number of stalls
	WhyLadder   = "downtime_ladder" // the time of the ladder's next rung
	WhyDeadline = "timeout"         // the deadline, or the end of the time after it
)

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
	// Next is what will be done if it goes on as it does, in words; empty for nothing.
	Next string `json:"next,omitempty"`
	// Unreliable: the guest has devices whose state the hypervisor does not count.
	Unreliable bool `json:"unreliable,omitempty"`
}
