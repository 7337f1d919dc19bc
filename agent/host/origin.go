package host

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"berth/agent/witness"
	"berth/claims"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
)

// Without a store of the fleet's records an instance that came here by a move may have been given
// back to its old host while this one was down: by an operator, who took this one for dead. So in
// each boot the old host, or the move's conductor, is asked before the instance is started; where
// it is silent Placement is. One of them is enough, and until one has answered the instance waits.
// An instance that was made here, or that came in this boot, waits for nobody.

// originWord is what is durable of one boot: whom a witness, or an operator, has confirmed.
type originWord struct {
	Boot      string   `json:"boot"` // runtime.BootTime.ID
	Confirmed []string `json:"confirmed,omitempty"`
}

// origins is a host's view of it.
type origins struct {
	// writing makes durable writes come one after another. Taken before mu.
	writing runtime.Lock
	// mu guards the rest; nothing that waits happens under it: the guard asks while libvirt waits.
	mu   sync.Mutex
	read bool
	word originWord
	said map[string]string // by instance: why it waits, as it was logged last
	next time.Duration     // not asked again before, on the boot clock
	last string            // by uuid: that followOrigins asked for last; its own loop's
}

func originRef() migration.Ref {
	return migration.Ref{Migration: "origin", Instance: "host", Attempt: 1, Step: "boot"}
}

// confirmed reports whether an instance is confirmed in this boot.
func (o *origins) confirmed(h *Host, uuid string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.readLocked(h)
	return slices.Contains(o.word.Confirmed, uuid)
}

// readLocked reads what an earlier process of this boot has made durable. What cannot be read
// confirms nothing.
func (o *origins) readLocked(h *Host) {
	now := h.rt.Boot().ID
	if o.read && o.word.Boot == now {
		return
	}
	var word originWord
	if _, err := h.tracker.Recall(originRef(), &word); err != nil || word.Boot != now {
		word = originWord{Boot: now}
	}
	o.read, o.word = true, word
}

// confirm makes durable that an instance is this host's in this boot.
func (o *origins) confirm(ctx context.Context, h *Host, uuid string) error {
	if err := o.writing.Lock(ctx, h.rt); err != nil {
		return err
	}
	defer o.writing.Unlock()
	o.mu.Lock()
	o.readLocked(h)
	word := o.word
	o.mu.Unlock()
	if slices.Contains(word.Confirmed, uuid) {
		return nil
	}
	next := originWord{Boot: word.Boot, Confirmed: append(slices.Clone(word.Confirmed), uuid)}
	if err := h.tracker.Remember(ctx, originRef(), next); err != nil {
		return wrap(err, "note that instance %s is confirmed in this boot", uuid)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.word.Boot == next.Boot {
		o.word = next
	}
	return nil
}

// new notes why an instance waits, and reports whether that was not known.
func (o *origins) new(uuid, why string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.said[uuid] == why {
		return false
	}
	if o.said == nil {
		o.said = map[string]string{}
	}
	o.said[uuid] = why
	return true
}

// due reports whether those that wait are to be asked for again, and puts off the next time.
func (o *origins) due(now time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now < o.next {
		return false
	}
	o.next = now + originEvery
	return true
}

// originEvery is how often hosts are asked about the instances that wait for them. Arbitrary: an
// agent that was just started is found within seconds.
const originEvery = 5 * time.Second

// originOf gives the move by which an instance came of which nobody has confirmed in this boot that
// it is this host's; false where it was made here, or is confirmed. From memory.
func originOf(h *Host, uuid string) (pendingArrival, bool) {
	inst, known := h.tracker.Instance(uuid)
	c, came := h.tracker.Came(inst.Token.Migration)
	a := pendingArrival{ref: migration.Ref{Migration: c.Migration, Instance: uuid, Attempt: c.Attempt}, source: c.From, conductor: h.conductorOf(c.Migration)}
	if !known || inst.Token.State != claims.TokenHere || !came || c.Instance != uuid || h.o.Side == nil || a.asked() == "" {
		return a, false
	}
	return a, !h.origins.confirmed(h, uuid)
}

// originWaits says why an instance waits for the host that it came from.
func originWaits(h *Host, uuid string) (why string, waits bool) {
	a, waits := originOf(h, uuid)
	if u := h.lastUse(uuid); !waits || u.text != "" && u.domain.Active() {
		return "", false
	}
	if claim, ok := h.attempts.ClaimOf(uuid); ok && claim.Boot == h.rt.Boot().ID {
		return "", false // it came in this boot
	}
	return "host " + a.asked() + ", from which it came or which conducted its move, has not said in this boot that it was not given back, and Placement does not say where it is", true
}

// originRound is what is known within one round of questions about instances that came by moves.
type originRound struct {
	hosts, placement context.Context // end the questions to hosts, and to Placement
	silent           map[string]bool // hosts that did not answer: they are not asked again
	noPlacement      bool            // Placement did not answer: it is not asked again
}

// newOriginRound begins a round. Hosts may be asked for as long as limit, and Placement for a while
// longer, for all instances together; 0 for as long as ctx.
func newOriginRound(ctx context.Context, rt runtime.Runtime, limit time.Duration) (*originRound, context.CancelFunc) {
	r := &originRound{hosts: ctx, placement: ctx, silent: map[string]bool{}}
	if limit == 0 {
		return r, func() {}
	}
	var end, endHosts context.CancelFunc
	r.placement, end = rt.WithTimeout(ctx, limit+allocationPatience)
	r.hosts, endHosts = rt.WithTimeout(r.placement, limit)
	return r, func() { endHosts(); end() }
}

// ask gives what the host says that an instance came from; nil where it does not say. One that does
// not answer is not asked again in the round; one that answers is, for its other instances.
func (r *originRound) ask(h *Host, a pendingArrival) *migration.AttemptFate {
	if r.hosts.Err() != nil || r.silent[a.asked()] {
		return nil
	}
	there, answered, err := h.askWhom(r.hosts, a)
	r.silent[a.asked()] = !answered
	if err != nil {
		return nil
	}
	return there
}

// askOrigin asks who may have been given an instance back, decides by the table of package witness,
// and gives way or confirms.
func askOrigin(ctx context.Context, h *Host, uuid string, round *originRound) (witness.Action, error) {
	a, waits := originOf(h, uuid)
	if !waits {
		return witness.Start, nil
	}
	inst, _ := h.tracker.Instance(uuid)
	f := witness.Facts{Origin: witness.CameSilent}
	if h.Waits() && h.BootConfirmed() {
		f.Store, f.Record = witness.StoreProven, witness.OwnSame // by name, or it would wait for that
	}
	there := round.ask(h, a)
	if there != nil {
		switch {
		case there.Epoch > inst.Token.Epoch && there.Holder != h.o.Name && !keptByOperator(h, uuid, there.Holder, there.Epoch):
			f.Origin = witness.CameTaken
		default:
			f.Origin = witness.CameAgreed
		}
	}
	// The old host has not said so itself, and Placement may know more.
	if f.Store == witness.NoStore && f.Origin == witness.CameSilent || f.Origin != witness.CameTaken && a.conductor != "" {
		f.Placement = originCounted(h, a, round)
	}
	v := witness.Decide(f)
	switch v.Action {
	case witness.GiveWay:
		if err := h.ownedThere(a, *there); err != nil {
			return v.Action, err
		}
		return v.Action, h.yieldToken(ctx, a.ref, there.Epoch, there.Holder)
	case witness.Start:
		return v.Action, h.origins.confirm(ctx, h, uuid)
	}
	if h.origins.new(uuid, v.Why) {
		h.log.Warn("an instance of an earlier boot is not started", "why", v.Why, "instance", uuid, "name", inst.Name, "asked", a.asked(), "action", v.Action)
	}
	return v.Action, nil
}

// originCounted asks Placement for an instance that came by a move. Only what it holds of this
// host's own providers counts as counted here.
func originCounted(h *Host, a pendingArrival, round *originRound) witness.Placement {
	moved, ok := h.o.Placement.(Moved)
	if !ok {
		return witness.PlacementNotAsked
	}
	if round.noPlacement || round.placement.Err() != nil {
		return witness.PlacementSilent
	}
	ctx, cancel := h.rt.WithTimeout(round.placement, allocationPatience)
	defer cancel()
	elsewhere, err := moved.SettledElsewhere(ctx, a.ref.Instance, a.ref.Migration)
	here := false
	if err == nil && !elsewhere {
		here, err = moved.CountedHere(ctx, a.ref.Instance)
	}
	switch {
	case err != nil:
		round.noPlacement = ctx.Err() != nil || errors.Is(err, fault.Unavailable)
		return witness.PlacementSilent
	case elsewhere:
		return witness.CountedElsewhere
	case here:
		return witness.CountedHere
	}
	return witness.NotCounted
}

// perOrigins bounds the instances of one round, which share askOwners of time too. Arbitrary: a
// round of as many takes seconds where all answer.
const perOrigins = 64

// nextInTurn gives at most n of uuids, which are in order: those after last first.
func nextInTurn(uuids []string, last string, n int) []string {
	i, found := slices.BinarySearch(uuids, last)
	if found {
		i++
	}
	return slices.Concat(uuids[i:], uuids[:i])[:min(n, len(uuids))]
}

// followOrigins asks again for the instances that wait, and starts those that are confirmed by it
// and whose wish is autostart. A round is bounded in number and time, and the next goes on after it.
func followOrigins(ctx context.Context, h *Host) error {
	if h.o.Mode() == ModeObserve || h.Waits() || !h.origins.due(h.rt.Boot().Since) {
		return nil
	}
	var waiting []string
	for _, inst := range h.Owned() {
		if _, waits := originWaits(h, inst.UUID); waits {
			waiting = append(waiting, inst.UUID)
		}
	}
	round, end := newOriginRound(ctx, h.rt, askOwners)
	defer end()
	confirmed := false
	var errs []error
	for _, uuid := range nextInTurn(waiting, h.origins.last, perOrigins) {
		if round.placement.Err() != nil {
			break
		}
		h.origins.last = uuid
		action, err := askOrigin(ctx, h, uuid, round)
		confirmed = confirmed || action == witness.Start
		errs = append(errs, err)
	}
	if confirmed {
		errs = append(errs, h.autostart(ctx))
	}
	return errors.Join(errs...)
}
