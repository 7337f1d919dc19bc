//go:build native

package native

import (
	lv "libvirt.org/go/libvirt"

	"berth/driver/libvirt"
)

// Subscribe registers one callback for each kind of event. libvirt's event loop
// calls them in the order in which the daemon sent the events, whatever their kind.
func (c *conn) Subscribe(f func(libvirt.Event)) error {
	tell := func(id libvirt.EventID, d *lv.Domain, event, detail int) {
		uuid, err := d.GetUUIDString()
		if err != nil {
			return // an event about no domain that can be named says nothing
		}
		name, err := d.GetName()
		if err != nil {
			return
		}
		f(libvirt.Event{ID: id, UUID: uuid, Name: name, Event: event, Detail: detail})
	}
	changed := func(id libvirt.EventID, d *lv.Domain) { tell(id, d, 0, 0) }
	return c.register((*lv.Connect).DomainEventDeregister,
		func(l *lv.Connect) (int, error) {
			return l.DomainEventLifecycleRegister(nil, func(_ *lv.Connect, d *lv.Domain, e *lv.DomainEventLifecycle) {
				tell(libvirt.LifecycleEvent, d, int(e.Event), e.Detail)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventBlockJobRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventBlockJob) {
				changed(libvirt.BlockJobEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventDiskChangeRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventDiskChange) {
				changed(libvirt.DiskChangeEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventBalloonChangeRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventBalloonChange) {
				changed(libvirt.BalloonChangeEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventDeviceRemovedRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventDeviceRemoved) {
				changed(libvirt.DeviceRemovedEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return registerTunable(l, func(uuid, name string) {
				f(libvirt.Event{ID: libvirt.TunableEvent, UUID: uuid, Name: name})
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventDeviceAddedRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventDeviceAdded) {
				changed(libvirt.DeviceAddedEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventMigrationIterationRegister(nil, func(_ *lv.Connect, d *lv.Domain, e *lv.DomainEventMigrationIteration) {
				tell(libvirt.MigrationIterationEvent, d, 0, e.Iteration)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventMetadataChangeRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventMetadataChange) {
				changed(libvirt.MetadataChangeEvent, d)
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.DomainEventMemoryDeviceSizeChangeRegister(nil, func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventMemoryDeviceSizeChange) {
				changed(libvirt.MemoryDeviceSizeChangeEvent, d)
			})
		},
	)
}

// SubscribeDevices is Subscribe for the host's devices.
func (c *conn) SubscribeDevices(f func(libvirt.DeviceEvent)) error {
	tell := func(d *lv.NodeDevice, event int) {
		if name, err := d.GetName(); err == nil { // one that has no name says nothing
			f(libvirt.DeviceEvent{Name: name, Event: event})
		}
	}
	return c.register((*lv.Connect).NodeDeviceEventDeregister,
		func(l *lv.Connect) (int, error) {
			return l.NodeDeviceEventLifecycleRegister(nil, func(_ *lv.Connect, d *lv.NodeDevice, e *lv.NodeDeviceEventLifecycle) {
				tell(d, int(e.Event))
			})
		},
		func(l *lv.Connect) (int, error) {
			return l.NodeDeviceEventUpdateRegister(nil, func(_ *lv.Connect, d *lv.NodeDevice) { tell(d, libvirt.DeviceUpdated) })
		},
	)
}

// register makes callbacks and notes how each is ended.
func (c *conn) register(end func(*lv.Connect, int) error, callbacks ...func(*lv.Connect) (int, error)) error {
	return c.use(func(l *lv.Connect) error {
		for _, callback := range callbacks {
			id, err := callback(l)
			if err != nil {
				return err
			}
			c.mu.Lock()
			c.unsubscribe = append(c.unsubscribe, func(l *lv.Connect) error { return end(l, id) })
			c.mu.Unlock()
		}
		return nil
	})
}
