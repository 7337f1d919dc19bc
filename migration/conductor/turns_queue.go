package conductor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/task"
	"berth/migration/turns"
)

// Live moves take turns: not more of them are under way at once than Config.MaxOutbound and
// MaxPerLink allow. Package turns says whose turn it is.
//
//	a move             has                        until
//	accepted           nothing: it waits          its turn comes; then its attempt begins
//	before its claim   a turn of this host        it asks for its claim
//	asks for it        one of the link too        the destination has it wait: both are given back
//	is under way       both                       no byte of it goes over the link any more
//	is tidied up       nothing
//
// No byte goes any more once the source's domain has left and its memory is all there, or once
// the source has reclaimed it: a clean-up that lags, or a host that is silent then, holds up
// nobody. A stream that nobody can decide about may still go on, and so does a post-copy that
// has broken off: they keep their turns. A move whose journal cannot be read has none, since
// nobody drives it.
//
// A turn is not on record. After a restart whatever has begun holds its turns before any other
// move gets one, also above a limit that was lowered meanwhile.

// standing is where a live move stands.
type standing int

const (
	outside standing = iota // it needs no turn
	waits                   // for its turn
	paused                  // its destination had it wait, and is asked again later
	holds                   // its turn
)

// turn is a story's. c.mu guards it; of all its fields only the story's own actor sets more
// than what a decision gives.
type turn struct {
	standing standing
	to       string             // the destination, once it needs a turn of the link
	asks     bool               // the destination had it wait, and is being asked again
	granted  chan struct{}      // of one that waits: closed with its turn
	wake     context.CancelFunc // ends its pause, or its wait before an attempt; nil for neither
	why      []fault.Reason     // what it waits for
	seen     bool               // it was shown to wait before its attempt began
}

// lookAgain is how often one that waits looks whether the limits are other ones, or others come
// over its link: nobody tells it. Arbitrary.
const lookAgain = 5 * time.Second

// takesTurns reports whether the migration is one of those that do.
func (s queueSteps) takesTurns() bool { return s.kind == migration.TypeLiveMigration }

// show joins what a move waits for to the view of it. Called with c.mu held.
func (t turn) show(m *migration.Migration) {
	switch {
	case (t.standing == waits || t.standing == paused) && m.Phase == task.Doing:
		m.Status, m.Waits = migration.StatusQueued, t.why
		if m.Step == "" {
			m.Deadline = time.Time{} // of an attempt that has not begun
		}
	case t.seen && m.Status == migration.StatusAccepted:
		m.Status = migration.StatusPreparing
	}
}

// queueLocked has a move wait for a turn, and for one of the link where to is not empty. It
// gives back what it has: whoever is before it may take that.
func (s queueSteps) queueLocked(to string) {
	s.turn.standing, s.turn.to, s.turn.granted, s.turn.wake, s.turn.why = waits, to, make(chan struct{}), nil, nil
	s.c.decideTurnsLocked()
}

// leaveTurnsLocked gives back what a move has, or its place among those that wait.
func (s queueSteps) leaveTurnsLocked() {
	was := s.turn
	if was.standing == outside {
		return
	}
	s.turn = turn{seen: was.seen}
	if was.standing == holds && was.to != "" {
		// There may be room now.
		for _, other := range s.c.stories {
			if t := other.turn; t.standing == paused && t.to == was.to && t.wake != nil {
				t.wake()
			}
		}
	}
	s.c.decideTurnsLocked()
}

// settleTurnLocked gives back the turn of an attempt that has left the link. It is called with
// each change of the move.
func (s queueSteps) settleTurnLocked() {
	if s.turn.standing == holds && s.task != nil && !onTheWay(s.state) {
		s.leaveTurnsLocked()
	}
}

// onTheWay reports whether an attempt sends, or will send, or may be sending.
func onTheWay(st task.State) bool {
	is := func(step string, p task.StepPhase) bool { one, ok := st.Step(step); return ok && one.State == p }
	switch st.Phase {
	case task.Doing:
		return !is(migration.StepCommit, task.StepEnded) || wantsPostCopy(st) && !is(migration.StepFollowPostCopy, task.StepEnded)
	case task.Undoing:
		return slices.ContainsFunc([]string{migration.StepStream, migration.StepPostCopy, migration.StepCommit}, func(step string) bool {
			_, begun := st.Step(step)
			return begun && !is(step, task.StepUndone)
		})
	}
	return false
}

// turnOf is a move as package turns takes it. Called with c.mu held.
func (s queueSteps) turnOf() turns.Move {
	return turns.Move{
		ID: s.uuid, Priority: cmp.Or(s.rec.Priority, migration.PriorityUser), Asked: s.rec.CreatedAt, To: s.turn.to, Asks: s.turn.asks,
	}
}

// turnLimits are as they are set now.
func (c *Conductor) turnLimits() turns.Limits {
	of := func(f func() int) int {
		if f == nil {
			return 0
		}
		return f()
	}
	return turns.Limits{Outbound: of(c.cfg.MaxOutbound), PerLink: of(c.cfg.MaxPerLink)}
}

// decideTurnsLocked gives turns to whoever may have one, and keeps why the others wait.
func (c *Conductor) decideTurnsLocked() {
	now := turns.State{Host: c.cfg.Local, Limits: c.turnLimits(), Incoming: c.incoming}
	for _, s := range c.stories {
		switch s.turn.standing {
		case waits:
			now.Waiting = append(now.Waiting, s.queueSteps().turnOf())
		case paused:
			now.Paused = append(now.Paused, s.queueSteps().turnOf())
		case holds:
			now.Under = append(now.Under, s.queueSteps().turnOf())
		}
	}
	c.limited = now.Limits
	if len(now.Waiting) == 0 {
		return
	}
	d := turns.Decide(now)
	for _, id := range d.Go {
		s := c.stories[id]
		told := s.turn.why != nil
		s.turn.standing, s.turn.why = holds, nil
		close(s.turn.granted)
		if told {
			s.publishLocked()
		}
	}
	for _, m := range now.Waiting { // in any order: each has watchers of its own
		s, why := c.stories[m.ID], d.Waits[m.ID]
		if why == nil || slices.Equal(why, s.turn.why) {
			continue
		}
		s.turn.why, s.turn.seen = why, true
		s.publishLocked()
	}
}

// recallTurns gives back what moves had when the process ended, before any other one gets a
// turn; the others wait as they did.
func (c *Conductor) recallTurns(unfinished []*story) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range unfinished {
		switch {
		case !s.queueSteps().takesTurns():
		case s.task == nil:
			s.turn = turn{standing: waits, granted: make(chan struct{})}
		case onTheWay(s.task.State()):
			var to chosenDestination
			_ = s.task.Output(migration.StepChooseDestination, &to) // none before one is chosen
			s.turn, s.resumed = turn{standing: holds, to: to.Name}, s.rec.Attempt
		}
	}
	c.decideTurnsLocked()
}

// awaitTurn waits until a move that waits has its turn. An error is ctx's cause, and then it
// waits no more.
func (s queueSteps) awaitTurn(ctx context.Context) error {
	began := s.c.cfg.Runtime.Boot().Since
	for waited := false; ; waited = true {
		s.c.mu.Lock()
		ended := ctx.Err() != nil && s.turn.standing == waits
		if ended {
			s.leaveTurnsLocked()
		}
		still, granted, to := s.turn.standing == waits, s.turn.granted, s.turn.to
		if !still && waited {
			s.rec.Waited += s.c.cfg.Runtime.Boot().Since - began
		}
		s.c.mu.Unlock()
		switch {
		case ended:
			return context.Cause(ctx)
		case !still:
			return nil
		}
		if s.awaitGrant(ctx, granted) != nil && ctx.Err() == nil {
			s.c.lookAtTurns(to)
		}
	}
}

func (s queueSteps) awaitGrant(ctx context.Context, granted <-chan struct{}) error {
	ctx, cancel := s.c.cfg.Runtime.WithTimeout(ctx, lookAgain)
	defer cancel()
	return runtime.Await(ctx, s.c.cfg.Runtime, granted)
}

// lookAtTurns decides anew where something has changed that nobody tells: the limits, or how
// many guests come from the host that a move goes to.
func (c *Conductor) lookAtTurns(to string) {
	come := c.comeFrom(to)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.incoming[to] != come || c.limited != c.turnLimits() {
		c.comeLocked(to, come)
		c.decideTurnsLocked()
	}
}

// comeFrom counts the guests that come from a host. Not with c.mu held.
func (c *Conductor) comeFrom(host string) int {
	if host == "" || c.cfg.Incoming == nil {
		return 0
	}
	return c.cfg.Incoming(host)
}

// comeLocked keeps how many come from a host.
func (c *Conductor) comeLocked(host string, n int) {
	if delete(c.incoming, host); n > 0 {
		c.incoming[host] = n
	}
}

// awaitBeginning has a live move wait for its turn before an attempt of it begins. It returns
// at once where that has begun already, and when an abort is asked for: then the attempt ends
// before its first step. An error is ctx's cause.
func (s queueSteps) awaitBeginning(ctx context.Context) error {
	s.c.mu.Lock()
	if !s.takesTurns() || s.task != nil {
		s.c.mu.Unlock()
		return nil
	}
	if s.rec.AbortRequested {
		s.leaveTurnsLocked()
		s.c.mu.Unlock()
		return nil
	}
	if s.turn.standing == outside {
		s.queueLocked("")
	}
	late := s.turn.seen || s.recovered
	wait, stop := context.WithCancel(ctx)
	defer stop()
	s.turn.wake = stop
	s.c.mu.Unlock()
	err := s.awaitTurn(wait)
	if err == nil && late {
		err = s.timeLimits().renewDeadline(ctx)
	}
	if ctx.Err() == nil {
		return nil // an abort has ended the wait
	}
	return err
}

// takeLink waits, in the step that claims, until a move may ask for its claim: until it has a
// turn of this host and of the link, and none before it waits for room at the same destination.
// A queue's move, and one that can go elsewhere, does not wait for link and room: it is
// fault.Busy.
func (s queueSteps) takeLink(ctx context.Context, src inspectedSource, to string) error {
	come := s.c.comeFrom(to)
	s.c.mu.Lock()
	s.c.comeLocked(to, come)
	s.queueLocked(to)
	full := s.turn.full()
	s.c.mu.Unlock()
	if full && (s.rec.Queue != "" || s.firstSteps().elsewhere(ctx, src, to)) {
		s.c.mu.Lock()
		if why := s.turn.why; s.turn.full() { // it may have got its turn meanwhile
			s.leaveTurnsLocked()
			s.c.mu.Unlock()
			return fault.Refuse(fault.Busy, "claim at "+to, why...)
		}
		s.c.mu.Unlock()
	}
	return s.awaitTurn(ctx)
}

// full reports whether a move waits for its link, or for room, and not for this host alone.
func (t turn) full() bool {
	return t.standing == waits && slices.ContainsFunc(t.why, func(r fault.Reason) bool { return r.Code != migration.CodeOutboundLimit })
}

// pauseTurn gives a move's turns back for a while, since its destination had it wait. An error
// is ctx's cause.
func (s queueSteps) pauseTurn(ctx context.Context, to string, why []fault.Reason, d time.Duration) error {
	began := s.c.cfg.Runtime.Boot().Since
	pause, wake := context.WithCancel(ctx)
	defer wake()
	s.c.mu.Lock()
	s.turn = turn{standing: paused, to: to, wake: wake, why: why, seen: s.turn.seen}
	s.c.decideTurnsLocked()
	s.publishLocked()
	s.c.mu.Unlock()
	_ = s.c.cfg.Runtime.Sleep(pause, d) // how it ended is asked of ctx
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.rec.Waited += s.c.cfg.Runtime.Boot().Since - began
	if ctx.Err() != nil {
		s.leaveTurnsLocked()
		return context.Cause(ctx)
	}
	s.turn.asks, s.turn.wake = true, nil
	return nil
}

// crowded refuses to go on where a link is fuller than it may be: guests of both hosts have set
// out at the same moment, when neither host knew of the other's. Each looks once its claim stands
// at the other one, so one of the two sees it at least, and tries again from the beginning. What
// is too full by this host's moves alone, after the limit was lowered, is no reason to go back.
func (s queueSteps) crowded(to string) error {
	come := s.c.comeFrom(to)
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.comeLocked(to, come)
	limit, n := s.c.turnLimits().PerLink, come
	for _, other := range s.c.stories {
		if other.turn.standing == holds && other.turn.to == to {
			n++
		}
	}
	if limit <= 0 || come == 0 || n <= limit {
		return nil
	}
	return fault.Refuse(fault.Busy, "claim at "+to, fault.Reason{
		Code:    migration.CodeLinkCrowded,
		Message: fmt.Sprintf("guests of %s and of %s set out at the same moment, and with this one %d are on their way between the two; [migration] max_per_link is %d", s.from, to, n, limit),
		Want:    fmt.Sprintf("at most %d", limit), Have: fmt.Sprint(n), Change: "wait: it is tried again",
	})
}

// claimed lets those ask that waited until this move had its claim.
func (s queueSteps) claimed() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.turn.asks {
		s.turn.asks = false
		s.c.decideTurnsLocked()
	}
}

// Outbound counts the live migrations that have a turn of this host, of which there are not more
// than Config.MaxOutbound, or were not when they began.
func (c *Conductor) Outbound() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, s := range c.stories {
		if s.turn.standing == holds {
			n++
		}
	}
	return n
}
