package agent

import (
	"context"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/migration"
)

// stands fills in where a guest of this host stands, in Nova's words, and the resize or
// cold migration that waits for its confirmation. The host that conducts it, its source,
// knows by its journal; the destination by its ledger, where the move's context stays
// until it is confirmed.
func (a *Agent) stands(ctx context.Context, v *host.InstanceView) {
	if !v.Managed {
		return
	}
	if v.Token.State == claims.TokenHere {
		v.Status = statusWord(driver.State(v.State))
	}
	if m, ok := a.conductedHere(ctx, v.UUID); ok {
		v.Status, v.Resize = statusOfMove(m, v.Status), unconfirmed(m)
		return
	}
	if v.Token.State != claims.TokenHere {
		return
	}
	for _, c := range a.tracker.Contexts() {
		if c.Instance != v.UUID || c.Source == a.name || c.Destination != a.name {
			continue
		}
		v.Status = "VERIFY_RESIZE"
		v.Resize = &host.ResizeView{
			Migration: c.Migration, Source: c.Source, Destination: c.Destination, Half: host.HalfGuest,
			OldFlavor: c.OldFlavor.Name, Next: nextOf(v.Name),
		}
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
func unconfirmed(m migration.Migration) *host.ResizeView {
	if m.Status != migration.StatusFinished {
		return nil
	}
	v := &host.ResizeView{
		Migration: m.UUID, MigrationType: m.MigrationType, Source: m.SourceCompute, Destination: m.DestCompute,
		Half: host.HalfKept, OldFlavor: m.OldFlavor, ConfirmsAt: m.ConfirmBy, Next: nextOf(m.InstanceName),
	}
	if m.InPlace {
		v.Half = host.HalfBoth
	}
	return v
}

// nextOf are the commands that end a guest's resize.
func nextOf(name string) []string {
	return []string{"berth resize confirm " + name, "berth resize revert " + name}
}
