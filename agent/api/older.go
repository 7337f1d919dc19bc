package api

import (
	"slices"

	"berth/migration"
)

// plainGuest is a guest as agents know it that keep no record of what its disks were made
// from; false where it is one already.
func plainGuest(g migration.Guest) (migration.Guest, bool) {
	if !slices.ContainsFunc(g.Disks, func(d migration.Disk) bool { return d.Image != nil }) {
		return g, false
	}
	g.Disks = slices.Clone(g.Disks)
	for i := range g.Disks {
		g.Disks[i].Image = nil
	}
	return g, true
}

// orPlainer asks, and where an agent does not know all that is said asks once more without
// what it can do without: plain takes that out, and is false where there is nothing of it.
func orPlainer(ask func() error, plain func() bool) error {
	err := ask()
	if unknownField(err) && plain() {
		err = ask()
	}
	return err
}
