package conductor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/task"
)

// coldMove takes a guest to another host while it is off: a cold migration, or a resize
// that does not stay.
//
// On a restart every step but prep_resize is repeated where it stood; that one runs
// operators' programs, as pre_live_migration does. Who has the guest is decided by
// hand_over alone, and by the source: its undo is the other decision, and nothing
// earlier is undone before one of the two has been taken. From accept_handed on it is
// only forward: first the guest is to live at the destination, and where it cannot, it
// goes back by a revert that nobody asked for.
func (s coldSteps) coldMove(name string) stage {
	return stage{
		name: name,
		steps: append(s.firstSteps().steps(),
			step{Step: task.Step{Name: migration.StepPrepResize, Do: s.prepResize, Undo: s.order(s.undoAtDestination, operation.RollbackPrepResize, migration.StepPrepResize).undo, UndoMayLag: true, UndoOnRestart: true},
				asks: asksDestination, undoes: "rollback_prep_resize"},
			step{Step: task.Step{Name: migration.StepPowerOff, Do: s.powerOff, Undo: s.order(s.sourceOnce, operation.PowerOn, migration.StepPowerOff).undo, UndoMayLag: true}, asks: asksSource, undoes: "power_on"},
			step{Step: task.Step{Name: migration.StepShipDisks, Do: s.shipDisks}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepHandOver, Do: s.handOver, Undo: s.keepGuest, Final: true}, asks: asksSource, undoes: "keep_guest"},
			// The token has left.
			step{Step: task.Step{Name: migration.StepAcceptHanded, Do: s.acceptHanded, Forward: true}, asks: asksDestination},
			step{Step: task.Step{Name: migration.StepFinishResize, Do: s.finishResize, Forward: true}, asks: asksDestination},
		),
		shown:   []shown{{migration.StepInspectSource, migration.StatusPreMigrating}, {migration.StepPowerOff, migration.StatusMigrating}, {migration.StepAcceptHanded, migration.StatusPostMigrating}},
		lease:   migration.StepAcceptHanded,
		bounded: true,
		done:    s.coldMoved,
		undone:  s.endings().moveUndone,
	}
}

// finishedResize is the output of finish_resize.
type finishedResize struct {
	Unfit *task.Error `json:"unfit,omitempty"` // why the guest cannot live there; nil where it does
}

// coldMoved is the end of a cold move: finished, or the revert of one that cannot be.
func (s coldSteps) coldMoved(rec *migration.Migration, st task.State) ending {
	var out finishedResize
	if err := output(st, migration.StepFinishResize, &out); err != nil || out.Unfit == nil {
		return s.endings().finished(rec, st)
	}
	rec.Stage, rec.Unfit = migration.StageRevert, out.Unfit
	rec.Moved, rec.MoveSteps = rec.Attempt, rec.Steps
	return onward
}

// output reads a step's output in the state of a task that is over.
func output(st task.State, name string, v any) error {
	one, _ := st.Step(name)
	return json.Unmarshal(one.Output, v)
}

// wanted is the guest as it is to be.
func (i inspectedSource) wanted() migration.Guest {
	g := i.Guest
	if w := i.Wanted; w != nil {
		g.Flavor, g.Resources, g.Topology, g.PCIRequests = w.Flavor, w.Resources, w.Topology, w.PCIRequests
	}
	return g
}

// lookAtSource reads the guest, its host, and what the change would make of it.
func (s firstSteps) lookAtSource(ctx context.Context, ask func(context.Context, time.Duration, finder, func(context.Context, migration.Host) error) error) (inspectedSource, error) {
	var out inspectedSource
	err := ask(ctx, s.c.cfg.VerbTimeout, s.source, func(ctx context.Context, h migration.Host) (err error) {
		if out.Source, err = h.Describe(ctx); err == nil {
			out.Guest, err = operation.Inspect.Ask(ctx, h, migration.Ref{Instance: s.instance})
		}
		if err != nil || s.kind == migration.TypeLiveMigration {
			return err
		}
		w, err := operation.PlanChange.Ask(ctx, h, migration.Ref{Instance: s.instance}, s.change)
		out.Wanted = &w
		return err
	})
	return out, err
}

// shutdownOf is what a guest's flavor says of the time to shut it down, in seconds.
func shutdownOf(g migration.Guest) (time.Duration, bool) {
	n, err := strconv.Atoi(g.Flavor.ExtraSpecs["os_shutdown_timeout"])
	if err != nil || n < 0 {
		return 0, false
	}
	return min(time.Duration(n), migration.LongestShutdown/time.Second) * time.Second, true
}

// prepRequest asks a host to get ready for what the guest is to be.
func (s firstSteps) prepRequest(t *task.Task) (migration.PrepRequest, error) {
	var src inspectedSource
	if err := t.Output(migration.StepInspectSource, &src); err != nil {
		return migration.PrepRequest{}, err
	}
	var disks migration.SourceAnswer // a change in place asks for none
	if err := t.Output(migration.StepCheckSource, &disks); err != nil && !errors.Is(err, fault.NotFound) {
		return migration.PrepRequest{}, err
	}
	return migration.PrepRequest{Kind: s.kind, Guest: src.Guest, Wanted: *src.Wanted, CopyDisks: disks.CopyDisks, Source: s.from}, nil
}

func (s coldSteps) prepResize(ctx context.Context, t *task.Task) (any, error) {
	r, err := s.firstSteps().prepRequest(t)
	if err != nil {
		return nil, err
	}
	var out migration.PreparedCold
	err = s.atDestination(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.PrepResize.Ask(ctx, h, s.ref(migration.StepPrepResize), r)
		return err
	})
	return out, err
}

// powerOff ends the guest's domain where it is; of a change in place, where it stays.
func (s coldSteps) powerOff(ctx context.Context, t *task.Task) (any, error) {
	to, err := s.destination(t)
	if err != nil {
		return nil, err
	}
	if to == s.from {
		to = ""
	}
	return s.powersOff(ctx, s.source, migration.StepPowerOff, to)
}

// powersOff asks the host that has the guest. The verb itself lasts as long as the guest
// may take.
func (s coldSteps) powersOff(ctx context.Context, at finder, step, to string) (any, error) {
	var out migration.PoweredOff
	err := s.ask(ctx, s.c.cfg.SlowVerbTimeout+s.shutdown, at, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.PowerOff.Ask(ctx, h, s.ref(step), migration.PowerOffRequest{Timeout: s.shutdown, Kind: s.kind, Destination: to})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("power instance %s off: %w", s.instance, err)
	}
	return out, nil
}

func (s coldSteps) handOver(ctx context.Context, t *task.Task) (any, error) {
	to, err := s.destination(t)
	if err != nil {
		return nil, err
	}
	return asOutput(s.handsOver(ctx, s.source, migration.StepHandOver, to))
}

// asOutput is a verb's answer as the output of a step: none with an error.
func asOutput[T any](v T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// handsOver has a host surrender the token. Whether it has, where its answer does not
// come, is asked by the undo.
func (s coldSteps) handsOver(ctx context.Context, from finder, step, to string) (migration.Commit, error) {
	var out migration.Commit
	err := s.ask(ctx, s.c.cfg.VerbTimeout, from, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.HandOver.Ask(ctx, h, s.ref(step), migration.HandOverRequest{To: to})
		return err
	})
	return out, err
}

func (s coldSteps) keepGuest(ctx context.Context, _ *task.Task) error {
	return s.keeps(ctx, s.source, migration.StepHandOver)
}

// keeps is the other decision of the host that has the guest. It alone knows whether the
// token has left: both domains are off, and no table is needed.
func (s coldSteps) keeps(ctx context.Context, at finder, step string) error {
	err := s.askOnce(ctx, s.c.cfg.VerbTimeout, at, func(ctx context.Context, h migration.Host) error {
		return operation.KeepGuest.Ask(ctx, h, s.ref(step))
	})
	if errors.Is(err, fault.Forbidden) {
		return fmt.Errorf("%w: %w", task.ErrTooLate, err)
	}
	return err
}

func (s coldSteps) acceptHanded(ctx context.Context, t *task.Task) (any, error) {
	var c migration.Commit
	if err := t.Output(migration.StepHandOver, &c); err != nil {
		return nil, err
	}
	if err := s.takenBack(ctx, t); err != nil {
		return nil, err
	}
	return nil, s.accepts(ctx, c, s.source, migration.StepHandOver, func(c migration.Commit) error {
		return s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
			return operation.AcceptHanded.Ask(ctx, h, s.ref(migration.StepAcceptHanded), c)
		})
	})
}

// accepts has a commit accepted. Where its seal is refused the giver is asked for the same
// commit once more: it signs it anew, with the key that it has now.
func (s coldSteps) accepts(ctx context.Context, c migration.Commit, giver finder, step string, accept func(migration.Commit) error) error {
	err := accept(c)
	if !fault.HasReason(err, migration.ReasonSeal) {
		return err
	}
	again, refused := s.handsOver(ctx, giver, step, c.To)
	if refused != nil {
		return fmt.Errorf("%w; asked anew: %w", err, refused)
	}
	return accept(again)
}

// unfitTries is how often a destination must say in a row that the guest cannot live
// there. Arbitrary: what was wrong for a moment has passed by then.
const unfitTries = 3

func (s coldSteps) finishResize(ctx context.Context, t *task.Task) (any, error) {
	if err := s.takenBack(ctx, t); err != nil {
		return nil, err
	}
	said := false // by the host itself; a host that is not found says nothing
	err := s.once(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) error {
		said = true
		return operation.FinishResize.Ask(ctx, h, s.ref(migration.StepFinishResize))
	})
	switch fault.KindOf(err) {
	case "":
		return finishedResize{}, nil
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		s.unfit = 0
		return nil, err
	}
	if !said || context.Cause(ctx) != nil {
		return nil, err
	}
	if s.unfit++; s.unfit < unfitTries {
		return nil, err
	}
	return finishedResize{Unfit: task.Keep(err)}, nil
}
