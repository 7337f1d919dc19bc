package sim

import (
	"berth/claims"
	"berth/driver"
	"berth/migration"
)

// Mutant is one deliberate breakage.
type Mutant struct {
	Name  string
	What  string // in one line
	Store func(a *agent, s ledger) claims.Store
	Verbs func(a *agent, h migration.Host) migration.Host
	Calls func(a *agent, l libvirt) driver.Driver
	Asks  func(a *agent, p migration.Placement) migration.Placement
}

func (w *world) mutatedStore(a *agent, s ledger) claims.Store {
	if w.mutant != nil && w.mutant.Store != nil {
		return w.mutant.Store(a, s)
	}
	return s
}

func (w *world) mutatedPlacement(a *agent, p migration.Placement) migration.Placement {
	if w.mutant != nil && w.mutant.Asks != nil {
		return w.mutant.Asks(a, p)
	}
	return p
}

func (w *world) mutatedDriver(a *agent, l libvirt) driver.Driver {
	if w.mutant != nil && w.mutant.Calls != nil {
		return w.mutant.Calls(a, l)
	}
	return l
}

// verbs are the host's, as a mutant leaves them.
func (a *agent) verbs() migration.Host {
	if a.w.mutant != nil && a.w.mutant.Verbs != nil {
		return a.w.mutant.Verbs(a, a.host)
	}
	return a.host
}

// Mutants are all of them, in the order in which they are listed.
func Mutants() []Mutant { return nil }

// MutantNamed finds one; nil for none of that name.
func MutantNamed(name string) *Mutant {
	for _, m := range Mutants() {
		if m.Name == name {
			return &m
		}
	}
	return nil
}
