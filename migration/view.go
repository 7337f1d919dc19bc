package migration

import (
	"cmp"
	"encoding/json"
	"errors"

	"berth/migration/task"
)

// publishLocked hands the present view to every watcher; one that has not read
// the last view gets only this one.
func (s *story) publishLocked() {
	s.settleTurnLocked()
	m := s.view()
	if s.told != "" && !MayFollow(m.MigrationType, s.told, m.Status) {
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
func (s *story) progress(p Progress) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.rec.Progress = p
	s.rec.UpdatedAt = s.c.cfg.Runtime.Now()
	s.publishLocked()
}

// view is the migration as people see it. Called with c.mu held.
func (s *story) view() Migration {
	if s.rec.Done() || s.task == nil {
		m := s.rec
		m.Refusals = s.refusals()
		s.turn.show(&m)
		return m
	}
	return s.viewOf(s.state)
}

// viewOf joins the record with a state of its current attempt.
func (s *story) viewOf(st task.State) Migration {
	m := s.rec
	m.Refusals = s.refusals()
	m.Phase, m.Step, m.Outcome, m.Error = st.Phase, "", OutcomeNone, nil
	m.Steps = make([]StepRecord, 0, len(st.Steps))
	g := s.stage(m)
	if g.name == storyLivePostCopy {
		g = s.liveAs(m.Options, st)
	}
	for _, step := range st.Steps {
		r := StepRecord{Name: step.Name, State: step.State, Begun: step.Begun, Ended: step.Ended, Tries: step.Tries}
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
		case StepChooseDestination:
			var chosen chosenDestination
			if json.Unmarshal(step.Output, &chosen) == nil && chosen.Name != "" {
				m.DestCompute = chosen.Name
			}
		case StepLost, StepCheckDestination, StepPrepEvacuation, StepFinishEvacuation:
			m.Evacuation = evacuationWith(m.Evacuation, step)
		case StepStream:
			var end streamEnd
			if json.Unmarshal(step.Output, &end) == nil && !end.PostCopy {
				m.Progress = end.Progress
			}
		case StepPowerOff, StepRevertPowerOff:
			var off PoweredOff
			if json.Unmarshal(step.Output, &off) == nil {
				m.Pulled = m.Pulled || off.Pulled
			}
		case StepShipDisks:
			var shipped shippedApart
			if json.Unmarshal(step.Output, &shipped) == nil && shipped.Progress.DiskTotal > 0 {
				m.Progress = shipped.Progress
			}
			if shipped.Way != WayNone {
				m.Way, m.WayReason = shipped.Way, shipped.Reason
			}
		case StepFollowPostCopy:
			var followed followedPostCopy
			if json.Unmarshal(step.Output, &followed) == nil {
				m.Progress = followed.Progress
			}
		case StepAcceptToken:
			var accepted acceptedToken
			if json.Unmarshal(step.Output, &accepted) == nil {
				m.HandoverDowntime = accepted.Downtime
			}
		case StepFinishDestination:
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
			m.Outcome, undo = OutcomeInDoubt, st.Doubt.Err()
		}
		if undo != nil {
			m.Status = StatusError
			m.Error = task.Keep(errors.Join(st.Cause.Err(), undo))
		}
	case st.Doubt != nil:
		m.Status, m.Outcome, m.Error = StatusError, OutcomeInDoubt, st.Doubt
	}
	return m
}

// stray is told of a status that no transition leads to.
func (c *Conductor) stray(m Migration, from Status) {
	c.cfg.Logger.Error("a migration's status came from one that it may not follow", "migration", m.UUID, "type", m.MigrationType,
		"from", string(from), "to", string(m.Status), "step", m.Step)
	if c.strays != nil {
		c.strays(m, from)
	}
}

// evacuationWith returns the record with what a step of the current attempt has said. The record itself may
// be read by others, and is not changed.
func evacuationWith(e *Evacuation, step task.StepState) *Evacuation {
	out := *cmp.Or(e, &Evacuation{})
	switch step.Name {
	case StepLost:
		var l lostSource
		if json.Unmarshal(step.Output, &l) == nil {
			out.Proof = &l.Proof
		}
		out.EvacuatedDisks = EvacuatedDisks{}
	case StepCheckDestination:
		var c checkedDestination
		if json.Unmarshal(step.Output, &c) == nil {
			out.EvacuatedDisks = c.Evacuated
		}
	case StepFinishEvacuation:
		// No output before it has ended.
		_ = json.Unmarshal(step.Output, &out.FinishedEvacuation)
	}
	return &out
}
