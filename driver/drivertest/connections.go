package drivertest

import (
	"context"

	"berth/driver"
	"berth/internal/fault"
)

// wired is what a machine has beside itself. Guarded by fleet.mu.
type wired struct {
	networks map[string]driver.Network
	pools    map[string]*pool
	secrets  []driver.SecretRef
}

// pool is a storage pool. What is in it shows when the hypervisor has read it.
type pool struct {
	driver.Pool
	volumes, known map[string]driver.Volume
}

// SetNetwork adds a network, or changes it.
func (h *machine) SetNetwork(n driver.Network) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if h.wired.networks == nil {
		h.wired.networks = map[string]driver.Network{}
	}
	h.wired.networks[n.Name] = n
}

// SetPool adds a storage pool with volumes, or changes it beside the hypervisor, which
// sees volumes of an active pool when it has read it again.
func (h *machine) SetPool(p driver.Pool, volumes ...driver.Volume) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	if h.wired.pools == nil {
		h.wired.pools = map[string]*pool{}
	}
	was := h.wired.pools[p.Name]
	now := &pool{Pool: p, volumes: map[string]driver.Volume{}}
	if was != nil {
		now.known = was.known
	}
	for _, v := range volumes {
		now.volumes[v.Name] = v
	}
	h.wired.pools[p.Name] = now
}

// SetSecret adds a secret.
func (h *machine) SetSecret(s driver.SecretRef) {
	h.fleet.mu.Lock()
	defer h.fleet.mu.Unlock()
	h.wired.secrets = append(h.wired.secrets, s)
}

// Network implements driver.Connector.
func (h *Fake) Network(ctx context.Context, name string) (n driver.Network, err error) {
	err = h.call(ctx, "Network", "", false, func() error {
		found, ok := h.wired.networks[name]
		if n = found; !ok {
			return fault.New(fault.NotFound, "network %s on %s", name, h.name)
		}
		return nil
	})
	return n, err
}

func (h *machine) poolLocked(name string) (*pool, error) {
	if p := h.wired.pools[name]; p != nil {
		return p, nil
	}
	return nil, fault.New(fault.NotFound, "storage pool %s on %s", name, h.name)
}

// Pool implements driver.Connector.
func (h *Fake) Pool(ctx context.Context, name string) (out driver.Pool, err error) {
	err = h.call(ctx, "Pool", "", false, func() error {
		p, err := h.poolLocked(name)
		if err == nil {
			out = p.Pool
		}
		return err
	})
	return out, err
}

// OpenPool implements driver.Connector.
func (h *Fake) OpenPool(ctx context.Context, name string) error {
	return h.call(ctx, "OpenPool", "", true, func() error {
		p, err := h.poolLocked(name)
		if err != nil {
			return err
		}
		if !p.Active {
			h.fleet.recordLocked(h.name, "", "pool "+name+" started")
		}
		p.Active, p.known = true, p.volumes
		return nil
	})
}

// ClosePool implements driver.Connector.
func (h *Fake) ClosePool(ctx context.Context, name string) error {
	return h.call(ctx, "ClosePool", "", true, func() error {
		p, err := h.poolLocked(name)
		switch {
		case err != nil:
			return err
		case !p.Active:
			return nil
		case !p.Persistent:
			return fault.New(fault.Invalid, "storage pool %s on %s is transient", name, h.name)
		}
		h.fleet.recordLocked(h.name, "", "pool "+name+" stopped")
		p.Active, p.known = false, nil
		return nil
	})
}

// Volume implements driver.Connector.
func (h *Fake) Volume(ctx context.Context, pool, name string) (v driver.Volume, err error) {
	err = h.call(ctx, "Volume", "", false, func() error {
		p, err := h.poolLocked(pool)
		if err != nil {
			return err
		}
		if !p.Active {
			return fault.New(fault.Invalid, "storage pool %s on %s is not active", pool, h.name)
		}
		found, ok := p.known[name]
		if v = found; !ok {
			return fault.New(fault.NotFound, "volume %s of storage pool %s on %s", name, pool, h.name)
		}
		return nil
	})
	return v, err
}

// Secret implements driver.Connector.
func (h *Fake) Secret(ctx context.Context, s driver.SecretRef) error {
	return h.call(ctx, "Secret", "", false, func() error {
		for _, has := range h.wired.secrets {
			if s.UUID != "" && s.UUID == has.UUID || s.UUID == "" && s.Type == has.Type && s.Usage == has.Usage {
				return nil
			}
		}
		return fault.New(fault.NotFound, "secret %s%s %s on %s", s.UUID, s.Type, s.Usage, h.name)
	})
}
