package drivertest

import (
	"context"
	"slices"
	"time"

	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
)

// stream is one reader of events E. Its channel is written under the fleet's lock
// and never blocks: what has no room is lost, and a resync says so as soon as
// there is room.
type stream[E any] struct {
	owner *Fake
	ch    chan E
	lost  bool
	again func(at time.Time) E // the event that tells the reader to read everything
}

// resync tells the reader that events were lost, if there is room.
func (s *stream[E]) resync(at time.Time) {
	select {
	case s.ch <- s.again(at):
		s.lost = false
	default:
		s.lost = true
	}
}

// streams are the readers of one kind of event on one machine. Guarded by
// fleet.mu.
type streams[E any] struct{ all []*stream[E] }

// anyStreams is what streams of every kind share.
type anyStreams interface {
	lose()
	resync(at time.Time)
	end(owner *Fake)
}

func (ss *streams[E]) lose() {
	for _, s := range ss.all {
		s.lost = true
	}
}

func (ss *streams[E]) resync(at time.Time) {
	for _, s := range ss.all {
		s.resync(at)
	}
}

// end closes the streams of one connection.
func (ss *streams[E]) end(owner *Fake) {
	ss.all = slices.DeleteFunc(ss.all, func(s *stream[E]) bool {
		if s.owner == owner {
			close(s.ch)
		}
		return s.owner == owner
	})
}

// publish tells every reader; a daemon that does not run tells nobody.
func (ss *streams[E]) publish(h *machine, e E) {
	if !h.daemon || !h.power {
		ss.lose()
		return
	}
	for _, s := range ss.all {
		if s.lost {
			s.resync(h.fleet.rt.Now())
		}
		if s.lost {
			continue
		}
		select {
		case s.ch <- e:
		default:
			s.lost = true
			h.fleet.tellLocked()
		}
	}
}

// open adds a reader, whose channel is closed when ctx ends or the fleet is closed.
func open[E any](ctx context.Context, h *Fake, ss *streams[E], what string, again func(at time.Time) E) (<-chan E, error) {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fault.New(fault.Unavailable, "%s of %s: %w", what, h.name, err)
	}
	if h.closed {
		return nil, fault.New(fault.Unavailable, "%s of %s: the driver is closed", what, h.name)
	}
	s := &stream[E]{owner: h, ch: make(chan E, 256), again: again}
	ss.all = append(ss.all, s)
	f.rt.Go("fake "+what+" of "+h.name, func() {
		for {
			f.mu.Lock()
			news := f.newsLocked() // before what it tells of is looked at
			f.mu.Unlock()
			open, lost := ss.wanted(h, s)
			if !open || ctx.Err() != nil {
				break
			}
			if lost { // until the reader has made room
				_ = f.rt.Sleep(ctx, 200*time.Millisecond) // only a wait: the loop's condition decides
				continue
			}
			_ = runtime.Await(ctx, f.rt, news) // as above
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if i := slices.Index(ss.all, s); i >= 0 {
			ss.all = slices.Delete(ss.all, i, i+1)
			close(s.ch)
		}
	})
	return s.ch, nil
}

// wanted reports whether a stream is still open, and tells a reader that has
// made room again that it lost events; lost that it has not made room yet.
func (ss *streams[E]) wanted(h *Fake, s *stream[E]) (open, lost bool) {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.lost && h.daemon && h.power && slices.Contains(ss.all, s) {
		s.resync(f.rt.Now())
	}
	return f.ctx.Err() == nil && slices.Contains(ss.all, s), s.lost && h.daemon && h.power
}

// Events implements driver.Driver.
func (h *Fake) Events(ctx context.Context) (<-chan driver.Event, error) {
	return open(ctx, h, &h.events, "events", func(at time.Time) driver.Event {
		return driver.Event{Kind: driver.EventResync, At: at}
	})
}

// DeviceEvents implements driver.DeviceWatcher.
func (h *Fake) DeviceEvents(ctx context.Context) (<-chan driver.DeviceEvent, error) {
	h.fleet.mu.Lock()
	err := h.refusesLocked("DeviceEvents")
	h.fleet.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return open(ctx, h, &h.deviceEvents, "device events", func(at time.Time) driver.DeviceEvent {
		return driver.DeviceEvent{Kind: driver.DeviceResync, At: at}
	})
}

// publishLocked tells every reader of domains' events.
func (h *machine) publishLocked(e driver.Event) {
	e.At = h.fleet.rt.Now()
	h.events.publish(h, e)
}

// streamsLocked are all streams of the machine.
func (h *machine) streamsLocked() []anyStreams { return []anyStreams{&h.events, &h.deviceEvents} }

// DropEvents makes every stream lose events, as a slow reader would: its next
// event is a resync.
func (h *machine) DropEvents() {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.loseLocked()
	h.fleet.tellLocked()
}
