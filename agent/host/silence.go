package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth/agent/host/allocation"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// A guest that is off for a move which another host conducts stays off for as long as that
// host is silent, and nobody else gives it back. So the host that has its token, which
// alone says whether it goes, does not wait for ever: what it knows and what it does then
// is the table below.

// outgoing is a guest that this host has, on a move that another host conducts.
type outgoing struct {
	ref       migration.Ref
	conductor string
	to        string // where the guest is to go
	back      bool   // it came by this migration, and is on its way back
}

// outgoingState is what this host knows of it.
type outgoingState struct {
	token     tokenAt
	conductor conductorWord
	alone     bool // this host has decided by itself that the guest stays, which is on record
	refused   bool // every hand-over of the attempt is refused
	undone    bool // the guest was given back what was taken, and nothing is left of it
	fit       bool // it can live here
	placed    placedWord
}

// conductorWord is how long the conductor was not heard of.
type conductorWord string

const (
	conductorHeard  conductorWord = "heard"
	conductorQuiet  conductorWord = "quiet"  // for a while
	conductorSilent conductorWord = "silent" // for Options.ConductorSilence
)

// placedWord is what Placement says of the two consumers of the move.
type placedWord string

const (
	placedUnasked   placedWord = "unasked"
	placedUnknown   placedWord = "unknown"   // it does not answer
	placedHere      placedWord = "here"      // this host's half is held still, or nobody keeps any
	placedElsewhere placedWord = "elsewhere" // the guest is counted elsewhere, and this host's half is given up
)

// outgoingAction is what this host does about it by itself.
type outgoingAction string

const (
	outgoingRest    outgoingAction = "rest"     // nothing
	outgoingTell    outgoingAction = "tell"     // nothing, and say so
	outgoingDecide  outgoingAction = "decide"   // durably: the guest stays, and no hand-over of the attempt passes any more
	outgoingAsk     outgoingAction = "ask"      // Placement, whether the guest was settled elsewhere
	outgoingRestore outgoingAction = "restore"  // connections, disks and power state as they were
	outgoingDoubt   outgoingAction = "in doubt" // nothing, and tell the operator
)

// outgoingRow is one row of the table. An empty set stands for any value.
type outgoingRow struct {
	token     []tokenAt
	conductor []conductorWord
	alone     []bool
	refused   []bool
	undone    []bool
	fit       []bool
	placed    []placedWord
	then      outgoingAction
	why       string
}

// outgoingTable is what a host does alone whose conductor is silent; the first row that
// matches counts. It never gives a guest away, it only keeps it, and by the same record by
// which it refuses every later hand-over: so whoever else has a whole copy gets no token for it. What an
// operator has said elsewhere of a host that was taken for dead it sees in Placement, since
// his word ends this host's half there.
var outgoingTable = []outgoingRow{
	{token: []tokenAt{tokenGone, tokenUnknown},
		then: outgoingRest, why: "the guest has left: the rest is not this host's to decide"},
	{alone: []bool{false}, conductor: []conductorWord{conductorHeard},
		then: outgoingRest, why: "the conductor works on it"},
	{alone: []bool{false}, fit: []bool{false},
		then: outgoingDoubt, why: "the guest cannot live here, and only its conductor takes it back"},
	{alone: []bool{false}, conductor: []conductorWord{conductorQuiet},
		then: outgoingTell, why: "the conductor is silent"},
	{alone: []bool{false},
		then: outgoingDecide, why: "the conductor is silent for too long: the guest stays here"},
	{refused: []bool{false},
		then: outgoingDecide, why: "it is decided that the guest stays here"},
	{undone: []bool{true}, conductor: []conductorWord{conductorHeard},
		then: outgoingRest, why: "the guest is as it was, and the conductor undoes the rest"},
	{undone: []bool{true},
		then: outgoingTell, why: "the guest stays here and is as it was; what is left of the move is undone when its conductor comes back, or an operator settles it"},
	{placed: []placedWord{placedUnasked},
		then: outgoingAsk, why: "the guest stays here, unless it was settled elsewhere"},
	{placed: []placedWord{placedUnknown},
		then: outgoingTell, why: "the guest stays here, and is not started before Placement has said that it was not settled elsewhere"},
	{placed: []placedWord{placedElsewhere},
		then: outgoingDoubt, why: "the conductor is silent, and Placement has the guest elsewhere: somebody may have settled it there"},
	{then: outgoingRestore, why: "the guest stays here"},
}

func decideOutgoing(s outgoingState) (outgoingAction, string) {
	row := outgoingTable[outgoingRowOf(s)]
	return row.then, row.why
}

// outgoingRowOf is the index of the row that counts; the last matches everything.
func outgoingRowOf(s outgoingState) int {
	return slices.IndexFunc(outgoingTable, func(r outgoingRow) bool {
		return in(r.token, s.token) && in(r.conductor, s.conductor) && in(r.alone, s.alone) && in(r.refused, s.refused) &&
			in(r.undone, s.undone) && in(r.fit, s.fit) && in(r.placed, s.placed)
	})
}

func (s outgoingState) String() string {
	return fmt.Sprintf("token %s, conductor %s, alone %v, refused %v, undone %v, fit %v, placed %s",
		s.token, s.conductor, s.alone, s.refused, s.undone, s.fit, s.placed)
}

// memoryAlone is under which a host remembers that it has decided alone.
const memoryAlone = "decided_alone"

// decidedAlone is the record, durable before the refusal that follows from it.
type decidedAlone struct {
	At  time.Time `json:"at"`
	Why string    `json:"why"`
	// Restored: the guest was given back what was taken, and whatever would take it again is
	// late.
	Restored bool `json:"restored,omitempty"`
}

// Moved is an ability of a Placement, found by a type assertion: it tells what became of
// the two consumers of a move, and ends them by an operator's word.
type Moved interface {
	// SettledElsewhere reports whether the instance is counted on other hosts alone, and the
	// migration's consumer, which holds what this host keeps for it, holds nothing any more.
	SettledElsewhere(ctx context.Context, instance, migration string) (bool, error)
	// CountedHere reports whether the instance holds something of this host's own providers. A disk
	// that hosts share says nothing.
	CountedHere(ctx context.Context, instance string) (bool, error)
	// SettleHere makes the instance hold what its claim here does and nothing else, and the
	// migration's consumer nothing, in one write.
	SettleHere(ctx context.Context, a allocation.Allocation, migration string) error
	// SettleThere ends the migration's consumer, and what the instance holds of this host
	// beside what it holds of others.
	SettleThere(ctx context.Context, instance, migration string) error
	// SettleBack gives the instance what it held before the move, which by class was old, and ends
	// the migration's consumer, in one write: what that one holds, and what the instance holds of
	// providers that both hosts share. Nothing where Swapped is false.
	SettleBack(ctx context.Context, instance, migration string, old topology.Resources) error
	// Swapped reports whether that one holds anything, and the instance something of this host
	// alone.
	Swapped(ctx context.Context, instance, migration string) (bool, error)
	// Kept reports whether the migration's consumer holds anything.
	Kept(ctx context.Context, migration string) (bool, error)
	// SettleNobody ends the migration's consumer, and leaves the instance's as it is.
	SettleNobody(ctx context.Context, instance, migration string) error
}

// conductedElsewhere gives the guests of this host that are on moves which another host
// conducts, in order of migration.
func (h *Host) conductedElsewhere() []outgoing {
	var out []outgoing
	for _, mc := range h.tracker.Contexts() {
		conductor := h.conductorOf(mc.Migration)
		if conductor == "" || h.attempts.InPlace(mc.Source, mc.Destination) || h.external.Foreign(claims.Owner{Migration: mc.Migration}) {
			continue
		}
		ref := migration.Ref{Migration: mc.Migration, Instance: mc.Instance, Attempt: h.tracker.ContextAttempt(mc.Migration)}
		came := h.tracker.Accepted(mc.Migration)
		switch {
		case mc.Source == h.o.Name && came == 0:
			out = append(out, outgoing{ref: ref, conductor: conductor, to: mc.Destination})
		case mc.Destination == h.o.Name && came > 0:
			if ref.Attempt = h.goesBackBy(mc.Migration, came); ref.Attempt > 0 {
				out = append(out, outgoing{ref: ref, conductor: conductor, to: mc.Source, back: true})
			}
		}
	}
	return out
}

// goesBackBy is the last attempt by which a guest that came with an earlier one is taken
// back, of which anything is left to undo; 0 for none.
func (h *Host) goesBackBy(id string, came int) int {
	last := 0
	for _, step := range []string{memoryPower, memoryAlone} {
		for _, r := range h.tracker.Remembering(step) {
			if r.Migration == id && r.Attempt > came {
				last = max(last, r.Attempt)
			}
		}
	}
	return last
}

// conductorOf is the other host that conducts a migration, where that is not its source;
// empty for none, and where this host's own agent does.
func (h *Host) conductorOf(id string) string {
	if c := h.tracker.Conductor(id); c != h.o.Name {
		return c
	}
	return ""
}

// lookAtOutgoing does what the table says about each, and gives those that it has looked
// at, so that what is known of their conductors is kept.
func (h *Host) lookAtOutgoing(ctx context.Context) []pendingArrival {
	var seen []pendingArrival
	of := map[migration.Ref]bool{}
	for _, o := range h.conductedElsewhere() {
		a := pendingArrival{ref: o.ref, source: o.to, conductor: o.conductor, leaves: true}
		seen, of[memory.At(o.ref, memoryAlone)] = append(seen, a), true
		if ctx.Err() != nil {
			continue
		}
		waits, err := h.lookAtOne(ctx, o)
		if err != nil {
			waits = err.Error()
		}
		if ctx.Err() == nil {
			h.awaitSide(a, waits, fault.KindOf(err) == fault.InDoubt)
		}
	}
	// Its conductor has come back and undone the rest, or begun anew.
	for _, r := range h.tracker.Remembering(memoryAlone) {
		known := slices.ContainsFunc(seen, func(a pendingArrival) bool { return a.ref.Migration == r.Migration && a.ref.Attempt == r.Attempt })
		if known || ctx.Err() != nil {
			continue
		}
		r.Instance = h.instanceOf(r.Migration)
		if err := h.tracker.Unremember(ctx, r); err != nil {
			h.log.Warn("what a host has decided alone is remembered still", "migration", r.Migration, "error", err)
		}
	}
	return seen
}

// instanceOf is whose migration it is, by what is recorded here; any where nothing is.
func (h *Host) instanceOf(id string) string {
	if mc, ok := h.tracker.Context(id); ok {
		return mc.Instance
	}
	return id
}

// lookAtOne does what the table says about one guest, as far as it goes in one turn. waits is
// what to tell; an error of the doing is told in its place.
func (h *Host) lookAtOne(ctx context.Context, o outgoing) (waits string, err error) {
	log := h.log.With("instance", o.ref.Instance, "migration", o.ref.Migration, "attempt", o.ref.Attempt, "conductor", o.conductor)
	placed := placedUnasked
	for range len(outgoingTable) {
		s, err := h.outgoingState(o)
		if err != nil {
			return "", err
		}
		s.placed = placed
		then, why := decideOutgoing(s)
		switch then {
		case outgoingRest:
			return "", nil
		case outgoingTell:
			return h.sayOutgoing(o, s, why), nil
		case outgoingDoubt:
			return "", fault.New(fault.InDoubt, "host %s: %s", o.conductor, why)
		case outgoingAsk:
			placed = h.whereCounted(ctx, o.ref)
			continue
		case outgoingDecide:
			if !s.alone {
				log.Warn("decide alone that a guest stays, since the conductor of its move is silent", "silence", h.o.ConductorSilence)
			}
			if err := h.decideAlone(ctx, o, s, why); err != nil {
				return "", err
			}
		case outgoingRestore:
			if err := h.restoreAlone(ctx, o.ref); err != nil {
				return "", err
			}
			log.Info("a guest whose move nobody conducts is as it was")
		}
	}
	return "", nil
}

// sayOutgoing is what a guest waits for, in an operator's words.
func (h *Host) sayOutgoing(o outgoing, s outgoingState, why string) string {
	if s.alone {
		return "host " + o.conductor + ": " + why
	}
	left := h.o.ConductorSilence - h.silentFor(o.ref)
	return fmt.Sprintf("host %s: %s; in %s the guest stays here by itself, as it was", o.conductor, why, max(left, 0).Round(time.Second))
}

// silentFor is how long nothing was heard of the conductor of an attempt. A process that has
// just started has heard of none: it counts from when it looked first. One whose request is
// being answered waits for this host, and is not silent.
func (h *Host) silentFor(ref migration.Ref) time.Duration {
	now := h.rt.Boot().Since
	h.sides.mu.Lock()
	defer h.sides.mu.Unlock()
	last, ever := h.sides.heard[memory.Key(ref)]
	if !ever {
		h.sides.heard[memory.Key(ref)] = now
	}
	if !ever || h.sides.asking[memory.Key(ref)] != nil {
		return 0
	}
	return now - last
}

func (h *Host) outgoingState(o outgoing) (outgoingState, error) {
	s := outgoingState{token: tokenUnknown, refused: h.tracker.CommitRefused(o.ref.Migration, o.ref.Attempt), conductor: conductorHeard, fit: true}
	switch inst, known := h.tracker.Instance(o.ref.Instance); {
	case known && inst.Token.State == claims.TokenHere:
		s.token = tokenHere
	case known:
		s.token = tokenGone
	}
	s.conductor = h.conductorWord(o.ref)
	decided, alone, err := memory.Recall[decidedAlone](h.memory, o.ref, memoryAlone)
	if err != nil {
		return s, err
	}
	s.alone = alone
	_, off, err := memory.Recall[poweredOff](h.memory, o.ref, memoryPower)
	if err != nil {
		return s, err
	}
	_, held, err := h.snapshotOf(o.ref)
	if err != nil {
		return s, err
	}
	_, apart, err := memory.Recall[disconnected](h.memory, o.ref, memoryDisconnect)
	if err != nil {
		return s, err
	}
	s.undone = decided.Restored && !off && !held && !apart
	if o.back {
		came := o.ref
		came.Attempt = h.tracker.Accepted(o.ref.Migration)
		rec, found, err := memory.Recall[coldPreparation](h.memory, came, memoryPreparedCold)
		if err != nil {
			return s, err
		}
		s.fit = !found || rec.Finished
	}
	return s, nil
}

// whereCounted asks Placement for what became of the move.
func (h *Host) whereCounted(ctx context.Context, ref migration.Ref) placedWord {
	moved, ok := h.o.Placement.(Moved)
	if !ok {
		return placedHere
	}
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	switch elsewhere, err := moved.SettledElsewhere(ctx, ref.Instance, ref.Migration); {
	case err != nil:
		return placedUnknown
	case elsewhere:
		return placedElsewhere
	}
	return placedHere
}

// decideAlone makes durable that a guest stays: first that this host has said so by itself,
// then that every hand-over of the attempt is refused. A hand-over that was first wins.
func (h *Host) decideAlone(ctx context.Context, o outgoing, s outgoingState, why string) error {
	if !s.alone {
		if err := h.memory.Remember(ctx, o.ref, memoryAlone, decidedAlone{At: h.rt.Now().UTC(), Why: why}); err != nil {
			return err
		}
	}
	err := h.keepGuest(ctx, o.ref)
	if errors.Is(err, fault.Forbidden) {
		return h.tracker.Unremember(ctx, memory.At(o.ref, memoryAlone)) // it has left, and is not this host's any more
	}
	return err
}

// restoreAlone gives a guest back what was taken, and remembers that it has.
func (h *Host) restoreAlone(ctx context.Context, ref migration.Ref) error {
	if err := h.stayAsItWas(ctx, ref); err != nil {
		return err
	}
	rec, found, err := memory.Recall[decidedAlone](h.memory, ref, memoryAlone)
	if err != nil || !found {
		return err
	}
	rec.Restored = true
	return h.memory.Remember(ctx, ref, memoryAlone, rec)
}

// stayAsItWas gives a guest that stays what was taken from it for an attempt: the undos of
// its conductor, in its order.
func (h *Host) stayAsItWas(ctx context.Context, ref migration.Ref) error {
	for _, undo := range []operation.Step{operation.Reconnect, operation.DropSnapshot, operation.PowerOn} {
		if err := undo.Ask(ctx, unasked{h}, ref); err != nil {
			return err
		}
	}
	return nil
}

// StaysAlone reports whether a guest that is on a move is here for good by this host's own
// decision, and as it was: its user may start and stop it.
func (h *Host) StaysAlone(uuid string) bool {
	for _, r := range h.tracker.Remembering(memoryAlone) {
		mc, ok := h.tracker.Context(r.Migration)
		if !ok || mc.Instance != uuid {
			continue
		}
		ref := migration.Ref{Migration: r.Migration, Instance: uuid, Attempt: r.Attempt}
		rec, _, err := memory.Recall[decidedAlone](h.memory, ref, memoryAlone)
		inst, known := h.tracker.Instance(uuid)
		return err == nil && rec.Restored && known && inst.Token.State == claims.TokenHere && h.tracker.CommitRefused(r.Migration, r.Attempt)
	}
	return false
}
