package sim

import (
	"context"
	"errors"
	"strings"

	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/operation"
)

// evacuationMutants are the breakages of evacuations and of the return of their sources. They
// are looked for in stories alone in which hosts die.
func evacuationMutants() []Mutant {
	records := func(f func(conductor.Fleet) conductor.Fleet) func(*agent, conductor.Fleet) conductor.Fleet {
		return func(_ *agent, old conductor.Fleet) conductor.Fleet { return f(old) }
	}
	store := func(f func(wire) fleet.Store) func(*agent, wire) fleet.Store {
		return func(_ *agent, s wire) fleet.Store { return f(s) }
	}
	return []Mutant{
		{Name: "late-take-over", Dies: true, NoPermit: true, Rare: true, What: "a take-over holds though its source has come back, and nobody gave it up",
			Fleet: records(func(f conductor.Fleet) conductor.Fleet { return noGiveUp{f} }),
			Store: store(func(s wire) fleet.Store { return without{s, "instances/", "deaths/"} })},
		{Name: "start-before-confirmation", Dies: true, Unasked: true, What: "a host that boots starts its guests before it has asked the records"},
		{Name: "record-overwritten", Dies: true, What: "a source that comes back writes its own record over a later one",
			Store: store(func(s wire) fleet.Store { return overwrites{s} })},
		{Name: "half-not-given-up", Dies: true, HalfStays: true, What: "a source that comes back cleans up, and the migration's half stays in Placement"},
		{Name: "give-up-forgotten", Dies: true, Rare: true, What: "an evacuation is undone while a take-over of it may still hold",
			Fleet: records(func(f conductor.Fleet) conductor.Fleet { return noGiveUp{f} })},
		{Name: "death-not-checked", Dies: true, NoPermit: true, What: "a guest is evacuated though its host is not known to be dead", Living: true,
			Fleet: records(func(f conductor.Fleet) conductor.Fleet { return bold{f} }),
			Store: store(func(s wire) fleet.Store { return dead{s} })},
		{Name: "fed-past-the-lease", Dies: true, Rare: true, FedAlways: true, What: "a watchdog is fed while the lease may be over"},
		{Name: "accepted-unread", Dies: true, What: "a destination starts a guest before the records have given it",
			Verbs: startsUnread},
		{Name: "prepared-left", Dies: true, Rare: true, What: "the undo of prep_evacuation does nothing",
			Verbs: noRollbackEvacuation},
	}
}

// without drops the conditions on some records from commits that write others.
type without struct {
	wire
	writes, condition string
}

func (s without) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	if !strings.HasPrefix(changes[0].Key, s.writes) {
		return s.wire.Commit(ctx, when, changes...)
	}
	var rest []fleet.Condition
	for _, c := range when {
		if !strings.HasPrefix(c.Key, s.condition) {
			rest = append(rest, c)
		}
	}
	return s.wire.Commit(ctx, rest, changes...)
}

// overwrites reads a guest's record of another host as if there were none, nor anything that was
// evacuated.
type overwrites struct{ wire }

func (s overwrites) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	if strings.HasPrefix(prefix, "evacuated/") {
		return nil, nil
	}
	return s.wire.List(ctx, prefix)
}

func (s overwrites) Get(ctx context.Context, key string) (fleet.Record, error) {
	r, err := s.wire.Get(ctx, key)
	if uuid, of := strings.CutPrefix(key, "instances/"); of && err == nil && s.a.conductor != nil {
		if rec := s.a.w.inRecords(uuid); rec != nil && rec.Host != s.a.m.name && s.a.w.tokens[uuid][s.a.m.name].Epoch > 0 && s.a.w.tokens[uuid][s.a.m.name].Epoch < rec.Epoch {
			return fleet.Record{}, fault.New(fault.NotFound, "get %s", key)
		}
	}
	return r, err
}

func (s overwrites) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	for i, c := range when {
		if strings.HasPrefix(c.Key, "instances/") && c.Revision == 0 {
			if r, err := s.wire.Get(ctx, c.Key); err == nil {
				when[i].Revision = r.Revision
			}
		}
	}
	return s.wire.Commit(ctx, when, changes...)
}

type noGiveUp struct{ conductor.Fleet }

func (noGiveUp) GiveUp(context.Context, migration.Ref, migration.LostGuest) error { return nil }

// TakeOver gives up soon, as a step does that is not asked again.
func (f noGiveUp) TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error) {
	c, err := f.Fleet.TakeOver(ctx, ref, g, to)
	if k := fault.KindOf(err); err != nil && (k == fault.InDoubt || k == fault.Unavailable) {
		err = fault.New(fault.Internal, "take over: %w", errors.New("no answer"))
	}
	return c, err
}

// bold takes every host for dead.
type bold struct{ conductor.Fleet }

func (f bold) Lost(ctx context.Context, instance string) (migration.LostGuest, error) {
	g, err := f.Fleet.Lost(ctx, instance)
	if err == nil && g.Death == 0 {
		g.Death = 1
	}
	return g, err
}

// dead reads a death of a host that has none, and does not look at it in a commit.
type dead struct{ wire }

func (s dead) Get(ctx context.Context, key string) (fleet.Record, error) {
	r, err := s.wire.Get(ctx, key)
	if key == "deaths/a" && s.a.m.name != "a" && fault.KindOf(err) == fault.NotFound {
		return fleet.Record{Key: key, Value: []byte(`{"host":"a","proof":"fenced"}`), Revision: 1}, nil
	}
	return r, err
}

func (s dead) Commit(ctx context.Context, when []fleet.Condition, changes ...fleet.Change) error {
	return without{s.wire, "instances/", "deaths/"}.Commit(ctx, when, changes...)
}

// startsUnread starts an instance as soon as it is prepared.
func startsUnread(a *agent, h migration.Host) migration.Host {
	prep := operation.PrepEvacuation
	return operation.Without{Host: h, Instead: operation.Handle(prep.By(func(ctx context.Context, ref migration.Ref, r migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
		out, err := prep.Ask(ctx, h, ref, r)
		if err == nil {
			l := libvirt{a.w.fleet.Host(a.m.name), a}
			_ = l.Define(ctx, a.w.guestOf(ref.Instance).document())
			_ = l.Start(ctx, ref.Instance, false)
		}
		return out, err
	}))}
}

// noRollbackEvacuation leaves what was prepared.
func noRollbackEvacuation(_ *agent, h migration.Host) migration.Host {
	return operation.Without{Host: h, Instead: operation.Handle(operation.RollbackPrepEvacuation.By(func(context.Context, migration.Ref) error { return nil }))}
}
