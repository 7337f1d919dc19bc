package demand_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/demand"
	"berth/internal/fault"
	"berth/topology"
)

func TestOf_CountsCellsAndTellsEveryReason(t *testing.T) {
	for _, tt := range []struct {
		name   string
		flavor topology.Flavor
		want   topology.Resources
		codes  int // reasons at least
	}{
		{"a guest that floats", topology.Flavor{Name: "f", VCPUs: 2, MemoryMB: 128, DiskGB: 3}, topology.Resources{VCPUs: 2, MemoryMB: 128, DiskGB: 3}, 0},
		{"a pinned one has CPUs of its own", topology.Flavor{Name: "f", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated"}}, topology.Resources{PCPUs: 2, MemoryMB: 128}, 0},
		{"two faults are two reasons", topology.Flavor{Name: "f", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:cpu_policy": "sometimes", "pci_passthrough:alias": "nobody:1"}}, topology.Resources{}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var no fault.Refusal
			d := demand.Of(tt.flavor, nil, nil, &no)
			if d.Refused != (tt.codes > 0) || len(no.Reasons) < tt.codes {
				t.Errorf("refused %t with %+v", d.Refused, no.Reasons)
			}
			if d.Refused {
				return
			}
			if diff := cmp.Diff(tt.want, d.Resources); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
