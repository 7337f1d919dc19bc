package rpc

import (
	"encoding/binary"

	"berth/driver/libvirt"
	golibvirt "github.com/digitalocean/go-libvirt"
)

// procedures are those by which the daemon sends the events of Subscribe
// (remote_protocol.x, REMOTE_PROC_DOMAIN_EVENT_CALLBACK_*), and their numbers
// among the domains' events. All their messages begin alike: the callback's
// number, then the domain.
var procedures = map[uint32]libvirt.EventID{
	318: libvirt.LifecycleEvent,
	326: libvirt.BlockJobEvent,
	327: libvirt.DiskChangeEvent,
	331: libvirt.BalloonChangeEvent,
	333: libvirt.DeviceRemovedEvent,
	346: libvirt.TunableEvent,
	354: libvirt.DeviceAddedEvent,
	359: libvirt.MigrationIterationEvent,
	379: libvirt.MetadataChangeEvent,
	438: libvirt.MemoryDeviceSizeChangeEvent,
}

// REMOTE_PROC_NODE_DEVICE_EVENT_*.
const (
	procDeviceLifecycle = 376
	procDeviceUpdate    = 377
)

// Subscribe registers by the library's plain calls. What the daemon sends then is
// taken off the wire, in its order, by the goroutine that reads there; the
// library never sees it.
func (c *conn) Subscribe(f func(libvirt.Event)) error {
	c.wire.domains.Store(&f)
	for _, id := range procedures {
		if _, err := c.l.ConnectDomainEventCallbackRegisterAny(int32(id), nil); err != nil {
			return explain(err)
		}
	}
	return nil
}

func (c *conn) SubscribeDevices(f func(libvirt.DeviceEvent)) error {
	c.wire.devices.Store(&f)
	for _, id := range []golibvirt.NodeDeviceEventID{golibvirt.NodeDeviceEventIDLifecycle, golibvirt.NodeDeviceEventIDUpdate} {
		if _, err := c.l.ConnectNodeDeviceEventRegisterAny(int32(id), nil); err != nil {
			return explain(err)
		}
	}
	return nil
}

// tell gives an event, whose shape has been looked at, to whoever subscribed. The
// callback's number at its beginning says nothing: each is registered once on a
// connection.
func (w *wire) tell(of procedure, body []byte) {
	x := xdr(body[4:])
	domains, devices := w.domains.Load(), w.devices.Load()
	id, known := procedures[of.number]
	switch {
	case of.program != programRemote:
	case known && domains != nil:
		e := libvirt.Event{ID: id, Name: x.text()}
		var d golibvirt.Domain
		copy(d.UUID[:], x.take(len(d.UUID)))
		e.UUID = ref(d).UUID
		x.take(4) // the domain's id
		switch id {
		case libvirt.LifecycleEvent:
			e.Event, e.Detail = x.number(), x.number()
		case libvirt.MigrationIterationEvent:
			e.Detail = x.number()
		}
		(*domains)(e)
	case of.number == procDeviceLifecycle && devices != nil:
		(*devices)(libvirt.DeviceEvent{Name: x.text(), Event: x.number()})
	case of.number == procDeviceUpdate && devices != nil:
		(*devices)(libvirt.DeviceEvent{Name: x.text(), Event: libvirt.DeviceUpdated})
	}
}

// xdr is what is left of a message (RFC 4506) that was measured.
type xdr []byte

func (x *xdr) take(n int) []byte {
	out := (*x)[:n]
	*x = (*x)[n:]
	return out
}

func (x *xdr) number() int { return int(int32(binary.BigEndian.Uint32(x.take(4)))) }

// text is a string, which is filled up to a multiple of four.
func (x *xdr) text() string {
	n := x.number()
	s := string(x.take(n))
	x.take((4 - n%4) % 4)
	return s
}
