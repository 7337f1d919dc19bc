package libvirt

import (
	"context"

	"berth/driver"
	"berth/internal/fault"
)

// queueLength is how many events a reader may be behind before it is told to
// read everything again. Arbitrary: a boot storm of a full host fits.
const queueLength = 256

// reader is one user of Events. queue is guarded by Driver.mu; wake has room for
// one, so that telling the reader never blocks.
type reader struct {
	queue []driver.Event
	wake  chan struct{}
}

// Events implements driver.Driver.
func (d *Driver) Events(ctx context.Context) (<-chan driver.Event, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Unavailable, "events: %w", context.Cause(ctx))
	}
	ch := make(chan driver.Event)
	r := &reader{wake: make(chan struct{}, 1)}
	d.mu.Lock()
	d.readers[r] = true
	d.mu.Unlock()
	if !d.spawn("libvirt events reader", func() { d.feed(ctx, r, ch) }) {
		d.forget(r)
		return nil, fault.New(fault.Unavailable, "events: %w", errClosed)
	}
	return ch, nil
}

// feed gives one reader its events at the reader's pace.
func (d *Driver) feed(ctx context.Context, r *reader, ch chan<- driver.Event) {
	defer close(ch)
	defer d.forget(r)
	for {
		d.mu.Lock()
		var next driver.Event
		out := chan<- driver.Event(nil) // a nil channel is never ready
		if len(r.queue) > 0 {
			next, out = r.queue[0], ch
			r.queue = r.queue[1:]
		}
		d.mu.Unlock()
		wake := r.wake
		if out != nil {
			wake = nil
		}
		select {
		case out <- next:
		case <-wake:
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Driver) forget(r *reader) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.readers, r)
}

// publish is the binding's callback.
func (d *Driver) publish(of Event) {
	e := eventOf(of)
	e.At = d.rt.Now()
	d.broadcast(e)
}

func (d *Driver) broadcast(e driver.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.readers {
		if len(r.queue) >= queueLength || e.Kind == driver.EventResync {
			// What is queued is contained in what the reader is now told to read.
			r.queue = append(r.queue[:0:0], driver.Event{Kind: driver.EventResync, At: e.At})
		} else {
			r.queue = append(r.queue, e)
		}
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}
