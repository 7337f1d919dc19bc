package libvirt

import (
	"context"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// queueLength is how many events a reader may be behind before it is told to
// read everything again. Arbitrary: a boot storm of a full host fits.
const queueLength = 256

// stream is one kind of event and its readers. Its readers and their queues are
// guarded by Driver.mu.
type stream[E any] struct {
	d       *Driver
	what    string              // for messages
	resync  func(time.Time) E   // what tells a reader to read everything again
	readers map[*reader[E]]bool // all that are open
}

// reader is one user of a stream. wake has room for one, so that telling the
// reader never blocks.
type reader[E any] struct {
	queue []E
	wake  chan struct{}
}

func newStream[E any](d *Driver, what string, resync func(time.Time) E) *stream[E] {
	return &stream[E]{d: d, what: what, resync: resync, readers: map[*reader[E]]bool{}}
}

// Events implements driver.Driver.
func (d *Driver) Events(ctx context.Context) (<-chan driver.Event, error) { return d.events.open(ctx) }

// publish is the binding's callback.
func (d *Driver) publish(of Event) {
	e := eventOf(of)
	e.At = d.rt.Now()
	d.events.broadcast(e)
}

// open gives a new reader its channel.
func (s *stream[E]) open(ctx context.Context) (<-chan E, error) {
	if ctx.Err() != nil {
		return nil, fault.New(fault.Unavailable, "%s: %w", s.what, context.Cause(ctx))
	}
	ch := make(chan E)
	r := &reader[E]{wake: make(chan struct{}, 1)}
	s.d.mu.Lock()
	s.readers[r] = true
	s.d.mu.Unlock()
	if !s.d.spawn("libvirt "+s.what+" reader", func() { s.feed(ctx, r, ch) }) {
		s.forget(r)
		return nil, fault.New(fault.Unavailable, "%s: %w", s.what, errClosed)
	}
	return ch, nil
}

// feed gives one reader its events at the reader's pace.
func (s *stream[E]) feed(ctx context.Context, r *reader[E], ch chan<- E) {
	defer close(ch)
	defer s.forget(r)
	for {
		s.d.mu.Lock()
		var next E
		out := chan<- E(nil) // a nil channel is never ready
		if len(r.queue) > 0 {
			next, out = r.queue[0], ch
			r.queue = r.queue[1:]
		}
		s.d.mu.Unlock()
		wake := r.wake
		if out != nil {
			wake = nil
		}
		select {
		case out <- next:
		case <-wake:
		case <-ctx.Done():
			return
		case <-s.d.ctx.Done():
			return
		}
	}
}

func (s *stream[E]) forget(r *reader[E]) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	delete(s.readers, r)
}

// broadcast gives every reader an event, or a resync where its queue is full.
func (s *stream[E]) broadcast(e E) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for r := range s.readers {
		if len(r.queue) >= queueLength {
			s.restartLocked(r)
			continue
		}
		r.queue = append(r.queue, e)
		r.tell()
	}
}

// restart tells every reader to read everything again.
func (s *stream[E]) restart() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for r := range s.readers {
		s.restartLocked(r)
	}
}

// restartLocked drops what is queued: it is contained in what the reader is now
// told to read.
func (s *stream[E]) restartLocked(r *reader[E]) {
	r.queue = append(r.queue[:0:0], s.resync(s.d.rt.Now()))
	r.tell()
}

func (r *reader[E]) tell() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
