package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth/agent/host/allocation"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// A move that a third host conducted, and that is gone for good, is ended by an operator's
// word at each of its two hosts, which cannot ask each other:
//
//	at            the guest is here                        the guest is at the other host
//	the source    kept, or taken back with a higher epoch  given away; its half here ends
//	              and as it was; the move ends here
//	the           accepted by the epoch that the source's  given back to the source; what was
//	destination   commit has, finished and confirmed       made for it here ends
//	Placement     what its claim here holds, and nothing   the other host's half, and nothing here
//	              for the migration
//
// Nobody conducts the move after it: the word is on record with what is left to do by it, and
// this host does that until it is done, Placement's part included.

// memorySettle is under which a word's doing is remembered until all of it is done.
const memorySettle = "settle"

// settling is that record.
type settling struct {
	Here   bool   `json:"here,omitempty"`   // the guest is at this host
	Source bool   `json:"source,omitempty"` // which is the source of the move
	Other  string `json:"other_host"`
	Epoch  uint64 `json:"epoch,omitempty"` // of the token that is accepted here by the word
	// Old is what the guest held before the move, of which the migration's consumer has not what
	// both hosts share.
	Old topology.Resources `json:"old_resources,omitzero"`
	// Done: all but Placement. GoneToo: Placement will never answer; what it has is the
	// audit's to find.
	Done    bool `json:"done,omitempty"`
	GoneToo bool `json:"placement_gone,omitempty"`
}

// settled is under which it is remembered: apart from what the migration's verbs remember,
// which goes with the move.
func settled(ref migration.Ref) migration.Ref {
	ref.Migration = settledPrefix + ref.Migration
	return ref
}

const settledPrefix = "settle-"

// apartMove is what this host has of a move that a third host conducts.
type apartMove struct {
	id, instance string
	conductor    string
	other        string // host
	source       bool   // this host is its source
	token        tokenAt
	left         int                // attempt by which the token left; 0 where it did not
	arrival      *pendingArrival    // the guest is to come here; nil else
	outgoing     *outgoing          // it is here, and is to leave; nil else
	old          topology.Resources // that the guest held before
}

// apartMove reads it; false for none.
func (h *Host) apartMove(id string) (apartMove, bool) {
	m := apartMove{id: id, conductor: h.conductorOf(id), token: tokenUnknown}
	mc, ok := h.attempts.ContextOf(migration.Ref{Migration: id})
	if all := h.pendingArrivals(); m.conductor != "" {
		if i := slices.IndexFunc(all, func(a pendingArrival) bool {
			return a.ref.Migration == id && (a.claim != arrivalNone || h.attempts.Accepted(a.ref))
		}); i >= 0 {
			m.arrival = &all[i]
			mc, ok = h.attempts.ContextOf(m.arrival.ref)
		}
	}
	if m.conductor == "" || !ok {
		return m, false
	}
	m.instance, m.source, m.other, m.old = mc.Instance, mc.Source == h.o.Name, mc.Source, mc.OldResources
	if m.source {
		m.other = mc.Destination
	}
	all := h.conductedElsewhere()
	if i := slices.IndexFunc(all, func(o outgoing) bool { return o.ref.Migration == id }); i >= 0 {
		m.outgoing = &all[i]
	}
	switch inst, known := h.tracker.Instance(m.instance); {
	case known && inst.Token.State == claims.TokenHere:
		m.token = tokenHere
	case known:
		m.token = tokenGone
	}
	if c, gone := h.tracker.Committed(id); gone && c.Instance == m.instance {
		m.left = c.Attempt
	}
	return m, true
}

// ref is of the attempt that an operator's word decides.
func (m apartMove) ref(h *Host) migration.Ref {
	ref := migration.Ref{Migration: m.id, Instance: m.instance}
	switch {
	case m.left > 0:
		ref.Attempt = m.left
	case m.arrival != nil:
		ref = m.arrival.ref
	case m.outgoing != nil:
		ref = m.outgoing.ref
	default: // it waits here to be confirmed
		ref.Attempt = h.tracker.Accepted(m.id)
	}
	return ref
}

// SettleApart takes an operator's word on a move of which this host is source or
// destination, and whose conductor, a third host, is gone for good. It returns when the
// word is durable and what it decides here is done, Placement's part at the latest later.
// fault.NotFound where no such move is here; fault.Forbidden, with every reason, where the
// facts contradict the word.
func (h *Host) SettleApart(ctx context.Context, id string, s migration.Settlement) (Waiting, error) {
	w, err := h.settleApart(ctx, id, s)
	return w, wrap(err, "settle migration %s on %s", id, h.o.Name)
}

func (h *Host) settleApart(ctx context.Context, id string, s migration.Settlement) (Waiting, error) {
	m, ok := h.apartMove(id)
	if !ok {
		if w, ended, err := h.settleEnded(ctx, id, s); ended || err != nil {
			return w, err
		}
		if w, before := h.tracker.Word(id); before && w.GuestIsAt == s.GuestIsAt && w.By == s.By && w.Why == s.Why && h.tracker.Conductor(id) != "" {
			return Waiting{Migration: id, Instance: w.Instance, Attempt: w.Attempt, Since: w.At}, nil // it was done, and its answer lost
		}
		return Waiting{}, fault.New(fault.NotFound, "no move that another host conducts is here by that uuid")
	}
	ref := m.ref(h)
	done := Waiting{Migration: id, Instance: m.instance, Attempt: ref.Attempt, Source: m.other, Conductor: m.conductor, Since: h.rt.Now().UTC()}
	if err := h.maySettleApart(ctx, m, s); err != nil {
		return Waiting{}, err
	}
	rec := settling{Here: s.GuestIsAt == h.o.Name, Source: m.source, Other: m.other, Old: m.old, GoneToo: slices.Contains(s.Gone, migration.GonePlacement)}
	if rec.Here && m.arrival != nil && m.token != tokenHere && m.left == 0 {
		epoch, err := h.arrivingEpoch(*m.arrival)
		if err != nil {
			return Waiting{}, err
		}
		rec.Epoch = epoch
	}
	if err := h.noteWord(ctx, ref, s, ""); err != nil {
		return Waiting{}, err
	}
	if err := h.memory.Remember(ctx, settled(ref), memorySettle, rec); err != nil {
		return Waiting{}, err
	}
	return done, h.settleOn(ctx, ref)
}

// maySettleApart refuses a word that the facts contradict, with every reason.
func (h *Host) maySettleApart(ctx context.Context, m apartMove, s migration.Settlement) error {
	var no refusal
	add := func(code, message, change string) {
		no.add(fault.Forbidden, fault.Reason{Code: code, Message: message, Change: change})
	}
	here := s.GuestIsAt == h.o.Name
	if !here && s.GuestIsAt != m.other {
		add("not_a_party", "the migration is between "+h.o.Name+" and "+m.other, "name one of the two")
	}
	for _, name := range s.Gone {
		if name != m.other && name != m.conductor && name != migration.GonePlacement {
			add("not_a_party", name+" is neither the other host of the move, nor its conductor, nor "+migration.GonePlacement, "name what the move waits for")
		}
	}
	gone := func(name string) bool { return slices.Contains(s.Gone, name) }
	h.refuseConductor(ctx, &no, m, s)
	if here && m.token != tokenHere && !gone(m.other) {
		add("other_not_named", "host "+m.other+" has the guest's token by what is known here, or may have it, and its copy may be the guest",
			"settle it there first where that host is alive; check that nothing of the guest runs there, and say so: --gone "+m.other)
	}
	if here && m.arrival != nil && m.token != tokenHere && m.left == 0 {
		if err := no.take(h.cameWhole(*m.arrival)); err != nil {
			return err
		}
	}
	d, exists, err := h.domain(ctx, m.instance)
	if err != nil {
		return err
	}
	if !here && exists && d.Active() {
		add("runs_here", fmt.Sprintf("guest %s is %s (%s) on %s", d.Name, d.State, d.Reason, h.o.Name), "look again which of the two copies is the guest")
	}
	if !here && m.source && m.token == tokenHere && m.outgoing != nil && h.tracker.CommitRefused(m.id, m.outgoing.ref.Attempt) {
		add("source_keeps", h.o.Name+" has refused every hand-over of attempt "+fmt.Sprint(m.outgoing.ref.Attempt)+", and may have run the guest since", "say that it is at "+h.o.Name)
	}
	return no.err("")
}

// refuseConductor refuses a word while the conductor of the move answers, or is not said to be
// gone.
func (h *Host) refuseConductor(ctx context.Context, no *refusal, m apartMove, s migration.Settlement) {
	switch {
	case h.answersOf(ctx, m):
		no.add(fault.Forbidden, fault.Reason{
			Code: "conductor_answers", Message: "host " + m.conductor + " conducts the move, and answers", Change: "settle it there: berth -c " + m.conductor + " migration settle",
		})
	case !slices.Contains(s.Gone, m.conductor):
		no.add(fault.Forbidden, fault.Reason{
			Code: "conductor_not_named", Message: "host " + m.conductor + " conducts the move, and does not answer", Change: "check that it is gone for good, and say so: --gone " + m.conductor,
		})
	}
}

// answersOf reports whether the conductor of a move says anything about it.
func (h *Host) answersOf(ctx context.Context, m apartMove) bool {
	if h.o.Side == nil {
		return false
	}
	ctx, cancel := h.rt.WithTimeout(ctx, askFate)
	defer cancel()
	side, err := h.o.Side(ctx, m.conductor)
	if err == nil {
		_, err = side.AttemptFate(ctx, m.ref(h))
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.NotFound: // it lost its journal, which is as good as gone
		return false
	}
	return ctx.Err() == nil
}

// followSettled goes on with words that were not done whole.
func (h *Host) followSettled(ctx context.Context) {
	for _, r := range h.tracker.Remembering(memorySettle) {
		id := strings.TrimPrefix(r.Migration, settledPrefix)
		w, ok := h.tracker.Word(id)
		if !ok || ctx.Err() != nil {
			continue
		}
		ref := migration.Ref{Migration: id, Instance: w.Instance, Attempt: r.Attempt}
		if !h.timeToAsk(ref) {
			continue
		}
		if err := h.settleOn(ctx, ref); err != nil && ctx.Err() == nil {
			h.log.Warn("what an operator has said is not done whole yet", "instance", ref.Instance, "migration", ref.Migration, "error", err)
		}
	}
}

// settleOn does what a word decides, as far as it was not done: first here, then in
// Placement, which may answer later.
func (h *Host) settleOn(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[settling](h.memory, settled(ref), memorySettle)
	if err != nil || !found {
		return err
	}
	if !rec.Done {
		do := h.settleThere
		if rec.Here {
			do = h.settleHere
		}
		if err := do(ctx, ref, rec); err != nil {
			return err
		}
		rec.Done = true
		if err := h.memory.Remember(ctx, settled(ref), memorySettle, rec); err != nil {
			return err
		}
	}
	if !rec.GoneToo {
		if err := h.countSettled(ctx, ref, rec); err != nil {
			h.log.Warn("what an operator has said is not in Placement yet", "instance", ref.Instance, "migration", ref.Migration, "error", err)
			return nil // it goes on by itself
		}
	}
	return h.tracker.Unremember(ctx, memory.At(settled(ref), memorySettle))
}

// settleHere makes the guest this host's, and ends the move here.
func (h *Host) settleHere(ctx context.Context, ref migration.Ref, rec settling) error {
	m, ok := h.apartMove(ref.Migration)
	if !ok {
		return h.tracker.ForgetMigration(ctx, ref.Migration) // all but this was done before
	}
	switch {
	case m.left > 0:
		if err := h.retake(ctx, ref); err != nil {
			return err
		}
		if err := h.defineRetaken(ctx, ref); err != nil {
			return err
		}
		if err := h.stayAsItWas(ctx, ref); err != nil {
			return err
		}
	case m.token == tokenHere && m.outgoing != nil:
		if err := h.keepGuest(ctx, m.outgoing.ref); err != nil {
			return err
		}
		if err := h.stayAsItWas(ctx, m.outgoing.ref); err != nil {
			return err
		}
	case m.arrival != nil && m.token == tokenHere:
		if err := h.finishAlone(ctx, *m.arrival); err != nil {
			return err
		}
	case m.arrival != nil:
		c := migration.Commit{
			Instance: m.instance, Migration: m.id, Attempt: ref.Attempt, Epoch: rec.Epoch, From: rec.Other, To: h.o.Name, Power: m.arrival.power,
		}
		if err := h.takeIn(ctx, *m.arrival, c); err != nil {
			return err
		}
	}
	if err := h.endApartHere(ctx, ref, rec.Source); err != nil {
		return err
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	return nil
}

// defineRetaken writes the epoch of a guest that was taken back into its definition, while it
// is off: what a lost ledger is put together from.
func (h *Host) defineRetaken(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil || !exists || d.Active() {
		return err
	}
	text, err := driver.Definition(ctx, h.driver, ref.Instance)
	if err != nil || text == "" {
		return err
	}
	inst, _ := h.tracker.Instance(ref.Instance)
	return h.defineOwned(ctx, ref, inst, text)
}

// endApartHere ends a move at the host that has the guest.
func (h *Host) endApartHere(ctx context.Context, ref migration.Ref, source bool) error {
	if err := h.tracker.SetHidden(ctx, ref.Instance, ref.Migration, false); err != nil {
		return err
	}
	if !source {
		ref.Attempt = h.tracker.Accepted(ref.Migration)
		return operation.ConfirmDestination.Ask(ctx, unasked{h}, ref)
	}
	ref.Attempt = max(ref.Attempt, h.tracker.ContextAttempt(ref.Migration))
	return h.dropContext(ctx, ref)
}

// settleThere makes the guest the other host's, and ends what is here of it.
func (h *Host) settleThere(ctx context.Context, ref migration.Ref, rec settling) error {
	m, ok := h.apartMove(ref.Migration)
	if !ok {
		return h.tracker.ForgetMigration(ctx, ref.Migration) // all but this was done before
	}
	switch {
	case m.token == tokenHere && m.source:
		if _, err := operation.HandOver.Ask(ctx, unasked{h}, ref, migration.HandOverRequest{To: m.other}); err != nil {
			return err
		}
		return h.endHalf(ctx, ref)
	case m.token == tokenHere:
		ref.Attempt = h.tracker.Accepted(m.id) // which made what is here
		return h.yieldToken(ctx, ref, h.attempts.Epoch(ref.Instance)+1, m.other)
	case m.left > 0 && m.source:
		if m.arrival != nil { // it was awaited back, and what awaits a guest is not released
			if err := h.cancelReturn(ctx, m.arrival.ref); err != nil {
				return err
			}
		}
		return h.endHalf(ctx, ref)
	case m.left > 0:
		return operation.CleanUpReverted.Ask(ctx, unasked{h}, ref)
	case m.arrival != nil:
		return h.endArrival(ctx, *m.arrival)
	}
	return nil
}

// endHalf ends what a source keeps of a guest that an operator has said to be at its
// destination. Its disks stay, and are named: nobody has proven that the others are whole.
func (h *Host) endHalf(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if err := h.nameLeftDisks(ctx, ref); err != nil {
		return err
	}
	if err := endUnmarked(ctx, h, ref); err != nil {
		return err
	}
	half, _ := h.attempts.HeldFor(ref)
	return h.forgetHalf(ctx, ref, half)
}

// countSettled writes what a word decides to Placement: nobody conducts the move any more.
func (h *Host) countSettled(ctx context.Context, ref migration.Ref, rec settling) error {
	moved, ok := h.o.Placement.(Moved)
	if !ok {
		return nil
	}
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	if !rec.Here {
		if rec.Source {
			return moved.SettleThere(ctx, ref.Instance, ref.Migration)
		}
		return moved.SettleBack(ctx, ref.Instance, ref.Migration, rec.Old)
	}
	inst, claim, ok := h.toCount(ref)
	if !ok {
		return fault.New(fault.Unavailable, "instance %s has no claim of its own on %s yet", ref.Instance, h.o.Name)
	}
	return moved.SettleHere(ctx, allocation.Of(inst, claim), ref.Migration)
}

// toCount is the guest of a word, with the claim of its own.
func (h *Host) toCount(ref migration.Ref) (claims.Instance, claims.Claim, bool) {
	inst, known := h.tracker.Instance(ref.Instance)
	claim, bound := h.tracker.ByOwner(claims.Owner{Instance: ref.Instance, Kind: claims.KindInstance})
	return inst, claim, known && bound && inst.Token.State == claims.TokenHere
}
