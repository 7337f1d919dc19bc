package host

import (
	"context"

	"berth/agent/host/external"
	"berth/agent/host/hooks"
	"berth/agent/host/memory"
	"berth/claims"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// External are the migrations of this host that Berth does not conduct.
func (h *Host) External() *external.Migrations { return h.external }

func (h *Host) newExternal() *external.Migrations {
	return external.New(external.Options{
		Host: h.o.Name, ProjectID: h.o.ProjectID, UserID: h.o.UserID, Tracker: h.tracker, Attempts: h.attempts, Memory: h.memory, Phases: h.phases,
		Driver: h.driver, Runtime: h.rt, Logger: h.log, Arrivals: externalArrivals{h}, Instances: externalInstances{h}, Self: h,
		Owners: h.o.Owners, Fleet: h.o.Fleet, Aliases: h.o.Aliases, NewUUID: h.newUUID, Managing: h.managing, Agree: h.o.Agree, Round: h.o.Round,
	})
}

// externalArrivals implements external.Arrivals.
type externalArrivals struct{ h *Host }

func (a externalArrivals) Disks(ctx context.Context, text string) (int64, []fault.Reason, error) {
	doc, err := parseDocument(text)
	if err != nil {
		return 0, nil, err
	}
	gb, _ := a.h.diskGB(ctx, doc)
	return gb, doc.immovable(topology.Assignment{}), nil
}

func (a externalArrivals) Admit(ctx context.Context, doc *domainxml.Doc, uses topology.Resources) error {
	return a.h.gate.AdmitUnasked(ctx, doc, uses)
}

func (a externalArrivals) CheckConnections(ctx context.Context, text string) error {
	var no refusal
	if err := a.h.checkConnections(ctx, &no, text); err != nil {
		return err
	}
	return no.err("")
}

func (a externalArrivals) Claim(ctx context.Context, ref migration.Ref, r migration.ClaimRequest, found *topology.Assignment) (migration.ClaimAnswer, error) {
	return a.h.claim(ctx, ref, r, found)
}

func (a externalArrivals) Documents(ref migration.Ref, g migration.Guest, c claims.Claim) (migration.Prepared, error) {
	return a.h.documents(ref, g, c)
}

func (a externalArrivals) ColdDefinition(ref migration.Ref) (string, bool, error) {
	rec, found, err := memory.Recall[coldPreparation](a.h.memory, ref, memoryPreparedCold)
	return rec.Definition, found, err
}

func (a externalArrivals) SetColdDefinition(ctx context.Context, ref migration.Ref, text string) error {
	rec, _, err := memory.Recall[coldPreparation](a.h.memory, ref, memoryPreparedCold)
	if err != nil {
		return err
	}
	rec.Definition = text
	return a.h.memory.Remember(ctx, ref, memoryPreparedCold, rec)
}

func (a externalArrivals) RunArrivedHooks(ctx context.Context, ref migration.Ref) error {
	rec, prepared, err := memory.Recall[preparation](a.h.memory, ref, memoryPrepared)
	if err != nil || !prepared {
		return err
	}
	return a.h.phases.Run(ctx, ref, rec.phase(a.h, hooks.PostLiveMigrationAtDestination))
}

func (a externalArrivals) Undo(ctx context.Context, ref migration.Ref) error {
	return a.h.undoPreparation(ctx, ref)
}

// externalInstances implements external.Instances.
type externalInstances struct{ h *Host }

func (i externalInstances) Here(inst claims.Instance) error { return i.h.tokenHere(inst) }

func (i externalInstances) Still(instance string) error { return i.h.still(instance) }

func (i externalInstances) Arrived(ref migration.Ref) bool { return i.h.arrived(ref) }

func (i externalInstances) ProvenOff(ctx context.Context, d driver.Domain) error {
	return i.h.provenOff(ctx, d)
}

func (i externalInstances) ProcessGone(d driver.Domain) error {
	return i.h.witness.Off(d.UUID, d.Name, nil)
}

func (i externalInstances) Absent(ctx context.Context, inst claims.Instance) error {
	if inst.Token.State == claims.TokenSurrendered {
		return notLoaded(ctx, i.h, inst.UUID)
	}
	return i.h.absent(ctx, inst)
}

func (i externalInstances) LetGo(ctx context.Context, ref migration.Ref) error {
	return i.h.letGo(ctx, ref)
}

func (i externalInstances) LeftByHand(instance string) bool { return i.h.LeftByHand(instance) }

func (i externalInstances) DropLeft(ctx context.Context, instance string) error {
	return i.h.dropLeft(ctx, instance)
}
