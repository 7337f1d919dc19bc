package placementtest

import (
	"strings"
	"testing"
)

// OddHeaders compares the answers to requests whose headers ask for microversions
// and media types in every way, and to methods and queries that are not there.
// Nothing is changed by them.
func OddHeaders(t *testing.T, ours, theirs Server) {
	t.Helper()
	const version, accept = "OpenStack-API-Version", "Accept"
	providers, candidates := "/resource_providers", "/allocation_candidates?resources=VCPU:1"
	for _, c := range []struct {
		method, path, header, value string
	}{
		{"GET", providers, version, "placement latest"},
		{"GET", providers, version, "Placement 1.20"},
		{"GET", providers, version, "placement LATEST"},
		{"GET", providers, version, "placement"},
		{"GET", providers, version, "placement 1.20 "},
		{"GET", providers, version, "placement  1.20"},
		{"GET", providers, version, "compute 2.90"},
		{"GET", providers, version, "compute 2.90, placement 1.30"},
		{"GET", providers, version, "placement 1.30,compute 2.90"},
		{"GET", providers, version, "placement 1.30, placement 1.20"},
		{"GET", providers, version, "placement 1.40"},
		{"GET", providers, version, "placement 0.9"},
		{"GET", providers, version, "placement 1.01"},
		{"GET", providers, version, "placement 1.-1"},
		{"GET", providers, version, "placement one"},
		{"GET", providers, version, ""},
		{"GET", "/", version, "placement latest"},
		{"GET", "/", version, "compute 2.90"},
		{"GET", "/", version, "placement one"},
		{"GET", "/nowhere", version, "placement 1.99"},
		{"GET", "/nowhere", version, "placement latest"},
		{"GET", providers, accept, "application/json"},
		{"GET", providers, accept, "application/*"},
		{"GET", providers, accept, "*/*"},
		{"GET", providers, accept, "text/plain"},
		{"GET", providers, accept, "text/plain, application/json;q=0.1"},
		{"GET", providers, accept, "application/json;q=0"},
		{"GET", candidates, accept, "application/xhtml+xml"},
		{"GET", "/traits/HW_NUMA_ROOT", accept, "application/xhtml+xml"},
		{"GET", "/nowhere", accept, "application/xhtml+xml"},
		{"GET", "/", accept, "application/xhtml+xml"},
		{"GET", "/nowhere", accept, "text/html"},
		{"GET", "/nowhere", accept, "TEXT/*;q=0.2, application/json;q=0.1"},
		{"GET", "/nowhere", accept, "text/html;q=0.5,*/*"},
		{"GET", "/nowhere", accept, "*/*,text/html"},
		{"GET", "/nowhere", accept, "*/*, text/html;q=0"},
		{"GET", "/nowhere", accept, "*/*;q=0"},
		{"GET", "/nowhere", accept, "application/json, text/html"},
		{"GET", "/nowhere", accept, "application/json;charset=utf-8"},
		{"GET", "/nowhere", accept, "text/html;level=1"},
		{"GET", "/nowhere", accept, "text/html;q=0.8;x=1, */*;q=0.9"},
		{"GET", "/nowhere", accept, `text/html;a="b,c";q=0.8, application/json;q=0.1`},
		{"GET", "/nowhere", accept, "no media type"},
		{"GET", "/nowhere", accept, "text/html;q=1.1,*/*"},
		{"GET", "/nowhere", accept, ",text/html"},
		{"GET", "/nowhere", accept, "text/plain,,a/b"},
		{"GET", "/nowhere", accept, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"},
		{"GET", providers, accept, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"},
		{"GET", providers, accept, "text/html"},
		{"GET", providers, accept, "no media type"},
		{"GET", providers, accept, "text/html;x=\"<&>'\""},
		{"DELETE", providers, accept, "text/html"},
		{"GET", providers + "?name=<b>it's</b>&x=%E2%98%83<br>", accept, "text/html"},
		{"GET", providers + "?name=<b>it's</b>&x=%E2%98%83<br>--><!--", accept, "text/plain"},
		{"GET", providers + "?name=<b>it's</b>&x=%E2%98%83<br>a%0D%0Ab--><!--", accept, "application/json"},
		{"GET", "/resource_providers/no%20<b>such</b>", accept, "text/html"},
		{"POST", providers, accept, "text/html"},
		{"HEAD", providers, "", ""},
		{"OPTIONS", providers, "", ""},
		{"PUT", providers, "", ""},
		{"DELETE", providers, "", ""},
		{"POST", "/traits/HW_NUMA_ROOT", "", ""},
		{"PUT", "/traits", "", ""},
		{"GET", "/reshaper", "", ""},
		{"PUT", "/reshaper", "", ""},
		{"GET", "/allocations", "", ""},
		{"POST", "/allocation_candidates", "", ""},
		{"POST", "/usages", "", ""},
		{"GET", providers + "?nothing=1", "", ""},
		{"GET", providers + "?name=a&name=b", "", ""},
		{"GET", "/usages?project_id=p&nothing=1", "", ""},
		{"GET", "/usages?user_id=u", "", ""},
		{"GET", "/usages?project_id=" + strings.Repeat("x", 256), "", ""},
		{"GET", candidates + "&limit=abc", "", ""},
		{"GET", candidates + "&limit=-1", "", ""},
		{"GET", candidates + "&limit=1&limit=2", "", ""},
		{"GET", candidates + "&nothing=1", "", ""},
		{"GET", candidates + "&in_tree=" + id(1) + "&in_tree=" + id(2), "", ""},
		{"GET", candidates + "&in_tree=" + id(77), "", ""},
		{"GET", candidates + "&member_of=", "", ""},
		{"GET", candidates + "&member_of=in:", "", ""},
		{"GET", candidates + "&required=", "", ""},
		{"GET", candidates + "&required=CUSTOM_NOT_THERE", "", ""},
		{"GET", candidates + "&required=in:CUSTOM_NOT_THERE,HW_NUMA_ROOT", "", ""},
		{"GET", candidates + "&resources=MEMORY_MB:1", "", ""},
		{"GET", candidates + "&resources_A=VCPU:1&same_subtree=_A,_B", "", ""},
		{"GET", candidates + "&resources_A=VCPU:1&same_subtree=_A&same_subtree=_A", "", ""},
		{"GET", candidates + "&resources_A=VCPU:1&required_B=HW_NUMA_ROOT&same_subtree=_A", "", ""},
		{"GET", candidates + "&resources_A%20B=VCPU:1", "", ""},
		{"GET", candidates + "&resources_" + strings.Repeat("a", 64) + "=VCPU:1", "", ""},
		{"GET", candidates + "&resources_" + strings.Repeat("a", 65) + "=VCPU:1", "", ""},
		{"GET", candidates + "&root_required=", "", ""},
		{"GET", candidates + "&root_required=in:HW_NUMA_ROOT", "", ""},
		{"GET", "/allocation_candidates?required=HW_NUMA_ROOT", "", ""},
		{"GET", "/allocation_candidates?same_subtree=_A", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1,VCPU:2", "", ""},
		{"GET", "/allocation_candidates?resources=VCPU:99999999999", "", ""},
		{"GET", "/allocation_candidates?resources=CUSTOM_NOT_THERE:1", "", ""},
	} {
		e := request39(c.method, c.path)
		if c.header != "" {
			e.Request.Headers[c.header] = c.value
		}
		if d := compare(t, &e, ours, theirs); len(d) > 0 {
			t.Errorf("%s %s %s: %q\n%s", c.method, c.path, c.header, c.value, strings.Join(d, "\n"))
		}
	}
}
