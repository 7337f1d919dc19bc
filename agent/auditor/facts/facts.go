// Package facts reads what one host has on record for an audit: of its ledger, its conductor and
// its hypervisor. It judges nothing and writes nothing.
package facts

import (
	"cmp"
	"context"
	"errors"

	"berth/agent/audit"
	"berth/agent/auditor"
	"berth/agent/inventory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/conductor"
)

// Of are the parties of one host.
type Of struct {
	Host      string // the provider's name
	Tracker   *claims.Tracker
	Conductor *conductor.Conductor
	Moves     Moves
	Driver    driver.Driver
}

// Moves are what the host remembers of moves beside its ledger.
type Moves interface {
	// Lives reports whether an instance has come, and its move is not over.
	Lives(instance string) bool
	// StaysAlone reports whether it stays here by this host's own decision.
	StaysAlone(instance string) bool
	// Uncounted gives moves that are over here, and whose consumers are not settled.
	Uncounted() []claims.Ended
}

// claimStates are the ledger's words as facts.
var claimStates = map[claims.State]audit.ClaimState{
	claims.Pending: audit.ClaimPending, claims.Arriving: audit.ClaimArriving, claims.Bound: audit.ClaimBound, claims.Held: audit.ClaimHeld,
}

// Ledger is the ledger and the journal at this moment. That a move is over is known
// of those alone that this host conducted: of one that another host or a tool conducts
// its consumer is theirs, whatever the ledger has seen of it.
func (o Of) Ledger() audit.Ledger {
	var out audit.Ledger
	known := map[string]bool{}
	move := func(m audit.Move) {
		if m.UUID != "" && !known[m.UUID] {
			known[m.UUID] = true
			out.Moves = append(out.Moves, m)
		}
	}
	// The conductor first: of a move that is over it says so, whatever else is left.
	// It gives no error: its records are in memory.
	list, _ := o.Conductor.List(context.Background())
	for _, m := range list {
		one := audit.Move{UUID: m.UUID, Instance: m.InstanceUUID, Over: m.Done(), Waits: m.Status == migration.StatusFinished, Writes: writes(m)}
		if h, kept := o.Conductor.Halves(m.UUID); kept {
			one.Kept = &audit.Halves{Instance: h.Instance, Migration: h.Migration}
		}
		move(one)
	}
	for _, i := range o.Tracker.Instances() {
		here := i.Token.State == claims.TokenHere
		out.Instances = append(out.Instances, audit.Instance{
			UUID: i.UUID, Name: i.Name, ProjectID: i.ProjectID, UserID: i.UserID, Here: here, Holder: i.Token.Holder, Migration: i.Token.Migration,
		})
	}
	for _, c := range o.Tracker.List() {
		out.Claims = append(out.Claims, audit.Claim{
			Instance: c.Owner.Instance, Migration: c.Owner.Migration, State: claimStates[c.State],
			Held: inventory.Held{Resources: c.Resources, Assignment: c.Assignment},
		})
		move(audit.Move{UUID: c.Owner.Migration, Instance: c.Owner.Instance, Lost: o.unconducted(c)})
	}
	// Of one that another host conducts that one writes, also while the guest stays here by this
	// host's own decision.
	for _, c := range o.Tracker.Contexts() {
		move(audit.Move{UUID: c.Migration, Instance: c.Instance, Waits: o.Moves.Lives(c.Instance) && !o.Moves.StaysAlone(c.Instance)})
	}
	for _, e := range o.Moves.Uncounted() {
		move(audit.Move{UUID: e.Migration, Instance: e.Instance})
	}
	return out
}

// writes reports whether a move is at a step that writes what its consumers hold.
func writes(m migration.Migration) bool {
	switch m.Step {
	case migration.StepSwapAllocations, migration.StepRevertAllocations, migration.StepDeleteAllocation:
		return m.Status != migration.StatusError
	}
	return false
}

// unconducted reports whether a claim is held for a move that this host should conduct,
// and its conductor knows nothing of. The record is asked for after the claim was read:
// it is made before the claim and kept until after its end.
func (o Of) unconducted(c claims.Claim) bool {
	if c.Owner.Migration == "" || c.State != claims.Held || !o.Conductor.Running() {
		return false
	}
	x, known := o.Tracker.Context(c.Owner.Migration)
	if c.Context != nil {
		x, known = *c.Context, true
	}
	if !known || cmp.Or(x.Conductor, x.Source) != o.Host {
		return false
	}
	_, err := o.Conductor.Get(context.Background(), c.Owner.Migration)
	return errors.Is(err, fault.NotFound)
}

// Domains is libvirt's list for an audit.
func (o Of) Domains(ctx context.Context) ([]audit.LibvirtDomain, error) {
	if err := o.Driver.Health(); err != nil {
		return nil, err
	}
	list, err := o.Driver.Domains(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]audit.LibvirtDomain, 0, len(list))
	for _, d := range list {
		out = append(out, audit.LibvirtDomain{UUID: d.UUID, Name: d.Name, Active: d.Active()})
	}
	return out, nil
}

// Knows answers another host what this one knows of consumers: instances and moves. It asks the
// hypervisor once; what that does not answer is said of each consumer.
func (o Of) Knows(ctx context.Context, consumers []string) []auditor.Known {
	domains := map[string]driver.Domain{}
	list, err := o.Driver.Domains(ctx)
	for _, d := range list {
		domains[d.UUID] = d
	}
	moves, claimed := map[string]string{}, map[string]bool{} // unfinished ones, by both their consumers
	recorded := o.Ledger()
	for _, m := range recorded.Moves {
		if !m.Over {
			moves[m.UUID], moves[m.Instance] = m.UUID, m.UUID
		}
	}
	for _, c := range recorded.Claims {
		claimed[c.Instance] = true
	}
	out := make([]auditor.Known, 0, len(consumers))
	for _, id := range consumers {
		k := auditor.Known{Consumer: id}
		inst, known := o.Tracker.Instance(id)
		if known && inst.Token.State == claims.TokenHere {
			k.Owner, k.Epoch = true, inst.Token.Epoch
		}
		d, there := domains[id]
		k.Active = there && d.Active()
		switch m, moves := moves[id]; {
		case moves:
			k.Busy, k.Moving = "migration "+m+" is not over", true
		case !k.Owner && claimed[id]:
			k.Busy = "it has a claim"
		case !k.Owner && there:
			k.Busy = "libvirt has its domain"
		}
		if err != nil && !k.Owner {
			k.Unsure = err.Error()
		}
		out = append(out, k)
	}
	return out
}
