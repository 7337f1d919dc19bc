package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"berth/internal/fault"
)

// The verbs of the agent's socket. One request and one answer a connection, each
// one JSON value; a field that is not known is passed over, so that agent and
// process may be of different versions. Verbs and fields are only ever added.
const (
	verbStatus = "status"
	verbRenew  = "renew"
	verbEnd    = "end"
)

type request struct {
	Verb  string        `json:"verb"`
	Lease time.Duration `json:"lease_ns,omitempty"`
}

type answer struct {
	Status *Status `json:"status,omitempty"`
	Error  string  `json:"error,omitempty"`
}

const (
	// askTimeout is how long an agent waits for one answer.
	askTimeout = 5 * time.Second
	// messageMax bounds a request and an answer. Arbitrary: an answer is about 1 KiB.
	messageMax = 64 << 10
)

// ask puts one request to a session's process.
func (m *Manager) ask(ctx context.Context, id ID, r request) (Status, error) {
	st, err := ask(ctx, m.Paths(id), r)
	if err == nil {
		return st, nil
	}
	doing := fmt.Sprintf("ask stream %s for its %s", id, r.Verb)
	// Nobody listens: there is no process, or it is at its beginning or end.
	if alive, lerr := living(m.Paths(id)); lerr == nil && !alive {
		return Status{}, fault.New(fault.NotFound, "%s: no process has it", doing)
	}
	if fault.KindOf(err) == fault.Invalid {
		return Status{}, fmt.Errorf("%s: %w", doing, err)
	}
	return Status{}, fault.New(fault.Unavailable, "%s: %w", doing, err)
}

func ask(ctx context.Context, p Paths, r request) (Status, error) {
	// The machine's own clock: this is about a real process, and the kernel.
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", p.agent())
	if err != nil {
		return Status{}, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return Status{}, err
	}
	var a answer
	if err := json.NewDecoder(io.LimitReader(c, messageMax)).Decode(&a); err != nil {
		return Status{}, errors.Join(err, context.Cause(ctx))
	}
	if a.Error != "" {
		return Status{}, fault.New(fault.Invalid, "%s", a.Error)
	}
	if a.Status == nil {
		return Status{}, fault.New(fault.Invalid, "the answer holds no status")
	}
	return *a.Status, nil
}

// serveAgent answers agents until the listener is closed.
func (p *process) serveAgent(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if p.retryAccept("agent", err) {
				continue
			}
			return
		}
		p.spawn(func() {
			defer c.Close()
			// The end of the process waits for nobody who asks and says nothing.
			defer context.AfterFunc(p.ctx, func() { c.Close() })()
			if err := p.mayConnect(c, Control); err != nil {
				p.refuse("local agent", err)
				return
			}
			p.answerAgent(c)
		})
	}
}

func (p *process) answerAgent(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(askTimeout)) // fails only on a closed one
	var r request
	if err := json.NewDecoder(io.LimitReader(c, messageMax)).Decode(&r); err != nil {
		return // nobody who could be told
	}
	var a answer
	switch r.Verb {
	case verbRenew:
		if r.Lease <= 0 {
			a.Error = "a lease is required"
			break
		}
		p.renew(r.Lease)
	case verbStatus, verbEnd:
	default:
		a.Error = fmt.Sprintf("verb %.40q is not known", r.Verb)
	}
	if a.Error == "" {
		st := p.status()
		a.Status = &st
	}
	if err := json.NewEncoder(c).Encode(a); err != nil && !errors.Is(err, syscall.EPIPE) {
		p.log.Warn("an agent could not be answered", "verb", r.Verb, "error", err)
	}
	if r.Verb == verbEnd {
		p.stop("told to by its agent")
	}
}
