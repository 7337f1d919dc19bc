package conductor_test

import (
	"maps"
	"slices"

	"berth/migration"
	"berth/placementclient"
)

// verify holds what must hold when all is over.
func (w *world) verify(m migration.Migration) {
	owner, size := "a", guestSize
	switch m.Outcome {
	case migration.OutcomeCompleted:
		if owner = m.DestCompute; m.MigrationType == migration.TypeResize {
			size = wantedSize
		}
	case migration.OutcomeUndone, migration.OutcomeRefused, migration.OutcomeReverted, migration.OutcomeNone:
	default:
		w.violate("the migration ended %s", m.Outcome)
	}
	if w.script.want != nil && !slices.Contains(w.script.want, m.Outcome) {
		w.violate("the outcome is %q (%v), want one of %q", m.Outcome, m.Error, w.script.want)
	}
	if n := len(w.store.data["tasks"]); n > 0 {
		w.violate("at the end %d task journals are left", n)
	}
	if n := len(w.store.data["aborts"]); n > 0 {
		w.violate("at the end %d aborts are left", n)
	}
	if m.Stage == migration.StageFinished {
		w.checkFinished(m)
		return
	}
	if w.fleet != nil {
		w.verifyEvacuated(m)
		return
	}
	for name, h := range w.hosts {
		h.expire()
		state := "none"
		if h.domain != nil {
			state = h.domain.state
		}
		want := "none"
		if name == owner {
			if want = string(w.power); w.script.crashAt+w.script.endsAt > 0 && m.Outcome != migration.OutcomeNone {
				want = state // the guest ended by itself
			}
		}
		if state != want {
			w.violate("at the end host %s has domain %s, want %s (outcome %s)", name, state, want, m.Outcome)
		}
		if here := h.token != nil && h.token.here; here != (name == owner) {
			w.violate("at the end the token on %s is %v", name, here)
		}
		claims := slices.Sorted(maps.Keys(h.claims))
		if name == owner && !slices.Equal(claims, []string{"instance"}) || name != owner && len(claims) > 0 {
			w.violate("at the end host %s has claims %v", name, claims)
		}
		if own := h.claims["instance"]; own != nil && (own.resources != size || own.state != "bound") {
			w.violate("at the end the guest's claim is %s with %v, want %v", own.state, own.resources, size)
		}
		if w.script.request.Type != "" && name == owner && h.size != size {
			w.violate("at the end the guest is defined with %v, want %v", h.size, size)
		}
		w.verifyApart(h, name == owner, m)
		if len(h.contexts) > 0 {
			w.violate("at the end host %s has a migration context", name)
		}
		if len(h.made) > 0 || len(h.aside) > 0 {
			w.violate("at the end host %s has disks of %v, and kept %v", name, slices.Collect(maps.Keys(h.made)), slices.Collect(maps.Keys(h.aside)))
		}
	}
	if w.embedded != nil {
		w.embedded.verify(w, w.hosts[owner], size)
	} else {
		w.placement.verify(w.hosts[owner], size)
	}
}

// verifyApart holds what must hold at the end of a move between hosts that share nothing.
func (w *world) verifyApart(h *simHost, owner bool, m migration.Migration) {
	if !h.apart() {
		return
	}
	listed := map[bool]string{true: "shown"}[owner]
	if h.listed != listed {
		w.violate("at the end the instance's record on %s is %q, want %q", h.name, h.listed, listed)
	}
	if h.away || len(h.held)+len(h.coming)+len(h.sealed)+len(h.carried) > 0 {
		w.violate("at the end host %s has: away %v, held %v, coming %v, sealed %v, carried %v", h.name, h.away, h.held, h.coming, h.sealed, h.carried)
	}
	if m.Outcome == migration.OutcomeReverted && owner && h.volumes != "<disk/> without vdb" {
		w.violate("at the end the guest that came back has volumes %q", h.volumes)
	}
}

// checkFinished holds what must hold while a move waits for a word: the guest is there,
// what it was is kept, and each half has its consumer.
func (w *world) checkFinished(m migration.Migration) {
	source, dest, size := w.hosts["a"], w.hosts[m.DestCompute], guestSize
	if m.MigrationType == migration.TypeResize {
		size = wantedSize
	}
	if !dest.owns() || dest.domain == nil || dest.domain.state != string(w.power) || dest.size != size {
		w.violate("finished, and %s has token %+v, domain %+v with %v", dest.name, dest.token, dest.domain, dest.size)
	}
	_, half := source.half(migration.Ref{Migration: moveUUID})
	if own := dest.claims["instance"]; own == nil || own.resources != size || own.state != "bound" || half == nil || half.state != "held" || half.resources != guestSize {
		w.violate("finished, and the claims are %+v and %+v", own, half)
	}
	if !m.InPlace && (source.owns() || source.domain == nil || source.domain.state != "shut off") {
		w.violate("finished, and the source has token %+v, domain %+v", source.token, source.domain)
	}
	if source.apart() && (source.listed != "hidden" || dest.listed != "shown") {
		w.violate("finished, and the instance is %q at its source and %q where it went", source.listed, dest.listed)
	}
	if !source.contexts[moveUUID] || !dest.contexts[moveUUID] {
		w.violate("finished, and a context is gone")
	}
	h, kept := w.conductor.Halves(moveUUID)
	if !kept {
		w.violate("finished, and nothing is said of its halves")
	}
	for id, want := range map[string]placementclient.Allocations{guestUUID: h.Instance, moveUUID: h.Migration} {
		have := placementclient.Allocations{}
		if w.embedded != nil {
			have = w.embedded.consumer(id)
		} else if a := w.placement.consumers[id]; a != nil {
			have = *a
		}
		if !have.SameResources(want) {
			w.violate("finished, and consumer %s holds %+v, want %+v", id, have, want)
		}
	}
	if err := m.Err(); err != nil || m.Done() {
		w.violate("finished, done %v, error %v", m.Done(), err)
	}
}
