package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/screen"
)

// splitPlan gives the guests of a plan that would leave, and those that would stay.
func splitPlan(p api.DrainPlan) (leaving, staying []api.PlannedGuest) {
	for _, g := range p.Guests {
		if g.How == api.DrainStays {
			staying = append(staying, g)
		} else {
			leaving = append(leaving, g)
		}
	}
	return leaving, staying
}

// drainPlanTable shows a plan: a line for each guest, and below what is in the way of those
// that stay, or cannot go live.
func drainPlanTable(w io.Writer, p api.DrainPlan) {
	leaving, staying := splitPlan(p)
	for _, line := range screen.Fold(drainSummary(p, leaving, staying), planText) {
		fmt.Fprintln(w, line)
	}
	if len(p.Guests) == 0 {
		return
	}
	fmt.Fprintln(w)
	screen.Row(w, "#", "GUEST", "STATE", "HOW", "TO", "IN THE WAY")
	for i, g := range p.Guests {
		order, to := fmt.Sprint(i+1), cmp.Or(g.To, "nowhere yet")
		how := cmp.Or(g.How, "unknown")
		if g.How == api.DrainStays {
			order, to = "-", "-"
		}
		screen.Row(w, order, cmp.Or(g.Name, short(g.Instance)), g.State, how, to, inTheWay(g))
	}
	for _, g := range p.Guests {
		name := cmp.Or(g.Name, short(g.Instance))
		if len(g.Lost) > 0 {
			fmt.Fprintf(w, "\n%s LOSES what was written to %s: made anew from its image\n", name, strings.Join(g.Lost, ", "))
		}
		if len(g.Blockers) == 0 {
			continue
		}
		words := "would go " + string(g.How) + ", since"
		switch {
		case g.How == api.DrainStays:
			words = "would stay, since"
		case g.How == "":
			words = "could not be asked for, and is asked for again, since"
		case g.To == "":
			words = "can go nowhere at present, and is tried again as room is made, since"
		}
		fmt.Fprintf(w, "\n%s %s\n", name, words)
		reasonLines(w, g.Blockers)
	}
}

// inTheWay is the first thing that keeps a guest, short; what follows the table has it all.
func inTheWay(g api.PlannedGuest) string {
	var text string
	switch {
	case len(g.Blockers) > 0:
		text = abridge(g.Blockers[0].Message, 24)
		if n := len(g.Blockers) - 1; n > 0 {
			text += fmt.Sprintf(" (+%d)", n)
		}
	case len(g.Lost) > 0:
		text = "LOSES DATA of " + strings.Join(g.Lost, ", ")
	}
	return text
}

// drainSummary is what a plan comes to, in a line.
func drainSummary(p api.DrainPlan, leaving, staying []api.PlannedGuest) string {
	if len(p.Guests) == 0 {
		return p.Host + " has no guests."
	}
	verb := "would move away"
	if p.Evacuate {
		verb = "would be evacuated"
	}
	yet := nowhereYet(leaving)
	words := fmt.Sprintf("%s has %s: %d %s", p.Host, count(len(p.Guests), "guest"), len(leaving)-yet, verb)
	if yet > 0 {
		words += fmt.Sprintf(", %d could go nowhere yet", yet)
	}
	if len(staying) > 0 {
		words += fmt.Sprintf(", %d WOULD STAY", len(staying))
	}
	if len(leaving) > 1 && p.MaxOutbound > 0 {
		words += fmt.Sprintf(", %d at once", min(p.MaxOutbound, len(leaving)))
	}
	if p.Estimate > 0 && len(leaving) > 0 {
		words += ", in about " + rough(p.Estimate)
	}
	return words + "."
}

// nowhereYet counts the guests that nobody would take at present.
func nowhereYet(leaving []api.PlannedGuest) int {
	n := 0
	for _, g := range leaving {
		if g.To == "" {
			n++
		}
	}
	return n
}

// drainQuestion is what is asked before anything is done.
func drainQuestion(p api.DrainPlan, leaving, staying []api.PlannedGuest) string {
	var lost []string
	for _, g := range leaving {
		if len(g.Lost) > 0 {
			lost = append(lost, g.Name+" ("+strings.Join(g.Lost, ", ")+")")
		}
	}
	words := fmt.Sprintf("This moves %s away from %s", count(len(leaving), "guest"), p.Host)
	if p.Evacuate {
		words = fmt.Sprintf("This evacuates %s of %s", count(len(leaving), "guest"), p.Host)
	}
	if nowhereYet(leaving) > 0 {
		words += ", as far as there is room"
	}
	if len(staying) > 0 {
		words += fmt.Sprintf(", and leaves %d behind", len(staying))
	}
	if !p.Evacuate && p.Disabled == nil {
		words += "; the host takes no new guests from then on"
	}
	if len(lost) > 0 {
		words += ". DATA IS LOST of " + strings.Join(lost, ", ")
	}
	return words + "."
}

// drained counts the guests of a drain by what became of them.
type drained struct{ moved, moving, waiting, left, gone int }

func countDrained(d api.Drain) drained {
	var n drained
	for _, g := range d.Guests {
		switch g.State {
		case api.DrainedMoved:
			n.moved++
		case api.DrainedMoving:
			n.moving++
		case api.DrainedWaiting:
			n.waiting++
		case api.DrainedGone:
			n.gone++
		default:
			n.left++
		}
	}
	return n
}

// drainTable shows a drain as it is now, guest by guest.
func drainTable(w io.Writer, d api.Drain) {
	n := countDrained(d)
	head := fmt.Sprintf("%s of %s: %s", drainKind(d), d.Host, strings.ToUpper(string(d.State)))
	head += fmt.Sprintf(", %d of %s moved", n.moved, count(len(d.Guests), "guest"))
	if n.moving > 0 {
		head += fmt.Sprintf(", %d moving", n.moving)
	}
	if n.left > 0 {
		head += fmt.Sprintf(", %d left behind", n.left)
	}
	switch {
	case d.State.Over():
		head += ", in " + rough(d.EndedAt.Sub(d.BegunAt))
	case d.Left > 0:
		head += ", still about " + rough(d.Left)
	}
	fmt.Fprintln(w, head)
	fmt.Fprintf(w, "asked for by %s, %s\n\n", d.By, ago(d.BegunAt))
	screen.Row(w, "GUEST", "HOW", "STATE", "TO", "TOOK", "FAILURES", "WHY")
	for _, g := range d.Guests {
		took, why := "", ""
		switch {
		case g.State == api.DrainedMoving:
			took = rough(time.Since(g.BegunAt))
		case !g.EndedAt.IsZero() && !g.BegunAt.IsZero():
			took = rough(g.EndedAt.Sub(g.BegunAt))
		}
		if len(g.Reasons) > 0 {
			why = abridge(g.Reasons[0].Message, 60)
		}
		screen.Row(w, cmp.Or(g.Name, short(g.Instance)), g.How, g.State, g.To, took, g.Attempts, why)
	}
	leftLines(w, d)
}

// drainKind is what the queue does.
func drainKind(d api.Drain) string {
	if d.Evacuate {
		return "evacuation"
	}
	return "drain"
}

// leftLines say of each guest that is left behind all that keeps it.
func leftLines(w io.Writer, d api.Drain) {
	for _, g := range d.Guests {
		if g.State != api.DrainedFailed && g.State != api.DrainedStays {
			continue
		}
		words := "stays on " + d.Host
		if g.State == api.DrainedFailed && g.Attempts > 0 {
			words = fmt.Sprintf("stays on %s after %s", d.Host, count(g.Attempts, "attempt"))
		}
		fmt.Fprintf(w, "\n%s %s\n", cmp.Or(g.Name, short(g.Instance)), words)
		reasonLines(w, g.Reasons)
		if g.Migration != "" {
			fmt.Fprintf(w, "  berth migration show %s\n", g.Migration)
		}
	}
}

// drainResult says what a drain that is over has come to.
func drainResult(w io.Writer, d api.Drain) {
	n := countDrained(d)
	took := rough(d.EndedAt.Sub(d.BegunAt))
	moved, empty, full := "moved away", d.Host+" is empty", d.Host+" IS NOT EMPTY"
	if d.Evacuate {
		moved, empty, full = "evacuated", "nothing is left of "+d.Host, "NOT ALL OF "+d.Host+" IS EVACUATED"
	}
	switch d.State {
	case api.DrainDone:
		fmt.Fprintf(w, "%s: %s %s in %s\n", empty, count(n.moved, "guest"), moved, took)
		if !d.Evacuate {
			fmt.Fprintln(w, "it takes no new guests: berth host set --enable opens it again")
		}
	case api.DrainIncomplete:
		fmt.Fprintf(w, "%s: %d of %s %s in %s, %d left behind\n", full, n.moved, count(len(d.Guests), "guest"), moved, took, n.left+n.waiting+n.moving)
	case api.DrainAborted:
		fmt.Fprintf(w, "aborted: %d of %s %s in %s, and the others stay on %s\n", n.moved, count(len(d.Guests), "guest"), moved, took, d.Host)
	default:
		return
	}
	if n.gone > 0 {
		fmt.Fprintf(w, "%s left without the drain\n", count(n.gone, "guest"))
	}
	leftLines(w, d)
}

// drainProgress shows a drain as it goes: a line for each thing that happens to a guest,
// and, live, one below them that is written over and says how far all is.
type drainProgress struct {
	line progress
	was  map[string]api.DrainedGuest
}

func newDrainProgress(a *app) *drainProgress {
	return &drainProgress{line: *newProgress(a, ""), was: map[string]api.DrainedGuest{}}
}

func (p *drainProgress) show(d api.Drain) {
	// A guest that arrives makes room for one that begins: that is the order to tell it in.
	for _, begins := range []bool{false, true} {
		for _, g := range d.Guests {
			if begins != (g.State == api.DrainedMoving) {
				continue
			}
			if words := drainedWords(d, g, p.was[g.Instance]); words != "" {
				p.line.clear()
				fmt.Fprintln(p.line.w, words)
			}
			p.was[g.Instance] = g
		}
	}
	if p.line.live && !d.State.Over() {
		p.line.redraw(drainLine(d))
	}
}

func (p *drainProgress) end() { p.line.clear() }

// drainedWords say what has happened to a guest since it was last looked at; empty for
// nothing that is worth a line.
func drainedWords(d api.Drain, g, was api.DrainedGuest) string {
	if g.State == was.State && g.Migration == was.Migration && g.Attempts == was.Attempts {
		return ""
	}
	name := cmp.Or(g.Name, short(g.Instance))
	n := countDrained(d)
	switch g.State {
	case api.DrainedMoving:
		words := fmt.Sprintf("%s  goes %s to %s", name, g.How, cmp.Or(g.To, "the best host"))
		if g.How == api.DrainEvacuate {
			words = fmt.Sprintf("%s  is evacuated to %s", name, cmp.Or(g.To, "the best host"))
		}
		if g.Attempts > 0 {
			words += fmt.Sprintf(" (attempt %d)", g.Attempts+1)
		}
		return words
	case api.DrainedMoved:
		return fmt.Sprintf("%s  is on %s after %s (%d of %d)", name, g.To, rough(g.EndedAt.Sub(g.BegunAt)), n.moved, len(d.Guests))
	case api.DrainedFailed:
		if g.Attempts == 0 { // somebody has aborted its move, or nobody can decide it
			return fmt.Sprintf("%s  is left behind: %s", name, firstReason(g.Reasons))
		}
		return fmt.Sprintf("%s  FAILED after %s: %s", name, count(g.Attempts, "attempt"), firstReason(g.Reasons))
	case api.DrainedStays:
		return fmt.Sprintf("%s  stays: %s", name, firstReason(g.Reasons))
	case api.DrainedGone:
		return name + "  is not on " + d.Host + " any more"
	case api.DrainedWaiting:
		if g.Attempts > was.Attempts {
			return fmt.Sprintf("%s  attempt %d failed, and is made again later: %s", name, g.Attempts, firstReason(g.Reasons))
		}
		if was.State == api.DrainedMoving {
			return fmt.Sprintf("%s  waits: %s", name, firstReason(g.Reasons))
		}
	}
	return ""
}

func firstReason(reasons []fault.Reason) string {
	if len(reasons) == 0 {
		return "no reason is known"
	}
	return reasons[0].Message
}

// drainLine is a drain in one line, what matters most first.
func drainLine(d api.Drain) string {
	n := countDrained(d)
	words := fmt.Sprintf("%s  %d of %d moved", d.Host, n.moved, len(d.Guests))
	if d.State == api.DrainAborting {
		words = d.Host + "  aborting, " + fmt.Sprintf("%d of %d moved", n.moved, len(d.Guests))
	}
	if d.Left > 0 {
		words += ", ETA " + rough(d.Left)
	}
	if n.left > 0 {
		words += fmt.Sprintf(", %d left behind", n.left)
	}
	var now []string
	for _, g := range d.Guests {
		if g.State == api.DrainedMoving {
			now = append(now, g.Name+" -> "+cmp.Or(g.To, "?"))
		}
	}
	if len(now) > 0 {
		words += "  " + strings.Join(now, ", ")
	}
	return words
}
