package converge

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// size is an amount in MiB.
func size(bytes float64) string {
	mib := bytes / (1 << 20)
	if mib < 9.95 {
		return strconv.FormatFloat(mib, 'f', 1, 64) + " MiB"
	}
	return strconv.FormatFloat(mib, 'f', 0, 64) + " MiB"
}

// long is a time as people say it: two digits of it.
func long(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// passesIn is a number of passes in words.
func passesIn(n int) string {
	if n == 1 {
		return "1 pass"
	}
	return strconv.Itoa(n) + " passes"
}

// situation is where the transfer stands.
func (s State) situation() string {
	low, ok := s.low()
	if !ok {
		return fmt.Sprintf("%s/s are sent; %s of memory and %s of disks remain", size(s.rate()), size(float64(s.last.MemoryRemaining)), size(float64(s.last.DiskRemaining)))
	}
	text := fmt.Sprintf("memory changes at %s/s and %s/s are sent; after %s %s remain",
		size(s.dirty), size(s.rate()), passesIn(s.passes), size(float64(s.pass.left)))
	if float64(low) < float64(s.pass.left)*(1-nearer) {
		text += fmt.Sprintf(" (%s at best)", size(float64(low)))
	}
	if need := s.implied(); need > 0 {
		text += fmt.Sprintf(", for which the guest would stand still for %s and may for %s", long(need), long(s.ceiling))
	}
	if s.last.Throttle > 0 {
		text += fmt.Sprintf("; it is slowed down by %d %%", s.last.Throttle)
	}
	return text
}

// stalled says why a step of the schedule is taken.
func (s State) stalled(step Step, p Plan) string {
	text := fmt.Sprintf("no nearer for %s: %s", passesIn(s.stalls), s.situation())
	switch step.Do {
	case ActDowntime:
		return text + fmt.Sprintf("; from now on it may stand still for %s", step.Downtime)
	case ActSuspend:
		return text + "; from now on it stands still until all is sent"
	case ActPostCopy:
		return text + "; it is to run at the destination while its memory follows"
	case ActAbort:
		return text + "; nothing that is left in its schedule helps"
	}
	return text
}

// late says what is done at the deadline.
func (s State) late(do Act, p Plan) string {
	text := fmt.Sprintf("not finished within %s: ", p.Deadline)
	if s.still() {
		if p.atDeadline() != ActAbort {
			text = fmt.Sprintf("not finished within %s, nor within another %s: ", p.Deadline, p.Overtime())
		}
		return text + fmt.Sprintf("the guest stands still, and %s of memory and %s of disks remain at %s/s",
			size(float64(s.last.MemoryRemaining)), size(float64(s.last.DiskRemaining)), size(s.rate()))
	}
	text += s.situation()
	switch {
	case do == ActSuspend:
		return text + "; from now on it stands still until all is sent"
	case do == ActPostCopy:
		return text + "; it is to run at the destination while its memory follows"
	case s.meter.slow:
		return text + fmt.Sprintf("; the link gave %s/s before it broke down", size(s.meter.usual))
	}
	return text
}

// ahead says what is done next if it goes on as it does: by the schedule, with time, and at the
// deadline. Empty for nothing.
func (s State) ahead(p Plan) string {
	if s.left || s.over {
		return ""
	}
	var out []string
	if !s.still() {
		out = append(out, s.aheadSchedule(p), s.aheadLadder(p))
	}
	if late := p.Deadline; late > 0 {
		do := p.atDeadline()
		if do != ActAbort && (s.still() || s.elapsed() >= late) {
			do, late = ActAbort, late+p.Overtime()
		}
		out = append(out, fmt.Sprintf("%s at %s", do, late))
	}
	return strings.Join(slices.DeleteFunc(out, func(x string) bool { return x == "" }), ", ")
}

func (s State) aheadSchedule(p Plan) string {
	for _, step := range p.Schedule[s.next:] {
		if step.Do == ActThrottle || s.passes > 0 && !s.helps(step, p) {
			continue
		}
		text := string(step.Do)
		if step.Do == ActDowntime {
			text += "=" + step.Downtime.String()
		}
		if p.Observe {
			text += " (only observed)"
		}
		return fmt.Sprintf("%s after %s without progress", text, strings.Replace(passesIn(max(1, step.After-s.stalls)), " ", " more ", 1))
	}
	return ""
}

func (s State) aheadLadder(p Plan) string {
	if !p.ladder() {
		return ""
	}
	for rung := s.rung + 1; rung <= p.Steps; rung++ {
		if d := p.rung(rung); d > s.ceiling {
			return fmt.Sprintf("%s=%s at %s", ActDowntime, d, time.Duration(rung)*p.StepDelay*time.Duration(max(p.DataGiB, 1)))
		}
	}
	return ""
}

// climbed says what the ladder's next rung is.
func (s State) climbed(d time.Duration, p Plan) string {
	return fmt.Sprintf("after %s of %s for each of %d steps it may stand still for %s, of %s at most",
		long(s.elapsed()), long(p.StepDelay*time.Duration(max(p.DataGiB, 1))), p.Steps, d, p.MaxDowntime)
}

// hopeless is what an abort for want of progress wants, has, and would have changed.
func (s State) hopeless(p Plan) (want, have, change string) {
	need := s.implied()
	enough := time.Duration(float64(need)*spread + float64(100*time.Millisecond)).Truncate(100 * time.Millisecond)
	change = fmt.Sprintf("allow a downtime of %s (--max-downtime) or more bandwidth than %s/s", enough, size(s.dirty))
	if p.Schedule.Has(ActThrottle) || s.last.Throttle > 0 {
		change += ", slow the guest down further (auto-converge)"
	} else {
		change += ", slow the guest down (auto-converge)"
	}
	if !p.PostCopyAllowed {
		change += ", permit post-copy"
	}
	return "a downtime of at most " + long(s.ceiling), "one of " + long(need), change + ", or move it when it does less"
}

// tooLate is the same of an abort at the deadline.
func (s State) tooLate(p Plan) (want, have, change string) {
	limit := p.Deadline
	if p.atDeadline() != ActAbort {
		limit += p.Overtime()
	}
	return limit.String(), long(s.elapsed()), "allow more time (--timeout), bandwidth or downtime, or have the schedule do something about it earlier"
}
