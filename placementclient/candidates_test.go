package placementclient

import (
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCandidateRequest_SaysWhatTheServerUnderstands writes one request that uses
// everything for each microversion that understands less.
func TestCandidateRequest_SaysWhatTheServerUnderstands(t *testing.T) {
	const pool, other = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	r := CandidateRequest{
		RequestGroup: RequestGroup{
			Resources: Resources{ClassDiskGB: 10}, Required: []string{"STORAGE_DISK_SSD"}, AnyOf: [][]string{{"CUSTOM_A", "CUSTOM_B"}, {"CUSTOM_C"}},
			MemberOf: []string{pool}, NotMemberOf: []string{other}, InTree: other,
		},
		Groups: map[string]RequestGroup{
			"_CELL0": {Resources: Resources{ClassPCPU: 2}, Required: []string{TraitHWNUMARoot}},
			"_TIE":   {Required: []string{TraitHWNUMARoot}},
			"_MEM0":  {Resources: Resources{ClassMemoryMB: 512}, AnyOf: [][]string{{TraitPageSize(2 << 20), TraitPageSizeLarge}}},
		},
		GroupPolicy: "isolate", SameSubtree: [][]string{{"_CELL0", "_MEM0"}},
		RootRequired: []string{"COMPUTE_NODE"}, RootForbidden: []string{TraitComputeStatusDisabled}, Limit: 7,
	}
	at139 := url.Values{
		"resources": {"DISK_GB:10"}, "required": {"STORAGE_DISK_SSD,CUSTOM_C", "in:CUSTOM_A,CUSTOM_B"},
		"member_of": {"in:" + pool, "!in:" + other}, "in_tree": {other},
		"resources_CELL0": {"PCPU:2"}, "required_CELL0": {"HW_NUMA_ROOT"}, "required_TIE": {"HW_NUMA_ROOT"},
		"resources_MEM0": {"MEMORY_MB:512"}, "required_MEM0": {"in:CUSTOM_MEMORY_PAGE_SIZE_2048,CUSTOM_MEMORY_PAGE_SIZE_LARGE"},
		"group_policy": {"isolate"}, "same_subtree": {"_CELL0,_MEM0"}, "root_required": {"COMPUTE_NODE,!COMPUTE_STATUS_DISABLED"}, "limit": {"7"},
	}
	change := func(from url.Values, more url.Values, without ...string) url.Values {
		out := url.Values{}
		for k, v := range from {
			out[k] = v
		}
		for _, k := range without {
			delete(out, k)
		}
		for k, v := range more {
			out[k] = v
		}
		return out
	}
	at138 := change(at139, url.Values{"required": {"STORAGE_DISK_SSD,CUSTOM_C"}}, "required_MEM0")
	at135 := change(at138, nil, "same_subtree", "required_TIE")
	at134 := change(at135, nil, "root_required")
	at132 := change(at134, url.Values{"resources1": {"PCPU:2"}, "required1": {"HW_NUMA_ROOT"}, "resources2": {"MEMORY_MB:512"}}, "resources_CELL0", "required_CELL0", "resources_MEM0")
	at131 := change(at132, url.Values{"member_of": {"in:" + pool}})
	at29 := change(at131, nil, "in_tree")
	at28 := change(at29, nil, "resources1", "required1", "resources2", "group_policy")
	for v, want := range map[Microversion]url.Values{39: at139, 38: at138, 36: at138, 35: at135, 34: at134, 33: at134, 32: at132, 31: at131, 30: at29, 29: at29, 28: at28} {
		if diff := cmp.Diff(want, r.query(v)); diff != "" {
			t.Errorf("at %s (-want +got):\n%s", v, diff)
		}
	}
}
