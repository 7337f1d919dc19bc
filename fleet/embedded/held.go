package embedded

import (
	"context"
	"fmt"

	"berth/fleet"
	"berth/fleet/permit"
	"berth/internal/fault"
)

// The bounds of what the records of one host may come to, by the certificate of a host. Arbitrary: a host
// has some hundred instances, whose records are 20 to 60 KiB; all records are in memory.
const (
	maxHeld      = 1 << 14
	maxHeldBytes = 512 << 20
)

// held is how many records name each host, and how large their values are. The zero value is ready.
type held struct {
	of  map[string]amount
	its map[string]entry // by key
}

type amount struct{ records, bytes int }

type entry struct {
	host  string
	bytes int
}

func (h *held) set(key, host string, bytes int) {
	if h.of == nil {
		h.of, h.its = map[string]amount{}, map[string]entry{}
	}
	h.drop(key)
	h.its[key] = entry{host, bytes}
	now := h.of[host]
	h.of[host] = amount{now.records + 1, now.bytes + bytes}
}

func (h *held) drop(key string) {
	was, known := h.its[key]
	if !known {
		return
	}
	delete(h.its, key)
	now := h.of[was.host]
	if now = (amount{now.records - 1, now.bytes - was.bytes}); now.records == 0 {
		delete(h.of, was.host)
	} else {
		h.of[was.host] = now
	}
}

// bounded refuses a host's changes by which the records of one host would be too many, and more than they
// are. An operator is not bounded, and neither is who was let in by a token.
func (s *Server) bounded(ctx context.Context, changes []fleet.Change) error {
	if w, known := ctx.Value(writerKey{}).(permit.Writer); !known || w.Operator {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	more := map[string]amount{}
	for _, c := range changes {
		if was, there := s.held.its[c.Key]; there {
			a := more[was.host]
			more[was.host] = amount{a.records - 1, a.bytes - was.bytes}
		}
		if c.Value != nil {
			host := fleet.HostOf(c.Value)
			a := more[host]
			more[host] = amount{a.records + 1, a.bytes + len(c.Value)}
		}
	}
	for host, a := range more {
		now := s.held.of[host]
		if host == "" || (a.records <= 0 || now.records+a.records <= maxHeld) && (a.bytes <= 0 || now.bytes+a.bytes <= maxHeldBytes) {
			continue
		}
		message := fmt.Sprintf("the records of host %s would be %d of %d MiB: at most %d of %d MiB are kept of one host",
			host, now.records+a.records, (now.bytes+a.bytes)>>20, maxHeld, maxHeldBytes>>20)
		return fault.Refuse(fault.Forbidden, "commit", fault.Reason{
			Code: "records_full", Message: message, Have: host, Change: "delete or move instances of " + host + ": berth instance list -c " + host,
		})
	}
	return nil
}
