package placementclient

import (
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Counters is what a client has done since it was made, for metrics and tests.
type Counters struct {
	// Calls counts answered or failed calls by "METHOD /route status"; the status
	// is 000 where there was no answer. Repeats within a call are not counted here.
	Calls map[string]int64
	// Took is how long they took in all, repeats and pauses included, by the same words.
	Took map[string]time.Duration
	// Conflicts counts calls that were answered 409, by what it means.
	Conflicts map[Conflict]int64
	// Requests counts requests sent, repeats included.
	Requests int64
	// Retries counts repeats, for whatever reason.
	Retries int64
	// Races counts the 409s of a race lost inside the server.
	Races int64
	// Orphans counts consumers of generation 0 that a failed claim had left and
	// that were taken over.
	Orphans int64
	// InDoubt counts writes whose outcome stayed unknown.
	InDoubt int64
}

type counters struct {
	requests, retries, races, orphans, inDoubt atomic.Int64

	mu        sync.Mutex // guards what follows; nothing else happens under it
	asked     time.Time  // when the first request since the last answer was sent; zero for none
	answered  time.Time  // of the last answer; zero for never
	calls     map[string]int64
	took      map[string]time.Duration
	conflicts map[Conflict]int64
}

func (n *counters) add(k call, f *flight, took time.Duration) {
	n.requests.Add(int64(f.attempts))
	status := "000"
	if s := f.rep.status; s != 0 {
		status = string([]byte{byte('0' + s/100%10), byte('0' + s/10%10), byte('0' + s%10)})
	}
	var conflict Conflict
	if f.rep.status == http.StatusConflict {
		conflict = parseError(f.rep.status, f.rep.body).Conflict
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.calls == nil {
		n.calls, n.took, n.conflicts = map[string]int64{}, map[string]time.Duration{}, map[Conflict]int64{}
	}
	words := k.method + " " + k.route + " " + status
	n.calls[words]++
	n.took[words] += took
	if conflict != "" {
		n.conflicts[conflict]++
	}
}

// Counters gives a copy of the counts so far.
func (c *Client) Counters() Counters {
	out := Counters{
		Requests: c.count.requests.Load(), Retries: c.count.retries.Load(), Races: c.count.races.Load(),
		Orphans: c.count.orphans.Load(), InDoubt: c.count.inDoubt.Load(),
	}
	c.count.mu.Lock()
	defer c.count.mu.Unlock()
	out.Calls, out.Took, out.Conflicts = maps.Clone(c.count.calls), maps.Clone(c.count.took), maps.Clone(c.count.conflicts)
	return out
}

// ask notes that a request is sent.
func (n *counters) ask(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked.IsZero() {
		n.asked = now
	}
}

// answer notes that Placement answered, whatever it said.
func (n *counters) answer(now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked, n.answered = time.Time{}, now
}

// Silence tells since when Placement has been asked without an answer, zero where it answered
// the last request, and when it answered last, zero for never. It does not block.
func (c *Client) Silence() (asked, answered time.Time) {
	c.count.mu.Lock()
	defer c.count.mu.Unlock()
	return c.count.asked, c.count.answered
}
