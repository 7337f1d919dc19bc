package drivertest

import (
	"context"
	"slices"
	"time"

	"berth/driver"
	"berth/internal/fault"
)

// stream is one reader of events. Its channel is written under the fleet's lock
// and never blocks: what has no room is lost, and a resync says so as soon as
// there is room.
type stream struct {
	owner *Fake
	ch    chan driver.Event
	lost  bool
}

// resync tells the reader that events were lost, if there is room.
func (s *stream) resync(at time.Time) bool {
	select {
	case s.ch <- driver.Event{Kind: driver.EventResync, At: at}:
		s.lost = false
	default:
		s.lost = true
	}
	return !s.lost
}

// Events implements driver.Driver. The channel is closed when ctx ends, or
// within 200 ms of the runtime's clock after the fleet was closed.
func (h *Fake) Events(ctx context.Context) (<-chan driver.Event, error) {
	f := h.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, fault.New(fault.Unavailable, "events of %s: %w", h.name, err)
	}
	if h.closed {
		return nil, fault.New(fault.Unavailable, "events of %s: the driver is closed", h.name)
	}
	s := &stream{owner: h, ch: make(chan driver.Event, 256)}
	h.streams = append(h.streams, s)
	f.rt.Go("fake events of "+h.name, func() {
		for f.wanted(h, s) && ctx.Err() == nil {
			_ = f.rt.Sleep(ctx, 200*time.Millisecond) // only a wait: the loop's condition decides
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if i := slices.Index(h.streams, s); i >= 0 {
			h.streams = slices.Delete(h.streams, i, i+1)
			close(s.ch)
		}
	})
	return s.ch, nil
}

// wanted reports whether a stream is still open, and tells a reader that has
// made room again that it lost events.
func (f *Fleet) wanted(h *Fake, s *stream) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.lost && h.daemon && h.power && slices.Contains(h.streams, s) {
		s.resync(f.rt.Now())
	}
	return f.ctx.Err() == nil && slices.Contains(h.streams, s)
}

// publishLocked tells every stream; a daemon that does not run tells nobody.
func (h *machine) publishLocked(e driver.Event) {
	if !h.daemon || !h.power {
		for _, s := range h.streams {
			s.lost = true
		}
		return
	}
	e.At = h.fleet.rt.Now()
	for _, s := range h.streams {
		if s.lost && !s.resync(e.At) {
			continue
		}
		select {
		case s.ch <- e:
		default:
			s.lost = true
		}
	}
}

// DropEvents makes every stream lose events, as a slow reader would: its next
// event is a resync.
func (h *machine) DropEvents() {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	for _, s := range h.streams {
		s.lost = true
	}
}
