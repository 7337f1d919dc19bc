package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth/agent/host/disks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// A host that was dead gives way first: the token is surrendered to who has it by the higher
// epoch, and a copy that runs is ended. What else it has of the guest goes only once the guest's
// new host has written it as its own: definition, the half in Placement, claim and record, in this
// order, each safe to repeat. Files stay, and are named (olddisks.go). What is on record of it goes
// last, so that a host which dies in between comes back to it.

// gaveWay is what is on record of it.
type gaveWay struct {
	Instance string `json:"instance_uuid"`
	Name     string `json:"name,omitempty"`
	Epoch    uint64 `json:"epoch"`
	To       string `json:"dest_compute"`
	// Proven: this host knew of its own death when it gave way.
	Proven bool `json:"proven,omitempty"`
	// Listed: Files are those of the definition that was here.
	Listed bool         `json:"listed,omitempty"`
	Files  []copiedDisk `json:"files,omitempty"`
	// Identities are what the files were known by, in their order.
	Identities []string `json:"identities,omitempty"`
}

const memoryGaveWay = "gave_way"

// GaveWay is a guest that this host gives way for and has not cleaned up after yet.
type GaveWay struct {
	Ref   migration.Ref
	Epoch uint64 // of the token that To has
	To    string
}

// GivingWay gives them, in order of migration.
func (h *Host) GivingWay() ([]GaveWay, error) {
	var out []GaveWay
	for _, ref := range h.memory.Remembering(memoryGaveWay) {
		rec, found, err := memory.Recall[gaveWay](h.memory, ref, memoryGaveWay)
		if err != nil {
			return nil, err
		}
		if found {
			ref.Instance = rec.Instance
			out = append(out, GaveWay{Ref: ref, Epoch: rec.Epoch, To: rec.To})
		}
	}
	slices.SortFunc(out, func(a, b GaveWay) int { return strings.Compare(a.Ref.Migration, b.Ref.Migration) })
	return out, nil
}

// GiveWay gives way to a higher epoch that the fleet's records name: the guest was evacuated by
// the attempt of ref, or has gone on, and to has it. Once it returns this host does not own it,
// and no copy of it runs here: law 6's one exception. It reports false, and has done nothing,
// where this host has the same or a higher epoch. Safe to repeat. A record alone ends no instance
// that runs, and none that the ledger does not know: proven says that this host knows of its own
// death, by which it was evacuated; fault.InDoubt, and nothing done, without it.
func (h *Host) GiveWay(ctx context.Context, ref migration.Ref, epoch uint64, to string, proven bool) (gave bool, err error) {
	gave, err = h.giveWayTo(ctx, ref, epoch, to, proven)
	return gave, wrap(err, "give way to %s for instance %s", to, ref.Instance)
}

func (h *Host) giveWayTo(ctx context.Context, ref migration.Ref, epoch uint64, to string, proven bool) (bool, error) {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return false, err
	}
	defer unlock()
	inst, known := h.tracker.Instance(ref.Instance)
	if known && inst.Token.Epoch >= epoch && inst.Token.State == claims.TokenHere {
		return false, nil
	}
	if err := staysHere(h, ref.Instance, epoch, to); err != nil {
		return false, err
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return false, err
	}
	if _, err := provenElsewhere(h.o.Name, inst, known, d, exists, proven, epoch, to); err != nil {
		return false, err
	}
	rec, found, err := memory.Recall[gaveWay](h.memory, ref, memoryGaveWay)
	if err != nil {
		return false, err
	}
	if (!known || inst.Token.State == claims.TokenDoubt) && exists && !proven && !rec.Proven {
		return false, fault.Refuse(fault.InDoubt, "", fault.Reason{
			Code:    "evacuation_unproven",
			Message: fmt.Sprintf("the fleet's records say that instance %s was evacuated to %s; libvirt has it on %s, the ledger does not say whose it is, and no death of this host is known", d.Name, to, h.o.Name),
			Have:    h.o.Name, Want: to, Change: "if the instance is the one on " + to + ": virsh undefine " + d.Name + " --keep-nvram, once it is off",
		})
	}
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(ref.Instance)
		if err != nil {
			return false, fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	// Before the token: who is killed in between finds it, and does both.
	if !found || rec.Epoch < epoch || proven && !rec.Proven {
		rec.Instance, rec.Name, rec.Epoch, rec.To, rec.Proven = ref.Instance, cmp.Or(inst.Name, d.Name, rec.Name), epoch, to, proven
		if err := h.memory.Remember(ctx, ref, memoryGaveWay, rec); err != nil {
			return false, err
		}
	}
	if known {
		if _, err := h.tracker.Yield(ctx, memory.At(ref, ""), epoch, to); err != nil {
			return false, err
		}
	}
	if d, exists, err = h.domain(ctx, ref.Instance); err != nil {
		return false, err
	}
	if exists && d.Active() {
		h.log.Error("END A COPY THAT IS NOT THE OWNER: the guest was evacuated while this host was taken for dead", "instance", ref.Instance, "name", d.Name,
			"migration", ref.Migration, "host", to, "epoch", epoch, "state", d.State, "reason", d.Reason)
		if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
			return false, err
		}
	}
	if err := h.witness.Off(ref.Instance, cmp.Or(d.Name, ref.Instance), nil); err != nil {
		return false, err
	}
	return true, nil
}

// CleanUpReturned removes what is left here of a guest for which GiveWay has given way. there is
// the guest as its new host has written it. Its files stay; those that this host alone has are named by
// KeptOldDisks. Safe to repeat, also when nothing is on record any more. Forgotten
// is the record, last: call Cleaned after the fleet's own is gone.
func (h *Host) CleanUpReturned(ctx context.Context, ref migration.Ref, there migration.Guest) error {
	return wrap(h.cleanUpReturned(ctx, ref, there), "clean up after migration %s, by which instance %s was evacuated from %s", ref.Migration, ref.Instance, h.o.Name)
}

func (h *Host) cleanUpReturned(ctx context.Context, ref migration.Ref, there migration.Guest) error {
	unlock, err := h.memory.Lock(ctx, ref.Instance)
	if err != nil {
		return err
	}
	defer unlock()
	rec, found, err := memory.Recall[gaveWay](h.memory, ref, memoryGaveWay)
	if err != nil {
		return err
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if known && inst.Token.State == claims.TokenHere {
		// It has come back since: what is here is its own.
		return h.giveUpHalf(ctx, ref, false)
	}
	if _, exists, err := h.domain(ctx, ref.Instance); err != nil {
		return err
	} else if !exists {
		if err := notLoaded(ctx, h, ref.Instance); err != nil {
			return err // its definition names files
		}
	}
	if found {
		if rec, err = h.listFiles(ctx, ref, rec); err != nil {
			return err
		}
		if err := keepOldDisks(ctx, h, ref.Instance, rec, there); err != nil {
			return err
		}
	}
	if err := endUnmarked(ctx, h, ref); err != nil {
		return err
	}
	if err := h.giveUpHalf(ctx, ref, true); err != nil {
		return err
	}
	if !known {
		return nil
	}
	if err := h.dropRecords(ctx, ref.Instance); err != nil {
		return err
	}
	return h.tracker.Forget(ctx, ref.Instance)
}

// Cleaned forgets that this host gave way: nothing of it is left anywhere. Safe to repeat.
func (h *Host) Cleaned(ctx context.Context, ref migration.Ref) error {
	return wrap(h.tracker.Unremember(ctx, memory.At(ref, memoryGaveWay)), "forget that this host gave way for instance %s", ref.Instance)
}

// giveUpHalf gives up in Placement what the move kept of this host. A guest that is not here holds
// nothing of it then.
func (h *Host) giveUpHalf(ctx context.Context, ref migration.Ref, gone bool) error {
	moved, ok := h.o.Placement.(Moved)
	if !ok {
		return nil
	}
	ctx, cancel := h.rt.WithTimeout(ctx, allocationPatience)
	defer cancel()
	if gone {
		return moved.SettleThere(ctx, ref.Instance, ref.Migration)
	}
	return moved.SettleNobody(ctx, ref.Instance, ref.Migration)
}

// listFiles makes durable which files the definition here names, before it goes.
func (h *Host) listFiles(ctx context.Context, ref migration.Ref, rec gaveWay) (gaveWay, error) {
	if rec.Listed {
		return rec, nil
	}
	text, err := h.driver.XML(ctx, ref.Instance, driver.Persistent)
	if errors.Is(err, fault.NotFound) {
		rec.Listed = true
		return rec, h.memory.Remember(ctx, ref, memoryGaveWay, rec)
	}
	if err != nil {
		return rec, err
	}
	files, err := h.writableFiles(text)
	if err != nil {
		return rec, err
	}
	variables, err := h.variables(text)
	if err != nil {
		return rec, err
	}
	rec.Files = append(files, variables...)
	for _, f := range rec.Files {
		identity, err := h.files.Identity(f.Path)
		if errors.Is(err, fault.NotFound) {
			identity, err = "", nil
		}
		if err != nil {
			return rec, err
		}
		rec.Identities = append(rec.Identities, identity)
	}
	rec.Listed = true
	return rec, h.memory.Remember(ctx, ref, memoryGaveWay, rec)
}

// keeps says why a file of an evacuated guest is not to be named as its old disk; empty for one that is.
func keeps(identity, path string, there migration.Guest) string {
	const used = "the guest uses it where it is"
	if identity == "" {
		return "whether another host has it is not known"
	}
	if disks.Reachable(identity) {
		return "it is on storage that other hosts reach"
	}
	for _, d := range there.Disks {
		if disks.SameFile(identity, d.Filesystem) {
			return used
		}
		if d.Filesystem == "" && d.Path == path {
			return "whether it is the file that the guest uses where it is is not known"
		}
		for _, below := range d.Chain {
			if disks.SameFile(identity, below.Filesystem) || below.Filesystem == "" && below.Path == path {
				return used
			}
		}
	}
	return ""
}
