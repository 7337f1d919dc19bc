package sim

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"berth/internal/fault"
	"berth/internal/store"
	"berth/internal/store/storetest"
	"berth/migration"
	"berth/migration/drain"
	"berth/migration/task"
)

// Way is how one step of a move goes wrong, once.
type Way string

// The ways.
const (
	FailBefore Way = "fail before" // what the step asks first is refused, and does not happen
	FailAfter  Way = "fail after"  // it happens, and is answered with an error
	Kill       Way = "kill"        // it happens, and the conductor's agent dies before it hears so
)

// Ways are all of them.
func Ways() []Way { return []Way{FailBefore, FailAfter, Kill} }

// Spoil has one step of a run's first move go wrong.
type Spoil struct {
	Step string
	Way  Way
	// In says whether the move is where the step is meant, since some are done in more
	// than one part of a story; nil for anywhere.
	In func(migration.Migration) bool
	// Journal has the step's end go wrong where it is written down: of a step that asks
	// nobody anything.
	Journal bool
	// Drain: Step is what is written of a drain, one of DrainStories.
	Drain bool
}

// background are verbs that are asked beside the steps.
var background = []string{"RenewClaim", "AttemptFate", "StreamStatus", "TuneStream"}

// spoils says whether what an agent is about to ask is what is to go wrong.
func (w *world) spoils(a *agent, what string) bool {
	s := w.options.Spoil
	if s == nil || s.Drain || w.spoiled || len(w.moves) == 0 || a.conductor == nil || s.Journal != (what == journal) {
		return false
	}
	for _, b := range background {
		if strings.HasPrefix(what, b) {
			return false
		}
	}
	rec, err := a.conductor.Get(context.Background(), w.moves[0].uuid)
	if err != nil || rec.Step != s.Step || rec.Phase != task.Doing || s.In != nil && !s.In(rec) {
		return false
	}
	return true
}

// spoilVerb is asked before a verb. It gives what is to happen to it: nothing, or an error
// in place of it, or what is to be done after it.
func (w *world) spoilVerb(a *agent, what string) (after func() error, instead error) {
	if !w.spoils(a, what) {
		return nil, nil
	}
	w.spoiled = true
	broken := func() error { return fault.New(fault.Internal, "%s: %s", what, "input/output error") }
	w.fault(a.m.name, string(w.options.Spoil.Way)+": "+what)
	switch w.options.Spoil.Way {
	case FailBefore:
		return nil, broken()
	case FailAfter:
		return broken, nil
	}
	return func() error { a.m.kill(restartAfter); return nil }, nil
}

// spoilRequest is spoilVerb for a request to Placement: an answer in place of the
// server's, or what becomes of the server's.
func (w *world) spoilRequest(a *agent, q *http.Request) (instead *http.Response, after func() error) {
	if q.Method == http.MethodGet && (w.options.Spoil == nil || writesOnly(w.options.Spoil.Step)) || !w.spoils(a, "placement") {
		return nil, nil
	}
	w.spoiled = true
	w.fault(a.m.name, string(w.options.Spoil.Way)+": placement "+q.Method+" "+q.URL.Path)
	switch w.options.Spoil.Way {
	case FailBefore:
		return answer(q, http.StatusBadRequest, `{"errors":[{"status":400,"title":"Bad Request","detail":"The server could not comply with the request."}]}`), nil
	case FailAfter:
		return nil, func() error { return errors.New("connection reset by peer") }
	}
	return nil, func() error { a.m.kill(restartAfter); return nil }
}

// journal is what is asked where a step is written down.
const journal = "journal"

// spoilCommit is spoilVerb for the end of a step in the conductor's journal.
func (w *world) spoilCommit(a *agent, at storetest.Point, what string) storetest.Outcome {
	after := w.options.Spoil != nil && w.options.Spoil.Way == Kill
	if !strings.HasPrefix(what, "put tasks/") || after != (at == storetest.AfterCommit) || !w.spoils(a, journal) {
		return storetest.Commit
	}
	w.spoiled = true
	w.fault(a.m.name, string(w.options.Spoil.Way)+": "+what)
	switch w.options.Spoil.Way {
	case FailBefore:
		return storetest.Fail
	case FailAfter:
		a.m.unheard++
		return storetest.FailWritten
	}
	a.m.kill(restartAfter)
	return storetest.Commit
}

// writesOnly says whether a step is about what it writes to Placement.
func writesOnly(step string) bool { return strings.Contains(step, "allocation") }

// restartAfter is how long an agent is away that was killed.
const restartAfter = silence

// DrainStories are the stories of drains, and everything that is written of each, in words.
func DrainStories() map[string][]string {
	return map[string][]string{
		"drain":          {"begin", "close the host", "note that it is closed", "name the move", "moved", "gone", "wait", "try again", "failed", "end"},
		"drain, aborted": {"abort", "open the host", "end"},
	}
}

// spoilDrain is spoilCommit for what is written of a drain.
func (w *world) spoilDrain(a *agent, at storetest.Point, batch []store.Mutation) storetest.Outcome {
	s := w.options.Spoil
	if s == nil || !s.Drain || w.spoiled || (s.Way == Kill) != (at == storetest.AfterCommit) ||
		!slices.ContainsFunc(batch, func(m store.Mutation) bool { return drainPoint(m) == s.Step }) {
		return storetest.Commit
	}
	w.spoiled = true
	w.fault(a.m.name, string(s.Way)+": "+s.Step)
	switch s.Way {
	case FailBefore:
		return storetest.Fail
	case FailAfter:
		a.m.unheard++
		return storetest.FailWritten
	}
	a.m.kill(restartAfter)
	return storetest.Commit
}

// drainPoint says in words what one write of a drain is; empty for no drain's.
func drainPoint(m store.Mutation) string {
	switch {
	case m.Bucket == doorBucket && m.Value == nil:
		return "open the host"
	case m.Bucket == doorBucket:
		return "close the host"
	case m.Bucket != drainBucket || m.Value == nil:
		return ""
	case strings.Contains(m.Key, "/"):
		var g drain.Guest
		if err := json.Unmarshal(m.Value, &g); err != nil {
			return ""
		}
		switch {
		case g.State == drain.Moving:
			return "name the move"
		case g.State == drain.Waiting && g.Attempts > 0:
			return "try again"
		case g.State == drain.Waiting:
			return "wait"
		}
		return string(g.State)
	}
	var d drain.Drain
	switch err := json.Unmarshal(m.Value, &d); {
	case err != nil:
		return ""
	case d.State.Over():
		return "end"
	case d.State == drain.Aborting:
		return "abort"
	case d.Closed:
		return "note that it is closed"
	}
	return "begin"
}
