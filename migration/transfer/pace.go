package transfer

import (
	"context"
	"sync"
	"time"

	"berth/internal/runtime"
)

// paceBurst is how long nothing may have been sent for what is then sent at once. It keeps
// the rate over a pause that disks or networks make. Arbitrary.
const paceBurst = 500 * time.Millisecond

// pace bounds bytes a second: a bucket of tokens, kept as the time at which it is full
// again. It is safe for concurrent use.
type pace struct {
	rate uint64 // bytes a second; 0 for no bound

	// mu guards due. Leaf lock.
	mu  sync.Mutex
	due time.Duration // boot clock: when all that was let through has had its time
}

// wait lets so many bytes through at their time, or ends with ctx.
func (p *pace) wait(ctx context.Context, rt runtime.Runtime, bytes int) error {
	if p.rate == 0 || bytes == 0 {
		return nil
	}
	now := rt.Boot().Since
	p.mu.Lock()
	p.due = max(p.due, now-paceBurst)
	early := p.due - now
	p.due += p.time(int64(bytes))
	p.mu.Unlock()
	if early <= 0 {
		return nil
	}
	return rt.Sleep(ctx, early)
}

// time is what so many bytes have.
func (p *pace) time(bytes int64) time.Duration {
	if p.rate == 0 {
		return 0
	}
	return time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second))
}
