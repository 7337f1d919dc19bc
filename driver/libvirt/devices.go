package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"

	"berth/driver"
)

// HostDevices implements driver.DeviceWatcher. A device that goes while the list
// is read has gone.
func (d *Driver) HostDevices(ctx context.Context) ([]driver.HostDevice, error) {
	return do(ctx, d.stats, request{verb: "list host devices"}, func(c Conn) ([]driver.HostDevice, error) {
		names, err := c.Devices()
		if err != nil {
			return nil, err
		}
		out := make([]driver.HostDevice, 0, len(names))
		for _, name := range names {
			text, err := c.DeviceXML(name)
			if codeOf(err) == errNoNodeDevice {
				continue
			}
			if err != nil {
				return nil, err
			}
			v, err := hostDevice(text)
			if err != nil {
				return nil, fmt.Errorf("host device %s: %w", name, err)
			}
			out = append(out, v)
		}
		return out, nil
	})
}

// DeviceEvents implements driver.DeviceWatcher.
func (d *Driver) DeviceEvents(ctx context.Context) (<-chan driver.DeviceEvent, error) {
	return d.deviceEvents.open(ctx)
}

// publishDevice is the binding's callback.
func (d *Driver) publishDevice(of DeviceEvent) {
	d.deviceEvents.broadcast(driver.DeviceEvent{Kind: deviceEventKind(of.Event), Name: of.Name, At: d.rt.Now()})
}

// deviceEventKind names virNodeDeviceEventLifecycleType. Defined and undefined
// are of mediated devices that may be started later, not of one that is there.
func deviceEventKind(event int) driver.DeviceEventKind {
	switch event {
	case 0: // VIR_NODE_DEVICE_EVENT_CREATED
		return driver.DeviceAdded
	case 1: // VIR_NODE_DEVICE_EVENT_DELETED
		return driver.DeviceRemoved
	}
	return driver.DeviceChanged
}

// hostDevice reads a node device's document (https://libvirt.org/formatnode.html).
func hostDevice(text string) (v driver.HostDevice, err error) {
	var doc struct {
		Name   string `xml:"name"`
		Parent string `xml:"parent"`
		Driver struct {
			Name string `xml:"name"`
		} `xml:"driver"`
		Capabilities []struct {
			Type     string `xml:"type,attr"`
			Domain   uint   `xml:"domain"`
			Bus      uint   `xml:"bus"`
			Slot     uint   `xml:"slot"`
			Function uint   `xml:"function"`
		} `xml:"capability"`
	}
	if err := xml.Unmarshal([]byte(text), &doc); err != nil {
		return v, err
	}
	v = driver.HostDevice{Name: doc.Name, Parent: doc.Parent, Driver: doc.Driver.Name}
	if len(doc.Capabilities) > 0 {
		c := doc.Capabilities[0]
		v.Kind = c.Type
		if c.Type == "pci" {
			v.PCI = fmt.Sprintf("%04x:%02x:%02x.%x", c.Domain, c.Bus, c.Slot, c.Function)
		}
	}
	return v, nil
}
