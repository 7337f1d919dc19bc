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
		UUID: w.Migration, InstanceUUID: w.Instance, SourceCompute: w.Source, DestCompute: a.name, Conductor: w.Conductor,
		MigrationType: migration.TypeLiveMigration, Status: migration.StatusRunning, Attempt: w.Attempt,
		CreatedAt: w.Since, UpdatedAt: a.rt.Now().UTC(), Steps: []migration.StepRecord{},
	}
	kind := fault.Unavailable
	if w.Conductor != "" {
		m.MigrationType, m.ShareNothing = migration.TypeMigration, true
	}
	if w.InDoubt {
		m.Status, m.Outcome, kind = migration.StatusError, migration.OutcomeInDoubt, fault.InDoubt
	}
	// The reason stands alone in the host's status.
	waits := "instance " + w.Instance + " is arriving here and waits for " + w.For
	if w.Leaves {
		m.SourceCompute, m.DestCompute = a.name, w.Source
	}
	if w.Conductor != "" {
		m.Error = a.conductorSilent(w, kind)
		return a.settledBy(m)
	}
	m.Error = &journal.Error{Kind: kind, Message: waits, Reasons: []fault.Reason{{
		Code: "waits_for_source", Message: waits, Have: w.Source,
		Change: "start the agent on " + w.Source + "; if that host is gone for good: berth migration settle " + w.Migration +
			" --guest-is-at " + a.name + " --gone " + w.Source + ` --reason "what you have checked"`,
	}}}
	return a.settledBy(m)
}

// settledBy fills in an operator's word that this host took.
func (a *Agent) settledBy(m migration.Migration) migration.Migration {
	if word, ok := a.host.WordOn(migration.Ref{Migration: m.UUID, Instance: m.InstanceUUID, Attempt: m.Attempt}); ok {
		m.Settled = &word
	}
	return m
}

// conductorSilent says what a guest waits for whose move a silent third host conducts.
func (a *Agent) conductorSilent(w host.Waiting, kind fault.Kind) *journal.Error {
	does, at := "is arriving here", " --guest-is-at "+w.Source+" or "+a.name
	if w.Leaves {
		does = "is to leave here"
	}
	waits := "instance " + w.Instance + " " + does + " and waits for " + w.For
	return &journal.Error{Kind: kind, Message: waits, Reasons: []fault.Reason{{
		Code: "waits_for_conductor", Message: waits, Have: w.Conductor,
		Change: "start the agent on " + w.Conductor + "; if that host is gone for good, look where the guest is, and say so on both hosts: berth migration settle " +
			w.Migration + at + " --gone " + w.Conductor + ` --reason "what you have checked"`,
	}}}
}

// sideService answers the other host of a move: of one that this agent conducts between
// two others, what the host says which the guest is to leave, else what the journal does.
type sideService struct{ a *Agent }

// AttemptFate implements migration.Side.
func (s sideService) AttemptFate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	journaled, mine := s.a.conductor.Fate(ref.Migration, ref.Attempt)
	if !mine {
		return s.a.host.AttemptFate(ctx, ref)
	}
	m, err := s.a.conductor.Get(ctx, ref.Migration)
	if err != nil {
		return migration.AttemptFate{}, err
	}
	who, fromHost := api.FromHost(ctx)
	if fromHost && !m.Concerns(who) {
		return migration.AttemptFate{}, fault.Refuse(fault.Forbidden, "tell host "+who+" about migration "+ref.Migration, fault.Reason{
			Code: "not_a_party", Message: "host " + who + " is not one of the two of this migration", Have: who,
		})
	}
	return conductedFate(ctx, journaled, m, ref, who, func(ctx context.Context, name string) (migration.Side, error) {
		if name == s.a.name {
			return s.a.host, nil
		}
		return s.a.side(ctx, name)
	}), nil
}

// conductedFate asks the host that a guest is to leave by an attempt, and takes the journal's
// word while that host says nothing that decides it. Nobody is asked in a circle: this host
// asks itself by its ledger alone (see AttemptFate), and never whoever asks, who would ask
// back.
func conductedFate(ctx context.Context, journaled migration.AttemptFate, m migration.Migration, ref migration.Ref, asks string, side func(context.Context, string) (migration.Side, error)) migration.AttemptFate {
	if journaled.Fate == migration.FateKept {
		return journaled
	}
	giver := m.SourceCompute
	if m.Moved > 0 && ref.Attempt > m.Moved {
		giver = m.DestCompute // it goes back
	}
	if giver == asks {
		return journaled
	}
	peer, err := side(ctx, giver)
	if err != nil {
		return journaled
	}
	told, err := peer.AttemptFate(ctx, ref)
	if err != nil || told.Fate == migration.FateUnknown {
		journaled.Epoch, journaled.Holder = told.Epoch, told.Holder
		return journaled
	}
	return told
}

// YieldToken implements migration.Side.
func (s sideService) YieldToken(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	return s.a.host.YieldToken(ctx, ref, epoch, to)
}

type settleService struct{ a *Agent }

// Settle implements api.Settler: the conductor's where this agent conducts the move, else
// this host's as one of the two whose conductor is gone, else that of the arrival which
// waits here.
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
	took, err := s.a.host.SettleApart(ctx, id, w)
	if errors.Is(err, fault.NotFound) {
		took, err = s.a.host.SettleArrival(ctx, id, w)
	}
	out.Instance = took.Instance
	return out, err
}
