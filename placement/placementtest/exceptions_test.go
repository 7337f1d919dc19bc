package placementtest

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithoutForgotten_LeavesOutOnlyWhatSharesServe(t *testing.T) {
	const (
		path      = "/allocation_candidates?resources=VCPU:1&resources_B=DISK_GB:1&group_policy=none"
		summaries = `"provider_summaries":{"cell":{"root_provider_uuid":"host","traits":[]},"pool":{"root_provider_uuid":"pool","traits":["MISC_SHARES_VIA_AGGREGATE"]}}`
		// Of which the unnumbered group is served by the pool alone, by the cell, by both.
		byPool = `{"allocations":{"pool":{},"cell":{}},"mappings":{"":["pool"],"_B":["cell"]}}`
		byCell = `{"allocations":{"cell":{}},"mappings":{"":["cell"],"_B":["cell"]}}`
		byBoth = `{"allocations":{"pool":{},"cell":{}},"mappings":{"":["cell","pool"],"_B":["cell"]}}`
		single = `{"allocations":{"pool":{}},"mappings":{"":["pool"]}}`
	)
	answer := func(candidates string) any {
		var v any
		must(t, json.Unmarshal([]byte(`{"allocation_requests":[`+candidates+`],`+summaries+`}`), &v))
		return v
	}
	for _, tt := range []struct{ name, path, ours, theirs, want string }{
		{"forgotten", path, byPool + "," + byCell + "," + byBoth, byCell + "," + byBoth, byCell + "," + byBoth},
		{"known by both", path, byPool + "," + byCell, byPool + "," + byCell, byPool + "," + byCell},
		{"by the cell", path, byCell + "," + byBoth, byBoth, byCell + "," + byBoth},
		{"by both", path, byCell + "," + byBoth, byCell, byCell + "," + byBoth},
		{"of one group", path, byCell + "," + single, byCell, byCell + "," + single},
		{"as many of theirs", path, byPool, byCell, byPool},
		{"nothing unnumbered", "/allocation_candidates?resources_B=DISK_GB:1", byPool + "," + byCell, byCell, byPool + "," + byCell},
		{"another path", "/resource_providers?resources=VCPU:1", byPool + "," + byCell, byCell, byPool + "," + byCell},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(answer(tt.want), withoutForgotten(tt.path, answer(tt.ours), answer(tt.theirs))); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
