package host

import (
	"cmp"
	"context"

	"berth/agent/host/change"
	"berth/agent/host/fileusers"
	"berth/agent/host/memory"
	"berth/agent/host/remake"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
)

// The verbs' short names for what packages change and remake keep.
type (
	changing    = change.Record
	changedDisk = remake.Disk
)

const (
	stepKeepUnchange = change.StepKeepUnapply
	memoryChange     = change.Memory
)

func (h *Host) newBench() *remake.Bench {
	return remake.New(remake.Options{Files: h.files, Runtime: h.rt, Agent: h.ctx, Spawn: h.spawn})
}

// newChanges makes the room of changes in place.
func (h *Host) newChanges() *change.Changes {
	return change.New(change.Options{
		Host: h.o.Name, Tracker: h.tracker, Attempts: h.attempts, Memory: h.memory, Phases: h.phases, Driver: h.driver, Logger: h.log,
		Guests: changedGuests{h}, Files: h.files, Bench: h.bench, Aliases: h.aliases,
	})
}

// changedGuests implements change.Guests.
type changedGuests struct{ h *Host }

func (g changedGuests) Inspect(ctx context.Context, instance string) (migration.Guest, error) {
	return g.h.inspect(ctx, instance)
}

func (g changedGuests) Here(inst claims.Instance) error { return g.h.tokenHere(inst) }

func (g changedGuests) Off(ctx context.Context, instance string) (driver.Domain, error) {
	d, exists, err := g.h.domain(ctx, instance)
	switch {
	case err != nil:
		return d, err
	case !exists:
		return d, gone("the ledger has it, libvirt on " + g.h.o.Name + " has no such domain")
	case d.Active():
		return d, fault.New(fault.Busy, "guest %s is %s (%s): power it off first", d.Name, d.State, d.Reason)
	case !d.Persistent:
		return d, fault.Refuse(fault.Forbidden, "", notPersistent(d.Name))
	}
	if err := g.h.stays(d); err != nil {
		return d, err
	}
	if err := g.h.nothingSaved(ctx, d); err != nil {
		return d, err
	}
	return d, g.h.provenOff(ctx, d)
}

func (g changedGuests) ProvenOff(ctx context.Context, d driver.Domain, was string) error {
	text, err := driver.Definition(ctx, g.h.driver, d.UUID)
	if err != nil {
		return err
	}
	files, err := writtenBy(ctx, cmp.Or(text, was), g.h.activeVolumePath)
	if err != nil {
		return err
	}
	return g.h.witness.Off(d.UUID, d.Name, files)
}

func (g changedGuests) Wish(ref migration.Ref) (migration.PowerState, bool, error) {
	off, found, err := memory.Recall[poweredOff](g.h.memory, ref, memoryPower)
	return off.Power, found, err
}

func (g changedGuests) Start(ctx context.Context, instance string, power migration.PowerState) error {
	return g.h.startAs(ctx, instance, power)
}

func (g changedGuests) FileUsers(ctx context.Context) (*fileusers.Survey, error) {
	return g.h.fileUsers(ctx)
}

func (g changedGuests) TakenBack(by claims.Owner) bool { return g.h.takenBack(by) }

func (g changedGuests) Definition(guest migration.Guest, w migration.Wanted, c claims.Claim, meta domainxml.Metadata) (string, error) {
	return g.h.resizedDocument(guest, w, c, meta, false)
}

func (g changedGuests) Relax(ctx context.Context) { g.h.relax(ctx) }
