package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth/agent/api"
	"berth/migration"
	"berth/test/guest"
	"berth/test/lab"
)

// Outcome is what a round came to.
type Outcome string

// The outcomes of rounds. Settled is a move that was in doubt, as it may be, until a
// person decided.
const (
	Completed Outcome = "completed"
	Reverted  Outcome = "reverted"
	Undone    Outcome = "undone"
	Refused   Outcome = "refused"
	Settled   Outcome = "in doubt, settled"
	Failed    Outcome = "FAILED"
)

// Result is a round that is over.
type Result struct {
	Plan      Plan
	Migration string
	Outcome   Outcome
	// Struck says of each strike whether its moment came.
	Struck []bool
	// Settle is from the moment at which the last thing was put right until the move
	// was over; 0 where it was over before. The time for which memory flowed after that
	// moment is not part of it: no recovery shortens it. Whole is until all else was
	// true as well, and Took the whole round.
	Settle, Whole, Took time.Duration
	// Step is where the move was when it was struck first.
	Step string
	Err  error // what did not hold
}

// limits of a round, all arbitrary.
const (
	overMost  = 3 * time.Minute // until the move is over, once all is put right
	truthMost = 2 * time.Minute // until all else is true, once it is over
	roundMost = 10 * time.Minute
)

// round is one move with its faults.
type round struct {
	*bed
	plan     Plan
	uuid     string
	from, to *lab.Host
	begin    guest.Beat // the guest's last word before it
	calm     time.Time  // when all but the guest's own words was as it should be
	first    guest.Boot // of a cold story: the boot that the guest was in before it
	told     int        // boots on the source's console before it
	image    string     // of a rebuild: the boot that wrote its image
	asked    string     // the flavor that it is to have

	mu      sync.Mutex
	rec     migration.Migration // the last that the watch said
	struck  bool                // the first fault of the plan has
	changed chan struct{}       // closed when one of the two changes
	parts   []part              // of a cold story, in order
}

// part is the time from a word of the user to what it led to.
type part struct{ from, to time.Time }

// run is one round. The guest is where the result says afterwards.
func (b *bed) run(ctx context.Context, p Plan) (out Result) {
	ctx, cancel := context.WithTimeout(ctx, roundMost)
	defer cancel()
	begun := time.Now()
	r := &round{
		bed: b, plan: p, uuid: uuid.NewString(), from: b.home, to: b.other(b.home), changed: make(chan struct{}), asked: p.Story.flavorFrom(b.flavor),
	}
	out = Result{Plan: p, Migration: r.uuid, Outcome: Failed, Struck: make([]bool, len(p.Strikes))}
	defer func() { out.Took = time.Since(begun) }()
	if out.Err = r.prepare(ctx); out.Err != nil {
		return out
	}
	if p.Story.apart() {
		if out.Err = r.setApart(ctx, true); out.Err != nil {
			return out
		}
	}
	eyes := r.watchConsoles()
	defer eyes.close()

	watching, stop := context.WithCancel(ctx)
	var watch, strikes sync.WaitGroup
	defer watch.Wait()
	defer stop()
	wrong := make([]error, len(p.Strikes))
	var first sync.Once
	struck := func(i int) {
		out.Struck[i] = true
		first.Do(func() { out.Step = r.record().Step })
		if i == 0 {
			r.change(func() { r.struck = true })
		}
	}
	// What waits for a packet must stand before one comes.
	ready := make(chan struct{})
	for i, s := range p.Strikes {
		f, ok := find(s.Fault)
		if !ok {
			out.Err = fmt.Errorf("no fault is called %q", s.Fault)
			close(ready)
			return out
		}
		var met <-chan struct{}
		var done heal
		if f.arm != nil {
			met, done = f.arm(r)
		}
		strikes.Go(func() {
			<-ready
			if f.arm != nil {
				wrong[i] = r.ambush(ctx, s, met, done, func() { struck(i) })
			} else {
				wrong[i] = r.strike(ctx, f, s, func() { struck(i) })
			}
		})
	}
	r.begins(time.Now())
	asked := r.ask(ctx)
	var user sync.WaitGroup
	var words error
	if asked == nil {
		watch.Go(func() { r.watch(watching) })
		if p.Story.waits() {
			user.Go(func() { words = r.user(watching) })
		}
	} else {
		r.note(migration.Migration{Outcome: migration.OutcomeRefused}) // no moment comes
	}
	close(ready)
	strikes.Wait()
	healed := time.Now()
	if out.Err = errors.Join(append(wrong, asked)...); out.Err != nil {
		return out
	}
	m, doubt, err := r.over(ctx)
	if err != nil {
		stop()
	}
	user.Wait()
	if out.Err = errors.Join(err, words); out.Err != nil {
		return out
	}
	if p.Story.apart() {
		// Who looks around asks every host.
		if out.Err = r.setApart(ctx, false); out.Err != nil {
			return out
		}
	}
	switch {
	case m.Outcome == migration.OutcomeCompleted:
		out.Outcome, b.flavor = Completed, r.asked
		if p.Story.crosses() {
			b.home = r.to
		}
		if doubt {
			out.Outcome = Settled
		}
	case m.Outcome == migration.OutcomeReverted:
		out.Outcome = Reverted
	case m.Outcome == migration.OutcomeUndone:
		out.Outcome = Undone
	case m.Outcome == migration.OutcomeRefused:
		out.Outcome = Refused
	}
	if out.Err = r.truth(ctx, m); out.Err != nil {
		out.Outcome = Failed
		return out
	}
	out.Whole = r.calm.Sub(healed)
	if out.Err = eyes.close(); out.Err != nil {
		out.Outcome = Failed
	}
	if p.Story.cold() {
		out.Settle = r.coldRecovery(m.UpdatedAt, healed)
	} else if !doubt { // how long a person took to decide is no recovery
		out.Settle = recovery(m, healed, eyes.left)
	}
	return out
}

// recovery is how long a move took to its end when all was up again and the guest
// had fallen silent on the source; see Result.Settle.
func recovery(m migration.Migration, healed, left time.Time) time.Duration {
	if m.Outcome == migration.OutcomeCompleted && left.After(healed) {
		healed = left
	}
	return max(0, m.UpdatedAt.Sub(healed))
}

// prepare clears the destination's console, so that one byte on it is a copy that
// ran, and reads the guest's last word.
func (r *round) prepare(ctx context.Context) error {
	if err := r.clearConsole(r.to); err != nil {
		return err
	}
	if err := r.makeReady(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, truthMost)
	defer cancel()
	beats, err := guest.WaitBeat(ctx, r.from.Console(r.name), 1)
	if err == nil {
		r.begin = beats[len(beats)-1]
	}
	return err
}

// clearConsole takes away what the guest said on a host that it has left.
func (b *bed) clearConsole(h *lab.Host) error {
	if err := os.Remove(h.Console(b.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// watch keeps the record up to date until the move is over.
func (r *round) watch(ctx context.Context) {
	// An agent that dies is awaited: the round itself has its time.
	_ = r.conducts().WatchMigration(ctx, r.uuid, roundMost, func(m migration.Migration) error { r.note(m); return nil })
}

func (r *round) note(m migration.Migration) { r.change(func() { r.rec = m }) }

// conducts is a client of the host that conducts the move.
func (r *round) conducts() *api.Client {
	if r.plan.Story.apart() {
		return r.clients[r.third()]
	}
	return r.clients[r.from]
}

// change changes what moments are told by, and wakes whoever waits for one.
func (r *round) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *round) record() migration.Migration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rec
}

// await waits for a moment, and says whether it came.
func (r *round) await(ctx context.Context, m Moment) bool {
	for {
		r.mu.Lock()
		rec, struck, changed := r.rec, r.struck, r.changed
		r.mu.Unlock()
		come, never := m.come(rec, struck)
		if come {
			return pause(ctx, m.After)
		}
		if never {
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// strike breaks one thing at its moment, and puts it right after its time.
func (r *round) strike(ctx context.Context, f Fault, s Strike, struck func()) error {
	if !r.await(ctx, s.At) {
		return ctx.Err()
	}
	mend, err := f.strike(ctx, r)
	if errors.Is(err, errNothing) {
		return nil
	}
	struck()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	r.last(ctx, f, s.For)
	if err := mend(ctx); err != nil {
		return fmt.Errorf("put right %s: %w", f.Name, err)
	}
	return nil
}

// ambush waits for the packet that a rule waits for.
func (r *round) ambush(ctx context.Context, s Strike, met <-chan struct{}, done heal, struck func()) error {
	over := make(chan struct{})
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer close(over)
		r.awaitEnd(waiting)
	}()
	select {
	case <-met:
		struck()
		pause(ctx, s.For)
	case <-over:
	}
	return done(ctx)
}

// last is how long something stays broken.
func (r *round) last(ctx context.Context, f Fault, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if !f.toTheEnd {
		<-ctx.Done()
		return
	}
	r.awaitEnd(ctx)
}

// awaitEnd returns when the move is over, or ctx ends.
func (r *round) awaitEnd(ctx context.Context) {
	for {
		r.mu.Lock()
		rec, changed := r.rec, r.changed
		r.mu.Unlock()
		if rec.Done() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// over waits for the end of the move; everything is up by now. A doubt that nobody
// alive can end is settled by the person who may, where one of the faults allows
// it.
func (r *round) over(ctx context.Context) (m migration.Migration, doubt bool, err error) {
	err = await(ctx, overMost, 20*time.Millisecond, func() error {
		rec, err := r.conducts().Migration(ctx, r.uuid)
		if err != nil {
			return err
		}
		if m = rec; m.Done() {
			return nil
		}
		if m.Outcome == migration.OutcomeInDoubt && r.nobodyKnows(ctx) {
			doubt = true
			return nil
		}
		return fmt.Errorf("the move does not end: %s %q, step %s %s: %w", m.Status, m.Outcome, m.Step, m.Phase, m.Error.Err())
	})
	if err != nil || !doubt {
		return m, false, err
	}
	if !r.mayDoubt() {
		return m, true, fmt.Errorf("the move is in doubt, and need not be: %w", m.Error.Err())
	}
	return r.person(ctx)
}

func (r *round) mayDoubt() bool {
	return slices.ContainsFunc(r.plan.Strikes, func(s Strike) bool { f, _ := find(s.Fault); return f.doubt })
}

// nobodyKnows is the one doubt that no later look ends: the source's domain has
// forgotten why it is off, and a whole copy waits at the destination.
func (r *round) nobodyKnows(ctx context.Context) bool {
	for h, want := range map[*lab.Host]string{r.from: "shut off (unknown)", r.to: "paused (user)"} {
		if got, err := h.Virsh(ctx, "domstate", "--reason", r.name); err != nil || got != want {
			return false
		}
	}
	return true
}

// person does what somebody does who has looked at both sides, and found that the
// source's QEMU has ended by itself and a whole copy waits: says that it is the guest.
func (r *round) person(ctx context.Context) (m migration.Migration, doubt bool, err error) {
	_, err = r.conducts().SettleMigration(ctx, r.uuid, migration.Settlement{
		GuestIsAt: r.to.Name, Why: "the source's QEMU has ended, its console too; a whole copy waits at the destination",
	})
	if err != nil {
		return m, true, err
	}
	err = await(ctx, overMost, 50*time.Millisecond, func() error {
		if m, err = r.conducts().Migration(ctx, r.uuid); err == nil && !m.Done() {
			err = fmt.Errorf("it was settled, and the move is still %s %q: %w", m.Status, m.Outcome, m.Error.Err())
		}
		return err
	})
	if err == nil && m.Outcome != migration.OutcomeCompleted {
		err = fmt.Errorf("it was settled, and the move is %s %q: %w", m.Status, m.Outcome, m.Error.Err())
	}
	return m, true, err
}

// upAgain puts everything right that a failed round may have left broken, so that
// logs and a look around tell what there is.
func (b *bed) upAgain(ctx context.Context) error {
	all := []error{b.setApart(ctx, false)}
	for _, h := range b.Hosts {
		b.own[h].Clear()
		b.peer[h].Clear()
		for _, l := range []lab.Link{lab.Mgmt, lab.Mig} {
			all = append(all, h.Heal(ctx, l), h.Limit(ctx, l, 0))
		}
		all = append(all, b.libvirtdUp(ctx, h))
	}
	all = append(all, b.placementUp(ctx))
	for _, h := range b.Hosts {
		all = append(all, b.agentUp(ctx, h))
	}
	return errors.Join(all...)
}
