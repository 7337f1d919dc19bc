package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
	"berth/migration/task"
)

// DrainPlan is a host that somebody wants emptied.
type DrainPlan struct {
	Host       string
	At         time.Duration
	AbortAfter time.Duration // from the start of the run; 0 for never
	To         []string
	Priorities map[string]int // by the guest's name
	Outbound   int            // moves at once
	Closed     bool           // somebody has closed the host before
	Want       drain.State    // how it ends where nothing is broken; empty for any
}

// emptied is one.
type emptied struct {
	DrainPlan
	uuid     string
	asked    int
	accepted bool
	last     drain.Drain
}

// The record that a host takes no new guests, and who says so.
const (
	doorBucket = "door"
	doorKey    = "host"
	byOperator = "operator"
)

const drainBucket = "drains"

// empties is the operator: he asks for a drain, again while nobody answers, and gives it up
// where the plan says so.
func (w *world) empties(d *emptied) {
	ctx, m := context.Background(), w.machines[d.Host]
	_ = w.outside.Sleep(ctx, d.At)
	ask := func(what string, f func(context.Context, *agent) error) error {
		a := m.agent
		if a == nil || a.dead() || !a.ready {
			return fault.New(fault.Unavailable, "nobody is there")
		}
		var err error
		x := peer{a: a, m: m}.send(ctx, what, func(ctx context.Context, b *agent) { err = f(ctx, b) })
		_ = runtime.Await(ctx, w.outside, x.done) // ctx never ends
		return cmp.Or(x.err, err)
	}
	for ; !d.accepted && d.asked < 60; d.asked++ {
		err := ask("Drain", func(ctx context.Context, b *agent) error {
			_, err := b.drainer.Begin(ctx, drain.Request{UUID: d.uuid, Kind: drain.KindDrain, By: byOperator, To: d.To, Priorities: d.Priorities})
			return err
		})
		if d.accepted = err == nil; d.accepted {
			w.note("operator", "drain accepted", d.uuid)
			break
		}
		w.note("operator", "drain not accepted:", err.Error())
		_ = w.outside.Sleep(ctx, 2*time.Second)
	}
	if !d.accepted {
		_, d.accepted = w.records(m, drainBucket)[d.uuid] // one answer may have been lost all the same
		d.asked = givenUp
	}
	if d.AbortAfter == 0 {
		return
	}
	_ = w.outside.Sleep(ctx, d.AbortAfter-w.sim.Elapsed())
	for d.accepted && !w.drainOver(d) {
		err := ask("AbortDrain", func(ctx context.Context, b *agent) error {
			_, err := b.drainer.Abort(ctx, "", byOperator)
			return err
		})
		if err == nil || errors.Is(err, fault.Forbidden) {
			return
		}
		_ = w.outside.Sleep(ctx, time.Second)
	}
}

// drainOver says whether a drain has ended.
func (w *world) drainOver(d *emptied) bool {
	if !d.accepted {
		return d.asked >= givenUp
	}
	a := w.machines[d.Host].agent
	if a == nil || a.dead() || !a.ready {
		return false
	}
	view, err := a.drainer.Get(context.Background(), "")
	if err == nil {
		d.last = view
	}
	return err == nil && view.State.Over()
}

// drainOf is a host's; nil for none.
func (w *world) drainOf(host string) *emptied {
	for _, d := range w.drains {
		if d.Host == host {
			return d
		}
	}
	return nil
}

// newDrainer is agent's own; nil in a story without drains.
func (a *agent) newDrainer(s ledger) *drain.Drainer {
	w := a.w
	if len(w.drains) == 0 {
		return nil
	}
	var h drain.Host = queued{a}
	var records task.Store = s
	limits := drain.Limits{Outbound: 2, Attempts: 3}
	if d := w.drainOf(a.m.name); d != nil {
		limits.Outbound = d.Outbound
	}
	if m := w.mutant; m != nil && m.Drain != nil {
		h, records, limits = m.Drain(a, h, records, limits)
	}
	return drain.New(drain.Config{
		Runtime: a.rt, Store: records, Host: h, Local: a.m.name, Limits: func() drain.Limits { return limits }, Logger: w.log, Random: random{a.rng},
	})
}

// queued is agent's drained: the host and its conductor as a drain asks them.
type queued struct{ a *agent }

var _ drain.Host = queued{}

// Guests implements drain.Host.
func (q queued) Guests(ctx context.Context, _ drain.Request) ([]drain.Present, error) {
	list, err := q.a.host.ListHidden(ctx)
	if err != nil {
		return nil, err
	}
	var out []drain.Present
	for _, v := range list {
		p := drain.Present{Instance: v.UUID, Name: v.Name, Power: v.State, Off: v.State == "" || v.State == "shut off", SizeMB: v.Flavor.MemoryMB}
		moving, under := q.a.moving(v.UUID)
		switch here := v.Token.State == claims.TokenHere; {
		case !v.Managed:
			continue
		case v.Resize != nil:
			p.Blocked = []fault.Reason{{Code: "migration_unfinished", Have: v.Resize.Migration}}
		case under && (here || !v.Hidden):
			p.Waits = []fault.Reason{{Code: "moving", Have: moving}}
		case !here:
			continue
		case v.State == "":
			p.Blocked = []fault.Reason{{Code: "domain_missing"}}
		}
		out = append(out, p)
	}
	return out, nil
}

// Way implements drain.Host. Whether anybody takes the guest is left to its move.
func (q queued) Way(_ context.Context, _ drain.Request, p drain.Present) (drain.Way, error) {
	switch p.Power {
	case "running", "paused":
		return drain.Way{How: drain.HowLive}, nil
	case "shut off":
		return drain.Way{How: drain.HowCold}, nil
	}
	return drain.Way{}, fault.New(fault.Unavailable, "%s is %q", p.Name, p.Power)
}

// Begin implements drain.Host.
func (q queued) Begin(ctx context.Context, m drain.Move) (migration.Migration, error) {
	o := q.a.w.leavesHost(q.a, m)
	r := conductor.Request{Instance: m.Guest, Alternates: m.To, Migration: m.Migration, Queue: m.UUID, By: m.By, Type: o.kind}
	if o.cold() {
		at := time.Millisecond
		r.ConfirmWindow = &at
	}
	rec, err := q.a.conductor.Start(ctx, r)
	o.accepted = o.accepted || err == nil
	return rec, err
}

// Get implements drain.Host.
func (q queued) Get(ctx context.Context, id string) (migration.Migration, error) {
	return q.a.conductor.Get(ctx, id)
}

// Watch implements drain.Host.
func (q queued) Watch(ctx context.Context, id string) (<-chan migration.Migration, error) {
	return q.a.conductor.Watch(ctx, id)
}

// Abort implements drain.Host.
func (q queued) Abort(ctx context.Context, id string) error { return q.a.conductor.Abort(ctx, id) }

// door is by whom a host was closed; empty for nobody.
func (w *world) door(m *machine) string { return string(w.records(m, doorBucket)[doorKey]) }

// Closed implements drain.Host.
func (q queued) Closed(context.Context) (json.RawMessage, error) {
	return json.Marshal(q.a.w.door(q.a.m))
}

// Close implements drain.Host.
func (q queued) Close(ctx context.Context, of drain.Drain) error {
	if q.a.w.door(q.a.m) != "" {
		return nil
	}
	return q.a.m.mem.Put(ctx, doorBucket, doorKey, []byte(of.UUID))
}

// Open implements drain.Host.
func (q queued) Open(ctx context.Context, of drain.Drain) error {
	if q.a.w.door(q.a.m) != of.UUID {
		return nil
	}
	return q.a.m.mem.Delete(ctx, doorBucket, doorKey)
}
