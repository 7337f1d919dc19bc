package conductor

import (
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/migration"
)

// Sample is one look at a stream.
type Sample struct {
	At     time.Duration           // boot clock
	Status *migration.StreamStatus // nil: the source or its hypervisor did not answer
}

// StreamLimits bound a stream.
type StreamLimits struct {
	Stall time.Duration // without progress: the link is dead
	Setup time.Duration // without a first byte: the destination does not come up
	Poll  time.Duration // to the next look
	Near  time.Duration // to the next look when the end is near
}

// Verdict is what a sample asks for.
type Verdict struct {
	// Abort is why the stream is to be given up; nil to go on watching.
	Abort error
	// Next is when to look again.
	Next time.Duration
}

// StreamWatch remembers of a stream's samples what the next verdict needs. The
// zero value has seen nothing.
type StreamWatch struct {
	seen   bool
	looked time.Duration // last sample
	moved  time.Duration // last sample with progress
	moving bool          // a byte has been seen
	last   migration.Progress
}

// Judge takes one more sample. It is a pure function of what the watch has seen,
// the sample and the limits. Whether a stream is over is not judged here: the
// hand-over table looks at the domain.
//
// Progress is a byte of memory or disk more, an iteration more, or another
// phase. libvirt itself does not notice a cut migration link for minutes. In its
// first one to three seconds a job has iteration 0 and nothing remaining, while
// the destination starts; that is neither done nor stalled, so it has its own
// limit. The dirty rate is not looked at: it stays 0 in some versions.
func (w StreamWatch) Judge(s Sample, l StreamLimits) (StreamWatch, Verdict) {
	if !w.seen {
		w.seen, w.looked, w.moved = true, s.At, s.At
	}
	limit, what := l.Stall, "no memory or disk bytes moved"
	if !w.moving {
		limit, what = l.Setup, "the destination did not begin to take the guest"
	}
	// Silence is no stall: nothing is known about the bytes. A look that came
	// late, since the agent or the hypervisor hung, is a silence too: libvirt
	// itself moves nothing while it hangs, and goes on afterwards.
	late := s.At-w.looked >= limit/2
	w.looked = s.At
	if s.Status == nil || late {
		w.moved = s.At
	}
	if s.Status == nil {
		return w, Verdict{Next: l.Poll}
	}
	p := s.Status.Progress
	if p.MemoryTotal == 0 && w.last.MemoryTotal > 0 {
		// A job that is just over has no figures: the last that it had stand.
		p = w.last
		p.Phase = s.Status.Progress.Phase
	}
	// The phase alone does not count as moving: "setup" is seen from nothing.
	if p.MemoryProcessed > w.last.MemoryProcessed || p.DiskProcessed > w.last.DiskProcessed || p.Iteration > w.last.Iteration {
		w.moved, w.moving = s.At, true
	} else if p.Phase != w.last.Phase {
		w.moved = s.At
	}
	w.last = p

	v := Verdict{Next: l.Poll}
	switch {
	case !s.Status.InFlight:
		// Nothing to give up.
	case limit > 0 && s.At-w.moved >= limit:
		v.Abort = fault.Refuse(fault.Unavailable, "live migration stalled", fault.Reason{
			Code:    "stalled",
			Message: fmt.Sprintf("%s for %s", what, (s.At - w.moved).Round(time.Millisecond)),
			Want:    limit.String(), Have: (s.At - w.moved).Round(time.Millisecond).String(),
			Change: "check the migration network between the two hosts",
		})
	}
	// Where the job is over and nothing decides, no look is in a hurry.
	if s.Status.InFlight && near(p, s.Status.Domain, l.Poll) {
		v.Next = l.Near
	}
	return w, v
}

// near says whether the end of the stream may come before the next usual look.
func near(p migration.Progress, d migration.DomainView, poll time.Duration) bool {
	// A guest that its user had paused stays "user" to the end.
	// A domain that is off or gone while its job is in flight ends it any moment.
	if p.Phase == "switchover" || d.State == "paused" && d.Reason != "user" && !inPostCopy(d) || d.State == "shut off" || !d.Exists {
		return true
	}
	if inPostCopy(d) {
		return false // the guest does not wait for its end
	}
	remaining := p.MemoryRemaining + p.DiskRemaining
	if p.Rate == 0 || p.MemoryProcessed == 0 {
		return false
	}
	// Four looks of margin; the rate is an average and the last pass is short.
	return float64(remaining) < float64(p.Rate)*(4*poll).Seconds()
}
