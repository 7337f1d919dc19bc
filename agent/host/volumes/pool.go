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
type Pools struct {
	Lookup  Lookup
	Started Started // nil: none is noted, and none taken
}

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
			Code: "pool_missing", Message: "disk " + d.Target + ": there is no libvirt storage pool " + d.Pool, Want: d.Pool, Change: "on that host: virsh pool-define FILE, then virsh pool-start " + fault.Quote(d.Pool),
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
	if err := p.start(ctx, pool); err != nil {
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

// start makes a pool active. One that was not is noted first, so that it is known for one
// that nobody else has started.
func (p Pools) start(ctx context.Context, name string) error {
	if p.Started != nil {
		pool, err := p.Lookup.Pool(ctx, name)
		if err != nil {
			return err
		}
		if !pool.Active {
			if err := p.Started.Note(ctx, name); err != nil {
				return err
			}
		}
	}
	return p.Lookup.OpenPool(ctx, name)
}

// stop makes a pool inactive that was started here, unless it is in use.
func (p Pools) stop(ctx context.Context, name string, inUse func(driver.Pool) (bool, error)) error {
	pool, err := p.Lookup.Pool(ctx, name)
	switch {
	case errors.Is(err, fault.NotFound):
	case err != nil:
		return err
	case pool.Active:
		if used, err := inUse(pool); err != nil || used {
			return err
		}
		if err := p.Lookup.ClosePool(ctx, name); err != nil {
			return err
		}
	}
	if p.Started == nil {
		return nil
	}
	return p.Started.Drop(ctx, name)
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
	return p.stop(ctx, m.Pool, inUse)
}

// Attached implements Volume: a pool that was active before any guest needed it is
// somebody's, and stays.
func (p Pools) Attached(ctx context.Context, d Disk) (*Taken, error) {
	if p.Started == nil {
		return nil, nil
	}
	started, err := p.Started.Has(d.Pool)
	if err != nil || !started {
		return nil, err
	}
	pool, err := p.Lookup.Pool(ctx, d.Pool)
	if errors.Is(err, fault.NotFound) || err == nil && (!pool.Active || !pool.Persistent) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &Taken{Kind: p.Kind(), Target: d.Target, Pool: d.Pool}, nil
}

// Take implements Volume.
func (p Pools) Take(ctx context.Context, x Taken, inUse func(driver.Pool) (bool, error)) error {
	return p.stop(ctx, x.Pool, inUse)
}

// Restore implements Volume. A pool that somebody has removed in the meantime cannot be
// given back: the guest's start says so.
func (p Pools) Restore(ctx context.Context, x Taken) error {
	if err := p.start(ctx, x.Pool); !errors.Is(err, fault.NotFound) {
		return err
	}
	return nil
}
