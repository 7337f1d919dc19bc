package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/topology"
)

// Owners keeps the guard's owner files (agent/guard).
type Owners interface {
	// Withdraw takes a guest's file away until done is called; an error means that
	// it may still say that the guest may start here.
	Withdraw(instance string) (done func(), err error)
	// Kick makes the files follow the ledger soon.
	Kick()
}

// Fleet is what a guest that came by foreign hands needs of the other hosts.
type Fleet interface {
	// TakeToken asks every host that may hold the instance's token to give it to
	// this one; source is the host that it is said to come from, empty where nobody
	// said. false when all have answered that it is not theirs. A host that is
	// silent is an error, and so is one that keeps it.
	TakeToken(ctx context.Context, ref migration.Ref, source string) (migration.Commit, bool, error)
	// TakeAllocation makes the consumer's allocation exactly this one, whatever it
	// held before: its token is here.
	TakeAllocation(ctx context.Context, a Allocation) error
}

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

func (h *Host) patience(d time.Duration) (until runtime.BootTime, expires time.Time) {
	until = h.rt.Boot()
	until.Since += d
	return until, h.rt.Now().Add(d).UTC()
}

func (f foreignArrival) over(now runtime.BootTime) bool {
	return now.ID != f.Until.ID || now.Since >= f.Until.Since
}

func refOf(o claims.Owner) migration.Ref {
	return migration.Ref{Migration: o.Migration, Instance: o.Instance, Attempt: o.Attempt}
}

// foreignRecord gives what is known of a migration's claim; false where the
// migration is Berth's own.
func (h *Host) foreignRecord(o claims.Owner) (foreignArrival, bool, error) {
	return recall[foreignArrival](h, refOf(o), memoryForeign)
}

// Foreign reports whether a claim is of a migration that is not Berth's own. A
// record that cannot be read is none: the stricter rules of Berth's own hold then.
func (h *Host) Foreign(o claims.Owner) bool {
	_, found, err := h.foreignRecord(o)
	return found && err == nil
}

// Moving names the migration that an instance is in, as source or destination.
func (h *Host) Moving(instance string) (string, bool) { return h.moving(instance) }

// Undone reports whether the undo of a migration's claim has begun.
func (h *Host) Undone(o claims.Owner) bool { return h.tracker.Buried(at(refOf(o), stepClaim)) }

// arrival is a guest that comes by a foreign migration.
type arrival struct {
	inst       claims.Instance // its token's epoch is what the document says
	demand     demand
	assignment topology.Assignment // what it has of the host that it comes from
}

func (a arrival) guest(text string) migration.Guest {
	return migration.Guest{
		UUID: a.inst.UUID, Name: a.inst.Name, Flavor: a.inst.Flavor, ProjectID: a.inst.ProjectID, UserID: a.inst.UserID,
		Resources: a.demand.resources, Topology: a.demand.topology, PCIRequests: a.demand.pci, Assignment: a.assignment,
		Adopted: a.inst.Adopted, Epoch: a.inst.Token.Epoch, PowerState: migration.PowerRunning, Persistent: true, XML: text,
	}
}

// context is the move's; nobody has told what the source holds, so its old side is
// what the guest has.
func (a arrival) context(source, destination string) migration.Context {
	return migration.Context{
		Source: source, Destination: destination, PowerState: migration.PowerRunning,
		OldResources: a.demand.resources, OldFlavor: a.inst.Flavor, OldTopology: a.demand.topology, OldAssignment: a.assignment, OldPCIRequests: a.demand.pci,
		NewResources: a.demand.resources, NewFlavor: a.inst.Flavor, NewTopology: a.demand.topology, NewPCIRequests: a.demand.pci,
	}
}

// arrivalOf reads from a document what its guest needs here: by its flavor where
// Berth manages it, else by what it has where it comes from. A guest with a device
// of its host's is refused: nothing tells which of this host's is like it.
func (h *Host) arrivalOf(ctx context.Context, text string) (arrival, error) {
	const doing = "read the arriving guest's document"
	doc, err := domainxml.Parse(text)
	if err != nil {
		return arrival{}, fault.Refuse(fault.Invalid, doing, fault.Reason{Code: "document", Message: err.Error(), Change: "correct it, or report it"})
	}
	own, err := parseDocument(text)
	if err != nil {
		return arrival{}, err
	}
	uses := doc.Resources()
	// What cannot be read here yet is copied later; its own host has counted it.
	uses.DiskGB, _ = h.diskGB(ctx, own)
	a := arrival{inst: claims.Instance{
		UUID: doc.UUID(), Name: doc.Name(), Adopted: true, ProjectID: h.o.ProjectID, UserID: h.o.UserID,
		Flavor: topology.Flavor{Name: "adopted", VCPUs: uses.VCPUs, MemoryMB: uses.MemoryMB, DiskGB: uses.DiskGB},
	}}
	var no refusal
	no.add(fault.Forbidden, own.immovable(topology.Assignment{})...)
	// Without this host's cells and shared CPUs: the document names another's.
	var found *topology.GuestTopology
	found, a.assignment, _ = doc.Assignment(nil, nil)
	a.demand = demand{resources: uses, topology: asItRuns(found, a.assignment)}
	if found != nil {
		a.demand.resources.VCPUs, a.demand.resources.PCPUs = found.CPUs()
	}
	if meta, ok, err := doc.Metadata(); err == nil && ok {
		a.inst.Token.Epoch, a.inst.Adopted = meta.Epoch, false
		if meta.Flavor.Name != "" && !adoptedFlavor(meta.Flavor) {
			d := h.demandOf(meta.Flavor, &no)
			d.resources.DiskGB = max(d.resources.DiskGB, uses.DiskGB)
			if d.topology == nil {
				// People may have given it more since.
				d.resources.VCPUs, d.resources.MemoryMB = max(d.resources.VCPUs, uses.VCPUs), max(d.resources.MemoryMB, uses.MemoryMB)
			}
			d.topology = asItRuns(d.topology, a.assignment)
			a.inst.Flavor, a.demand = meta.Flavor, d
		}
	}
	return a, no.err(doing)
}

// adoptedFlavor is what adoption writes for a guest that has none: its amounts say
// nothing of what it has of a host.
func adoptedFlavor(f topology.Flavor) bool { return f.Name == "adopted" && len(f.ExtraSpecs) == 0 }

// ClaimArrival holds a place for a guest that libvirt is about to take in by a
// migration that is not Berth's, and gives the document that it is to come with:
// the one that it is given, placed as its claim says. A claim that a hook made for it before is
// used. It reads the ledger and the document, never libvirt, which waits. The
// refusals are those of a claim, with every reason.
func (h *Host) ClaimArrival(ctx context.Context, text string) (string, error) {
	comes, err := h.arrivalOf(ctx, text)
	if err != nil {
		return "", err
	}
	inst, uses := comes.inst, comes.demand.resources
	doing := fmt.Sprintf("claim %s for guest %s that arrives on %s", uses, inst.Name, h.o.Name)
	if err := h.managing(doing); err != nil {
		return "", err
	}
	claim, rec, found, err := h.announced(inst.UUID)
	if err != nil {
		return "", wrap(err, "%s", doing)
	}
	if found && !holds(claim.Resources, uses) {
		return "", fault.Refuse(fault.Exists, doing, fault.Reason{
			Code: "claim_differs", Message: fmt.Sprintf("a claim of %s waits for it", claim.Resources),
			Want: uses.String(), Have: claim.Resources.String(), Change: "roll that migration back, or wait until its claim has ended",
		})
	}
	if !found {
		// Nobody named the migration: it gets a uuid of its own each time, so that
		// what one undoes the next is not kept from.
		ref := migration.Ref{Migration: uuid.NewString(), Instance: inst.UUID, Attempt: 1}
		if claim, err = h.claimForeign(ctx, ref, migration.ClaimRequest{
			Guest: comes.guest(text), Context: comes.context("", h.o.Name),
		}); err != nil {
			return "", err
		}
		rec = foreignArrival{Guest: inst}
	}
	ref := refOf(claim.Owner)
	if until, expires := h.patience(arrivalPatience); !found || rec.over(until) {
		rec.Until, rec.Expires = until, expires
		if err := h.remember(ctx, ref, memoryForeign, rec); err != nil {
			return "", err
		}
	}
	// Arriving, and durable, before libvirt is told to go on.
	if claim, err = h.tracker.Arrive(ctx, claim.Owner); err != nil {
		return "", wrap(err, "%s", doing)
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	h.log.Info("a guest arrives by a migration that is not Berth's", "instance", inst.UUID, "name", inst.Name, "migration", ref.Migration, "claim", claim.ID)
	return h.placed(ref, text, inst, claim)
}

// holds reports whether a claim made ahead is enough for what comes.
func holds(claimed, uses topology.Resources) bool {
	return uses.VCPUs <= claimed.VCPUs && uses.PCPUs <= claimed.PCPUs && uses.MemoryMB <= claimed.MemoryMB
}

// announced gives the foreign claim that waits for a guest.
func (h *Host) announced(instance string) (claims.Claim, foreignArrival, bool, error) {
	for _, c := range h.tracker.ByInstance(instance) {
		if c.Owner.Migration == "" {
			continue
		}
		rec, found, err := h.foreignRecord(c.Owner)
		if err != nil || found {
			return c, rec, found, err
		}
	}
	return claims.Claim{}, foreignArrival{}, false, nil
}

// placed gives the guest's document as its claim says.
func (h *Host) placed(ref migration.Ref, text string, inst claims.Instance, claim claims.Claim) (string, error) {
	p, err := h.documents(ref, migration.Guest{
		UUID: inst.UUID, Name: inst.Name, Flavor: inst.Flavor, Epoch: inst.Token.Epoch, XML: text,
	}, claim)
	return p.DestinationXML, err
}

// FollowArrivals binds or ends the claims of foreign migrations, lets go of guests
// that left by one, until ctx ends. It is
// asked to look by Kick of the driver's events and looks by itself besides.
func (h *Host) FollowArrivals(ctx context.Context) error {
	for ctx.Err() == nil {
		if h.o.Mode() != ModeObserve {
			h.followArrivals(ctx)
		}
		_ = h.rt.Sleep(ctx, h.o.Agree/4) // its end is looked at in the loop
	}
	return nil
}

func (h *Host) followArrivals(ctx context.Context) {
	for _, c := range h.tracker.List() {
		if c.Owner.Kind != claims.KindLiveMigration {
			continue
		}
		if !h.Foreign(c.Owner) {
			continue
		}
		h.note(ctx, c.Owner.Instance, h.FollowArrival(ctx, refOf(c.Owner)))
	}
	for _, inst := range h.tracker.Instances() {
		if inst.Token.State == claims.TokenSurrendered {
			if err := h.followLeft(ctx, inst); err != nil && ctx.Err() == nil {
				h.log.Warn("could not follow a guest that has left", "instance", inst.UUID, "error", err)
			}
		}
	}
}

// note keeps, and logs once, why a foreign arrival cannot be settled.
func (h *Host) note(ctx context.Context, instance string, err error) {
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	was := h.unsettled[instance]
	if err == nil {
		delete(h.unsettled, instance)
	} else {
		h.unsettled[instance] = err
	}
	h.mu.Unlock()
	if err != nil && (was == nil || was.Error() != err.Error()) {
		h.log.Warn("a guest that arrived by a foreign migration is not settled yet", "instance", instance, "error", err)
	}
}

// Unsettled gives why foreign arrivals are not settled, by instance. Those that
// are still on their way are not among them.
func (h *Host) Unsettled() map[string]error {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]error{}
	for instance, err := range h.unsettled {
		out[instance] = err
	}
	return out
}

// FollowArrival looks at one foreign claim:
//
//	domain                          action
//	none, or shut off               wait; once its time is over, or a domain was seen, and two reads agree: end the claim
//	paused (migrating), post-copy   wait: libvirt brings it, or takes it away
//	any other active                it has arrived: take the token, define, bind
//
// Arrived means that libvirt has handed over by its own rules, not that the guest
// is this host's. The token comes by its giver's surrender only; while no giver
// gives it, or one still has the guest's memory, the guest goes on, its claim
// stays, and why is kept for status. nil when there is nothing to complain of.
func (h *Host) FollowArrival(ctx context.Context, ref migration.Ref) error {
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	claim, ok := h.tracker.ByOwner(owner(ref))
	if !ok || claim.Owner.Migration == "" {
		return nil
	}
	rec, found, err := h.foreignRecord(claim.Owner)
	if err != nil || !found {
		return err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case exists && halfway(d):
		h.see(ref, true)
		return nil
	case exists && d.Active():
		h.see(ref, true)
		return h.bindArrival(ctx, ref, claim, rec, d)
	}
	if inst, known := h.tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		// It is this host's already, and has ended since, as any guest can.
		if exists {
			return h.bindArrival(ctx, ref, claim, rec, d)
		}
	}
	if !h.seen(ref) && !rec.over(h.rt.Boot()) {
		return nil
	}
	if err := h.rt.Sleep(ctx, h.o.Agree/4); err != nil {
		return err
	}
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == ref.Instance && d.Active() }) {
		return err
	}
	h.log.Info("a foreign migration brought nothing: its claim ends", "instance", ref.Instance, "migration", ref.Migration)
	return h.endForeign(ctx, ref)
}

// halfway: libvirt has the domain for a stream that is not over.
func halfway(d driver.Domain) bool {
	switch {
	case d.Reason == driver.ReasonPostCopy || d.Reason == driver.ReasonPostCopyFailed:
		return true
	case d.State == driver.Paused:
		return d.Reason == driver.ReasonMigrating || d.Reason == driver.ReasonStartingUp
	}
	return false
}

// see remembers that a domain was there for a claim, for as long as this process
// lives: its end is then the arrival's.
func (h *Host) see(ref migration.Ref, there bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if there {
		h.arrivals[ref.Migration] = true
	} else {
		delete(h.arrivals, ref.Migration)
	}
}

func (h *Host) seen(ref migration.Ref) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.arrivals[ref.Migration]
}

// endForeign ends the claim of a foreign migration for which nothing can come any
// more: from its tombstone on the guard lets nothing of it in.
func (h *Host) endForeign(ctx context.Context, ref migration.Ref) error {
	for _, step := range []string{stepClaim, stepPrepare} {
		if err := h.tracker.Bury(ctx, at(ref, step)); err != nil {
			return err
		}
	}
	if err := h.undoPreparation(ctx, ref); err != nil {
		return err
	}
	if err := h.tracker.Abort(ctx, at(ref, stepClaim)); err != nil {
		return err
	}
	h.see(ref, false)
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}

// bindArrival makes a guest that has arrived this host's. Each step is safe to
// repeat.
func (h *Host) bindArrival(ctx context.Context, ref migration.Ref, claim claims.Claim, rec foreignArrival, d driver.Domain) error {
	inst, err := h.takeOwnership(ctx, ref, rec, d)
	if err != nil {
		return err
	}
	// The definition first: a bound claim is one of a defined domain. libvirt's
	// hook changes the live document only.
	what := driver.Migratable
	if d.Persistent {
		what = driver.Persistent
	}
	text, err := h.driver.XML(ctx, ref.Instance, what)
	if err != nil {
		return err
	}
	inst.Token.Epoch-- // documents writes the next one, which is here already
	if text, err = h.placed(ref, text, inst, claim); err != nil {
		return err
	}
	if err := h.driver.Define(ctx, text); err != nil {
		return err
	}
	bound, err := h.tracker.Bind(ctx, claim.Owner)
	if err != nil {
		return err
	}
	if h.o.Owners != nil {
		h.o.Owners.Kick()
	}
	h.log.Info("a guest that came by a foreign migration is this host's", "instance", ref.Instance, "name", d.Name, "migration", ref.Migration, "claim", bound.ID)
	var errs []error
	if err := h.driver.SetAutostart(ctx, ref.Instance, false); err != nil {
		errs = append(errs, err)
	}
	if h.o.Fleet != nil {
		err := h.o.Fleet.TakeAllocation(ctx, Allocation{
			Consumer: ref.Instance, Provider: h.o.ProviderUUID, Resources: bound.Resources, ProjectID: inst.ProjectID, UserID: inst.UserID,
		})
		if err != nil {
			// A guest that runs is not failed for bookkeeping (law 6).
			h.log.Warn("the allocation of a guest that has arrived could not be written", "instance", ref.Instance, "error", err)
			errs = append(errs, err)
		}
	}
	if err := h.finishForeign(ctx, ref); err != nil {
		errs = append(errs, err)
	}
	h.see(ref, false)
	return errors.Join(errs...)
}

// takeOwnership brings the token here: from the host that holds it, or anew where
// every host has said that none does.
func (h *Host) takeOwnership(ctx context.Context, ref migration.Ref, rec foreignArrival, d driver.Domain) (claims.Instance, error) {
	if inst, known := h.tracker.Instance(ref.Instance); known && inst.Token.State == claims.TokenHere {
		return inst, nil
	}
	guest := rec.Guest
	guest.Name = d.Name
	var c migration.Commit
	given := false
	if h.o.Fleet != nil {
		var err error
		if c, given, err = h.o.Fleet.TakeToken(ctx, ref, rec.Source); err != nil {
			return claims.Instance{}, wrap(err, "guest %s runs on %s, and its ownership token does not come", d.Name, h.o.Name)
		}
	}
	if !given {
		return h.tracker.Own(ctx, guest)
	}
	accepted := claims.Commit{Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To}
	guest.Token = claims.Token{}
	if err := h.tracker.AcceptToken(ctx, accepted, guest); err != nil {
		return claims.Instance{}, err
	}
	inst, _ := h.tracker.Instance(ref.Instance)
	return inst, nil
}

// Surrender gives the token of a guest that left by a migration which nobody here
// conducts to the host where it runs now. The rows, the first that holds counts:
//
//	ledger                              domain               answer
//	surrendered to it by this migration any                  the same commit again
//	not known                           any                  not found: it is not this host's
//	token elsewhere                     any                  refused
//	moving by another migration         any                  busy
//	token here                          active               busy while migrating or paused by it, else refused:
//	                                                         the guest would run twice, and who is right is a person's word
//	token here                          shut off (migrated)  surrendered
//	token here                          gone, two reads      surrendered
//	token here                          shut off otherwise   refused: nothing tells that it left
//
// Its claim goes with the token, its definition stays as its user left it; the
// record stays as long as that does, so that nobody starts it here.
func (h *Host) Surrender(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	c, err := h.surrender(ctx, ref, to)
	return c, wrap(err, "surrender instance %s to %s", ref.Instance, to)
}

func (h *Host) surrender(ctx context.Context, ref migration.Ref, to string) (migration.Commit, error) {
	none := migration.Commit{}
	unlock, err := h.lock(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	defer unlock()
	if c, ok := h.tracker.Committed(ref.Migration); !ok || c.Instance != ref.Instance || c.To != to {
		if err := h.hasLeftUnseen(ctx, ref); err != nil {
			return none, err
		}
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return none, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	// First what will be cleaned up, then what cannot be taken back.
	if _, found, err := recall[string](h, ref, memoryLeft); err != nil {
		return none, err
	} else if !found {
		if err := h.remember(ctx, ref, memoryLeft, to); err != nil {
			return none, err
		}
	}
	// By its step: hookKeep leaves a tombstone there.
	c, err := h.tracker.Surrender(ctx, at(ref, memoryLeft), to)
	if err != nil {
		return none, err
	}
	h.log.Info("the token of a guest that left by a foreign migration follows it", "instance", ref.Instance, "migration", ref.Migration, "to", to)
	// Best effort: followLeft comes back to it.
	if err := h.tracker.Release(ctx, claims.Owner{Instance: ref.Instance, Kind: claims.KindInstance}); err != nil {
		h.log.Warn("the claim of a guest that has left is still held", "instance", ref.Instance, "error", err)
	}
	return migration.Commit{
		Instance: c.Instance, Migration: c.Migration, Attempt: c.Attempt, Epoch: c.Epoch, From: c.From, To: c.To, Power: migration.PowerRunning,
	}, nil
}

// hasLeftUnseen is nil when a guest of this host has left, though nobody here
// moved it.
func (h *Host) hasLeftUnseen(ctx context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return fault.New(fault.NotFound, "it is not in the ledger of %s", h.o.Name)
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	if err := h.still(ref.Instance); err != nil {
		return err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err == nil && !exists {
		if err := h.rt.Sleep(ctx, h.o.Agree/4); err != nil {
			return err
		}
		d, exists, err = h.domain(ctx, ref.Instance)
	}
	switch {
	case err != nil:
		return err
	case !exists || hasLeft(d):
		return nil
	case d.Active() && (d.Reason == driver.ReasonMigrating || d.Reason == driver.ReasonPostCopy):
		return fault.New(fault.Busy, "its stream is not over: %s (%s)", d.State, d.Reason)
	case d.Active():
		return fault.Refuse(fault.InDoubt, "", fault.Reason{
			Code: "runs_twice", Message: fmt.Sprintf("guest %s is active on %s too: %s (%s), and the token is there", d.Name, h.o.Name, d.State, d.Reason),
			Change: "decide which copy is the guest, and end the other (virsh destroy) at once",
		})
	}
	return fault.Refuse(fault.InDoubt, "", fault.Reason{
		Code: "left_unseen", Message: fmt.Sprintf("guest %s is %s (%s) on %s, which does not say that it left", d.Name, d.State, d.Reason, h.o.Name),
		Change: "if it did leave, undefine what is left of it: virsh undefine " + d.Name + " on " + h.o.Name,
	})
}

// followLeft forgets a guest that left by a foreign migration once its definition
// is gone. Until then its record keeps it from being started here.
func (h *Host) followLeft(ctx context.Context, inst claims.Instance) error {
	ref := migration.Ref{Migration: inst.Token.Migration, Instance: inst.UUID, Attempt: 1}
	if _, left, err := recall[string](h, ref, memoryLeft); err != nil || !left {
		return err
	}
	unlock, err := h.lock(ctx, inst.UUID)
	if err != nil {
		return err
	}
	defer unlock()
	if now, known := h.tracker.Instance(inst.UUID); !known || now.Token != inst.Token {
		return nil
	}
	if err := h.tracker.Release(ctx, claims.Owner{Instance: inst.UUID, Kind: claims.KindInstance}); err != nil {
		return err
	}
	if _, exists, err := h.domain(ctx, inst.UUID); err != nil || exists {
		return err
	}
	all, err := h.driver.Domains(ctx)
	if err != nil || slices.ContainsFunc(all, func(d driver.Domain) bool { return d.UUID == inst.UUID }) {
		return err
	}
	if err := h.tracker.Forget(ctx, inst.UUID); err != nil {
		return err
	}
	return h.tracker.ForgetMigration(ctx, ref.Migration)
}
