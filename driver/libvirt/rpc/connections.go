package rpc

import (
	"berth/driver/libvirt"
	golibvirt "github.com/digitalocean/go-libvirt"
)

func (c *conn) Network(name string) (info libvirt.NetworkInfo, err error) {
	n, err := c.l.NetworkLookupByName(name)
	if err != nil {
		return info, explain(err)
	}
	active, err := c.l.NetworkIsActive(n)
	if err != nil {
		return info, explain(err)
	}
	auto, err := c.l.NetworkGetAutostart(n)
	if err != nil && explained(err) != int(golibvirt.ErrOperationInvalid) { // a transient one has none
		return info, explain(err)
	}
	info.Active, info.Autostart = active != 0, auto != 0
	info.XML, err = c.l.NetworkGetXMLDesc(n, 0)
	return info, explain(err)
}

// explained is libvirt's number of an error, 0 for others.
func explained(err error) int {
	e, ok := explain(err).(*libvirt.Error)
	if !ok {
		return 0
	}
	return e.Code
}

// pool is a call about one storage pool.
func pool[T any](c *conn, name string, f func(golibvirt.StoragePool) (T, error)) (v T, err error) {
	p, err := c.l.StoragePoolLookupByName(name)
	if err != nil {
		return v, explain(err)
	}
	v, err = f(p)
	return v, explain(err)
}

func (c *conn) Pool(name string) (libvirt.PoolInfo, error) {
	return pool(c, name, func(p golibvirt.StoragePool) (info libvirt.PoolInfo, err error) {
		state, _, _, _, err := c.l.StoragePoolGetInfo(p)
		if err != nil {
			return info, err
		}
		persistent, err := c.l.StoragePoolIsPersistent(p)
		if err != nil {
			return info, err
		}
		auto, err := c.l.StoragePoolGetAutostart(p)
		if err != nil {
			return info, err
		}
		info.State, info.Persistent, info.Autostart = int(state), persistent != 0, auto != 0
		info.XML, err = c.l.StoragePoolGetXMLDesc(p, 0)
		return info, err
	})
}

func (c *conn) StartPool(name string) error {
	_, err := pool(c, name, func(p golibvirt.StoragePool) (none struct{}, err error) { return none, c.l.StoragePoolCreate(p, 0) })
	return err
}

func (c *conn) StopPool(name string) error {
	_, err := pool(c, name, func(p golibvirt.StoragePool) (none struct{}, err error) { return none, c.l.StoragePoolDestroy(p) })
	return err
}

func (c *conn) RefreshPool(name string) error {
	_, err := pool(c, name, func(p golibvirt.StoragePool) (none struct{}, err error) { return none, c.l.StoragePoolRefresh(p, 0) })
	return err
}

func (c *conn) Volume(of, name string) (libvirt.VolumeInfo, error) {
	return pool(c, of, func(p golibvirt.StoragePool) (info libvirt.VolumeInfo, err error) {
		v, err := c.l.StorageVolLookupByName(p, name)
		if err != nil {
			return info, err
		}
		if info.Path, err = c.l.StorageVolGetPath(v); err != nil {
			return info, err
		}
		_, info.Capacity, _, err = c.l.StorageVolGetInfo(v)
		return info, err
	})
}

func (c *conn) SecretByUUID(id string) error {
	u, err := libvirt.UUID(id)
	if err != nil {
		return err
	}
	_, err = c.l.SecretLookupByUUID(u)
	return explain(err)
}

func (c *conn) SecretByUsage(kind int, id string) error {
	_, err := c.l.SecretLookupByUsage(int32(kind), id)
	return explain(err)
}
