package host

import (
	"cmp"

	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// Seals sign commits that others carry, and check those of other hosts. Package
// internal/pki has the keys.
type Seals interface {
	// Seal signs a commit of this host, its Seal aside. An error is a key that cannot be
	// read: the commit stands, and is asked for again.
	Seal(c migration.Commit) (*migration.Seal, error)
	// Check is nil when c.Seal is From's own signature over c, by a certificate of this
	// fleet that was valid when it signed.
	Check(c migration.Commit) error
}

// carried reports whether a commit is carried by a host that is neither its giver nor its
// receiver: then its word alone would bring a guest, or send it back.
//
//	conductor   of the commit        a seal is
//	source      any                  not needed: it is From, or the receiver asked for it itself
//	receiver    any                  not needed: it asked From itself
//	a third     there, or back       From's, and checked by the receiver before it accepts
func carried(mc claims.MigrationContext, from, to string) bool {
	conductor := cmp.Or(mc.Conductor, mc.Source)
	return conductor != "" && conductor != from && conductor != to
}

// sealed is a commit of this host as it travels. It is signed anew each time that it is
// asked for: the one before may have been lost, or refused.
func (h *Host) sealed(mc claims.MigrationContext, c migration.Commit) (migration.Commit, error) {
	if h.o.Seals == nil || !carried(mc, c.From, c.To) {
		return c, nil
	}
	s, err := h.o.Seals.Seal(c)
	if err != nil {
		return migration.Commit{}, fault.New(fault.Unavailable, "seal the commit: %w", err)
	}
	c.Seal = s
	return c, nil
}

// proven refuses a commit that a third host has brought and that the host which the guest
// left has not signed: nothing is accepted on a conductor's word.
func (h *Host) proven(ref migration.Ref, c migration.Commit) error {
	mc, ok := h.attempts.ContextOf(ref)
	if h.o.Seals == nil || !ok || !carried(mc, c.From, h.o.Name) {
		return nil
	}
	refuse := func(message, want, have string) error {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "seal", Message: message, Want: want, Have: have, Change: "nothing; the conductor asks " + c.From + " for it anew",
		})
	}
	peer := mc.Source
	if peer == h.o.Name {
		peer = mc.Destination // it comes back
	}
	switch {
	case c.From != peer:
		return refuse("the commit is of "+c.From+", and the guest is to come from "+peer, peer, c.From)
	case c.Seal == nil:
		return refuse("the commit comes by "+mc.Conductor+", without the seal of "+c.From, "the seal of "+c.From, "")
	}
	switch err := h.o.Seals.Check(c); {
	case err == nil:
		return nil
	case unanswered(err):
		return err // what it is checked by could not be read
	default:
		return refuse("the seal of the commit that "+mc.Conductor+" has brought is not the one of "+c.From+": "+err.Error(), "the seal of "+c.From, "")
	}
}

// maySeal refuses, before a token leaves, where its commit could not be signed: the guest
// would be nobody's until it can.
func (h *Host) maySeal(mc claims.MigrationContext, ref migration.Ref, to string) error {
	// Of epoch 0, which nobody accepts.
	_, err := h.sealed(mc, migration.Commit{Instance: ref.Instance, Migration: ref.Migration, Attempt: ref.Attempt, From: h.o.Name, To: to})
	return err
}
