package conductor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
	"berth/placementclient"
)

// forever is a sleep that only its context ends.
const forever = 365 * 24 * time.Hour

// Reason codes by which the end of a task is told.
const (
	codeAborted   = "aborted"
	codeClaimLost = "claim_lost"
	codeDeadline  = "attempt_deadline"
	codeSettled   = "settled"
	// codeSourceKeeps: a source that heard nothing of its conductor has decided alone.
	codeSourceKeeps = "source_keeps"
)

var errAborted = fault.Refuse(fault.Undone, "", fault.Reason{Code: codeAborted, Message: "aborted on request"})

// story is one migration in memory. c.mu guards rec, state, task, watchers and known;
// the rest never changes. rec is written by the story's own actor alone (but for
// AbortRequested and Control), so that this actor reads it without the lock.
type story struct {
	c        *Conductor
	uuid     string
	instance string
	kind     string   // type of the migration
	from     string   // source
	named    string   // destination asked for; empty when alternates or candidates decide
	next     []string // alternates to it, in order
	called   string   // by hosts and the steps' journal, where not by its uuid; see unnamed.go

	rec      migration.Migration // what is stored; the rest of what people see comes from state
	state    task.State          // of the current attempt
	task     *task.Task          // nil between attempts
	watchers map[chan migration.Migration]func() bool
	limit    time.Duration    // of one attempt
	until    runtime.BootTime // the current attempt's deadline; set with c.mu held
	// recovered: the journal is of an earlier process, and an operator may have settled
	// the move at its destination while this one was away. Never changes.
	recovered bool
	known     *placementclient.Allocations // what the instance was just read to hold; nil once it was used

	change    migration.Change // of a resize or a rebuild
	shutdown  time.Duration    // what the guest is given to shut itself down
	resumed   int              // the attempt that an earlier process began; 0 for none
	turn      turn             // of a live move; see turns_queue.go
	window    time.Duration    // after which it is confirmed by itself; 0 for never
	confirmAt runtime.BootTime // when that is, of a finished migration
	held      *held            // what the two consumers hold, from the move's end on; c.mu guards it

	// Guarded by c.mu. resting: it is finished, no actor drives it, and whoever sets this
	// to false may write the record. wake ends the wait for its window; may be nil.
	// unwitnessed is why its time is over and it is not confirmed; nil for nothing.
	resting     bool
	wake        context.CancelFunc
	unwitnessed []fault.Reason
	said        *attemptWord // an operator's, on a move of another host's guest; nil for none
	// lagging are the attempts that were left, by their journals; see lag.go.
	lagging map[string]*lagging
	told    migration.Status // the last that was published; empty after a start

	behind *lagging // of what goes on with the undos of one attempt alone; else nil

	// Guarded by c.mu, as rec.Control is, which any actor may add to. wanted: somebody wants the
	// stream to be completed; tunings: what people have set and the stream's watcher has not
	// seen; unkept: rows of rec.Control are not written yet.
	wanted  *wish
	tunings []migration.Tuning
	unkept  bool

	unfit int // how often in a row the destination said that it cannot make the guest live
}

func newStory(c *Conductor, kept stored) *story {
	m := kept.Migration
	return &story{
		c: c, uuid: m.UUID, instance: m.InstanceUUID, kind: m.MigrationType, from: m.SourceCompute, named: kept.Named, next: kept.Alternates, called: kept.Called,
		rec: m, watchers: map[chan migration.Migration]func() bool{}, lagging: map[string]*lagging{}, limit: kept.Limit, until: kept.Until,
		change: kept.Change, shutdown: kept.Shutdown, window: kept.Window, confirmAt: kept.ConfirmAt, held: kept.Held,
	}
}

// taskID names the journal of the current attempt.
func (s *story) taskID() string { return s.journal(s.rec.Attempt) }

// journal names that of an attempt.
func (s *story) journal(attempt int) string { return s.name() + "/" + strconv.Itoa(attempt) }

// name is how hosts and the steps' journal name the migration.
func (s *story) name() string { return cmp.Or(s.called, s.uuid) }

// drive runs attempts until the migration is over or ctx ends.
func (s *story) drive(ctx context.Context) {
	for ctx.Err() == nil {
		if s.queueSteps().awaitBeginning(ctx) != nil {
			return
		}
		t, err := s.attempt(ctx)
		if err != nil {
			s.c.cfg.Logger.Error("an attempt cannot be journaled, trying again", "migration", s.uuid, "error", err)
			_ = s.c.cfg.Runtime.Sleep(ctx, s.c.cfg.UndoLater)
			continue
		}
		s.c.mu.Lock()
		g := s.stage(s.rec)
		s.c.mu.Unlock()
		aside, stop := context.WithCancel(ctx)
		if g.lease != "" {
			ref := s.ref(migration.StepClaim)
			s.c.spawn("lease "+s.uuid, func() { s.firstSteps().renewLease(aside, t, ref, g.lease) })
		}
		if g.lease != "" && s.conductsForOthers() && !s.evacuates() {
			s.c.spawn("source of "+s.uuid, func() { s.thirdHost().watchSource(aside, t) })
		}
		if g.bounded {
			attempt := s.rec.Attempt
			s.c.spawn("deadline "+s.uuid, func() { s.timeLimits().deadline(aside, t, attempt) })
		}
		t.LeaveWhen(s.undosLeft().leaves)
		err = s.c.engine.Run(ctx, t, g.tasks(s.c.mutate))
		stop()
		if err != nil && !errors.Is(err, task.ErrLeft) || s.conclude(ctx, t.State()) {
			return
		}
	}
}

// attempt finds the current attempt's task, or begins it.
func (s *story) attempt(ctx context.Context) (*task.Task, error) {
	s.c.mu.Lock()
	t := s.task
	s.c.mu.Unlock()
	if t == nil {
		var err error
		if t, err = s.c.engine.Begin(ctx, s.taskID()); err != nil {
			return nil, err
		}
	}
	t.LogTo(s.c.cfg.Logger.With("instance", s.instance, "migration", s.uuid, "attempt", s.rec.Attempt))
	w, settled := s.word(ctx)
	s.c.mu.Lock()
	s.task, s.state = t, t.State()
	aborted := s.rec.AbortRequested
	if settled {
		s.rec.Settled = &w
	}
	s.publishLocked()
	s.c.mu.Unlock()
	if aborted {
		// Past the point of no return this is refused, and rightly so.
		_ = t.Cancel(errAborted)
	}
	return t, nil
}

// conclude draws the consequence of an attempt that is done or undone: the next
// one, a rest, or the end. It says whether nothing more is to be driven.
func (s *story) conclude(ctx context.Context, st task.State) bool {
	s.c.mu.Lock()
	rec := s.viewOf(st)
	t := s.task
	s.c.mu.Unlock()
	g := s.stage(rec)
	next := over
	if st.Phase == task.Done {
		if next = g.done(&rec, st); next != over && rec.Moved == rec.Attempt {
			h, err := s.placementSteps().heldBy(t)
			if err != nil {
				s.c.cfg.Logger.Error("what a move's consumers hold is not in its journal", "migration", s.uuid, "error", err)
			}
			s.c.mu.Lock()
			s.held = h
			s.c.mu.Unlock()
		}
	} else {
		next = g.undone(&rec, st)
	}
	old, left := s.taskID(), !st.Over()
	if next == onward {
		rec.Attempt++
		if rec.Stage == migration.StageMove {
			rec.DestCompute, rec.Way, rec.WayReason = "", migration.WayNone, ""
		}
		rec.Steps, rec.Step, rec.Phase, rec.Status = nil, "", task.Doing, s.stage(rec).shown[0].status
		rec.Error, rec.Progress = nil, migration.Progress{}
		s.timeLimits().setDeadline(&rec)
	}
	rec.UpdatedAt = s.c.cfg.Runtime.Now()
	if left {
		s.c.mu.Lock()
		s.undosLeft().leave(t)
		s.c.mu.Unlock()
	}
	if !s.replace(ctx, rec, next) {
		return true // ctx ended: the next start concludes again
	}
	// The journal goes only after the record says what it came to.
	if left {
		s.c.lag(ctx, s, old)
	} else {
		s.c.dropTask(ctx, old)
	}
	if next == onward {
		return false
	}
	s.c.dropAbort(ctx, rec.UUID)
	what := "migration over"
	if next == rests {
		what = "migration finished, to be confirmed or reverted"
	}
	s.c.cfg.Logger.Info(what, "migration", rec.UUID, "instance", rec.InstanceUUID, "status", string(rec.Status),
		"outcome", string(rec.Outcome), "source", rec.SourceCompute, "destination", rec.DestCompute)
	if next == over {
		s.c.mu.Lock()
		said := s.said != nil
		s.c.mu.Unlock()
		if said {
			s.c.dropWord(ctx, rec.UUID)
		}
		s.c.prune(ctx)
	}
	s.timeLimits().awaitWindow(ctx)
	return true
}

// replace makes a new record durable, then visible; tried until ctx ends, since
// an instance stays busy without it.
func (s *story) replace(ctx context.Context, rec migration.Migration, next ending) bool {
	for {
		err := s.put(ctx, rec)
		if err == nil {
			break
		}
		s.c.cfg.Logger.Error("a migration record cannot be written, trying again", "migration", rec.UUID, "error", err)
		if s.c.cfg.Runtime.Sleep(ctx, time.Second) != nil {
			return false
		}
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	rec.AbortRequested, rec.Settled, rec.Control = s.rec.AbortRequested && next != rests, s.rec.Settled, s.rec.Control
	s.rec, s.state, s.task, s.resting = rec, task.State{}, nil, next == rests
	s.queueSteps().leaveTurnsLocked()
	if next == over {
		delete(s.c.busy, rec.InstanceUUID)
	}
	s.publishLocked()
	return true
}

func (s *story) save(ctx context.Context) error { return s.put(ctx, s.rec) }

func (s *story) put(ctx context.Context, rec migration.Migration) error {
	raw, err := json.Marshal(stored{
		Migration: rec, Named: s.named, Alternates: s.next, Called: s.called, Until: s.until, Limit: s.limit,
		Change: s.change, Shutdown: s.shutdown, Window: s.window, ConfirmAt: s.confirmAt, Held: s.held,
	})
	if err != nil {
		return fault.New(fault.Internal, "write migration %s: %w", rec.UUID, err)
	}
	if err := s.c.cfg.Store.Put(ctx, bucketMigrations, rec.UUID, raw); err != nil {
		return fmt.Errorf("write migration %s: %w", rec.UUID, err)
	}
	return nil
}

// refusedBy says whether an undone attempt was a refusal rather than a failure, and by
// which step: then another destination may take the guest. Refusals are what a destination
// says or does not answer before anything is decided, a pair of hosts that the source says
// cannot work together, and a lost race for Placement's room. What lies in the source, in
// the conductor or in time is none.
func (g stage) refusedBy(st task.State, destination string) (bool, string) {
	for _, one := range st.Steps {
		if one.Error == nil {
			continue
		}
		switch one.Name {
		case migration.StepInspectSource, migration.StepLost, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepClaim:
			return !hasCode(st.Cause, codeDeadline), one.Name
		case migration.StepSwapAllocations:
			return one.Error.Kind == fault.DoesNotFit, one.Name
		case migration.StepCheckSource:
			switch one.Error.Kind {
			case fault.Forbidden, fault.DoesNotFit, fault.Invalid:
				return st.Cause.Kind == one.Error.Kind, one.Name
			}
			return false, one.Name
		case migration.StepTakeOver:
			return hasCode(st.Cause, migration.ReasonDestinationDead), one.Name
		case migration.StepStream: // the guest runs on, and its user has noticed nothing but the load
			return false, one.Name
		}
		return !g.decides(one.Name) && destination != "" && st.Cause.By == destination, one.Name
	}
	return false, ""
}

// touches reports whether a move that was refused by a step has changed anything of the
// guest, its allocation or its disks.
func touches(step string) bool {
	switch step {
	case "", migration.StepInspectSource, migration.StepLost, migration.StepChooseDestination, migration.StepCheckDestination, migration.StepClaim, migration.StepCopyInstance:
		return false
	}
	return true
}

// refusals tells all refusals of all attempts together.
func refusals(rec migration.Migration, last *task.Error) *task.Error {
	if len(rec.Refusals) == 0 || len(rec.Refusals) == 1 && last != nil && rec.Refusals[0].Message == last.Message {
		return last
	}
	all := &task.Error{Kind: rec.Refusals[0].Kind, Message: fmt.Sprintf("no host takes instance %s", rec.InstanceUUID)}
	var said []string
	for _, r := range rec.Refusals {
		if len(r.Reasons) == 0 {
			all.Message += "; " + r.Message
		}
		for _, reason := range r.Reasons {
			reason.Message = r.DestCompute + ": " + reason.Message
			said = append(said, reason.Message)
			all.Reasons = append(all.Reasons, reason)
		}
		if r.Kind == fault.DoesNotFit {
			all.Kind = fault.DoesNotFit
		}
	}
	// Exactly as package fault joins reasons: who prints them one by one takes them out of the
	// message.
	if len(said) > 0 {
		all.Message += ": " + strings.Join(said, "; ")
	}
	return all
}

func hasCode(e *task.Error, code string) bool {
	return e != nil && slices.ContainsFunc(e.Reasons, func(r fault.Reason) bool { return r.Code == code })
}

// abort cancels what runs, or keeps the next attempt from beginning.
func (s decisions) abort() error {
	s.c.mu.Lock()
	s.rec.AbortRequested = true
	t := s.task
	if t == nil && s.turn.wake != nil {
		s.turn.wake()
	}
	s.publishLocked()
	s.c.mu.Unlock()
	if t == nil {
		return nil
	}
	err := t.Cancel(errAborted)
	if err != nil {
		s.c.mu.Lock()
		s.rec.AbortRequested = false
		s.publishLocked()
		s.c.mu.Unlock()
		return fmt.Errorf("abort migration %s: %w", s.uuid, err)
	}
	return nil
}

// abortable says whether an abort may still have an effect.
func (s decisions) abortable(m migration.Migration) bool {
	if m.Phase == task.Undoing {
		return true
	}
	g := s.stage(m)
	return !g.decides(cmp.Or(m.Step, g.steps[0].Name))
}
