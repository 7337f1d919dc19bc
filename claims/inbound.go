package claims

import (
	"fmt"

	"berth/internal/fault"
)

// ReasonInboundLimit is the code of the reason by which a claim is refused that has to wait
// for guests which are on their way already.
const ReasonInboundLimit = "inbound_limit"

// Inbound is how many guests are on their way to this host: claims that are pending or
// arriving, of guests that come from another one. Those of any caller count, whether they were
// asked for with a bound or not.
func (t *Tracker) Inbound() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.inboundLocked()
}

// InboundFrom is how many of them come from one host.
func (t *Tracker) InboundFrom(host string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, e := range t.claims {
		if t.inbound(e.claim) && e.claim.Context != nil && e.claim.Context.Source == host {
			n++
		}
	}
	return n
}

func (t *Tracker) inboundLocked() int {
	n := 0
	for _, e := range t.claims {
		if t.inbound(e.claim) {
			n++
		}
	}
	return n
}

// inbound reports whether a claim is of a guest that is on its way here.
func (t *Tracker) inbound(c Claim) bool {
	if c.State != Pending && c.State != Arriving {
		return false
	}
	switch c.Owner.Kind {
	case KindLiveMigration, KindEvacuation:
		return true
	case KindResize:
		return c.Context == nil || c.Context.Source != t.host || c.Context.Destination != t.host
	}
	return false
}

// admitInboundLocked refuses one guest more than the request allows to be on their way.
func (t *Tracker) admitInboundLocked(doing string, r Request) error {
	have := t.inboundLocked()
	if r.MaxInbound <= 0 || have < r.MaxInbound {
		return nil
	}
	return fault.Refuse(fault.Busy, doing, fault.Reason{
		Code:    ReasonInboundLimit,
		Message: fmt.Sprintf("%d guests are on their way to %s already", have, t.host),
		Want:    fmt.Sprintf("fewer than %d", r.MaxInbound), Have: fmt.Sprint(have),
		Change: "wait until one of them has come, or raise [migration] max_inbound there",
	})
}
