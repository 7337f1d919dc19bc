package agent

import (
	"strings"
	"testing"

	"berth/claims"
	"berth/hwdiscovery"
	"berth/topology"
)

func TestDifferences_NameWhatBecameOfADevice(t *testing.T) {
	address, err := topology.ParsePCIAddress(card)
	if err != nil {
		t.Fatal(err)
	}
	host := func(change func(d *topology.PCIDevice)) *topology.Host {
		d := topology.PCIDevice{
			Address: address, Vendor: "0x8086", Product: "0x1563", Class: "0x020000", NUMANode: 1,
			Mdev: []topology.MdevType{{Name: "m", Available: 4}},
		}
		change(&d)
		return &topology.Host{PCI: []topology.PCIDevice{d}}
	}
	as := func(*topology.PCIDevice) {}
	silent := host(as)
	silent.Reasons = []topology.Reason{{Code: hwdiscovery.CodeDead, Message: "it does not answer", Device: &address, Degrades: true}}
	made := func(kind string) *topology.Host {
		h := host(as)
		h.Mdevs = []topology.Mdev{{UUID: tenant, Parent: address, Type: kind}}
		return h
	}
	for _, tt := range []struct {
		was, is *topology.Host
		want    string
	}{
		{made("m"), made("m"), ""},
		{host(as), made("m"), "mediated device " + tenant + " of 0000:3b:00.0 added (m)"},
		{made("m"), host(as), "mediated device " + tenant + " of 0000:3b:00.0 removed"},
		{host(as), host(as), ""},
		{host(as), host(func(d *topology.PCIDevice) { d.Mdev[0].Available = 3 }), ""},
		{host(as), silent, "it does not answer"},
		{silent, silent, ""},
		{silent, host(as), "device 0000:3b:00.0 works again"},
		{silent, &topology.Host{}, "device 0000:3b:00.0 removed"},
		{&topology.Host{}, host(as), "device 0000:3b:00.0 added (0x8086:0x1563)"},
		{host(as), host(func(d *topology.PCIDevice) { d.Product = "0x1564" }), "device 0000:3b:00.0 is another (0x8086:0x1563 → 0x8086:0x1564)"},
		{host(as), host(func(d *topology.PCIDevice) { d.VFs = make([]topology.PCIAddress, 2) }), "device 0000:3b:00.0 virtual functions 0 → 2"},
		{host(as), host(func(d *topology.PCIDevice) { d.Driver = "vfio-pci" }), "device 0000:3b:00.0 driver none → vfio-pci"},
		{host(as), host(func(d *topology.PCIDevice) { d.NUMANode = 0 }), "device 0000:3b:00.0 cell 1 → 0"},
		{host(as), host(func(d *topology.PCIDevice) { d.SerialNumber = "A42" }), "device 0000:3b:00.0 serial number none → A42"},
		{host(as), host(func(d *topology.PCIDevice) { d.Class = "0x088000" }), "device 0000:3b:00.0 changed"},
	} {
		if got := strings.Join(differences(tt.was, tt.is), "; "); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// TestBlame_ADeviceIsNamedDeadOnce though its files and the kernel both say so.
func TestBlame_ADeviceIsNamedDeadOnce(t *testing.T) {
	address := topology.PCIAddress{Bus: 0x3b}
	h := &hardware{lost: map[topology.PCIAddress]string{address: "the kernel could not recover it from an error"}}
	got := topology.Host{PCI: []topology.PCIDevice{{Address: address}}}
	for range 2 {
		h.blameLocked(&got)
		if len(got.Reasons) != 1 || got.Health != topology.HealthDegraded {
			t.Errorf("health %s, reasons %+v", got.Health, got.Reasons)
		}
	}
}

// TestGoneDevices_AreNamedOnce: the ledger's audit may have found them too.
func TestGoneDevices_AreNamedOnce(t *testing.T) {
	address := topology.PCIAddress{Bus: 0x3b}
	held := claims.Claim{Owner: claims.Owner{Instance: tenant}}
	held.Assignment.Devices = []topology.AssignedDevice{{Address: address}}
	list := []claims.Claim{held, held} // two claims of one instance, as while it is resized
	if got := goneDevices(&topology.Host{}, list, nil); len(got) != 1 || got[0].Instance != tenant || *got[0].Device != address {
		t.Errorf("gone are %+v", got)
	}
	known := []claims.Lost{{Instance: tenant, Device: &address}}
	if got := goneDevices(&topology.Host{}, list, known); len(got) > 0 {
		t.Errorf("named again: %+v", got)
	}
	if got := goneDevices(&topology.Host{PCI: []topology.PCIDevice{{Address: address}}}, list, nil); len(got) > 0 {
		t.Errorf("it is there: %+v", got)
	}
}
