package conductor

import (
	"cmp"
	"encoding/json"
	"errors"

	"berth/migration"
	"berth/migration/task"
)

// publishLocked hands the present view to every watcher; one that has not read
// the last view gets only this one.
func (s *story) publishLocked() {
	s.queueSteps().settleTurnLocked()
	m := s.view()
	if s.told != "" && !migration.MayFollow(m.MigrationType, s.told, m.Status) {
		s.c.stray(m, s.told)
	}
	s.told = m.Status
	for ch, stop := range s.watchers {
		select {
		case <-ch:
		default:
		}
		ch <- m
		if m.Done() {
			stop()
			delete(s.watchers, ch)
			close(ch)
		}
	}
}

// progress keeps the last look at the stream for whoever watches.
func (s *story) progress(p migration.Progress) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.rec.Progress = p
	s.rec.UpdatedAt = s.c.cfg.Runtime.Now()
	s.publishLocked()
}

// view is the migration as people see it. Called with c.mu held.
func (s *story) view() migration.Migration {
	if s.rec.Done() || s.task == nil {
		m := s.rec
		m.Refusals = s.undosLeft().refusals()
		s.turn.show(&m)
		if s.resting && len(s.unwitnessed) > 0 {
			m.Waits = s.unwitnessed
		}
		return m
	}
	return s.viewOf(s.state)
}

// viewOf joins the record with a state of its current attempt.
func (s *story) viewOf(st task.State) migration.Migration {
	m := s.rec
	m.Refusals = s.undosLeft().refusals()
	m.Phase, m.Step, m.Outcome, m.Error = st.Phase, "", migration.OutcomeNone, nil
	m.Steps = make([]migration.StepRecord, 0, len(st.Steps))
	g := s.stage(m)
	if g.name == storyLivePostCopy {
		g = s.liveSteps().liveAs(m.Options, st)
	}
	for _, step := range st.Steps {
		r := migration.StepRecord{Name: step.Name, State: step.State, Begun: step.Begun, Ended: step.Ended, Tries: step.Tries}
		if !step.Ended.IsZero() {
			r.Duration = step.Ended.Sub(step.Begun)
		}
		if e := errors.Join(step.Error.Err(), step.Undo.Err()); e != nil {
			r.Error = e.Error()
		}
		m.Steps = append(m.Steps, r)
		m.Status = g.status(step.Name) // undone or not: a status never goes back
		if step.State != task.StepUndone {
			m.Step = step.Name
		}
		switch step.Name {
		case migration.StepChooseDestination:
			var chosen chosenDestination
			if json.Unmarshal(step.Output, &chosen) == nil && chosen.Name != "" {
				m.DestCompute = chosen.Name
			}
		case migration.StepLost, migration.StepCheckDestination, migration.StepPrepEvacuation, migration.StepFinishEvacuation:
			m.Evacuation = evacuationWith(m.Evacuation, step)
		case migration.StepStream:
			var end streamEnd
			if json.Unmarshal(step.Output, &end) == nil && !end.PostCopy {
				m.Progress = end.Progress
			}
		case migration.StepPowerOff, migration.StepRevertPowerOff:
			var off migration.PoweredOff
			if json.Unmarshal(step.Output, &off) == nil {
				m.Pulled = m.Pulled || off.Pulled
			}
		case migration.StepShipDisks:
			var shipped shippedApart
			if json.Unmarshal(step.Output, &shipped) == nil && shipped.Progress.DiskTotal > 0 {
				m.Progress = shipped.Progress
			}
			if shipped.Way != migration.WayNone {
				m.Way, m.WayReason = shipped.Way, shipped.Reason
			}
		case migration.StepFollowPostCopy:
			var followed followedPostCopy
			if json.Unmarshal(step.Output, &followed) == nil {
				m.Progress = followed.Progress
			}
		case migration.StepAcceptToken:
			var accepted acceptedToken
			if json.Unmarshal(step.Output, &accepted) == nil {
				m.HandoverDowntime = accepted.Downtime
			}
		case migration.StepFinishDestination:
			var finished finishedDestination
			if json.Unmarshal(step.Output, &finished) == nil && finished.Progress != nil {
				m.Progress = *finished.Progress
			}
		}
	}
	s.turn.show(&m)
	switch {
	case st.Over():
		m.Step = ""
	case st.Phase == task.Undoing:
		m.Error = st.Cause
		undo := st.Undos()
		if st.Doubt != nil {
			m.Outcome, undo = migration.OutcomeInDoubt, st.Doubt.Err()
		}
		if undo != nil {
			m.Status = migration.StatusError
			m.Error = task.Keep(errors.Join(st.Cause.Err(), undo))
		}
	case st.Doubt != nil:
		m.Status, m.Outcome, m.Error = migration.StatusError, migration.OutcomeInDoubt, st.Doubt
	}
	return m
}

// stray is told of a status that no transition leads to.
func (c *Conductor) stray(m migration.Migration, from migration.Status) {
	c.cfg.Logger.Error("a migration's status came from one that it may not follow", "migration", m.UUID, "type", m.MigrationType,
		"from", string(from), "to", string(m.Status), "step", m.Step)
	if c.strays != nil {
		c.strays(m, from)
	}
}

// evacuationWith returns the record with what a step of the current attempt has said. The record itself may
// be read by others, and is not changed.
func evacuationWith(e *migration.Evacuation, step task.StepState) *migration.Evacuation {
	out := *cmp.Or(e, &migration.Evacuation{})
	switch step.Name {
	case migration.StepLost:
		var l lostSource
		if json.Unmarshal(step.Output, &l) == nil {
			out.Proof = &l.Proof
		}
		out.EvacuatedDisks = migration.EvacuatedDisks{}
	case migration.StepCheckDestination:
		var c checkedDestination
		if json.Unmarshal(step.Output, &c) == nil {
			out.EvacuatedDisks = c.Evacuated
		}
	case migration.StepFinishEvacuation:
		// No output before it has ended.
		_ = json.Unmarshal(step.Output, &out.FinishedEvacuation)
	}
	return &out
}
