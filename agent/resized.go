package agent

import (
	"context"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/migration"
)

// standing is what tells where guests stand: the moves that this host conducts and that
// are not over, by instance, and the contexts that its ledger has.
type standing struct {
	host     string
	moves    map[string]migration.Migration
	contexts []claims.MigrationContext
	next     func(c claims.MigrationContext, name string) []string
}

func (a *Agent) standing(ctx context.Context) standing {
	out := standing{host: a.name, moves: map[string]migration.Migration{}, contexts: a.tracker.Contexts(), next: a.host.NextOf}
	// While the conductor does not run nothing of its is known, and guests stand by
	// themselves.
	list, _ := a.conductor.List(ctx)
	for _, m := range list {
		if !m.Done() {
			out.moves[m.InstanceUUID] = m
		}
	}
	return out
}

// tell fills in where a guest of this host stands, in Nova's words, and the resize or
// cold migration that waits for its confirmation. The host that conducts it, its source,
// knows by its journal; the destination by its ledger, where the move's context stays
// until it is confirmed.
func (s standing) tell(v *host.InstanceView) {
	if !v.Managed {
		return
	}
	here := v.Token.State == claims.TokenHere
	if here {
		v.Status = statusWord(driver.State(v.State))
	}
	if m, ok := s.moves[v.UUID]; ok {
		v.Status, v.Resize = statusOfMove(m, v.Status), s.unconfirmed(m)
		return
	}
	for _, c := range s.contexts {
		if c.Instance != v.UUID {
			continue
		}
		if c.Source == s.host && v.Conductor != "" {
			// A third host conducts it: what is held here of a guest that has left, which
			// that one has seen live where it went, and else a guest that is on its way.
			if v.Status = "RESIZE"; v.Hidden {
				v.Status, v.Resize = "VERIFY_RESIZE", s.waiting(c, v.Name, host.HalfKept)
			}
			return
		}
		if !here || c.Source == s.host || c.Destination != s.host {
			continue
		}
		v.Status = "VERIFY_RESIZE"
		v.Resize = s.waiting(c, v.Name, host.HalfGuest)
	}
}

// waiting is a move that waits for its confirmation, as the ledger has it.
func (s standing) waiting(c claims.MigrationContext, name string, half host.ResizeHalf) *host.ResizeView {
	return &host.ResizeView{
		Migration: c.Migration, Source: c.Source, Destination: c.Destination, Half: half, OldFlavor: c.OldFlavor.Name, Next: s.next(c, name),
	}
}

// statusWord is Nova's word for a guest that nothing is done with, by its domain.
func statusWord(s driver.State) string {
	switch s {
	case driver.Running:
		return "ACTIVE"
	case driver.Paused:
		return "PAUSED"
	case driver.ShutOff, "":
		return "SHUTOFF"
	}
	return "UNKNOWN"
}

// statusOfMove is Nova's word for a guest on a move that is not over.
func statusOfMove(m migration.Migration, otherwise string) string {
	switch {
	case m.Done():
		return otherwise
	case m.MigrationType == migration.TypeLiveMigration:
		return "MIGRATING"
	case m.MigrationType == migration.TypeRebuild:
		return "REBUILD"
	}
	switch m.Status {
	case migration.StatusFinished, migration.StatusConfirming:
		return "VERIFY_RESIZE"
	case migration.StatusReverting:
		return "REVERT_RESIZE"
	}
	return "RESIZE"
}

// unconfirmed is a move that waits for its confirmation, as its source sees it; nil for
// any other.
func (s standing) unconfirmed(m migration.Migration) *host.ResizeView {
	if m.Status != migration.StatusFinished {
		return nil
	}
	v := &host.ResizeView{
		Migration: m.UUID, MigrationType: m.MigrationType, Source: m.SourceCompute, Destination: m.DestCompute,
		Half: host.HalfKept, OldFlavor: m.OldFlavor, ConfirmsAt: m.ConfirmBy,
		Next: s.next(claims.MigrationContext{Migration: m.UUID}, m.InstanceName),
	}
	if m.InPlace {
		v.Half = host.HalfBoth
	}
	return v
}
