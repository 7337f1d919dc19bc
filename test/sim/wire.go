package sim

import (
	"cmp"
	"context"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/operation/operationtest"
)

// reach finds a host for the conductor of this agent: its own in process, another by
// the wire.
func (a *agent) reach(name string) (migration.Host, error) {
	m := a.w.machines[name]
	if m == nil {
		return nil, fault.New(fault.NotFound, "no peer is named %s", name)
	}
	return peer{a, m}, nil
}

// peer is a host as a conductor asks it.
type peer struct {
	a *agent   // who asks
	m *machine // who is asked
}

var (
	_ migration.Host         = peer{}
	_ migration.StreamWaiter = peer{}
	_ migration.Settler      = peer{}
	_ migration.Side         = peer{}
)

// side reaches the other host of a move, without a conductor between them.
func (a *agent) side(name string) (migration.Side, error) {
	m := a.w.machines[name]
	if m == nil {
		return nil, fault.New(fault.NotFound, "no peer is named %s", name)
	}
	return peer{a, m}, nil
}

// AttemptFate implements migration.Side.
func (p peer) AttemptFate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	return verb(ctx, p, ofQuestion, "AttemptFate", func(ctx context.Context, b *agent) (migration.AttemptFate, error) {
		return b.fate(ctx, ref)
	})
}

// YieldToken implements migration.Side.
func (p peer) YieldToken(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	_, err := verb(ctx, p, ofVerb, "YieldToken", func(ctx context.Context, b *agent) (struct{}, error) {
		if err := b.mayYield(p.a.m.name, ref); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, b.host.YieldToken(ctx, ref, epoch, to)
	})
	return err
}

// TakeWord implements migration.Settler, which is the local host.
func (p peer) TakeWord(ctx context.Context, ref migration.Ref, s migration.Settlement) error {
	_, err := verb(ctx, p, ofVerb, "TakeWord", func(ctx context.Context, b *agent) (struct{}, error) { return struct{}{}, b.host.TakeWord(ctx, ref, s) })
	return err
}

// WordOn implements migration.Settler.
func (p peer) WordOn(ref migration.Ref) (migration.Settlement, bool) { return p.a.host.WordOn(ref) }

// exchange is a request over the wire that somebody waits for.
type exchange struct {
	done  chan struct{}
	ended bool
	err   error // set when it ended without an answer
}

func (x *exchange) end(err error) {
	if !x.ended {
		x.ended, x.err = true, err
		close(x.done)
	}
}

func unreachable(why string) error { return fault.New(fault.Unavailable, "%s", why) }

// latency is how long a message between two agents takes.
const latency = time.Millisecond

// verb asks one verb.
func verb[T any](ctx context.Context, p peer, k kind, name string, f func(context.Context, *agent) (T, error)) (T, error) {
	var zero T
	a, w := p.a, p.a.w
	what := name + " on " + p.m.name
	how := w.before(a, k, what)
	then, instead := w.spoilVerb(a, name)
	if instead != nil {
		return zero, instead
	}
	if p.m == a.m {
		// In process: no message, but the agent may die around it.
		v, err := f(ctx, a)
		if then != nil {
			err = cmp.Or(err, then())
		}
		w.after(a, k, what)
		return v, err
	}
	if err := a.rt.Sleep(ctx, latency); err != nil {
		return zero, fault.New(fault.Unavailable, "%s: %w", what, err)
	}
	if w.strangers(a.m, p.m) {
		return zero, w.meets(a, p.m, what)
	}
	if w.cut(a.m, p.m) {
		return zero, p.lost(ctx, what)
	}
	switch how {
	case requestLate, requestLost:
		if how == requestLate {
			again(p, what, f)
		}
		return zero, p.lost(ctx, what)
	case twice:
		again(p, what, f)
	}
	if p.m.off || p.m.agent == nil || p.m.agent.dead() {
		return zero, unreachable(what + ": connection refused")
	}
	var v T
	var err error
	x := p.send(ctx, what, func(ctx context.Context, b *agent) { v, err = f(ctx, b) })
	if werr := runtime.Await(ctx, a.rt, x.done); werr != nil {
		return zero, fault.New(fault.InDoubt, "%s: no answer: %w", what, werr)
	}
	if x.err != nil {
		err = fault.New(fault.InDoubt, "%s: %w", what, x.err)
	}
	if then != nil {
		err = cmp.Or(err, then())
	}
	if serr := a.rt.Sleep(ctx, latency); serr != nil {
		return zero, fault.New(fault.InDoubt, "%s: no answer: %w", what, serr)
	}
	w.after(a, k, what)
	if how == answerLost || w.cut(a.m, p.m) {
		return zero, p.lost(ctx, what)
	}
	return v, err
}

// lost is what a caller hears of a message that was lost: nothing, until he gives up
// or his connection breaks.
func (p peer) lost(ctx context.Context, what string) error {
	wait := silence
	if p.a.w.chaos != nil && p.a.w.chaos.rng.IntN(2) == 0 {
		wait = time.Hour // until ctx ends
	}
	_ = p.a.rt.Sleep(ctx, wait)
	return fault.New(fault.InDoubt, "%s: no answer", what)
}

// send has the other agent serve a request; it is over when it was served, when its
// agent dies, or when nobody waits any more: then its context ends, as an HTTP
// server's does.
func (p peer) send(ctx context.Context, what string, serve func(context.Context, *agent)) *exchange {
	b := p.m.agent
	x := &exchange{done: make(chan struct{})}
	b.served = append(b.served, x)
	b.process.Go(what, func() {
		// Every request waits until the start is over.
		if err := runtime.Await(ctx, b.rt, b.begun); err == nil {
			serve(ctx, b)
		}
		for i, o := range b.served {
			if o == x {
				b.served = append(b.served[:i], b.served[i+1:]...)
				break
			}
		}
		x.end(nil)
	})
	return x
}

// again delivers a message late, or once more, to whoever is there by then.
func again[T any](p peer, what string, f func(context.Context, *agent) (T, error)) {
	w := p.a.w
	w.later(time.Duration(w.rng.Int64N(int64(latest))), "late "+what, func() {
		if b := p.m.agent; b == nil || b.dead() || p.m.off {
			return
		}
		ctx, cancel := w.outside.WithTimeout(context.Background(), 30*time.Second)
		x := p.send(ctx, "late "+what, func(ctx context.Context, b *agent) { _, _ = f(ctx, b) })
		_ = runtime.Await(ctx, w.outside, x.done) // whoever sent it has gone
		cancel()
	})
}

// latest is how late a message comes at most.
const latest = 40 * time.Second

func get[T any](ctx context.Context, p peer, k kind, name string, f func(context.Context, migration.Host) (T, error)) (T, error) {
	return verb(ctx, p, k, name, func(ctx context.Context, b *agent) (T, error) { return f(ctx, b.verbs()) })
}

// Ask implements migration.Host.
func (p peer) Ask(ctx context.Context, ref migration.Ref, op *migration.Operation, in any) (any, error) {
	w, k := p.a.w, ofVerb
	if op.ReadOnly || op.Name == operation.ShippedSoFar.Name {
		k = ofQuestion
	}
	switch op.Name {
	case operation.PowerOff.Name:
		w.mayStop(p.m, ref)
		w.leaves(p.a, ref)
	case operation.FinishRevert.Name:
		w.comesBack(ref)
	case operation.ApplyChange.Name:
		w.changes(ref)
	case operation.UnapplyChange.Name:
		w.mayStop(p.m, ref)
		w.comesBack(ref)
	case operation.AcceptToken.Name:
		w.sourceHolds(ref, "before the token is accepted")
		w.bothCounted(ref, p.m, "before the token is accepted")
	case operation.FinishDestination.Name:
		w.sourceHolds(ref, "before the destination is bound")
	case operation.AcceptHanded.Name:
		w.giverKeeps(ref, in.(migration.Commit), "before the token is accepted")
	}
	return verb(ctx, p, k, operationtest.Method(op), func(ctx context.Context, b *agent) (any, error) {
		if err := b.mayAskFor(p.a.m.name, op, ref, in); err != nil {
			return nil, err
		}
		if g := w.guestOf(ref.Instance); g != nil && op.Name == operation.UnapplyChange.Name {
			g.unapplied = b
			defer func() { g.unapplied = nil }()
		}
		out, err := b.verbs().Ask(ctx, ref, op, in)
		if what, undoes := undoOf[op.Name]; undoes {
			err = w.undone(p.m, ref, what, err)
		}
		if answer, is := out.(migration.ClaimAnswer); is && err == nil {
			w.claimAnswered(b, ref, answer)
		}
		for _, v := range []any{in, out} {
			if c, is := v.(migration.Commit); is && err == nil {
				w.tokenAnswered(p.m, c)
			}
		}
		return out, err
	})
}

// undoOf says what is gone for good once an undo has answered.
var undoOf = map[string]string{
	operation.RollbackPrepEvacuation.Name:   "prepared_evacuation",
	operation.RollbackPrepResize.Name:       "prepared",
	operation.RollbackPrepChange.Name:       "prepared",
	operation.RemoveCopy.Name:               "copy",
	operation.AbortClaim.Name:               "claim",
	operation.RollbackPreLiveMigration.Name: "prepared",
}

func (p peer) Describe(ctx context.Context) (migration.Description, error) {
	return get(ctx, p, ofQuestion, "Describe", func(ctx context.Context, h migration.Host) (migration.Description, error) { return h.Describe(ctx) })
}

// AwaitStream is asked of the local host only.
func (p peer) AwaitStream(ctx context.Context, ref migration.Ref, d time.Duration) error {
	return p.a.host.AwaitStream(ctx, ref, d)
}
