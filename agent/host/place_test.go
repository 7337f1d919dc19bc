package host

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/migration"
	"berth/topology"
)

// What a claim shows of its move is all that the move wrote down.
func TestWireContext_TellsBackWhatTheLedgerWasGiven(t *testing.T) {
	side := func(node topology.CellID, cpu int) (*topology.GuestTopology, topology.Assignment) {
		return &topology.GuestTopology{
				Emulator: topology.EmulatorShare,
				Cells: []topology.GuestCell{{
					SharedVCPUs: topology.NewCPUSet(1), DedicatedVCPUs: topology.NewCPUSet(0), MemoryMB: 64, CPUPolicy: topology.CPUPolicyMixed,
					PageSize: topology.PageRequest(topology.PageSize2M),
				}},
			}, topology.Assignment{
				Cells: []topology.AssignedCell{{
					HostCell: node, MemoryMB: 64, PageSize: topology.PageSize2M, Shared: 1, Pins: []topology.Pin{{VCPU: 0, CPU: cpu}},
				}},
				Devices: []topology.AssignedDevice{{Request: "r0", Vendor: "8086", Product: "1563"}},
			}
	}
	floats := migration.Context{
		Source: "a", Destination: "b", OldFlavor: topology.Flavor{Name: "f", VCPUs: 2}, NewFlavor: topology.Flavor{Name: "f", VCPUs: 2},
		OldResources: topology.Resources{VCPUs: 2}, NewResources: topology.Resources{VCPUs: 1, PCPUs: 1}, PowerState: migration.PowerPaused,
	}
	want := floats
	want.OldTopology, want.OldAssignment = side(0, 0)
	want.NewTopology, want.NewAssignment = side(1, 5)
	want.OldPCIRequests = []topology.PCIRequest{{ID: "r0", Count: 1}}
	want.NewPCIRequests = []topology.PCIRequest{{ID: "r0", Count: 1}}
	got := WireContext(ledgerContext(migration.Ref{Migration: "m", Instance: "i"}, want))
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// A guest that floats has no cells on either side.
	if diff := cmp.Diff(floats, WireContext(ledgerContext(migration.Ref{}, floats)), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
