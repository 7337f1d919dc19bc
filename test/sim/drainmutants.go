package sim

import (
	"context"
	"encoding/json"
	"strings"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/drain"
	"berth/migration/task"
)

// drainMutants are the breakages of drains. They are looked for in stories alone in which a host
// is emptied.
func drainMutants() []Mutant {
	type parts func(a *agent, h drain.Host, s task.Store, l drain.Limits) (drain.Host, task.Store, drain.Limits)
	one := func(name, what string, f parts) Mutant { return Mutant{Name: name, What: what, Drain: f} }
	return []Mutant{
		one("drain-begun-twice", "a restarted drain begins a move again that it had named",
			func(a *agent, h drain.Host, s task.Store, l drain.Limits) (drain.Host, task.Store, drain.Limits) {
				return &forgetful{h, map[string]string{}}, s, l
			}),
		one("drain-unbounded", "a drain holds no limit",
			func(_ *agent, h drain.Host, s task.Store, l drain.Limits) (drain.Host, task.Store, drain.Limits) {
				l.Outbound += 4
				return h, s, l
			}),
		one("drain-order-forgotten", "a restarted drain does not know who has failed before",
			func(_ *agent, h drain.Host, s task.Store, l drain.Limits) (drain.Host, task.Store, drain.Limits) {
				return h, orderless{s}, l
			}),
		one("drain-left-open", "a drain does not close its host",
			func(_ *agent, h drain.Host, s task.Store, l drain.Limits) (drain.Host, task.Store, drain.Limits) {
				return open{h}, s, l
			}),
		{Name: "inbound-unbounded", What: "a destination takes any number of guests of a drain at once", Drains: true},
	}
}

// forgetful takes a move that an earlier life began for none, and begins one with another uuid.
type forgetful struct {
	drain.Host
	begun map[string]string // by the uuid that the drain has named: the one that was begun
}

func (f *forgetful) Get(ctx context.Context, id string) (migration.Migration, error) {
	real, own := f.begun[id]
	if !own {
		return migration.Migration{}, fault.New(fault.NotFound, "no migration %s", id)
	}
	return f.Host.Get(ctx, real)
}

func (f *forgetful) Begin(ctx context.Context, m drain.Move) (migration.Migration, error) {
	real := m.Migration
	if _, err := f.Host.Get(ctx, real); err == nil {
		m.Migration = "99" + real[2:]
	}
	f.begun[real] = m.Migration
	return f.Host.Begin(ctx, m)
}

func (f *forgetful) Watch(ctx context.Context, id string) (<-chan migration.Migration, error) {
	return f.Host.Watch(ctx, f.begun[id])
}

// orderless does not keep the order of failures.
type orderless struct{ task.Store }

func (s orderless) Put(ctx context.Context, bucket, key string, value []byte) error {
	var g map[string]json.RawMessage
	if strings.Contains(key, "/") && json.Unmarshal(value, &g) == nil {
		delete(g, "turn")
		if without, err := json.Marshal(g); err == nil {
			value = without
		}
	}
	return s.Store.Put(ctx, bucket, key, value)
}

type open struct{ drain.Host }

func (open) Close(context.Context, drain.Drain) error { return nil }
