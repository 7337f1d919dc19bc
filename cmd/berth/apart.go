package main

import (
	"slices"

	"github.com/spf13/pflag"

	"berth/agent/api"
	"berth/migration"
)

// apartFlags are what may be said of where a guest goes: others to try, and that the two
// hosts need not reach each other.
type apartFlags struct {
	apart      bool
	alternates []string
}

// apartHelp is the same in the help of each command that takes the flags.
const apartHelp = `With --alternate HOST, given again and again, those are tried in order when the host
before refuses, at any step before the guest is handed over.

--share-nothing is for two hosts that do not reach each other, or share neither storage
nor network. The agent that is asked conducts: name one that reaches both with -c HOST.
The guest is shut down, and its disks go straight from host to host where they can, else
by the conductor. It is off by default: you need the right share-nothing there, and the
conductor the right conduct on both hosts; what is refused says how to give it, and
` + "`berth plan INSTANCE --share-nothing -c HOST`" + ` says beforehand. See [rights] in berth.toml.`

func (x *apartFlags) register(f *pflag.FlagSet) {
	f.BoolVar(&x.apart, "share-nothing", false, "the two hosts need not reach each other: the agent that is asked conducts")
	f.StringArrayVar(&x.alternates, "alternate", nil, "`HOST` that is tried when the one before refuses; may be given again")
}

// into writes what was said into a request; live says that a live migration was asked for.
func (x *apartFlags) into(r *api.Migrate, live bool) error {
	r.ShareNothing, r.Alternates = x.apart, x.alternates
	for i, name := range x.alternates {
		if name == "" || name == r.Destination || slices.Contains(x.alternates[:i], name) {
			return misused("--alternate %q: want each host once", name)
		}
	}
	if !x.apart {
		return nil
	}
	if live || r.MigrationType == migration.TypeLiveMigration {
		return misused("--share-nothing is of a guest that is shut down for it: memory goes straight from host to host")
	}
	if r.MigrationType == "" {
		r.MigrationType = migration.TypeMigration
	}
	return nil
}
