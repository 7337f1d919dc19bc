package external

import (
	"context"
	"fmt"
	"time"

	demands "berth/agent/host/demand"

	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// memoryForeign is under which a destination remembers that an arrival is not of
// Berth's own migrations, memoryLeft a source that a guest left by such a one.
const (
	memoryForeign = "foreign_arrival"
	memoryLeft    = "foreign_left"
)

// foreignArrival is the record of a claim that a foreign migration has here.
type foreignArrival struct {
	Source string          `json:"source_compute,omitempty"` // as the tool named it; empty for an arrival that nobody announced
	Guest  claims.Instance `json:"guest"`                    // its token's epoch is what the document said
	// Kind is the type of a cold migration; empty of a live one. The record of a cold one is
	// also its source's, from the time when the token has left.
	Kind string `json:"migration_type,omitempty"`
	// Until is when the claim goes, where no domain has come for it. A claim that
	// a domain was seen for goes when that has gone.
	Until   runtime.BootTime `json:"until"`
	Expires time.Time        `json:"expires_at"` // the same on the wall clock, for people
}

// How long a foreign claim waits for its domain. libvirt makes the domain within
// milliseconds of `migrate begin`; a tool that claims ahead has its own work to
// do. Both arbitrary. A claim that goes too early refuses the arrival, before any
// memory moves.
const (
	arrivalPatience = 30 * time.Second
	hookPatience    = 10 * time.Minute
)

func (x *Migrations) patience(d time.Duration) (until runtime.BootTime, expires time.Time) {
	until = x.o.Runtime.Boot()
	until.Since += d
	return until, x.o.Runtime.Now().Add(d).UTC()
}

func (f foreignArrival) over(now runtime.BootTime) bool {
	return now.ID != f.Until.ID || now.Since >= f.Until.Since
}

// foreignRecord gives what is known of a migration's claim; false where the
// migration is Berth's own.
func (x *Migrations) foreignRecord(o claims.Owner) (foreignArrival, bool, error) {
	o.Attempt = attemptAway // a guest that comes back has no other
	return memory.Recall[foreignArrival](x.o.Memory, attempts.RefOf(o), memoryForeign)
}

// Foreign reports whether a claim is of a migration that is not Berth's own. A
// record that cannot be read is none: the stricter rules of Berth's own hold then.
func (x *Migrations) Foreign(o claims.Owner) bool {
	_, found, err := x.foreignRecord(o)
	return found && err == nil
}

// Undone reports whether the undo of a migration's claim has begun.
func (x *Migrations) Undone(o claims.Owner) bool {
	return x.o.Tracker.HasTombstone(memory.At(attempts.RefOf(o), operation.StepClaim))
}

// arrival is a guest that comes by a foreign migration.
type arrival struct {
	inst       claims.Instance // its token's epoch is what the document says
	demand     demands.Demand
	assignment topology.Assignment // what it has of the host that it comes from
}

func (a arrival) guest(text string) migration.Guest {
	return migration.Guest{
		UUID: a.inst.UUID, Name: a.inst.Name, Flavor: a.inst.Flavor, ProjectID: a.inst.ProjectID, UserID: a.inst.UserID,
		Resources: a.demand.Resources, Topology: a.demand.Topology, PCIRequests: a.demand.PCI, Assignment: a.assignment,
		Adopted: a.inst.Adopted, Epoch: a.inst.Token.Epoch, PowerState: migration.PowerRunning, Persistent: true, XML: text,
	}
}

// context is the move's; nobody has told what the source holds, so its old side is
// what the guest has.
func (a arrival) context(source, destination string) migration.Context {
	return migration.Context{
		Source: source, Destination: destination, PowerState: migration.PowerRunning,
		OldResources: a.demand.Resources, OldFlavor: a.inst.Flavor, OldTopology: a.demand.Topology, OldAssignment: a.assignment, OldPCIRequests: a.demand.PCI,
		NewResources: a.demand.Resources, NewFlavor: a.inst.Flavor, NewTopology: a.demand.Topology, NewPCIRequests: a.demand.PCI,
	}
}

// arrivalOf reads from a document what its guest needs here: by its flavor where
// Berth manages it, else by what it has where it comes from. A guest with a device
// of its host's is refused: nothing tells which of this host's is like it.
func (x *Migrations) arrivalOf(ctx context.Context, text string) (arrival, error) {
	const doing = "read the arriving guest's document"
	doc, err := domainxml.Parse(text)
	if err != nil {
		return arrival{}, fault.Refuse(fault.Invalid, doing, fault.Reason{Code: "document", Message: err.Error(), Change: "correct it, or report it"})
	}
	uses := doc.Resources()
	// What cannot be read here yet is copied later; its own host has counted it.
	diskGB, immovable, err := x.o.Arrivals.Disks(ctx, text)
	if err != nil {
		return arrival{}, err
	}
	uses.DiskGB = diskGB
	a := arrival{inst: claims.Instance{
		UUID: doc.UUID(), Name: doc.Name(), Adopted: true, ProjectID: x.o.ProjectID, UserID: x.o.UserID,
		Flavor: topology.Flavor{Name: "adopted", VCPUs: uses.VCPUs, MemoryMB: uses.MemoryMB, DiskGB: uses.DiskGB},
	}}
	var no fault.Refusal
	no.Add(fault.Forbidden, immovable...)
	// Without this host's cells and shared CPUs: the document names another's.
	var found *topology.GuestTopology
	found, a.assignment, _ = doc.Assignment(nil, nil)
	a.demand = demands.Demand{Resources: demands.UsesOf(found, uses), Topology: demands.AsItRuns(found, a.assignment)}
	if meta, ok, err := doc.Metadata(); err == nil && ok {
		a.inst.Token.Epoch, a.inst.Adopted = meta.Epoch, false
		if meta.Flavor.Name != "" && !AdoptedFlavor(meta.Flavor) {
			d := demands.Of(meta.Flavor, nil, x.aliases(), &no)
			d.Resources.DiskGB = max(d.Resources.DiskGB, uses.DiskGB)
			if d.Topology == nil {
				// People may have given it more since.
				d.Resources.VCPUs, d.Resources.MemoryMB = max(d.Resources.VCPUs, uses.VCPUs), max(d.Resources.MemoryMB, uses.MemoryMB)
			}
			d.Topology = demands.AsItRuns(d.Topology, a.assignment)
			a.inst.Flavor, a.demand = meta.Flavor, d
		}
	}
	return a, no.Err(doing)
}

// AdoptedFlavor is what adoption writes for a guest that has none: its amounts say
// nothing of what it has of a host.
func AdoptedFlavor(f topology.Flavor) bool { return f.Name == "adopted" && len(f.ExtraSpecs) == 0 }

// ClaimArrival holds a place for a guest that libvirt is about to take in by a
// migration that is not Berth's, and gives the document that it is to come with:
// the one that it is given, placed as its claim says. A claim that a hook made for it before is
// used. It reads the ledger and the document, never libvirt, which waits. The
// refusals are those of a claim, with every reason.
func (x *Migrations) ClaimArrival(ctx context.Context, text string) (string, error) {
	return x.ClaimFound(ctx, text, nil)
}

// ClaimFound is ClaimArrival, also of a guest that runs here already: that is
// claimed where it was found. Another place would be counted in vain, and what it uses
// be given out again until its token has come.
func (x *Migrations) ClaimFound(ctx context.Context, text string, found *claims.Found) (string, error) {
	comes, err := x.arrivalOf(ctx, text)
	if err != nil {
		return "", err
	}
	var place *topology.Assignment
	if found != nil {
		comes.demand = demands.Demand{Resources: found.Resources, Topology: found.Topology, PCI: found.PCI}
		place = &found.Assignment
	}
	inst, uses := comes.inst, comes.demand.Resources
	if found == nil { // what runs here already is not ended for it
		doc, err := domainxml.Parse(text)
		if err != nil {
			return "", fault.New(fault.Invalid, "%w", err)
		}
		if err := x.o.Arrivals.Admit(ctx, doc, uses); err != nil {
			return "", fault.Wrap(err, "take guest %s in on %s", inst.Name, x.o.Host)
		}
		text = doc.String()
	}
	doing := fmt.Sprintf("claim %s for guest %s that arrives on %s", uses, inst.Name, x.o.Host)
	if err := x.o.Managing(doing); err != nil {
		return "", err
	}
	claim, ahead, err := x.useAnnounced(ctx, inst.UUID, uses)
	if err != nil {
		return "", fault.Wrap(err, "%s", doing)
	}
	if !ahead {
		// Nobody named the migration: it gets a uuid of its own each time, so that
		// what one undoes the next is not kept from.
		ref := migration.Ref{Migration: x.o.NewUUID(), Instance: inst.UUID, Attempt: 1}
		if claim, err = x.claimForeign(ctx, ref, migration.ClaimRequest{
			Guest: comes.guest(text), Context: comes.context("", x.o.Host),
		}, place); err != nil {
			return "", err
		}
		if claim, err = x.await(ctx, claim, foreignArrival{Guest: inst}); err != nil {
			return "", fault.Wrap(err, "%s", doing)
		}
	}
	ref := attempts.RefOf(claim.Owner)
	if x.o.Owners != nil {
		x.o.Owners.Kick()
	}
	x.o.Logger.Info("a guest arrives by a migration that is not Berth's", "instance", inst.UUID, "name", inst.Name, "migration", ref.Migration, "claim", claim.ID)
	return x.placed(ref, text, inst, claim)
}

// useAnnounced gives the claim that was made ahead for a guest, arriving; false
// when there is none. It takes the instance's turn: a claim that is being ended
// lets nothing in.
func (x *Migrations) useAnnounced(ctx context.Context, instance string, uses topology.Resources) (claims.Claim, bool, error) {
	unlock, err := x.o.Memory.Lock(ctx, instance)
	if err != nil {
		return claims.Claim{}, false, err
	}
	defer unlock()
	claim, rec, found, err := x.announced(instance)
	switch {
	case err != nil || !found:
		return claim, false, err
	case !holds(claim.Resources, uses):
		return claim, true, fault.Refuse(fault.Exists, "", fault.Reason{
			Code: "claim_differs", Message: fmt.Sprintf("a claim of %s waits for it", claim.Resources),
			Want: uses.String(), Have: claim.Resources.String(), Change: "roll that migration back, or wait until its claim has ended",
		})
	}
	claim, err = x.await(ctx, claim, rec)
	return claim, true, err
}

// await makes a foreign claim wait for its domain from now on: arriving, and
// durable, before libvirt is told to go on.
func (x *Migrations) await(ctx context.Context, claim claims.Claim, rec foreignArrival) (claims.Claim, error) {
	if until, expires := x.patience(arrivalPatience); rec.over(until) {
		rec.Until, rec.Expires = until, expires
		if err := x.o.Memory.Remember(ctx, attempts.RefOf(claim.Owner), memoryForeign, rec); err != nil {
			return claim, err
		}
	}
	return x.o.Tracker.Arrive(ctx, claim.Owner)
}

// holds reports whether a claim made ahead is enough for what comes.
func holds(claimed, uses topology.Resources) bool {
	return uses.VCPUs <= claimed.VCPUs && uses.PCPUs <= claimed.PCPUs && uses.MemoryMB <= claimed.MemoryMB
}

// announced gives the foreign claim that waits for a guest.
func (x *Migrations) announced(instance string) (claims.Claim, foreignArrival, bool, error) {
	for _, c := range x.o.Tracker.ByInstance(instance) {
		if c.Owner.Migration == "" || c.Owner.Kind != claims.KindLiveMigration {
			continue
		}
		rec, found, err := x.foreignRecord(c.Owner)
		if err != nil || found {
			return c, rec, found, err
		}
	}
	return claims.Claim{}, foreignArrival{}, false, nil
}

// placed gives the guest's document as its claim says.
func (x *Migrations) placed(ref migration.Ref, text string, inst claims.Instance, claim claims.Claim) (string, error) {
	p, err := x.o.Arrivals.Documents(ref, migration.Guest{
		UUID: inst.UUID, Name: inst.Name, Flavor: inst.Flavor, Epoch: inst.Token.Epoch, XML: text,
	}, claim)
	return p.DestinationXML, err
}
