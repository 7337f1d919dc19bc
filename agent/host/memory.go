package host

import (
	"context"

	"berth/agent/host/memory"
	"berth/migration"
)

// What follows are the verbs' short names for package memory, which says what each does.

func at(ref migration.Ref, step string) migration.Ref { return memory.At(ref, step) }

func streamKey(ref migration.Ref) string { return memory.Key(ref) }

func (h *Host) lock(ctx context.Context, instance string) (unlock func(), err error) {
	return h.memory.Turn(ctx, instance)
}

func (h *Host) late(ref migration.Ref, step string) error { return h.memory.Late(ref, step) }

func recall[T any](h *Host, ref migration.Ref, step string) (T, bool, error) {
	return memory.Recall[T](h.memory, ref, step)
}

func recallEarlier[T any](h *Host, ref migration.Ref, step string) (v T, of migration.Ref, err error) {
	return memory.RecallEarlier[T](h.memory, ref, step)
}

func (h *Host) attempts(ref migration.Ref, step string) []migration.Ref {
	return h.memory.Attempts(ref, step)
}

func (h *Host) remember(ctx context.Context, ref migration.Ref, step string, v any) error {
	return h.memory.Remember(ctx, ref, step, v)
}

func (h *Host) stoppable(ctx context.Context, ref migration.Ref) (context.Context, func()) {
	return h.memory.Stoppable(ctx, ref)
}

func (h *Host) stopPreparing(ref migration.Ref) { h.memory.Stop(ref) }

func (h *Host) beginUndo(ctx context.Context, ref migration.Ref, step string, refused func() error) (unlock func(), err error) {
	return h.memory.BeginUndo(ctx, ref, step, refused)
}
