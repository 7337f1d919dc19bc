package conductor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/converge"
	"berth/migration/operation"
	"berth/migration/task"
)

// actBandwidth is a bound on the bandwidth that somebody set; no schedule has it.
const actBandwidth converge.Act = "bandwidth"

// whyForced is why an action is done that ForceComplete asked for.
const whyForced = "force_complete"

// wish is a stream that somebody wants to be completed. It dies with the agent.
type wish struct {
	attempt int
	by      string
}

// steered is what came of what was due.
type steered struct {
	leave   string           // the stream has been ended for post-copy, and why
	failed  bool             // something could not be done, and is to be asked for anew
	refused *converge.Action // what will never be done, and the controller is to go on without
}

// steer does what is due about a stream in flight, by the controller or because somebody asked
// for it. An error gives the move up.
func (s liveSteps) steer(ctx context.Context, t *task.Task, due []converge.Action, status *migration.StreamStatus) (out steered, err error) {
	if status.EndWanted {
		// An agent before this one, or this one's last look, has not seen the job's end.
		due = append([]converge.Action{{Do: converge.ActPostCopy, Why: "ended", Message: "its first job was already asked to end"}}, due...)
	}
	by := ""
	if w, ok := s.takeWish(); ok {
		out.failed = len(due) > 0 // it is due again, unless the wish has ended the stream
		due, by = []converge.Action{s.forced(ctx, t, w)}, w.by
	}
	for _, a := range due {
		row := migration.Control{At: s.c.cfg.Runtime.Now(), Action: a, By: by}
		if a.Observed {
			s.noteDone(ctx, row, nil)
			continue
		}
		var err error
		switch a.Do {
		case converge.ActAbort:
			s.noteDone(ctx, row, nil)
			return out, abortOf(a)
		case converge.ActPostCopy:
			if err = s.noPostCopy(ctx, t); err == nil {
				err = s.endStream(ctx)
			}
		case converge.ActDowntime:
			err = s.tune(ctx, migration.Tuning{MaxDowntime: a.Downtime})
		case converge.ActSuspend:
			err = s.tune(ctx, migration.Tuning{Suspend: true})
		default:
			err = fault.New(fault.Internal, "nobody knows how to do it on the way")
		}
		if cause := context.Cause(ctx); cause != nil {
			return out, cause
		}
		again := mayWorkLater(a.Do, err)
		out.failed = out.failed || again
		switch {
		case again && by != "":
			s.wishAgain(by)
		case err != nil && !again && by == "":
			out.refused = &a
		}
		s.noteDone(ctx, row, err)
		if err == nil && a.Do == converge.ActPostCopy {
			return steered{leave: a.Message}, nil
		}
	}
	s.keepControl(ctx)
	return out, nil
}

// mayWorkLater reports whether what could not be done is worth another try at the next look. A
// guest that is to stand still is never given up: nothing comes after that but the deadline.
func mayWorkLater(do converge.Act, err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy:
		return true
	}
	return err != nil && do == converge.ActSuspend
}

// forced is what completes a stream now: post-copy where it may be, else a guest that stands
// still.
func (s liveSteps) forced(ctx context.Context, t *task.Task, w wish) converge.Action {
	message := fmt.Sprintf("%s has asked for it to be completed", orNobody(w.by))
	if why := s.noPostCopy(ctx, t); why != nil {
		return converge.Action{Do: converge.ActSuspend, Why: whyForced, Message: message + "; " + why.Error()}
	}
	return converge.Action{Do: converge.ActPostCopy, Why: whyForced, Message: message}
}

func orNobody(by string) string {
	if by == "" {
		return "somebody"
	}
	return by
}

// tune changes the job in flight. Asked once: the stream is not watched meanwhile.
func (s liveSteps) tune(ctx context.Context, tuning migration.Tuning) error {
	return s.atSource(ctx, s.c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error {
		return operation.TuneStream.Ask(ctx, h, s.ref(migration.StepStream), tuning)
	})
}

// noteDone notes an action with what came of it, durably. One that fails again as it did before
// is noted once.
func (s liveSteps) noteDone(ctx context.Context, row migration.Control, err error) {
	level := s.c.cfg.Logger.Info
	if row.Done = err == nil && !row.Action.Observed; err != nil {
		row.Error = err.Error()
		level = s.c.cfg.Logger.Warn
	}
	s.c.mu.Lock()
	if n := len(s.rec.Control); err != nil && n > 0 && sameFailure(s.rec.Control[n-1], row) {
		s.c.mu.Unlock()
		return
	}
	s.noteLocked(row)
	s.c.mu.Unlock()
	level("about a transfer on its way", "migration", s.uuid, "instance", s.instance, "action", string(row.Action.Do), "why", row.Action.Message,
		"done", row.Done, "observed", row.Action.Observed, "by", row.By, "error", row.Error)
	s.keepControl(ctx)
}

// sameFailure compares all but the numbers of the moment.
func sameFailure(a, b migration.Control) bool {
	return a.Error == b.Error && a.Action.Do == b.Action.Do && a.Action.Downtime == b.Action.Downtime && a.Action.Why == b.Action.Why
}

// noteLocked adds a row. Called with c.mu held, by any actor.
func (s liveSteps) noteLocked(row migration.Control) {
	// Never in place: views of the migration share it.
	rows := append(slices.Clone(s.rec.Control), row)
	s.rec.Control = rows[max(0, len(rows)-migration.MostControls):]
	s.unkept = true
	s.publishLocked()
}

// keepControl makes durable what has been noted since the last write. Best effort: it is told
// in any case, and written with the end of the attempt at the latest. The story's own actor
// calls it.
func (s liveSteps) keepControl(ctx context.Context) {
	s.c.mu.Lock()
	rec, unkept := s.rec, s.unkept
	s.unkept = false
	s.c.mu.Unlock()
	if !unkept {
		return
	}
	if err := s.put(ctx, rec); err != nil {
		s.c.cfg.Logger.Warn("what was done about a transfer could not be written", "migration", s.uuid, "error", err)
	}
}

// dropped notes what the two hosts have dropped of the options for this guest.
func (s liveSteps) dropped(ctx context.Context, reasons []fault.Reason) {
	for _, r := range reasons {
		a := converge.Action{Do: converge.ActPostCopy, Why: r.Code, Message: r.Message, Want: r.Want, Have: r.Have, Change: r.Change}
		s.c.mu.Lock()
		known := slices.ContainsFunc(s.rec.Control, func(row migration.Control) bool { return row.Action == a })
		s.c.mu.Unlock()
		if !known {
			s.noteDone(ctx, migration.Control{At: s.c.cfg.Runtime.Now(), Action: a}, fault.New(fault.Forbidden, "this guest goes without it"))
		}
	}
}

// takeWish gives a wish for the present attempt, once.
func (s liveSteps) takeWish() (wish, bool) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	w := s.wanted
	s.wanted = nil
	if w == nil || w.attempt != s.rec.Attempt {
		return wish{}, false
	}
	return *w, true
}

// wishAgain keeps a wish that could not be done at present, unless there is a newer one.
func (s liveSteps) wishAgain(by string) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.wanted == nil {
		s.wanted = &wish{attempt: s.rec.Attempt, by: by}
	}
}

// takeTunings gives the bounds that people have set since it was asked last.
func (s liveSteps) takeTunings() []migration.Tuning {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	all := s.tunings
	s.tunings = nil
	return all
}

// liveNow finds a live migration on whose transfer something is to be changed.
func (c *Conductor) liveNow(uuid string) (*story, migration.Migration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stories[uuid]
	if s == nil {
		return nil, migration.Migration{}, fault.New(fault.NotFound, "migration %s is not known here", uuid)
	}
	return s, s.view(), nil
}

// byPostCopy reports whether the journal in a view has given the stream up for post-copy.
func byPostCopy(m migration.Migration) bool {
	return slices.ContainsFunc(m.Steps, func(st migration.StepRecord) bool { return st.Name == migration.StepPostCopy })
}

// Tune changes the bounds of a transfer in flight: bandwidth and downtime of a stream, the
// bandwidth alone of a post-copy. by is who asks; the change is a row of the migration's
// Control. fault.Forbidden, with the reason, where nothing is in flight that has the bound.
func (c *Conductor) Tune(ctx context.Context, uuid string, t migration.Tuning, by string) error {
	doing := "tune migration " + uuid
	s, m, err := c.liveNow(uuid)
	if err != nil {
		return err
	}
	if t.Suspend {
		return fault.New(fault.Invalid, "%s: a guest is suspended by force-complete", doing)
	}
	if err := tunable(m, t); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	ref := migration.Ref{Migration: s.name(), Instance: m.InstanceUUID, Attempt: m.Attempt, Step: migration.StepStream}
	err = s.atSource(ctx, c.cfg.VerbTimeout, func(ctx context.Context, h migration.Host) error { return operation.TuneStream.Ask(ctx, h, ref, t) })
	switch {
	case errors.Is(err, fault.NotFound):
		// The move is known, and the hypervisor has no job for it.
		return fault.Refuse(fault.Busy, doing, fault.Reason{
			Code: "no_transfer_yet", Message: "the transfer is just beginning, or has just ended", Have: string(m.Status), Change: "try again in a moment",
		})
	case err != nil:
		return fmt.Errorf("%s: %w", doing, err)
	}
	row := migration.Control{At: c.cfg.Runtime.Now(), By: orNobody(by), Done: true}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.Bandwidth > 0 {
		row.Bandwidth, row.Action = t.Bandwidth, converge.Action{Do: actBandwidth, Why: "set", Message: "the bandwidth was set on the way"}
		s.liveSteps().noteLocked(row)
	}
	if t.MaxDowntime > 0 {
		row.Bandwidth, row.Action = 0, converge.Action{Do: converge.ActDowntime, Downtime: t.MaxDowntime, Why: "set", Message: "the maximum downtime was set on the way"}
		s.liveSteps().noteLocked(row)
	}
	s.tunings = append(s.tunings, t)
	return nil
}

// tunable says why bounds cannot be changed now; nil where they can.
func tunable(m migration.Migration, t migration.Tuning) error {
	no := func(kind fault.Kind, code, message, change string) error {
		return fault.Refuse(kind, "", fault.Reason{Code: code, Message: message, Have: string(m.Status), Change: change})
	}
	switch {
	case m.Phase != task.Doing || m.Done() || m.Step != migration.StepStream && !byPostCopy(m):
		return no(fault.Forbidden, "not_streaming", "nothing of the guest is on its way now", "set it while the move is running")
	case m.Step == migration.StepStream:
		return nil
	case m.Step == migration.StepPostCopy:
		return no(fault.Busy, "post_copy_begins", "post-copy is just beginning", "try again in a moment")
	case m.Step != migration.StepCommit && m.Step != migration.StepAcceptToken && m.Step != migration.StepFollowPostCopy:
		return no(fault.Forbidden, "not_streaming", "all of the guest's memory is at the destination", "")
	case t.MaxDowntime > 0:
		return no(fault.Forbidden, "post_copy_began", "the guest runs at the destination already: nothing of it will stand still", "set the bandwidth alone")
	}
	return nil
}

// ForceComplete has a transfer in flight come to its end though the guest keeps changing
// memory: by post-copy where the move's options permit it and both hosts and the guest can, else
// by suspending the guest until its memory is there. It returns when the wish is noted; what was
// done about it is a row of the migration's Control within a moment. A wish that an agent's end
// overtakes in that moment is to be given again. Safe to repeat. fault.Forbidden, with the reason
// and what can be asked for instead, where nothing is streaming.
func (c *Conductor) ForceComplete(_ context.Context, uuid, by string) error {
	s, m, err := c.liveNow(uuid)
	if err != nil {
		return err
	}
	doing := "force migration " + uuid + " to complete"
	if m.Step != migration.StepStream || m.Phase != task.Doing || m.Done() {
		return fault.Refuse(fault.Forbidden, doing, unforced(m))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.wanted = &wish{attempt: m.Attempt, by: orNobody(by)}
	return nil
}

// unforced is why a migration cannot be forced now.
func unforced(m migration.Migration) fault.Reason {
	r := fault.Reason{Code: "not_streaming", Have: string(m.Status), Want: string(migration.StatusRunning)}
	switch {
	case m.Done():
		r.Message, r.Change = "it is over: "+string(m.Outcome), "nothing is left to be done"
	case m.Phase == task.Undoing:
		r.Message, r.Change = "it is being undone", "wait for its end, and move the guest again"
	case m.MigrationType != migration.TypeLiveMigration:
		r.Message, r.Change = "a "+m.MigrationType+" has no memory on its way", "wait for it, or abort it: berth migration abort "+m.UUID
	case byPostCopy(m):
		r.Code, r.Message, r.Change = "post_copy_began", "it completes by post-copy already", "give it more bandwidth: berth migration set "+m.UUID+" --bandwidth none"
	case slices.ContainsFunc(m.Steps, func(st migration.StepRecord) bool { return st.Name == migration.StepCommit }):
		r.Code, r.Message, r.Change = "past_point_of_no_return", "the guest has left its source, and the move completes by itself", "wait for its end"
	default:
		r.Message, r.Change = "its stream has not begun", "wait until it is running, or abort it: berth migration abort "+m.UUID
	}
	return r
}
