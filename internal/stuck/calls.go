package stuck

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// limit is how long a caller waits, by default. Arbitrary: a loaded server takes less than a
// second for a look, and one that fails over is worth another try.
const limit = 10 * time.Second

// width is how many calls may be under way on one file system. Arbitrary.
const width = 16

// Calls limits those that one process makes. Its zero value is ready; nil limits nothing.
type Calls struct {
	Limit time.Duration // how long a caller waits; 0 for 10 s

	// mu guards the fields below. Nothing but map work happens under it, and reading
	// mountinfo, which waits for nobody.
	mu     sync.Mutex
	places map[string]*place // those on which calls are under way
	mounts Mounts
	read   time.Time // when mounts was read
}

// thing is what a call waits for.
type thing struct {
	key, code, name, change string
	point                   string        // where it is mounted; empty for a process
	limit                   time.Duration // how long a caller waits
}

func (c *Calls) ofMount(m Mount) thing {
	name := "the file system at " + m.Point
	if m.Kind != "" {
		name += " (" + m.Kind + ", " + m.Source + ")"
	}
	return thing{
		key: m.Device, code: "filesystem_silent", name: name,
		change: "bring back what serves it (findmnt " + m.Point + "), and try again", point: m.Point, limit: c.limit(),
	}
}

// processLimit is for one of all processes of a host, of which many may be silent for one reason.
// The kernel needs microseconds. Arbitrary.
const processLimit = 2 * time.Second

func (c *Calls) ofProcess(pid int) thing {
	p := strconv.Itoa(pid)
	return thing{
		key: "pid " + p, code: "process_silent", name: "process " + p, limit: min(c.limit(), processLimit),
		change: "look what it waits for (cat /proc/" + p + "/wchan), end it, and try again",
	}
}

// place is a thing with calls under way.
type place struct {
	calls map[*call]time.Time // since when
	freed chan struct{}       // closed when one of them ends
	tried time.Time           // when it was last asked again though it is silent
}

// since is when the oldest call that tells of silence was begun; now for none.
func (p *place) since(now time.Time) time.Time {
	for c, at := range p.calls {
		if !c.long && at.Before(now) {
			now = at
		}
	}
	return now
}

// call is one that is under way.
type call struct {
	of    *Calls
	given chan struct{}
	// Under of.mu, as the place's maps.
	long bool // it may take long, or others that came later were answered: it tells of no silence
	at   thing
}

// Read calls a function that changes nothing, and that touches nothing but path and what lies
// beside it. It waits for Limit at most. fault.Unavailable where the file system of path, or
// of a link on the way, does not answer.
func Read[T any](c *Calls, path string, read func() (T, error)) (T, error) {
	if c == nil {
		return read()
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.limit())
	defer cancel()
	return run(ctx, c, &call{of: c}, func(w *call) error { return c.table().walk(path, w.enterMount) }, read)
}

// Long is Read for a function that may take long. It waits for as long as ctx lasts, after the
// file system has answered once. It does not count as a call under way, so that the function may
// call Read and Answers for the same file system, and many of them hold up no short call.
func Long[T any](ctx context.Context, c *Calls, path string, read func() (T, error)) (T, error) {
	if c == nil {
		return read()
	}
	if err := c.Answers(path); err != nil {
		var none T
		return none, err
	}
	return run(ctx, c, &call{of: c, long: true}, func(w *call) error { return c.table().walk(path, w.nameMount) }, read)
}

// OnMount is Read for a function whose mount is known.
func OnMount[T any](c *Calls, m Mount, read func() (T, error)) (T, error) {
	if c == nil {
		return read()
	}
	return on(c, c.ofMount(m), read)
}

// OfProcess is Read for what /proc tells of a process.
func OfProcess[T any](c *Calls, pid int, read func() (T, error)) (T, error) {
	if c == nil {
		return read()
	}
	return on(c, c.ofProcess(pid), read)
}

func on[T any](c *Calls, t thing, read func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(context.Background(), t.limit)
	defer cancel()
	return run(ctx, c, &call{of: c}, func(w *call) error { return w.enter(t) }, read)
}

// Answers reports whether the file system of a path, or of the nearest folder above it that is
// there, answers within Limit. It asks its server where it has one, not what is cached of it. nil
// where it answers, whatever the answer is.
func (c *Calls) Answers(path string) error {
	if c == nil {
		return nil
	}
	_, err := Read(c, path, func() (struct{}, error) {
		for at := filepath.Clean(path); ; at = filepath.Dir(at) {
			var sx unix.Statx_t
			// The type alone: for times and sizes NFS would write back first what is dirty.
			err := unix.Statx(unix.AT_FDCWD, at, unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &sx)
			if !os.IsNotExist(err) || at == filepath.Dir(at) {
				return struct{}{}, nil
			}
		}
	})
	return err
}

func (c *Calls) limit() time.Duration { return cmp.Or(c.Limit, limit) }

// run makes a call in a goroutine of its own, after it has found out what it will touch.
func run[T any](ctx context.Context, c *Calls, w *call, enter func(*call) error, read func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	w.given = make(chan struct{})
	out := make(chan answer, 1)
	go func() {
		var a answer
		if a.err = enter(w); a.err == nil {
			a.value, a.err = read()
		}
		w.leave()
		out <- a
	}()
	select {
	case a := <-out:
		return a.value, a.err
	case <-ctx.Done():
	}
	close(w.given)
	c.mu.Lock()
	defer c.mu.Unlock()
	var none T
	if w.long {
		return none, fault.New(fault.Unavailable, "wait for %s: %w", w.at.name, context.Cause(ctx))
	}
	since := time.Now().Add(-w.at.limit)
	if p := c.places[w.at.key]; p != nil {
		since = p.since(since)
	}
	return none, silent(w.at, since)
}

func silent(t thing, since time.Time) error {
	return fault.Refuse(fault.Unavailable, "", fault.Reason{
		Code: t.code, Message: fmt.Sprintf("%s has not answered since %s", t.name, since.UTC().Format(time.RFC3339)), Have: t.name, Change: t.change,
	})
}

func (w *call) enterMount(m Mount) error { return w.enter(w.of.ofMount(m)) }

// nameMount says what a call that is not counted waits for.
func (w *call) nameMount(m Mount) error {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.at = w.of.ofMount(m)
	return nil
}

// enter waits until there is room for one more call, and refuses at once where one has waited
// for longer than Limit. After three times Limit, and as often again, it asks the file system
// itself once: another call may be stuck for a reason of its own.
func (w *call) enter(t thing) error {
	trial, err := w.register(t)
	if err != nil || !trial {
		return err
	}
	var sx unix.Statx_t
	_ = unix.Statx(unix.AT_FDCWD, t.point, unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &sx) // any answer is one
	c := w.of
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, at := range c.places[t.key].calls {
		other.long = other.long || time.Since(at) >= t.limit
	}
	return nil
}

func (w *call) register(t thing) (trial bool, err error) {
	c := w.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.at.key == t.key {
		return false, nil
	}
	w.leaveLocked()
	w.at = t
	for {
		p := c.places[t.key]
		if p == nil {
			p = &place{calls: map[*call]time.Time{}, freed: make(chan struct{})}
			if c.places == nil {
				c.places = map[string]*place{}
			}
			c.places[t.key] = p
		}
		now := time.Now()
		since, again := p.since(now), 3*t.limit
		stuck := now.Sub(since) >= t.limit
		trial = stuck && t.point != "" && len(p.calls) < width && now.Sub(since) >= again && now.Sub(p.tried) >= again
		if stuck && !trial {
			return false, silent(t, since)
		}
		if len(p.calls) < width {
			p.calls[w] = now
			if trial {
				p.tried = now
			}
			return trial, nil
		}
		freed := p.freed
		c.mu.Unlock()
		select {
		case <-freed:
			c.mu.Lock()
		case <-w.given:
			c.mu.Lock()
			return false, silent(t, now)
		}
	}
}

func (w *call) leave() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.leaveLocked()
}

func (w *call) leaveLocked() {
	p := w.of.places[w.at.key]
	if p == nil {
		return
	}
	if _, mine := p.calls[w]; mine {
		delete(p.calls, w)
		close(p.freed)
		p.freed = make(chan struct{})
	}
	if len(p.calls) == 0 {
		delete(w.of.places, w.at.key)
	}
}

// mountsAge is for how long a table is used again: a survey of many files reads it once. An old
// one misleads only about which file system is named.
const mountsAge = time.Second

func (c *Calls) table() Mounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.mounts == nil || now.Sub(c.read) > mountsAge {
		// Without one all is on one unknown file system: what hangs is bounded all the same.
		c.mounts, _ = ReadMounts("/proc/self/mountinfo")
		c.read = now
	}
	return c.mounts
}
