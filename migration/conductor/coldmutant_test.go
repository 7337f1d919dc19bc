package conductor_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/task"
)

// skipped makes a step, or its undo, one that does nothing and says that it did.
func skipped(step string) conductor.Mutation {
	return change(step, func(s *task.Step) {
		s.Do = func(context.Context, *task.Task) (any, error) { return nil, nil }
	})
}

func notUndone(step string) conductor.Mutation {
	return change(step, func(s *task.Step) { s.Undo = nil })
}

// answerLost has a step's effect and fails, the first time.
func answerLost(s *task.Step) {
	do, lost := s.Do, false
	s.Do = func(ctx context.Context, t *task.Task) (any, error) {
		out, err := do(ctx, t)
		if err == nil && !lost {
			lost = true
			return nil, fault.New(fault.Unavailable, "lost")
		}
		return out, err
	}
}

// coldMutants are deliberate breakages of cold stories, each of which must be caught. fails
// is what has to go wrong for it to show; nothing where it shows by itself.
var coldMutants = []struct {
	name   string
	mutate conductor.Mutation
	fails  string
}{
	{"the claim not aborted", notUndone(migration.StepClaim), "PowerOff on a"},
	{"the context not dropped", notUndone(migration.StepRecordContext), "PowerOff on a"},
	{"the swap not undone", notUndone(migration.StepSwapAllocations), "PowerOff on a"},
	{"the preparation not rolled back", notUndone(migration.StepPrepResize), "PowerOff on a"},
	{"the change's preparation not rolled back", notUndone(migration.StepPrepChange), "PowerOff on a"},
	{"the guest not powered on again", notUndone(migration.StepPowerOff), "HandOver on a"},
	{"the guest of a change not powered on again", notUndone(migration.StepPowerOff), "ApplyChange on a"},
	{"a hand-over given up when its answer is lost", change(migration.StepHandOver, func(s *task.Step) { s.Undo = nil; answerLost(s) }), ""},
	{"a hand-over whose undo is not waited for", change(migration.StepHandOver, func(s *task.Step) { s.UndoMayLag = true; answerLost(s) }), "KeepGuest on a"},
	{"the change not taken back", notUndone(migration.StepApplyChange), "StartChanged on a"},
	{"the source not confirmed", skipped(migration.StepConfirmSource), ""},
	{"the destination not confirmed", skipped(migration.StepConfirmDestination), ""},
	{"what was before not given up", skipped(migration.StepFinishChange), ""},
	{"the migration's allocation left", skipped(migration.StepDeleteAllocation), ""},
	{"the return not cancelled", notUndone(migration.StepAwaitReturn), "PowerOff on b"},
	{"the guest not powered on after a revert that failed", notUndone(migration.StepRevertPowerOff), "HandOver on b"},
	{"the returned guest not made live", skipped(migration.StepFinishRevert), ""},
	{"the destination not cleaned up after a return", skipped(migration.StepCleanUpReverted), ""},
	{"the halves not given back", skipped(migration.StepRevertAllocations), ""},
	{"the change's revert skipped", skipped(migration.StepUnapplyChange), ""},
	{"the reverted guest not powered on", skipped(migration.StepPowerOn), ""},
	{"the claim kept after a revert in place", skipped(migration.StepReleaseClaim), ""},
	{"the copy of the instance not removed", notUndone(migration.StepCopyInstance), "PowerOff on a"},
	{"the disks not let go", notUndone(migration.StepSnapshotDisks), "Disconnect on a"},
	{"the guest not connected again", notUndone(migration.StepDisconnectSource), "HandOver on a"},
	{"a guest powered on that is not connected", change(migration.StepDisconnectSource, func(s *task.Step) { s.UndoMayLag = true }), "Reconnect on a|HandOver on a"},
	{"a guest powered on whose disks are held", change(migration.StepSnapshotDisks, func(s *task.Step) { s.UndoMayLag = true }), "DropSnapshot on a|Disconnect on a"},
	{"the copy not shown", skipped(migration.StepShowInstance), ""},
	{"the source's record not hidden", skipped(migration.StepHideInstance), ""},
	{"the disks not shipped", skipped(migration.StepShipDisks), ""},
	{"the disks not held", skipped(migration.StepSnapshotDisks), ""},
	{"the source not disconnected", skipped(migration.StepDisconnectSource), ""},
	{"volumes not carried back", skipped(migration.StepCarryVolumes), ""},
	{"a guest that cannot live there left there", change(migration.StepFinishResize, func(s *task.Step) {
		do := s.Do
		s.Do = func(ctx context.Context, t *task.Task) (any, error) { _, err := do(ctx, t); return nil, err }
	}), ""},
}

func TestColdMutants_AreAllCaught(t *testing.T) {
	for n, mutant := range coldMutants {
		if n%min(stride, 15) != 0 {
			continue
		}
		t.Run(mutant.name, func(t *testing.T) {
			for i, sc := range coldScenarios {
				f := faults{mutate: mutant.mutate}
				if mutant.fails != "" {
					f.fails = map[string]int{}
					for _, verb := range strings.Split(mutant.fails, "|") {
						f.fails[verb] = 5
					}
				}
				w, _ := playCold(t, i, 1, faults{fails: maps.Clone(f.fails)})
				w.report(sc.name) // nothing is found where nothing is broken
				if w, _ := playCold(t, i, 1, f); len(w.violations) > 0 {
					t.Logf("caught in %s: %s", sc.name, w.violations[0])
					return
				}
			}
			t.Error("no run noticed it")
		})
	}
}
