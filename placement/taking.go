package placement

import (
	"context"
	"maps"
	"slices"

	"berth/internal/pki"
)

// recordKeeper is what Beside may know of instances: which host has one by its record, and the
// unfinished migration that the record names.
type recordKeeper interface {
	Holder(instance string) (host, moving string, found bool)
	// Kept reports whether hosts keep their records here.
	Kept() bool
}

// holders gives the names of the root providers on which a consumer holds something, for Beside.
func (s *Server) holders(ctx context.Context, consumer string) ([]string, error) {
	names := map[string]bool{}
	err := s.state.view(ctx, func(b *base) {
		t := newTx(b, s.rt.Now())
		c := t.consumer(consumer)
		if c == nil {
			return
		}
		for rp := range c.Allocations {
			if p := t.provider(rp); p != nil {
				if root := t.provider(p.Root); root != nil {
					names[root.Name] = true
				}
			}
		}
	})
	return slices.Sorted(maps.Keys(names)), err
}

// mayTake reports whether a host may take what a consumer holds on providers of hosts that live.
// held and wanted are the providers of which the consumer has something and is to get something; givers,
// mine and orphan are those of ownConsumers. The host may where
//
//	the consumer holds something of the host already: it is the source of a move
//	the fleet's record says that the host has the instance
//	another consumer of the request holds something of the host and gives it back for this one, as
//	a revert does; where there is a record it has to name that consumer as the instance's migration
//	the fleet's records are kept elsewhere (etcd): which host is dead is not known here, and an
//	evacuation takes what a dead host has
func (s *Server) mayTake(t *tx, r *request, consumer string, held, wanted, givers map[string]bool, mine, orphan func(*provider) bool) bool {
	taken := false
	for rp := range held {
		p := t.provider(rp)
		if p == nil {
			continue
		}
		if mine(p) {
			return true
		}
		taken = taken || !wanted[rp] && !orphan(p)
	}
	if !taken {
		return true
	}
	moving, found := "", false
	if k, is := s.beside.(recordKeeper); is {
		if !k.Kept() {
			return true
		}
		var host string
		if host, moving, found = k.Holder(consumer); found && pki.Covers(r.who.host, host) {
			return true
		}
	}
	if found {
		return moving != consumer && givers[moving]
	}
	return len(givers) > 1 || len(givers) == 1 && !givers[consumer]
}
