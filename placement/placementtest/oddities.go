package placementtest

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

// OddRequests compares the answers to requests that no sane client makes. Both
// servers must be empty.
func OddRequests(t *testing.T, ours, theirs Server) {
	t.Helper()
	const json = "application/json"
	p1 := "/resource_providers/" + id(1)
	al := "/allocations/" + id(900)
	for _, c := range []struct{ method, path, version, contentType, body string }{
		{"POST", "/resource_providers", "1.39", json, `{"name":"odd","uuid":"` + strings.ToUpper(strings.ReplaceAll(id(1), "-", "")) + `"}`},
		{"GET", p1, "1.39", "", ""},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":0.0,"inventories":{"VCPU":{"total":4.0}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":1,"inventories":{"VCPU":{"total":4,"allocation_ratio":-1}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":1,"inventories":{"VCPU":{"total":4,"allocation_ratio":0.1,"reserved":4}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"vcpu":{"total":4}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":true,"inventories":{}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":2147483648}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":1,"x":1}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":4,"allocation_ratio":"1"}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":4,"allocation_ratio":3.5E38}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":1e10}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":4.5,"reserved":-1}}}`},
		{"PUT", p1 + "/inventories", "1.39", json, `{"resource_provider_generation":2,"inventories":{"VCPU":{"total":4,"z":1,"a":2}},"y":"a rather long text of several words which the printer has to break in the middle"}`},
		{"PUT", p1 + "/inventories", "1.39", json, `[[],"it's",{"b":null,"a":false}]`},
		{"PUT", p1 + "/inventories/VCPU", "1.39", json, `{"resource_provider_generation":2,"total":8}`},
		{"PUT", p1 + "/inventories/NOPE", "1.39", json, `{"resource_provider_generation":3,"total":8}`},
		{"DELETE", p1 + "/inventories/NOPE", "1.39", "", ""},
		{"GET", p1 + "/inventories/NOPE", "1.39", "", ""},
		{"POST", p1 + "/inventories", "1.39", json, `{"resource_class":"NOPE","total":1}`},
		{"POST", p1 + "/inventories", "1.39", json, `{"resource_class":"nope","total":1}`},
		{"DELETE", p1 + "/inventories", "1.4", "", ""},
		{"GET", p1 + "/aggregates", "1.0", "", ""},
		{"PUT", p1 + "/aggregates", "1.18", json, `["` + id(50) + `","` + id(50) + `"]`},
		{"PUT", p1 + "/aggregates", "1.39", json, `["` + id(50) + `"]`},
		{"PUT", p1 + "/traits", "1.39", json, `{"resource_provider_generation":3,"traits":["HW_NUMA_ROOT","HW_NUMA_ROOT"]}`},
		{"PUT", p1 + "/traits", "1.39", json, `{"resource_provider_generation":4,"traits":[""]}`},
		{"PUT", p1 + "/traits", "1.39", json, `{"resource_provider_generation":4}`},
		{"PUT", "/resource_providers/nope/traits", "1.39", json, `{"resource_provider_generation":4,"traits":[]}`},
		{"PUT", "/resource_providers/nope/inventories", "1.39", json, `{`},
		{"PUT", "/resource_providers/nope/aggregates", "1.39", json, `{`},
		{"PUT", "/resource_providers/nope", "1.39", json, `{`},
		{"GET", "/resource_providers/nope/usages", "1.39", "", ""},
		{"GET", "/resource_providers/nope/allocations", "1.39", "", ""},
		{"GET", "/resource_providers/nope/traits", "1.39", "", ""},
		{"DELETE", "/resource_providers/nope/traits", "1.39", "", ""},
		{"PUT", p1, "1.39", json, `{"name":"odd","uuid":"` + id(1) + `"}`},
		{"PUT", p1, "1.39", json, `{"name":""}`},
		{"PUT", p1, "1.39", json, `{"name":"odd","parent_provider_uuid":5}`},
		{"PUT", p1, "1.39", json, `{"name":"odd","parent_provider_uuid":"nope"}`},
		{"PUT", p1, "1.39", json, `{"name":7,"parent_provider_uuid":"nope"}`},
		{"PUT", p1, "1.39", json, `{"name":"` + strings.Repeat("a name ", 30) + `"}`},
		{"GET", "/resource_providers/%E2%98%83", "1.39", "", ""},
		{"GET", "/resource_providers/%E2%98%83/traits", "1.39", "", ""},
		{"PUT", "/resource_classes/%E2%98%83", "1.39", "", ""},
		{"PUT", "/traits/%E2%98%83", "1.39", "", ""},
		{"GET", "/resource_providers?name=%E2%98%83&a=%E2%98%83&b=1", "1.39", "", ""},
		{"POST", "/allocations", "1.13", json, `{"` + id(900) + `":{"nothing":1}}`},
		{"POST", "/allocations", "1.38", json, `{"` + id(900) + `":{"nothing":1},"nope":{}}`},
		{"PUT", al, "1.38", json, `{"allocations":{"` + id(1) + `":{"resources":{"VCPU":0,"vcpu":1},"x":1}},"project_id":"","user_id":5,"consumer_generation":"1","consumer_type":"x"}`},
		{"PUT", al, "1.38", json, `{"allocations":{},"project_id":"p","user_id":"u","consumer_generation":1.5,"consumer_type":"X","mappings":{"a":[],"":["x"]}}`},
		{"PUT", al, "1.7", json, `{"allocations":[{"resource_provider":{"uuid":"x","y":1},"resources":{}},5]}`},
		{"POST", "/reshaper", "1.34", json, `{"inventories":{"x":1},"allocations":{"` + id(900) + `":[]},"z":{}}`},
		{"PUT", p1, "1.39", json, `{"parent_provider_uuid":null}`},
		{"PUT", p1, "1.39", json, `{"name":"odd","parent_provider_uuid":"` + id(9) + `"}`},
		{"POST", "/resource_providers", "1.39", json, `{"name":"","uuid":"` + id(4) + `"}`},
		{"POST", "/resource_providers", "1.39", json, `{"name":"odd2","uuid":"` + id(2) + `","parent_provider_uuid":"` + id(2) + `"}`},
		{"POST", "/resource_providers", "1.13", json, `{"name":"odd2","parent_provider_uuid":"` + id(1) + `"}`},
		{"POST", "/resource_providers", "1.39", json, `{"name":5}`},
		{"POST", "/resource_providers", "1.39", json, `{"name":"` + strings.Repeat("x", 201) + `"}`},
		{"POST", "/resource_providers", "1.39", json, ``},
		{"POST", "/resource_providers", "1.39", "application/json; charset=utf-8", `{"name":"it's","uuid":"` + id(3) + `"}`},
		{"POST", "/resource_providers", "1.39", "text/json", `{"name":"x"}`},
		{"GET", "/resource_providers?name=it%27s", "1.39", "", ""},
		{"GET", "/resource_providers?uuid=nope", "1.39", "", ""},
		{"GET", "/resource_providers?in_tree=nope", "1.39", "", ""},
		{"GET", "/resource_providers?in_tree=" + id(8), "1.39", "", ""},
		{"GET", "/resource_providers?member_of=" + id(50) + "," + id(51), "1.39", "", ""},
		{"GET", "/resource_providers?member_of=nope", "1.39", "", ""},
		{"GET", "/resource_providers?member_of=!" + id(50), "1.31", "", ""},
		{"GET", "/resource_providers?member_of=" + id(50) + "&member_of=" + id(51), "1.23", "", ""},
		{"GET", "/resource_providers?member_of=" + id(50), "1.2", "", ""},
		{"GET", "/resource_providers?required=", "1.39", "", ""},
		{"GET", "/resource_providers?required=A,,B", "1.39", "", ""},
		{"GET", "/resource_providers?required=!HW_NUMA_ROOT", "1.21", "", ""},
		{"GET", "/resource_providers?required=in:!HW_NUMA_ROOT", "1.39", "", ""},
		{"GET", "/resource_providers?required=in:", "1.39", "", ""},
		{"GET", "/resource_providers?resources=", "1.39", "", ""},
		{"GET", "/resource_providers?resources=VCPU", "1.39", "", ""},
		{"GET", "/resource_providers?resources=VCPU:x", "1.39", "", ""},
		{"GET", "/resource_providers?resources=VCPU:-1", "1.39", "", ""},
		{"GET", "/resource_providers?resources=VCPU:1:2", "1.39", "", ""},
		{"GET", "/resource_providers?resources=NOPE:1", "1.39", "", ""},
		{"GET", "/traits?name=x", "1.39", "", ""},
		{"GET", "/traits?associated=maybe", "1.39", "", ""},
		{"GET", "/traits?associated=TRUE", "1.39", "", ""},
		{"GET", "/traits?x=1", "1.39", "", ""},
		{"DELETE", "/traits/HW_NUMA_ROOT", "1.39", "", ""},
		{"PUT", "/traits/HW_NUMA_ROOT", "1.39", "", ""},
		{"GET", "/resource_classes/nope", "1.39", "", ""},
		{"PUT", "/resource_classes/CUSTOM_OLD", "1.6", json, `{"name":"CUSTOM_NEW"}`},
		{"POST", "/resource_classes", "1.39", json, `{"name":"CUSTOM_OLD"}`},
		{"PUT", "/resource_classes/CUSTOM_OLD", "1.6", json, `{"name":"CUSTOM_NEW"}`},
		{"PUT", "/resource_classes/VCPU", "1.6", json, `{"name":"CUSTOM_NEWER"}`},
		{"DELETE", "/resource_classes/CUSTOM_NEW", "1.39", "", ""},
		{"GET", "/resource_classes", "1.1", "", ""},
		{"PUT", al, "1.39", json, `{"allocations":{},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X","mappings":{}}`},
		{"PUT", "/allocations/nope", "1.39", json, `{`},
		{"PUT", al, "1.39", json, `{"allocations":{"nope":{"resources":{"VCPU":1}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X"}`},
		{"PUT", al, "1.39", json, `{"allocations":{"` + id(1) + `":{"resources":{}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X"}`},
		{"PUT", al, "1.39", json, `{"allocations":{"` + id(1) + `":{"resources":{"vcpu":1}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X"}`},
		{"PUT", al, "1.39", json, `{"allocations":{"` + id(1) + `":{"resources":{"VCPU":1},"generation":77}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"X"}`},
		{"PUT", al, "1.27", json, `{"allocations":{},"project_id":"p","user_id":"u"}`},
		{"PUT", al, "1.7", json, `{"allocations":[{"resource_provider":{"uuid":"` + id(1) + `"},"resources":{"VCPU":2}}]}`},
		{"GET", al, "1.39", "", ""},
		{"GET", al, "1.11", "", ""},
		{"GET", "/allocations/nope", "1.39", "", ""},
		{"DELETE", "/allocations/nope", "1.39", "", ""},
		{"POST", "/allocations", "1.12", json, `{}`},
		{"POST", "/allocations", "1.13", json, `{"` + id(900) + `":{"allocations":{},"project_id":"p","user_id":"u"}}`},
		{"GET", "/usages?project_id=", "1.39", "", ""},
		{"GET", "/usages?project_id=p&consumer_type=instance", "1.39", "", ""},
		{"GET", "/usages?project_id=p&consumer_type=X", "1.37", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&limit=0", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1", "1.10", "", ""},
		{"GET", "/allocation_candidates?resources1=VCPU:1", "1.24", "", ""},
		{"GET", "/allocation_candidates?resources_X=VCPU:1", "1.32", "", ""},
		{"GET", "/allocation_candidates?resources1=VCPU:1&required=HW_NUMA_ROOT", "1.30", "", ""},
		{"GET", "/allocation_candidates?resources1=VCPU:1&member_of=" + id(50), "1.30", "", ""},
		{"GET", "/allocation_candidates?resources1=VCPU:1&in_tree=" + id(1), "1.31", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&in_tree=nope", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&required=HW_NUMA_ROOT,!HW_NUMA_ROOT", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&root_required=HW_NUMA_ROOT,!HW_NUMA_ROOT", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&root_required=HW_NUMA_ROOT&root_required=HW_NUMA_ROOT", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&root_required=CUSTOM_NOPE", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&same_subtree=", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources_A=VCPU:1&required_B=HW_NUMA_ROOT&group_policy=none", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources_A=VCPU:1&required_B=HW_NUMA_ROOT&group_policy=none&same_subtree=_A,_B", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources_A=VCPU:1&required_B=!HW_NUMA_ROOT&group_policy=none&same_subtree=_A,_B", "1.39", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1&group_policy=x", "1.39", "", ""},
		{"GET", "/allocation_candidates", "1.39", "", ""},
		{"GET", "/allocation_candidates", "1.30", "", ""},
		{"GET", "/allocation_candidates", "1.9", "", ""},
		{"POST", "/reshaper", "1.39", json, `{"inventories":{"` + id(1) + `":{"resource_provider_generation":99,"inventories":{}}},"allocations":{}}`},
		{"POST", "/reshaper", "1.39", json, `{"inventories":{},"allocations":{}}`},
		{"PATCH", "/resource_providers", "1.39", "", ""},
		{"GET", "/resource_providers/", "1.39", "", ""},
		{"GET", "//resource_providers", "1.39", "", ""},
		{"POST", "/", "1.39", json, `{}`},
		{"GET", "/", "1.99", "", ""},
		{"GET", "/resource_providers", "1.2.3", "", ""},
		{"GET", "/resource_providers", "1", "", ""},
		{"GET", "/resource_providers", "1.x", "", ""},
		{"GET", "/resource_providers", "2.0", "", ""},
		{"GET", "/resource_providers", "-1.0", "", ""},
	} {
		e := request39(c.method, c.path)
		e.Request.Headers["OpenStack-API-Version"] = "placement " + c.version
		if c.contentType != "" {
			e.Request.Headers["Content-Type"] = c.contentType
		}
		e.Request.Body = raw(c.body)
		if d := compare(t, &e, ours, theirs); len(d) > 0 {
			t.Errorf("%s %s %s %s\n%s", c.method, c.path, c.version, c.body, strings.Join(d, "\n"))
		}
	}
}

// raw makes a body that is sent byte for byte.
func raw(body string) json.RawMessage {
	if body == "" {
		return nil
	}
	return json.RawMessage(`{"_raw":` + strconv.Quote(body) + `}`)
}
