// Package attempts reads from a host's ledger what stands there of attempts at migrations: which claim
// is whose, and whether the ownership token came or left by one of them.
//
// It writes nothing, asks nobody and never blocks.
package attempts

import (
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// Ledger is one host's ledger, as attempts see it. Safe for concurrent use.
type Ledger struct {
	Host    string // its name
	Tracker *claims.Tracker
	// Conducting names the migration that a conductor of this agent has not ended for an instance,
	// before and after the ledger shows one; nil where there is no conductor.
	Conducting func(instance string) (migration string, moving bool)
}

// OwnerOf is the owner of an attempt's claim of that kind.
func OwnerOf(ref migration.Ref, kind claims.Kind) claims.Owner {
	return claims.Owner{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, Kind: kind}
}

// RefOf is the attempt to which an owner belongs.
func RefOf(o claims.Owner) migration.Ref {
	return migration.Ref{Migration: o.Migration, Instance: o.Instance, Attempt: o.Attempt}
}

// Owner is whose claim here is this attempt's, of whatever kind and also where it has
// become the instance's; a live migration's where the attempt has none here.
func (l *Ledger) Owner(ref migration.Ref) claims.Owner {
	o := OwnerOf(ref, claims.KindLiveMigration)
	for _, c := range l.Tracker.ByInstance(ref.Instance) {
		if c.Owner.Migration == ref.Migration && c.Owner.Attempt == ref.Attempt {
			return c.Owner
		}
		if from := c.BoundFrom; from != nil && from.Migration == ref.Migration && from.Attempt == ref.Attempt {
			o.Kind = from.Kind
		}
	}
	return o
}

// BoundBy is the claim that became the instance's by this attempt.
func (l *Ledger) BoundBy(ref migration.Ref) (claims.Claim, bool) {
	for _, c := range l.Tracker.ByMigration(ref.Migration) {
		if from := c.BoundFrom; from != nil && *from == OwnerOf(ref, from.Kind) {
			return c, true
		}
	}
	return claims.Claim{}, false
}

// ClaimOf is the claim that holds what the guest uses here: bound, by whatever
// way it came.
func (l *Ledger) ClaimOf(uuid string) (claims.Claim, bool) {
	for _, c := range l.Tracker.ByInstance(uuid) {
		if c.State == claims.Bound {
			return c, true
		}
	}
	return claims.Claim{}, false
}

// HeldFor is what is held here of a guest that has left by this migration.
func (l *Ledger) HeldFor(ref migration.Ref) (claims.Claim, bool) {
	for _, c := range l.Tracker.ByMigration(ref.Migration) {
		if c.Owner.Instance == ref.Instance && c.Owner.Migration == ref.Migration {
			return c, true
		}
	}
	return claims.Claim{}, false
}

// Recorded reports whether this host has anything of the migration by which a guest may
// be powered off.
func (l *Ledger) Recorded(ref migration.Ref) bool {
	if mc, ok := l.Tracker.Context(ref.Migration); ok && mc.Instance == ref.Instance {
		return true
	}
	for _, c := range l.Tracker.ByMigration(ref.Migration) {
		if c.Owner.Instance == ref.Instance {
			return true
		}
	}
	return false
}

// ContextOf is the context of a migration, by whichever half of it is here.
func (l *Ledger) ContextOf(ref migration.Ref) (claims.MigrationContext, bool) {
	if mc, ok := l.Tracker.Context(ref.Migration); ok {
		return mc, true
	}
	for _, c := range l.Tracker.ByMigration(ref.Migration) {
		if c.Context != nil && (c.Owner.Attempt == ref.Attempt || c.Owner.Migration == "") {
			return *c.Context, true
		}
	}
	return claims.MigrationContext{}, false
}

// Changed reports whether a guest uses what a change of this migration on this host gave
// it: the other half is held for the change, and the guest's own claim came by it.
func (l *Ledger) Changed(ref migration.Ref) bool {
	for _, c := range l.Tracker.ByMigration(ref.Migration) {
		if c.Owner.Kind == claims.KindInstance && c.Owner.Instance == ref.Instance {
			x, ok := l.ContextOf(migration.Ref{Migration: ref.Migration, Instance: ref.Instance, Attempt: c.BoundFrom.Attempt})
			return ok && l.InPlace(x.Source, x.Destination)
		}
	}
	return false
}

// InPlace reports whether a move between these two stays on this host.
func (l *Ledger) InPlace(source, destination string) bool {
	return source == l.Host && destination == l.Host
}

// Accepted reports whether the token is here, and came by this attempt.
func (l *Ledger) Accepted(ref migration.Ref) bool {
	inst, ok := l.Tracker.Instance(ref.Instance)
	return ok && inst.Token.State == claims.TokenHere && inst.Token.Migration == ref.Migration && l.Tracker.Accepted(ref.Migration) == ref.Attempt
}

// Came reports whether a guest is here by this migration, at an attempt before this one:
// then this one takes it back.
func (l *Ledger) Came(ref migration.Ref) bool {
	a := l.Tracker.Accepted(ref.Migration)
	return a > 0 && a < ref.Attempt
}

// GoneOn reports whether the guest came here by this attempt, was finished, and
// has been moved on or deleted since: its claim can go by no other way.
func (l *Ledger) GoneOn(ref migration.Ref) bool {
	if l.Tracker.Accepted(ref.Migration) != ref.Attempt {
		return false
	}
	if inst, ok := l.Tracker.Instance(ref.Instance); ok && inst.Token.Migration == ref.Migration && inst.Token.State == claims.TokenHere {
		return false
	}
	_, claimed := l.Tracker.ByOwner(l.Owner(ref))
	return !claimed
}

// Returned reports whether a guest that left by this attempt has come back by a later one.
func (l *Ledger) Returned(ref migration.Ref) bool {
	return l.Tracker.Accepted(ref.Migration) > ref.Attempt
}

// Epoch is this host's epoch of a guest's token, wherever that is; 0 for none.
func (l *Ledger) Epoch(instance string) uint64 {
	inst, _ := l.Tracker.Instance(instance)
	if inst.Token.State == claims.TokenDoubt {
		return 0 // whatever somebody knows is above it
	}
	return inst.Token.Epoch
}

// Moving names the migration that an instance is in, as source or destination.
func (l *Ledger) Moving(uuid string) (string, bool) {
	for _, c := range l.Tracker.Contexts() {
		if c.Instance == uuid {
			return c.Migration, true
		}
	}
	for _, c := range l.Tracker.ByInstance(uuid) {
		if c.Owner.Migration != "" {
			return c.Owner.Migration, true
		}
	}
	if l.Conducting != nil {
		return l.Conducting(uuid)
	}
	return "", false
}

// TooLate refuses the undo of what has brought an instance here.
func TooLate(host string) error {
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "token_here", Message: "the guest is " + host + "'s: its token is here", Change: "nothing; the move is past its point of no return",
	})
}
