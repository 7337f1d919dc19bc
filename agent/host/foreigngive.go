package host

import (
	"context"

	"github.com/google/uuid"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// memoryGiven is under which a source remembers a tool's word that a guest may be given
// away by its cold migration.
const memoryGiven = "foreign_given"

// foreignGiven is that word. Without it the token of a guest that is off stays: any host
// could ask for it otherwise, by a migration that nobody here has heard of.
type foreignGiven struct {
	Instance    string `json:"instance"`
	Destination string `json:"dest_compute"`
}

// longestName is that of a host, as the ledger takes names. In bytes.
const longestName = 255

// hookResizeInstance makes durable, on the source, to which host a guest may be given by
// this migration. Nothing else happens; the guest may go on running.
func (h *Host) hookResizeInstance(ctx context.Context, ref migration.Ref, r HookRequest) error {
	if err := h.managing(""); err != nil {
		return err
	}
	ref = awayBy(ref)
	switch {
	case ref.Instance == "":
		return fault.New(fault.Invalid, "name the instance that is to move")
	case r.Destination == "" || r.Destination == h.o.Name || len(r.Destination) > longestName:
		return fault.New(fault.Invalid, "name the host that the guest goes to; it is another than %s", h.o.Name)
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if c, left := h.tracker.Committed(ref.Migration); left && c.Attempt == attemptAway {
		switch {
		case h.tracker.Accepted(ref.Migration) == attemptBack:
			return fault.New(fault.Forbidden, "it was reverted")
		case c.Instance != ref.Instance || c.To != r.Destination:
			return tokenHasLeft(c, "it lives there; move it back with another migration")
		}
		return nil // done before, and used
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "instance %s is not in the ledger of %s", ref.Instance, h.o.Name)
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	if m, moving := h.attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return h.still(ref.Instance)
	}
	if err := h.memory.Late(ref, memoryLeft); err != nil {
		return err
	}
	if err := h.givenToOther(ref, r.Destination); err != nil {
		return err
	}
	return h.memory.Remember(ctx, ref, memoryGiven, foreignGiven{Instance: ref.Instance, Destination: r.Destination})
}

// givenToOther refuses a second word about a guest.
func (h *Host) givenToOther(ref migration.Ref, to string) error {
	for _, r := range h.tracker.Remembering(memoryGiven) {
		was, _, err := memory.Recall[foreignGiven](h.memory, r, memoryGiven)
		switch {
		case err != nil:
			return err
		case r.Migration == ref.Migration && (was.Instance != ref.Instance || was.Destination != to):
			return fault.Refuse(fault.Exists, "", fault.Reason{
				Code: "given_differs", Message: "by this migration instance " + was.Instance + " goes to " + was.Destination, Have: was.Destination, Want: to,
				Change: "take another uuid for another move",
			})
		case r.Migration != ref.Migration && was.Instance == ref.Instance && !h.tracker.Buried(memory.At(r, memoryLeft)):
			return fault.Refuse(fault.Busy, "", fault.Reason{
				Code: "given_by_another", Message: "the guest may be given to " + was.Destination + " by migration " + r.Migration, Have: r.Migration,
				Change: "take that back first: berth external " + PhaseFinishRevertResize + " --migration " + r.Migration + " on " + h.o.Name,
			})
		}
	}
	return nil
}

// givenElsewhere refuses to give an instance that left by a migration of others to a host that asks
// for it, where a tool has named another host for it here and that move is still open.
func givenElsewhere(h *Host, ref migration.Ref, to string) error {
	for _, r := range h.tracker.Remembering(memoryGiven) {
		was, _, err := memory.Recall[foreignGiven](h.memory, migration.Ref(r), memoryGiven)
		if err != nil {
			return err
		}
		if _, left := h.tracker.Committed(r.Migration); left || was.Instance != ref.Instance || was.Destination == to || h.tracker.Buried(memory.At(migration.Ref(r), memoryLeft)) {
			continue
		}
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_a_party", Message: "by migration " + r.Migration + " instance " + ref.Instance + " goes to " + was.Destination + ", and " + to + " asks for it",
			Have: to, Want: was.Destination,
			Change: "if it is on " + to + ", berth external " + PhaseFinishRevertResize + " --migration " + r.Migration + " on " + h.o.Name + ", and ask again",
		})
	}
	return nil
}

// mayGive is nil when a tool has said here that this guest goes to this host by this
// migration.
func (h *Host) mayGive(ref migration.Ref, to string) error {
	given, found, err := memory.Recall[foreignGiven](h.memory, ref, memoryGiven)
	if err != nil || found && given.Instance == ref.Instance && given.Destination == to {
		return err
	}
	r := fault.Reason{
		Code: "not_given", Message: "nobody has said on " + h.o.Name + " that migration " + ref.Migration + " takes instance " + ref.Instance + " to " + to, Want: to,
		Change: "berth external " + PhaseResizeInstance + " --migration " + ref.Migration + " --instance " + ref.Instance + " --destination " + to + " on " + h.o.Name,
	}
	if found {
		r.Message, r.Have = "by migration "+ref.Migration+" instance "+given.Instance+" goes from "+h.o.Name+" to "+given.Destination, given.Destination
		r.Change = "ask on the host that was named, or begin anew with another uuid"
	}
	return fault.Refuse(fault.Forbidden, "", r)
}

// mayBeTaken reports whether a word of this migration stands here, or was taken back.
func (h *Host) mayBeTaken(ref migration.Ref) (migration.Ref, bool, error) {
	ref = awayBy(ref)
	given, found, err := memory.Recall[foreignGiven](h.memory, ref, memoryGiven)
	if found && err == nil {
		ref.Instance = given.Instance
	}
	return ref, found || h.tracker.Buried(memory.At(ref, memoryLeft)), err
}

// hookTakeBack takes the word back: the guest stays.
func (h *Host) hookTakeBack(ctx context.Context, ref migration.Ref) error {
	if ref.Instance == "" {
		return nil // done before
	}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if c, left := h.tracker.Committed(ref.Migration); left {
		return tokenHasLeft(c, "berth external "+PhaseRevertResize+" on "+c.To+" first")
	}
	if err := h.tracker.Bury(ctx, memory.At(ref, memoryLeft)); err != nil {
		return err
	}
	// Of a surrender that broke off before its commit.
	if err := h.tracker.DropContext(ctx, memory.At(ref, operation.StepContext)); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// surrenderedCold answers the other host of a tool's cold migration. One of Berth's own
// has its conductor, also while its guest is off.
func (h *Host) surrenderedCold(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	if id, err := uuid.Parse(ref.Migration); err != nil || id.String() != ref.Migration || ref.Attempt != attemptOf(ref.Step) {
		return migration.Commit{}, fault.New(fault.Invalid, "no tool's migration is called %q, attempt %d, when %s is asked", ref.Migration, ref.Attempt, ref.Step)
	}
	if _, tools, err := h.coldRecord(ref.Migration); err != nil {
		return migration.Commit{}, err
	} else if !tools {
		if _, err := h.foreignClaim(ref.Migration); err != nil {
			return migration.Commit{}, err
		}
	}
	if c, ok := h.tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt && c.Instance == ref.Instance && c.To == to {
		return c, h.letGo(ctx, ref)
	}
	if ref.Step == hooks.FinishRevertResize {
		if _, known := h.tracker.Instance(ref.Instance); !known {
			return migration.Commit{}, fault.New(fault.NotFound, "it is not in the ledger of %s", h.o.Name)
		}
		return migration.Commit{}, fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "not_given_back", Message: h.o.Name + " has not given the guest back", Change: "berth external " + PhaseRevertResize + " on " + h.o.Name + " first",
		})
	}
	return h.surrenderCold(ctx, ref, to, migration.TypeMigration)
}

// surrenderCold gives the token of a guest that is off away. What it has here is kept
// for the migration. The rows, the first that holds counts:
//
//	ledger                       domain     answer
//	not known                    any        not found: it is not this host's
//	token elsewhere              any        refused
//	moving by another migration  any        refused
//	the tool has said it stays   any        refused
//	no tool has said on the      any        refused
//	source that it goes there
//	token here                   active     refused: it would run twice
//	token here                   off, gone  surrendered
func (h *Host) surrenderCold(ctx context.Context, ref migration.Ref, to, kind string) (migration.Commit, error) {
	none := migration.Commit{}
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return none, fault.New(fault.NotFound, "it is not in the ledger of %s", h.o.Name)
	}
	if err := h.tokenHere(inst); err != nil {
		return none, err
	}
	if m, moving := h.attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return none, h.still(ref.Instance)
	}
	if err := h.memory.Late(ref, memoryLeft); err != nil {
		return none, err
	}
	if ref.Attempt == attemptAway {
		if err := h.mayGive(ref, to); err != nil {
			return none, err
		}
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return none, err
	case exists && d.Active():
		return none, fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "runs_here", Message: "guest " + d.Name + " is " + string(d.State) + " (" + string(d.Reason) + ") on " + h.o.Name, Change: "power it off there first",
		})
	}
	if exists {
		err = h.provenOff(ctx, d)
	} else {
		err = h.absent(ctx, inst)
	}
	if err != nil {
		return none, err
	}
	own, bound := h.attempts.ClaimOf(ref.Instance)
	if !bound {
		return none, fault.New(fault.Forbidden, "no claim on %s is the guest's own", h.o.Name)
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	if ref.Attempt == attemptAway {
		// First what it can come back by, then what cannot be taken back.
		rec := foreignArrival{Source: h.o.Name, Guest: inst, Kind: kind}
		if err := h.memory.Remember(ctx, ref, memoryForeign, rec); err != nil {
			return none, err
		}
		mc := claims.MigrationContext{
			Migration: ref.Migration, Instance: ref.Instance, Source: h.o.Name, Destination: to, OldPowerState: migration.PowerShutOff,
		}
		holds := own.Holding(inst.Flavor)
		if err := h.tracker.RecordContext(ctx, memory.At(ref, operation.StepContext), mc.WithOld(holds).WithNew(holds)); err != nil {
			return none, err
		}
	}
	c, err := h.tracker.SurrenderHeld(ctx, memory.At(ref, ""), claims.KindResize, to, migration.PowerShutOff)
	if err != nil {
		return none, err
	}
	h.log.Info("the token of a guest that a tool moves while it is off leaves", "instance", ref.Instance, "migration", ref.Migration, "to", to)
	return c, h.letGo(ctx, ref)
}

// followGiven forgets words that nobody can use any more: their guests are no longer
// here, or stay.
func (h *Host) followGiven(ctx context.Context) {
	for _, r := range h.tracker.Remembering(memoryGiven) {
		given, found, err := memory.Recall[foreignGiven](h.memory, r, memoryGiven)
		if err != nil || !found {
			continue
		}
		inst, known := h.tracker.Instance(given.Instance)
		stands := known && inst.Token.State != claims.TokenSurrendered && !h.tracker.Buried(memory.At(r, memoryLeft))
		if stands || known && inst.Token.Migration == r.Migration {
			continue
		}
		r.Instance = given.Instance
		h.note(ctx, given.Instance, h.tracker.Unremember(ctx, r))
	}
}

func tokenHasLeft(c migration.Commit, change string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "token_has_left", Message: "the guest's ownership token went to " + c.To, Have: c.To, Change: change,
	})
}
