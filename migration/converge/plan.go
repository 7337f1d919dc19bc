package converge

import "time"

// Plan is what is to be done about one transfer. The zero Plan does nothing.
type Plan struct {
	Schedule Schedule
	// Observe has the schedule tell its actions, and nobody carry them out. Ladder and
	// deadline hold all the same.
	Observe bool

	// MaxDowntime is what the guest may stand still for; 0 for the hypervisor's own.
	MaxDowntime time.Duration
	// Steps above 1 makes a ladder up to MaxDowntime, of that many rungs above the first: the
	// next one after another StepDelay for each GiB of DataGiB.
	Steps     int
	StepDelay time.Duration
	DataGiB   int

	// Deadline is of the whole job, by the job's own clock; 0 for none. DeadlineAction is
	// what is done then; empty for abort. After any other there is a further time (see
	// Overtime) in which the switch-over must be over.
	Deadline       time.Duration
	DeadlineAction DeadlineAction

	// PostCopyAllowed: the guest may leave by post-copy.
	PostCopyAllowed bool
	// UnderReported: the guest has devices (VFIO) whose state is not in what remains.
	UnderReported bool
}

// DeadlineAction is what is done at a deadline.
type DeadlineAction string

// The actions.
const (
	DeadlineAbort    DeadlineAction = "abort"
	DeadlineSuspend  DeadlineAction = "suspend"
	DeadlinePostCopy DeadlineAction = "post-copy" // abort, where the guest may not
	DeadlineForce    DeadlineAction = "force"     // post-copy, and suspend where the guest may not
)

// hypervisorDowntime is QEMU's downtime-limit where nobody sets one.
const hypervisorDowntime = 300 * time.Millisecond

// FirstDowntime is what the job has to begin with: the ladder's lowest rung, MaxDowntime where
// there is no ladder, and 0 for the hypervisor's own.
func (p Plan) FirstDowntime() time.Duration { return p.rung(0) }

// ladder reports whether the downtime rises with time.
func (p Plan) ladder() bool { return p.Steps > 1 && p.MaxDowntime > 0 && p.StepDelay > 0 }

// rung is the downtime of a rung, from 0 to Steps. It rises in equal steps from MaxDowntime
// by Steps, as Nova's does (live_migration_downtime_steps).
func (p Plan) rung(i int) time.Duration {
	if !p.ladder() {
		return p.MaxDowntime
	}
	base := p.MaxDowntime / time.Duration(p.Steps)
	return (base + (p.MaxDowntime-base)*time.Duration(min(i, p.Steps))/time.Duration(p.Steps)).Truncate(time.Millisecond)
}

// rungAt is the rung whose time has come.
func (p Plan) rungAt(elapsed time.Duration) int {
	return int(min(elapsed/(p.StepDelay*time.Duration(max(p.DataGiB, 1))), time.Duration(p.Steps)))
}

// leastOvertime is for a short deadline: the switch-over of a guest of some GiB takes that
// long on a slow link.
const leastOvertime = 30 * time.Second

// Overtime is how long the switch-over may take after the deadline.
func (p Plan) Overtime() time.Duration { return max(p.Deadline/3, leastOvertime) }

// atDeadline is what is done at the deadline of this guest.
func (p Plan) atDeadline() Act {
	switch {
	case p.DeadlineAction == DeadlineSuspend:
		return ActSuspend
	case p.DeadlineAction != DeadlinePostCopy && p.DeadlineAction != DeadlineForce:
		return ActAbort
	case p.PostCopyAllowed:
		return ActPostCopy
	case p.DeadlineAction == DeadlineForce:
		return ActSuspend
	}
	return ActAbort
}
