package host

import (
	"context"

	"berth/agent/host/hooks"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/migration"
)

// What follows are the verbs' short names for package phases, which says what each does.

type (
	phaseRequest = phases.Request
	phaseRecord  = phases.Record
)

func memoryPhase(phase string) string { return phases.MemoryOf(phase) }

func (h *Host) newPhases(runner *hooks.Runner) *phases.Phases {
	return phases.New(phases.Options{Tracker: h.tracker, Memory: h.memory, Runner: runner, Runtime: h.rt, Logger: h.log})
}

func (h *Host) phase(ctx context.Context, ref migration.Ref, r phaseRequest) error {
	return h.phases.Run(ctx, ref, r)
}

func (h *Host) forgetPhases(ctx context.Context, ref migration.Ref, names ...string) error {
	return h.phases.Forget(ctx, ref, names...)
}

func (h *Host) contextOf(ref migration.Ref) (claims.MigrationContext, bool) {
	return h.phases.ContextOf(ref)
}

func (h *Host) endHook(p *hooks.Process) error { return h.phases.EndHook(p) }
