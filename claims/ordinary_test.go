package claims_test

import (
	"slices"
	"testing"

	"berth/claims"
	"berth/claims/fit"
	"berth/internal/fault"
	"berth/topology"
)

// Where no huge pages take memory it is said once that there is too little of it.
func TestTracker_MemoryIsShortOnceWhereAllOfItIsOrdinary(t *testing.T) {
	plain := cells
	plain.Cells = slices.Clone(cells.Cells)
	for i := range plain.Cells {
		plain.Cells[i].Pages = []fit.Pages{{Size: topology.PageSize4K, Total: 4096 << 8}, {Size: topology.PageSize2M}}
	}
	b := newBenchWith(t, "h", plain)
	must[claims.Claim](t)(b.Claim(ctx, claims.Request{Owner: instanceOwner("first"), Resources: topology.Resources{VCPUs: 1, MemoryMB: 7100}}))
	for want, mb := range map[string]int64{fit.MemoryShort: 1093, fit.MemoryOverHost: 8193} {
		_, err := b.Claim(ctx, claims.Request{Owner: instanceOwner("second"), Resources: topology.Resources{VCPUs: 1, MemoryMB: mb}})
		if reasons := fault.ReasonsOf(err); len(reasons) != 1 || reasons[0].Code != want {
			t.Errorf("%d MiB: %+v, want %s alone", mb, reasons, want)
		}
	}
}
