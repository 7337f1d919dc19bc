package api

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"

	"berth/internal/fault"
)

// The bounds of what one caller can make this agent do, beside MaxBody and the times of server.go. All are
// arbitrary: far above what a fleet needs.
const (
	// maxValues bounds the values in one body, and maxDepth how deep they stand in one another. A list of
	// empty objects would else take a hundred times the memory of its text.
	maxValues = 1 << 18
	maxDepth  = 64

	// maxShare and maxWatchShare bound the requests of one caller that are worked on at once, and the streams
	// of events among them, so that one caller cannot take all places. maxWatches bounds those of all callers.
	maxShare      = maxRequests / 2
	maxWatchShare = maxRequests / 4
	maxWatches    = maxRequests / 2

	// maxConnections bounds the open connections from other machines: a caller without a certificate must
	// not exhaust the file descriptors of this process.
	maxConnections = 4096
)

const reasonTooLarge = "body_too_large"

// boundedValues refuses a JSON text with too many values, or nested too deep. It is one pass over the text,
// and does not check that the text is JSON.
func boundedValues(text []byte) error {
	values, depth, quoted := 1, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			values++
		case c == '}' || c == ']':
			depth--
		case c == ',':
			values++
		}
		if values > maxValues || depth > maxDepth {
			return fault.Refuse(fault.Invalid, "read the request", fault.Reason{
				Code: reasonTooLarge, Message: fmt.Sprintf("the body has more than %d values, or they stand more than %d deep", maxValues, maxDepth), Change: "send less",
			})
		}
	}
	return nil
}

// isTooLarge reports whether a request was refused for the size of its body.
func isTooLarge(err error) bool {
	return fault.HasReason(err, reasonTooLarge)
}

// shares bound how many of something each caller has at a time, and all together. The zero value lets nobody
// have any.
type shares struct {
	each, all int

	// mu guards what follows; nothing is called under it.
	mu    sync.Mutex
	of    map[string]int
	taken int
}

// take takes one for a caller, and returns the function that gives it back; false at the bound of the caller
// or of all.
func (s *shares) take(who string) (giveBack func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[who] >= s.each || s.taken >= s.all {
		return nil, false
	}
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.of[who]++
	s.taken++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.of[who]--; s.of[who] == 0 {
			delete(s.of, who)
		}
	}, true
}

func tooMany(what string, most int) error {
	return fault.Refuse(fault.Unavailable, "take the request", fault.Reason{
		Code: "too_many_requests", Message: fmt.Sprintf("this caller, or all together, have too many %s in progress: one caller may have %d", what, most),
		Change: "ask again when one of them has ended",
	})
}

// connections closes those from other machines that are too many. What came by a unix socket is not counted.
type connections struct {
	most int

	// mu guards open; nothing is called under it.
	mu   sync.Mutex
	open map[net.Conn]struct{}
}

func (c *connections) state(conn net.Conn, state http.ConnState) {
	if strings.HasPrefix(conn.LocalAddr().Network(), "unix") {
		return
	}
	c.mu.Lock()
	switch state {
	case http.StateNew:
		if c.open == nil {
			c.open = map[net.Conn]struct{}{}
		}
		c.open[conn] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
	}
	many := state == http.StateNew && len(c.open) > c.most
	c.mu.Unlock()
	if many {
		_ = conn.Close() // whoever connects comes again
	}
}
