package drain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Limits bound a drain.
type Limits struct {
	Outbound int // moves under way at once
	Attempts int // at each guest
}

// Decision is what a drain does next.
type Decision struct {
	Begin []string // guests to begin with, in order
	// Waits is, by guest, why it is not begun now.
	Waits map[string][]fault.Reason
	// Over: nothing is under way, and nothing is left to begin.
	Over bool
	// Wake is when to decide anew though nothing has happened; 0 for never.
	Wake time.Duration
}

// Decide says what a drain does next. It is a function of its arguments.
func Decide(state State, guests []Guest, now runtime.BootTime, l Limits) Decision {
	d := Decision{Waits: map[string][]fault.Reason{}, Over: true}
	wake := func(in time.Duration) {
		if d.Wake == 0 || in < d.Wake {
			d.Wake = in
		}
	}
	under := 0
	for _, g := range guests {
		if g.State != Moving {
			continue
		}
		d.Over = false
		if rest := g.doubtful(now.Since); !g.doubt || rest > 0 {
			under++
			if g.doubt && state == Running {
				wake(rest)
			}
		}
	}
	if state != Running {
		return d
	}
	for _, g := range guests {
		if g.State != Waiting {
			continue
		}
		d.Over = false
		rest := g.After.Since - now.Since
		switch {
		case len(g.waits) > 0:
			d.Waits[g.Instance] = g.waits
		case g.How == HowUnknown:
			d.Waits[g.Instance] = []fault.Reason{{Code: "unplanned", Message: "how it can leave is not known yet"}}
		case g.After.ID == now.ID && rest > 0:
			wake(rest)
			d.Waits[g.Instance] = g.Reasons
		case under >= l.Outbound:
			d.Waits[g.Instance] = []fault.Reason{{
				Code: migration.CodeOutboundLimit, Message: fmt.Sprintf("%d moves are under way, which is as many as [migration] max_outbound allows", under),
				Want: fmt.Sprint(under + 1), Have: fmt.Sprint(l.Outbound),
			}}
		default:
			under++
			d.Begin = append(d.Begin, g.Instance)
		}
	}
	return d
}

// doubtLasts is how long a move is in doubt before its place is another one's. That a host did
// not answer for a moment is no reason to begin one more than may be under way. Arbitrary.
const doubtLasts = time.Minute

// doubtful is for how much longer a move in doubt keeps its place; 0 and less for no longer.
func (g Guest) doubtful(now time.Duration) time.Duration { return g.doubted + doubtLasts - now }

// before compares guests by the order in which they go: those that failed behind all others, in
// the order of their failures; else by priority, those with memory to lose first, and by name.
func before(a, b *Guest) int {
	if a.Turn > 0 || b.Turn > 0 {
		return cmp.Or(cmp.Compare(min(a.Turn, 1), min(b.Turn, 1)), cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.Instance, b.Instance))
	}
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Instance, b.Instance))
}

func rank(g *Guest) int {
	return slices.Index([]How{HowUnknown, HowLive, HowEvacuate, HowCold, HowStays}, g.How)
}

// The pauses after a move that did not come off. All arbitrary: room is made by guests that
// leave and by people, and a busy destination is free again as soon as one has arrived.
const (
	afterBusy     = 2 * time.Second // doubled with each time in a row
	afterBusyMost = 30 * time.Second
	afterFail     = 5 * time.Second // tripled with each attempt
	afterFailMost = 2 * time.Minute
)

// fate is what a move that is over means for its guest.
type fate string

const (
	fateMoved   fate = "moved"
	fateBusy    fate = "busy"      // no attempt
	fateFailed  fate = "failed"    // an attempt
	fateGivenUp fate = "given up"  // by somebody's abort of this one move
	fateRefused fate = "refused"   // an attempt, and the last: only a person's word can change it
	fateUnsure  fate = "not known" // nothing of it is known: begin it, with the same uuid
)

// fateOf reads the end of a move, or why it was not begun.
func fateOf(m migration.Migration, err error) (fate, []fault.Reason) {
	if err == nil && m.Outcome == migration.OutcomeCompleted {
		return fateMoved, nil
	}
	if err == nil && m.AbortRequested && m.Status == migration.StatusCancelled {
		return fateGivenUp, []fault.Reason{{
			Code: "move_aborted", Message: "somebody aborted its move " + m.UUID, Have: m.UUID, Change: "move it by itself, or drain the host again",
		}}
	}
	var reasons []fault.Reason
	if err == nil {
		// Each destination's own; the error tells them together.
		for _, r := range m.Refusals {
			reasons = append(reasons, r.Reasons...)
		}
		err = m.Error.Err()
		if err == nil {
			err = fault.New(fault.Undone, "migration %s is %s", m.UUID, m.Status)
		}
	}
	busy := fault.KindOf(err) == fault.Busy
	for _, code := range []string{migration.CodeInboundLimit, migration.CodeLinkLimit, migration.CodeLinkCrowded} {
		busy = busy || has(reasons, code) || has(fault.ReasonsOf(err), code)
	}
	if reasons = fault.ReasonsOf(err); len(reasons) == 0 {
		reasons = []fault.Reason{{Code: string(fault.KindOf(err)), Message: err.Error()}}
	}
	switch {
	case busy:
		return fateBusy, reasons
	case !slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code != migration.ReasonDataLost }):
		return fateRefused, reasons
	}
	return fateFailed, reasons
}

func has(reasons []fault.Reason, code string) bool {
	return slices.ContainsFunc(reasons, func(r fault.Reason) bool { return r.Code == code })
}

// after gives a guest whose move is over as it is from then on. turn is the next in the order of
// failures.
func (g Guest) after(f fate, reasons []fault.Reason, at time.Time, now runtime.BootTime, turn int, l Limits) Guest {
	g.Reasons, g.EndedAt, g.doubt, g.queued, g.progress = reasons, at, false, false, migration.Progress{}
	again := func(pause, most time.Duration, factor, times int) {
		for range times {
			if pause *= time.Duration(factor); pause >= most {
				pause = most
				break
			}
		}
		g.State, g.After = Waiting, runtime.BootTime{ID: now.ID, Since: now.Since + pause}
	}
	switch f {
	case fateMoved:
		g.State, g.Reasons, g.After = Moved, nil, runtime.BootTime{}
		if g.Begun.ID == now.ID {
			g.Took = now.Since - g.Begun.Since - g.waited
		}
	case fateBusy:
		again(afterBusy, afterBusyMost, 2, g.Busy)
		g.Busy++
	case fateGivenUp:
		g.State, g.Turn = Failed, turn
	default:
		g.Attempts, g.Turn, g.Busy = g.Attempts+1, turn, 0
		again(afterFail, afterFailMost, 3, g.Attempts-1)
		if g.Attempts >= l.Attempts || f == fateRefused {
			g.State = Failed
		}
	}
	return g
}

// left says whether a guest is still on its host when the drain is over.
func (g Guest) left() bool { return g.State != Moved && g.State != Gone }
