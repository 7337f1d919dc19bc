package conductor

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// A destination that refused by falling silent cannot be tidied up before it answers again,
// and the guest, which runs where it was, need not wait for it: the next destination is
// tried, and what lags at the silent one is undone beside that. Nothing there can become
// the guest: it has a claim of an attempt that never commits, of which it asks by itself.

// leaves reports whether an attempt that is being undone can be left to that: all that is
// still to be undone is at a destination that does not answer, and another can be tried.
func (s undosLeft) leaves(st task.State) bool {
	s.c.mu.Lock()
	rec := s.viewOf(st)
	s.c.mu.Unlock()
	g := s.stage(rec)
	refused, by := g.refusedBy(st, rec.DestCompute)
	if !refused || rec.DestCompute == "" || hasCode(st.Cause, codeAborted) {
		return false
	}
	for _, one := range st.Steps {
		i := g.index(one.Name)
		switch {
		case one.State == task.StepUndone:
		case i < 0 || g.steps[i].asks != asksDestination || one.Undo == nil || one.Undo.By != rec.DestCompute,
			one.Undo.Kind != fault.Unavailable && one.Undo.Kind != fault.InDoubt:
			return false
		}
	}
	rec.Refusals = append(slices.Clone(rec.Refusals), migration.Refusal{DestCompute: rec.DestCompute, Step: by})
	return s.endings().mayFollow(rec, st.Cause)
}

// lagging is an attempt that was left. c.mu guards its fields.
type lagging struct {
	attempt int
	task    *task.Task
	over    bool                  // all is undone, or given up
	said    *migration.Settlement // by which an operator gives its destination up; nil for none
}

// left reports whether a journal is of an attempt that was left.
func (s undosLeft) left(t *task.Task) bool {
	attempt := s.attemptOf(t.ID())
	return t.State().Phase == task.Undoing &&
		slices.ContainsFunc(s.rec.Refusals, func(r migration.Refusal) bool { return r.Left && r.Attempt == attempt })
}

// attemptOf is the attempt of a journal of the story.
func (s undosLeft) attemptOf(journal string) int {
	_, text, _ := strings.Cut(journal, "/")
	n, _ := strconv.Atoi(text)
	return n
}

// leave notes that an attempt is left.
func (s undosLeft) leave(t *task.Task) {
	s.lagging[t.ID()] = &lagging{attempt: s.attemptOf(t.ID()), task: t}
}

// refusals are those of the record, with what of them still lags. Called with c.mu held.
func (s undosLeft) refusals() []migration.Refusal {
	out := slices.Clone(s.rec.Refusals)
	for i := range out {
		out[i].Left = false
		for _, l := range s.lagging {
			if l.attempt == out[i].Attempt {
				out[i].Left, out[i].GivenUp = !l.over, l.said
			}
		}
	}
	return out
}

// lags reports whether anything does. Called with c.mu held.
func (s undosLeft) lags() bool {
	for _, l := range s.lagging {
		if !l.over {
			return true
		}
	}
	return false
}

// lag goes on with the undos of an attempt that was left, until they are done or ctx ends.
// The story goes on meanwhile: what the undos read of it is as it was in that attempt.
func (c *Conductor) lag(ctx context.Context, s *story, journal string) {
	c.mu.Lock()
	l, then := s.lagging[journal], s.rec
	c.mu.Unlock()
	then.Attempt, then.Stage, then.Outcome, then.InPlace = l.attempt, migration.StageMove, migration.OutcomeNone, false
	was := newStory(c, stored{Migration: then, Called: s.called})
	was.task, was.behind = l.task, l
	l.task.LeaveWhen(nil)
	c.cfg.Logger.Warn("a destination that does not answer is tidied up later", "migration", s.uuid, "attempt", then.Attempt)
	c.spawn("undos of "+journal, func() {
		if c.engine.Run(ctx, l.task, was.stage(then).tasks(c.mutate)) != nil {
			return // the next start goes on
		}
		c.mu.Lock()
		l.over = true
		said := l.said != nil
		s.publishLocked()
		c.mu.Unlock()
		c.dropTask(ctx, journal)
		if said {
			c.dropWord(ctx, journal)
		}
	})
}

// settleLeft takes an operator's word that destinations which were left will never come
// back: what lags there is given up. It can be said of a move that has gone on, and of one
// that is over. false where the word is of nothing that lags.
func (s undosLeft) settleLeft(ctx context.Context, m migration.Migration, w migration.Settlement) (migration.Migration, bool, error) {
	doing := "settle migration " + s.uuid
	var journals []string
	var reasons []fault.Reason
	no := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	again := len(w.Gone) > 0
	for _, name := range w.Gone {
		i := slices.IndexFunc(m.Refusals, func(r migration.Refusal) bool { return r.DestCompute == name && (r.Left || r.GivenUp != nil) })
		if i < 0 {
			again = false
			no("not_left", name+" is no destination at which something is still to be undone", "say that by itself")
			continue
		}
		if m.Refusals[i].GivenUp.Same(w) {
			continue
		}
		again = false
		if !m.Refusals[i].Left {
			no("not_in_doubt", "nothing of the move is left at "+name, "")
			continue
		}
		journals = append(journals, s.journal(m.Refusals[i].Attempt))
		if s.decisions().answers(ctx, name) {
			no("answers", name+" answers, and is not gone", "let the move go on by itself")
		}
	}
	switch {
	case again:
		return m, true, nil // its answer was lost
	case len(journals) == 0:
		return m, false, nil
	}
	if w.GuestIsAt != m.SourceCompute && w.GuestIsAt != m.DestCompute {
		no("not_a_party", "the move is from "+m.SourceCompute+" to "+m.DestCompute, "name one of the two")
	}
	if len(reasons) > 0 {
		return m, true, fault.Refuse(fault.Forbidden, doing, reasons...)
	}
	s.c.cfg.Logger.Warn("an operator gives up what is left of a migration at hosts that are gone", "instance", s.instance, "migration", s.uuid,
		"gone", w.Gone, "by", w.By, "why", w.Why)
	for _, journal := range journals {
		if err := s.thirdHost().keepWord(ctx, journal, attemptWord{Attempt: s.attemptOf(journal), Word: w}); err != nil {
			return m, true, err
		}
		s.c.mu.Lock()
		l := s.lagging[journal]
		l.said = &w
		over := l.over
		s.publishLocked()
		m = s.view()
		s.c.mu.Unlock()
		l.task.Hurry()
		if over { // meanwhile, by itself
			s.c.dropWord(context.WithoutCancel(ctx), journal)
		}
	}
	return m, true, nil
}
