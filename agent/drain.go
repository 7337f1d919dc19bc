package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/drain"
)

func (a *Agent) newDrainer() *drain.Drainer {
	return drain.New(drain.Config{
		Runtime: a.rt, Store: a.db, Host: drained{a}, Local: a.name, Limits: a.drainLimits, Samples: a.movesTook, Logger: a.log,
	})
}

// drainLimits are as they are set now.
func (a *Agent) drainLimits() drain.Limits {
	c := a.config()
	return drain.Limits{Outbound: c.Migration.MaxOutbound, Attempts: c.Drain.Attempts}
}

// maxOutbound and maxPerLink bound the live migrations of this host, as they are set now.
func (a *Agent) maxOutbound() int { return a.config().Migration.MaxOutbound }
func (a *Agent) maxPerLink() int  { return a.config().Migration.MaxPerLink }

// maxInbound is as it is set now.
func (a *Agent) maxInbound() int { return a.config().Migration.MaxInbound }

// movesTook are the moves that this host conducted and that are on record still.
func (a *Agent) movesTook() []drain.Sample {
	list, err := a.conductor.List(context.Background())
	if err != nil {
		return nil // an estimate more that is not known
	}
	var out []drain.Sample
	for _, m := range list {
		took := m.UpdatedAt.Sub(m.CreatedAt) - m.Waited
		if m.Outcome == migration.OutcomeCompleted && m.MigrationType == migration.TypeLiveMigration && took > 0 {
			out = append(out, drain.Sample{SizeMB: int64(m.Progress.MemoryTotal >> 20), Took: took})
		}
	}
	return out
}

// runDrains goes on with drains once the conductor knows its moves.
func (a *Agent) runDrains(ctx context.Context) error {
	for ctx.Err() == nil && !a.conductor.Running() {
		_ = a.rt.Sleep(ctx, 10*time.Millisecond) // its end is looked at in the loop
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := a.drainer.Run(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

type drainService struct{ a *Agent }

func (s drainService) request(r api.DrainRequest, by string) drain.Request {
	kind := drain.KindDrain
	if r.Evacuate {
		kind = drain.KindEvacuate
	}
	return drain.Request{
		UUID: r.UUID, Host: cmp.Or(r.Host, s.a.name), Kind: kind, By: by, To: r.To, Cold: r.Cold, Priorities: r.Priorities,
		Stopped: r.Stopped, AcceptLoss: r.AcceptLoss, Image: r.Image,
	}
}

// Plan implements api.Drains.
func (s drainService) Plan(ctx context.Context, r api.DrainRequest) (api.DrainPlan, error) {
	p, err := s.a.drainer.Plan(ctx, s.request(r, ""))
	if err != nil {
		return api.DrainPlan{}, err
	}
	out := api.DrainPlan{
		Host: p.Host, Evacuate: r.Evacuate, Guests: []api.PlannedGuest{}, MaxOutbound: p.Limits.Outbound, MaxInbound: s.a.config().Migration.MaxInbound,
		Estimate: p.Estimate,
	}
	if !r.Evacuate {
		out.Disabled = s.a.disabled.Load()
	}
	for _, g := range p.Guests {
		out.Guests = append(out.Guests, api.PlannedGuest{
			Instance: g.Instance, Name: g.Name, State: g.Power, How: howOf(g), To: g.To, Priority: g.Priority, Blockers: reasonList(g.Reasons), Lost: g.Lost,
		})
	}
	return out, nil
}

// howOf is how a guest leaves, in the API's words.
func howOf(g drain.Guest) api.DrainHow {
	if g.State == drain.Stays {
		return api.DrainStays
	}
	return api.DrainHow(g.How)
}

func reasonList(list []fault.Reason) []fault.Reason { return append([]fault.Reason{}, list...) }

// Begin implements api.Drains.
func (s drainService) Begin(ctx context.Context, r api.DrainRequest, by string) (api.Drain, error) {
	ask := s.request(r, by)
	if s.a.observing() {
		return api.Drain{}, fault.Refuse(fault.Forbidden, string(ask.Kind)+" host "+ask.Host, observes(s.a.name))
	}
	if ask.Kind == drain.KindEvacuate {
		// Without the records nothing is known of a dead host's guests, and without a proof none
		// is taken; both are said before anything is written.
		if _, _, err := s.a.deaths.Prove(ctx, ask.Host, by); err != nil {
			return api.Drain{}, fault.Wrap(err, "evacuate host %s", ask.Host)
		}
	}
	d, err := s.a.drainer.Begin(ctx, ask)
	return drainView(d), err
}

// Get implements api.Drains.
func (s drainService) Get(ctx context.Context, host string) (api.Drain, error) {
	d, err := s.a.drainer.Get(ctx, host)
	return drainView(d), err
}

// Abort implements api.Drains.
func (s drainService) Abort(ctx context.Context, host, by string) (api.Drain, error) {
	d, err := s.a.drainer.Abort(ctx, host, by)
	return drainView(d), err
}

// List implements api.Drains.
func (s drainService) List(ctx context.Context) ([]api.Drain, error) {
	out := []api.Drain{}
	for _, d := range s.a.drainer.List(ctx) {
		out = append(out, drainView(d))
	}
	return out, nil
}

// Watch implements api.Drains.
func (s drainService) Watch(ctx context.Context, host string) (<-chan api.Drain, error) {
	in, err := s.a.drainer.Watch(ctx, host)
	if err != nil {
		return nil, err
	}
	out := make(chan api.Drain, 1)
	s.a.rt.Go("watch of a drain", func() {
		defer close(out)
		for {
			d, open, err := runtime.Receive(ctx, s.a.rt, in)
			if !open || err != nil {
				return
			}
			select {
			case out <- drainView(d):
			case <-ctx.Done():
				return
			}
		}
	})
	return out, nil
}

// drainView is a drain in the API's words.
func drainView(d drain.Drain) api.Drain {
	out := api.Drain{
		UUID: d.UUID, Host: d.Host, Evacuate: d.Kind == drain.KindEvacuate, State: api.DrainState(d.State), By: d.By,
		BegunAt: d.BegunAt, EndedAt: d.EndedAt, Guests: []api.DrainedGuest{}, Left: d.Left,
	}
	for _, g := range d.Guests {
		out.Guests = append(out.Guests, api.DrainedGuest{
			Instance: g.Instance, Name: g.Name, How: howOf(g), State: api.DrainedState(g.State), To: g.To, Migration: g.Migration, Attempts: g.Attempts,
			BegunAt: g.BegunAt, EndedAt: g.EndedAt, Reasons: slices.Clone(reasonList(g.Reasons)),
		})
	}
	return out
}
