package host

import (
	"context"

	"berth/agent/host/memory"
	"berth/agent/host/vanished"
	"berth/claims"
)

// memoryDefining is under which a creation notes that the hypervisor is asked to define its
// instance.
const memoryDefining = "defining"

// defining is that note. Without it a creation that broke off was never defined.
type defining struct {
	Name string `json:"name"`
	// Folder is the identity of the folder of definitions; empty where it could not be read.
	Folder string `json:"folder,omitempty"`
}

// noteDefining makes the note durable, before the hypervisor is asked.
func noteDefining(ctx context.Context, h *Host, inst claims.Instance) error {
	rec := defining{Name: inst.Name}
	if r := definitionsOf(h.driver); r != nil {
		if now, err := r.Definitions(ctx); err == nil {
			rec.Folder = now.Identity
		}
	}
	return h.memory.Remember(ctx, creation(inst.UUID), memoryDefining, rec)
}

// neverDefined is nil where the instance of a creation that broke off, and that the hypervisor does
// not list, has no definition: none was asked for, or the folder of definitions has none. Else it
// is fault.InDoubt.
func neverDefined(ctx context.Context, h *Host, owner claims.Owner) error {
	rec, found, err := memory.Recall[defining](h.memory, creation(owner.Instance), memoryDefining)
	if err != nil || !found {
		return err
	}
	listed, err := h.driver.Domains(ctx)
	if err != nil {
		return err
	}
	var known []string
	for _, inst := range h.tracker.Instances() {
		known = append(known, inst.Name)
	}
	return h.vanished.NeverDefined(ctx, vanished.Instance{UUID: owner.Instance, Name: rec.Name}, rec.Folder, listed, known)
}
