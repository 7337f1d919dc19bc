package external

import (
	"context"

	"github.com/google/uuid"

	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
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

// givenAway are the words of tools on one host.
type givenAway struct {
	host    string
	tracker *claims.Tracker
	memory  *memory.Memory
}

// toOther refuses a second word about a guest.
func (g givenAway) toOther(ref migration.Ref, to string) error {
	for _, r := range g.tracker.Remembering(memoryGiven) {
		was, _, err := memory.Recall[foreignGiven](g.memory, r, memoryGiven)
		switch {
		case err != nil:
			return err
		case r.Migration == ref.Migration && (was.Instance != ref.Instance || was.Destination != to):
			return fault.Refuse(fault.Exists, "", fault.Reason{
				Code: "given_differs", Message: "by this migration instance " + was.Instance + " goes to " + was.Destination, Have: was.Destination, Want: to,
				Change: "take another uuid for another move",
			})
		case r.Migration != ref.Migration && was.Instance == ref.Instance && !g.tracker.HasTombstone(memory.At(r, memoryLeft)):
			return fault.Refuse(fault.Busy, "", fault.Reason{
				Code: "given_by_another", Message: "the guest may be given to " + was.Destination + " by migration " + r.Migration, Have: r.Migration,
				Change: "take that back first: berth external " + PhaseFinishRevertResize + " --migration " + r.Migration + " on " + g.host,
			})
		}
	}
	return nil
}

// elsewhere refuses to give an instance that left by a migration of others to a host that asks
// for it, where a tool has named another host for it here and that move is still open.
func (g givenAway) elsewhere(ref migration.Ref, to string) error {
	for _, r := range g.tracker.Remembering(memoryGiven) {
		was, _, err := memory.Recall[foreignGiven](g.memory, migration.Ref(r), memoryGiven)
		if err != nil {
			return err
		}
		if _, left := g.tracker.Committed(r.Migration); left || was.Instance != ref.Instance || was.Destination == to || g.tracker.HasTombstone(memory.At(migration.Ref(r), memoryLeft)) {
			continue
		}
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_a_party", Message: "by migration " + r.Migration + " instance " + ref.Instance + " goes to " + was.Destination + ", and " + to + " asks for it",
			Have: to, Want: was.Destination,
			Change: "if it is on " + to + ", berth external " + PhaseFinishRevertResize + " --migration " + r.Migration + " on " + g.host + ", and ask again",
		})
	}
	return nil
}

// may is nil when a tool has said here that this guest goes to this host by this
// migration.
func (g givenAway) may(ref migration.Ref, to string) error {
	given, found, err := memory.Recall[foreignGiven](g.memory, ref, memoryGiven)
	if err != nil || found && given.Instance == ref.Instance && given.Destination == to {
		return err
	}
	r := fault.Reason{
		Code: "not_given", Message: "nobody has said on " + g.host + " that migration " + ref.Migration + " takes instance " + ref.Instance + " to " + to, Want: to,
		Change: "berth external " + PhaseResizeInstance + " --migration " + ref.Migration + " --instance " + ref.Instance + " --destination " + to + " on " + g.host,
	}
	if found {
		r.Message, r.Have = "by migration "+ref.Migration+" instance "+given.Instance+" goes from "+g.host+" to "+given.Destination, given.Destination
		r.Change = "ask on the host that was named, or begin anew with another uuid"
	}
	return fault.Refuse(fault.Forbidden, "", r)
}

// taken reports whether a word of this migration stands here, or was taken back.
func (g givenAway) taken(ref migration.Ref) (migration.Ref, bool, error) {
	ref = awayBy(ref)
	given, found, err := memory.Recall[foreignGiven](g.memory, ref, memoryGiven)
	if found && err == nil {
		ref.Instance = given.Instance
	}
	return ref, found || g.tracker.HasTombstone(memory.At(ref, memoryLeft)), err
}

// longestName is that of a host, as the ledger takes names. In bytes.
const longestName = 255

// hookResizeInstance makes durable, on the source, to which host a guest may be given by
// this migration. Nothing else happens; the guest may go on running.
func (x *Migrations) hookResizeInstance(ctx context.Context, ref migration.Ref, r HookRequest) error {
	if err := x.o.Managing(""); err != nil {
		return err
	}
	ref = awayBy(ref)
	switch {
	case ref.Instance == "":
		return fault.New(fault.Invalid, "name the instance that is to move")
	case r.Destination == "" || r.Destination == x.o.Host || len(r.Destination) > longestName:
		return fault.New(fault.Invalid, "name the host that the guest goes to; it is another than %s", x.o.Host)
	}
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if c, left := x.o.Tracker.Committed(ref.Migration); left && c.Attempt == attemptAway {
		switch {
		case x.o.Tracker.Accepted(ref.Migration) == attemptBack:
			return fault.New(fault.Forbidden, "it was reverted")
		case c.Instance != ref.Instance || c.To != r.Destination:
			return tokenHasLeft(c, "it lives there; move it back with another migration")
		}
		return nil // done before, and used
	}
	inst, known := x.o.Tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "instance %s is not in the ledger of %s", ref.Instance, x.o.Host)
	}
	if err := x.o.Instances.Here(inst); err != nil {
		return err
	}
	if m, moving := x.o.Attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return x.o.Instances.Still(ref.Instance)
	}
	if err := x.o.Memory.Late(ref, memoryLeft); err != nil {
		return err
	}
	if err := x.given.toOther(ref, r.Destination); err != nil {
		return err
	}
	return x.o.Memory.Remember(ctx, ref, memoryGiven, foreignGiven{Instance: ref.Instance, Destination: r.Destination})
}

// hookTakeBack takes the word back: the guest stays.
func (x *Migrations) hookTakeBack(ctx context.Context, ref migration.Ref) error {
	if ref.Instance == "" {
		return nil // done before
	}
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	if c, left := x.o.Tracker.Committed(ref.Migration); left {
		return tokenHasLeft(c, "berth external "+PhaseRevertResize+" on "+c.To+" first")
	}
	if err := x.o.Tracker.WriteTombstone(ctx, memory.At(ref, memoryLeft)); err != nil {
		return err
	}
	// Of a surrender that broke off before its commit.
	if err := x.o.Tracker.DropContext(ctx, memory.At(ref, operation.StepContext)); err != nil {
		return err
	}
	return x.o.Tracker.ForgetMigration(ctx, ref.Migration)
}

// surrenderedCold answers the other host of a tool's cold migration. One of Berth's own
// has its conductor, also while its guest is off.
func (x *Migrations) surrenderedCold(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	if id, err := uuid.Parse(ref.Migration); err != nil || id.String() != ref.Migration || ref.Attempt != attemptOf(ref.Step) {
		return migration.Commit{}, fault.New(fault.Invalid, "no tool's migration is called %q, attempt %d, when %s is asked", ref.Migration, ref.Attempt, ref.Step)
	}
	if _, tools, err := x.coldRecord(ref.Migration); err != nil {
		return migration.Commit{}, err
	} else if !tools {
		if _, err := x.foreignClaim(ref.Migration); err != nil {
			return migration.Commit{}, err
		}
	}
	if c, ok := x.o.Tracker.Committed(ref.Migration); ok && c.Attempt == ref.Attempt && c.Instance == ref.Instance && c.To == to {
		return c, x.o.Instances.LetGo(ctx, ref)
	}
	if ref.Step == hooks.FinishRevertResize {
		if _, known := x.o.Tracker.Instance(ref.Instance); !known {
			return migration.Commit{}, fault.New(fault.NotFound, "it is not in the ledger of %s", x.o.Host)
		}
		return migration.Commit{}, fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "not_given_back", Message: x.o.Host + " has not given the guest back", Change: "berth external " + PhaseRevertResize + " on " + x.o.Host + " first",
		})
	}
	return x.surrenderCold(ctx, ref, to, migration.TypeMigration)
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
func (x *Migrations) surrenderCold(ctx context.Context, ref migration.Ref, to, kind string) (migration.Commit, error) {
	none := migration.Commit{}
	unlock, err := x.o.Memory.Lock(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	inst, known := x.o.Tracker.Instance(ref.Instance)
	if !known {
		return none, fault.New(fault.NotFound, "it is not in the ledger of %s", x.o.Host)
	}
	if err := x.o.Instances.Here(inst); err != nil {
		return none, err
	}
	if m, moving := x.o.Attempts.Moving(ref.Instance); moving && m != ref.Migration {
		return none, x.o.Instances.Still(ref.Instance)
	}
	if err := x.o.Memory.Late(ref, memoryLeft); err != nil {
		return none, err
	}
	if ref.Attempt == attemptAway {
		if err := x.given.may(ref, to); err != nil {
			return none, err
		}
	}
	d, exists, err := driver.Find(ctx, x.o.Driver, ref.Instance)
	switch {
	case err != nil:
		return none, err
	case exists && d.Active():
		return none, fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "runs_here", Message: "guest " + d.Name + " is " + string(d.State) + " (" + string(d.Reason) + ") on " + x.o.Host, Change: "power it off there first",
		})
	}
	if exists {
		err = x.o.Instances.ProvenOff(ctx, d)
	} else {
		err = x.o.Instances.Absent(ctx, inst)
	}
	if err != nil {
		return none, err
	}
	own, bound := x.o.Attempts.ClaimOf(ref.Instance)
	if !bound {
		return none, fault.New(fault.Forbidden, "no claim on %s is the guest's own", x.o.Host)
	}
	if x.o.Owners != nil {
		done, err := x.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	if ref.Attempt == attemptAway {
		// First what it can come back by, then what cannot be taken back.
		rec := foreignArrival{Source: x.o.Host, Guest: inst, Kind: kind}
		if err := x.o.Memory.Remember(ctx, ref, memoryForeign, rec); err != nil {
			return none, err
		}
		mc := claims.MigrationContext{
			Migration: ref.Migration, Instance: ref.Instance, Source: x.o.Host, Destination: to, OldPowerState: migration.PowerShutOff,
		}
		holds := own.Holding(inst.Flavor)
		if err := x.o.Tracker.RecordContext(ctx, memory.At(ref, operation.StepContext), mc.WithOld(holds).WithNew(holds)); err != nil {
			return none, err
		}
	}
	c, err := x.o.Tracker.ReleaseHeldOwnership(ctx, memory.At(ref, ""), claims.KindResize, to, migration.PowerShutOff)
	if err != nil {
		return none, err
	}
	x.o.Logger.Info("the token of a guest that a tool moves while it is off leaves", "instance", ref.Instance, "migration", ref.Migration, "to", to)
	return c, x.o.Instances.LetGo(ctx, ref)
}

// followGiven forgets words that nobody can use any more: their guests are no longer
// here, or stay.
func (x *Migrations) followGiven(ctx context.Context) {
	for _, r := range x.o.Tracker.Remembering(memoryGiven) {
		given, found, err := memory.Recall[foreignGiven](x.o.Memory, r, memoryGiven)
		if err != nil || !found {
			continue
		}
		inst, known := x.o.Tracker.Instance(given.Instance)
		stands := known && inst.Token.State != claims.TokenSurrendered && !x.o.Tracker.HasTombstone(memory.At(r, memoryLeft))
		if stands || known && inst.Token.Migration == r.Migration {
			continue
		}
		r.Instance = given.Instance
		x.progress.note(ctx, given.Instance, x.o.Tracker.Unremember(ctx, r))
	}
}

func tokenHasLeft(c migration.Commit, change string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "token_has_left", Message: "the guest's ownership token went to " + c.To, Have: c.To, Change: change,
	})
}
