package conductor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/task"
)

// What an operator says of a move whose guest is of another host is kept here, with the
// conductor: it can give up what is left at hosts that will never come back. Where the
// guest is, and who has its token, the guest's own hosts decide, and their operators.

// bucketWords has, by uuid, the word on a move of another host's guest, and by uuid/attempt
// the one on an attempt that was left (see lag.go).
const bucketWords = "words"

// attemptWord is an operator's word on one attempt.
type attemptWord struct {
	Attempt int                  `json:"attempt"`
	Word    migration.Settlement `json:"word"`
}

// conductsForOthers reports whether the guest is another host's than the conductor's.
func (s *story) conductsForOthers() bool { return s.from != s.c.cfg.Local }

// ownWord is an operator's word on the current attempt that this conductor keeps.
func (s thirdHost) ownWord() (migration.Settlement, bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.said == nil || s.said.Attempt != s.rec.Attempt {
		return migration.Settlement{}, false
	}
	return s.said.Word, true
}

// takeOwnWord makes a word durable, joined to an earlier one on the same attempt.
func (s thirdHost) takeOwnWord(ctx context.Context, w migration.Settlement) error {
	if before, ok := s.ownWord(); ok && before.GuestIsAt == w.GuestIsAt {
		for _, name := range before.Gone {
			if !slices.Contains(w.Gone, name) {
				w.Gone = append(w.Gone, name)
			}
		}
	}
	s.c.cfg.Logger.Warn("an operator settles a migration", "instance", s.instance, "migration", s.uuid,
		"guest_is_at", w.GuestIsAt, "gone", w.Gone, "by", w.By, "why", w.Why)
	said := attemptWord{Attempt: s.ref("").Attempt, Word: w}
	if err := s.keepWord(ctx, s.uuid, said); err != nil {
		return err
	}
	s.c.mu.Lock()
	s.said = &said
	s.c.mu.Unlock()
	return nil
}

// keepWord makes a word durable.
func (s thirdHost) keepWord(ctx context.Context, key string, said attemptWord) error {
	raw, err := json.Marshal(said)
	if err != nil {
		return fault.New(fault.Internal, "write a word on migration %s: %w", s.uuid, err)
	}
	if err := s.c.cfg.Store.Put(ctx, bucketWords, key, raw); err != nil {
		return fmt.Errorf("write a word on migration %s: %w", s.uuid, err)
	}
	return nil
}

// readWords gives the words that were kept to the stories that they are on, and drops the
// rest. Called once, before anything is driven.
func (c *Conductor) readWords(ctx context.Context) error {
	words, err := c.cfg.Store.List(ctx, bucketWords)
	if err != nil {
		return err
	}
	for id, raw := range words {
		var said attemptWord
		called, _, ofAttempt := strings.Cut(id, "/")
		s := c.calledLocked(called)
		switch {
		case s == nil, !ofAttempt && s.rec.Done(), ofAttempt && s.lagging[id] == nil:
			c.dropWord(ctx, id)
		case json.Unmarshal(raw, &said) != nil:
			c.cfg.Logger.Error("an operator's word cannot be read", "migration", id)
		case ofAttempt:
			s.lagging[id].said = &said.Word
		default:
			s.said = &said
		}
	}
	return nil
}

// retaken reports whether the guest has gone back to a source that this conductor is not
// at, by the word of an operator there: its epoch is above the commit's. The source is
// asked only of a step that has failed before, or that an earlier process has begun.
func (s thirdHost) retaken(ctx context.Context, t *task.Task) bool {
	var c migration.Commit
	st := t.State()
	last := st.Steps[len(st.Steps)-1]
	if last.Tries == 0 && !s.recovered || t.Output(migration.StepHandOver, &c) != nil {
		return false
	}
	f, ok := s.fateAtSource(ctx)
	return ok && f.Holder == s.from && f.Epoch > c.Epoch
}

// fateAtSource is what the source says of the current attempt; false where it says nothing.
func (s thirdHost) fateAtSource(ctx context.Context) (migration.AttemptFate, bool) {
	var f migration.AttemptFate
	err := s.atSource(ctx, min(precheckTime, s.c.cfg.VerbTimeout), func(ctx context.Context, h migration.Host) (err error) {
		side, ok := h.(migration.Side)
		if !ok {
			return fault.New(fault.NotFound, "it tells nothing of attempts")
		}
		f, err = side.AttemptFate(ctx, s.ref(""))
		return err
	})
	return f, err == nil
}

// watchSource lets the source of a move hear of its conductor, however long the
// destination takes, and hears what it has decided alone: a guest that it keeps is not
// waited for. Before the context is recorded and after the last word there is nothing to
// ask.
func (s thirdHost) watchSource(ctx context.Context, t *task.Task) {
	for s.c.cfg.Runtime.Sleep(ctx, s.c.cfg.Lease) == nil {
		st := t.State()
		recorded, _ := st.Step(migration.StepRecordContext)
		if _, decides := st.Step(migration.StepHandOver); decides || st.Over() || st.Phase != task.Doing {
			return
		}
		if recorded.State != task.StepEnded {
			continue
		}
		if f, ok := s.fateAtSource(ctx); ok && f.Fate == migration.FateKept {
			_ = t.Cancel(fault.Refuse(fault.Forbidden, s.kind, fault.Reason{
				Code: codeSourceKeeps, Message: s.from + " keeps the guest: " + f.Why, Change: "look there: berth -c " + s.from + " migration list",
			}))
		}
	}
}

// undoAtSource asks the source for what may be given up once it is gone for good.
func (s *story) undoAtSource(ctx context.Context, _ *task.Task, timeout time.Duration, f func(context.Context, migration.Host) error) error {
	if s.conductsForOthers() && s.givenUp(ctx, s.from) {
		return nil
	}
	return s.atSource(ctx, timeout, f)
}

// Fate is what this conductor's journal says became of an attempt of a move between other
// hosts, for the side of it whose other side does not answer; false where it conducts no
// such move. id is the name that hosts know it by. What it answers as final stays
// so.
func (c *Conductor) Fate(id string, attempt int) (migration.AttemptFate, bool) {
	c.mu.Lock()
	s := c.calledLocked(id)
	var t *task.Task
	var now int
	if s != nil {
		t, now = s.task, s.rec.Attempt
	}
	c.mu.Unlock()
	if s == nil || !s.conductsForOthers() {
		return migration.AttemptFate{}, false
	}
	switch c.Conducts(id, attempt) {
	case migration.ConductOver:
		return migration.AttemptFate{Fate: migration.FateKept, Why: "the conductor says that the attempt is over, and nothing was committed"}, true
	case migration.ConductDone:
		return migration.AttemptFate{Fate: migration.FateCommitted, Why: "the conductor says that it has completed"}, true
	case migration.ConductNone:
		return migration.AttemptFate{}, false
	}
	if t != nil && now == attempt {
		for _, step := range []string{migration.StepHandOver, migration.StepHandBack, migration.StepTakeOver} {
			var commit migration.Commit
			if err := t.Output(step, &commit); err == nil {
				return migration.AttemptFate{Fate: migration.FateCommitted, Why: "by the conductor's journal the token has left", Commit: &commit}, true
			} else if !errors.Is(err, fault.NotFound) {
				return migration.AttemptFate{Fate: migration.FateUnknown, Why: err.Error()}, true
			}
		}
	}
	return migration.AttemptFate{Fate: migration.FateGoing, Why: "the conductor works on it"}, true
}
