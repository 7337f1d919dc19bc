package host

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// sides is what this process knows of the other sides of arrivals.
type sides struct {
	// mu guards the fields below; nothing but map work happens under it.
	mu      sync.Mutex
	heard   map[string]time.Duration // by migration and attempt: when the conductor was heard of last
	asking  map[string]*asking       // requests that are being answered; nil for none
	asked   map[string]time.Duration // when the source, or the conductor in its place, was asked last
	waiting map[string]Waiting
	claimed map[string]ClaimedElsewhere // by instance; see provenElsewhere
	refused map[string]ClaimedElsewhere // by migration: an operator's decision of which the other host says that it keeps the instance
	ended   map[string]keptWord         // by migration that is over here: what Placement has said of it
}

func (s *sides) init() {
	s.heard, s.asked, s.waiting = map[string]time.Duration{}, map[string]time.Duration{}, map[string]Waiting{}
	s.refused = map[string]ClaimedElsewhere{}
	s.ended, s.asking, s.claimed = map[string]keptWord{}, map[string]*asking{}, map[string]ClaimedElsewhere{}
}

// Waiting is an arrival that goes on only when somebody else says so; or a guest that is to
// leave, and whose conductor is silent.
type Waiting struct {
	Migration string `json:"migration"`
	Instance  string `json:"instance_uuid"`
	Attempt   int    `json:"attempt"`
	// Source is the host that the guest comes from; of one that leaves where it goes.
	Source string `json:"source_compute"`
	// Conductor is the third host that conducts the move; empty where the source does.
	Conductor string    `json:"conductor,omitempty"`
	Leaves    bool      `json:"leaves,omitempty"`
	Since     time.Time `json:"since"`
	For       string    `json:"for"`      // in an operator's words
	InDoubt   bool      `json:"in_doubt"` // nobody who answers decides it, and that for a while

	since time.Duration // on the boot clock, that nobody has decided it; below 0 where somebody has
}

// Waiting gives them by migration.
func (h *Host) Waiting() []Waiting {
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	out := make([]Waiting, 0, len(h.sides.waiting))
	for _, w := range h.sides.waiting {
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Waiting) int { return strings.Compare(a.Migration, b.Migration) })
	return out
}

// hear notes that the conductor of an attempt has asked something.
func (h *Host) hear(ref migration.Ref) {
	now := h.rt.Boot().Since
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	h.sides.heard[memory.Key(ref)] = now
}

// attend notes that the conductor of an attempt has asked something that takes a while: until
// done is called, which notes that it was there until then, it is not silent.
func (h *Host) attend(ref migration.Ref) (done func()) {
	h.hear(ref)
	over := h.hold(ref)
	return func() { over(); h.hear(ref) }
}

// hold has the silence of the conductor of an attempt, if it is silent, stand still until done
// is called.
func (h *Host) hold(ref migration.Ref) (done func()) {
	key, now := memory.Key(ref), h.rt.Boot().Since
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	a := h.sides.asking[key]
	if a == nil {
		a = &asking{since: now}
		h.sides.asking[key] = a
	}
	a.questions++
	return func() {
		now := h.rt.Boot().Since
		h.sides.mu.Lock()
		defer h.sides.mu.Unlock()
		if a.questions--; a.questions > 0 {
			return
		}
		delete(h.sides.asking, key)
		if last, ever := h.sides.heard[key]; ever {
			h.sides.heard[key] = min(now, last+now-a.since) // it may have been heard meanwhile
		}
	}
}

// asking are the questions about an attempt that are being answered.
type asking struct {
	questions int
	since     time.Duration // on the boot clock
}

// askFate bounds the question to the other side of a move: a guest may stand still
// meanwhile. Arbitrary.
const askFate = time.Second

// FollowSides looks after the arrivals of Berth's own migrations whose conductors are
// silent, and after guests that are to leave by a silent third host, and tells other hosts of
// operators' words, until ctx ends. See destination.go and silence.go for what it goes by. In mode observe too: a move that has begun must end.
func (h *Host) FollowSides(ctx context.Context) error {
	var yielded yieldedRounds
	for ctx.Err() == nil {
		h.lookAtSides(ctx)
		h.tellWords(ctx)
		followYielded(ctx, h, &yielded)
		h.followSettled(ctx)
		h.sweepCopies(ctx)
		if err := followOrigins(ctx, h); err != nil && ctx.Err() == nil {
			h.log.Warn("instances that wait for the host that they came from could not be looked after", "error", err)
		}
		followLater(ctx, h)
		h.o.Round("sides of moves")
		_ = h.rt.Sleep(ctx, h.o.Agree/4) // its end is looked at in the loop
	}
	return nil
}

// pendingArrival is a claim, or what is left of one, of a migration that is Berth's own.
type pendingArrival struct {
	ref    migration.Ref
	source string
	claim  arrivalClaim
	power  migration.PowerState // as the context has it
	way    way
	// conductor is the third host that conducts the move; empty where the source does, or
	// this host. It is asked in the source's place, which may not be reached from here.
	conductor string
	leaves    bool // no arrival: see lookAtOutgoing
}

// asked is the host that says what became of an arrival.
func (a pendingArrival) asked() string { return cmp.Or(a.conductor, a.source) }

func (h *Host) lookAtSides(ctx context.Context) {
	list := h.pendingArrivals()
	known := map[string]bool{}
	silent := map[string]bool{}
	for _, a := range list {
		known[memory.Key(a.ref)] = true
		if ctx.Err() != nil {
			return
		}
		if err := h.lookAtArrival(ctx, a, silent); err != nil && ctx.Err() == nil {
			h.awaitSide(a, err.Error(), fault.KindOf(err) == fault.InDoubt)
		}
	}
	for _, a := range h.lookAtOutgoing(ctx) {
		known[memory.Key(a.ref)] = true
	}
	for _, ref := range h.lookAtEnded(ctx) {
		known[memory.Key(ref)] = true
	}
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	for key := range h.sides.waiting {
		if !known[key] {
			delete(h.sides.waiting, key)
		}
	}
	for key := range h.sides.asked {
		if !known[key] {
			delete(h.sides.asked, key)
		}
	}
	for key := range h.sides.heard {
		if !known[key] {
			delete(h.sides.heard, key)
		}
	}
}

// pendingArrivals gives those whose token is here first: their guests may stand still.
func (h *Host) pendingArrivals() []pendingArrival {
	var out []pendingArrival
	seen := map[string]bool{}
	for _, c := range h.tracker.List() {
		o := c.Owner
		if o.Kind != claims.KindLiveMigration || c.State != claims.Pending && c.State != claims.Arriving || h.external.Foreign(o) {
			continue
		}
		a := pendingArrival{ref: attempts.RefOf(o), claim: arrivalArriving}
		if c.State == claims.Pending {
			a.claim = arrivalPending
		}
		if c.Context != nil {
			a.source, a.power = c.Context.Source, c.Context.OldPowerState
		}
		seen[memory.Key(a.ref)] = true
		out = append(out, a)
	}
	// A claim whose lease was over while it was prepared, and a guest that was bound and
	// not finished.
	for _, r := range h.tracker.Remembering(memoryPrepared) {
		rec, found, err := memory.Recall[preparation](h.memory, r, memoryPrepared)
		if err != nil || !found || rec.Guest.UUID == "" {
			continue
		}
		ref := migration.Ref{Migration: r.Migration, Instance: rec.Guest.UUID, Attempt: r.Attempt}
		if !seen[memory.Key(ref)] && !h.external.Foreign(h.attempts.Owner(ref)) {
			out = append(out, pendingArrival{ref: ref, source: rec.Source, claim: arrivalNone})
		}
	}
	out = append(out, h.coldArrivals()...)
	out = append(out, h.evacuations()...)
	for i := range out {
		out[i].conductor = h.conductorOf(out[i].ref.Migration)
	}
	slices.SortStableFunc(out, func(a, b pendingArrival) int {
		rank := func(a pendingArrival) int {
			if h.attempts.Accepted(a.ref) {
				return 0
			}
			return 1
		}
		return cmp.Compare(rank(a), rank(b))
	})
	return out
}

func (h *Host) arrivalState(a pendingArrival) arrivalState {
	s := arrivalState{token: arrivalUnowned, claim: a.claim, source: sourceUnasked}
	inst, known := h.tracker.Instance(a.ref.Instance)
	switch {
	case h.attempts.Accepted(a.ref):
		s.token = arrivalOwned
	case h.attempts.GoneOn(a.ref):
		s.token = arrivalMoved
	case known && inst.Token.State == claims.TokenHere:
		s.token = arrivalOther
	}
	h.sides.mu.Lock()
	heard, ever := h.sides.heard[memory.Key(a.ref)]
	h.sides.mu.Unlock()
	patience := h.o.Silence
	if s.token == arrivalOwned {
		patience /= 6 // its guest may stand still
	}
	s.heard = ever && h.rt.Boot().Since-heard < patience
	return s
}

// lookAtArrival does what the table says about one arrival. Its error is what the
// arrival waits for.
func (h *Host) lookAtArrival(ctx context.Context, a pendingArrival, silent map[string]bool) error {
	if a.way == wayEvacuated {
		return h.lookAtEvacuation(ctx, a)
	}
	s := h.arrivalState(a)
	var err error
	if s.half, err = h.lookAtHalf(ctx, a); err != nil {
		return err
	}
	then, why := decideArrival(s)
	var fate *migration.AttemptFate
	if then == arrivalAsk {
		if s.token != arrivalOwned && !h.timeToAsk(a.ref) {
			return nil
		}
		if !silent[a.asked()] {
			if fate, err = h.askSource(ctx, a); err != nil {
				return err
			}
		}
		epoch := uint64(0)
		if s.token == arrivalOwned {
			epoch = h.attempts.Epoch(a.ref.Instance)
		}
		s.source = wordOfSource(fate, epoch)
		silent[a.asked()] = s.source == sourceSilent
		then, why = decideArrival(s)
	}
	log := h.log.With("instance", a.ref.Instance, "migration", a.ref.Migration, "attempt", a.ref.Attempt, "source", a.source, "why", why)
	switch then {
	case arrivalWait:
		if s.heard {
			h.awaitSide(a, "", false)
		} else {
			h.awaitSide(a, "host "+a.asked()+": "+why, false)
		}
		return nil
	case arrivalDoubt, arrivalAsk:
		waits := "host " + a.asked() + ": " + why
		if fate != nil {
			waits += ": " + fate.Why
		}
		return fault.New(fault.InDoubt, "%s", waits)
	case arrivalFinish:
		if a.way != wayLive && h.waits(a.ref) && !h.timeToAsk(a.ref) {
			return nil // it could not be finished a moment ago, and does not stand still
		}
		log.Info("finish a move alone")
		err = h.finishAlone(ctx, a)
	case arrivalAccept:
		log.Info("accept the token of a move whose conductor is silent")
		if err = h.proven(a.ref, *fate.Commit); err == nil {
			err = h.takeIn(ctx, a, *fate.Commit)
		}
	case arrivalRollBack:
		log.Info("end an arrival whose source keeps the guest")
		err = h.endArrival(ctx, a)
	case arrivalYield:
		log.Warn("give way to a higher epoch", "holder", fate.Holder)
		if err = h.ownedThere(a, *fate); err == nil {
			err = h.yieldToken(ctx, a.ref, fate.Epoch, fate.Holder)
		}
	}
	if err == nil {
		h.awaitSide(a, "", false)
		if h.o.Owners != nil {
			h.o.Owners.Kick()
		}
	}
	return err
}

// lookAtHalf reports whether an arrival runs here while part of its memory is still at its
// source, and sees that the way is there by which that comes.
func (h *Host) lookAtHalf(ctx context.Context, a pendingArrival) (bool, error) {
	rec, found, err := memory.Recall[preparation](h.memory, a.ref, memoryPrepared)
	if err != nil || !found || !rec.PostCopy || rec.Prepared == nil || a.way != wayLive {
		return false, err
	}
	d, exists, err := h.domain(ctx, a.ref.Instance)
	if err != nil || !exists || !d.InPostCopy() {
		return false, err
	}
	unlock, err := h.tryLock(ctx, a.ref.Instance)
	if err != nil {
		return true, nil // a verb is at work on it
	}
	defer unlock()
	// Again: the verb may have ended the stream because all is there.
	claim, ok := h.tracker.ByOwner(h.attempts.Owner(a.ref))
	if d, exists, err = h.domain(ctx, a.ref.Instance); err != nil || !exists || !d.InPostCopy() || !ok {
		return err == nil && exists && d.InPostCopy(), err
	}
	if err := h.streams.KeepPostCopy(ctx, a.ref, claim, rec.Source, *rec.Prepared); err != nil {
		h.log.Warn("the stream of a guest in post-copy is not there", "instance", a.ref.Instance, "migration", a.ref.Migration, "error", err)
	}
	return true, nil
}

// waits reports whether an arrival is known to wait for something.
func (h *Host) waits(ref migration.Ref) bool {
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	_, waits := h.sides.waiting[memory.Key(ref)]
	return waits
}

// timeToAsk spaces questions about one arrival out.
func (h *Host) timeToAsk(ref migration.Ref) bool {
	now := h.rt.Boot().Since
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	last, before := h.sides.asked[memory.Key(ref)]
	if before && now-last < h.o.Silence/6 {
		return false
	}
	h.sides.asked[memory.Key(ref)] = now
	return true
}

// askSource asks what became of an attempt, the conductor in the source's place where that
// is a third host; nil when no answer comes. An error is one who answers and does not say.
func (h *Host) askSource(ctx context.Context, a pendingArrival) (*migration.AttemptFate, error) {
	f, _, err := h.askWhom(ctx, a)
	return f, err
}

// askWhom is askSource; answered says that the host has answered, though perhaps not what was asked.
func (h *Host) askWhom(ctx context.Context, a pendingArrival) (f *migration.AttemptFate, answered bool, err error) {
	if h.o.Side == nil || a.asked() == "" {
		return nil, false, nil
	}
	ctx, cancel := h.rt.WithTimeout(ctx, askFate)
	defer cancel()
	side, err := h.o.Side(ctx, a.asked())
	if err != nil {
		return nil, false, nil // a host that nobody finds is one that does not answer
	}
	fate, err := side.AttemptFate(ctx, a.ref)
	switch {
	case err == nil:
		return &fate, true, nil
	case errors.Is(err, fault.Unavailable), errors.Is(err, fault.InDoubt), ctx.Err() != nil:
		return nil, false, nil
	case errors.Is(err, fault.NotFound):
		return nil, true, nil
	}
	return nil, true, fault.New(fault.InDoubt, "host %s does not say what became of it: %w", a.asked(), err)
}

// awaitSide keeps what an arrival waits for, and logs it once; empty for nothing.
func (h *Host) awaitSide(a pendingArrival, waits string, doubt bool) {
	key := memory.Key(a.ref)
	h.sides.mu.Lock()
	was, waited := h.sides.waiting[key]
	if waits == "" {
		delete(h.sides.waiting, key)
	} else {
		w := Waiting{
			Migration: a.ref.Migration, Instance: a.ref.Instance, Attempt: a.ref.Attempt, Source: a.source, Conductor: a.conductor, Leaves: a.leaves,
			Since: was.Since, For: waits, since: was.since,
		}
		switch now := h.rt.Boot().Since; {
		case !doubt:
			w.since = -1
		case !waited || was.since < 0:
			w.since = now
		}
		// A source whose agent is being restarted is no doubt yet.
		w.InDoubt = doubt && h.rt.Boot().Since-w.since >= h.o.Silence
		if !waited {
			w.Since = h.rt.Now().UTC()
		}
		h.sides.waiting[key] = w
	}
	h.sides.mu.Unlock()
	if waits != "" && was.For != waits && doubt {
		h.log.Warn("a guest waits", "instance", a.ref.Instance, "migration", a.ref.Migration, "for", waits)
	}
}

// finishAlone does what the conductor would have asked for: the guest is this host's.
func (h *Host) finishAlone(ctx context.Context, a pendingArrival) error {
	came, ok := h.tracker.Came(a.ref.Migration)
	if !ok {
		// An older agent took it in: what its user had chosen is in the context.
		came = migration.Commit{
			Instance: a.ref.Instance, Migration: a.ref.Migration, Attempt: a.ref.Attempt, Epoch: h.attempts.Epoch(a.ref.Instance),
			From: a.source, To: h.o.Name, Power: a.power,
		}
	}
	if err := h.takeIn(ctx, a, came); err != nil || a.conductor == "" {
		return err
	}
	// Its source may be shown still: of the two this one has the higher epoch.
	return h.showInstance(ctx, a.ref)
}
