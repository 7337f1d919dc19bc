package agent

import (
	"context"
	"errors"

	"berth/agent/api"
	"berth/agent/host"
	"berth/internal/fault"
	"berth/migration"
	journal "berth/migration/task"
)

// side reaches the other host of a move.
func (a *Agent) side(_ context.Context, name string) (migration.Side, error) {
	return a.peers.client(name)
}

// conducts says what this agent's conductor has of an attempt.
func (a *Agent) conducts(id string, attempt int) migration.Conduct {
	return a.conductor.Conducts(id, attempt)
}

// waitingArrivals are the arrivals that wait here for somebody else's word, in the form
// of the moves that they are: their records are with the hosts that conduct them.
func (a *Agent) waitingArrivals() []migration.Migration {
	var out []migration.Migration
	for _, w := range a.host.Waiting() {
		out = append(out, a.arrival(w))
	}
	return out
}

func (a *Agent) arrival(w host.Waiting) migration.Migration {
	m := migration.Migration{
		UUID: w.Migration, InstanceUUID: w.Instance, SourceCompute: w.Source, DestCompute: a.name,
		MigrationType: migration.TypeLiveMigration, Status: migration.StatusRunning, Attempt: w.Attempt,
		CreatedAt: w.Since, UpdatedAt: a.rt.Now().UTC(), Steps: []migration.StepRecord{},
	}
	kind := fault.Unavailable
	if w.InDoubt {
		m.Status, m.Outcome, kind = migration.StatusError, migration.OutcomeInDoubt, fault.InDoubt
	}
	// The reason stands alone in the host's status.
	waits := "instance " + w.Instance + " is arriving here and waits for " + w.For
	m.Error = &journal.Error{Kind: kind, Message: waits, Reasons: []fault.Reason{{
		Code: "waits_for_source", Message: waits, Have: w.Source,
		Change: "start the agent on " + w.Source + "; if that host is gone for good: berth migration settle " + w.Migration +
			" --guest-is-at " + a.name + " --gone " + w.Source + ` --because "what you have checked"`,
	}}}
	if word, ok := a.host.WordOn(migration.Ref{Migration: w.Migration, Instance: w.Instance, Attempt: w.Attempt}); ok {
		m.Settled = &word
	}
	return m
}

type settleService struct{ a *Agent }

// Settle implements api.Settler: the conductor's where this agent conducts the move,
// else that of the arrival which waits here.
func (s settleService) Settle(ctx context.Context, id string, w migration.Settlement) (api.Settled, error) {
	out := api.Settled{Migration: id, GuestIsAt: w.GuestIsAt, By: w.By, Host: s.a.name}
	if err := w.Validate(); err != nil {
		return out, err
	}
	m, err := s.a.conductor.Settle(ctx, id, w)
	switch {
	case err == nil:
		out.Instance, out.Record = m.InstanceUUID, &m
		return out, nil
	case !errors.Is(err, fault.NotFound):
		return out, err
	}
	arrival, err := s.a.host.SettleArrival(ctx, id, w)
	out.Instance = arrival.Instance
	return out, err
}
