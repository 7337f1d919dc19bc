package converge

import "time"

// schedule takes the next step that can help, where its stalls are there.
func (s State) schedule(p Plan) (State, *Action) {
	if s.meter.slow || s.rate() == 0 {
		return s, nil // not the guest's fault: it is looked at again when the link is back
	}
	for ; s.next < len(p.Schedule); s.next++ {
		step := p.Schedule[s.next]
		if step.Do == ActThrottle || s.stalls >= min(step.After, evidence) && !s.helps(step, p) {
			continue
		}
		// What was passed over and helps now goes before what comes after it.
		if earlier, ok := s.passedOver(p); ok && s.stalls >= min(earlier.After, step.After) {
			return s.act(earlier, p)
		}
		if s.stalls < step.After {
			return s, nil
		}
		if step.Do == ActSuspend && !s.opportune() {
			s.waited++
			return s, nil
		}
		if step.Do == ActAbort && s.throttling() {
			return s, nil
		}
		s.next++
		return s.act(step, p)
	}
	if earlier, ok := s.passedOver(p); ok && s.stalls >= earlier.After {
		return s.act(earlier, p)
	}
	return s, nil
}

// helps reports whether a step could end it.
func (s State) helps(step Step, p Plan) bool {
	switch step.Do {
	case ActDowntime:
		if step.Downtime <= max(s.ceiling, s.asked) {
			return false
		}
		return p.UnderReported || float64(s.implied()) <= float64(step.Downtime)*spread
	case ActPostCopy:
		return p.PostCopyAllowed
	}
	return true
}

// passedOver is the first downtime that did not help when its turn was, and does now.
func (s State) passedOver(p Plan) (Step, bool) {
	for _, step := range p.Schedule[:s.next] {
		if step.Do == ActDowntime && s.helps(step, p) {
			return step, true
		}
	}
	return Step{}, false
}

// opportune reports whether the guest would stand still for as short a time as can be
// expected. The longer that has been waited for, the less is expected. (Post-copy has no such
// moment: it is a job of its own, which sends all memory.)
func (s State) opportune() bool {
	low, _ := s.low()
	return s.waited >= patience || float64(s.pass.left) <= float64(low)*(1+moment*float64(int(1)<<s.waited))
}

// throttling reports whether the hypervisor is still slowing the guest down further, or has just
// done so for the last time, and it is not known yet whether that helps.
func (s State) throttling() bool { return s.last.Throttle > 0 && s.steady <= throttleAfter }

// act is a step that is taken.
func (s State) act(step Step, p Plan) (State, *Action) {
	a := Action{Do: step.Do, Downtime: step.Downtime, Why: WhyStalled, Message: s.stalled(step, p), Observed: p.Observe}
	if step.Do == ActAbort {
		a.Want, a.Have, a.Change = s.hopeless(p)
	}
	s = s.afresh()
	s.asked = max(s.asked, step.Downtime)
	if !p.Observe {
		s = s.take(step.Do, step.Downtime)
	}
	return s, &a
}

// take notes an action that will have been done.
func (s State) take(do Act, downtime time.Duration) State {
	switch do {
	case ActDowntime:
		s.ceiling = downtime
	case ActSuspend:
		s.suspended = true
	case ActPostCopy:
		s.left = true
	case ActAbort:
		s.over = true
	}
	return s
}

// deadline looks whether the time is over. A switch-over that was begun then has its own.
func (s State) deadline(p Plan) (State, *Action) {
	elapsed, do := s.elapsed(), p.atDeadline()
	switch {
	case p.Deadline <= 0 || elapsed < p.Deadline:
		return s, nil
	case do == ActAbort || elapsed >= p.Deadline+p.Overtime():
		do = ActAbort
	case s.still(), s.meter.slow:
		// It is switching over; or the link is down, where a guest that stands still or
		// whose memory is at two hosts fares worse than one that runs.
		return s, nil
	}
	a := Action{Do: do, Why: WhyDeadline, Message: s.late(do, p)}
	if do == ActAbort {
		a.Want, a.Have, a.Change = s.tooLate(p)
	}
	return s.take(do, 0), &a
}

// climb takes the ladder's next rung, where its time has come and it is above what is allowed.
func (s State) climb(p Plan) (State, *Action) {
	if !p.ladder() {
		return s, nil
	}
	rung := p.rungAt(s.elapsed())
	if rung <= s.rung {
		return s, nil
	}
	s.rung = rung
	d := p.rung(rung)
	if d <= s.ceiling {
		return s, nil
	}
	s.ceiling = d
	return s, &Action{Do: ActDowntime, Downtime: d, Why: WhyLadder, Message: s.climbed(d, p)}
}
