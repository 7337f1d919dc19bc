package conductor

import (
	"context"

	"berth/migration"
)

// Fleet is what the conductor of an evacuation needs of the fleet's records (package fleet).
type Fleet interface {
	// Lost reads the record of a guest together with the proof that its host is dead.
	// fault.NotFound where nobody keeps one; fault.Forbidden, with the reason, where its host is
	// not known to be dead, or the guest is on a move; fault.Unavailable, with
	// migration.ReasonHostSilent where only another host does not say whether it has the guest.
	Lost(ctx context.Context, instance string) (migration.LostGuest, error)
	// TakeOver gives the guest's token to a host: the point of no return of an evacuation. The
	// same attempt asking again gets the same Commit. fault.Forbidden where the source has come
	// back, another evacuation was first, or GiveUp was; fault.Unavailable and fault.InDoubt
	// where nobody knows yet: ask again. It names a silent host as Lost does.
	TakeOver(ctx context.Context, ref migration.Ref, g migration.LostGuest, to string) (migration.Commit, error)
	// GiveUp has every later TakeOver of this attempt refused, and is fault.Forbidden where one
	// has succeeded. Safe to repeat.
	GiveUp(ctx context.Context, ref migration.Ref, g migration.LostGuest) error
	// Holder says which host has a guest's token by the records, and with which epoch.
	// fault.NotFound where nobody keeps one; fault.Unavailable.
	Holder(ctx context.Context, instance string) (host string, epoch uint64, err error)
	// Cleaned reports whether the source has come back and nothing of the attempt is left there
	// or in Placement, or was given up by `berth host forget`.
	Cleaned(ctx context.Context, ref migration.Ref, source string) (bool, error)
}
