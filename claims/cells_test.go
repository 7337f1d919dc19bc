package claims_test

import (
	"fmt"

	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/topology"
)

// The host of the tests with cells: two cells of four cores with two threads,
// one core of each shared, half of the memory in pages of 2 MiB; on each cell a
// card with two virtual functions, on cell 1 a plain device.
var (
	cells = claims.Capacity{
		Total:    topology.Resources{VCPUs: 4, PCPUs: 12, MemoryMB: 8192, DiskGB: 100},
		CPURatio: 2, RAMRatio: 1, DiskRatio: 1,
		Cells: []fit.Cell{
			cell(0, topology.NewCPUSet(0, 8), topology.NewCPUSet(1, 2, 3, 9, 10, 11)),
			cell(1, topology.NewCPUSet(4, 12), topology.NewCPUSet(5, 6, 7, 13, 14, 15)),
		},
		Devices: append(card(0x10, 0), append(card(0x20, 1), pci.Device{
			Address: topology.PCIAddress{Bus: 0x30}, Vendor: "10de", Product: "1eb8", Type: topology.PCITypeFunction, Cell: 1, Managed: true,
		})...),
	}
	pf0, vf0 = topology.PCIAddress{Bus: 0x10}, topology.PCIAddress{Bus: 0x10, Function: 1}
	huge     = topology.PageRequest(topology.PageSize2M)
)

func cell(id topology.CellID, shared, dedicated topology.CPUSet) fit.Cell {
	socket := int(id)
	c := fit.Cell{ID: id, Socket: &socket, Shared: shared, Dedicated: dedicated, MemoryMB: 4096, Pages: []fit.Pages{
		{Size: topology.PageSize4K, Total: 2048 << 8}, {Size: topology.PageSize2M, Total: 1024},
	}}
	for cpu := 4 * int(id); cpu < 4*int(id)+4; cpu++ {
		c.Cores = append(c.Cores, topology.NewCPUSet(cpu, cpu+8))
	}
	return c
}

func card(bus uint8, at topology.CellID) []pci.Device {
	pf := pci.Device{Address: topology.PCIAddress{Bus: bus}, Vendor: "8086", Product: "1563", Type: topology.PCITypePF, Cell: at, Managed: true}
	out := []pci.Device{pf}
	for f := uint8(1); f <= 2; f++ {
		vf := topology.PCIAddress{Bus: bus, Function: f}
		out[0].VFs = append(out[0].VFs, vf)
		out = append(out, pci.Device{Address: vf, Vendor: "8086", Product: "1565", Type: topology.PCITypeVF, Cell: at, Parent: &pf.Address, Managed: true})
	}
	return out
}

func ask(vendor, product string, kind topology.PCIType, count int) []topology.PCIRequest {
	return []topology.PCIRequest{{ID: "r-" + product, Count: count, Affinity: topology.AffinityPreferred,
		Specs: []topology.PCISpec{{Vendor: vendor, Product: product, Type: kind}}}}
}

func vfs(n int) []topology.PCIRequest { return ask("8086", "1565", topology.PCITypeVF, n) }
func pfs(n int) []topology.PCIRequest { return ask("8086", "1563", topology.PCITypePF, n) }

// pinned asks for cells with so many dedicated vCPUs each, and 512 MiB.
func pinned(page topology.PageRequest, vcpus ...int) *topology.GuestTopology {
	t, next := &topology.GuestTopology{}, 0
	for _, n := range vcpus {
		c := topology.GuestCell{MemoryMB: 512, PageSize: page, CPUPolicy: topology.CPUPolicyDedicated}
		for range n {
			c.DedicatedVCPUs = append(c.DedicatedVCPUs, next)
			next++
		}
		t.Cells = append(t.Cells, c)
	}
	return t
}

// shared asks for one cell of shared vCPUs.
func shared(page topology.PageRequest, vcpus int, mb int64) *topology.GuestTopology {
	c := topology.GuestCell{MemoryMB: mb, PageSize: page, CPUPolicy: topology.CPUPolicyShared}
	for v := range vcpus {
		c.SharedVCPUs = append(c.SharedVCPUs, v)
	}
	return &topology.GuestTopology{Cells: []topology.GuestCell{c}}
}

func request(o claims.Owner, t *topology.GuestTopology, devices ...topology.PCIRequest) claims.Request {
	r := claims.Request{Owner: o, Topology: t, PCI: devices}
	r.Resources.VCPUs, r.Resources.PCPUs = t.CPUs()
	for _, c := range t.Cells {
		r.Resources.MemoryMB += c.MemoryMB
	}
	return r
}

func resizeOwner(instance, migration string) claims.Owner {
	return claims.Owner{Instance: instance, Migration: migration, Attempt: 1, Kind: claims.KindResize}
}

func cpusOf(a topology.Assignment) topology.CPUSet {
	var all topology.CPUSet
	for _, c := range a.Cells {
		all = all.Union(c.Exclusive())
	}
	return all
}

// hostState is a host as its claims show it.
type hostState struct {
	capacity claims.Capacity
	claims   []claims.Claim
}

// broken names the first law of exclusivity that the claims of a host break,
// added up here from the claims alone, apart from the package's own way: claims
// that were forced, and what they have, are left out.
func (s hostState) broken() error {
	type pool struct {
		cell topology.CellID
		size topology.PageSize
	}
	perInstance := map[string][]claims.Claim{}
	for _, c := range s.claims {
		if !c.Forced {
			perInstance[c.Owner.Instance] = append(perInstance[c.Owner.Instance], c)
		}
	}
	dedicated := topology.CPUSet(nil)
	for _, c := range s.capacity.Cells {
		dedicated = dedicated.Union(c.Dedicated)
	}
	cpus, devices, pages, shared := map[int]string{}, map[topology.PCIAddress]string{}, map[pool]int64{}, map[topology.CellID]int{}
	ordinary := int64(0)
	for instance, list := range perInstance {
		used, sharedHere, most := map[pool]int64{}, map[topology.CellID]int{}, int64(0)
		for _, c := range list {
			mine := int64(0)
			if len(c.Assignment.Cells) == 0 {
				mine = c.Resources.MemoryMB
			}
			seen := topology.CPUSet(nil)
			for _, a := range c.Assignment.Cells {
				if a.Exclusive().Intersects(seen) || !dedicated.ContainsAll(a.Exclusive()) {
					return fmt.Errorf("claim of %s has %s", instance, a.Exclusive())
				}
				seen = seen.Union(a.Exclusive())
				for _, cpu := range a.Exclusive() {
					if other, ok := cpus[cpu]; ok && other != instance {
						return fmt.Errorf("cpu %d is held by %s and %s", cpu, other, instance)
					}
					cpus[cpu] = instance
				}
				k := pool{a.HostCell, a.PageSize}
				if a.PageSize <= topology.PageSize4K {
					k.size = topology.PageSize4K
					mine += a.MemoryMB
				}
				used[k] = max(used[k], a.MemoryMB<<20/int64(k.size))
				sharedHere[a.HostCell] = max(sharedHere[a.HostCell], a.Shared)
			}
			for _, d := range c.Assignment.Devices {
				if other, ok := devices[d.Address]; ok && other != instance {
					return fmt.Errorf("device %s is held by %s and %s", d.Address, other, instance)
				}
				devices[d.Address] = instance
			}
			most = max(most, mine)
		}
		ordinary += most
		for k, n := range used {
			pages[k] += n
		}
		for k, n := range sharedHere {
			shared[k] += n
		}
	}
	for _, d := range s.capacity.Devices {
		for _, vf := range d.VFs {
			pf, one := devices[d.Address]
			if holder, two := devices[vf]; one && two && holder != pf {
				return fmt.Errorf("%s has the PF %s and %s its VF %s", pf, d.Address, holder, vf)
			}
		}
	}
	var limit int64
	for _, c := range s.capacity.Cells {
		for _, p := range c.Pages {
			if n := pages[pool{c.ID, p.Size}]; n > p.Total {
				return fmt.Errorf("cell %d: %d of %d pages of %s", c.ID, n, p.Total, p.Size)
			}
		}
		limit += c.Pages[0].Total * int64(c.Pages[0].Size) >> 20
		if float64(shared[c.ID]) > float64(c.Shared.Len())*s.capacity.CPURatio {
			return fmt.Errorf("cell %d: %d shared vCPUs", c.ID, shared[c.ID])
		}
	}
	if float64(ordinary) > float64(limit)*s.capacity.RAMRatio {
		return fmt.Errorf("%d of %d MiB of ordinary memory", ordinary, limit)
	}
	return nil
}
