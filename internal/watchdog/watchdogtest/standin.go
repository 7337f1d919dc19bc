// Package watchdogtest is a stand-in for a watchdog where a test's machine has none: a daemon as
// package watchdog talks to, which keeps what it was told, and runs an action where a real one
// would reset the host.
//
// It is for tests of package agent and of whole hosts, whose action ends every process of a
// host. It writes its socket. It tells time by the machine's own clocks, as a watchdog does.
package watchdogtest

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Standin listens on a unix socket. Close it.
type Standin struct {
	// Path is the socket: [fleet] self_fence.
	Path string

	listener net.Listener
	action   func()
	served   sync.WaitGroup

	// mu guards the rest; nothing blocks under it.
	mu      sync.Mutex
	lines   []Line
	holder  net.Conn
	timeout time.Duration
	timer   *time.Timer // of the countdown; nil while it is not armed
	round   int         // counts countdowns, so that one that was ended late does nothing
	reset   bool
	conns   map[net.Conn]bool
	closed  bool
}

// Line is what was said, and when.
type Line struct {
	Said string
	At   time.Time
}

// Listen makes a stand-in. action is what a reset does: called at most once, on a goroutine that
// Close waits for; nil for nothing.
func Listen(path string, action func()) (*Standin, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("stand in for a watchdog: %w", err)
	}
	s := &Standin{Path: path, listener: l, action: action, conns: map[net.Conn]bool{}}
	s.served.Go(s.accept)
	return s, nil
}

// Close ends it without a reset and removes its socket.
func (s *Standin) Close() error {
	s.mu.Lock()
	s.closed = true
	s.stopLocked()
	err := s.listener.Close()
	for c := range s.conns {
		err = errors.Join(err, c.Close())
	}
	s.mu.Unlock()
	s.served.Wait()
	return err
}

// Lines are all that was said, in order.
func (s *Standin) Lines() []Line {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Line(nil), s.lines...)
}

// Count is how often a word was said: "arm", "feed", "disarm".
func (s *Standin) Count(word string) int {
	n := 0
	for _, l := range s.Lines() {
		if first, _, _ := strings.Cut(l.Said, " "); first == word {
			n++
		}
	}
	return n
}

// Armed reports whether a reset comes unless it is fed.
func (s *Standin) Armed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timer != nil
}

// Reset reports whether the host was reset.
func (s *Standin) Reset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reset
}

func (s *Standin) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			_ = c.Close()
			return
		}
		s.conns[c] = true
		s.served.Go(func() { s.serve(c) })
		s.mu.Unlock()
	}
}

func (s *Standin) serve(c net.Conn) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.conns, c)
		if s.holder == c {
			s.holder = nil // the countdown goes on
		}
		_ = c.Close() // Close may have been first
	}()
	in := bufio.NewScanner(c)
	for in.Scan() {
		if _, err := fmt.Fprintln(c, s.answer(c, in.Text())); err != nil {
			return
		}
	}
}

func (s *Standin) answer(c net.Conn, said string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	word, rest, _ := strings.Cut(said, " ")
	if word == "arm" && s.holder != nil && s.holder != c {
		return "busy"
	}
	if word != "arm" && s.holder != c {
		return "refused: arm it first"
	}
	s.lines = append(s.lines, Line{Said: said, At: time.Now()})
	switch word {
	case "arm":
		seconds, err := strconv.Atoi(rest)
		if err != nil || seconds < 1 {
			return "refused: a timeout is whole seconds"
		}
		s.holder, s.timeout = c, time.Duration(seconds)*time.Second
		s.beginLocked()
		return fmt.Sprintf("armed %d stand-in", seconds)
	case "feed":
		s.beginLocked()
		return "fed"
	case "disarm":
		s.stopLocked()
		s.holder = nil
		return "disarmed"
	}
	return "refused: no such word"
}

// beginLocked begins the countdown anew.
func (s *Standin) beginLocked() {
	s.stopLocked()
	if s.closed || s.reset {
		return
	}
	round := s.round
	s.timer = time.AfterFunc(s.timeout, func() { s.expire(round) })
}

func (s *Standin) stopLocked() {
	s.round++
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

func (s *Standin) expire(round int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if round != s.round || s.reset || s.closed {
		return
	}
	s.reset, s.timer = true, nil
	if s.action != nil {
		s.served.Go(s.action)
	}
}
