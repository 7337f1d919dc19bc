package host

import (
	"context"
	"errors"
	"time"

	"berth/agent/host/change"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/agent/host/phases"
	"berth/agent/host/volumes"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
)

const (
	memoryPower = "powered_off" // under which PowerOff remembers
)

// poweredOff is the record of PowerOff: what the guest goes back to.
//
//	what is seen at (a repeated) PowerOff      Power
//	the guest is active                        as it is then: its user started, paused or resumed it
//	off, and nothing is on record              shut off
//	off, and on record                         as recorded: it obeyed, or its host was rebooted
//	no domain, of a guest that never started   as its commit says
type poweredOff struct {
	Power       migration.PowerState `json:"power_state"`
	Kind        string               `json:"migration_type"`
	Destination string               `json:"dest_compute,omitempty"`
	Definition  string               `json:"definition_xml,omitempty"` // as it stood then; empty for no domain
	// Changed: the guest had what a change on this host gave it.
	Changed bool `json:"changed,omitempty"`
	// Asked is when the guest was first asked to shut down: verbs are repeated, and its
	// time runs from then.
	Asked  runtime.BootTime `json:"asked,omitzero"`
	Off    bool             `json:"off,omitempty"` // seen off: the answer was given
	Pulled bool             `json:"pulled,omitempty"`
	Hooks  bool             `json:"hooks,omitempty"` // resize_instance is theirs to undo
	On     bool             `json:"on,omitempty"`    // the undo has given the guest its power state again
}

// powerOff does operation.PowerOff.
func (h *Host) powerOff(ctx context.Context, ref migration.Ref, p migration.PowerOffRequest) (migration.PoweredOff, error) {
	none := migration.PoweredOff{}
	if p.Timeout < 0 {
		return none, fault.New(fault.Invalid, "timeout of %s", p.Timeout)
	}
	if err := h.pastPowerOff(ref); err != nil {
		return none, err
	}
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return none, fault.New(fault.NotFound, "instance %s is not in the ledger", ref.Instance)
	}
	if err := h.tokenHere(inst); err != nil {
		return none, err
	}
	if !h.attempts.Recorded(ref) {
		return none, fault.New(fault.Forbidden, "nothing of migration %s is recorded on %s", ref.Migration, h.o.Name)
	}
	rec, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil {
		return none, err
	}
	if !found {
		rec = poweredOff{Kind: p.Kind, Destination: p.Destination, Changed: h.attempts.Changed(ref)}
	}
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil {
		return none, err
	}
	if err := h.mayPowerOff(ctx, ref, d, exists); err != nil {
		return none, err
	}
	if found && rec.Off && !d.Active() {
		return rec.answer(), nil
	}
	if err := h.noteWish(ctx, ref, &rec, d, exists); err != nil {
		return none, err
	}
	if rec.Hooks {
		if err := h.phases.Run(ctx, ref, rec.phase(h, hooks.ResizeInstance)); err != nil {
			return none, err
		}
	}
	pulled, err := h.end(ctx, ref, &rec, p.Timeout)
	if err != nil {
		return none, err
	}
	rec.Off, rec.Pulled = true, rec.Pulled || pulled
	if err := h.memory.Remember(ctx, ref, memoryPower, rec); err != nil {
		return none, err
	}
	return rec.answer(), nil
}

// powersOff reports whether an attempt has begun to power the instance off.
func (h *Host) powersOff(ref migration.Ref) (bool, error) {
	_, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	return found, err
}

func (r poweredOff) answer() migration.PoweredOff {
	return migration.PoweredOff{PowerState: r.Power, Pulled: r.Pulled}
}

func (r poweredOff) phase(h *Host, phase string) phases.Request {
	return phases.Request{Phase: phase, Kind: r.Kind, Source: h.o.Name, Destination: r.Destination, XML: r.Definition, Power: r.Power}
}

// pastPowerOff refuses to end a guest whose story has started it again: what asks for it
// came late, and nothing would undo it.
//
//	story                 past it once
//	to another host       the token came here, back too, by this attempt or a later one
//	in place              StartChanged gave the guest its power state
//	its confirmation      FinishChange was asked for
//	its undo, its revert  UnapplyChange was asked for
func (h *Host) pastPowerOff(ref migration.Ref) error {
	rec, _, err := memory.Recall[changing](h.memory, ref, memoryChange)
	if err != nil {
		return err
	}
	first := ref
	first.Attempt = 1 // tombstones of whatever attempt
	if rec.Started || h.tracker.Accepted(ref.Migration) >= ref.Attempt ||
		h.tracker.HasTombstone(memory.At(first, stepKeepUnchange)) || h.tracker.HasTombstone(memory.At(first, operation.StepApplyChange)) {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "late_verb", Message: "migration " + ref.Migration + " is past " + operation.StepPowerOff + ", and a message that asks for it came late",
		})
	}
	return nil
}

// mayPowerOff refuses what would lose a guest: one whose definition goes with its
// process, one that is on its way by other hands, or has left by them.
func (h *Host) mayPowerOff(ctx context.Context, ref migration.Ref, d driver.Domain, exists bool) error {
	switch {
	case !exists && h.attempts.Came(ref):
		return h.witness.Off(ref.Instance, ref.Instance, nil) // it could not be started here, and goes back
	case !exists:
		return gone("the ledger has it, libvirt on " + h.o.Name + " has no such domain")
	case !d.Persistent:
		return fault.Refuse(fault.Forbidden, "", notPersistent(d.Name))
	case d.Halfway():
		return fault.New(fault.Busy, "guest %s is %s (%s)", d.Name, d.State, d.Reason)
	}
	if d.Active() && h.migrator != nil {
		job, err := h.migrator.Job(ctx, ref.Instance)
		switch {
		case err != nil && !errors.Is(err, fault.NotFound):
			return err
		case err == nil && inFlight(job):
			return fault.Refuse(fault.Busy, "", jobInFlight(d.Name))
		}
	}
	if err := h.stays(d); err != nil {
		return err
	}
	if err := h.nothingSaved(ctx, d); err != nil || d.Active() {
		return err
	}
	return h.provenOff(ctx, d)
}

// nothingSaved refuses, with every reason, an instance of which libvirt keeps something that
// would stay behind, or would not fit its disks any more: saved memory, snapshots,
// checkpoints. The reason of a domain's state is not asked: libvirtd forgets it.
func (h *Host) nothingSaved(ctx context.Context, d driver.Domain) error {
	s, err := h.driver.Saved(ctx, d.UUID)
	if err != nil {
		return err
	}
	if reasons := s.Reasons(d.Name); len(reasons) > 0 {
		return fault.Refuse(fault.Forbidden, "", reasons...)
	}
	return nil
}

// provenOff is nil where an instance that libvirt calls off is off by what the kernel tells
// too: none of its processes lives, and nobody has its disks open for writing. See package
// processes for its refusals; what cannot be read is not off.
func (h *Host) provenOff(ctx context.Context, d driver.Domain) error {
	text, err := driver.Definition(ctx, h.driver, d.UUID)
	if err != nil {
		return err
	}
	files, err := writtenBy(ctx, text, h.activeVolumePath)
	if err != nil {
		return err
	}
	return h.witness.Off(d.UUID, d.Name, files)
}

// writtenBy gives the files and devices that an instance alone writes, by path, each with its
// target; none without a definition. A volume whose pool is gone or not active has none: no more
// is known of it. It may ask libvirt for volumes.
func writtenBy(ctx context.Context, definition string, volumePath func(context.Context, volumes.Disk) (path string, network bool, err error)) (map[string]string, error) {
	if definition == "" {
		return nil, nil
	}
	doc, err := parseDocument(definition)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range doc.Devices.Disks {
		if e.readOnly() || e.Shareable != nil {
			continue
		}
		path := e.path()
		if e.Type == "volume" {
			path, _, err = volumePath(ctx, volumes.Disk{Target: e.Target.Dev, Pool: e.Source.Pool, Volume: e.Source.Volume})
			if err != nil && !errors.Is(err, fault.NotFound) {
				return nil, err
			}
		}
		if path != "" {
			out[path] = e.Target.Dev
		}
	}
	return out, nil
}

// processEnds is how long the process of an instance that libvirt has just called off may
// take to end. Arbitrary: libvirt itself waits for it, and this is for one that it has lost.
const processEnds = 5 * time.Second

// ended waits until an instance that has just been powered off is proven off.
func (h *Host) ended(ctx context.Context, d driver.Domain) error {
	wait, cancel := h.rt.WithTimeout(ctx, processEnds)
	defer cancel()
	for {
		err := h.provenOff(ctx, d)
		if err == nil || wait.Err() != nil {
			return err
		}
		// The sleep's error is the context's, looked at in the next turn.
		_ = h.rt.Sleep(wait, h.o.Poll)
	}
}

func notPersistent(name string) fault.Reason { return change.NotPersistent(name) }

func jobInFlight(name string) fault.Reason {
	return fault.Reason{
		Code: "job_in_flight", Message: "libvirt has a job for the guest in flight that is not this migration's",
		Change: "wait for it, or virsh domjobabort " + name,
	}
}

// noteWish makes durable what the guest's user has chosen, before anything is done to it.
func (h *Host) noteWish(ctx context.Context, ref migration.Ref, rec *poweredOff, d driver.Domain, exists bool) error {
	_, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	switch {
	case err != nil:
		return err
	case exists && d.Active():
		rec.Power = powerState(d)
	case found:
	case !exists:
		c, _ := h.tracker.Came(ref.Migration)
		rec.Power = migration.PowerState(c.Power)
	default:
		rec.Power = migration.PowerShutOff
	}
	if exists && rec.Definition == "" {
		if rec.Definition, err = h.driver.XML(ctx, ref.Instance, driver.Persistent); err != nil {
			return err
		}
	}
	if rec.Off {
		rec.Off, rec.Asked = false, runtime.BootTime{} // its user has started it again
	}
	rec.Hooks = rec.Destination != "" && rec.Destination != h.o.Name && !h.attempts.Came(ref)
	return h.memory.Remember(ctx, ref, memoryPower, *rec)
}

// end ends a guest's domain: by its own will in the time that is left, else by its plug.
// pulled says which.
func (h *Host) end(ctx context.Context, ref migration.Ref, rec *poweredOff, timeout time.Duration) (pulled bool, err error) {
	d, exists, err := h.domain(ctx, ref.Instance)
	if err != nil || !exists || !d.Active() {
		return false, err // mayPowerOff has seen that it is off
	}
	if now := h.rt.Boot(); rec.Asked.ID != now.ID {
		rec.Asked = now
		if err := h.memory.Remember(ctx, ref, memoryPower, *rec); err != nil {
			return false, err
		}
	}
	left := timeout - (h.rt.Boot().Since - rec.Asked.Since)
	if rec.Power == migration.PowerRunning && left > 0 {
		off, err := h.shutDown(ctx, ref.Instance, left)
		switch {
		case ctx.Err() != nil:
			return false, fault.New(fault.Unavailable, "wait for the guest to power off: %w", context.Cause(ctx))
		case err != nil:
			h.log.Warn("a guest could not be asked to shut down; its plug is pulled", "instance", ref.Instance, "migration", ref.Migration, "error", err)
		case off:
			return false, h.ended(ctx, d)
		}
	}
	h.log.Info("pull the plug of a guest that moves", "instance", ref.Instance, "migration", ref.Migration, "power_state", rec.Power)
	if err := h.driver.Destroy(ctx, ref.Instance); err != nil && !errors.Is(err, fault.NotFound) {
		return false, err
	}
	// Its end is seen, not believed.
	if d, exists, err = h.domain(ctx, ref.Instance); err != nil {
		return false, err
	} else if exists && d.Active() {
		return false, fault.New(fault.Busy, "guest %s is active again: %s (%s)", d.Name, d.State, d.Reason)
	} else if exists {
		err = h.ended(ctx, d)
	}
	return true, err
}

// powerOn does operation.PowerOn.
func (h *Host) powerOn(ctx context.Context, ref migration.Ref) error {
	rec, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	if err != nil || !found {
		return err
	}
	var hooked error
	if rec.Hooks {
		// Before the guest, which may want what they give back. One that fails is run
		// again, and the guest does not wait for it.
		hooked = h.phases.Run(ctx, ref, rec.phase(h, hooks.RollbackResizeInstance))
	}
	// Where its own undo has not come to it: a guest that runs is connected.
	attached, err := h.giveConnectionsBack(ctx, ref)
	hooked = errors.Join(hooked, attached, err)
	if !rec.On {
		if err := h.restore(ctx, ref, rec); err != nil {
			return errors.Join(err, hooked)
		}
		rec.On = true
		if hooked != nil {
			return errors.Join(hooked, h.memory.Remember(ctx, ref, memoryPower, rec))
		}
	}
	if hooked != nil {
		return hooked
	}
	// Those of a change on this host are its own undo's.
	if err := h.phases.Forget(ctx, ref, hooks.ResizeInstance, hooks.RollbackResizeInstance); err != nil {
		return err
	}
	// Nothing of its disks is read any more.
	if err := h.dock.Forget(ctx, ref); err != nil {
		return err
	}
	if err := h.tracker.Unremember(ctx, memory.At(ref, memorySnapshot)); err != nil {
		return err
	}
	return h.tracker.Unremember(ctx, memory.At(ref, memoryPower))
}

// mayPowerOn refuses to start a guest that is not here any more, or not as it was when
// it was powered off.
func (h *Host) mayPowerOn(_ context.Context, ref migration.Ref) error {
	inst, known := h.tracker.Instance(ref.Instance)
	if !known {
		return nil // it was deleted: there is nothing to start
	}
	if err := h.tokenHere(inst); err != nil {
		return err
	}
	rec, found, err := memory.Recall[poweredOff](h.memory, ref, memoryPower)
	switch {
	case err != nil:
		return err
	case h.attempts.Returned(ref):
		return fault.New(fault.Forbidden, "the guest had left by attempt %d, and has come back since", ref.Attempt)
	case found && rec.Changed != h.attempts.Changed(ref):
		return fault.New(fault.Forbidden, "the guest is not as it was when it was powered off: take the change back first")
	}
	return nil
}

// restore gives a guest the power state that its user had chosen.
func (h *Host) restore(ctx context.Context, ref migration.Ref, rec poweredOff) error {
	d, exists, err := h.domain(ctx, ref.Instance)
	switch {
	case err != nil:
		return err
	case !exists:
		if rec.Definition != "" {
			h.log.Warn("a guest that was powered off for a move was removed by hand", "instance", ref.Instance, "migration", ref.Migration)
		}
		return nil // else it never was here
	case d.Active():
		return nil // its user was first
	}
	if err := h.stays(d); err != nil {
		return err
	}
	saved, err := h.driver.Saved(ctx, d.UUID)
	if err != nil {
		return err
	}
	if saved.Memory {
		// Its user has started and saved it meanwhile: a power-off refuses saved memory. It goes on
		// from that at its next start, which the guard refuses for as long as this undo waits.
		h.log.Warn("an instance stays off: its memory was saved while it was to move", "instance", ref.Instance, "migration", ref.Migration)
		return nil
	}
	return h.startAs(ctx, ref.Instance, rec.Power)
}

// startAs starts a guest that is off as its user had it; nothing for shut off. The caller
// has seen that the token is here. libvirt asks the guard meanwhile, which finds a guest
// on a move: Starts tells it who starts it.
func (h *Host) startAs(ctx context.Context, uuid string, power migration.PowerState) error {
	if power == migration.PowerShutOff {
		return nil
	}
	if _, ok := h.attempts.ClaimOf(uuid); !ok {
		return fault.New(fault.Forbidden, "it has no claim on %s", h.o.Name)
	}
	inst, _ := h.tracker.Instance(uuid)
	if err := h.confirmed(uuid, inst.Name); err != nil {
		return err
	}
	d, exists, err := h.domain(ctx, uuid)
	if err != nil {
		return err
	}
	if exists && !d.Active() {
		// Its start is a boot: memory that was saved is of disks as they were then. Snapshots and
		// checkpoints stay where they are.
		saved, err := h.driver.Saved(ctx, d.UUID)
		if err != nil {
			return err
		}
		if saved.Memory {
			return fault.Refuse(fault.Forbidden, "", driver.Saved{Memory: true}.Reasons(d.Name)...)
		}
		if err := h.provenOff(ctx, d); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.starting[uuid]++
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.starting[uuid]--; h.starting[uuid] == 0 {
			delete(h.starting, uuid)
		}
	}()
	err = h.driver.Start(ctx, uuid, power == migration.PowerPaused)
	if errors.Is(err, fault.InDoubt) {
		if d, exists, lookErr := h.domain(ctx, uuid); lookErr == nil && exists && d.Active() {
			return nil
		}
	}
	return err
}

// Starts reports whether this process starts a guest at this moment, though it is on a
// move: its token is here, and the move has come to that.
func (h *Host) Starts(uuid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starting[uuid] > 0
}
