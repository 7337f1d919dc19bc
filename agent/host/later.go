package host

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"berth/agent/host/vanished"
	"berth/claims"
	"berth/internal/fault"
)

// later is what the start has left undone for single instances: a file system does not answer, or
// two witnesses contradict each other. The rest of the host does not wait for it. It is tried again
// every laterAgain, and named in status. The zero value is ready.
type later struct {
	// mu guards the fields below; nothing but map work happens under it.
	mu     sync.Mutex
	waits  map[string]error // by instance
	trying map[string]error // those that are tried now; nil for none
	next   time.Duration    // not before, on the boot clock
}

// laterAgain is arbitrary. A file system that does not answer is asked as often.
const laterAgain = 30 * time.Second

// laterCodes are the reasons for which one instance waits.
var laterCodes = []string{"filesystem_silent", "process_silent", "qemu_runs", string(vanished.CausePresent), string(vanished.CauseUnreadable)}

// WaitsAlone reports whether a reason of that code makes one instance wait, and nobody else.
func WaitsAlone(code string) bool { return slices.Contains(laterCodes, code) }

// put notes that an instance waits, and reports whether err is such a reason.
func (l *later) put(uuid string, err error, now time.Duration) bool {
	if !slices.ContainsFunc(fault.ReasonsOf(err), func(r fault.Reason) bool { return WaitsAlone(r.Code) }) {
		return false
	}
	l.keep(uuid, err, now)
	return true
}

func (l *later) keep(uuid string, err error, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waits == nil {
		l.waits = map[string]error{}
		l.next = max(l.next, now+laterAgain)
	}
	l.waits[uuid] = err
}

// begin takes what is to be tried now; none before it is due, or while it is tried. end ends it.
func (l *later) begin(now time.Duration) (why map[string]error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waits) == 0 || l.trying != nil || now < l.next {
		return nil
	}
	l.trying, l.waits = l.waits, nil
	return l.trying
}

func (l *later) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trying = nil
}

// all gives the instances that wait, with the reason.
func (l *later) all() map[string]error {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := maps.Clone(l.trying)
	if out == nil {
		out = map[string]error{}
	}
	maps.Copy(out, l.waits)
	return out
}

// followLater tries again what waits, in an actor of its own: nobody else waits for that.
func followLater(ctx context.Context, h *Host) {
	why := h.later.begin(h.rt.Boot().Since)
	if why == nil {
		return
	}
	try := func() {
		defer h.later.end()
		for _, c := range h.tracker.List() {
			uuid := c.Owner.Instance
			if _, waits := why[uuid]; !waits || c.Owner.Kind != claims.KindInstance || c.State != claims.Pending {
				continue
			}
			if err := h.settleClaim(ctx, c); err != nil {
				h.later.keep(uuid, wrap(err, "settle instance %s", uuid), h.rt.Boot().Since)
			}
		}
		if err := h.autostart(ctx); err != nil {
			for uuid, was := range why { // those that are started by now are not tried twice
				h.later.keep(uuid, was, h.rt.Boot().Since)
			}
		}
	}
	if !h.spawn("settle instances that have waited", try) {
		h.later.end()
	}
}

// Unsettled gives why foreign arrivals are not settled, and why instances wait that the start has
// left for later, by instance. Those that are still on their way are not among them.
func (h *Host) Unsettled() map[string]error {
	out := h.later.all()
	maps.Copy(out, h.external.Unsettled())
	return out
}
