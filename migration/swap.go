package migration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/placementclient"
	"berth/topology"
)

// swapTries bounds how often one swap is written. Placement loses races inside
// itself in some of ten moves under load; Nova tries four times, this is a few
// more, since each failure costs a whole undo.
const swapTries = 6

// halves is the two consumers of a move: the instance, and the migration that
// keeps what is needed to go back.
type halves struct {
	placement Placement
	runtime   runtime.Runtime
	jitter    func(time.Duration) time.Duration
	instance  string
	migration string
}

// placementResources is a claim's amounts in Placement's classes. Placement
// takes no zero amounts.
func placementResources(r topology.Resources) placementclient.Resources {
	out := placementclient.Resources{
		placementclient.ClassVCPU:     int64(r.VCPUs),
		placementclient.ClassPCPU:     int64(r.PCPUs),
		placementclient.ClassMemoryMB: r.MemoryMB,
		placementclient.ClassDiskGB:   r.DiskGB,
	}
	maps.DeleteFunc(out, func(_ string, n int64) bool { return n == 0 })
	return out
}

// on is an allocation of r on one provider for the instance that from describes.
func on(provider string, r topology.Resources, from placementclient.Allocations, g Guest) placementclient.Allocations {
	a := placementclient.Allocations{
		Allocations: map[string]placementclient.Resources{provider: placementResources(r)},
		ProjectID:   from.ProjectID, UserID: from.UserID,
		ConsumerGeneration: from.ConsumerGeneration,
		ConsumerType:       placementclient.ConsumerInstance,
	}
	if a.ProjectID == "" {
		a.ProjectID = g.ProjectID
	}
	if a.UserID == "" {
		a.UserID = g.UserID
	}
	return a
}

// settleSource makes the instance's allocation equal to its claim on the source,
// and answers with it. Absent or other amounts on the source's provider are
// healed: the claim is the truth and the source holds the token. Anything on
// another provider is refused: somebody else believes the guest is there.
func (h halves) settleSource(ctx context.Context, provider string, g Guest) (placementclient.Allocations, error) {
	for try := 0; ; try++ {
		have, err := h.placement.Allocations(ctx, h.instance)
		if err != nil {
			return have, fmt.Errorf("read the allocation of instance %s: %w", h.instance, err)
		}
		want := on(provider, g.Resources, have, g)
		if have.Exists() && have.SameResources(want) {
			return want, nil
		}
		var reasons []fault.Reason
		for rp, r := range have.Allocations {
			if rp != provider {
				reasons = append(reasons, fault.Reason{
					Code:    "allocation_elsewhere",
					Message: fmt.Sprintf("instance %s holds %v on provider %s, which is not its host", h.instance, r, rp),
					Want:    provider, Have: rp, Change: "find out who wrote it, and delete what is stale",
				})
			}
		}
		if len(reasons) > 0 {
			return have, fault.Refuse(fault.Forbidden, "allocations do not agree with the source's claim", reasons...)
		}
		if try >= swapTries {
			return have, fault.New(fault.Busy, "heal the allocation of instance %s: it is written by somebody else at the same time", h.instance)
		}
		err = h.placement.PutAllocations(ctx, h.instance, want)
		if err == nil {
			continue // and read what was written
		}
		if try+1 >= swapTries || !again(err) {
			return have, fmt.Errorf("heal the allocation of instance %s: %w", h.instance, err)
		}
		if err := h.pause(ctx, try); err != nil {
			return have, err
		}
	}
}

// swap gives the migration what the instance holds on the source and the
// instance its place on the destination, both in one write or not at all.
//
// A 409 has three meanings. A provider changed: the write carries no provider
// generation, so this comes only as a race lost inside the server; the same body
// is sent again. A consumer changed: stop and look; only if what is there is the
// swap itself, whose answer was lost, is all well.
func (h halves) swap(ctx context.Context, source, destination placementclient.Allocations) error {
	for try := 0; ; try++ {
		inst, mig, err := h.read(ctx)
		if err != nil {
			if try >= swapTries || !again(err) {
				return err
			}
		} else {
			switch {
			case mig.Exists() && inst.SameResources(destination) && mig.SameResources(source):
				return nil
			case mig.Exists() || !inst.SameResources(source):
				return fault.New(fault.GenerationConflict,
					"swap allocations of instance %s: it holds %v and the migration %v, want %v and nothing: another actor wrote them",
					h.instance, inst.Allocations, mig.Allocations, source.Allocations)
			}
			to, keep := destination.Clone(), source.Clone()
			to.ConsumerGeneration, to.ConsumerType = inst.ConsumerGeneration, placementclient.ConsumerInstance
			keep.ConsumerGeneration, keep.ConsumerType = nil, placementclient.ConsumerMigration
			err = h.placement.PostAllocations(ctx, map[string]placementclient.Allocations{h.migration: keep, h.instance: to})
			if err == nil {
				return nil
			}
			// A consumer conflict is looked at once more: the switch above decides.
			if try >= swapTries || !again(err) {
				return fmt.Errorf("swap allocations of instance %s: %w", h.instance, err)
			}
		}
		if err := h.pause(ctx, try); err != nil {
			return err
		}
	}
}

// swapBack is the undo. It succeeds only by a write whose answer came: a swap
// whose answer was lost may still land, and only a raised generation of the
// instance's consumer turns it away for good. What is written back is what the
// migration holds now; where it holds nothing, the instance's source claim.
func (h halves) swapBack(ctx context.Context, source placementclient.Allocations) error {
	for try := 0; ; try++ {
		err := h.writeBack(ctx, source)
		if err == nil {
			return nil
		}
		if try >= swapTries || !again(err) {
			return fmt.Errorf("swap allocations of instance %s back: %w", h.instance, err)
		}
		if err := h.pause(ctx, try); err != nil {
			return err
		}
	}
}

func (h halves) writeBack(ctx context.Context, source placementclient.Allocations) error {
	inst, mig, err := h.read(ctx)
	if err != nil {
		return err
	}
	back := source.Clone()
	if mig.Exists() {
		back.Allocations = mig.Clone().Allocations
	}
	back.ConsumerGeneration, back.ConsumerType = inst.ConsumerGeneration, placementclient.ConsumerInstance
	if !mig.Exists() {
		return h.placement.PutAllocations(ctx, h.instance, back)
	}
	gone := mig.Clone()
	gone.Allocations, gone.ConsumerType = nil, placementclient.ConsumerMigration
	return h.placement.PostAllocations(ctx, map[string]placementclient.Allocations{h.migration: gone, h.instance: back})
}

// drop deletes what the migration holds, at the very end. The uuid is never used
// again, so a copy of the request that lands late does nothing.
func (h halves) drop(ctx context.Context) error {
	if err := h.placement.DeleteAllocations(ctx, h.migration); err != nil && !errors.Is(err, fault.NotFound) {
		return fmt.Errorf("delete the allocation of migration %s: %w", h.migration, err)
	}
	return nil
}

func (h halves) read(ctx context.Context) (inst, mig placementclient.Allocations, err error) {
	if inst, err = h.placement.Allocations(ctx, h.instance); err == nil {
		mig, err = h.placement.Allocations(ctx, h.migration)
	}
	if err != nil {
		err = fmt.Errorf("read the allocations of instance %s and migration %s: %w", h.instance, h.migration, err)
	}
	return inst, mig, err
}

// again says whether reading and writing once more may help.
func again(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.InDoubt, fault.Busy, fault.GenerationConflict:
		return true
	}
	return false
}

func (h halves) pause(ctx context.Context, try int) error {
	base := 50 * time.Millisecond << min(try, 5)
	return h.runtime.Sleep(ctx, base+h.jitter(base))
}
