package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/api"
	"berth/agent/guard"
	"berth/agent/host"
	"berth/agent/recovery"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/placementclient"
)

const (
	// rebuildPatience is how long hosts that do not answer keep a rebuilt ledger from
	// being used; arbitrary, above the restart of an agent.
	rebuildPatience = 30 * time.Second
	// knownPatience bounds the question to one host: each round asks them all anew.
	knownPatience = 3 * time.Second
	// doubtEvery is how often silent hosts are asked again while guests are in doubt.
	doubtEvery = 10 * time.Second
)

// round asks everybody once, and puts back what can be decided. It gives nil once
// the ledger is known: all have answered, or those that have not were waited for.
func (l *ledger) round(ctx context.Context) error {
	if l.closed != nil {
		return l.closed
	}
	if l.state() == nil {
		return nil
	}
	t, err := l.ask(ctx)
	if err != nil {
		return err
	}
	if ended, err := l.endLostJobs(ctx, t); err != nil {
		return err
	} else if ended { // what is here now is another thing than what was asked about
		if t, err = l.ask(ctx); err != nil {
			return err
		}
	}
	now := l.a.rt.Boot().Since
	l.mu.Lock()
	l.silent = t.Silent
	if l.since == 0 {
		l.since = max(now, 1)
	}
	waited := now-l.since >= rebuildPatience
	record := *l.record
	l.mu.Unlock()
	if err := l.putBack(ctx, t, record.Behind, len(t.Silent) == 0 || waited); err != nil {
		return err
	}
	if len(t.Silent) > 0 && !waited {
		l.a.hardware.apply() // who is refused hears who is waited for
		return l.state()
	}
	for _, s := range t.Here {
		if s.Domain != claims.DomainRunning {
			continue
		}
		// Something runs, so this boot has had its autostart.
		if err := l.a.host.AutostartDone(ctx); err != nil {
			return err
		}
		break
	}
	return l.end(ctx, record)
}

// endLostJobs ends the streams of moves from here that other hosts wait for and that
// nobody conducts any more: a guest that is still here stays.
func (l *ledger) endLostJobs(ctx context.Context, t recovery.Told) (ended bool, err error) {
	for _, k := range t.Answers {
		for _, m := range k.Moves {
			if s, here := t.Here[m.Instance]; m.Source != l.a.name || !here || !s.Streams {
				continue
			}
			if err := l.a.host.EndLostJob(ctx, migration.Ref{Migration: m.Migration, Instance: m.Instance, Attempt: m.Attempt}); err != nil {
				return false, err
			}
			ended = true
		}
	}
	return ended, nil
}

// end makes durable that the ledger may be used again.
func (l *ledger) end(ctx context.Context, record rebuildRecord) error {
	if err := l.a.tracker.SetUnreadAside(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	record.Ended, record.InDoubt = l.a.rt.Now(), len(l.doubts)
	silent := l.silent
	l.mu.Unlock()
	record.Counted = len(l.a.tracker.Instances())
	if err := l.begin(ctx, record); err != nil {
		return err
	}
	l.mu.Lock()
	l.record = &record
	l.mu.Unlock()
	l.a.log.Warn("the ledger is rebuilt", "cause", record.Cause, "saved", record.Saved, "guests", record.Counted, "in_doubt", record.InDoubt, "silent", silent)
	close(l.whole)
	l.a.hardware.apply()
	return nil
}

// ask gathers what the parties say. What libvirt does not say is an error; the others
// may be silent.
func (l *ledger) ask(ctx context.Context) (recovery.Told, error) {
	a := l.a
	surveyed, err := a.host.Survey(ctx)
	if err != nil {
		return recovery.Told{}, err
	}
	t := recovery.Told{Here: map[string]host.Surveyed{}, Owners: map[string]guard.OwnerState{}, Placed: map[string]claims.Allocated{}, Project: map[string][2]string{}}
	for _, s := range surveyed {
		t.Here[s.Instance.UUID] = s
		if o, ok, _ := a.guardian.files.Owner(s.Instance.UUID); ok {
			t.Owners[s.Instance.UUID] = o.State
		}
	}
	listing, cancel := a.rt.WithTimeout(ctx, knownPatience)
	names, err := auditPeers{a}.Hosts(listing)
	cancel()
	if err != nil {
		t.Silent = append(t.Silent, "Placement, which knows the hosts: "+err.Error())
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Add(1)
		a.rt.Go("ask "+name, func() {
			defer wg.Done()
			k, err := l.askHost(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Silent = append(t.Silent, name+": "+err.Error())
				return
			}
			t.Answers = append(t.Answers, k)
		})
	}
	wg.Wait()
	slices.Sort(t.Silent)
	slices.SortFunc(t.Answers, func(x, y api.Knowledge) int { return strings.Compare(x.Host, y.Host) })
	if err == nil {
		l.askPlacement(ctx, &t)
	}
	return t, ctx.Err()
}

func (l *ledger) askHost(ctx context.Context, name string) (api.Knowledge, error) {
	c, err := l.a.peers.client(name)
	if err != nil {
		return api.Knowledge{}, err
	}
	ctx, cancel := l.a.rt.WithTimeout(ctx, knownPatience)
	defer cancel()
	k, err := c.Known(ctx)
	if err == nil && k.Partial != "" {
		err = fault.New(fault.Unavailable, "its own ledger is not whole: %s", k.Partial)
	}
	k.Host = name
	return k, err
}

// askPlacement reads the allocations of the guests that are here.
func (l *ledger) askPlacement(ctx context.Context, t *recovery.Told) {
	a := l.a
	ctx, cancel := a.rt.WithTimeout(ctx, knownPatience)
	defer cancel()
	tree, err := a.placement.ProvidersInTree(ctx, a.uuid)
	if err != nil {
		return
	}
	mine := map[string]bool{a.uuid: true}
	for _, p := range tree {
		mine[p.UUID] = true
	}
	for id := range t.Here {
		held, err := a.placement.Allocations(ctx, id)
		if err != nil {
			continue
		}
		t.Placed[id] = allocated(held, mine)
		t.Project[id] = [2]string{held.ProjectID, held.UserID}
	}
}

// allocated says where an allocation has its guest live.
func allocated(held placementclient.Allocations, mine map[string]bool) claims.Allocated {
	out := claims.AllocatedNone
	for provider, r := range held.Allocations {
		switch {
		case !lives(r):
		case mine[provider]:
			return claims.AllocatedHere
		default:
			out = claims.AllocatedElsewhere
		}
	}
	return out
}

// putBack judges every guest that is here or in the ledger. Doubts are written only
// once nobody is waited for: an answer may end them.
func (l *ledger) putBack(ctx context.Context, t recovery.Told, behind, doubts bool) error {
	a := l.a
	ids := slices.Collect(maps.Keys(t.Here))
	for _, i := range a.tracker.Instances() {
		if _, here := t.Here[i.UUID]; !here {
			ids = append(ids, i.UUID)
		}
	}
	slices.Sort(ids)
	inDoubt := map[string]string{}
	for _, id := range ids {
		g := recovery.Judge(a.name, id, t, func() (claims.Instance, bool) { return a.tracker.Instance(id) }, behind)
		if g.Verdict == claims.VerdictDoubt {
			inDoubt[id] = g.Why
			if !doubts {
				continue
			}
		}
		r, put := g.Restored(a.name)
		if !put {
			continue
		}
		if err := a.tracker.Restore(ctx, r); err != nil {
			return fmt.Errorf("put back guest %s: %w", id, err)
		}
		a.log.Info("guest judged after the loss of the ledger", "instance", id, "name", r.Instance.Name, "verdict", g.Verdict, "why", g.Why, "epoch", r.Instance.Token.Epoch)
	}
	l.mu.Lock()
	l.doubts = inDoubt
	l.mu.Unlock()
	return nil
}

// runDoubts asks again for guests that are in doubt, until nobody is.
func (l *ledger) runDoubts(ctx context.Context) error {
	for ctx.Err() == nil {
		if l.anyDoubt() {
			if t, err := l.ask(ctx); err == nil {
				l.mu.Lock()
				l.silent = t.Silent
				behind := l.record != nil && l.record.Behind
				l.mu.Unlock()
				if err := l.putBackDoubts(ctx, t, behind); err != nil {
					l.a.log.Warn("guests in doubt could not be put back", "error", err)
				}
			}
		}
		if l.a.rt.Sleep(ctx, doubtEvery) != nil {
			return nil
		}
	}
	return nil
}

// anyDoubt looks at the ledger: the doubts of an earlier process are in it.
func (l *ledger) anyDoubt() bool {
	any := false
	said := map[string]string{}
	for _, i := range l.a.tracker.Instances() {
		if i.Token.State == claims.TokenDoubt {
			any = true
			said[i.UUID] = "the ledger was lost, and nobody who was asked knows whose it is"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, why := range l.doubts {
		if _, still := said[id]; still {
			said[id] = why
		}
	}
	l.doubts = said
	return any
}

// putBackDoubts judges those in doubt alone: of the others the ledger is the truth
// again.
func (l *ledger) putBackDoubts(ctx context.Context, t recovery.Told, behind bool) error {
	for _, i := range l.a.tracker.Instances() {
		if i.Token.State != claims.TokenDoubt {
			continue
		}
		g := recovery.Judge(l.a.name, i.UUID, t, func() (claims.Instance, bool) { return l.a.tracker.Instance(i.UUID) }, behind)
		l.mu.Lock()
		if l.doubts[i.UUID] = g.Why; g.Verdict != claims.VerdictDoubt {
			delete(l.doubts, i.UUID)
		}
		l.mu.Unlock()
		if r, put := g.Restored(l.a.name); put {
			if err := l.a.tracker.Restore(ctx, r); err != nil {
				return err
			}
		}
		if g.Verdict == claims.VerdictNothing {
			if err := l.a.tracker.Forget(ctx, i.UUID); err != nil {
				return err
			}
		}
	}
	return nil
}

// Known implements api.Agent.
func (s agentService) Known(ctx context.Context, from string) (api.Knowledge, error) {
	a := s.a
	out := api.Knowledge{Host: a.name, Instances: []api.KnownInstance{}, Moves: []api.KnownMove{}}
	if err := a.ledger.state(); err != nil {
		out.Partial = err.Error()
	} else if err := a.estranged(); err != nil {
		out.Partial = err.Error()
	}
	for _, i := range a.tracker.Instances() {
		if i.Token.State != claims.TokenDoubt {
			out.Instances = append(out.Instances, api.KnownInstance{UUID: i.UUID, Token: i.Token})
		}
	}
	open := map[string]migration.Migration{}
	list, err := a.conductor.List(ctx)
	for _, m := range list {
		if !m.Done() {
			open[m.UUID] = m
		}
	}
	for _, c := range a.tracker.Contexts() {
		k := api.KnownMove{Migration: c.Migration, Instance: c.Instance, Source: c.Source, Destination: c.Destination, Context: &c}
		switch m, conducted := open[c.Migration]; {
		case conducted && c.Destination == from:
			k.Attempt, k.Kind, k.Finished = m.Attempt, a.kindOf(c), m.Moved > 0
			if left, gone := a.tracker.Committed(c.Migration); gone && k.Kind != "" {
				k.Attempt = left.Attempt // a revert's own brings it the other way
			}
		case c.Source == from && c.Destination == a.name && a.tracker.Accepted(c.Migration) > 0:
			k.Attempt, k.Kind, k.Finished, k.Claim = a.tracker.Accepted(c.Migration), claims.KindResize, true, claims.Bound
		default:
			continue
		}
		out.Moves = append(out.Moves, k)
	}
	for _, c := range a.tracker.List() {
		if x := c.Context; x != nil && x.Source == from && c.Owner.Migration != "" {
			out.Moves = append(out.Moves, api.KnownMove{
				Migration: x.Migration, Instance: x.Instance, Attempt: c.Owner.Attempt, Source: x.Source, Destination: x.Destination, Claim: c.State,
			})
		}
	}
	return out, err
}

// kindOf is the kind of what a cold move holds here of a guest that has left; empty for
// a live migration, and before it has left.
func (a *Agent) kindOf(x claims.MigrationContext) claims.Kind {
	for _, c := range a.tracker.ByInstance(x.Instance) {
		if c.Owner.Migration == x.Migration {
			return c.Owner.Kind
		}
	}
	return ""
}
