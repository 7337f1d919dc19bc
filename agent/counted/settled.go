package counted

import (
	"context"
	"errors"
	"fmt"

	"berth/agent/host"
	"berth/agent/host/allocation"
	"berth/agent/inventory"
	"berth/internal/fault"
	"berth/migration/halves"
	"berth/placementclient"
	"berth/topology"
)

var _ host.Moved = Allocations{}

// movers are the two consumers of a move whose conductor is gone.
type movers struct{ instance, migration placementclient.Allocations }

// settle changes what both consumers of a move hold, in one write, by what they hold.
func (p Allocations) settle(ctx context.Context, instance, migration string, change func(t *inventory.Tree, now movers) (next movers, err error)) error {
	doing := fmt.Sprintf("settle the allocations of instance %s and migration %s", instance, migration)
	var err error
	for range allocationAttempts {
		var now movers
		if now.instance, err = p.Client.Allocations(ctx, instance); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		if now.migration, err = p.Client.Allocations(ctx, migration); err != nil {
			return fmt.Errorf("%s: %w", doing, err)
		}
		t, err2 := p.Standing()
		if err2 != nil {
			return fmt.Errorf("%s: %w", doing, err2)
		}
		next, refused := change(t, now)
		if refused != nil {
			return fmt.Errorf("%s: %w", doing, refused)
		}
		set := map[string]placementclient.Allocations{}
		for consumer, c := range map[string][2]placementclient.Allocations{instance: {now.instance, next.instance}, migration: {now.migration, next.migration}} {
			if was, want := c[0], c[1]; !was.SameResources(want) || was.ProjectID != want.ProjectID && len(want.Allocations) > 0 {
				// Written before there were types, it reads as of one that cannot be written.
				want.ConsumerGeneration, want.ConsumerType = was.ConsumerGeneration, placementclient.ConsumerInstance
				if consumer == migration {
					want.ConsumerType = placementclient.ConsumerMigration
				}
				set[consumer] = want
			}
		}
		switch len(set) {
		case 0:
			return nil
		case 1:
			for consumer, a := range set {
				err = p.Client.PutAllocations(ctx, consumer, a)
			}
		default:
			err = p.Client.PostAllocations(ctx, set)
		}
		if !errors.Is(err, fault.GenerationConflict) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Nothing is an allocation that gives up what a consumer holds, guarded by its generation.
func Nothing(of placementclient.Allocations) placementclient.Allocations {
	of = of.Clone()
	of.Allocations = map[string]placementclient.Resources{}
	return of
}

// SettledElsewhere implements host.Moved.
func (p Allocations) SettledElsewhere(ctx context.Context, instance, migration string) (bool, error) {
	inst, err := p.Client.Allocations(ctx, instance)
	if err != nil {
		return false, err
	}
	mig, err := p.Client.Allocations(ctx, migration)
	if err != nil {
		return false, err
	}
	t, err := p.Standing()
	if err != nil {
		return false, err
	}
	elsewhere := NotOf(t, inst.Allocations)
	own := len(inst.Allocations) - len(elsewhere)
	if _, shares := inst.Allocations[t.Disk]; shares && !t.Owns(t.Disk) {
		own-- // a disk that both hosts share says nothing
	}
	return len(elsewhere) > 0 && own == 0 && len(mig.Allocations) == 0, nil
}

// CountedHere implements host.Moved.
func (p Allocations) CountedHere(ctx context.Context, instance string) (bool, error) {
	inst, err := p.Client.Allocations(ctx, instance)
	if err != nil {
		return false, err
	}
	t, err := p.Standing()
	return err == nil && OwnOf(t, inst.Allocations) > 0, err
}

// SettleHere implements host.Moved.
func (p Allocations) SettleHere(ctx context.Context, a allocation.Allocation, migration string) error {
	return p.settle(ctx, a.Consumer, migration, func(t *inventory.Tree, now movers) (movers, error) {
		t, err := p.beside(ctx, t, a, now.instance)
		if err != nil {
			return movers{}, err
		}
		return movers{instance: Wanted(t, a, now.instance), migration: Nothing(now.migration)}, nil
	})
}

// SettleThere implements host.Moved.
func (p Allocations) SettleThere(ctx context.Context, instance, migration string) error {
	return p.settle(ctx, instance, migration, func(t *inventory.Tree, now movers) (movers, error) {
		next := movers{instance: now.instance, migration: Nothing(now.migration)}
		if rest := without(t, now.instance.Allocations); len(rest) > 0 {
			next.instance = now.instance.Clone()
			next.instance.Allocations = rest
		}
		return next, nil
	})
}

// SettleBack implements host.Moved.
func (p Allocations) SettleBack(ctx context.Context, instance, migration string, old topology.Resources) error {
	return p.settle(ctx, instance, migration, func(t *inventory.Tree, now movers) (movers, error) {
		if !swapped(t, now) {
			return now, nil
		}
		next := movers{instance: now.instance.Clone(), migration: Nothing(now.migration)}
		// Of shared providers disks alone are counted.
		held := placementclient.Resources{placementclient.ClassDiskGB: old.DiskGB}
		next.instance.Allocations = halves.Home(now.instance.Allocations, now.migration.Allocations, held, t.Owns)
		return next, nil
	})
}

// swapped reports whether the migration keeps something, and the instance holds something of
// this host alone.
func swapped(t *inventory.Tree, now movers) bool {
	for rp := range now.instance.Allocations {
		if t.Owns(rp) {
			return len(now.migration.Allocations) > 0
		}
	}
	return false
}

// Swapped implements host.Moved.
func (p Allocations) Swapped(ctx context.Context, instance, migration string) (bool, error) {
	var now movers
	var err error
	if now.instance, err = p.Client.Allocations(ctx, instance); err != nil {
		return false, err
	}
	if now.migration, err = p.Client.Allocations(ctx, migration); err != nil {
		return false, err
	}
	t, err := p.Standing()
	return err == nil && swapped(t, now), err
}

// Kept implements host.Moved.
func (p Allocations) Kept(ctx context.Context, migration string) (bool, error) {
	kept, err := p.Client.Allocations(ctx, migration)
	return len(kept.Allocations) > 0, err
}

// SettleNobody implements host.Moved.
func (p Allocations) SettleNobody(ctx context.Context, instance, migration string) error {
	return p.settle(ctx, instance, migration, func(_ *inventory.Tree, now movers) (movers, error) {
		return movers{instance: now.instance, migration: Nothing(now.migration)}, nil
	})
}
