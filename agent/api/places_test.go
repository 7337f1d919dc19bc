package api_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/claims"
	"berth/internal/fault"
	"berth/topology"
)

// explained has something in every field, so that one that is lost on the way
// is seen.
var explained = api.Explanation{
	Explanation: claims.Explanation{
		Claim: "c-1", Owner: claims.Owner{Instance: "i-1", Kind: claims.KindInstance}, State: claims.Bound, Forced: true,
		Resources: topology.Resources{VCPUs: 1, PCPUs: 2, MemoryMB: 512},
		Cells: []claims.ExplainedCell{{
			GuestCell: 0, HostCell: 1,
			Asked: &topology.GuestCell{
				SharedVCPUs: topology.NewCPUSet(1), DedicatedVCPUs: topology.NewCPUSet(0), MemoryMB: 512, PageSize: topology.PagesLarge,
				CPUPolicy: topology.CPUPolicyMixed, ThreadPolicy: topology.ThreadPolicyIsolate,
			},
			SharedVCPUs: 1, Pins: []topology.Pin{{VCPU: 0, CPU: 4}}, Emulator: topology.NewCPUSet(6), Idle: topology.NewCPUSet(5),
			MemoryMB: 512, PageSize: topology.PageSize2M, Pages: 256,
		}},
		Devices: []claims.ExplainedDevice{{
			AssignedDevice: topology.AssignedDevice{
				Request: "gpu", Address: topology.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction, Cell: 1, Managed: true,
			},
			Asked: &topology.PCIRequest{ID: "gpu", Count: 1, Specs: []topology.PCISpec{{Vendor: "10de"}}, Affinity: topology.AffinityRequired},
		}},
	},
	Name: "web", Host: "host-a", EmulatorPolicy: topology.EmulatorIsolate, Realtime: topology.NewCPUSet(0), SharedCPUs: map[topology.CellID]topology.CPUSet{1: topology.NewCPUSet(2, 3)},
}

func TestExplainClaim_TellsAllThatIsHeld(t *testing.T) {
	w := serve(t, "host-a", nil)
	c := client(t, api.ClientOptions{Socket: w.socket})
	got, err := c.ExplainClaim(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(explained, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := c.ExplainClaim(t.Context(), "db"); !errors.Is(err, fault.NotFound) {
		t.Errorf("of a claim that is not there: %v, want %v", err, fault.NotFound)
	}
}
