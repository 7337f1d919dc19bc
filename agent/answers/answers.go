// Package answers keeps when each part that is asked again and again last answered, for status. A part is
// a service (Placement), another host, or a loop of the agent that has to come round. It is values and one
// lock: nobody is asked here.
package answers

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Times are when one part was asked and answered. The zero value is of a part that was never asked.
type Times struct {
	Asked    time.Time // the oldest question without an answer; zero where it has answered all
	Answered time.Time // the newest answer; zero for never
	Missed   time.Time // the newest question that ended without an answer; zero for none
}

// Late reports whether a part has left a question unanswered for longer than within. since is its last
// answer, or the question where there never was one.
func (t Times) Late(now time.Time, within time.Duration) (since time.Time, late bool) {
	if t.Asked.IsZero() || now.Sub(t.Asked) <= within {
		return time.Time{}, false
	}
	if t.Answered.IsZero() {
		return t.Asked, true
	}
	return t.Answered, true
}

// Table keeps the times of parts by their names. The zero value is ready, and safe for concurrent use. No
// call blocks on more than memory.
type Table struct {
	// mu guards parts; nothing is called under it.
	mu    sync.Mutex
	parts map[string]entry
}

type entry struct {
	Times
	within time.Duration // of a loop; 0 for another part
}

// Silent is a loop that has not come round.
type Silent struct {
	Part   string
	Since  time.Time
	Within time.Duration // in which it should have
}

func (t *Table) change(part string, change func(*entry)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts == nil {
		t.parts = map[string]entry{}
	}
	e := t.parts[part]
	change(&e)
	t.parts[part] = e
}

// Miss notes a question, asked at this time, that ended without an answer.
func (t *Table) Miss(part string, asked time.Time) {
	t.change(part, func(e *entry) {
		if e.Asked.IsZero() {
			e.Asked = asked
		}
		e.Missed = asked
	})
}

// Answer notes an answer, whatever it said.
func (t *Table) Answer(part string, now time.Time) {
	t.change(part, func(e *entry) { e.Times = Times{Answered: now} })
}

// Begin notes that a loop begins, and has to come round within this time from now on.
func (t *Table) Begin(part string, now time.Time, within time.Duration) {
	t.change(part, func(e *entry) { *e = entry{Times{Asked: now}, within} })
}

// Round notes that a loop has come round, if it has begun.
func (t *Table) Round(part string, now time.Time) {
	t.change(part, func(e *entry) { e.Times = Times{Asked: now, Answered: now} })
}

// End notes that a loop has ended.
func (t *Table) End(part string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.parts, part)
}

// Of gives the times of a part.
func (t *Table) Of(part string) Times {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.parts[part].Times
}

// Late gives the loops that have not come round within their time, by name.
func (t *Table) Late(now time.Time) []Silent {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Silent
	for _, part := range slices.Sorted(maps.Keys(t.parts)) {
		e := t.parts[part]
		if e.within == 0 {
			continue
		}
		if since, late := e.Late(now, e.within); late {
			out = append(out, Silent{part, since, e.within})
		}
	}
	return out
}
