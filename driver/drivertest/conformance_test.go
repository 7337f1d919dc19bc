package drivertest_test

import (
	"strings"
	"testing"
	"time"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/test/matrix"
)

// harness is the fake's: every property is held to it.
func harness(t testing.TB) drivertest.Harness {
	f := newFleet(t)
	nic := driver.HostDevice{Name: "pci_0000_3b_00_0", Parent: "computer", Kind: "pci", PCI: "0000:3b:00.0", Driver: "mlx5_core"}
	f.Host("a").PlugDevice(nic)
	return drivertest.Harness{
		New:       func(testing.TB) driver.Driver { return f.Host("a") },
		DomainXML: document,
		AgentXML: func(name, id string) string {
			return strings.Replace(document(name, id), "</domain>",
				"<devices><channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>", 1)
		},
		Restart: func(testing.TB) { f.Host("a").KillDaemon(); f.Host("a").StartDaemon() },
		Hang: func(testing.TB) func() {
			f.Host("a").Hang(true)
			return func() { f.Host("a").Hang(false) }
		},
		Change: func(_ testing.TB, uuid string) {
			f.Host("a").ChangeGuest(uuid, func(doc string) string { return strings.Replace(doc, "128", "256", 1) })
		},
		Save:       func(_ testing.TB, uuid string) { f.Host("a").SaveMemory(uuid) },
		Snapshot:   func(_ testing.TB, uuid, name string) { f.Host("a").AddSnapshot(uuid, name) },
		Checkpoint: func(_ testing.TB, uuid, name string) { f.Host("a").AddCheckpoint(uuid, name) },
		Unsnapshot: func(_ testing.TB, uuid, _ string) { f.Host("a").DropSnapshots(uuid) },
		SavedXML:   func(_ testing.TB, name, uuid string) string { return document(name, uuid) },
		Plug: func(testing.TB) (string, func()) {
			vf := driver.HostDevice{Name: "pci_0000_3b_00_2", Parent: nic.Name, Kind: "pci", PCI: "0000:3b:00.2"}
			f.Host("a").PlugDevice(vf)
			return vf.Name, func() { f.Host("a").UnplugDevice(vf.Name) }
		},
		Wired: func(testing.TB) drivertest.Wiring { return wire(f.Host("a")) },
		Pair: func(t testing.TB) drivertest.Pair {
			f := newFleet(t)
			f.Host("b").LackFeatures("avx512f")
			n, err := f.Host("a").Node(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			n.MigrationOptions = map[string]string{"zero_copy": "it is old", "migrate_disks_detect_zeroes": "it is old"}
			f.Host("a").SetNode(n)
			pace := func(p drivertest.Pace) func() {
				p.Tick = 2 * time.Millisecond
				return func() { f.SetPace(p) }
			}
			return drivertest.Pair{
				Source: f.Host("a"), Destination: f.Host("b"), DestinationURI: "qemu+tls://b/system", Lacks: "avx512f",
				Slow: pace(drivertest.Pace{Rate: 100 << 20, DirtyRate: 100 << 20}), Fast: pace(drivertest.Pace{}),
				Endless: func(testing.TB, *driver.Migration) {
					pace(drivertest.Pace{Rate: 8 << 30, DirtyRate: 32 << 30, MaxDowntime: time.Millisecond})()
				},
				HeavyXML: document, Filled: func(testing.TB, string) {},
				// In which all of it would come, were it not for the bound.
				Warm:    func(testing.TB, string) { <-time.After(100 * time.Millisecond) },
				Break:   func(_ testing.TB, id string) { f.BreakPostCopy(id) },
				DiskXML: func(_ testing.TB, name, id string) string { return document(name, id) },
				Forward: func(_ testing.TB, id string, m *driver.Migration) func() (control, memory, disks int) {
					dir := "/run/" + id
					control, memory, disks := f.Forward(dir+"/control", "b"), f.Forward(dir+"/memory", "b"), f.Forward(dir+"/disks", "b")
					m.DestinationURI = "qemu+unix:///system?socket=" + dir + "/control"
					m.MigrateURI, m.DisksURI = "unix://"+dir+"/memory", "unix://"+dir+"/disks"
					return func() (int, int, int) { return control(), memory(), disks() }
				},
			}
		},
	}
}

// wire gives a host a network, a pool and a secret.
func wire(h *drivertest.Fake) drivertest.Wiring {
	w := drivertest.Wiring{
		Network: driver.Network{Name: "default", Active: true, Autostart: true, Bridge: "virbr0", PortGroups: []string{"blue"}},
		Off:     "off",
		Pool:    driver.Pool{Name: "images", Persistent: true, Autostart: true, Type: "dir", Path: "/images"},
		Volume:  driver.Volume{Name: "vol", Path: "/images/vol", Capacity: 1 << 20},
		Secret:  driver.SecretRef{UUID: "457eb676-33da-42ec-9a8c-9293d545c337", Type: "ceph", Usage: "client.libvirt secret"},
	}
	w.Put = func(_ testing.TB, name string) {
		p := w.Pool
		p.Active = true
		h.SetPool(p, w.Volume, driver.Volume{Name: name, Path: "/images/" + name})
	}
	h.SetNetwork(w.Network)
	h.SetNetwork(driver.Network{Name: w.Off})
	h.SetPool(w.Pool, w.Volume)
	h.SetSecret(w.Secret)
	return w
}

func TestFake_Conforms(t *testing.T) {
	results := drivertest.Run(t, harness(t))
	for _, c := range []matrix.Column{matrix.FakeRPC, matrix.FakeNative} {
		matrix.Record(t, c, "the fake", results)
	}
}

// A hypervisor that has none of the abilities keeps the rest of the contract.
func TestFake_ConformsWithoutAbilities(t *testing.T) {
	h := harness(t)
	n, err := h.New(t).Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.Cannot, h.Cannot = map[driver.Ability]string{}, map[string]string{}
	for _, a := range driver.Abilities() {
		n.Cannot[a] = "it is old"
		for _, p := range drivertest.OfAbility(a) {
			h.Cannot[p] = n.Cannot[a]
		}
	}
	f := newFleet(t)
	f.Host("a").SetNode(n)
	h.New = func(testing.TB) driver.Driver { return f.Host("a") }
	h.Only = func(p string) bool { return strings.HasPrefix(p, "Abilities_") || h.Cannot[p] != "" }
	drivertest.Run(t, h)
}
