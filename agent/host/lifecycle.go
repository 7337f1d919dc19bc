package host

import (
	"cmp"
	"context"
	"errors"
	"time"

	"berth/agent/host/fileusers"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
)

// own gives a guest that this host may start, stop and delete, with its
// instance's turn taken.
func (h *Host) own(ctx context.Context, id string) (inst claims.Instance, unlock func(), err error) {
	return h.ownIf(ctx, id, func(uuid string) error {
		if err := h.still(uuid); err != nil {
			return err
		}
		return h.confirmed(uuid, id)
	})
}

// ownToDelete gives a guest that this host may delete: also one that is held by name and off, where its
// disks stay. Nothing of it is lost then, and nobody else would end what is here.
func ownToDelete(ctx context.Context, h *Host, id string, o *DeleteOptions) (inst claims.Instance, unlock func(), err error) {
	return h.ownIf(ctx, id, func(uuid string) error {
		if err := h.still(uuid); err != nil {
			return err
		}
		if _, held := h.Held()[uuid]; held && h.BootConfirmed() && !o.Disks {
			if d, exists, err := h.domain(ctx, uuid); err == nil && (!exists || !d.Active()) {
				o.keepFiles = true
				return nil
			}
		}
		return h.confirmed(uuid, id)
	})
}

// Alive gives the reasons for which an instance of h that libvirt is about to start is not off: a
// process of it that libvirtd has lost lives here, or processes cannot be read. It asks the process
// table, never libvirt.
func Alive(h *Host, inst claims.Instance) []fault.Reason {
	err := h.witness.Off(inst.UUID, inst.Name, nil)
	if err == nil {
		return nil
	}
	if reasons := fault.ReasonsOf(err); len(reasons) > 0 {
		return reasons
	}
	return []fault.Reason{{Code: "processes_unread", Message: err.Error(), Change: "look at that process, and start the instance again"}}
}

// ownToUse gives a guest that this host may start and stop: also one that waits to be
// confirmed, where it lives.
func (h *Host) ownToUse(ctx context.Context, id string) (inst claims.Instance, unlock func(), err error) {
	return h.ownIf(ctx, id, func(uuid string) error {
		if h.Lives(uuid) {
			return nil
		}
		return h.still(uuid)
	})
}

func (h *Host) ownIf(ctx context.Context, id string, may func(uuid string) error) (inst claims.Instance, unlock func(), err error) {
	if err := h.managing(""); err != nil {
		return inst, nil, err
	}
	uuid, err := h.Resolve(ctx, id)
	if err != nil {
		return inst, nil, err
	}
	if unlock, err = h.memory.Lock(ctx, uuid); err != nil {
		return inst, nil, err
	}
	inst, ok := h.tracker.Instance(uuid)
	switch {
	case !ok:
		err = fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "not_managed", Message: "guest " + id + " is not managed", Change: "berth instance adopt " + id,
		})
	default:
		if err = may(uuid); err == nil {
			err = h.tokenIsHere(inst)
		}
	}
	if err != nil {
		unlock()
		return inst, nil, err
	}
	return inst, unlock, nil
}

// Start boots a stopped guest; with paused its CPUs wait for `virsh resume`.
// Success when it is active. It needs the token and a bound claim here, and that this boot is
// confirmed.
func (h *Host) Start(ctx context.Context, id string, paused bool) error {
	inst, unlock, err := h.ownToUse(ctx, id)
	if err == nil {
		defer unlock()
		err = h.start(ctx, inst, paused)
	}
	return wrap(err, "start instance %s", id)
}

func (h *Host) start(ctx context.Context, inst claims.Instance, paused bool) error {
	if _, ok := h.attempts.ClaimOf(inst.UUID); !ok {
		return fault.New(fault.Forbidden, "it has no claim on %s", h.o.Name)
	}
	d, exists, err := h.domain(ctx, inst.UUID)
	if err != nil {
		return err
	}
	if exists {
		if err := h.stays(d); err != nil {
			return err
		}
	}
	if err := h.confirmed(inst.UUID, inst.Name); err != nil {
		return err
	}
	if exists && !d.Active() {
		if err := h.provenOff(ctx, d); err != nil {
			return err
		}
	}
	return h.driver.Start(ctx, inst.UUID, paused)
}

// StopOptions say how a guest is stopped.
type StopOptions struct {
	// Force ends it when it has not powered off within Timeout; with a Timeout of
	// 0, at once.
	Force bool `json:"force"`
	// Timeout is how long it may take to power off; 0 for a minute without Force.
	Timeout time.Duration `json:"timeout"`
}

// Stop powers a guest off and returns when it is off. Success when it was.
// fault.Unavailable when the guest did not obey in time and Force was not given;
// it may still do so later.
func (h *Host) Stop(ctx context.Context, id string, o StopOptions) error {
	inst, unlock, err := h.ownToUse(ctx, id)
	if err == nil {
		defer unlock()
		err = h.stop(ctx, inst.UUID, o)
	}
	return wrap(err, "stop instance %s", id)
}

func (h *Host) stop(ctx context.Context, uuid string, o StopOptions) error {
	d, exists, err := h.domain(ctx, uuid)
	if err != nil || !exists || !d.Active() {
		return err
	}
	if o.Timeout > 0 || !o.Force {
		if o.Timeout <= 0 {
			o.Timeout = time.Minute
		}
		off, err := h.shutDown(ctx, uuid, o.Timeout)
		if err != nil || off {
			return err
		}
		if !o.Force {
			return fault.Refuse(fault.Unavailable, "", fault.Reason{
				Code: "not_off", Message: "the guest did not power off within " + o.Timeout.String(), Change: "stop it with force",
			})
		}
	}
	if err := h.driver.Destroy(ctx, uuid); err != nil && !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}

// shutDown asks the guest to power off and waits; true when it is off.
func (h *Host) shutDown(ctx context.Context, uuid string, limit time.Duration) (bool, error) {
	if err := h.driver.Shutdown(ctx, uuid); err != nil {
		return false, err
	}
	wait, cancel := h.rt.WithTimeout(ctx, limit)
	defer cancel()
	for {
		d, exists, err := h.domain(wait, uuid)
		switch {
		case err == nil && (!exists || !d.Active()):
			return true, nil
		case ctx.Err() != nil:
			return false, fault.New(fault.Unavailable, "wait for the guest to power off: %w", context.Cause(ctx))
		case wait.Err() != nil:
			return false, nil
		case err != nil:
			return false, err
		}
		// The sleep's error is the context's, looked at in the next turn.
		_ = h.rt.Sleep(wait, h.o.Poll)
	}
}

// DeleteOptions say what goes with a guest.
type DeleteOptions struct {
	Force bool `json:"force"` // end it when it runs
	Disks bool `json:"disks"` // remove the files of its writable disks
	// DiscardSavedState removes its saved memory first; without it such an instance is refused.
	DiscardSavedState bool `json:"discard_saved_state,omitempty"`
	// keepFiles: no file goes, firmware variables included. Another host may have the instance.
	keepFiles bool
}

// Deleted tells what a deletion left behind.
type Deleted struct {
	Kept []fileusers.Kept `json:"kept,omitempty"` // files that were to be removed
}

// Delete ends an instance: domain, definition, allocation, claim, token, in this
// order, each safe to repeat. Its firmware variables go with it; disks only when
// asked for, and never one that anybody else uses or may use: the answer names those.
// Of one that is held, since another host may have it, no file goes.
func (h *Host) Delete(ctx context.Context, id string, o DeleteOptions) (Deleted, error) {
	var out Deleted
	inst, unlock, err := ownToDelete(ctx, h, id, &o)
	if err == nil {
		defer unlock()
		out.Kept, err = h.remove(ctx, inst, o)
	}
	return out, wrap(err, "delete instance %s", id)
}

func (h *Host) remove(ctx context.Context, inst claims.Instance, o DeleteOptions) ([]fileusers.Kept, error) {
	d, exists, err := h.domain(ctx, inst.UUID)
	if err != nil {
		return nil, err
	}
	var files, disks []copiedDisk
	var survey *fileusers.Survey
	var elsewhere map[string]string
	var kept []fileusers.Kept
	if exists {
		if d.Active() && !o.Force {
			return nil, fault.Refuse(fault.Busy, "", fault.Reason{Code: "running", Message: "the guest is " + string(d.State), Change: "stop it first, or delete it with force"})
		}
		if o.DiscardSavedState {
			if err := h.discardSaved(ctx, d); err != nil {
				return nil, err
			}
		}
		if err := h.nothingSaved(ctx, d); err != nil {
			return nil, err
		}
		text, err := h.driver.XML(ctx, inst.UUID, driver.Live)
		if err != nil {
			return nil, err
		}
		if !o.keepFiles {
			if files, err = h.variables(text); err != nil {
				return nil, err
			}
		}
		if o.Disks {
			if err := h.stays(d); err != nil {
				return nil, err // the disks are those of a guest that runs
			}
			if disks, err = h.writableFiles(text); err != nil {
				return nil, err
			}
			if kept, err = staying(text); err != nil {
				return nil, err
			}
			files = append(files, disks...)
		}
		// Before anything is undone: a repeated deletion would find no definition that names them.
		if len(files) > 0 {
			if survey, err = h.fileUsers(ctx); err != nil {
				return nil, err
			}
			if elsewhere, err = survey.UsedElsewhere(ctx, inst.UUID, pathsOf(files)...); err != nil {
				return nil, err
			}
		}
		if err := h.stop(ctx, inst.UUID, StopOptions{Force: true}); err != nil {
			return nil, err
		}
		proven := h.provenOff
		if d.Active() {
			proven = h.ended
		}
		if err := proven(ctx, d); err != nil {
			return nil, err
		}
		if err := h.driver.Undefine(ctx, inst.UUID); err != nil && !errors.Is(err, fault.NotFound) {
			return nil, err
		}
	} else if err := h.witness.Off(inst.UUID, inst.Name, nil); err != nil {
		return nil, err // it runs, and libvirt has lost it
	}
	for _, f := range files {
		k, err := h.removeFile(survey, elsewhere, migration.Ref{Instance: inst.UUID}, f)
		if err != nil {
			k = &fileusers.Kept{Disk: f.Target, Path: f.Path, Reason: err.Error(), Change: "rm " + fault.Quote(f.Path)}
			h.log.Warn("a disk file stays", "instance", inst.UUID, "path", f.Path, "error", err)
		}
		if k != nil {
			kept = append(kept, *k)
		}
	}
	return kept, h.forget(ctx, inst.UUID)
}

// DiscardSavedState removes the saved memory of an instance, so that its next start is a boot,
// and returns when that is durable. Success where none is saved; fault.Busy while the instance
// is active or moves.
func (h *Host) DiscardSavedState(ctx context.Context, id string) error {
	inst, unlock, err := h.own(ctx, id)
	if err == nil {
		defer unlock()
		var d driver.Domain
		var exists bool
		if d, exists, err = h.domain(ctx, inst.UUID); err == nil && exists {
			err = h.discardSaved(ctx, d)
		}
	}
	return wrap(err, "discard the saved state of instance %s", id)
}

func (h *Host) discardSaved(ctx context.Context, d driver.Domain) error {
	s, err := h.driver.Saved(ctx, d.UUID)
	if err != nil || !s.Memory {
		return err
	}
	if d.Active() {
		return fault.New(fault.Busy, "instance %s is %s", d.Name, d.State)
	}
	if err := h.witness.Off(d.UUID, d.Name, nil); err != nil {
		return err
	}
	h.log.Warn("discard the saved memory of an instance, as it was asked for", "instance", d.UUID, "name", d.Name)
	return h.driver.DiscardSavedMemory(ctx, d.UUID)
}

// forget ends what bookkeeping holds of a guest that is gone. The allocation
// first: while the ledger knows the guest, a failure here can be repeated.
func (h *Host) forget(ctx context.Context, uuid string) error {
	if h.o.Owners != nil {
		done, err := h.o.Owners.Withdraw(uuid)
		if err != nil {
			return fault.New(fault.Unavailable, "%w", err)
		}
		defer done()
	}
	if h.o.Placement != nil {
		if err := h.o.Placement.DeleteAllocation(ctx, uuid); err != nil {
			return wrap(err, "delete its allocation")
		}
	}
	if err := h.dropRecords(ctx, uuid); err != nil {
		return err
	}
	if err := h.tracker.DeleteInstance(ctx, uuid); err != nil {
		return err
	}
	h.vanished.Forget(uuid)
	return nil
}

// variables finds the file of a guest's firmware variables, which goes with the
// guest; none where they are on a block device, which stays.
func (h *Host) variables(text string) ([]copiedDisk, error) {
	doc, err := parseDocument(text)
	if err != nil || doc.firmware().Variables == "" || doc.firmware().OnDevice {
		return nil, err
	}
	stamp, err := h.files.Stamp(doc.firmware().Variables)
	if errors.Is(err, fault.NotFound) {
		return nil, nil
	}
	return []copiedDisk{{Target: "nvram", Path: doc.firmware().Variables, Stamp: stamp}}, err
}

// staying names the disks that an instance writes and that no deletion removes: those that are no
// files of this host, and those that others may write.
func staying(text string) ([]fileusers.Kept, error) {
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	var out []fileusers.Kept
	for _, e := range doc.Devices.Disks {
		if e.readOnly() {
			continue
		}
		k := fileusers.Kept{
			Disk: e.Target.Dev, Path: cmp.Or(e.path(), e.Type), Reason: "it is of type " + e.Type + ", and a deletion removes files alone",
			Change: "have whoever keeps that storage do it",
		}
		switch {
		case e.Type == "volume":
			k.Path = e.Source.Pool + "/" + e.Source.Volume
			k.Change = "virsh vol-delete --pool " + fault.Quote(e.Source.Pool) + " " + fault.Quote(e.Source.Volume)
		case e.Type == "file" && (e.path() == "" || e.Shareable == nil):
			continue
		case e.Type == "file":
			k.Reason, k.Change = "it is <shareable/>: others may write it", "rm "+fault.Quote(e.path())+" when nobody needs it"
		}
		out = append(out, k)
	}
	return out, nil
}

// writableFiles finds the files of a guest's own disks.
func (h *Host) writableFiles(text string) ([]copiedDisk, error) {
	doc, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	var out []copiedDisk
	for _, e := range doc.Devices.Disks {
		if e.Type != "file" || e.path() == "" || e.readOnly() || e.Shareable != nil {
			continue
		}
		stamp, err := h.files.Stamp(e.path())
		if errors.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, copiedDisk{Target: e.Target.Dev, Path: e.path(), Stamp: stamp})
	}
	return out, nil
}
