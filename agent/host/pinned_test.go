package host_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"berth/agent/host"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/flavor"
	"berth/claims/pci"
	"berth/driver"
	"berth/driver/libvirt/domainxml"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// cellsOf gives host n two cells of three dedicated CPUs and one shared one each,
// 128 pages of 2 MiB a cell, and two virtual functions. No two hosts number their
// CPUs alike.
func cellsOf(n int) claims.Capacity {
	c := claims.Capacity{
		Total:    topology.Resources{VCPUs: 2, PCPUs: 6, MemoryMB: 4096, DiskGB: 100},
		CPURatio: 16, RAMRatio: 1, DiskRatio: 1,
	}
	for cell := range 2 {
		first := 16*n + 4*cell
		c.Cells = append(c.Cells, fit.Cell{
			ID: topology.CellID(cell), Shared: topology.NewCPUSet(first), Dedicated: topology.NewCPUSet(first+1, first+2, first+3), MemoryMB: 2048,
			Pages: []fit.Pages{{Size: topology.PageSize4K, Total: 448 << 10}, {Size: topology.PageSize2M, Total: 128}},
		})
		c.Devices = append(c.Devices, pci.Device{
			Address: topology.PCIAddress{Bus: uint8(0x10 + n), Device: uint8(cell)}, Vendor: "15b3", Product: "101e", Type: topology.PCITypeVF,
			Cell: topology.CellID(cell), Managed: true, LiveMigratable: true, Tags: map[string]string{flavor.TagLiveMigratable: "true"},
		})
	}
	return c
}

var nics = []flavor.Alias{{Name: "nic", VendorID: "15b3", ProductID: "101e", DeviceType: "type-VF", LiveMigratable: "yes"}}

// Ten guests that are moved around in any order never share a dedicated CPU, a
// page or a device: on every host, what their documents say is what their claims
// hold, and no two of them hold the same.
func TestStory_TenGuestsMovedAroundShareNothing(t *testing.T) {
	flavors := []topology.Flavor{
		{Name: "pinned", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}},
		{Name: "mixed", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0", "hw:numa_nodes": "2"}},
		{Name: "emulator", VCPUs: 1, MemoryMB: 64, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}},
		{Name: "nic", VCPUs: 1, MemoryMB: 64, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1", "hw:mem_page_size": "large"}},
		{Name: "floating", VCPUs: 2, MemoryMB: 128},
	}
	for seed := range uint64(max(1, 4/stride)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			names := []string{"a", "b", "c"}
			l := newLab(t, names...)
			for n, name := range names {
				l.hosts[name].Close()
				l.boot(name, func(o *host.Options) {
					capacity := cellsOf(n)
					o.Aliases = func() []flavor.Alias { return nics }
					o.SharedCPUs = func() topology.CPUSet { return capacity.Cells[0].Shared.Union(capacity.Cells[1].Shared) }
					o.Tracker.SetCapacity(capacity)
				})
				l.hosts[name].put(t, "/boot/vmlinuz", "kernel", 0o644)
			}
			where := map[string]string{} // by uuid
			var uuids []string           // as they were made: a seed moves the same ones each time
			for i := range 10 {
				on := names[i%3]
				v, err := l.hosts[on].Create(t.Context(), host.CreateRequest{
					Name: fmt.Sprint("g", i), Flavor: flavors[i%len(flavors)], ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Start: true,
				})
				if err != nil {
					t.Fatal(err)
				}
				where[v.UUID] = on
				uuids = append(uuids, v.UUID)
			}
			l.shareNothing()
			moved, refused := 0, 0
			for range 60 {
				uuid := uuids[random.IntN(len(uuids))]
				from := where[uuid]
				to := names[random.IntN(3)]
				if to == from {
					continue
				}
				fail := never
				if random.IntN(4) == 0 { // and some are undone half-way
					fail = func(verb string, answered bool) error {
						if verb == operation.StartStream.Name && !answered {
							return fault.New(fault.Internal, "it is broken")
						}
						return nil
					}
				}
				m, err := l.tryMove(from, to, uuid, fail, migration.Options{})
				switch {
				case err != nil:
					if fault.KindOf(err) != fault.DoesNotFit {
						t.Fatalf("move %s from %s to %s: %v", uuid, from, to, err)
					}
					refused++
				case m.Outcome == migration.OutcomeCompleted:
					where[uuid] = to
					moved++
				}
				l.shareNothing()
			}
			if moved < 10 || refused == 0 {
				t.Errorf("%d moves and %d refusals: too few to mean anything", moved, refused)
			}
		})
	}
}

// shareNothing holds every guest's document against its claim, and the claims of
// a host against each other.
func (l *lab) shareNothing() {
	l.t.Helper()
	for name, n := range l.hosts {
		cpus, devices := map[int]string{}, map[topology.PCIAddress]string{}
		pages := map[topology.CellID]int64{}
		for _, inst := range n.tracker.Instances() {
			held := n.tracker.ByInstance(inst.UUID)
			if len(held) != 1 {
				l.t.Fatalf("%s on %s has %d claims", inst.Name, name, len(held))
			}
			claim := held[0]
			for _, what := range []driver.Document{driver.Live, driver.Persistent} {
				text, err := n.fake.XML(l.t.Context(), inst.UUID, what)
				if err != nil {
					l.t.Fatal(err)
				}
				l.documentIs(name, inst.Name, text, claim)
			}
			for _, c := range claim.Assignment.Cells {
				for _, cpu := range c.Exclusive() {
					if other, taken := cpus[cpu]; taken {
						l.t.Errorf("%s: CPU %d is %s's and %s's", name, cpu, other, inst.Name)
					}
					cpus[cpu] = inst.Name
				}
				if c.PageSize == topology.PageSize2M {
					pages[c.HostCell] += c.MemoryMB / 2
				}
			}
			for _, d := range claim.Assignment.Devices {
				if other, taken := devices[d.Address]; taken {
					l.t.Errorf("%s: device %s is %s's and %s's", name, d.Address, other, inst.Name)
				}
				devices[d.Address] = inst.Name
			}
		}
		for cell, used := range pages {
			if used > 128 {
				l.t.Errorf("%s: %d pages of cell %d are promised, it has 128", name, used, cell)
			}
		}
		if a := n.tracker.Audit(); !a.Agrees() {
			l.t.Errorf("%s: the ledger disagrees with itself: %+v", name, a)
		}
	}
}

// documentIs compares a document with the claim that it is to be written from.
func (l *lab) documentIs(on, guest, text string, claim claims.Claim) {
	l.t.Helper()
	doc, err := domainxml.Parse(text)
	if err != nil {
		l.t.Fatal(err)
	}
	pinning, err := doc.Pinning()
	if err != nil {
		l.t.Fatal(err)
	}
	for i, c := range claim.Assignment.Cells {
		for _, p := range c.Pins {
			if got := pinning.VCPUs[p.VCPU]; !got.SameAs(topology.CPUSet{p.CPU}) {
				l.t.Errorf("%s on %s: vCPU %d is pinned to %q, the claim has %d", guest, on, p.VCPU, got, p.CPU)
			}
		}
		if got := pinning.Cells[i].Nodes; !got.SameAs(topology.NewCPUSet(int(c.HostCell))) {
			l.t.Errorf("%s on %s: guest cell %d is on nodes %q, the claim has %d", guest, on, i, got, c.HostCell)
		}
		if !c.Emulator.IsEmpty() && !pinning.Emulator.SameAs(c.Emulator) {
			l.t.Errorf("%s on %s: emulator threads on %q, the claim has %q", guest, on, pinning.Emulator, c.Emulator)
		}
	}
	var have []topology.PCIAddress
	for _, d := range pinning.Devices {
		have = append(have, d.Address)
	}
	var want []topology.PCIAddress
	for _, d := range claim.Assignment.Devices {
		want = append(want, d.Address)
	}
	if !slices.Equal(have, want) {
		l.t.Errorf("%s on %s: devices %v, the claim has %v", guest, on, have, want)
	}
}
