package guard

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"berth/internal/runtime"
)

// Ledger gives what the owner files should say now, from memory, and durable
// only: one Owner for each guest that has a file. OwnerGone may be left out.
type Ledger func() []Owner

// Owners keeps the owner files behind the ledger. A file that says "here" or
// "arriving" follows it, by Run or sooner by Kick: late means no, which is safe.
// What must not be late is taken back first, by Withdraw.
type Owners struct {
	files  Files
	ledger Ledger
	rt     runtime.Runtime
	log    *slog.Logger
	kick   chan struct{}

	// mu guards all below, and makes the writes of files come one after another.
	// Files are written under it, nothing else.
	mu      sync.Mutex
	written map[string]Owner // what the files say, by instance
	held    map[string]int   // withdrawn for now: what the ledger says does not count
	known   bool             // the folder was read: files of an earlier agent are gone
	failed  error            // of the last look; nil when all files are right
}

// NewOwners makes a keeper; it touches nothing before Sync or Run.
func NewOwners(files Files, ledger Ledger, rt runtime.Runtime, log *slog.Logger) *Owners {
	return &Owners{
		files: files, ledger: ledger, rt: rt, log: log, kick: make(chan struct{}, 1),
		written: map[string]Owner{}, held: map[string]int{},
	}
}

// Withdraw makes a guest's file say "moving" before its token, or its right to run
// here, may go, until done is called, when the ledger decides again. The file
// stays: an adopted guest has nothing else that tells it from one that nobody
// manages. Where it cannot be written it goes. An error means that it may still say
// "here": then nothing may go.
func (o *Owners) Withdraw(instance string) (done func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	moving := Owner{Instance: instance, State: OwnerMoving}
	if err := o.files.SetOwner(moving); err != nil {
		if err := o.files.DropOwner(instance); err != nil {
			return nil, fmt.Errorf("withdraw the owner file of %s: %w", instance, err)
		}
		moving = Owner{}
	}
	o.written[instance] = moving
	o.held[instance]++
	return sync.OnceFunc(func() {
		o.mu.Lock()
		if o.held[instance]--; o.held[instance] <= 0 {
			delete(o.held, instance)
		}
		o.mu.Unlock()
		o.Kick()
	}), nil
}

// Kick asks for the files to be looked at soon.
func (o *Owners) Kick() {
	select {
	case o.kick <- struct{}{}:
	default:
	}
}

// Sync makes the files equal to the ledger, and gives every fault.
func (o *Owners) Sync() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = o.syncLocked()
	return o.failed
}

func (o *Owners) syncLocked() error {
	var first error
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	if !o.known {
		// The hook notes there who calls, also before there is an owner.
		if err := os.MkdirAll(o.files.Dir, 0o700); err != nil {
			return fmt.Errorf("guard files: %w", err)
		}
		// Whatever an earlier agent left is looked at as if it said "here".
		list, err := o.files.Owners()
		if err != nil {
			return err
		}
		for _, instance := range list {
			o.written[instance] = Owner{}
		}
		o.known = true
	}
	// Under mu: Withdraw comes before what the ledger says, or after.
	want := map[string]Owner{}
	for _, w := range o.ledger() {
		if o.held[w.Instance] == 0 {
			want[w.Instance] = w
		}
	}
	for instance := range o.written {
		if _, wanted := want[instance]; wanted || o.held[instance] > 0 {
			continue
		}
		if err := o.files.DropOwner(instance); err != nil {
			keep(err)
			continue
		}
		delete(o.written, instance)
	}
	for instance, w := range want {
		if o.written[instance] == w {
			continue
		}
		if err := o.files.SetOwner(w); err != nil {
			keep(err)
			o.written[instance] = Owner{} // gone, or in doubt: written again
			continue
		}
		o.written[instance] = w
	}
	return first
}

// Err is why files are not as the ledger says; nil when they are.
func (o *Owners) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed
}

// look is how often Run compares; what is late by it says no.
const look = time.Second

// Run keeps the files until ctx ends; then it returns nil and leaves them: they
// are for the time without an agent.
func (o *Owners) Run(ctx context.Context) error {
	for {
		was := o.Err()
		if err := o.Sync(); err != nil && (was == nil || was.Error() != err.Error()) {
			o.log.Warn("owner files are not as the ledger says; while the agent is down guests may be kept from starting", "error", err)
		}
		wait, cancel := o.rt.WithTimeout(ctx, look)
		select {
		case <-o.kick:
		case <-wait.Done():
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
	}
}
