package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"berth/migration"
	"berth/migration/task"
)

const startingTransfer = "starting the transfer"

// streamWords say what a transfer does before the guest has left.
func streamWords(p migration.Progress) string {
	switch {
	case p.Phase == "switchover":
		return "switching over"
	case p.Phase == "disk" && p.DiskTotal > 0:
		return "sending disks"
	case p.Phase == "memory" && p.MemoryTotal > 0:
		return "sending memory"
	}
	return startingTransfer
}

// followWords say how post-copy goes: the guest has left, and its memory follows.
func followWords(p migration.Progress, to string) string {
	if p.Phase == phaseBroken {
		return brokeWords + ": the guest waits on " + to + " for memory, connecting again"
	}
	return "post-copy: it runs on " + to + ", its memory follows"
}

const brokeWords = "post-copy broke"

// The phases of post-copy.
const (
	phasePostCopy = "post-copy"
	phaseBroken   = "post-copy failed"
)

// transfer is what is counted of a move at present: disks are copied first. what is empty
// where nothing is sent, or nobody knows how much.
func transfer(m migration.Migration) (what string, total, left uint64) {
	p := m.Progress
	switch {
	case m.Done() || m.Phase != task.Doing || len(m.Waits) > 0:
		return "", 0, 0
	case m.Step == migration.StepFollowPostCopy && p.Phase == phasePostCopy:
		what, total, left = "post-copy", p.MemoryTotal, p.MemoryRemaining
	case m.Step == migration.StepShipDisks, m.Step == migration.StepStream && p.Phase == "disk":
		what, total, left = "disks", p.DiskTotal, p.DiskRemaining
	case m.Step == migration.StepStream && p.Phase == "memory":
		what, total, left = "memory", p.MemoryTotal, p.MemoryRemaining
	}
	if total == 0 {
		return "", 0, 0
	}
	return what, total, left
}

// sent is how much of it is there, from 0 to 1.
func sent(total, left uint64) float64 {
	if left > total {
		return 0
	}
	return float64(total-left) / float64(total)
}

// percent is the same for people: what is not all there is never 100.
func percent(total, left uint64) int { return int(100 * sent(total, left)) }

// brief is size with as many digits as a line that changes all the time needs.
func brief(n uint64) string {
	text := size(n)
	if digits, unit, ok := strings.Cut(text, " "); ok && len(digits) > len("9.9") {
		whole, _, _ := strings.Cut(digits, ".")
		return whole + " " + unit
	}
	return text
}

// progressLine is a migration in one line, what matters most first; what can be spared is
// left out where the line would be longer than most.
func progressLine(m migration.Migration, doing string, most int) string {
	to := m.DestCompute
	if to == "" {
		to = "(choosing)"
	}
	head := fmt.Sprintf("%s  %s -> %s  ", m.InstanceName, m.SourceCompute, to)
	if m.InPlace || m.MigrationType == migration.TypeRebuild || m.DestCompute == "" && len(m.Waits) > 0 {
		head = fmt.Sprintf("%s  %s  ", m.InstanceName, m.SourceCompute)
	}
	what, total, left := transfer(m)
	if what == "" || strings.HasPrefix(doing, "held up") {
		return head + doing
	}
	p := m.Progress
	line := fmt.Sprintf("%s%-6s %3d%%  %s  %7s/s  %7s left", head, what, percent(total, left), eta(p, left), brief(p.Rate), brief(left))
	for _, part := range controlWords(p) {
		line += "  " + part
	}
	const cells = 20
	full := int(sent(total, left) * cells)
	bar := "  [" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "]"
	if utf8.RuneCountInString(line+bar) <= most {
		line += bar
	}
	return line
}

// controlWords are what tells whether memory comes to its end, most telling first; none of a
// guest that writes next to nothing.
func controlWords(p migration.Progress) []string {
	var out []string
	say := func(is bool, format string, args ...any) {
		if is {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	say(p.Iteration > 1 && p.Phase == "memory", "pass %d", p.Iteration)
	say(p.DirtyRate > 0, "dirty %s/s", brief(p.DirtyRate))
	say(p.Throttle > 0, "throttled %d%%", p.Throttle)
	say(p.ExpectedDowntime > 0 && p.Phase == "memory", "would stop %s", rough(p.ExpectedDowntime))
	return out
}

// eta is how long it will still take, as far as one can tell: memory that changes as fast as
// it is sent never ends by itself.
func eta(p migration.Progress, left uint64) string {
	switch {
	case p.Never:
		return "ETA never"
	case p.Remaining > 0:
		return fmt.Sprintf("ETA %-5s", rough(p.Remaining))
	case p.Rate == 0:
		return "ETA ?    "
	}
	// Disks, and records of agents that made no estimate.
	dirty := p.DirtyRate
	if p.Phase != "memory" {
		dirty = 0
	}
	if dirty >= p.Rate {
		return "ETA never"
	}
	return fmt.Sprintf("ETA %-5s", rough(time.Duration(float64(left)/float64(p.Rate-dirty)*float64(time.Second))))
}
