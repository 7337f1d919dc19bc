package sim

import (
	"context"

	agents "berth/agent"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/fault"
)

// wire is the way of one life of an agent to the fleet's records. Each commit is a point, before
// it reaches the store and before anybody hears of it.
type wire struct {
	a     *agent
	store *fleettest.Client
}

var (
	_ fleet.Store  = wire{}
	_ fleet.Leases = wire{}

	_ fleet.Incarnations = wire{}
	_ fleet.History      = wire{}
)

// keepRecords makes the keeper of this host's records, with a new way to the store; none in a story
// without.
func (a *agent) keepRecords(notes ledger) {
	if a.w.store == nil {
		return
	}
	var s fleet.Store = wire{a, a.w.store.Client(a.m.name)}
	if m := a.w.mutant; m != nil && m.Store != nil {
		s = m.Store(a, s.(wire))
	}
	a.keeper = agents.NewKeeper(agents.KeeperParts{
		Name: a.m.name, Provider: a.m.provider, Runtime: a.rt, Logger: a.w.log, Tracker: a.tracker, Notes: notes, Driver: a.driver,
		Placement: a.client, Tree: a.standing, Store: s, Embedded: a.m.embedded, Settled: func() bool { return a.settled },
	})
	a.records = a.keeper.Records()
}

// look is a call that changes nothing that others go by.
func (s wire) look(ctx context.Context, what string, f func() error) error {
	w := s.a.w
	how := w.before(s.a, ofQuestion, "records "+what)
	if err := s.a.rt.Sleep(ctx, latency); err != nil {
		return fault.New(fault.Unavailable, "%s: %w", what, err)
	}
	if s.a.m.alone || how != goesWell {
		_ = s.a.rt.Sleep(ctx, silence)
		return fault.New(fault.Unavailable, "%s: the store does not answer", what)
	}
	err := f()
	w.after(s.a, ofQuestion, "records "+what)
	if s.a.m.alone {
		return fault.New(fault.Unavailable, "%s: the store does not answer", what)
	}
	return err
}

// Get implements fleet.Store.
func (s wire) Get(ctx context.Context, key string) (out fleet.Record, err error) {
	err = s.look(ctx, "get "+key, func() (err error) { out, err = s.store.Get(ctx, key); return err })
	return out, err
}

// List implements fleet.Store.
func (s wire) List(ctx context.Context, prefix string) (out []fleet.Record, err error) {
	err = s.look(ctx, "list "+prefix, func() (err error) { out, err = s.store.List(ctx, prefix); return err })
	return out, err
}

// Moment implements fleet.Incarnations.
func (s wire) Moment(ctx context.Context) (out fleet.Moment, err error) {
	err = s.look(ctx, "moment", func() (err error) { out, err = s.store.Moment(ctx); return err })
	return out, err
}

// Has implements fleet.History.
func (s wire) Has(ctx context.Context, told fleet.Moment) (has bool, err error) {
	err = s.look(ctx, "has", func() (err error) { has, err = s.store.Has(ctx, told); return err })
	return has, err
}

// Renew implements fleet.Incarnations.
func (s wire) Renew(ctx context.Context, was string) error {
	return s.look(ctx, "renew", func() error { return s.store.Renew(ctx, was) })
}

// Lease implements fleet.Leases.
func (s wire) Lease(ctx context.Context, key string, value []byte, length fleet.Seconds) error {
	return s.look(ctx, "lease "+key, func() error { return s.store.Lease(ctx, key, value, length) })
}

// Release implements fleet.Leases.
func (s wire) Release(ctx context.Context, key string) error {
	return s.look(ctx, "release "+key, func() error { return s.store.Release(ctx, key) })
}

// NoQuorum implements fleet.Leases.
func (s wire) NoQuorum(ctx context.Context) (refused bool, err error) {
	err = s.look(ctx, "no quorum", func() (err error) { refused, err = s.store.NoQuorum(ctx); return err })
	return refused, err
}

// Commit implements fleet.Store.
func (s wire) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	a, w := s.a, s.a.w
	what := "records"
	for _, c := range changes {
		verb := " put "
		if c.Value == nil {
			verb = " delete "
		}
		what += verb + c.Key
	}
	how := w.before(a, ofRecords, what)
	lost := func() error {
		_ = a.rt.Sleep(ctx, silence)
		return fault.New(fault.InDoubt, "%s: no answer", what)
	}
	if err := a.rt.Sleep(ctx, latency); err != nil {
		return fault.New(fault.Unavailable, "%s: %w", what, err)
	}
	run := w.storeRuns
	send := func() error {
		if w.storeRuns != run {
			return fault.New(fault.Unavailable, "%s: the connection was closed by the store", what)
		}
		if err := w.permitted(a.m.name, changes); err != nil {
			return err
		}
		err := s.store.Commit(context.WithoutCancel(ctx), when, changes...)
		if err == nil {
			w.note(a.m.name, "committed", what)
			w.recorded()
		}
		return err
	}
	switch {
	case a.m.alone, how == refused:
		_ = a.rt.Sleep(ctx, silence)
		return fault.New(fault.Unavailable, "%s: the store does not answer", what)
	case how == requestLost:
		return lost()
	case how == requestLate, how == twice:
		w.late(what, func() { _ = send() }) // nobody is there to hear it
		if how == requestLate {
			return lost()
		}
	}
	err := send()
	w.after(a, ofRecords, what)
	if how == answerLost || a.m.alone {
		return lost()
	}
	return err
}

// storeAway takes the whole store from everybody for a while.
func (w *world) storeAway() func() {
	w.fault("records", "away")
	w.store.SetDown(true)
	return func() { w.store.SetDown(false) }
}
