package host

import (
	"context"
	"errors"

	"berth/agent/host/allocation"
	demands "berth/agent/host/demand"

	"berth/agent/host/shipping"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// inspectRef does operation.Inspect. It has the instance's lock: what was asked for before the move
// (to delete, to stop, to adopt the guest) has ended when the move sees it, and what comes later
// finds it moving. Else the end of the one would be written over the allocations of the other.
func (h *Host) inspectRef(ctx context.Context, ref migration.Ref) (migration.Guest, error) {
	return h.inspect(ctx, ref.Instance)
}

func (h *Host) inspect(ctx context.Context, uuid string) (migration.Guest, error) {
	inst, managed := h.tracker.Instance(uuid)
	dom, exists, err := h.domain(ctx, uuid)
	switch {
	case err != nil:
		return migration.Guest{}, err
	case !managed && !exists:
		return migration.Guest{}, gone("host " + h.o.Name + " has no such guest")
	case !managed:
		return migration.Guest{}, fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_managed", Message: "guest " + dom.Name + " is not managed", Change: "berth instance adopt " + dom.Name,
		})
	}
	if err := h.tokenHere(inst); err != nil {
		return migration.Guest{}, err
	}
	if !exists {
		return migration.Guest{}, gone("the ledger has it, libvirt on " + h.o.Name + " has no such domain")
	}
	claim, ok := h.attempts.ClaimOf(uuid)
	if !ok {
		return migration.Guest{}, fault.New(fault.Forbidden, "it has no claim on %s", h.o.Name)
	}
	g := migration.Guest{
		UUID: uuid, Name: dom.Name, Flavor: inst.Flavor, Resources: claim.Resources,
		Topology: demands.AsItRuns(claim.Topology, claim.Assignment), PCIRequests: claim.PCI, Assignment: claim.Assignment,
		ProjectID: inst.ProjectID, UserID: inst.UserID, Autostart: inst.Autostart, Adopted: inst.Adopted,
		Epoch: inst.Token.Epoch, PowerState: powerState(dom), Persistent: dom.Persistent,
	}
	what := driver.Migratable
	if !dom.Active() {
		what = driver.Persistent
	}
	if g.XML, err = h.driver.XML(ctx, uuid, what); err != nil {
		return migration.Guest{}, err
	}
	if dom.Active() {
		if g.CPU, err = h.realCPU(ctx, uuid); err != nil {
			return migration.Guest{}, err
		}
	}
	if dom.Persistent {
		if g.Definition, err = h.driver.XML(ctx, uuid, driver.Persistent); err != nil {
			return migration.Guest{}, err
		}
	}
	doc, err := parseDocument(g.XML)
	if err != nil {
		return migration.Guest{}, err
	}
	if g.Disks, err = h.guestDisks(ctx, doc); err != nil {
		return g, err
	}
	for i, d := range g.Disks {
		if made, known := inst.Images[d.Target]; known {
			g.Disks[i].Image = &migration.Image{Path: made.Path, Format: made.Format}
		}
	}
	if g.Variables, err = h.guestVariables(doc); err != nil {
		return g, err
	}
	g.Allocations, err = h.countedOn(ctx, allocation.Of(inst, claim))
	return g, err
}

func gone(message string) error {
	return fault.Refuse(fault.NotFound, "", fault.Reason{Code: migration.ReasonGuestGone, Message: message})
}

// realCPU is the CPU that a running guest has, as an element; empty where its
// document names no model.
func (h *Host) realCPU(ctx context.Context, uuid string) (string, error) {
	text, err := h.driver.XML(ctx, uuid, driver.Live)
	if err != nil {
		return "", err
	}
	doc, err := domainxml.Parse(text)
	if err != nil {
		return "", fault.New(fault.Invalid, "read the document of the guest as it runs: %w", err)
	}
	cpu, _ := doc.CPU()
	return cpu, nil
}

// tokenHere is nil when this host may start, move and delete the guest.
func (h *Host) tokenHere(inst claims.Instance) error {
	if err := h.tokenIsHere(inst); err != nil {
		return err
	}
	return h.confirmed(inst.UUID, inst.Name)
}

// tokenIsHere is nil when the ledger has the guest's token.
func (h *Host) tokenIsHere(inst claims.Instance) error {
	if inst.Token.State == claims.TokenHere {
		return nil
	}
	if inst.Token.State == claims.TokenDoubt {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "token_in_doubt", Message: "whose " + inst.Name + " is is in doubt since the ledger of " + h.o.Name + " was lost", Want: h.o.Name,
			Change: "look for it on the other hosts; if it is nowhere else, berth instance adopt " + inst.Name,
		})
	}
	return fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code:    migration.ReasonTokenElsewhere,
		Message: "the ownership token of " + inst.Name + " is not on " + h.o.Name + ", it went to " + inst.Token.Holder,
		Have:    inst.Token.Holder, Want: h.o.Name, Change: "ask " + inst.Token.Holder,
	})
}

// powerState is what the user has chosen, as far as a domain tells: a pause for
// another reason (a migration that broke off, an I/O error) is not a choice.
// `paused (unknown)` is taken for one, since a guest that stays paused can be
// resumed later, and one that ran against its user's wish cannot be unrun.
func powerState(d driver.Domain) migration.PowerState {
	switch {
	case !d.Active():
		return migration.PowerShutOff
	case d.State == driver.Paused && (d.Reason == driver.ReasonUser || d.Reason == driver.ReasonUnknown):
		return migration.PowerPaused
	}
	return migration.PowerRunning
}

// guestVariables identifies the file of a guest's firmware variables; empty where it has none, or
// has not run yet.
func (h *Host) guestVariables(doc document) (string, error) {
	path := doc.firmware().Variables
	if path == "" {
		return "", nil
	}
	id, err := h.files.Identity(path)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		return "", nil
	}
	return id, wrap(err, "firmware variables")
}

// guestDisks reads every disk of a document, in its order.
func (h *Host) guestDisks(ctx context.Context, doc document) ([]migration.Disk, error) {
	var out []migration.Disk
	for _, e := range doc.Devices.Disks {
		d := migration.Disk{
			Target: e.Target.Dev, Format: e.Driver.Type, ReadOnly: e.readOnly(), Shareable: e.Shareable != nil,
			Network: e.Type == "network",
		}
		if d.Format == "" {
			d.Format = "raw"
		}
		switch e.Type {
		case "file", "block":
			if d.Path = e.path(); d.Path == "" {
				break // an empty drive
			}
			img, err := h.files.Image(ctx, d.Path, e.Driver.Type)
			if err != nil {
				return nil, wrap(err, "disk %s", d.Target)
			}
			d.VirtualSize, d.ActualSize, d.Outside = img.VirtualSize, img.ActualSize, img.Outside
			if len(img.Backing) > 0 {
				d.BackingFile = img.Backing[0]
			}
			if d.Chain, err = shipping.Chain(h.files, img.Backing); err != nil {
				return nil, wrap(err, "disk %s", d.Target)
			}
			if d.Filesystem, err = h.files.Identity(d.Path); err != nil {
				return nil, wrap(err, "disk %s", d.Target)
			}
		}
		out = append(out, d)
	}
	return out, nil
}
