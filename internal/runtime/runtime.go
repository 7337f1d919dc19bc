// Package runtime is what stories, leases and loops use in place of the clock
// and the go statement, so that a simulator can run a whole fleet in one
// process, one actor at a time, in an order it chooses.
//
// The real one is System. Transport and store are injected beside it, as the
// interfaces of the packages that use them (migration.Host, task.Journal).
//
// Whoever lives on a runtime waits only in Sleep, Await, Receive, Lock and Group,
// which are all made of Runtime.Block: a simulator stops at each of them. A
// sync.Mutex is for what is held for moments, with nothing of these under it.
package runtime

import (
	"context"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Runtime is time and spawning.
type Runtime interface {
	// Now is the wall clock: for records that people read, never for deadlines.
	Now() time.Time
	// Boot is the boot clock, which neither steps nor stops in suspend. Leases
	// are measured on it.
	Boot() BootTime
	// Sleep waits for d on the boot clock or until ctx ends; it returns ctx's
	// cause in the second case.
	Sleep(ctx context.Context, d time.Duration) error
	// Block waits until w has what it waits for, or ctx ends, whose cause it then
	// returns. Await and Receive are the common uses.
	Block(ctx context.Context, w Waiter) error
	// WithTimeout is context.WithTimeout on this runtime's clock.
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
	// Go runs f as an actor of its own. name is for logs and traces. Whoever
	// built the runtime waits for all of them (System.Wait).
	Go(name string, f func())
}

// BootTime is an instant on the boot clock of one boot. Instants of different
// boots cannot be compared: the reader must look at ID first.
type BootTime struct {
	ID    string        `json:"id"`    // /proc/sys/kernel/random/boot_id
	Since time.Duration `json:"since"` // CLOCK_BOOTTIME
}

// System is the machine's own clock and goroutines. The zero value is ready.
type System struct{ wg sync.WaitGroup }

// Now is time.Now.
func (*System) Now() time.Time { return time.Now() }

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
})

// Boot reads CLOCK_BOOTTIME.
func (*System) Boot() BootTime {
	var ts unix.Timespec
	// Cannot fail: the clock exists since Linux 2.6.39 and the pointer is good.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return BootTime{ID: bootID(), Since: time.Duration(ts.Nano())}
}

// Sleep waits on a timer or ctx.
func (*System) Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Block waits in w.Take.
func (*System) Block(ctx context.Context, w Waiter) error {
	if w.Try() || w.Take(ctx) {
		return nil
	}
	return context.Cause(ctx)
}

// WithTimeout is context.WithTimeout.
func (*System) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// Go starts a goroutine that Wait waits for.
func (s *System) Go(_ string, f func()) { s.wg.Go(f) }

// Wait blocks until every actor started with Go has returned.
func (s *System) Wait() { s.wg.Wait() }
