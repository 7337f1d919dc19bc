package doctor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth/agent/api"
	"berth/internal/runtime"
)

// looks are the doctor's looks at filesystems. One that does not answer (NFS whose server is gone)
// holds whoever calls it in the kernel, for as long as it likes, and no context cuts that off. So
// each look runs beside who asks, who waits for it so long; and one that has not come back is not
// begun again, so that at most one of each kind is ever left behind. Whoever asks meanwhile gets
// what the one under way brings.
type looks struct {
	rt       runtime.Runtime
	patience time.Duration

	// mu guards going and what is in it, but done; nothing is called under it.
	mu    sync.Mutex
	going map[string]*glance
}

// glance is a look that is under way.
type glance struct {
	began time.Time
	late  bool          // somebody has waited for it in vain
	done  chan struct{} // closed when value and err are there
	value any
	err   error
}

// errNoAnswer is of a look that has not come back.
var errNoAnswer = errors.New("does not answer")

// lookAt gives what f finds, f being the same for the same what: a function of filesystems alone.
// errNoAnswer where that takes longer than patience, and at once where one before it still does.
func lookAt[T any](ctx context.Context, l *looks, what string, f func() (T, error)) (T, error) {
	it, late := begin(l, what, f)
	var none T
	if late {
		select {
		case <-it.done:
		default:
			return none, fmt.Errorf("%w since %s", errNoAnswer, it.began.Format(time.DateTime))
		}
	}
	wait, cancel := l.rt.WithTimeout(ctx, l.patience)
	defer cancel()
	if err := runtime.Await(wait, l.rt, it.done); err != nil {
		if ctx.Err() != nil {
			return none, context.Cause(ctx)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		it.late = true
		return none, fmt.Errorf("%w within %s", errNoAnswer, l.patience)
	}
	value, _ := it.value.(T) // nil where T is an interface
	return value, it.err
}

// begin is the look of that name which is under way, or a new one; late where somebody has waited
// for it in vain.
func begin[T any](l *looks, what string, f func() (T, error)) (it *glance, late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it := l.going[what]; it != nil {
		return it, it.late
	}
	it = &glance{began: l.rt.Now(), done: make(chan struct{})}
	if l.going == nil {
		l.going = map[string]*glance{}
	}
	l.going[what] = it
	// Not by the runtime, which the agent waits for when it ends: this may never come back.
	go func() {
		defer func() {
			if p := recover(); p != nil { // nobody else is there to see it, and the agent would die of it
				it.err = fmt.Errorf("a bug of this look: %v", p)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.going, what)
			close(it.done)
		}()
		it.value, it.err = f()
	}()
	return it, false
}

// bounded is how a check is made that looks at filesystems, at at: what it finds, or that they do
// not answer.
type bounded func(name, at string, check func() api.Check) api.Check

func (d *Doctor) bounded(ctx context.Context) bounded {
	return func(name, at string, check func() api.Check) api.Check {
		c, err := lookAt(ctx, &d.looks, name, func() (api.Check, error) { return check(), nil })
		if err != nil {
			return wrong(name, at+": "+err.Error(), silentRemedy(at))
		}
		return c
	}
}

// silentRemedy does not have people call what asks the same filesystem, and hangs.
func silentRemedy(at string) string {
	return "see what " + at + " lies on (/proc/mounts; dmesg tells of a server of NFS or a disk that is gone) and bring that back, or unmount it: umount -f -l"
}
