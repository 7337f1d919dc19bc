package claims_test

import (
	"testing"

	"berth/internal/fault"
	"berth/topology"
)

// TestTracker_RoomRefusesWhatNoClaimIsGivenFor: whoever asks whether there is room
// may ask for anything, and must not hear that nothing, or less, fits.
func TestTracker_RoomRefusesWhatNoClaimIsGivenFor(t *testing.T) {
	b := newBenchWith(t, "h", cells)
	one := topology.Resources{VCPUs: 1, MemoryMB: 64}
	cell := topology.GuestCell{SharedVCPUs: topology.NewCPUSet(0), MemoryMB: 64}
	for _, tt := range []struct {
		name     string
		r        topology.Resources
		topology *topology.GuestTopology
		devices  []topology.PCIRequest
	}{
		{"nothing", topology.Resources{}, nil, nil},
		{"less than nothing", topology.Resources{VCPUs: -5, PCPUs: 6, MemoryMB: -7}, nil, nil},
		{"no cells", one, &topology.GuestTopology{}, nil},
		{"cells of other amounts", topology.Resources{VCPUs: 2, MemoryMB: 64}, &topology.GuestTopology{Cells: []topology.GuestCell{cell}}, nil},
		{"no devices", one, nil, []topology.PCIRequest{{ID: "d", Specs: []topology.PCISpec{{Vendor: "8086"}}}}},
	} {
		if _, err := b.Room(tt.r, tt.topology, tt.devices); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := b.Room(one, &topology.GuestTopology{Cells: []topology.GuestCell{cell}}, nil); err != nil {
		t.Errorf("a guest that fits: %v", err)
	}
}
