package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/agent/host/allocation"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/topology"
)

// Adopted is what came of adopting one guest.
type Adopted struct {
	InstanceView
	// New is false for a guest that was managed before.
	New bool `json:"new"`
	// Warnings are what adoption could not do and what it found; none of it
	// refuses anything.
	Warnings []fault.Reason `json:"warnings,omitempty"`
	// Error is why the guest is not managed; empty when it is.
	Error string `json:"error,omitempty"`
}

// Adopt takes guests that run or are defined here under claims: the one that id
// names, or all for "" (design section 6). It never refuses for room: what does
// not fit is a forced claim, and named. It changes nothing in the guest or its
// definition: Berth's metadata comes with its next move; libvirt's autostart is
// turned off and kept as a wish, so that nothing starts a guest that has left.
//
// To adopt a managed guest by name that has left by a migration which Berth did not
// conduct is an operator's word that it is this host's all the same: it may be
// started here again.
//
// To adopt by name a guest that is in doubt since the ledger was lost is the same word:
// its token is here from then on.
//
// The error of one guest keeps nobody else from being adopted; all are joined.
// Safe to repeat: the claim follows the guest.
func (h *Host) Adopt(ctx context.Context, id string) ([]Adopted, error) {
	if err := h.managing("adopt guests of " + h.o.Name); err != nil {
		return nil, err
	}
	var uuids []string
	if id != "" {
		uuid, err := h.Resolve(ctx, id)
		if err != nil {
			return nil, wrap(err, "adopt %s", id)
		}
		uuids = []string{uuid}
	} else {
		all, err := h.driver.Domains(ctx)
		if err != nil {
			return nil, wrap(err, "adopt guests of %s", h.o.Name)
		}
		slices.SortFunc(all, func(a, b driver.Domain) int { return strings.Compare(a.Name, b.Name) })
		for _, d := range all {
			uuids = append(uuids, d.UUID)
		}
	}
	var out []Adopted
	var errs []error
	for _, uuid := range uuids {
		a, err := h.adoptOne(ctx, uuid, id == "")
		if err != nil {
			a.Error = err.Error()
			errs = append(errs, wrap(err, "adopt guest %s", uuid))
		}
		if a.UUID != "" {
			out = append(out, a)
		}
	}
	return out, errors.Join(errs...)
}

// adoptOne adopts one guest; among all, what a move holds is passed over.
func (h *Host) adoptOne(ctx context.Context, uuid string, amongAll bool) (Adopted, error) {
	unlock, err := h.memory.Lock(ctx, uuid)
	if err != nil {
		return Adopted{}, err
	}
	defer unlock()
	d, exists, err := h.domain(ctx, uuid)
	if err != nil {
		return Adopted{}, err
	}
	if !exists {
		return Adopted{}, fault.New(fault.NotFound, "libvirt has no such domain")
	}
	out := Adopted{InstanceView: h.foreign(d)}
	inst, managed := h.tracker.Instance(uuid)
	if err := h.still(uuid); err != nil {
		if amongAll {
			return Adopted{}, nil // a copy that comes or goes is no guest of this host yet, or soon
		}
		return out, err
	}
	if managed && inst.Token.State == claims.TokenDoubt && !amongAll {
		if err := h.tracker.Decide(ctx, uuid); err != nil {
			return out, err
		}
		inst, _ = h.tracker.Instance(uuid)
		h.log.Warn("a guest in doubt is this host's by an operator's word", "instance", uuid, "name", d.Name, "epoch", inst.Token.Epoch)
	}
	if managed {
		if err := h.tokenHere(inst); err != nil {
			return out, err
		}
	} else if err := between(d); err != nil {
		if amongAll {
			h.log.Warn("not adopted: a migration that nobody here conducts has it", "instance", uuid, "name", d.Name, "state", d.State, "reason", d.Reason)
			return Adopted{}, nil
		}
		return out, err
	}
	asRead, found, remarks, err := h.read(ctx, d)
	if err != nil {
		return out, err
	}
	out.New = !managed
	if managed {
		if !amongAll {
			if err := h.keepLeft(ctx, d); err != nil {
				return out, err
			}
		}
		// What was asked for stays; what it uses is looked at again.
		asRead.Token, asRead.Flavor, asRead.Autostart = inst.Token, inst.Flavor, inst.Autostart
		asRead.ProjectID, asRead.UserID = inst.ProjectID, inst.UserID
	}
	claim, err := h.tracker.Adopt(ctx, asRead, found)
	if err != nil {
		return out, err
	}
	if err := h.vanished.Whole(ctx, d); err != nil {
		return out, err
	}
	out.Warnings = append(remarks, h.settleAdopted(ctx, d, asRead, claim)...)
	inst, _ = h.tracker.Instance(uuid)
	out.InstanceView = h.look(inst, d)
	return out, nil
}

// between refuses to own what a migration by other hands has left here, or has not
// brought whole: the guest is another host's, as far as anybody can tell here.
func between(d driver.Domain) error {
	switch {
	case d.HasLeft():
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "has_left", Message: "guest " + d.Name + " has left by a migration: it runs on another host", Have: "shut off (migrated)",
			Change: "virsh undefine " + fault.Quote(d.Name) + " here, which is what is left of it; adopt it where it runs",
		})
	case d.State == driver.Paused && d.Reason == driver.ReasonMigrating:
		return fault.Refuse(fault.Busy, "", fault.Reason{
			Code: "migration_under_way", Message: "guest " + d.Name + " is in the middle of a migration", Have: "paused (migrating)",
			Change: "adopt it where it runs when that is over",
		})
	}
	return nil
}

// read makes the ledger's instance of a domain: from Berth's metadata where a
// lost ledger left it, else from what the domain uses. The reasons are what could
// not be read, what had to be guessed, and what is kept as it is.
func (h *Host) read(ctx context.Context, d driver.Domain) (claims.Instance, claims.Found, []fault.Reason, error) {
	text, err := h.driver.XML(ctx, d.UUID, driver.Live)
	if err != nil {
		return claims.Instance{}, claims.Found{}, nil, err
	}
	doc, err := parseDocument(text)
	if err != nil {
		return claims.Instance{}, claims.Found{}, nil, err
	}
	edit, unread := doc.doc, doc.unread
	uses, remarks := h.usesNow(ctx, d, doc, edit)
	inst := claims.Instance{
		UUID: d.UUID, Name: d.Name, Autostart: d.Autostart, Adopted: true, ProjectID: h.o.ProjectID, UserID: h.o.UserID,
		Flavor: topology.Flavor{Name: "adopted", VCPUs: uses.VCPUs, MemoryMB: uses.MemoryMB, DiskGB: uses.DiskGB},
	}
	found := claims.Found{Resources: uses}
	if unread == nil {
		var doubts []fault.Reason
		found, doubts = h.foundIn(edit, uses)
		remarks = append(append(remarks, doubts...), keptReasons(edit)...)
		if meta, ok, err := edit.Metadata(); err == nil && ok {
			// Epochs only rise: whoever reads an older one knows that it is older.
			inst.Token.Epoch = meta.Epoch
			if meta.Flavor.Name != "" {
				inst.Flavor = meta.Flavor
			}
		}
	} else {
		remarks = append(remarks, unreadDocument(unread))
	}
	return inst, found, remarks, nil
}

const diskUnreadable = "disk_unreadable"

// diskGB is what a guest's own disks may grow to, GiB rounded up. A disk that
// cannot be read counts for what its file has now and is named: to leave the
// whole guest unclaimed for it would count less.
func (h *Host) diskGB(ctx context.Context, doc document) (int64, []fault.Reason) {
	var bytes int64
	var remarks []fault.Reason
	for _, e := range doc.Devices.Disks {
		if e.Type != "file" || e.path() == "" || e.readOnly() || e.Shareable != nil {
			continue
		}
		img, err := h.files.Image(ctx, e.path(), e.Driver.Type)
		if err != nil {
			remarks = append(remarks, fault.Reason{
				Code: diskUnreadable, Message: fmt.Sprintf("disk %s could not be read, its claim may be too small: %v", e.Target.Dev, err),
				Have: e.path(), Change: "repair it, then adopt the guest again",
			})
			img.VirtualSize = h.files.Size(e.path())
		}
		bytes += img.VirtualSize
	}
	return (bytes + 1<<30 - 1) >> 30, remarks
}

// settleAdopted does what comes after the claim, each as far as it can.
func (h *Host) settleAdopted(ctx context.Context, d driver.Domain, inst claims.Instance, claim claims.Claim) []fault.Reason {
	var out []fault.Reason
	warn := func(code, message, change string) {
		out = append(out, fault.Reason{Code: code, Message: message, Change: change})
		h.log.Warn("adopted with a remark", "instance", d.UUID, "name", d.Name, "remark", message)
	}
	if claim.Forced {
		warn("claim_forced", fmt.Sprintf("%s uses %s, which is more than %s had free; its claim is forced", d.Name, claim.Resources, h.o.Name),
			"move guests away, or raise the host's ratios")
	}
	if d.Autostart {
		if err := h.driver.SetAutostart(ctx, d.UUID, false); err != nil {
			warn("autostart_on", fmt.Sprintf("libvirt's autostart of %s could not be turned off: %v", d.Name, err), "adopt it again")
		}
	}
	if h.o.Placement == nil {
		return out
	}
	err := h.o.Placement.PutAllocation(ctx, allocation.Of(inst, claim))
	switch {
	case errors.Is(err, fault.Forbidden) && len(fault.ReasonsOf(err)) > 0:
		out = append(out, fault.ReasonsOf(err)...)
		h.log.Warn("adopted with a remark", "instance", d.UUID, "name", d.Name, "remark", err.Error())
	case err != nil:
		// A guest that runs is not refused for bookkeeping (law 6).
		warn("allocation_missing", fmt.Sprintf("the allocation of %s could not be written: %v", d.Name, err), "adopt it again when Placement answers")
	}
	return out
}
