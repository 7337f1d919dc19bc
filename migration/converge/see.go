package converge

import (
	"math"
	"slices"
	"time"
)

// How passes are judged.
const (
	// nearer is by what part a pass has to begin nearer to the end than the nearest: less is
	// noise, and a transfer that gains less needs 45 passes to come to a tenth.
	nearer = 0.05
	// remembered is of how many passes the nearest counts for what the guest would stand
	// still for now: of a guest that is now busy and now quiet it holds both.
	remembered = 8
	// evidence is after how many stalls it is known what does not help.
	evidence = 2
	// spread is by how much a downtime may be too short for what remains and still help: what
	// remains differs from pass to pass, and the hypervisor looks at each.
	spread = 1.25
	// patience is how many passes a suspension waits for a good moment. Each pass may be worse
	// than the nearest by twice as much as the one before, from moment on.
	patience = 4
	moment   = 0.05
	// throttleAfter is after how many passes at the latest QEMU slows a guest down further, where
	// that is needed: two, and one for a look that comes late.
	throttleAfter = 3
)

// State is what has been seen of one transfer. It is a value; the zero State has seen nothing.
type State struct {
	seen  bool
	first time.Duration // boot clock, of the first sample
	last  Sample
	meter meter
	dirty float64 // smoothed, bytes a second; 0 for unknown, and of a guest that is idle

	pass     pass
	begun    bool          // memory is under way
	passes   int           // those whose beginning was seen
	judged   time.Duration // boot clock: when passes were judged last
	nearest  uint64        // what remained at the nearest since then
	throttle int           // per cent, when the last pass began
	dropped  bool          // since then the link had broken down

	recent [remembered]uint64 // what remained when the last passes began
	best   uint64             // the least of it since the last action
	steady int                // passes since the guest was slowed down further
	row    int                // passes without progress in a row
	stalls int                // of them, those since the last action

	ceiling time.Duration // what the guest may stand still for now
	known   bool          // ceiling is not the plan's
	asked   time.Duration // the highest downtime that the schedule has asked for
	rung    int           // of the ladder

	next      int    // step of the schedule
	waited    int    // passes for a good moment
	suspended bool   // asked for, at the deadline or by the schedule
	stopped   bool   // the guest stands still
	unfound   uint64 // of what it wrote before
	left      bool   // by post-copy, or about to
	over      bool   // given up
}

// pass is one pass over the memory.
type pass struct {
	iteration uint64
	at        time.Duration // when it began, as nearly as that is known
	left      uint64        // what remained then
	sent      uint64        // MemoryProcessed then
}

// WithDowntime notes a bound that the job has by other hands: a person's, or one from before
// the watcher began anew.
func (s State) WithDowntime(d time.Duration) State {
	s.ceiling, s.known = d, true
	return s.afresh()
}

// WithBandwidth notes that the job was given another bandwidth by other hands: what the link
// gave as a rule is no measure any more.
func (s State) WithBandwidth() State {
	s.meter = s.meter.anew(s.last.At)
	return s.afresh()
}

// afresh counts stalls from an action on: what came before it is no measure of what comes after.
func (s State) afresh() State {
	s.stalls, s.waited, s.best = 0, 0, s.pass.left
	return s
}

// See takes one more sample, and gives what is due and how it will go on. It is a pure function.
// What it asks for it takes for done; where that failed, go on with the state from before.
//
// There is at most one action at a time. After an abort, and once post-copy was asked for or is
// seen, there is none.
func (s State) See(x Sample, p Plan) (State, []Action, Estimate) {
	if !s.seen {
		s.seen, s.first = true, x.At
		s.meter.at = x.At
	} else {
		s.meter = s.meter.add(s.last, x)
	}
	if !s.known {
		s.ceiling, s.known = p.FirstDowntime(), true
	}
	if s.ceiling == 0 {
		s.ceiling = hypervisorDowntime
	}
	s.left = s.left || x.postCopy()
	var fresh bool
	if x.begun() && !s.left {
		s, fresh = s.follow(x)
	}
	s = s.stop(x)
	s.last = x
	est := s.estimate(p)

	var due *Action
	if !s.left && !s.over {
		if s, due = s.deadline(p); due == nil && !s.still() {
			if fresh {
				s, due = s.schedule(p)
			}
			if due == nil {
				s, due = s.climb(p)
			}
		}
	}
	est.Next = s.ahead(p)
	if due == nil {
		return s, nil, est
	}
	return s, []Action{*due}, est
}

// stop notes when the guest begins to stand still. What it has written since the pass began is not
// in what remains, and is found when the next begins.
func (s State) stop(x Sample) State {
	switch {
	case !x.Suspended:
		s.stopped, s.unfound = false, 0
	case !s.stopped:
		s.stopped = true
		if s.passes > 0 {
			s.unfound = uint64(s.dirty * (x.At - s.pass.at).Seconds())
		}
	}
	return s
}

// still reports whether the guest stands still, or was told to.
func (s State) still() bool { return s.last.Suspended || s.suspended }

// follow looks whether a pass has begun, and judges it: true where that is new evidence. Passes
// that are shorter than a second are judged together, since what remains at their beginnings is
// not known exactly enough: near its end a transfer would seem to stall that does not.
func (s State) follow(x Sample) (State, bool) {
	if !s.begun || x.Iteration < s.pass.iteration {
		// The first is not seen from its beginning, and the hypervisor's count may include
		// a job that was cancelled. How fast disks went says nothing about memory.
		s.begun, s.passes, s.row, s.stalls, s.dirty = true, 0, 0, 0, 0
		s.meter = meter{at: x.At}
		s.pass = pass{iteration: x.Iteration, at: x.At, left: x.MemoryRemaining, sent: x.MemoryProcessed}
		s.judged, s.nearest, s.dropped = x.At, math.MaxUint64, false
		return s, false
	}
	s.dropped = s.dropped || s.meter.slow
	if x.Iteration == s.pass.iteration {
		return s, false
	}
	begins := s.beginning(x)
	s.dirty = s.dirtied(begins, x)
	s.passes++
	s.recent[(s.passes-1)%remembered] = begins.left
	if s.steady++; x.Throttle > s.throttle {
		s.steady = 0
	}
	s.throttle = x.Throttle
	s.pass, s.nearest, s.unfound = begins, min(s.nearest, begins.left), 0
	if s.passes > 1 && x.At-s.judged < window {
		return s, false
	}
	switch {
	case s.passes == 1:
		// Now it is known what a pass is. The rate of the first was perhaps one of zeroes.
		s.best, s.meter.usual = s.nearest, 0
	case s.still():
	case s.dropped:
		// What the link has lost is no measure.
		s.best = s.nearest
	case float64(s.nearest) < float64(s.best)*(1-nearer):
		s.best, s.row, s.stalls, s.waited = s.nearest, 0, 0, 0
	default:
		s.row, s.stalls = s.row+1, s.stalls+1
	}
	s.judged, s.nearest, s.dropped = x.At, math.MaxUint64, false
	return s, s.passes > 1
}

// beginning is when the pass began that is seen for the first time, and what remained then: what
// was sent since is what was sent since the last look, without the end of the pass before. A
// hypervisor ends a pass when what remains fits in the downtime.
func (s State) beginning(x Sample) pass {
	b := pass{iteration: x.Iteration, at: x.At, left: x.MemoryRemaining, sent: x.MemoryProcessed}
	if x.Iteration != s.pass.iteration+1 || s.meter.wire == 0 {
		return b
	}
	moved, _ := less(x.MemoryProcessed, s.last.MemoryProcessed)
	rest, _ := less(s.last.MemoryRemaining, uint64(s.meter.wire*s.ceiling.Seconds()))
	since, _ := less(moved, rest)
	since, _ = less(min(x.MemoryTotal, b.left+since), min(x.MemoryTotal, b.left))
	b.left, b.sent = b.left+since, b.sent-min(since, b.sent)
	b.at = max(s.last.At, x.At-span(float64(since), s.meter.wire))
	return b
}

// dirtied is at which rate memory changes: as the hypervisor says, or what remains more than
// was left of the pass before, by the time that this took. The first pass is longer than those
// that follow, in which memory that is written again and again counts more often: its rate is
// forgotten.
func (s State) dirtied(b pass, x Sample) float64 {
	mean := s.dirty
	if s.passes < 2 {
		mean = 0
	}
	if x.DirtyRate > 0 {
		return smooth(mean, float64(x.DirtyRate), newest)
	}
	if s.still() || b.at <= s.pass.at {
		return s.dirty
	}
	sent, _ := less(b.sent, s.pass.sent)
	rest, _ := less(s.pass.left, sent)
	fresh, _ := less(b.left, min(rest, s.last.MemoryRemaining))
	return smooth(mean, float64(fresh)/(b.at-s.pass.at).Seconds(), newest)
}

// rate is at which rate is sent, as far as one can tell.
func (s State) rate() float64 {
	if s.meter.wire > 0 {
		return s.meter.wire
	}
	return float64(s.last.Rate)
}

// low is what remained at the nearest of the last passes; false before there was one.
func (s State) low() (uint64, bool) {
	n := min(s.passes, remembered)
	if n == 0 {
		return 0, false
	}
	return slices.Min(s.recent[:n]), true
}

// implied is for how long the guest would stand still at the nearest of the last passes; 0 for
// unknown.
func (s State) implied() time.Duration {
	low, ok := s.low()
	if !ok || s.rate() == 0 {
		return 0
	}
	return max(span(float64(low), s.rate()), time.Millisecond)
}

// span is how long it takes to send something.
func span(bytes, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(min(bytes/rate*1e9, math.MaxInt64/2)).Truncate(time.Millisecond)
}

// elapsed is the job's time.
func (s State) elapsed() time.Duration { return max(s.last.Elapsed, s.last.At-s.first) }

// estimate tells how it will go on.
func (s State) estimate(p Plan) Estimate {
	x := s.last
	e := Estimate{Rate: uint64(s.rate()), DirtyRate: uint64(s.dirty), Stalls: s.row, Unreliable: p.UnderReported}
	rate, remaining := s.rate(), float64(x.MemoryRemaining+x.DiskRemaining)
	if s.left || s.still() {
		e.DirtyRate, e.Stalls = 0, 0
		e.Remaining = span(remaining+float64(s.unfound), rate)
		if !s.left {
			e.Downtime = e.Remaining
		}
		return e
	}
	if !s.begun || s.passes == 0 {
		// Pages of zeroes go faster than the wire.
		e.Remaining = span(remaining, max(rate, s.meter.drain))
		return e
	}
	e.Downtime = span(float64(s.pass.left), rate)
	// While the link is down, nothing is foretold by it: what it gives as a rule counts.
	if s.meter.slow {
		rate = s.meter.usual
	}
	switch {
	case s.implied() <= s.ceiling:
		e.Remaining = span(remaining, s.rate())
	case s.dirty >= rate*(1-nearer) || s.row >= evidence:
		// A guest that writes the same memory again and again is not seen to change more than
		// is sent.
		e.Never = true
	default:
		e.Remaining = span(remaining, rate-s.dirty)
		e.Never = e.Remaining > forever
	}
	if e.Never {
		e.Remaining = 0
	}
	return e
}

// forever is as good as never.
const forever = 365 * 24 * time.Hour
