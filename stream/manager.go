package stream

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// Manager is the agent's hand on the processes of this host. It holds no state:
// what there is, the folder and the processes say, so that any agent finds the
// streams of any other. It is safe for concurrent use; two calls about one
// session must not overlap, but for Status.
type Manager struct {
	dir     string
	starter Starter
	rt      runtime.Runtime
	// patience is how long a process may take to end when asked.
	patience time.Duration
}

// Starter starts a process that reads its order in a session's folder (Run), and
// that does not end when the caller does. Units and Children are the two.
type Starter interface {
	// Start returns once the process was started; that it serves is told by its
	// socket. It blocks for as long as the service manager does, within ctx.
	Start(ctx context.Context, id ID, dir string) (*Started, error)
}

// Started is a process that was just started.
type Started struct {
	// Ended is closed when the process is known to have ended; nil where nobody
	// tells.
	Ended <-chan struct{}
}

// NewManager makes a manager of dir, /run/berth/streams, which the first Open makes;
// the folder that it lies in must be there. It writes nothing. s may be nil for who
// only looks.
func NewManager(dir string, s Starter, rt runtime.Runtime) (*Manager, error) {
	// The longest name that a session has.
	if err := PathsOf(dir, ID{Migration: strings.Repeat("0", 36), Attempt: 999}).check(); err != nil {
		return nil, err
	}
	return &Manager{dir: dir, starter: s, rt: rt, patience: endTimeout}, nil
}

// Paths gives the paths of a session.
func (m *Manager) Paths(id ID) Paths { return PathsOf(m.dir, id) }

// startTimeout is within what a process must serve. Arbitrary: generous for a busy
// machine, since it does little before.
const startTimeout = 20 * time.Second

// Open starts the process of a session and returns when it serves: on a
// destination it listens then (Status.Port), on a source its sockets are there.
//
// It is safe to repeat: a process that was started by an equal order (leases
// aside) is left alone and its lease renewed; one that has ended is started again,
// on a destination with another port. A process of another order is fault.Exists.
func (m *Manager) Open(ctx context.Context, o Order) (Status, error) {
	doing := fmt.Sprintf("open %s stream %s", o.Role, o.ID)
	if err := o.check(); err != nil {
		return Status{}, err
	}
	p := m.Paths(o.ID)
	switch alive, err := living(p); {
	case err != nil:
		return Status{}, fmt.Errorf("%s: %w", doing, err)
	case alive:
		st, err := m.Renew(ctx, o.ID, o.Lease)
		if err != nil {
			return Status{}, fmt.Errorf("%s: %w", doing, err)
		}
		if st.OrderDigest != o.digest() {
			return Status{}, fault.New(fault.Exists, "%s: one of another order runs", doing)
		}
		return st, nil
	}
	if err := m.prepare(p, o); err != nil {
		return Status{}, fmt.Errorf("%s: %w", doing, err)
	}
	st, err := m.start(ctx, p, o)
	if err != nil {
		// Whatever came up of it goes, with the ticket.
		ctx, cancel := m.rt.WithTimeout(context.WithoutCancel(ctx), endTimeout+killTimeout)
		defer cancel()
		return Status{}, errors.Join(fmt.Errorf("%s: %w", doing, err), m.Close(ctx, o.ID))
	}
	return st, nil
}

// prepare makes the session's folder with the order in it.
func (m *Manager) prepare(p Paths, o Order) error {
	if err := m.passable(o.QEMU); err != nil {
		return err
	}
	// What an earlier process left; nobody holds its lock.
	if err := remove(p); err != nil {
		return err
	}
	if err := os.Mkdir(p.Dir, 0o711); err != nil {
		return err
	}
	if err := os.Chmod(p.Dir, 0o711); err != nil {
		return err
	}
	if err := os.Mkdir(p.QEMU, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(p.QEMU, o.QEMU.UID, o.QEMU.GID); err != nil {
			return err
		}
	}
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return os.WriteFile(p.order(), text, 0o600)
}

// passable makes the manager's folder, and sees to it that QEMU's user can pass it and
// has nothing to list: libvirt would say of a folder above its sockets only that
// permission was denied.
func (m *Manager) passable(qemu Owner) error {
	if err := os.Mkdir(m.dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(m.dir)
	if err != nil {
		return err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !fi.IsDir() || ok && int(st.Uid) != os.Geteuid() {
		return fault.New(fault.Forbidden, "%s is no folder of user %d's: remove it", m.dir, os.Geteuid())
	}
	// Not only after Mkdir: the umask took bits, and whoever made it may have died then.
	if err := os.Chmod(m.dir, 0o711); err != nil {
		return err
	}
	for at := filepath.Dir(m.dir); qemu.UID != 0; at = filepath.Dir(at) {
		fi, err := os.Stat(at)
		if err != nil {
			return err
		}
		// Groups and access lists show in the group's bits; what those let in is left to
		// the kernel.
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && int(st.Uid) != qemu.UID && fi.Mode().Perm()&0o011 == 0 {
			return fault.New(fault.Forbidden, "user %d, as whom QEMU runs, cannot pass %s (mode %#o) on the way to its sockets: chmod 0711, or another [agent] runtime_dir",
				qemu.UID, at, fi.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
	return nil
}

// start starts the process and waits until it serves.
func (m *Manager) start(ctx context.Context, p Paths, o Order) (Status, error) {
	ctx, cancel := m.rt.WithTimeout(ctx, startTimeout)
	defer cancel()
	begun, err := m.starter.Start(ctx, o.ID, p.Dir)
	if err != nil {
		return Status{}, errors.Join(err, failure(p))
	}
	for wait := 2 * time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		st, err := m.Status(ctx, o.ID)
		if err == nil {
			return st, nil
		}
		if why := failure(p); why != nil {
			return Status{}, why
		}
		select {
		case <-begun.Ended:
			if why := failure(p); why != nil {
				return Status{}, why
			}
			return Status{}, fault.New(fault.Unavailable, "the process ended before it served%s", lastWords(p))
		default:
		}
		if m.rt.Sleep(ctx, wait) != nil {
			return Status{}, fault.New(fault.Unavailable, "the process does not serve: %w", err)
		}
	}
}

// failure is why a process did not begin; nil where it left no word.
func failure(p Paths) error {
	text, err := os.ReadFile(p.failure())
	if err != nil {
		return nil
	}
	return fault.New(fault.Unavailable, "the process says: %s", strings.TrimSpace(string(text)))
}

// lastWords is the end of a process's log, which goes with its folder.
func lastWords(p Paths) string {
	const most = 500
	text, err := os.ReadFile(p.log())
	if text = bytes.TrimSpace(text); err != nil || len(text) == 0 {
		return ""
	}
	return fmt.Sprintf(": %q", text[max(0, len(text)-most):])
}

// Status asks a session's process. fault.NotFound: there is none. A process that
// lives and does not answer (stopped, or starved) is fault.Unavailable: nothing
// is known of its connections.
func (m *Manager) Status(ctx context.Context, id ID) (Status, error) {
	return m.ask(ctx, id, request{Verb: verbStatus})
}

// Renew gives the process its lease anew, and answers as Status does.
func (m *Manager) Renew(ctx context.Context, id ID, lease time.Duration) (Status, error) {
	return m.ask(ctx, id, request{Verb: verbRenew, Lease: lease})
}

// Find gives the sessions of a migration on this host, all attempts, by attempt;
// of all migrations where the uuid is empty. Only those whose process lives.
func (m *Manager) Find(migration string) ([]ID, error) {
	all, err := m.folders()
	if err != nil {
		return nil, err
	}
	var out []ID
	for _, id := range all {
		if migration != "" && id.Migration != migration {
			continue
		}
		switch alive, err := living(m.Paths(id)); {
		case err != nil:
			return nil, err
		case alive:
			out = append(out, id)
		}
	}
	return out, nil
}

// removedPrefix begins the name of a folder that is being removed. A process
// renames its own before it removes it: from then on the session's name is free,
// and nothing of the old one touches what is made under it.
const removedPrefix = ".removed-"

func remove(p Paths) error {
	// A name of its own: what an earlier removal left under one would be in the way.
	away := filepath.Join(filepath.Dir(p.Dir), removedPrefix+filepath.Base(p.Dir)+"-"+rand.Text())
	if err := os.Rename(p.Dir, away); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return os.RemoveAll(away)
}

// folders lists the sessions that have a folder.
func (m *Manager) folders() ([]ID, error) {
	entries, err := os.ReadDir(m.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for streams: %w", err)
	}
	var out []ID
	for _, e := range entries {
		if id, err := ParseID(e.Name()); err == nil && e.IsDir() {
			out = append(out, id)
		}
	}
	slices.SortFunc(out, func(a, b ID) int {
		if n := strings.Compare(a.Migration, b.Migration); n != 0 {
			return n
		}
		return a.Attempt - b.Attempt
	})
	return out, nil
}

// endTimeout is how long a process may take to end when asked, before it is killed,
// and killTimeout how long then. Arbitrary; a guest may stand still as long as the
// first, or an agent's start wait, and one that is killed loses nothing but its last
// line in the log. Who is killed ends at once, but where the kernel holds him.
const (
	endTimeout  = time.Second
	killTimeout = 4 * time.Second
)

// Close revokes the session's ticket: it ends the process with every connection,
// sees its end, and removes the folder. nil when there is none. It is safe to
// repeat, and after it nothing arrives through this session. A process that does
// not answer is killed.
func (m *Manager) Close(ctx context.Context, id ID) error {
	p := m.Paths(id)
	alive, err := living(p)
	if err != nil {
		return fmt.Errorf("close stream %s: %w", id, err)
	}
	if alive {
		if err := m.end(ctx, id, p); err != nil {
			return fmt.Errorf("close stream %s: %w", id, err)
		}
	}
	if err := remove(p); err != nil {
		return fmt.Errorf("close stream %s: %w", id, err)
	}
	return nil
}

// end ends a living process: by word, then by signal.
func (m *Manager) end(ctx context.Context, id ID, p Paths) error {
	polite, cancel := m.rt.WithTimeout(ctx, m.patience)
	defer cancel()
	// What it answers does not matter, only that its lock falls: it may be at its end
	// already.
	_, _ = m.ask(polite, id, request{Verb: verbEnd})
	if m.fallen(polite, p) == nil {
		return nil
	}
	if err := kill(p); err != nil {
		return err
	}
	// A process that is killed may stand in the kernel for a while. Callers hold an
	// instance's turn: they come again.
	killed, cancel := m.rt.WithTimeout(ctx, killTimeout)
	defer cancel()
	return m.fallen(killed, p)
}

// fallen waits until the process is gone.
func (m *Manager) fallen(ctx context.Context, p Paths) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		switch alive, err := living(p); {
		case err != nil:
			return err
		case !alive:
			return nil
		}
		if err := m.rt.Sleep(ctx, wait); err != nil {
			return fault.New(fault.Busy, "the process has not ended yet: %w", err)
		}
	}
}

// Sweep removes the folders whose process is gone: what a crash or a reboot left.
// It gives the sessions that live. It is for the agent's start, before any Open.
func (m *Manager) Sweep() ([]ID, error) {
	all, err := m.folders()
	if err != nil {
		return nil, err
	}
	var out []ID
	errs := []error{m.sweepRemoved()}
	for _, id := range all {
		p := m.Paths(id)
		switch alive, err := living(p); {
		case err != nil:
			errs = append(errs, fmt.Errorf("stream %s: %w", id, err))
		case alive:
			out = append(out, id)
		default:
			if err := remove(p); err != nil {
				errs = append(errs, fmt.Errorf("remove what stream %s left: %w", id, err))
			}
		}
	}
	return out, errors.Join(errs...)
}

// sweepRemoved finishes removals that broke off.
func (m *Manager) sweepRemoved() error {
	left, err := filepath.Glob(filepath.Join(m.dir, removedPrefix+"*"))
	errs := []error{err}
	for _, path := range left {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
