package rpc

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver/libvirt"
)

// message is a packet of the daemon's that answers nothing.
func message(procedure uint32, body ...[]byte) []byte {
	p := make([]byte, packetMin)
	for _, b := range body {
		p = append(p, b...)
	}
	for i, v := range []uint32{uint32(len(p)), programRemote, 1, procedure, typeMessage, 0, statusOK} {
		binary.BigEndian.PutUint32(p[4*i:], v)
	}
	return p
}

func number(n int32) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func text(s string) []byte {
	b := append(number(int32(len(s))), s...)
	return append(b, make([]byte, (4-len(s)%4)%4)...)
}

const eventUUID = "8e3c8f3a-7a4b-4c57-9e0d-0b7d6e0b7d11"

// eventDomain is the domain of an event, remote_nonnull_domain.
func eventDomain(name string) []byte {
	u, err := libvirt.UUID(eventUUID)
	if err != nil {
		panic(err)
	}
	return append(append(text(name), u[:]...), number(7)...)
}

// tunable is what go-libvirt cannot read: typed parameters.
func tunable() []byte {
	b := append(number(2), text("cputune.vcpupin0")...)
	b = append(append(b, number(7)...), text("0-3")...)
	b = append(b, text("cputune.cpu_shares")...)
	return append(append(b, number(4)...), make([]byte, 8)...)
}

const procLibVersion = 157

// daemonSays is a connection whose daemon answers every call, the last of which is
// LibVersion, and then sends packets.
func daemonSays(t *testing.T, packets ...[]byte) libvirt.Conn {
	t.Helper()
	socket := listen(t, func(c net.Conn) {
		none := make([]byte, 4) // no authentication; callback 0
		answer(c, map[uint32][]byte{66: none, 316: none, 374: none, procLibVersion: make([]byte, 8)}, procLibVersion)
		for _, p := range packets {
			// In two writes, as a stream may bring it.
			if _, err := c.Write(p[:len(p)/2]); err != nil {
				return
			}
			if _, err := c.Write(p[len(p)/2:]); err != nil {
				return
			}
		}
		_, _ = c.Read(make([]byte, 1)) // until the other side ends it
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, libvirt.Target{Socket: socket, URI: "qemu:///system"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestSubscribe_GivesEveryKindInTheDaemonsOrder(t *testing.T) {
	c := daemonSays(t,
		message(318, number(0), eventDomain("g"), number(5), number(3)),
		message(346, number(0), eventDomain("g"), tunable()),
		message(379, number(0), eventDomain("longer name"), number(0), number(0)),
		message(376, number(0), text("pci_0000_3b_00_1"), number(1), number(0)),
		message(377, number(0), text("net_lo")),
		message(319, number(0), eventDomain("g")), // a reboot, which nobody asked for
		message(326, number(0), eventDomain("g"), text("/x"), number(2), number(0)),
		message(327, number(0), eventDomain("g"), number(0), number(0), text("ide0"), number(0)),
		message(331, number(0), eventDomain("g"), make([]byte, 8)),
		message(333, number(0), eventDomain("g"), text("disk1")),
		message(354, number(0), eventDomain("g"), text("disk1")),
		message(359, number(0), eventDomain("g"), number(4)),
		message(438, number(0), eventDomain("g"), text("mem0"), make([]byte, 8)),
	)
	seen := make(chan any, 64)
	if err := c.Subscribe(func(e libvirt.Event) { seen <- e }); err != nil {
		t.Fatal(err)
	}
	if err := c.SubscribeDevices(func(e libvirt.DeviceEvent) { seen <- e }); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LibVersion(); err != nil {
		t.Fatal(err)
	}
	event := func(id libvirt.EventID) libvirt.Event { return libvirt.Event{ID: id, UUID: eventUUID, Name: "g"} }
	want := []any{
		libvirt.Event{ID: libvirt.LifecycleEvent, UUID: eventUUID, Name: "g", Event: 5, Detail: 3},
		event(libvirt.TunableEvent),
		libvirt.Event{ID: libvirt.MetadataChangeEvent, UUID: eventUUID, Name: "longer name"},
		libvirt.DeviceEvent{Name: "pci_0000_3b_00_1", Event: 1},
		libvirt.DeviceEvent{Name: "net_lo", Event: libvirt.DeviceUpdated},
		event(libvirt.BlockJobEvent), event(libvirt.DiskChangeEvent), event(libvirt.BalloonChangeEvent),
		event(libvirt.DeviceRemovedEvent), event(libvirt.DeviceAddedEvent),
		libvirt.Event{ID: libvirt.MigrationIterationEvent, UUID: eventUUID, Name: "g", Detail: 4}, event(libvirt.MemoryDeviceSizeChangeEvent),
	}
	var got []any
	for len(got) < len(want) {
		select {
		case e := <-seen:
			got = append(got, e)
		case <-c.Done():
			t.Fatalf("the connection ended after %+v: %v", got, c.(*conn).wire.why())
		case <-time.After(10 * time.Second):
			t.Fatalf("no more than %+v within 10 s", got)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
