package conductor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// settleStage is how far a move is that an operator wants to settle.
type settleStage string

const (
	stageBefore    settleStage = "before"    // no stream has begun, and it goes forward
	stageUndecided settleStage = "undecided" // stream or commit, forward or back: nothing has decided yet
	stageKept      settleStage = "kept"      // the source has the guest, and the rest is being undone
	stageCommitted settleStage = "committed" // the token has left, and the destination has not answered bound
	stageFollowing settleStage = "following" // committed, and not all of the guest's memory has followed
	stageFinished  settleStage = "finished"  // the destination has answered bound

	// Of guests that are off while they move, where ledgers alone decide.
	stageDeciding   settleStage = "deciding"   // a host hands the token over or keeps it, and has not answered
	stageUnfit      settleStage = "unfit"      // taken back by itself, and not handed back yet
	stageConfirming settleStage = "confirming" // the destination has the guest, and what is kept is given up
	stageThere      settleStage = "there"      // the destination keeps the guest: a revert is being undone
	stageReturned   settleStage = "returned"   // the token has come back to the source, or never left it

	// Of guests of dead hosts, where the fleet's records decide.
	stageRecords settleStage = "records" // they give the guest away or do not, and have not answered
	stageTaken   settleStage = "taken"   // they have given it to the destination
)

// stageOf reads in a journal how far a move is.
func (s *story) stageOf(m migration.Migration, st task.State) settleStage {
	done := func(step string) bool { one, ok := st.Step(step); return ok && one.State == task.StepEnded }
	begun := func(step string) bool { one, ok := st.Step(step); return ok && one.State != task.StepUndone }
	decides := func(step string) bool { return begun(step) && (st.Phase == task.Undoing || !done(step)) }
	undoing := st.Phase == task.Undoing
	switch g := s.stage(m); g.name {
	case storyLive, storyLivePostCopy:
		return liveStageOf(st)
	case storyConfirm:
		return stageConfirming
	case storyRevert, storyRevertItself:
		switch {
		case !undoing && done(migration.StepHandBack):
			return stageReturned
		case g.name == storyRevertItself:
			return stageUnfit
		case decides(migration.StepHandBack):
			return stageDeciding
		case undoing:
			return stageThere
		}
	case storyMigration, storyResize, storyApartMigration, storyApartResize:
		switch {
		case decides(migration.StepHandOver):
			return stageDeciding
		case undoing:
			return stageKept
		case done(migration.StepHandOver):
			return stageCommitted
		}
	case storyEvacuation:
		switch {
		case decides(migration.StepTakeOver):
			return stageRecords
		case undoing:
			return stageKept
		case done(migration.StepTakeOver):
			return stageTaken
		}
	default: // in place: it is at its host, whatever becomes of it
		if undoing || g.decides(m.Step) {
			return stageReturned
		}
	}
	return stageBefore
}

func liveStageOf(st task.State) settleStage {
	done := func(step string) bool { s, ok := st.Step(step); return ok && s.State == task.StepEnded }
	begun := func(step string) bool { s, ok := st.Step(step); return ok && s.State != task.StepUndone }
	switch {
	case st.Phase == task.Undoing && (begun(migration.StepStream) || begun(migration.StepPostCopy) || begun(migration.StepCommit)):
		return stageUndecided
	case st.Phase == task.Undoing:
		return stageKept
	case done(migration.StepFinishDestination):
		return stageFinished
	case begun(migration.StepFollowPostCopy) && !done(migration.StepFollowPostCopy):
		return stageFollowing
	case done(migration.StepCommit):
		return stageCommitted
	case begun(migration.StepStream):
		return stageUndecided
	}
	return stageBefore
}

// settleFacts is what is held against an operator's word.
type settleFacts struct {
	Source, Destination string // hosts
	Stage               settleStage
	Facts               Facts
	Answering           []string // of those that he says are gone
	// Apart: the conductor is at neither of the two, and the word is kept with it.
	Apart bool
}

// settleRefusal gives every reason why a word is not taken; none where it is. It is a
// pure function.
func settleRefusal(f settleFacts, w migration.Settlement) []fault.Reason {
	var reasons []fault.Reason
	no := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	if w.GuestIsAt != f.Source && w.GuestIsAt != f.Destination || f.Destination == "" {
		no("not_a_party", "the move is from "+f.Source+" to "+f.Destination, "name one of the two")
		return reasons
	}
	for _, name := range w.Gone {
		if name != f.Destination && name != migration.GonePlacement && (!f.Apart || name != f.Source) {
			no("not_a_party", name+" is neither the other host of the move nor "+migration.GonePlacement, "name what the move waits for")
		}
		if slices.Contains(f.Answering, name) {
			no("answers", name+" answers, and is not gone", "let the move go on by itself")
		}
	}
	atSource := w.GuestIsAt == f.Source
	goneDestination, gonePlacement := slices.Contains(w.Gone, f.Destination), slices.Contains(w.Gone, migration.GonePlacement)
	goneSource := slices.Contains(w.Gone, f.Source)
	if f.Apart && goneSource && atSource {
		no("gone_with_it", "a guest at "+f.Source+" is gone with it", "say that it is at "+f.Destination+", if it is")
	}
	calm := func(why string) {
		no("not_in_doubt", "nothing is in doubt: "+why, "look at it with berth migration show MIGRATION")
	}
	switch f.Stage {
	case stageBefore:
		calm("the guest has not left; the move can be aborted")
	case stageKept:
		if !atSource {
			no("source_keeps", "the source has already decided to keep the guest", "say that it is at "+f.Source)
		} else if len(w.Gone) == 0 {
			calm("the guest is at the source, and the rest is being undone; if a host or Placement will never answer again, say so")
		}
	case stageFinished:
		if atSource {
			no("destination_has_guest", "the destination has answered that the guest is its own", "say that it is at "+f.Destination)
		} else if !gonePlacement {
			calm("the guest is at the destination, and the rest is being cleaned up")
		}
	case stageDeciding:
		no("decides_itself", "a host hands the guest over or keeps it, and has not answered yet; it alone knows which", "start its agent")
	case stageRecords:
		no("decides_itself", "the fleet's records give the guest away or not, and have not answered yet; they alone know which", "look at [fleet] etcd")
	case stageTaken:
		no("destination_has_guest", "the guest was given to "+f.Destination+", which is asked until it answers", "if "+f.Destination+
			" is dead, too, fence it or declare it dead, and evacuate the guest from there")
	case stageUnfit:
		no("nowhere", "the guest cannot be made live at "+f.Destination+", and has not been handed back to "+f.Source, "look what its return waits for")
	case stageConfirming, stageThere:
		if atSource {
			no("destination_has_guest", "the guest is at "+f.Destination, "say so")
		} else if len(w.Gone) == 0 {
			calm("the guest is at " + f.Destination + "; if that host or Placement will never answer again, say so")
		}
	case stageReturned:
		if !atSource {
			no("source_has_guest", "the guest is at "+f.Source, "say so")
		} else if len(w.Gone) == 0 {
			calm("the guest is at " + f.Source + "; if the other host or Placement will never answer again, say so")
		}
	case stageCommitted:
		switch {
		case f.Apart && !atSource && goneSource:
		case atSource && f.Apart:
			no("say_it_there", "the token was given to "+f.Destination+", and only "+f.Source+" can take it back", "settle it there: berth -c "+f.Source+" migration settle")
		case !atSource:
			calm("the token is the destination's, and it is asked until it answers")
		case !goneDestination:
			no("destination_not_named", "the token was given to "+f.Destination+", whose copy may be the guest",
				"check that it is gone for good, and say so: --gone "+f.Destination)
		}
	case stageFollowing:
		switch {
		case atSource && !goneDestination:
			no("destination_not_named", "the guest runs at "+f.Destination+", and lacks at most part of its memory",
				"check that it is gone for good, and say so: --gone "+f.Destination)
		case atSource && f.Facts.Source == SourcePostCopy:
			no("half_here", "what is at "+f.Source+" is a part of the guest's memory, and cannot run without the rest",
				"end it (virsh destroy DOMAIN on "+f.Source+"), and say it again: the guest can be started there then")
		case atSource:
		case f.Facts.Source == SourceSilent:
			no("source_silent", "the source's hypervisor does not answer: what of the guest's memory has not followed may be there", "start libvirtd on "+f.Source)
		case f.Facts.Source == SourcePostCopy && f.Facts.Destination != DestinationRunning: // which waits for no memory
			calm("the rest of its memory is at " + f.Source + ", and follows as soon as the two hosts reach each other")
		case f.Facts.Source == SourceMigrated:
			calm("all of its memory has followed")
		case f.Facts.Destination == DestinationPostCopy:
			no("half_there", "the rest of the guest's memory is lost, and what is at "+f.Destination+" cannot run without it",
				"end it (virsh destroy DOMAIN on "+f.Destination+"): the move is over then, and the guest can be started there")
		}
	case stageUndecided:
		switch action, why := Decide(f.Facts); {
		case f.Facts.Source == SourceSilent:
			no("source_silent", "the source's hypervisor does not answer", "start libvirtd on "+f.Source)
		case action == ActionCommit, action == ActionReclaim, action == ActionYield, f.Facts.Source == SourceJob:
			calm(why)
		case !atSource && f.Facts.Ledger == migration.LedgerReclaimed:
			no("source_keeps", "the source has refused every commit of this attempt, and may have run the guest since", "say that it is at "+f.Source)
		case f.Facts.Ledger == migration.LedgerElsewhere:
			no("token_elsewhere", "the source does not hold the token, and did not give it to this attempt", "look which host has it: berth instance list")
		}
		switch {
		case atSource && (f.Facts.Destination == DestinationRunning || f.Facts.Destination == DestinationPostCopy || f.Facts.There == migration.LedgerAccepted):
			no("runs_there", "the guest runs at "+f.Destination, "look again which of the two copies is the guest")
		case !atSource && (f.Facts.Source == SourceMemory || f.Facts.Source == SourceJob):
			no("runs_here", "the guest has its memory at "+f.Source, "look again which of the two copies is the guest")
		case !atSource && f.Facts.Source == SourceHeld:
			no("stands_here", "the guest stands still at "+f.Source+" with its memory", "end that copy there (virsh destroy DOMAIN), and say it again")
		case !atSource && f.Facts.Destination != DestinationArrived && f.Facts.Destination != DestinationRunning && f.Facts.Destination != DestinationPostCopy:
			no("no_copy", "no whole copy is seen at "+f.Destination, "the guest cannot be there")
		}
	}
	return reasons
}

// settleProbe bounds the question to somebody who is said to be gone. Arbitrary.
const settleProbe = 3 * time.Second

// Settle takes an operator's explicit word on where the guest of a move is, and goes on
// by it: forward, back, or without those who are gone. The word is durable at the source
// before anything is done, with who gave it and why. fault.Forbidden, with every reason,
// where nothing is in doubt or the facts contradict the word; fault.NotFound for a
// migration that is not known here. Safe to repeat.
func (c *Conductor) Settle(ctx context.Context, id string, w migration.Settlement) (migration.Migration, error) {
	doing := "settle migration " + id
	if err := w.Validate(); err != nil {
		return migration.Migration{}, fmt.Errorf("%s: %w", doing, err)
	}
	c.mu.Lock()
	s := c.stories[id]
	var m migration.Migration
	var t *task.Task
	if s != nil {
		m, t = s.view(), s.task
	}
	c.mu.Unlock()
	if s == nil {
		return migration.Migration{}, fault.New(fault.NotFound, "migration %s is not known here", id)
	}
	if left, is, err := s.undosLeft().settleLeft(ctx, m, w); is {
		return left, err
	}
	switch {
	case m.Settled.Same(w):
		return m, nil // the same word again: its answer was lost
	case m.Done():
		return migration.Migration{}, fault.New(fault.Forbidden, "%s: it is over: %s", doing, m.Outcome)
	case m.Stage == migration.StageFinished:
		change := "confirm or revert it"
		if slices.Contains(w.Gone, m.DestCompute) && m.Progress.DiskTotal > 0 {
			change = "keep the disks that " + m.SourceCompute + " has of it, which may be the last ones: nothing is removed while " + m.DestCompute + " is silent; once that is back, confirm or revert it"
		} else if slices.Contains(w.Gone, m.DestCompute) {
			change = "berth resize confirm " + id + " gives up what " + m.SourceCompute + " keeps; then settle it once more, with --guest-is-at " + m.DestCompute
		}
		return migration.Migration{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "not_in_doubt", Message: "nothing is in doubt: the guest is at " + m.DestCompute + ", and the move waits to be confirmed or reverted",
			Have: string(m.Status), Change: change,
		})
	case t == nil:
		return s.decisions().settleUnread(ctx, m, w)
	}
	facts, err := s.decisions().settleFacts(ctx, t, m, w)
	if err != nil {
		return migration.Migration{}, fmt.Errorf("%s: %w", doing, err)
	}
	if reasons := settleRefusal(facts, w); len(reasons) > 0 {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, doing, reasons...)
	}
	if err := s.decisions().takeWord(ctx, w); err != nil {
		return migration.Migration{}, fmt.Errorf("%s: %w", doing, err)
	}
	if taken, ok := s.word(ctx); ok {
		w = taken // with who was gone by an earlier one
	}
	c.mu.Lock()
	s.rec.Settled = &w
	s.publishLocked()
	m = s.view()
	c.mu.Unlock()
	t.Hurry()
	return m, nil
}

// takeWord makes a word durable where it is read: at the source that this conductor is at,
// else here.
func (s decisions) takeWord(ctx context.Context, w migration.Settlement) error {
	if s.conductsForOthers() {
		return s.thirdHost().takeOwnWord(ctx, w)
	}
	return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		source, ok := h.(migration.Settler)
		if !ok {
			return fault.New(fault.Internal, "the source takes nobody's word")
		}
		return source.TakeWord(ctx, s.ref(migration.StepStream), w)
	})
}

// settleFacts gathers what is held against a word.
func (s decisions) settleFacts(ctx context.Context, t *task.Task, m migration.Migration, w migration.Settlement) (settleFacts, error) {
	f := settleFacts{Source: s.from, Destination: m.DestCompute, Stage: s.stageOf(m, t.State()), Apart: s.conductsForOthers() && !s.evacuates()}
	var src inspectedSource
	if f.Stage == stageUndecided || f.Stage == stageFollowing {
		if err := t.Output(migration.StepInspectSource, &src); err != nil {
			return f, err
		}
		st := t.State()
		journal := JournalStreaming
		if _, seen := st.Step(migration.StepCommit); st.Phase == task.Undoing {
			journal = JournalUndoing
		} else if seen {
			journal = JournalSeen
		}
		status := s.liveSteps().look(ctx)
		there := s.liveSteps().lookThere(ctx, t, settleProbe)
		f.Facts = Facts{
			Source: sourceFact(status, src.Guest.Persistent), Destination: destinationFact(there), Journal: journal, There: thereFact(status, there),
		}
		if status != nil {
			f.Facts.Ledger = status.Ledger
		}
	}
	for _, name := range w.Gone {
		if s.evacuates() && name == s.from {
			continue // a dead host is not asked
		}
		if !(name == migration.GonePlacement && s.refusedByPlacement(t)) && s.answers(ctx, name) {
			f.Answering = append(f.Answering, name)
		}
	}
	return f, nil
}

// refusedByPlacement reports whether what the move has yet to write there was refused the
// last time: a Placement that answers, and takes no write from here, is none for it.
func (s decisions) refusedByPlacement(t *task.Task) bool {
	s.c.mu.Lock()
	g := s.stage(s.rec)
	s.c.mu.Unlock()
	return slices.ContainsFunc(t.State().Steps, func(one task.StepState) bool {
		i := g.index(one.Name)
		switch {
		case i < 0 || g.steps[i].asks != asksPlacement:
			return false
		case g.steps[i].Forward:
			return one.State == task.StepBegun && one.Error != nil && one.Error.Kind == fault.Forbidden
		}
		return one.State != task.StepUndone && one.Undo != nil && one.Undo.Kind == fault.Forbidden
	})
}

// answers reports whether a host, or Placement, says anything at all.
func (s decisions) answers(ctx context.Context, name string) bool {
	ctx, cancel := s.c.cfg.Runtime.WithTimeout(ctx, settleProbe)
	defer cancel()
	var err error
	if name == migration.GonePlacement {
		_, err = s.c.cfg.Placement.Allocations(ctx, s.instance)
	} else {
		err = s.askOnce(ctx, settleProbe, s.host(name), func(ctx context.Context, h migration.Host) error {
			_, err := h.Describe(ctx)
			return err
		})
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.NotFound:
		return false
	}
	return ctx.Err() == nil
}

// word is an operator's word on the current attempt, as it was taken (see takeWord).
func (s *story) word(ctx context.Context) (migration.Settlement, bool) {
	if s.behind != nil {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		if s.behind.said == nil {
			return migration.Settlement{}, false
		}
		return *s.behind.said, true
	}
	if s.conductsForOthers() {
		return s.thirdHost().ownWord()
	}
	h, _ := s.source(ctx) // also one that does not know all of its records yet: a word that it has is one
	source, ok := h.(migration.Settler)
	if !ok {
		return migration.Settlement{}, false
	}
	return source.WordOn(s.ref(""))
}

// takenBack is why a step past the commit is not done: an operator has said that the
// guest is at the source.
func (s *story) takenBack(ctx context.Context, t *task.Task) error {
	if s.conductsForOthers() {
		if !s.thirdHost().retaken(ctx, t) {
			return nil
		}
		return fmt.Errorf("%w: %w", task.ErrTurnBack, fault.Refuse(fault.Undone, "", fault.Reason{
			Code: codeSettled, Message: "an operator has said at " + s.from + " that the guest is there",
		}))
	}
	w, ok := s.word(ctx)
	if !ok || w.GuestIsAt != s.from {
		return nil
	}
	return fmt.Errorf("%w: %w", task.ErrTurnBack, fault.Refuse(fault.Undone, "", fault.Reason{
		Code: codeSettled, Message: fmt.Sprintf("%s has said that the guest is at %s: %s", w.By, s.from, w.Why),
	}))
}

// givenUp reports whether an operator has said that a host, or Placement, will never
// come back: what is left there is not undone.
func (s *story) givenUp(ctx context.Context, name string) bool {
	w, ok := s.word(ctx)
	if !ok || !slices.Contains(w.Gone, name) {
		return false
	}
	s.c.cfg.Logger.Warn("not undone: an operator has said that it is gone for good", "migration", s.uuid, "gone", name, "by", w.By)
	return true
}
