//go:build native

package native

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
)

// relay is a way to a daemon's socket that this package can cut. The library can
// not be told to give a call up, and does not close a connection that a call is
// in; a daemon that answers its keepalive and not the call would hold the call,
// its thread and its connection for ever. So the library connects to a socket of
// this process, from where its bytes go on to the daemon's, and the end of that is
// the end of the connection to it. So is an answer that the library would not survive
// (forward).
type relay struct {
	path string // of the socket that the library connects to
	dir  string

	once   sync.Once
	daemon net.Conn
	l      net.Listener

	mu      sync.Mutex // guards what follows; nothing blocks under it
	library net.Conn   // nil until the library has connected
	cut     bool
}

// relayed connects to the daemon that uri names the socket of, and gives the uri
// by which the library reaches it through the relay. Without a socket there is
// nothing to relay: nil.
func relayed(ctx context.Context, uri string) (*relay, string, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, "", fmt.Errorf("libvirt uri: %w", err)
	}
	q := u.Query()
	socket := q.Get("socket")
	if socket == "" {
		return nil, uri, nil
	}
	var nd net.Dialer
	daemon, err := nd.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, "", err
	}
	r := &relay{daemon: daemon}
	if err := r.listen(); err != nil {
		r.Cut()
		return nil, "", fmt.Errorf("make a socket for libvirt's library: %w", err)
	}
	go r.run()
	q.Set("socket", r.path)
	u.RawQuery = q.Encode()
	return r, u.String(), nil
}

// listen makes a socket that nobody else can reach.
func (r *relay) listen() (err error) {
	if r.dir, err = os.MkdirTemp("", "berth-libvirt-"); err != nil { // 0700
		return err
	}
	r.path = filepath.Join(r.dir, "sock")
	r.l, err = net.Listen("unix", r.path)
	return err
}

// run takes the library's one connection and forwards until either side ends, or
// Cut.
func (r *relay) run() {
	defer r.Cut()
	library, err := r.l.Accept()
	r.unlink()
	if err != nil {
		return // cut before the library came
	}
	r.mu.Lock()
	r.library = library
	cut := r.cut
	r.mu.Unlock()
	if cut {
		_ = library.Close()
		return
	}
	go func() {
		defer r.Cut()
		_, _ = io.Copy(r.daemon, library) // its end is all that is to be known of it
	}()
	_ = forward(library, r.daemon) // why it ended, the library's caller is told as the end
}

// unlink takes the socket away: it has served, or never will.
func (r *relay) unlink() {
	if r.l != nil {
		_ = r.l.Close()
	}
	if r.dir != "" {
		_ = os.RemoveAll(r.dir) // in the system's folder for what nobody misses
	}
}

// Cut ends the connection at once: whatever the library waits for comes back with
// an error.
func (r *relay) Cut() {
	r.once.Do(func() {
		r.mu.Lock()
		r.cut = true
		library := r.library
		r.mu.Unlock()
		_ = r.daemon.Close()
		if library != nil {
			_ = library.Close()
		}
		r.unlink()
	})
}

// dial opens uri through a relay, and gives up when ctx ends.
func dial(ctx context.Context, uri string) (*conn, error) {
	r, through, err := relayed(ctx, uri)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return open(through, func() {})
	}
	stop := context.AfterFunc(ctx, r.Cut)
	c, err := open(through, r.Cut)
	if !stop() && err == nil {
		c.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		r.Cut()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return c, nil
}
