package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"

	"berth/driver"
	"berth/internal/fault"
)

// NetworkInfo is what libvirt tells of a network.
type NetworkInfo struct {
	Active, Autostart bool
	XML               string
}

// PoolInfo is what libvirt tells of a storage pool.
type PoolInfo struct {
	State                 int // virStoragePoolState
	Autostart, Persistent bool
	XML                   string
}

// VolumeInfo is what libvirt tells of a volume.
type VolumeInfo struct {
	Path     string
	Capacity uint64 // bytes
}

// The states of a pool: in between it is being built, and degraded or inaccessible ones
// are not to be started.
const poolInactive = 0 // VIR_STORAGE_POOL_INACTIVE

// secretTypes are virSecretUsageType by name.
var secretTypes = map[string]int{"volume": 1, "ceph": 2, "iscsi": 3, "tls": 4, "vtpm": 5}

// Network implements driver.Connector.
func (d *Driver) Network(ctx context.Context, name string) (driver.Network, error) {
	return do(ctx, d.control, request{verb: "read network " + name}, func(c Conn) (driver.Network, error) {
		info, err := c.Network(name)
		if err != nil {
			return driver.Network{}, err
		}
		// https://libvirt.org/formatnetwork.html
		var doc struct {
			Bridge struct {
				Name string `xml:"name,attr"`
			} `xml:"bridge"`
			PortGroups []struct {
				Name string `xml:"name,attr"`
			} `xml:"portgroup"`
		}
		if err := xml.Unmarshal([]byte(info.XML), &doc); err != nil {
			return driver.Network{}, fmt.Errorf("document: %w", err)
		}
		n := driver.Network{Name: name, Active: info.Active, Autostart: info.Autostart, Bridge: doc.Bridge.Name}
		for _, g := range doc.PortGroups {
			n.PortGroups = append(n.PortGroups, g.Name)
		}
		return n, nil
	})
}

// Pool implements driver.Connector.
func (d *Driver) Pool(ctx context.Context, name string) (driver.Pool, error) {
	return do(ctx, d.control, request{verb: "read storage pool " + name}, func(c Conn) (driver.Pool, error) {
		info, err := c.Pool(name)
		if err != nil {
			return driver.Pool{}, err
		}
		// https://libvirt.org/formatstorage.html
		var doc struct {
			Type   string `xml:"type,attr"`
			Target struct {
				Path string `xml:"path"`
			} `xml:"target"`
		}
		if err := xml.Unmarshal([]byte(info.XML), &doc); err != nil {
			return driver.Pool{}, fmt.Errorf("document: %w", err)
		}
		return driver.Pool{
			Name: name, Active: info.State != poolInactive, Autostart: info.Autostart, Persistent: info.Persistent, Type: doc.Type, Path: doc.Target.Path,
		}, nil
	})
}

// OpenPool implements driver.Connector. A pool that starts is read by that.
func (d *Driver) OpenPool(ctx context.Context, name string) error {
	return run(ctx, d.control, request{verb: "open storage pool " + name, changes: true}, func(c Conn) error {
		info, err := c.Pool(name)
		if err != nil {
			return err
		}
		if info.State == poolInactive {
			err := c.StartPool(name)
			if codeOf(err) != errOperationInvalid {
				return err
			}
			// Somebody else was faster.
		}
		return c.RefreshPool(name)
	})
}

// ClosePool implements driver.Connector.
func (d *Driver) ClosePool(ctx context.Context, name string) error {
	return run(ctx, d.control, request{verb: "close storage pool " + name, changes: true}, func(c Conn) error {
		info, err := c.Pool(name)
		switch {
		case err != nil:
			return err
		case info.State == poolInactive:
			return nil
		case !info.Persistent:
			return &Error{Code: errOperationInvalid, Message: "it is transient, and would be gone"}
		}
		err = c.StopPool(name)
		if codeOf(err) == errOperationInvalid {
			// Not active any more, or in use: the state tells.
			if now, nerr := c.Pool(name); nerr == nil && now.State == poolInactive {
				return nil
			}
		}
		return err
	})
}

// Volume implements driver.Connector.
func (d *Driver) Volume(ctx context.Context, pool, name string) (driver.Volume, error) {
	return do(ctx, d.control, request{verb: "read volume " + name + " of storage pool " + pool}, func(c Conn) (driver.Volume, error) {
		info, err := c.Volume(pool, name)
		return driver.Volume{Name: name, Path: info.Path, Capacity: int64(info.Capacity)}, err
	})
}

// Secret implements driver.Connector.
func (d *Driver) Secret(ctx context.Context, s driver.SecretRef) error {
	if s.UUID == "" && secretTypes[s.Type] == 0 {
		return fault.New(fault.Invalid, "look for a secret: %q is no type of secrets", s.Type)
	}
	return run(ctx, d.control, request{verb: "look for secret " + s.UUID + s.Usage}, func(c Conn) error {
		if s.UUID != "" {
			return c.SecretByUUID(s.UUID)
		}
		return c.SecretByUsage(secretTypes[s.Type], s.Usage)
	})
}
