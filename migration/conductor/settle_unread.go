package conductor

import (
	"context"
	"fmt"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// settleUnread settles a move whose journal cannot be read, so that nobody knows what it
// has done: only back, and only where the source has not given the guest away. What is
// left at the destination ends when that asks what became of it; what is left in
// Placement is the audit's.
func (s decisions) settleUnread(ctx context.Context, m migration.Migration, w migration.Settlement) (migration.Migration, error) {
	doing := "settle migration " + s.uuid
	if s.kind != migration.TypeLiveMigration && m.Outcome == migration.OutcomeInDoubt {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, doing, fault.Reason{
			Code: "journal_unread", Message: "its journal cannot be read: what it has done is not known, and no domain of a guest that is off tells it",
			Change: "restore the store from a backup",
		})
	}
	if m.Outcome != migration.OutcomeInDoubt {
		return migration.Migration{}, fault.New(fault.Unavailable, "%s: its next attempt has not begun yet", doing)
	}
	status := s.liveSteps().look(ctx)
	var reasons []fault.Reason
	no := func(code, message, change string) {
		reasons = append(reasons, fault.Reason{Code: code, Message: message, Change: change})
	}
	if w.GuestIsAt != s.from {
		no("journal_unread", "its journal cannot be read: what it has done at its destination is not known", "if the guest is at "+s.from+", say so")
	}
	switch fact := sourceFact(status, true); {
	case fact == SourceSilent:
		no("source_silent", "the source's hypervisor does not answer", "start libvirtd on "+s.from)
	case fact == SourceMigrated, status.Ledger == migration.LedgerSurrendered, status.Ledger == migration.LedgerElsewhere:
		no("has_left", "the guest has left the source", "settle it at the destination, which waits for the source's word")
	}
	if len(reasons) > 0 {
		return migration.Migration{}, fault.Refuse(fault.Forbidden, doing, reasons...)
	}
	if err := s.atSource(ctx, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error {
		source, ok := h.(migration.Settler)
		if !ok {
			return fault.New(fault.Internal, "the source takes nobody's word")
		}
		if err := source.TakeWord(ctx, s.ref(migration.StepStream), w); err != nil {
			return err
		}
		if err := operation.Reclaim.Ask(ctx, h, s.ref(migration.StepStream)); err != nil {
			return err
		}
		return operation.DropContext.Ask(ctx, h, s.ref(migration.StepRecordContext))
	}); err != nil {
		return migration.Migration{}, fmt.Errorf("%s: %w", doing, err)
	}
	id := s.taskID()
	s.c.mu.Lock()
	s.rec.Settled = &w
	rec := s.rec
	s.c.mu.Unlock()
	rec.Status, rec.Outcome, rec.Phase, rec.Step, rec.UpdatedAt = migration.StatusFailed, migration.OutcomeUndone, task.Undone, "", s.c.cfg.Runtime.Now()
	rec.Error = &task.Error{Kind: fault.Undone, Message: fmt.Sprintf("its journal could not be read; %s has said that the guest is at %s: %s", w.By, s.from, w.Why)}
	if !s.replace(ctx, rec, over) {
		return migration.Migration{}, context.Cause(ctx)
	}
	s.c.mu.Lock()
	run := s.c.run
	s.c.mu.Unlock()
	if run != nil { // else the next start drops them
		s.c.dropTask(run, id)
		s.c.dropAbort(run, s.uuid)
	}
	return s.c.Get(ctx, s.uuid)
}
