package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

var (
	_ migration.Side    = (*Host)(nil)
	_ migration.Settler = (*Host)(nil)
)

// WordOn implements migration.Settler.
func (h *Host) WordOn(ref migration.Ref) (migration.Settlement, bool) {
	w, ok := h.tracker.Word(ref.Migration)
	if !ok || w.Attempt != ref.Attempt || w.Instance != ref.Instance {
		return migration.Settlement{}, false
	}
	return migration.Settlement{GuestIsAt: w.GuestIsAt, Gone: w.Gone, Why: w.Why, By: w.By}, true
}

// wordOn is an operator's word as the source's table has it.
func (h *Host) wordOn(ref migration.Ref) migration.WordFact {
	switch w, ok := h.WordOn(ref); {
	case !ok:
		return migration.WordNone
	case w.GuestIsAt == h.o.Name:
		return migration.WordSource
	}
	return migration.WordDestination
}

// TakeWord implements migration.Settler.
func (h *Host) TakeWord(ctx context.Context, ref migration.Ref, s migration.Settlement) error {
	return wrap(h.takeWord(ctx, ref, s), "settle migration %s on %s", ref.Migration, h.o.Name)
}

func (h *Host) takeWord(ctx context.Context, ref migration.Ref, s migration.Settlement) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return err
	}
	half := exists && d.InPostCopy()
	if s.GuestIsAt == h.o.Name && half {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "half_here", Message: fmt.Sprintf("guest %s is %s (%s) on %s: that is a part of its memory, and cannot run without the rest", d.Name, d.State, d.Reason, h.o.Name),
			Change: "if the rest is lost, end it (virsh destroy " + d.Name + "), and say it again",
		})
	}
	if s.GuestIsAt != h.o.Name && exists && d.Active() && !half {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code:    "runs_here",
			Message: fmt.Sprintf("guest %s has its memory on %s: %s (%s); it cannot be at %s", d.Name, h.o.Name, d.State, d.Reason, s.GuestIsAt),
			Have:    h.o.Name, Want: s.GuestIsAt, Change: "look again which of the two copies is the guest",
		})
	}
	if s.GuestIsAt != h.o.Name && h.tracker.CommitRefused(ref.Migration, ref.Attempt) {
		// It was decided after the word was held against the facts.
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code:    "source_keeps",
			Message: fmt.Sprintf("%s has refused every commit of attempt %d, and may have run the guest since", h.o.Name, ref.Attempt),
			Have:    h.o.Name, Want: s.GuestIsAt, Change: "say that it is at " + h.o.Name,
		})
	}
	c, left := h.tracker.Committed(ref.Migration)
	left = left && c.Attempt == ref.Attempt
	tell := ""
	if left && s.GuestIsAt == h.o.Name {
		tell = c.To // whatever comes back there must hear of the higher epoch
	} else if w, before := h.tracker.Word(ref.Migration); before && w.Attempt == ref.Attempt && w.GuestIsAt == s.GuestIsAt {
		tell = w.Tell // the same word again
	}
	if err := h.noteWord(ctx, ref, s, tell); err != nil {
		return err
	}
	return h.retake(ctx, ref)
}

// noteWord makes an operator's word durable, before anything is done by it. Who was gone
// by an earlier word on the same attempt, at the same host, still is.
func (h *Host) noteWord(ctx context.Context, ref migration.Ref, s migration.Settlement, tell string) error {
	if before, ok := h.WordOn(ref); ok && before.GuestIsAt == s.GuestIsAt {
		for _, name := range s.Gone {
			if !slices.Contains(before.Gone, name) {
				before.Gone = append(before.Gone, name)
			}
		}
		s.Gone = before.Gone
	}
	h.log.Warn("an operator settles a migration", "instance", ref.Instance, "migration", ref.Migration, "attempt", ref.Attempt,
		"guest_is_at", s.GuestIsAt, "gone", s.Gone, "by", s.By, "why", s.Why)
	return h.tracker.NoteWord(ctx, claims.Word{
		Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, GuestIsAt: s.GuestIsAt, Gone: s.Gone,
		By: s.By, Why: s.Why, At: h.rt.Now().UTC(), Tell: tell,
	})
}

// retake takes the token of a guest back that an operator has said to be here, where
// this attempt had given it away.
func (h *Host) retake(ctx context.Context, ref migration.Ref) error {
	if h.wordOn(ref) != migration.WordSource {
		return nil
	}
	if c, left := h.tracker.Committed(ref.Migration); !left || c.Attempt != ref.Attempt {
		return nil
	}
	return h.tracker.Retake(ctx, memory.At(ref, ""))
}

// tellWords tells other hosts that a guest's token is here by an operator's word, until
// each has heard it: who had it with a lower epoch gives way. A host that is silent is
// asked once in a turn, however many guests it had: arrivals wait for this turn's end.
func (h *Host) tellWords(ctx context.Context) {
	silent := map[string]bool{}
	for _, w := range h.tracker.Untold() {
		if silent[w.Tell] {
			continue
		}
		err := h.tellWord(ctx, w)
		if noteRefused(h, w, err) {
			continue // it has answered
		}
		if err != nil {
			silent[w.Tell] = errors.Is(err, fault.Unavailable) || errors.Is(err, fault.InDoubt)
			h.log.Debug("a host has not heard of an operator's word", "instance", w.Instance, "migration", w.Migration, "host", w.Tell, "error", err)
		}
	}
}

func (h *Host) tellWord(ctx context.Context, w claims.Word) error {
	ref := migration.Ref{Migration: w.Migration, Instance: w.Instance, Attempt: w.Attempt}
	// The decision is on record before the token is here by it: both are read together.
	unlock, err := h.tryLock(ctx, w.Instance)
	if err != nil {
		return err
	}
	epoch, holder := h.tracker.Epoch(w.Instance)
	_, claimed := h.tracker.ByOwner(h.attempts.Owner(ref))
	arriving := claimed && !h.arrived(ref)
	unlock()
	if arriving {
		return fault.New(fault.Busy, "instance %s has not arrived yet", w.Instance)
	}
	// By now the guest may have gone on: whoever has it then has a still higher epoch.
	if _, known := h.tracker.Instance(w.Instance); epoch == 0 || holder == w.Tell || holder == h.o.Name && !known {
		return h.tracker.WordTold(ctx, w.Migration) // it was deleted, or is there by another move
	}
	if h.o.Side == nil {
		return nil
	}
	ctx, cancel := h.rt.WithTimeout(ctx, askFate)
	defer cancel()
	side, err := h.o.Side(ctx, w.Tell)
	if err != nil {
		return err
	}
	if err := side.YieldToken(ctx, ref, epoch, h.o.Name); err != nil {
		return err
	}
	return h.tracker.WordTold(ctx, w.Migration)
}

// YieldToken implements migration.Side.
func (h *Host) YieldToken(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	return wrap(h.yieldToken(ctx, ref, epoch, to), "give way to %s for instance %s", to, ref.Instance)
}

func (h *Host) yieldToken(ctx context.Context, ref migration.Ref, epoch uint64, to string) error {
	clean, err := h.yield(ctx, ref, epoch, to)
	switch _, claimed := h.tracker.ByOwner(h.attempts.Owner(ref)); {
	case err != nil:
		return err
	case clean:
		err = operation.CleanUpSource.Ask(ctx, unasked{h}, ref)
	case claimed && !h.arrived(ref):
		err = h.endArrival(ctx, pendingArrival{ref: ref, way: h.wayOf(ref)}) // it never had the token, and gets it no more
	}
	if err != nil {
		return err
	}
	return forgetYielded(ctx, h, ref.Instance)
}

// yield surrenders and ends what is here. clean: this host was the source of the move,
// and no conductor will ask it to clean up.
func (h *Host) yield(ctx context.Context, ref migration.Ref, epoch uint64, to string) (clean bool, err error) {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return false, err
	}
	defer unlock()
	inst, known := h.tracker.Instance(ref.Instance)
	// A rebuilt ledger has nothing of the move, and has heard from its destination's where
	// the token is.
	heard := known && inst.Token == claims.Token{Epoch: epoch, State: claims.TokenSurrendered, Holder: to, Migration: ref.Migration}
	if known && !heard && !h.tracker.Moves(ref.Migration, ref.Instance) {
		// Who may speak for one guest must not end another.
		return false, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_its_guest", Message: fmt.Sprintf("migration %s is not one of instance %s", ref.Migration, ref.Instance),
		})
	}
	if known && inst.Token.State == claims.TokenHere && inst.Token.Epoch >= epoch {
		return false, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code:    "epoch_not_higher",
			Message: fmt.Sprintf("the token is on %s with epoch %d", h.o.Name, inst.Token.Epoch),
			Have:    fmt.Sprintf("epoch %d", inst.Token.Epoch), Want: fmt.Sprintf("epoch %d", epoch),
		})
	}
	if err := staysHere(h, ref.Instance, epoch, to); err != nil {
		return false, err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return false, err
	}
	// A peer's word alone ends no instance that runs: it may be hostile, or in error.
	stands, err := standsHandedOver(h, ref, to, d)
	if err != nil {
		return false, err
	}
	if c, err := provenElsewhere(h.o.Name, inst, known, d, exists, stands, epoch, to); err != nil {
		if h.sides.claim(c) {
			h.log.Error("another host says that it has an instance that runs here; nothing is ended", "instance", ref.Instance, "migration", ref.Migration, "host", to, "epoch", epoch)
		}
		return false, err
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return false, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	undefined := known && !exists && h.absent(ctx, inst) == nil
	if err := noteYielded(ctx, h, ref, inst, d, epoch, to, !stands && needsWitness(h, ref, inst, known, undefined)); err != nil {
		return false, err
	}
	arrived := h.attempts.Accepted(ref)
	decided := h.tracker.CommitRefused(ref.Migration, ref.Attempt)
	yields, err := h.tracker.Yield(ctx, memory.At(ref, ""), epoch, to)
	if err != nil {
		return false, err
	}
	if !yields { // a higher epoch was named before: what is on record of that stays
		y, waits, err := waitingYield(h, ref.Instance)
		if waits {
			err = fault.Refuse(fault.Busy, "", y.reason(h.o.Name))
		}
		return false, err
	}
	h.sides.unclaim(ref.Instance)
	// Again: the guard let it start until the token was gone.
	if d, exists, err = h.domain(ctx, ref.Instance); err != nil {
		return false, err
	}
	if exists && d.Active() {
		h.log.Error("end a copy that is not the owner: a higher epoch is elsewhere", "instance", ref.Instance, "migration", ref.Migration,
			"host", to, "epoch", epoch, "state", d.State, "reason", d.Reason)
		if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return false, err
		}
	}
	if err := h.witness.Off(ref.Instance, cmp.Or(d.Name, ref.Instance), nil); err != nil {
		return false, err
	}
	before, err := witnessed(ctx, h, ref)
	if err != nil {
		return false, err
	}
	decided = decided || before
	if _, from := h.tracker.Came(ref.Migration); arrived || from {
		return false, h.forgetArrival(ctx, ref)
	}
	orphan := h.o.Conducts != nil && h.o.Conducts(ref.Migration, ref.Attempt) == migration.ConductNone
	return decided || orphan, nil
}

// forgetArrival removes what is left of a guest that had come here by this attempt and
// whose token has gone back.
func (h *Host) forgetArrival(ctx context.Context, ref migration.Ref) error {
	for _, step := range []string{operation.StepClaim, operation.StepPreLiveMigration} {
		if err := h.tracker.WriteTombstone(ctx, memory.At(ref, step)); err != nil {
			return err
		}
	}
	if err := h.streams.End(ctx, ref); err != nil {
		return err
	}
	if err := h.nameLeftDisks(ctx, ref); err != nil {
		return err
	}
	if err := h.endSource(ctx, ref); err != nil {
		return err
	}
	if err := h.undoPreparation(ctx, ref); err != nil {
		return err
	}
	if err := h.forgetColdArrival(ctx, ref); err != nil {
		return err
	}
	if err := h.tracker.WriteTombstone(ctx, memory.At(ref, operation.StepPrepEvacuation)); err != nil {
		return err
	}
	if err := h.undoEvacuation(ctx, ref, false); err != nil {
		return err
	}
	if _, bound := h.attempts.BoundBy(ref); !bound {
		if err := h.tracker.Abort(ctx, memory.At(ref, operation.StepClaim)); err != nil {
			return err
		}
	}
	if err := h.dropRecords(ctx, ref.Instance); err != nil {
		return err
	}
	if err := h.tracker.Forget(ctx, ref.Instance); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// nameLeftDisks logs the files that the definition of a guest names which had finished its
// arrival: the guest may have written to them here, and nobody else says then whose they were.
func (h *Host) nameLeftDisks(ctx context.Context, ref migration.Ref) error {
	if _, found, err := memory.Recall[preparation](h.memory, ref, memoryPrepared); err != nil || found {
		return err // what was made for it is on record, and goes
	}
	text, err := h.driver.XML(ctx, ref.Instance, driver.Live)
	if errors.Is(err, fault.NotFound) {
		return nil
	} else if err != nil {
		return err
	}
	doc, err := parseDocument(text)
	if err != nil {
		h.log.Warn("which disks of a guest that was taken back stay is not known", "instance", ref.Instance, "error", err)
	}
	for _, d := range doc.Devices.Disks {
		if path := d.path(); path != "" {
			h.log.Warn("a disk of a guest that was taken back stays: take it away if no other host uses it", "instance", ref.Instance, "migration", ref.Migration, "path", path)
		}
	}
	return nil
}

// SettleArrival takes an operator's word on an arrival that waits here for a source
// which is silent, or cannot say what became of it. fault.NotFound where no arrival of
// that migration waits; fault.Forbidden, with every reason, where the facts contradict
// the word or nothing is in doubt.
func (h *Host) SettleArrival(ctx context.Context, id string, s migration.Settlement) (Waiting, error) {
	w, err := h.settleArrival(ctx, id, s)
	return w, wrap(err, "settle migration %s on %s", id, h.o.Name)
}

func (h *Host) settleArrival(ctx context.Context, id string, s migration.Settlement) (Waiting, error) {
	all := h.pendingArrivals()
	i := slices.IndexFunc(all, func(a pendingArrival) bool { return a.ref.Migration == id && a.claim != arrivalNone })
	if w, ok := h.tracker.Word(id); ok && (i < 0 || h.attempts.Accepted(all[i].ref)) &&
		w.GuestIsAt == s.GuestIsAt && slices.Equal(w.Gone, s.Gone) && w.Why == s.Why && w.By == s.By {
		// The same word again: its answer was lost. What is left of it goes on by itself.
		return Waiting{Migration: id, Instance: w.Instance, Attempt: w.Attempt, Since: w.At}, nil
	}
	if i < 0 {
		return Waiting{}, fault.New(fault.NotFound, "no arrival of it waits here")
	}
	a := all[i]
	if a.way == wayEvacuated {
		return h.settleEvacuation(ctx, a, s)
	}
	done := Waiting{Migration: id, Instance: a.ref.Instance, Attempt: a.ref.Attempt, Source: a.source, Since: h.rt.Now().UTC()}
	if err := h.mayBeSettled(ctx, a, s); err != nil {
		return Waiting{}, err
	}
	if s.GuestIsAt == a.source {
		if err := h.noteWord(ctx, a.ref, s, ""); err != nil {
			return Waiting{}, err
		}
		return done, h.endArrival(ctx, a)
	}
	epoch, err := h.arrivingEpoch(a)
	if err != nil {
		return Waiting{}, err
	}
	// The epoch is the one that the source's own commit has, or would have had: a source
	// that has given the token agrees, and one that has not has a lower one.
	if err := h.noteWord(ctx, a.ref, s, a.source); err != nil {
		return Waiting{}, err
	}
	c := migration.Commit{
		Instance: a.ref.Instance, Migration: id, Attempt: a.ref.Attempt, Epoch: epoch, From: a.source, To: h.o.Name, Power: a.power,
	}
	return done, h.takeIn(ctx, a, c)
}

// mayBeSettled refuses a word that the facts contradict, with every reason.
func (h *Host) mayBeSettled(ctx context.Context, a pendingArrival, s migration.Settlement) error {
	var no refusal
	add := func(code, message, change string) {
		no.add(fault.Forbidden, fault.Reason{Code: code, Message: message, Change: change})
	}
	fate, err := h.askSource(ctx, a)
	named := slices.Contains(s.Gone, a.source)
	switch {
	case err != nil && s.GuestIsAt == a.source && !named:
		add("source_unread", "whether the guest is at "+a.source+" is not known, and the copy here may be the only one: "+err.Error(), "let that host say what it has")
	case err != nil: // it answers and does not say: for the operator to decide
	case fate == nil && s.GuestIsAt == h.o.Name && !named:
		add("source_not_named", "host "+a.source+" does not answer, and its copy may be the guest", "check that it is gone for good, and say so: --gone "+a.source)
	case fate == nil && s.GuestIsAt == a.source && !named:
		add("source_not_named", "host "+a.source+" does not answer, and the copy here may be the only one",
			"start its agent; if the copy here is to be given up though that host is gone for good, say so: --gone "+a.source)
	case fate == nil: // silent, and named as gone
	case fate.Fate != migration.FateUnknown:
		add("source_answers", "host "+a.source+" answers: "+fate.Why, "nothing is in doubt: look again with berth migration list")
	case fate.Epoch > 0 && s.GuestIsAt == h.o.Name:
		add("source_knows", fmt.Sprintf("host %s answers and knows who has the token: %s, with epoch %d", a.source, fate.Holder, fate.Epoch), "settle it there")
	case s.GuestIsAt == a.source && !fate.Active:
		add("not_at_source", "the guest's domain on "+a.source+" is "+cmp.Or(fate.Domain, "not to be read")+", and the copy here may be the only one",
			"if the guest is here, say that it is at "+h.o.Name+"; if it is at "+a.source+", start it there first")
	}
	inst, known := h.tracker.Instance(a.ref.Instance)
	if known && inst.Token.State == claims.TokenHere {
		add("token_here", "the token is on "+h.o.Name+" already", "nothing: it finishes by itself")
	}
	if s.GuestIsAt != h.o.Name && s.GuestIsAt != a.source {
		add("not_a_party", "the migration is from "+a.source+" to "+h.o.Name, "name one of the two")
	}
	d, exists, err := h.domain(ctx, a.ref.Instance)
	switch {
	case err != nil:
		return err
	case s.GuestIsAt == h.o.Name && a.way != wayLive:
		if err := no.take(h.cameWhole(a)); err != nil {
			return err
		}
	case s.GuestIsAt == h.o.Name && (!exists || !d.Active()):
		add("no_copy", "no copy of the guest is on "+h.o.Name, "the guest cannot be here")
	case s.GuestIsAt == h.o.Name && d.InPostCopy():
		add("half_here", fmt.Sprintf("the copy on %s is %s (%s): part of its memory is at %s", h.o.Name, d.State, d.Reason, a.source),
			"if "+a.source+" is gone for good, that is lost: end the copy (virsh destroy "+d.Name+")")
	case s.GuestIsAt == h.o.Name && d.Halfway():
		add("copy_incomplete", fmt.Sprintf("the copy on %s is not whole: %s (%s)", h.o.Name, d.State, d.Reason), "the guest cannot be here")
	case s.GuestIsAt == a.source && exists && d.State == driver.Running:
		add("runs_here", "a copy runs on "+h.o.Name, "look again which of the two copies is the guest")
	}
	return no.err("")
}

// arrivingEpoch is the epoch that an arriving guest is to have here: its document says it.
func (h *Host) arrivingEpoch(a pendingArrival) (uint64, error) {
	if a.way != wayLive {
		return h.coldEpoch(a)
	}
	rec, found, err := memory.Recall[preparation](h.memory, a.ref, memoryPrepared)
	switch {
	case err != nil:
		return 0, err
	case !found || rec.Prepared == nil:
		return 0, fault.New(fault.Forbidden, "the destination was not ready when its conductor fell silent: nothing can have come")
	}
	doc, err := domainxml.Parse(rec.Prepared.PersistentXML)
	if err != nil {
		return 0, fault.New(fault.Internal, "read the arriving guest's document: %w", err)
	}
	meta, ok, err := doc.Metadata()
	if err != nil || !ok || meta.Epoch < 2 {
		return 0, fault.New(fault.Internal, "the arriving guest's document does not say its epoch")
	}
	return meta.Epoch, nil
}
