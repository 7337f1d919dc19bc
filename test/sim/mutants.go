package sim

import (
	"berth/agent/audit"
	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/fleet"
	"berth/migration"
	"berth/migration/conductor"
	"berth/migration/drain"
	"berth/migration/operation/operationtest"
	"berth/migration/task"
)

// Mutant is one deliberate breakage, made in what is around the real parts.
type Mutant struct {
	Name string
	What string // in one line

	Ledger  func(a *agent, s ledger) claims.Store // that the tracker writes to
	Journal func(a *agent, s ledger) task.Store   // that the conductor writes to
	Verbs   func(a *agent, h migration.Host) migration.Host
	Audit   func(l audit.Ledger) audit.Ledger // what an audit is told of the ledger
	Calls   func(a *agent, l libvirt) driver.Driver
	Asks    func(a *agent, p conductor.Placement) conductor.Placement
	Rare    bool            // some dozens of runs may not notice it; some hundreds do
	NoGuard bool            // what starts and arrives is let in by libvirt's hook, claim or not
	NoProcs bool            // nobody asks the kernel for processes
	Among   func() []*Story // it is looked for in these stories alone, in which nothing else breaks; nil for drawn ones
	ByHand  bool            // it is looked for in runs alone in which somebody has virsh
	Saves   bool            // it is looked for in runs alone in which somebody saves instances
	NoGate  bool            // streams are let in whoever comes
	Apart   bool            // it is looked for in moves alone between hosts that share nothing
	NoSeals bool            // commits are taken from whoever brings them

	NoParty  bool // hosts do what any host asks for
	NoPermit bool // the fleet's records are written by whoever asks

	Fleet     func(a *agent, f conductor.Fleet) conductor.Fleet
	Store     func(a *agent, s wire) fleet.Store // that the fleet's records are asked by
	FedAlways bool                               // its watchdog is fed without a lease
	Dies      bool                               // it is looked for in stories alone in which hosts die
	HalfStays bool                               // what a source gives up in Placement stays
	Living    bool                               // evacuations are asked of hosts that live
	Unasked   bool                               // a boot is confirmed without asking the records

	// Drain makes of a drain's host, its records and its limits others. Drains: it is looked for
	// in stories of drains alone, and hosts do not bound what arrives.
	Drain  func(*agent, drain.Host, task.Store, drain.Limits) (drain.Host, task.Store, drain.Limits)
	Drains bool

	PostCopy  func(a *agent, h *host.Host) migration.PostCopySource
	Halves    bool   // it is looked for in stories alone of guests that do not converge
	Unbounded string // the limit of live moves that agents do not hold; see ofHost
}

// MutantNamed finds one; nil for none of that name.
func MutantNamed(name string) *Mutant {
	for _, m := range Mutants() {
		if m.Name == name {
			return &m
		}
	}
	return nil
}

// mutated gives what a mutant makes of a part of an agent.
func mutated[T, M any](a *agent, part T, of func(*Mutant) func(*agent, T) M, as func(T) M) M {
	if m := a.w.mutant; m != nil {
		if f := of(m); f != nil {
			return f(a, part)
		}
	}
	return as(part)
}

func (a *agent) ledgerStore(s ledger) claims.Store {
	return mutated(a, s, func(m *Mutant) func(*agent, ledger) claims.Store { return m.Ledger }, func(s ledger) claims.Store { return s })
}

func (a *agent) journalStore(s ledger) task.Store {
	return mutated(a, s, func(m *Mutant) func(*agent, ledger) task.Store { return m.Journal }, func(s ledger) task.Store { return s })
}

func (a *agent) calls(l libvirt) driver.Driver {
	return mutated(a, l, func(m *Mutant) func(*agent, libvirt) driver.Driver { return m.Calls }, func(l libvirt) driver.Driver { return l })
}

func (a *agent) asks(p conductor.Placement) conductor.Placement {
	return mutated(a, p, func(m *Mutant) func(*agent, conductor.Placement) conductor.Placement { return m.Asks }, func(p conductor.Placement) conductor.Placement { return p })
}

// verbs are the host's.
func (a *agent) verbs() migration.Host {
	if m := a.w.mutant; m != nil && m.Verbs != nil {
		return operationtest.Over(m.Verbs(a, a.host))
	}
	return a.host
}
