package host

import (
	"context"
	"fmt"
	"slices"

	"berth/agent/host/admission"
	"berth/agent/host/attempts"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
)

// Allowed is package admission's, by this one's name.
type Allowed = admission.Allowed

// admitPrepared refuses the domain XMLs that were prepared for a claim. The source may have asked
// for no check. name is the instance's, as it is recorded when it comes, below what its disks stand on
// that are shipped here.
func (h *Host) admitPrepared(ctx context.Context, c claims.Claim, name string, below map[string][]string, texts ...string) error {
	claimed := admission.Claimed{Resources: c.Resources, Below: below}
	for _, d := range c.Assignment.Devices {
		claimed.Devices = append(claimed.Devices, d.Address.String())
	}
	reasons, err := h.gate.AdmitAs(ctx, c.Owner.Instance, &name, claimed, texts...)
	if err != nil {
		return err
	}
	written, err := writtenHere(ctx, h, c.Owner.Instance, texts...)
	if err != nil {
		return err
	}
	reasons = append(reasons, written...)
	// A check refuses these too, and a peer may have asked for none.
	for _, text := range texts {
		if text == "" {
			continue
		}
		doc, err := parseDocument(text)
		if err != nil {
			return err
		}
		for _, r := range doc.neverMoves() {
			if !slices.Contains(reasons, r) {
				reasons = append(reasons, r)
			}
		}
	}
	if other, there := h.tracker.InstanceByName(name); there && other.UUID != c.Owner.Instance {
		reasons = append(reasons, fault.Reason{
			Code: "name_taken", Message: fmt.Sprintf("the name %q is taken by instance %s of %s", name, other.UUID, h.o.Name), Want: name, Have: other.UUID, Change: "virsh domrename " + fault.Quote(name) + " NEW, of one of the two",
		})
	}
	if len(reasons) == 0 {
		return nil
	}
	return fault.Refuse(fault.Forbidden, "", reasons...)
}

// below is on which files disks stand, as their source tells them, by target.
func below(disks []migration.Disk) map[string][]string {
	out := map[string][]string{}
	for _, d := range disks {
		for _, b := range d.Chain {
			out[d.Target] = append(out[d.Target], b.Path)
		}
	}
	return out
}

// PreparedXML is the domain XML that this host prepared for an instance that comes live by a
// migration of Berth's. It reads the ledger alone. fault.Forbidden where nothing is prepared.
func (h *Host) PreparedXML(instance, id string) (string, error) {
	for _, c := range h.tracker.ByInstance(instance) {
		if c.Owner.Kind != claims.KindLiveMigration || c.Owner.Migration != id {
			continue
		}
		rec, found, err := memory.Recall[preparation](h.memory, attempts.RefOf(c.Owner), memoryPrepared)
		if err != nil {
			return "", err
		}
		if found && rec.Prepared != nil {
			return rec.Prepared.DestinationXML, nil
		}
	}
	return "", fault.Refuse(fault.Forbidden, "", fault.Reason{
		Code: "not_prepared", Message: "this host has prepared nothing for migration " + id + " of instance " + instance, Change: "wait for that migration's own stream, or berth migration abort " + id,
	})
}
