package conductor

import (
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/options"
)

// controller watches how one stream converges, and says what is due (package converge). It is
// a value: where what it asked for could not be done, the controller from before the look asks
// for it anew.
//
// What it has counted dies with the agent, and is counted anew by the one that adopts the job;
// what the guest may stand still for is read from the record, and the deadline goes by the job's
// own clock.
type controller struct {
	plan  converge.Plan
	state converge.State
	last  converge.Estimate
}

// newController begins to watch. Of the record the options and what has been done to the stream
// of its current attempt count.
func newController(rec migration.Migration, guest migration.Guest, cfg Config) (controller, error) {
	plan, err := convergePlan(rec.Options, guest)
	if err != nil {
		return controller{}, err
	}
	c := controller{plan: plan}
	begun := rec.CreatedAt
	if i := slices.IndexFunc(rec.Steps, func(s migration.StepRecord) bool { return s.Name == migration.StepStream }); i >= 0 {
		begun = rec.Steps[i].Begun
	}
	for _, done := range rec.Control {
		if done.Done && done.Action.Do == converge.ActDowntime && !done.At.Before(begun) {
			c = c.tuned(migration.Tuning{MaxDowntime: done.Action.Downtime})
		}
	}
	return c, nil
}

// convergePlan is what the options ask for. Nothing set asks for nothing.
func convergePlan(o migration.Options, guest migration.Guest) (converge.Plan, error) {
	schedule, err := converge.ParseSchedule(o.Schedule)
	if err != nil {
		return converge.Plan{}, err
	}
	data := dataGiB(guest)
	return converge.Plan{
		Schedule: schedule, Observe: o.Observe == options.On,
		MaxDowntime: o.MaxDowntime, Steps: o.DowntimeSteps, StepDelay: o.DowntimeDelay, DataGiB: data,
		Deadline:        max(o.Timeout, o.TimeoutPerGiB*time.Duration(data)),
		DeadlineAction:  converge.DeadlineAction(o.TimeoutAction),
		PostCopyAllowed: o.PostCopy == options.On,
		UnderReported:   hasVFIO(guest),
	}, nil
}

// jobOptions are the options with which the job has to begin: the ladder's lowest rung, and
// the throttling with which the schedule starts, unless that is only observed.
func jobOptions(o migration.Options) (migration.Options, error) {
	plan, err := convergePlan(o, migration.Guest{})
	if err != nil {
		return o, err
	}
	o.MaxDowntime = plan.FirstDowntime()
	if initial, increment, throttled := plan.Schedule.Throttle(); throttled && !plan.Observe {
		o.AutoConverge, o.AutoConvergeInitial, o.AutoConvergeIncrement = options.On, initial, increment
	}
	return o, nil
}

// dataGiB is Nova's measure of a guest's data (_live_migration_data_gb): GiB of memory and of each
// disk, of each at least two. Here a disk that hosts share counts too, which makes times longer,
// never shorter.
func dataGiB(g migration.Guest) int {
	total := max(2, roundUp(g.Resources.MemoryMB, 1024))
	for _, d := range g.Disks {
		if !d.ReadOnly && !d.Shareable && !d.Network {
			total += max(2, roundUp(d.VirtualSize, 1<<30))
		}
	}
	return int(total)
}

func roundUp(n, of int64) int64 { return (n + of - 1) / of }

// hasVFIO reports whether a device of the host is the guest's own: what QEMU has still to send
// of it is not counted in what remains (before QEMU 11.1).
func hasVFIO(g migration.Guest) bool {
	return len(g.Assignment.Devices)+len(g.Assignment.Mdevs) > 0 || strings.Contains(g.XML, "<hostdev")
}

// see takes one more look at the stream, and gives what is due and how it will go on. A look
// that was not answered, or found no job, changes nothing.
func (c controller) see(at time.Duration, st *migration.StreamStatus) (controller, []converge.Action, converge.Estimate) {
	if st == nil || !st.InFlight {
		return c, nil, c.last
	}
	var due []converge.Action
	c.state, due, c.last = c.state.See(sampleOf(at, st), c.plan)
	return c, due, c.last
}

// tuned notes a bound that the stream was given by another hand.
func (c controller) tuned(t migration.Tuning) controller {
	if t.MaxDowntime > 0 {
		c.state = c.state.WithDowntime(t.MaxDowntime)
	}
	if t.Bandwidth > 0 {
		c.state = c.state.WithBandwidth()
	}
	return c
}

// refused notes that what was asked for at a look is impossible for this move, with the
// controller from before the look: it goes on with what comes after.
func (c controller) refused(before controller, a converge.Action) controller {
	if a.Do == converge.ActPostCopy {
		c = before // else it would take the guest for one that has left
		c.plan.PostCopyAllowed = false
	}
	return c
}

// sampleOf is a stream's status in the controller's words.
func sampleOf(at time.Duration, st *migration.StreamStatus) converge.Sample {
	p := st.Progress
	return converge.Sample{
		At: at, Phase: p.Phase, Elapsed: p.Elapsed,
		MemoryTotal: p.MemoryTotal, MemoryProcessed: p.MemoryProcessed, MemoryRemaining: p.MemoryRemaining,
		DiskTotal: p.DiskTotal, DiskProcessed: p.DiskProcessed, DiskRemaining: p.DiskRemaining,
		Rate: p.Rate, DirtyRate: p.DirtyRate, Iteration: p.Iteration, Throttle: p.Throttle, Downtime: p.Downtime,
		Suspended: st.Domain.Exists && st.Domain.State == "paused",
	}
}

// estimated is a stream's progress with what the controller makes of it.
func estimated(p migration.Progress, e converge.Estimate) migration.Progress {
	if p.Rate == 0 {
		p.Rate = e.Rate
	}
	if p.DirtyRate == 0 {
		p.DirtyRate = e.DirtyRate
	}
	p.Remaining, p.Never, p.ExpectedDowntime, p.Stalls = e.Remaining, e.Never, e.Downtime, e.Stalls
	p.Next = e.Next
	return p
}

// abortOf is an abort of the controller's as the reason by which the move is undone.
func abortOf(a converge.Action) error {
	return fault.Refuse(fault.Undone, "live migration", fault.Reason{
		Code: a.Why, Message: a.Message, Want: a.Want, Have: a.Have, Change: a.Change,
	})
}
