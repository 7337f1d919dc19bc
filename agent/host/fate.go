package host

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// attemptState is what a source knows of an attempt when the destination asks what
// became of it.
type attemptState struct {
	commit   committed
	refused  bool // a commit of the attempt is refused for good
	conduct  migration.Conduct
	token    tokenAt
	context  bool // the migration's context is still recorded here
	inFlight bool // the hypervisor has a job of the guest
	left     bool // its domain is shut off (migrated), was seen so, or is in post-copy
	active   bool // its domain has its memory
}

type committed string

const (
	commitNone  committed = "none"
	commitThis  committed = "this"  // the attempt that is asked for
	commitOther committed = "other" // another attempt of the migration
)

type tokenAt string

const (
	tokenHere    tokenAt = "here"
	tokenGone    tokenAt = "gone"    // surrendered, by whatever migration
	tokenUnknown tokenAt = "unknown" // the ledger does not know the guest
)

// fateRow is one row of the table of fates. An empty set stands for any value.
type fateRow struct {
	commit   []committed
	refused  []bool
	conduct  []migration.Conduct
	token    []tokenAt
	context  []bool
	inFlight []bool
	left     []bool
	active   []bool
	then     migration.Fate
	why      string
}

// fateTable says what became of an attempt; the first row that matches counts. Kept
// lets the destination end its copy, so that it is said only where the ledger of the
// source, which alone gives the token away, has decided, or nobody is left who could
// ask it to.
var fateTable = []fateRow{
	{commit: []committed{commitThis},
		then: migration.FateCommitted, why: "the token has left by this attempt"},
	{commit: []committed{commitOther},
		then: migration.FateKept, why: "the token has left by another attempt"},
	{refused: []bool{true},
		then: migration.FateKept, why: "the source has decided to keep the guest"},
	{conduct: []migration.Conduct{migration.ConductGoing, migration.ConductSeen},
		then: migration.FateGoing, why: "the conductor works on it"},
	{conduct: []migration.Conduct{migration.ConductDone},
		then: migration.FateUnknown, why: "the conductor says that it has completed, and the ledger knows no commit"},
	{conduct: []migration.Conduct{migration.ConductOver},
		then: migration.FateKept, why: "the attempt is over, and nothing was committed"},
	// From here on no conductor knows it. Who has lost its journal has not lost its
	// guest: what may still be under way, or have left, is not for the destination to end.
	{token: []tokenAt{tokenGone, tokenUnknown},
		then: migration.FateUnknown, why: "the source has neither a record of the move nor the token"},
	{inFlight: []bool{true},
		then: migration.FateGoing, why: "the source's hypervisor has a job of the guest"},
	{left: []bool{true},
		then: migration.FateUnknown, why: "the source's domain has left, and nobody conducts the move"},
	{context: []bool{true},
		then: migration.FateUnknown, why: "the move is recorded at the source, and nobody conducts it"},
	{active: []bool{true},
		then: migration.FateKept, why: "the source has the token and the guest's memory, and nothing of the move"},
	// A ledger that was rebuilt, or is an old one, knows no more.
	{then: migration.FateUnknown, why: "the source has the token, yet its domain does not run, and nothing of the move is recorded"},
}

func fateOf(s attemptState) (migration.Fate, string) {
	i := fatedRow(s)
	return fateTable[i].then, fateTable[i].why
}

// fatedRow is the index of the row that counts; the last matches everything.
func fatedRow(s attemptState) int {
	return slices.IndexFunc(fateTable, func(r fateRow) bool {
		return in(r.commit, s.commit) && in(r.refused, s.refused) && in(r.conduct, s.conduct) && in(r.token, s.token) &&
			in(r.context, s.context) && in(r.inFlight, s.inFlight) && in(r.left, s.left) && in(r.active, s.active)
	})
}

// AttemptFate implements migration.Side.
func (h *Host) AttemptFate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	f, err := h.attemptFate(ctx, ref)
	return f, wrap(err, "say what became of attempt %d of migration %s", ref.Attempt, ref.Migration)
}

func (h *Host) attemptFate(ctx context.Context, ref migration.Ref) (migration.AttemptFate, error) {
	s := attemptState{commit: commitNone, token: tokenUnknown}
	// The conductor before the ledger: one that ends its work between the two has
	// written there what it came to.
	if h.o.Conducts != nil {
		s.conduct = h.o.Conducts(ref.Migration, ref.Attempt)
	}
	c, left := h.tracker.Committed(ref.Migration)
	switch {
	case left && c.Attempt == ref.Attempt && c.Instance == ref.Instance:
		s.commit = commitThis
	case left:
		s.commit = commitOther
	}
	s.refused = h.tracker.CommitRefused(ref.Migration, ref.Attempt)
	_, s.context = h.tracker.Context(ref.Migration)
	// Who asks of such a move is its conductor, since nobody else reaches this host.
	apart := s.context && h.conductorOf(ref.Migration) != ""
	if apart {
		h.hear(ref)
	}
	inst, known := h.tracker.Instance(ref.Instance)
	f := migration.AttemptFate{}
	f.Epoch, f.Holder = h.tracker.Epoch(ref.Instance)
	switch {
	case known && inst.Token.State == claims.TokenHere:
		s.token = tokenHere
	case known:
		s.token = tokenGone
	}
	if apart && s.conduct == migration.ConductNone && s.token == tokenHere {
		s.conduct = migration.ConductGoing
	}
	var err error
	if needsDomain(s) {
		if s.left, s.inFlight, s.active, err = h.streamTraces(ctx, ref); err != nil {
			return migration.AttemptFate{}, err
		}
	}
	f.Fate, f.Why = fateOf(s)
	if f.Fate == migration.FateUnknown {
		// A person decides then, and the destination holds his word against it.
		d, exists, err := h.domain(ctx, ref.Instance)
		switch {
		case err != nil:
		case exists:
			f.Domain, f.Active = fmt.Sprintf("%s (%s)", d.State, d.Reason), d.Active() && !d.InPostCopy()
		default:
			f.Domain = "not there"
		}
	}
	if f.Fate == migration.FateCommitted {
		if err := h.letGoCold(ctx, ref); err != nil {
			return migration.AttemptFate{}, err
		}
		mc, _ := h.attempts.ContextOf(ref)
		m, err := h.sealed(mc, c)
		if err != nil {
			return migration.AttemptFate{}, err
		}
		f.Commit = &m
	}
	if f.Fate != migration.FateCommitted && s.token == tokenHere && h.conductorOf(ref.Migration) != "" {
		if f.Commit, err = h.ownership(ref, f.Epoch); err != nil {
			return migration.AttemptFate{}, err
		}
	}
	return f, nil
}

// ownership is what a third host carries that this one has a guest's token: a commit of this
// host to itself, which nobody accepts, with its seal. Nil where nobody seals.
func (h *Host) ownership(ref migration.Ref, epoch uint64) (*migration.Commit, error) {
	if h.o.Seals == nil {
		return nil, nil
	}
	c := migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Epoch: epoch, From: h.o.Name, To: h.o.Name}
	seal, err := h.o.Seals.Seal(c)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "seal that the token is here: %w", err)
	}
	c.Seal = seal
	return &c, nil
}

// ownedThere refuses to give way to a higher epoch of which a third host alone tells: a guest
// ends by it, so the seal is needed of the host from which it came. No other can have taken
// it back, and one that can seal anything is the third host itself.
func (h *Host) ownedThere(a pendingArrival, f migration.AttemptFate) error {
	if a.conductor == "" || h.o.Seals == nil {
		return nil
	}
	c := f.Commit
	if c == nil || c.Seal == nil || c.Instance != a.ref.Instance || c.Migration != a.ref.Migration || c.From != a.source || c.To != a.source || c.Epoch != f.Epoch {
		return fault.New(fault.InDoubt, "host %s says that %s has the token with epoch %d, without the seal of %s, from where it came", a.conductor, f.Holder, f.Epoch, a.source)
	}
	return wrap(h.o.Seals.Check(*c), "see that %s has the token, as %s says", f.Holder, a.conductor)
}

// needsDomain: what the hypervisor says may make a difference.
func needsDomain(s attemptState) bool {
	with := s
	with.left, with.inFlight, with.active = true, true, true
	return fatedRow(s) != fatedRow(with)
}

// streamTraces reads whether a guest has left by a stream, or one is under way.
func (h *Host) streamTraces(ctx context.Context, ref migration.Ref) (left, inFlightNow, active bool, err error) {
	own := h.streams.Watches(ref)
	known, err := h.streams.Known(ref)
	if err != nil {
		return false, false, false, err
	}
	if h.migrator != nil {
		var job driver.Job
		if job, err = h.migrator.Job(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return false, false, false, err
		}
		inFlightNow = own || err == nil && inFlight(job)
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return false, false, false, err
	}
	// In post-copy the destination's copy runs, and nothing here is a guest without it.
	half := exists && d.InPostCopy()
	active = exists && d.Active() && !half
	return half || exists && d.HasLeft() || (known.Result == resultLeft || known.Half) && !active, inFlightNow, active, nil
}

func (s attemptState) String() string {
	return fmt.Sprintf("commit %s, refused %v, conductor %q, token %s, context %v, in flight %v, left %v, active %v",
		s.commit, s.refused, s.conduct, s.token, s.context, s.inFlight, s.left, s.active)
}
