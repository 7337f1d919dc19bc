package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"berth/internal/fault"
)

// listen gives the listeners: those that systemd holds, and for the rest its
// own. The order is local socket, peers.
func (a *Agent) listen() ([]net.Listener, error) {
	c := a.config().Agent
	out := append([]net.Listener(nil), a.opt.Listeners["api"]...)
	if len(out) == 0 {
		l, err := listenLocal(c.SocketPath(), c.SocketGroup)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	if a.identity == nil || c.Listen == "" {
		return out, nil
	}
	if held := a.opt.Listeners["peers"]; len(held) > 0 {
		return append(out, held...), nil
	}
	l, err := a.listenPeers()
	if err != nil {
		// The machine itself is served all the same, and its moves go on as far as they
		// need nobody to call.
		a.log.Error("nobody listens for peers", "error", err)
		a.deaf.Store(&err)
		return out, nil
	}
	return append(out, l), nil
}

func (a *Agent) listenPeers() (net.Listener, error) {
	l, err := net.Listen("tcp", a.config().Agent.Listen)
	if err != nil {
		return nil, fault.New(fault.Busy, "listen for peers: %w: set [agent] listen", err)
	}
	return l, nil
}

// listenEvery is how often a port that was taken is tried again.
const listenEvery = 2 * time.Second

// listenLater listens for peers as soon as the port is free.
func (a *Agent) listenLater(ctx context.Context) error {
	for a.rt.Sleep(ctx, listenEvery) == nil {
		l, err := a.listenPeers()
		if err != nil {
			a.deaf.Store(&err)
			continue
		}
		a.deaf.Store(nil)
		a.log.Info("listening for peers", "address", l.Addr())
		// Shutdown closes it, before ctx ends.
		return a.server.Serve(l)
	}
	return nil
}

// listenLocal makes the unix socket, root:group 0660. A socket that nobody
// answers on is a crashed agent's and is replaced; one that somebody answers on
// is refused.
func listenLocal(path, group string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the runtime directory: %w", err)
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&fs.ModeSocket == 0 {
			return nil, fault.New(fault.Exists, "listen on %s: it exists and is no socket", path)
		}
		if conn, err := net.Dial("unix", path); err == nil {
			return nil, errors.Join(fault.Refuse(fault.Busy, "listen on "+path, fault.Reason{
				Code: "socket_in_use", Message: "another agent answers on it", Change: "stop it, or set [agent] runtime_dir for this one",
			}), conn.Close())
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the socket that a crashed agent left: %w", err)
		}
	}
	// Made with no rights at all, which it gets when it has its group: between the
	// two nobody may connect. Linux gives the file the mode that the socket has when it
	// is bound (unix(7)); a umask would be every other file's of the process, too.
	bare := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0) }), err)
	}}
	l, err := bare.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	mode := fs.FileMode(0o600)
	if g, err := user.LookupGroup(group); err == nil {
		if gid, err := strconv.Atoi(g.Gid); err == nil && os.Chown(path, -1, gid) == nil {
			mode = 0o660
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on %s: %w", path, err), l.Close())
	}
	return l, nil
}
