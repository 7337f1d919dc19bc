package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"berth/internal/screen"
	"berth/internal/visible"
	"berth/migration"
	"berth/migration/task"
)

// progress shows a migration as it goes. Live, on a terminal or where
// BERTH_PROGRESS=live says that somebody watches through a pipe, it is one line
// that is written over. Plain, it is a new line when what is being done changes,
// and every plainEvery while it stays the same.
type progress struct {
	w     io.Writer
	live  bool
	width int              // of the terminal, in columns; live only
	now   func() time.Time // replaced in tests
	to    string           // destination that was asked for; empty where Placement decides

	open  bool // a line without its end stands on the terminal
	drawn int  // how long it is
	doing string
	sent  bool // bytes were seen to move
	shown time.Time
}

// plainEvery is how often a line is printed where nothing can be written over.
const plainEvery = 2 * time.Second

// unknownWidth is for a pipe: 80 columns, of which whoever reads the pipe may
// want some for an indent.
const unknownWidth = 76

// plainWidth is how long lines may be of which nobody knows where they are read.
const plainWidth = 80

func newProgress(a *app, to string) *progress {
	p := &progress{w: screen.Behind(a.out), live: screen.IsTerminal(a.out) || os.Getenv("BERTH_PROGRESS") == "live", now: time.Now, to: to, width: unknownWidth}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		p.width = n
	}
	if f, ok := p.w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
			p.width = n
		}
	}
	return p
}

func (p *progress) show(m migration.Migration) {
	if m.DestCompute == "" {
		m.DestCompute = p.to
	}
	doing := doingWords(m)
	if m.Step == migration.StepStream && p.sent && doing == startingTransfer {
		doing = "" // the hypervisor has forgotten a job that is over
	}
	p.sent = p.sent || strings.HasPrefix(doing, "sending")
	if doing == "" { // between two steps
		if doing = p.doing; doing == "" {
			doing = "checking both hosts"
		}
	}
	line := visible.Text(progressLine(m, doing, p.most()))
	if p.live {
		p.redraw(line)
	} else if doing != p.doing || p.now().Sub(p.shown) >= plainEvery {
		p.shown = p.now()
		fmt.Fprintln(p.w, line)
	}
	p.doing = doing
	if m.Done() || m.Status == migration.StatusFinished {
		p.end()
	}
}

// most is how long a line may be for what can be spared.
func (p *progress) most() int {
	if p.live {
		return p.width - 1
	}
	return plainWidth
}

// redraw writes over the line. A line that is longer than the terminal would
// wrap, and the next return would not reach its beginning.
func (p *progress) redraw(line string) {
	if r := []rune(line); len(r) >= p.width {
		line = string(r[:p.width-1])
	}
	n := utf8.RuneCountInString(line)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.drawn-n)))
	p.open, p.drawn = true, n
}

// clear takes the line away, so that another can stand in its place.
func (p *progress) clear() {
	if p.open {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.drawn))
		p.open, p.drawn = false, 0
	}
}

func (p *progress) end() {
	if p.open {
		fmt.Fprintln(p.w)
		p.open, p.drawn = false, 0
	}
}

// doingWords says what a migration does, for somebody who does not know its
// steps: several quick ones are one thing to a reader. Empty between two steps.
func doingWords(m migration.Migration) string {
	took := rough(m.UpdatedAt.Sub(m.CreatedAt))
	switch m.Outcome {
	case migration.OutcomeCompleted:
		return doneWords(m) + " in " + took
	case migration.OutcomeUndone:
		return "undone after " + took
	case migration.OutcomeRefused:
		return "refused"
	case migration.OutcomeReverted:
		return "reverted"
	}
	switch {
	case m.Status == migration.StatusFinished:
		return "done, and waits to be confirmed or reverted"
	case len(m.Waits) > 0 && m.Phase != task.Undoing:
		return "waiting: " + m.Waits[0].Message
	}
	words := stepWords(m)
	if m.Phase == task.Undoing {
		words = "putting back" + undoWords(m)
	}
	if m.Status == migration.StatusReverting && words != "" && m.Unfit != nil {
		words = "it cannot run there, going back: " + words
	}
	if m.Status == migration.StatusError && words != "" && !strings.HasPrefix(words, brokeWords) {
		words = "held up, trying again: " + words
	}
	return words
}

// doneWords are what a completed move was.
func doneWords(m migration.Migration) string {
	switch {
	case m.MigrationType == migration.TypeRebuild:
		return "rebuilt"
	case m.MigrationType == migration.TypeEvacuation:
		return "evacuated"
	case m.Status == migration.StatusConfirmed:
		return "confirmed"
	}
	return "moved"
}

// stepWords say what a step does.
func stepWords(m migration.Migration) string {
	to, back := m.DestCompute, m.SourceCompute
	if to == "" {
		to = "the destination"
	}
	switch m.Step {
	case migration.StepLost:
		return "reading its record"
	case migration.StepPrepEvacuation:
		return "preparing " + to + ", and its disks there"
	case migration.StepTakeOver, migration.StepAcceptEvacuated:
		return "giving the guest to " + to
	case migration.StepFinishEvacuation:
		return "making the guest live on " + to
	case migration.StepInspectSource, migration.StepChooseDestination, migration.StepCheckDestination:
		if m.MigrationType == migration.TypeEvacuation {
			return "looking for a host that takes it"
		}
		if m.InPlace || m.MigrationType == migration.TypeRebuild {
			return "checking the guest and its host"
		}
		return "checking both hosts"
	case migration.StepClaim:
		return "claiming room on " + to
	case migration.StepSwapAllocations:
		return "moving the allocation in Placement"
	case migration.StepCheckSource, migration.StepRecordContext, migration.StepPreLiveMigration, migration.StepPrepResize, migration.StepCopyInstance:
		return "preparing " + to
	case migration.StepSnapshotDisks:
		return "holding the disks as they are"
	case migration.StepDisconnectSource:
		return "disconnecting the guest from " + back
	case migration.StepShowInstance, migration.StepHideInstance:
		return "showing it on " + to
	case migration.StepCarryVolumes:
		return "keeping what it was given on " + m.DestCompute
	case migration.StepStream:
		return streamWords(m.Progress)
	case migration.StepPostCopy:
		return "going on by post-copy"
	case migration.StepFollowPostCopy:
		return followWords(m.Progress, to)
	case migration.StepPrepChange:
		return "making the new disks ready"
	case migration.StepPowerOff, migration.StepRevertPowerOff:
		return "shutting the guest down"
	case migration.StepShipDisks:
		if m.Progress.DiskTotal > 0 {
			return "sending disks"
		}
		return startingTransfer
	case migration.StepCommit, migration.StepAcceptToken, migration.StepHandOver, migration.StepAcceptHanded:
		return "handing the guest over"
	case migration.StepFinishResize:
		return "making the guest live on " + to
	case migration.StepApplyChange:
		return "putting the new in the place of the old"
	case migration.StepStartChanged:
		return "starting the changed guest"
	case migration.StepAwaitReturn:
		return "preparing " + back + " for its return"
	case migration.StepHandBack:
		return "handing the guest back"
	case migration.StepFinishRevert, migration.StepPowerOn:
		return "making the guest live on " + back + " again"
	case migration.StepUnapplyChange:
		return "putting the old in its place again"
	case migration.StepRevertAllocations:
		return "giving the allocation in Placement back"
	case "":
		return ""
	}
	return "cleaning up"
}

// undoWords say what is put back, after a colon; empty where that is of no interest.
func undoWords(m migration.Migration) string {
	to := m.DestCompute
	switch m.Step {
	case migration.StepStream, migration.StepPostCopy:
		return ": stopping the transfer"
	case migration.StepTakeOver:
		return ": it is not given to " + to
	case migration.StepPreLiveMigration, migration.StepPrepResize, migration.StepPrepEvacuation:
		return ": what was prepared on " + to
	case migration.StepPrepChange, migration.StepApplyChange:
		return ": the disks as they were"
	case migration.StepPowerOff, migration.StepRevertPowerOff:
		return ": the guest is started again"
	case migration.StepSwapAllocations:
		return ": the allocation in Placement"
	case migration.StepClaim:
		return ": the claim on " + to
	case migration.StepCopyInstance:
		return ": its record on " + to
	case migration.StepSnapshotDisks, migration.StepShipDisks:
		return ": the disks"
	case migration.StepDisconnectSource:
		return ": its connections on " + m.SourceCompute
	}
	return ""
}

// restored says what the undo of a migration put back, and how long that took.
func restored(m migration.Migration) string {
	var what []string
	var failed time.Time
	for _, s := range m.Steps {
		if s.Ended.After(failed) {
			failed = s.Ended
		}
		if s.State != task.StepUndone || s.Begun.IsZero() {
			continue
		}
		switch s.Name {
		case migration.StepClaim:
			what = append(what, "the claim on "+m.DestCompute+" is released")
		case migration.StepSwapAllocations:
			what = append(what, "the allocation is on "+m.SourceCompute+" again")
		case migration.StepPreLiveMigration:
			what = append(what, "what was prepared on "+m.DestCompute+" is removed")
		case migration.StepStream:
			what = append(what, "the transfer is stopped")
		case migration.StepPrepResize, migration.StepPrepEvacuation:
			what = append(what, "what was prepared on "+m.DestCompute+" is removed")
		case migration.StepPrepChange:
			what = append(what, "what was made for it is removed")
		case migration.StepPowerOff:
			what = append(what, "it is as its user had it")
		case migration.StepApplyChange:
			what = append(what, "the old is in its place")
		case migration.StepDisconnectSource:
			what = append(what, "it is connected on "+m.SourceCompute+" again")
		}
	}
	if len(what) == 0 {
		return "nothing had to be put back"
	}
	// In the order in which it was done.
	for i, j := 0, len(what)-1; i < j; i, j = i+1, j-1 {
		what[i], what[j] = what[j], what[i]
	}
	words := strings.Join(what, ", ")
	if took := m.UpdatedAt.Sub(failed); !failed.IsZero() && took >= 0 {
		words += "; that took " + rough(took)
	}
	return words
}
