package inventory_test

import (
	"fmt"
	"testing"

	"berth/agent/inventory"
	"berth/claims/pci"
	"berth/topology"
)

// BenchmarkCompute is a host of eight cells with 512 virtual functions and 200
// guests, nested, where nothing changed.
func BenchmarkCompute(b *testing.B) {
	h := &topology.Host{BasePageSize: 4096, PageSizes: []topology.PageSize{4096, 2 << 20, 1 << 30}}
	for i := range 8 {
		var cpus []int
		for c := range 32 {
			cpus = append(cpus, 32*i+c)
		}
		h.Cells = append(h.Cells, topology.Cell{
			ID: topology.CellID(i), CPUs: topology.NewCPUSet(cpus...), MemoryBytes: 64 << 30, Pages: topology.Pages{4096: 4 << 20, 2 << 20: 8 << 10, 1 << 30: 32},
		})
		pf := topology.PCIAddress{Bus: uint8(0x10 + i)}
		h.PCI = append(h.PCI, topology.PCIDevice{Address: pf, Vendor: "0x8086", Product: "0x1563", Class: "0x020000", NUMANode: topology.CellID(i), TotalVFs: 64})
		at := len(h.PCI) - 1
		for v := range 64 {
			vf := topology.PCIAddress{Bus: pf.Bus, Device: uint8(1 + v/8), Function: uint8(v % 8)}
			h.PCI = append(h.PCI, topology.PCIDevice{Address: vf, Vendor: "0x8086", Product: "0x1565", Class: "0x020000", NUMANode: topology.CellID(i), PhysFn: &pf})
			h.PCI[at].VFs = append(h.PCI[at].VFs, vf)
		}
	}
	in := input(h)
	in.Shape = inventory.Nested
	in.Devices, _ = pci.Devices(h, []pci.Spec{{ProductID: "1565"}})
	for i := range 200 {
		in.Held = append(in.Held, assigned(fmt.Sprintf("0000:%02x:01.%d", 0x10+i%8, i/8%8))...)
	}
	first := inventory.Compute(in, nil)
	stands := standing(first.Tree)
	in.Applied = first.Applied
	b.ReportAllocs()
	for b.Loop() {
		if inventory.Compute(in, stands).Reshapes() {
			b.Fatal("it changes its shape")
		}
	}
}
