package converge

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
)

// Schedule is what is done, in order, about a transfer that does not converge. Its text is
//
//	start:throttle=30+20, 2:max-downtime=800ms, 2:max-downtime=2s, 3:post-copy, 4:abort
//
// The number before a step's colon is how many stalls since the last action it waits for.
// Throttling stands at the beginning alone: the hypervisor is told of it when the job starts. Its
// numbers are per cent of the guest's CPU time, first and then more each time; either may be
// left to the hypervisor. The empty schedule does nothing.
type Schedule []Step

// Step is one step of a schedule.
type Step struct {
	// After is the number of stalls since the last action; 0 of what holds from the start.
	After     int
	Do        Act
	Downtime  time.Duration // of ActDowntime
	Initial   int           // of ActThrottle, per cent; 0 for the hypervisor's own
	Increment int           // of ActThrottle, per cent; 0 for the hypervisor's own
}

// Bounds of what a schedule may say. QEMU's own bound of a downtime is 2000 s; a hundred
// stalls are hours.
const (
	mostStalls  = 100
	mostSteps   = 32
	maxDowntime = 2000 * time.Second
)

// CodeSchedule is the reason by which a schedule is refused.
const CodeSchedule = "schedule"

// ParseSchedule reads a schedule; fault.Invalid with a reason for each thing that is wrong.
func ParseSchedule(text string) (Schedule, error) {
	var out Schedule
	var reasons []fault.Reason
	bad := func(step, format string, args ...any) {
		reasons = append(reasons, fault.Reason{Code: CodeSchedule, Message: fmt.Sprintf("step %q: ", step) + fmt.Sprintf(format, args...)})
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	parts := strings.Split(text, ",")
	if len(parts) > mostSteps {
		return nil, fault.Refuse(fault.Invalid, "schedule", fault.Reason{Code: CodeSchedule, Message: fmt.Sprintf("%d steps: want at most %d", len(parts), mostSteps)})
	}
	var before []Step // those that could be read
	for _, part := range parts {
		part = strings.TrimSpace(part)
		step, wrong := parseStep(part)
		for _, w := range wrong {
			bad(part, "%s", w)
		}
		if wrong == nil {
			for _, w := range follows(before, step) {
				bad(part, "%s", w)
			}
			before = append(before, step)
		}
		out = append(out, step)
	}
	if reasons != nil {
		return nil, fault.Refuse(fault.Invalid, "schedule", reasons...)
	}
	return out, nil
}

// parseStep reads one step, and gives everything that is wrong with it by itself.
func parseStep(text string) (step Step, wrong []string) {
	when, what, ok := strings.Cut(text, ":")
	if !ok {
		return step, []string{"want STALLS:ACTION or start:throttle"}
	}
	when, what = strings.TrimSpace(when), strings.TrimSpace(what)
	name, value, valued := strings.Cut(what, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	step.Do = Act(name)

	start := when == "start"
	n, err := strconv.Atoi(when)
	switch {
	case start:
	case err != nil || n < 1 || n > mostStalls:
		wrong = append(wrong, fmt.Sprintf("%q: want a number of stalls from 1 to %d, or start", when, mostStalls))
	default:
		step.After = n
	}
	switch step.Do {
	case ActThrottle:
		if !start {
			wrong = append(wrong, "throttle is possible at the start alone: the hypervisor cannot be told of it later")
		}
		if valued {
			wrong = append(wrong, parseThrottle(value, &step)...)
		}
		return step, wrong
	case ActDowntime:
		d, err := time.ParseDuration(value)
		if err != nil || d < time.Millisecond || d > maxDowntime || d%time.Millisecond != 0 {
			wrong = append(wrong, fmt.Sprintf("%q: want max-downtime=DURATION, whole milliseconds from 1ms to %s", value, maxDowntime))
		}
		step.Downtime = d
	case ActPostCopy, ActSuspend, ActAbort:
		if valued {
			wrong = append(wrong, name+" takes no value")
		}
	default:
		wrong = append(wrong, fmt.Sprintf("no action %q: want throttle, max-downtime, post-copy, suspend or abort", name))
	}
	if start {
		wrong = append(wrong, "at the start there is throttle alone")
	}
	return step, wrong
}

// parseThrottle reads INITIAL[+INCREMENT], each with or without a sign of per cent.
func parseThrottle(value string, step *Step) (wrong []string) {
	initial, increment, more := strings.Cut(value, "+")
	percent := func(text string, to *int) {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(text), "%"))
		if err != nil || n < 1 || n > 99 {
			wrong = append(wrong, fmt.Sprintf("%q: want per cent from 1 to 99, as in throttle=30+20", text))
		}
		*to = n
	}
	percent(initial, &step.Initial)
	if more {
		percent(increment, &step.Increment)
	}
	return wrong
}

// follows gives what is wrong with a step where it stands.
func follows(before []Step, step Step) (wrong []string) {
	if step.Do == ActThrottle && len(before) > 0 {
		wrong = append(wrong, "throttle is the first step, and there is one")
	}
	for _, b := range before {
		switch {
		case b.Do == ActAbort || b.Do == ActSuspend:
			wrong = append(wrong, fmt.Sprintf("nothing follows %s", b.Do))
		case b.Do == ActPostCopy && step.Do == ActPostCopy:
			wrong = append(wrong, "post-copy is there already")
		case b.Do == ActDowntime && step.Do == ActDowntime && step.Downtime <= b.Downtime:
			wrong = append(wrong, fmt.Sprintf("%s is no more than the %s before it", step.Downtime, b.Downtime))
		}
	}
	return wrong
}

// String is the schedule's text, which ParseSchedule reads.
func (s Schedule) String() string {
	out := make([]string, len(s))
	for i, step := range s {
		out[i] = step.String()
	}
	return strings.Join(out, ", ")
}

// String is the step as it stands in a schedule's text.
func (s Step) String() string {
	when := "start"
	if s.After > 0 {
		when = strconv.Itoa(s.After)
	}
	text := when + ":" + string(s.Do)
	switch {
	case s.Do == ActDowntime:
		text += "=" + s.Downtime.String()
	case s.Initial > 0:
		text += "=" + strconv.Itoa(s.Initial)
		if s.Increment > 0 {
			text += "+" + strconv.Itoa(s.Increment)
		}
	}
	return text
}

// MarshalText gives String, in JSON too.
func (s Schedule) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSchedule.
func (s *Schedule) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSchedule(string(text))
	return err
}

// Has reports whether an action is among the schedule's.
func (s Schedule) Has(do Act) bool {
	for _, step := range s {
		if step.Do == do {
			return true
		}
	}
	return false
}

// Throttle is by how much the guest is slowed down from the start; false where it is not.
func (s Schedule) Throttle() (initial, increment int, throttled bool) {
	if len(s) == 0 || s[0].Do != ActThrottle {
		return 0, 0, false
	}
	return s[0].Initial, s[0].Increment, true
}
