package volumes

import (
	"context"
	"errors"

	"berth/driver"
	"berth/internal/fault"
)

// Pools are volumes of libvirt's storage pools (<disk type='volume'>). A pool that is not
// active is started where libvirt starts it by itself (autostart): somebody else's is
// down for a reason. libvirt knows of volumes that others made when it has read the pool
// again.
type Pools struct{ Lookup Lookup }

// Kind implements Volume.
func (Pools) Kind() string { return "pool" }

// Serves implements Volume.
func (Pools) Serves(d Disk) bool { return d.Type == "volume" && d.Pool != "" }

// Check implements Volume.
func (p Pools) Check(ctx context.Context, d Disk) ([]fault.Reason, error) {
	pool, err := p.Lookup.Pool(ctx, d.Pool)
	switch {
	case errors.Is(err, fault.NotFound):
		return []fault.Reason{{
			Code: "pool_missing", Message: "disk " + d.Target + ": there is no libvirt storage pool " + d.Pool, Want: d.Pool, Change: "virsh pool-define it there, and start it",
		}}, nil
	case err != nil:
		return nil, err
	case !pool.Active && !pool.Autostart:
		return []fault.Reason{{
			Code: "pool_inactive", Message: "disk " + d.Target + ": libvirt storage pool " + d.Pool + " is not active, and does not start by itself", Want: d.Pool,
			Change: "virsh pool-start " + d.Pool,
		}}, nil
	}
	// What is in it shows when it has been read again, which is no question any more.
	return nil, nil
}

// open makes a pool active, with a volume of it.
func (p Pools) open(ctx context.Context, pool, volume, target string) error {
	if err := p.Lookup.OpenPool(ctx, pool); err != nil {
		return err
	}
	_, err := p.Lookup.Volume(ctx, pool, volume)
	if errors.Is(err, fault.NotFound) {
		return fault.Refuse(fault.Forbidden, "", fault.Reason{
			Code: "volume_missing", Message: "disk " + target + ": libvirt storage pool " + pool + " has no volume " + volume, Want: volume,
			Change: "give both hosts the same storage below the pool",
		})
	}
	return err
}

// Plan implements Volume.
func (p Pools) Plan(ctx context.Context, d Disk) (*Made, error) {
	pool, err := p.Lookup.Pool(ctx, d.Pool)
	if err != nil {
		return nil, err
	}
	return &Made{Kind: p.Kind(), Target: d.Target, Pool: d.Pool, Volume: d.Volume, Inactive: !pool.Active}, nil
}

// Prepare implements Volume.
func (p Pools) Prepare(ctx context.Context, m Made) error {
	return p.open(ctx, m.Pool, m.Volume, m.Target)
}

// Activate implements Volume.
func (p Pools) Activate(ctx context.Context, d Disk) error {
	return p.open(ctx, d.Pool, d.Volume, d.Target)
}

// Undo implements Volume.
func (p Pools) Undo(ctx context.Context, m Made, inUse func(driver.Pool) (bool, error)) error {
	if !m.Inactive {
		return nil
	}
	pool, err := p.Lookup.Pool(ctx, m.Pool)
	if errors.Is(err, fault.NotFound) || err == nil && !pool.Active {
		return nil
	}
	if err != nil {
		return err
	}
	if used, err := inUse(pool); err != nil || used {
		return err
	}
	return p.Lookup.ClosePool(ctx, m.Pool)
}
