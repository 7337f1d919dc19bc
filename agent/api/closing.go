package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// closing ends a server without losing a request that somebody has sent over a new connection:
// net/http's own Shutdown drops each that it has not read yet. (Over one that has stood idle a
// request may still be lost, as with any server; whoever sent it is told that it is in doubt.) Listeners go first, so that nobody else is let in (of one
// that systemd holds, who comes now is the next agent's), then what was let in may still ask, and
// only what is left is Shutdown's. The zero value is ready.
type closing struct {
	// mu guards what follows; nothing happens under it.
	mu        sync.Mutex
	began     bool
	listeners map[net.Listener]struct{}
	unasked   map[net.Conn]struct{} // let in, and nothing was asked over them yet
	serving   sync.WaitGroup
}

// askPatience is how long one that was let in may take to ask. Arbitrary: whoever connects sends
// its request at once.
const askPatience = 5 * time.Second

// serve has a listener served until the server closes.
func (c *closing) serve(s *http.Server, l net.Listener) error {
	c.mu.Lock()
	if c.began {
		c.mu.Unlock()
		return l.Close()
	}
	if c.listeners == nil {
		c.listeners = map[net.Listener]struct{}{}
	}
	c.listeners[l] = struct{}{}
	c.serving.Add(1)
	c.mu.Unlock()
	defer c.serving.Done()
	err := s.Serve(l)
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// state is an http.Server's ConnState.
func (c *closing) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if c.unasked == nil {
			c.unasked = map[net.Conn]struct{}{}
		}
		c.unasked[conn] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(c.unasked, conn)
	}
}

// asked notes that a request is answered.
func (c *closing) asked(r *http.Request) {
	if conn, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.unasked, conn)
	}
}

type connKey struct{}

// context is an http.Server's ConnContext.
func (c *closing) context(ctx context.Context, conn net.Conn) context.Context {
	return markLocal(context.WithValue(ctx, connKey{}, conn), conn)
}

// stop lets nobody in any more, and returns when all that were have asked, or took too long.
func (c *closing) stop(ctx context.Context, sleep func(context.Context, time.Duration) error) {
	c.mu.Lock()
	c.began = true
	for l := range c.listeners {
		_ = l.Close() // it is closed whatever that says
	}
	c.mu.Unlock()
	c.serving.Wait()
	for waited := time.Duration(0); waited < askPatience && c.awaited(); waited += lookPause {
		if sleep(ctx, lookPause) != nil {
			return
		}
	}
}

// lookPause is between two looks. Arbitrary: nobody notices it in a stop.
const lookPause = 5 * time.Millisecond

func (c *closing) awaited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.unasked) > 0
}
