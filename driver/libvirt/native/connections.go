//go:build native

package native

import (
	"errors"

	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

func (c *conn) Network(name string) (libvirt.NetworkInfo, error) {
	return get(c, func(l *lv.Connect) (info libvirt.NetworkInfo, err error) {
		n, err := l.LookupNetworkByName(name)
		if err != nil {
			return info, err
		}
		defer func() { _ = n.Free() }()
		if info.Active, err = n.IsActive(); err != nil {
			return info, err
		}
		info.Autostart, err = n.GetAutostart()
		if e, ok := errors.AsType[lv.Error](err); err != nil && !(ok && e.Code == lv.ERR_OPERATION_INVALID) { // a transient one has none
			return info, err
		}
		info.XML, err = n.GetXMLDesc(0)
		return info, err
	})
}

// pool is a call about one storage pool, whose handle it frees.
func pool[T any](c *conn, name string, f func(*lv.StoragePool) (T, error)) (T, error) {
	return get(c, func(l *lv.Connect) (v T, err error) {
		p, err := l.LookupStoragePoolByName(name)
		if err != nil {
			return v, err
		}
		defer func() { _ = p.Free() }()
		return f(p)
	})
}

func (c *conn) Pool(name string) (libvirt.PoolInfo, error) {
	return pool(c, name, func(p *lv.StoragePool) (info libvirt.PoolInfo, err error) {
		i, err := p.GetInfo()
		if err != nil {
			return info, err
		}
		info.State = int(i.State)
		if info.Persistent, err = p.IsPersistent(); err != nil {
			return info, err
		}
		if info.Autostart, err = p.GetAutostart(); err != nil {
			return info, err
		}
		info.XML, err = p.GetXMLDesc(0)
		return info, err
	})
}

func (c *conn) StartPool(name string) error {
	_, err := pool(c, name, func(p *lv.StoragePool) (none struct{}, err error) { return none, p.Create(0) })
	return err
}

func (c *conn) StopPool(name string) error {
	_, err := pool(c, name, func(p *lv.StoragePool) (none struct{}, err error) { return none, p.Destroy() })
	return err
}

func (c *conn) RefreshPool(name string) error {
	_, err := pool(c, name, func(p *lv.StoragePool) (none struct{}, err error) { return none, p.Refresh(0) })
	return err
}

func (c *conn) Volume(of, name string) (libvirt.VolumeInfo, error) {
	return pool(c, of, func(p *lv.StoragePool) (info libvirt.VolumeInfo, err error) {
		v, err := p.LookupStorageVolByName(name)
		if err != nil {
			return info, err
		}
		defer func() { _ = v.Free() }()
		if info.Path, err = v.GetPath(); err != nil {
			return info, err
		}
		i, err := v.GetInfo()
		if err != nil {
			return info, err
		}
		info.Capacity = i.Capacity
		return info, nil
	})
}

func (c *conn) SecretByUUID(id string) error {
	u, err := libvirt.UUID(id)
	if err != nil {
		return err
	}
	return c.use(func(l *lv.Connect) error {
		s, err := l.LookupSecretByUUID(u[:])
		if err == nil {
			_ = s.Free()
		}
		return err
	})
}

func (c *conn) SecretByUsage(kind int, id string) error {
	return c.use(func(l *lv.Connect) error {
		s, err := l.LookupSecretByUsage(lv.SecretUsageType(kind), id)
		if err == nil {
			_ = s.Free()
		}
		return err
	})
}
