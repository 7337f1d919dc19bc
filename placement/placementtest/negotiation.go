package placementtest

import (
	"strings"
	"testing"
)

// OddHeaders compares the answers to requests whose headers ask for microversions
// and media types in every way, and to methods and queries that are not there.
// Nothing is changed by them. Nobody asks for text/html, in which OpenStack's tells
// a browser of an error and ours does not.
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
