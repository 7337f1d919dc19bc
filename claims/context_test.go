package claims_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/claims"
	"berth/topology"
)

func TestMigrationContext_AppliesRevertsAndDrops(t *testing.T) {
	side := func(name string, vcpus, pcpus int, disk int64, devices []topology.PCIAddress, cpus ...int) claims.Holding {
		h := claims.Holding{
			Resources: topology.Resources{VCPUs: vcpus, PCPUs: pcpus, MemoryMB: 512, DiskGB: disk}, Flavor: topology.Flavor{Name: name},
			NUMATopology: &claims.NUMATopology{Guest: pinned(0, len(cpus)), Cells: []topology.AssignedCell{{MemoryMB: 512}}},
		}
		for v, cpu := range cpus {
			h.NUMATopology.Cells[0].Pins = append(h.NUMATopology.Cells[0].Pins, topology.Pin{VCPU: v, CPU: cpu})
		}
		for _, a := range devices {
			h.PCIDevices = append(h.PCIDevices, topology.AssignedDevice{Address: a})
		}
		return h
	}
	old := side("old", 0, 3, 20, []topology.PCIAddress{pf0, vf0}, 1, 2, 3)
	now := side("new", 2, 2, 10, []topology.PCIAddress{vf0}, 3, 4)
	c := claims.MigrationContext{Migration: "m", Instance: "i"}.WithOld(old).WithNew(now)
	for _, tt := range []struct {
		name    string
		applied bool
		holds   claims.Holding
		frees   claims.Freed
	}{
		{"confirmed", true, now, claims.Freed{Resources: topology.Resources{PCPUs: 1, DiskGB: 10}, CPUs: topology.NewCPUSet(1, 2),
			Devices: []topology.AssignedDevice{{Address: pf0}}}},
		{"reverted", false, old, claims.Freed{Resources: topology.Resources{VCPUs: 2}, CPUs: topology.NewCPUSet(4)}},
	} {
		holds, frees := c.Drop(tt.applied)
		if diff := cmp.Diff(tt.holds, holds, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: holds (-want +got):\n%s", tt.name, diff)
		}
		if diff := cmp.Diff(tt.frees, frees, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: frees (-want +got):\n%s", tt.name, diff)
		}
	}
	// What is given is the caller's own.
	a := c.Apply()
	a.NUMATopology.Cells[0].Pins[0].CPU = 99
	if c.Apply().NUMATopology.Cells[0].Pins[0].CPU != 3 || c.Revert().Flavor.Name != "old" {
		t.Error("the context was changed through what it gave")
	}
}
