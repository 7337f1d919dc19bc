package placementtest

import (
	"fmt"
	"strings"
	"testing"
)

// caller is who sends a request, in the headers that noauth2 believes.
type caller struct {
	name    string
	headers map[string]string
}

func callers() []caller {
	const token, roles, scope, project = "X-Auth-Token", "X-Roles", "OpenStack-System-Scope", "X-Project-Id"
	return []caller{
		{"an admin of the system", map[string]string{token: "u", roles: "admin,member,reader", scope: "all"}},
		{"a reader of the system", map[string]string{token: "u", roles: "reader", scope: "all"}},
		{"an admin of a project", map[string]string{token: "u", roles: "Admin, member, reader", project: "p"}},
		{"an admin who reads nothing", map[string]string{token: "admin"}},
		{"a reader of a project", map[string]string{token: "u:p", roles: "reader"}},
		{"a member of another project", map[string]string{token: "u:p", roles: "member,reader", project: "q"}},
		{"a reader of one domain", map[string]string{token: "u:p", roles: "reader", scope: "some"}},
		{"a user without roles", map[string]string{token: "u:p"}},
		{"a user whose name is a project's", map[string]string{token: "p", roles: "reader"}},
		{"nobody", nil},
	}
}

// Callers sends every kind of request as every kind of caller and compares the
// answers: who may do what depends on the rules in use, which must be the same. Both
// servers must be empty. It gives how many answers were compared.
func Callers(t *testing.T, ours, theirs Server) int {
	t.Helper()
	rp := "/resource_providers/" + id(1)
	compared := 0
	send := func(c caller, method, path, body string) {
		e := request39(method, path)
		e.Request.Auth = false
		for k, v := range c.headers {
			e.Request.Headers[k] = v
		}
		if e.Request.Body = raw(body); body != "" {
			e.Request.Headers["Content-Type"] = "application/json"
		}
		if d := compare(t, &e, ours, theirs); len(d) > 0 {
			t.Errorf("%s: %s %s %s\n%s", c.name, method, path, body, strings.Join(d, "\n"))
		}
		compared++
	}
	admin := callers()[0]
	send(admin, "POST", "/resource_providers", fmt.Sprintf(`{"name":"one","uuid":%q}`, id(1)))
	send(admin, "PUT", "/traits/CUSTOM_KEPT", "")
	for _, r := range []struct{ method, path, body string }{
		{"GET", "/", ""},
		{"GET", "/nowhere", ""},
		{"GET", "/resource_providers", ""},
		{"POST", "/resource_providers", `{"name":"one"}`},
		{"GET", rp, ""},
		{"PUT", rp, `{"name":"one"}`},
		{"DELETE", "/resource_providers/" + id(2), ""},
		{"GET", rp + "/inventories", ""},
		{"PUT", rp + "/inventories", `{"resource_provider_generation":77,"inventories":{}}`},
		{"POST", rp + "/inventories", `{"resource_class":"CUSTOM_NOT_THERE","total":1}`},
		{"DELETE", rp + "/inventories", ""},
		{"GET", rp + "/inventories/VCPU", ""},
		{"PUT", rp + "/inventories/VCPU", `{"resource_provider_generation":77,"total":1}`},
		{"DELETE", rp + "/inventories/VCPU", ""},
		{"GET", rp + "/aggregates", ""},
		{"PUT", rp + "/aggregates", `{"resource_provider_generation":77,"aggregates":[]}`},
		{"GET", rp + "/traits", ""},
		{"PUT", rp + "/traits", `{"resource_provider_generation":77,"traits":[]}`},
		{"DELETE", rp + "/traits", ""},
		{"GET", rp + "/usages", ""},
		{"GET", rp + "/allocations", ""},
		{"GET", "/traits?name=in:CUSTOM_KEPT", ""},
		{"GET", "/traits/CUSTOM_KEPT", ""},
		{"PUT", "/traits/CUSTOM_KEPT", ""},
		{"DELETE", "/traits/CUSTOM_NOT_THERE", ""},
		{"GET", "/resource_classes", ""},
		{"POST", "/resource_classes", `{"name":"nope"}`},
		{"GET", "/resource_classes/VCPU", ""},
		{"PUT", "/resource_classes/VCPU", ""},
		{"DELETE", "/resource_classes/VCPU", ""},
		{"GET", "/allocation_candidates?resources=VCPU:1", ""},
		{"GET", "/allocations/" + id(900), ""},
		{"PUT", "/allocations/" + id(900), `{}`},
		{"POST", "/allocations", `{}`},
		{"DELETE", "/allocations/" + id(900), ""},
		{"GET", "/usages?project_id=p", ""},
		{"GET", "/usages?project_id=q&user_id=u", ""},
		{"POST", "/reshaper", `{}`},
	} {
		for _, c := range callers() {
			send(c, r.method, r.path, r.body)
		}
	}
	return compared
}
