package conductor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/halves"
	"berth/migration/operation"
	"berth/migration/task"
)

// evacuation takes a guest from a host that is dead. Its source is never asked anything: what
// it had is in the fleet's records, and they decide who has the guest. take_over gives the
// token to the destination and is the point of no return; its undo, give_up, has it refused
// for good. Nothing earlier is undone before one of the two has been answered.
//
// The migration's half in Placement stays when the guest lives again: the source still has
// what it held there. It is given up by the source when it comes back, or when it is
// forgotten; see evacuate_clean.go.
//
// prep_evacuation runs operators' programs, and so is undone on a restart, as that of other
// moves is. But a lost guest runs nowhere, so that the next attempt begins by itself.
func (s evacuationSteps) evacuation() stage {
	return stage{
		name: storyEvacuation,
		steps: []step{
			{Step: task.Step{Name: migration.StepLost, Do: s.lost}, asks: asksFleet},
			{Step: task.Step{Name: migration.StepChooseDestination, Do: s.firstSteps().chooseDestination}, asks: asksPlacement},
			{Step: task.Step{Name: migration.StepCheckDestination, Do: s.firstSteps().checkDestination}, asks: asksDestination},
			{Step: task.Step{Name: migration.StepClaim, Do: s.firstSteps().claim, Undo: s.order(s.undoAtDestination, operation.AbortClaim, migration.StepClaim).undo, UndoMayLag: true}, asks: asksDestination, undoes: "abort_claim"},
			{Step: task.Step{Name: migration.StepSwapAllocations, Do: s.placementSteps().swap, Undo: s.withdraw, UndoMayLag: true}, asks: asksPlacement, undoes: "swap_allocations_back"},
			{Step: task.Step{Name: migration.StepPrepEvacuation, Do: s.prepEvacuation, Undo: s.order(s.undoAtDestination, operation.RollbackPrepEvacuation, migration.StepPrepEvacuation).undo, UndoMayLag: true, UndoOnRestart: true},
				asks: asksDestination, undoes: "rollback_prep_evacuation"},
			{Step: task.Step{Name: migration.StepTakeOver, Do: s.takeOver, Undo: s.giveUp, Final: true}, asks: asksFleet, undoes: "give_up"},
			// The token is the destination's.
			{Step: task.Step{Name: migration.StepAcceptEvacuated, Do: s.acceptEvacuated, Forward: true}, asks: asksDestination},
			{Step: task.Step{Name: migration.StepFinishEvacuation, Do: s.finishEvacuation, Forward: true}, asks: asksDestination},
		},
		shown:   []shown{{migration.StepLost, migration.StatusPreMigrating}, {migration.StepPrepEvacuation, migration.StatusMigrating}, {migration.StepAcceptEvacuated, migration.StatusPostMigrating}},
		lease:   migration.StepAcceptEvacuated,
		bounded: true,
		done:    evacuated,
		undone:  s.evacuationUndone,
	}
}

// Outputs of steps that are not verbs' answers.
type (
	lostSource struct {
		inspectedSource
		Proof  migration.DeathProof `json:"proof"`
		Record uint64               `json:"record_revision"`
		Death  uint64               `json:"death_revision"`
	}
	acceptedEvacuation struct {
		// Gone is why the destination is not waited for any more; empty where it has accepted.
		Gone string `json:"gone,omitempty"`
	}
)

func (l lostSource) guest() migration.LostGuest {
	return migration.LostGuest{Guest: l.Guest, Source: l.Source, Proof: l.Proof, Record: l.Record, Death: l.Death}
}

// evacuates reports whether the source is dead, so that it is not asked.
func (s *story) evacuates() bool { return s.kind == migration.TypeEvacuation }

// inspected is the guest of the current attempt, by the journal's first step.
func (s *story) inspected(t *task.Task) (inspectedSource, error) {
	step := migration.StepInspectSource
	if s.evacuates() {
		step = migration.StepLost
	}
	var src inspectedSource
	err := t.Output(step, &src)
	return src, err
}

// untilSaid asks the records until they answer, which is shown as in doubt after a while. A host of the
// fleet that does not say whether it has the guest is waited for no longer than that: the step that gives
// the token away cannot be aborted.
func (s evacuationSteps) untilSaid(ctx context.Context, t *task.Task, doubt string, f func(context.Context, Fleet) error) error {
	began := s.c.cfg.Runtime.Boot().Since
	for pause := 200 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := s.c.records(ctx, f)
		switch cause := context.Cause(ctx); {
		case err == nil:
			return nil
		case cause != nil:
			return cause
		case !errors.Is(err, fault.Unavailable) && !errors.Is(err, fault.InDoubt) && !errors.Is(err, fault.Busy):
			return err
		case s.c.cfg.Runtime.Boot().Since-began < s.c.cfg.Patience:
		case migration.SilentElsewhere(err):
			return err
		default:
			t.Doubt(fault.New(fault.InDoubt, "%s: %w", doubt, err))
		}
		if err := s.c.cfg.Runtime.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// records asks the fleet's records once.
func (c *Conductor) records(ctx context.Context, f func(context.Context, Fleet) error) error {
	ctx, cancel := c.cfg.Runtime.WithTimeout(ctx, c.cfg.VerbTimeout)
	defer cancel()
	if c.cfg.Fleet == nil {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "no_fleet_store", Message: "this host knows of no store in which hosts keep records of their guests, so nobody knows what a dead one had",
			Change: "set [fleet] etcd, or use the embedded Placement",
		})
	}
	return f(ctx, c.cfg.Fleet)
}

// lost is the guest as its record has it, with the proof that its host is dead, and what it
// holds in Placement: on that host alone.
//
// Records that do not answer are waited for: the evacuation is accepted, and nobody else would
// ask again.
func (s evacuationSteps) lost(ctx context.Context, t *task.Task) (any, error) {
	var g migration.LostGuest
	err := s.untilSaid(ctx, t, "the fleet's records do not say whose the guest is", func(ctx context.Context, f Fleet) (err error) {
		g, err = f.Lost(ctx, s.instance)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the record of instance %s: %w", s.instance, err)
	}
	if g.Source.Name != s.from {
		return nil, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_its_host", Message: "instance " + s.instance + " is of host " + g.Source.Name + " by the fleet's records", Want: s.from, Have: g.Source.Name,
			Change: "look there: berth -c " + g.Source.Name + " instance show " + s.instance,
		})
	}
	out := lostSource{inspectedSource: inspectedSource{Guest: g.Guest, Source: g.Source}, Proof: g.Proof, Record: g.Record, Death: g.Death}
	out.Start, err = s.lostHalf(ctx, out.inspectedSource)
	return out, err
}

// lostHalf is what the guest holds of its dead host, refused where it is counted elsewhere.
func (s evacuationSteps) lostHalf(ctx context.Context, src inspectedSource) (halves.Start, error) {
	start, err := s.placementSteps().move().Lost(ctx, halves.Source{
		Root: src.Source.ProviderUUID, Uses: src.Source.Counts, Claim: amounts(src.Source, src.Guest.Allocations, src.Guest.Resources),
		ProjectID: src.Guest.ProjectID, UserID: src.Guest.UserID, Leftover: s.placementSteps().leftover,
	})
	if fault.HasReason(err, "allocation_elsewhere") {
		reasons := append(fault.ReasonsOf(err), fault.Reason{
			Code: "on_a_move", Message: "instance " + s.instance + " is counted where its record does not have it: a move of it is not over",
			Change: "wait for its end, or settle it where it is conducted: berth migration list, berth migration settle",
		})
		return start, fault.Refuse(fault.KindOf(err), "", reasons...)
	}
	return start, err
}

// suits holds a destination's answer against the guest: what is wrong with the pair, and
// what becomes of the disks of a lost one.
func (s evacuationSteps) suits(src inspectedSource, a migration.CheckAnswer) (migration.EvacuatedDisks, error) {
	if err := sameHost(src.Source, a.Destination); err != nil || !s.evacuates() {
		return migration.EvacuatedDisks{}, err
	}
	disks, reasons := migration.EvacuateDisks(src.Guest, a.Disks, s.change.Image, s.rec.Evacuation.AcceptLoss)
	if len(reasons) > 0 {
		return disks, saidBy(a.Destination.Name, fault.Refuse(fault.Forbidden, "", reasons...))
	}
	return disks, nil
}

// withdraw is the undo of the swap.
func (s evacuationSteps) withdraw(ctx context.Context, t *task.Task) error {
	if s.givenUp(ctx, migration.GonePlacement) {
		return nil
	}
	h, err := s.placementSteps().heldBy(t)
	if err != nil {
		return err
	}
	return s.placementSteps().move().Withdraw(ctx, h.Start, h.Next)
}

func (s evacuationSteps) prepEvacuation(ctx context.Context, t *task.Task) (any, error) {
	src, err := s.inspected(t)
	if err != nil {
		return nil, err
	}
	e := s.rec.Evacuation
	var out migration.PreparedEvacuation
	err = s.atDestination(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		out, err = operation.PrepEvacuation.Ask(ctx, h, s.ref(migration.StepPrepEvacuation), migration.EvacuationRequest{
			Guest: src.Guest, Source: s.from, Image: s.change.Image, AcceptLoss: e.AcceptLoss, Stopped: e.Stopped,
		})
		return err
	})
	return out, err
}

// takeOver gives the token to the destination. While the records do not answer nobody knows
// whether it has, and the undo would have to ask them too: it is asked until they do.
func (s evacuationSteps) takeOver(ctx context.Context, t *task.Task) (any, error) {
	var l lostSource
	if err := t.Output(migration.StepLost, &l); err != nil {
		return nil, err
	}
	to, err := s.destination(t)
	if err != nil {
		return nil, err
	}
	var c migration.Commit
	err = s.untilSaid(ctx, t, "the fleet's records do not say whether they give the guest away", func(ctx context.Context, f Fleet) (err error) {
		c, err = f.TakeOver(ctx, s.ref(migration.StepTakeOver), l.guest(), to)
		return err
	})
	if errors.Is(err, fault.Forbidden) && s.came(ctx, t) {
		return migration.Commit{
			Instance: s.instance, Migration: s.name(), Attempt: s.rec.Attempt, Epoch: l.Guest.Epoch + 1, From: s.from, To: to, Power: l.Guest.PowerState,
		}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("take instance %s over from %s: %w", s.instance, s.from, err)
	}
	return c, nil
}

// came reports whether the destination has taken the token in by this attempt. Records refuse
// what they gave long ago, once the source has cleaned up and the guest has gone on; the
// destination refuses to undo what has come, and nobody would ever end the migration.
func (s evacuationSteps) came(ctx context.Context, t *task.Task) bool {
	var there migration.DestinationStatus
	err := s.atDestination(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
		there, err = operation.DestinationStatus.Ask(ctx, h, s.ref(migration.StepTakeOver))
		return err
	})
	return err == nil && there.Ledger == migration.LedgerAccepted
}

// giveUp is the other decision, and the records' too.
func (s evacuationSteps) giveUp(ctx context.Context, t *task.Task) error {
	var l lostSource
	if err := t.Output(migration.StepLost, &l); err != nil {
		return err
	}
	err := s.c.records(ctx, func(ctx context.Context, f Fleet) error {
		return f.GiveUp(ctx, s.ref(migration.StepTakeOver), l.guest())
	})
	if errors.Is(err, fault.Forbidden) {
		return fmt.Errorf("%w: %w", task.ErrTooLate, err)
	}
	return err
}

func (s evacuationSteps) acceptEvacuated(ctx context.Context, t *task.Task) (any, error) {
	var c migration.Commit
	if err := t.Output(migration.StepTakeOver, &c); err != nil {
		return nil, err
	}
	err := s.once(ctx, t, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.AcceptEvacuated.Ask(ctx, h, s.ref(migration.StepAcceptEvacuated), c)
	})
	if err == nil {
		return acceptedEvacuation{}, nil
	}
	if gone := s.goneOn(ctx, c); gone != "" {
		return acceptedEvacuation{Gone: gone}, nil
	}
	return nil, err
}

func (s evacuationSteps) finishEvacuation(ctx context.Context, t *task.Task) (any, error) {
	var c migration.Commit
	var accepted acceptedEvacuation
	if err := outputs(t, migration.StepTakeOver, &c, migration.StepAcceptEvacuated, &accepted); err != nil {
		return nil, err
	}
	if accepted.Gone != "" {
		return migration.FinishedEvacuation{NotStarted: accepted.Gone}, nil
	}
	var out migration.FinishedEvacuation
	gone, err := s.whileThere(ctx, c, func(ctx context.Context) error {
		return s.once(ctx, t, s.c.cfg.SlowVerbTimeout, func(ctx context.Context, h migration.Host) (err error) {
			out, err = operation.FinishEvacuation.Ask(ctx, h, s.ref(migration.StepFinishEvacuation))
			return err
		})
	})
	switch {
	case err == nil:
		return out, nil
	case gone != "":
		return migration.FinishedEvacuation{NotStarted: gone}, nil
	}
	return nil, err
}

// goneEvery is the pause between two looks whether a destination is still to be waited for.
// Arbitrary.
const goneEvery = 15 * time.Second

// whileThere asks a destination, and ends the question once nobody has to wait for the answer:
// a host that dies amid it mostly leaves the connection as it is, and the verb may take long.
// gone is why, where asking has failed; see goneOn.
func (s evacuationSteps) whileThere(ctx context.Context, c migration.Commit, ask func(context.Context) error) (gone string, err error) {
	rt := s.c.cfg.Runtime
	asking, stop := context.WithCancel(ctx)
	var watching runtime.Group
	watching.Go(rt, "watch the destination of "+s.uuid, func() {
		for gone == "" && rt.Sleep(asking, goneEvery) == nil {
			gone = s.goneOn(asking, c)
		}
		stop()
	})
	err = ask(asking)
	stop()
	watching.Wait(rt)
	if err != nil && gone == "" {
		gone = s.goneOn(ctx, c)
	}
	return gone, err
}

// goneOn is why nothing is left to be done by this evacuation for a guest that its
// destination was given: another host has it with a higher epoch, or the destination is dead,
// too, by the same proofs. Then it is evacuated from there, and nobody has to wait for this
// one. Empty where the destination is still to be asked.
func (s evacuationSteps) goneOn(ctx context.Context, c migration.Commit) string {
	if context.Cause(ctx) != nil {
		return ""
	}
	var why string
	// What the records do not say now they are asked at the next try.
	_ = s.c.records(ctx, func(ctx context.Context, f Fleet) error {
		host, epoch, err := f.Holder(ctx, s.instance)
		switch {
		case err != nil:
			return err
		case epoch > c.Epoch:
			why = fmt.Sprintf("host %s has it by now, with epoch %d", host, epoch)
			return nil
		case epoch < c.Epoch || host != c.To:
			return nil // records of before; whoever has brought them back has to say
		}
		dead, err := f.Lost(ctx, s.instance)
		if err == nil && dead.Source.Name == c.To {
			why = fmt.Sprintf("host %s died before the guest lived there (%s: %s): evacuate it from there", c.To, dead.Proof.Proof, dead.Proof.Because)
		}
		return err
	})
	return why
}

// evacuated is the end of an evacuation: done, and completed once nothing is left at the
// source.
func evacuated(rec *migration.Migration, _ task.State) ending {
	rec.Status, rec.Outcome, rec.Error = migration.StatusDone, migration.OutcomeCompleted, nil
	return over
}

// evacuationUndone is the end of an attempt. What has changed meanwhile, or was interrupted, is
// tried again: the next attempt reads the record anew, and says by it what is in the way.
func (s evacuationSteps) evacuationUndone(rec *migration.Migration, st task.State) ending {
	step, kind := failedAt(st), fault.Internal
	if st.Cause != nil {
		kind = st.Cause.Kind
	}
	switch {
	case hasCode(st.Cause, codeAborted), hasCode(st.Cause, codeDeadline):
	case step == migration.StepLost:
		rec.Status, rec.Outcome, rec.Error = migration.StatusFailed, migration.OutcomeRefused, st.Cause
		if rec.Attempt > 1 {
			rec.Outcome = migration.OutcomeUndone // by an attempt before
		}
		return over
	case rec.AbortRequested || rec.Attempt >= s.c.cfg.MaxAttempts:
	case step == migration.StepPrepEvacuation && kind == fault.Undone, // by a restart
		step == migration.StepTakeOver && kind == fault.Forbidden && !hasCode(st.Cause, migration.ReasonDestinationDead),
		step == migration.StepSwapAllocations && kind == fault.GenerationConflict,
		hasCode(st.Cause, codeClaimLost):
		return onward
	}
	return s.endings().moveUndone(rec, st)
}

// failedAt is the step whose failure began the undoing; empty for none.
func failedAt(st task.State) string {
	for _, one := range st.Steps {
		if one.Error != nil {
			return one.Name
		}
	}
	return ""
}
