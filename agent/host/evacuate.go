package host

import (
	"context"
	"errors"
	"slices"

	"berth/agent/host/attempts"
	"berth/agent/host/evacuation"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/claims"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
)

// FleetRecords are what the hosts of a fleet keep of each other, as far as a destination asks for
// them; *fleet.Records is one, and says what each promises.
type FleetRecords interface {
	Instance(ctx context.Context, uuid string) (in fleet.Instance, revision uint64, err error)
	Dead(ctx context.Context, host string) (d fleet.Death, revision uint64, err error)
	GiveUp(ctx context.Context, t fleet.TakeOver) error
	HasLeases() bool
}

const (
	memoryEvacuation = "prepared_evacuation"
)

// lost is the record of PrepEvacuation, kept until the guest is finished here or all that was
// made for it is undone.
type lost struct {
	Source string `json:"source_compute"`
	Epoch  uint64 `json:"epoch"` // of the token that the dead host has
	// Instance is what the ledger needs when the token comes.
	Instance claims.Instance `json:"guest"`
	// DomainXML is the guest's definition at its source, which hooks are given, and
	// Definition the one that it gets here, but for the epoch.
	DomainXML  string `json:"domain_xml"`
	Definition string `json:"definition_xml"`
	// Power is what it is given here: shut off for one that is to stay off.
	Power migration.PowerState `json:"power_state"`
	Disks []evacuation.Disk    `json:"disks,omitempty"` // that are made anew
	// Answer is what is told when all is prepared, and Prepared that it is.
	Answer   migration.PreparedEvacuation `json:"answer"`
	Prepared bool                         `json:"prepared,omitempty"`
	// Lives is how the guest lives here, once it was given its power state: what its user does
	// after that is his. Finished: all that FinishEvacuation does is done.
	Lives    *migration.FinishedEvacuation `json:"lives,omitempty"`
	Finished bool                          `json:"finished,omitempty"`
}

func (r lost) phase(h *Host, phase string) phases.Request {
	return phases.Request{Phase: phase, Kind: migration.TypeEvacuation, Source: r.Source, Destination: h.o.Name, XML: r.DomainXML, Power: r.Power}
}

// prepEvacuation does operation.PrepEvacuation.
func (h *Host) prepEvacuation(ctx context.Context, ref migration.Ref, r migration.EvacuationRequest) (migration.PreparedEvacuation, error) {
	none := migration.PreparedEvacuation{}
	if r.Guest.UUID != ref.Instance || r.Source == "" || r.Source == h.o.Name {
		return none, fault.New(fault.Invalid, "want the guest %s of another host", ref.Instance)
	}
	claim, ok := h.tracker.ByOwner(attempts.OwnerOf(ref, claims.KindEvacuation))
	if !ok || claim.State != claims.Pending && claim.State != claims.Arriving {
		return none, fault.New(fault.Forbidden, "no claim on %s names migration %s, attempt %d", h.o.Name, ref.Migration, ref.Attempt)
	}
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	switch {
	case err != nil:
		return none, err
	case found && rec.Prepared:
		return rec.Answer, nil
	}
	if !found {
		if rec, err = h.planEvacuation(ctx, ref, r, claim); err != nil {
			return none, err
		}
		// On record before anything is made: also what is made by hooks.
		if err := h.memory.Remember(ctx, ref, memoryEvacuation, rec); err != nil {
			return none, err
		}
	}
	if err := h.prepareConnections(ctx, ref, rec.Definition); err != nil {
		return none, err
	}
	for i := range rec.Disks {
		d := &rec.Disks[i]
		if d.Stamp != nil {
			continue
		}
		if err := h.bench.Build(ctx, ref, &d.Disk, &d.From); err != nil {
			return none, err
		}
		if err := h.memory.Remember(ctx, ref, memoryEvacuation, rec); err != nil {
			return none, err
		}
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.PreEvacuate)); err != nil {
		return none, err
	}
	// Arriving before the answer: from here on the guest may be given to this host, and the
	// claim must outlive its conductor.
	if _, err := h.tracker.Arrive(ctx, claim.Owner); err != nil {
		return none, err
	}
	rec.Prepared = true
	return rec.Answer, h.memory.Remember(ctx, ref, memoryEvacuation, rec)
}

// planEvacuation computes what the guest gets here, and refuses it with every reason. It changes
// nothing.
func (h *Host) planEvacuation(ctx context.Context, ref migration.Ref, r migration.EvacuationRequest, claim claims.Claim) (lost, error) {
	g, own, err := asItWas(r.Guest)
	if err != nil {
		return lost{}, err
	}
	rec := lost{Source: r.Source, Epoch: g.Epoch, Instance: arriving(g), DomainXML: g.Definition, Power: g.PowerState}
	if r.Stopped {
		rec.Power = migration.PowerShutOff
	}
	if rec.Definition, err = h.coldDocument(ref, g, evacuated(g), claim); err != nil {
		return lost{}, err
	}
	var no refusal
	if err := no.take(h.admitPrepared(ctx, claim, rec.Instance.Name, nil, rec.Definition)); err != nil {
		return lost{}, err
	}
	views, err := h.viewLost(&no, own, g)
	if err != nil {
		return lost{}, err
	}
	of, reasons := migration.EvacuateDisks(g, views, r.Image, r.AcceptLoss)
	no.add(fault.Forbidden, reasons...)
	if err := evacuation.CheckMade(ctx, h.files, &no.Refusal, g, of.Made, r.Image, h.o.Name, h.placeForDisk); err != nil {
		return lost{}, err
	}
	if err := no.err(""); err != nil {
		return lost{}, err
	}
	if rec.Disks, err = evacuation.PlanMade(h.files, ref, g, of.Made, r.Image); err != nil {
		return lost{}, err
	}
	rec.Answer = migration.PreparedEvacuation{Shared: of.Shared, Made: of.Made}
	return rec, nil
}

// asItWas is a guest with the definition that it is to live by: its own, or the one that it ran
// by where it had none, or other disks than its definition names. Its host is not there to say
// which of the two its user wants.
func asItWas(g migration.Guest) (migration.Guest, document, error) {
	if g.Definition != "" {
		own, err := parseDocument(g.Definition)
		if err != nil || len(otherDisks(g, own)) == 0 {
			return g, own, err
		}
	}
	g.Definition = g.XML
	own, err := parseDocument(g.Definition)
	return g, own, err
}

// evacuated is what a guest of a dead host is to be: what it was.
func evacuated(g migration.Guest) migration.Wanted {
	return migration.Wanted{Flavor: g.Flavor, Resources: g.Resources, Topology: g.Topology, PCIRequests: g.PCIRequests}
}

// rollbackPrepEvacuation does operation.RollbackPrepEvacuation.
func (h *Host) rollbackPrepEvacuation(ctx context.Context, ref migration.Ref) error {
	return h.undoEvacuation(ctx, ref, true)
}

// preparedEvacuation reports whether an attempt's preparation has given its answer.
func (h *Host) preparedEvacuation(ref migration.Ref) (bool, error) {
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	return found && rec.Prepared, err
}

// notEvacuated refuses to undo what has brought the instance here, or will.
func (h *Host) notEvacuated(ctx context.Context, ref migration.Ref) error {
	if err := h.notAccepted(ctx, ref); err != nil {
		return err
	}
	return h.notGiven(ctx, ref)
}

// notGiven refuses to take back what was prepared for a guest that the fleet's records have given
// to this host: nobody else has it. What was never prepared here was given to nobody.
func (h *Host) notGiven(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	if err != nil || !found || !rec.Prepared {
		return err
	}
	word, _, err := h.askRecords(ctx, ref, rec)
	if err != nil {
		return err
	}
	if word == evacuation.Given {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "given_here", Message: "the fleet's records have given the guest to " + h.o.Name + " by this attempt", Change: "nothing; the move is past its point of no return",
		})
	}
	return nil
}

// undoEvacuation removes exactly what the preparation of an attempt made. Of a guest that had its
// files in their places they stay: it may have been given on with them.
func (h *Host) undoEvacuation(ctx context.Context, ref migration.Ref, whole bool) error {
	if err := h.bench.Stop(ctx, ref); err != nil {
		return err
	}
	rec, found, err := memory.Recall[lost](h.memory, ref, memoryEvacuation)
	if err != nil || !found {
		return err
	}
	for _, d := range slices.Backward(rec.Disks) {
		if !whole {
			// Its place first: a file that stands there has no private name any more.
			there, err := h.files.Stamp(d.Path)
			if err == nil && d.Stamp != nil && there.Equals(*d.Stamp) {
				h.log.Warn("a disk of a guest that was taken away stays: take it away if no other host uses it", "instance", ref.Instance, "migration", ref.Migration, "path", d.Path)
				h.files.Keep(d.Made)
				continue
			}
			if err != nil && !errors.Is(err, fault.NotFound) {
				return err
			}
		}
		if err := h.files.Unmake(d.Made); err != nil {
			return err
		}
	}
	if err := h.undoConnections(ctx, ref); err != nil {
		return err
	}
	if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.RollbackEvacuate)); err != nil {
		return err
	}
	if err := h.phases.Forget(ctx, ref); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryEvacuation))
}
