package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"berth/migration"
)

// progress shows a migration as it goes: one line that is written over on a
// terminal; in a pipe a new line when the step changes and every few seconds.
type progress struct {
	w        io.Writer
	terminal bool
	open     bool // a line without its end stands on the terminal
	step     string
	shown    time.Time
}

// plainEvery is how often a line is printed where nothing can be written over.
const plainEvery = 5 * time.Second

func newProgress(a *app) *progress {
	return &progress{w: a.out, terminal: isTerminal(a.out)}
}

func (p *progress) show(m migration.Migration) {
	line, step := progressLine(m), string(m.Status)+m.Step
	if p.terminal {
		// Return, write, clear what an older and longer line left.
		fmt.Fprintf(p.w, "\r%s\x1b[K", line)
		p.open = true
		if m.Done() {
			p.end()
		}
		return
	}
	if step == p.step && time.Since(p.shown) < plainEvery {
		return
	}
	p.step, p.shown = step, time.Now()
	fmt.Fprintln(p.w, line)
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open = false
	}
}

// progressLine is a migration in one line.
func progressLine(m migration.Migration) string {
	to := m.DestCompute
	if to == "" {
		to = "?"
	}
	head := fmt.Sprintf("%s %s -> %s  %-14s", m.InstanceName, m.SourceCompute, to, m.Status)
	if m.Status != migration.StatusRunning || m.Progress.MemoryTotal == 0 {
		words := strings.ReplaceAll(m.Step, "_", " ")
		if m.Phase == "undoing" {
			words = "putting back: " + words
		}
		if m.Done() {
			words = string(m.Outcome)
		}
		return strings.TrimRight(head+" "+words, " ")
	}
	p := m.Progress
	total, left := p.MemoryTotal+p.DiskTotal, p.MemoryRemaining+p.DiskRemaining
	part := 0.0
	if total > 0 && left <= total {
		part = float64(total-left) / float64(total)
	}
	const cells = 20
	full := int(part * cells)
	bar := strings.Repeat("#", full) + strings.Repeat(".", cells-full)
	line := fmt.Sprintf("%s %-6s [%s] %3.0f%%  %s/s  %s left", head, p.Phase, bar, 100*part, size(p.Rate), size(left))
	if p.DirtyRate > 0 {
		line += fmt.Sprintf("  dirty %s/s", size(p.DirtyRate))
	}
	if p.Iteration > 1 {
		line += fmt.Sprintf("  pass %d", p.Iteration)
	}
	return line + "  " + eta(p, left)
}

// eta is how long it will still take, as far as one can tell: memory that
// changes as fast as it is sent never ends.
func eta(p migration.Progress, left uint64) string {
	if p.Rate == 0 {
		return "ETA ?"
	}
	dirty := p.DirtyRate
	if p.Phase == "disk" {
		dirty = 0
	}
	if dirty >= p.Rate {
		return "ETA never: it changes faster than it is sent"
	}
	return "ETA " + rough(time.Duration(float64(left)/float64(p.Rate-dirty)*float64(time.Second)))
}
