package sim

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"berth/agent/host"
	"berth/fleet"
)

// lostStoreMutants are the breakages of hosts whose store has lost records. They are looked for
// in the stories alone in which it does.
func lostStoreMutants() []Mutant {
	store := func(f func(wire) fleet.Store) func(*agent, wire) fleet.Store {
		return func(_ *agent, s wire) fleet.Store { return f(s) }
	}
	return []Mutant{
		{Name: "restored-store-believed", Among: lostStoreStories, What: "a store that lost its records is believed before all hosts have written again",
			Store: store(func(s wire) fleet.Store { return believed{s} })},
		{Name: "incarnation-ignored", Among: lostStoreStories, What: "the store is taken for the one that it was, whatever it says of itself",
			Store: store(func(s wire) fleet.Store { return sameStore{s} })},
		{Name: "older-decision-counts", Among: lostStoreStories, What: "an operator's decision whose an instance is counts against a later evacuation",
			Store: store(func(s wire) fleet.Store { return olderDecision{s} })},
	}
}

// believed reads of all other hosts that they have written again.
type believed struct{ wire }

func (s believed) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	all, err := s.wire.List(ctx, prefix)
	m, told := s.wire.Moment(ctx)
	if prefix != "hosts/" || told != nil {
		return all, err
	}
	for i, rec := range all {
		var h fleet.Host
		if json.Unmarshal(rec.Value, &h) == nil && h.Name != s.a.m.name {
			h.Incarnation = m.Incarnation
			all[i].Value, _ = json.Marshal(h)
		}
	}
	return all, err
}

// sameStore is told of one incarnation alone, which never goes back.
type sameStore struct{ wire }

func (s sameStore) Moment(ctx context.Context) (fleet.Moment, error) {
	_, err := s.wire.Moment(ctx)
	return fleet.Moment{Incarnation: "the one", Revision: 1}, err
}

// olderDecision does not read of an evacuation against which an operator has decided, and takes the
// record of its new host for an older one.
type olderDecision struct{ wire }

func (s olderDecision) Get(ctx context.Context, key string) (fleet.Record, error) {
	rec, err := s.wire.Get(ctx, key)
	var in fleet.Instance
	if strings.HasPrefix(key, fleet.InstancesPrefix) && err == nil && s.a.host != nil && json.Unmarshal(rec.Value, &in) == nil && host.Kept(s.a.host, in.UUID, in.Host, in.Epoch) {
		in.Epoch = 0
		rec.Value, err = json.Marshal(in)
	}
	return rec, err
}

func (s olderDecision) List(ctx context.Context, prefix string) ([]fleet.Record, error) {
	all, err := s.wire.List(ctx, prefix)
	if !strings.HasPrefix(prefix, "evacuated/") {
		return all, err
	}
	return slices.DeleteFunc(all, func(rec fleet.Record) bool {
		var e fleet.Evacuated
		return json.Unmarshal(rec.Value, &e) == nil && host.Kept(s.a.host, e.Instance, e.To, e.Epoch)
	}), err
}
