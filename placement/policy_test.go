package placement

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The default rules are compared with the real service's where that runs
// (placementtest.Callers); these are the others.
func TestPolicy_SaysWhoMayReadAndWrite(t *testing.T) {
	callers := []map[string]string{
		{"X-Auth-Token": "admin"},
		{"X-Auth-Token": "u:p", "X-Roles": "admin,member,reader"},
		{"X-Auth-Token": "u:p", "X-Roles": "member,reader"},
		{"X-Auth-Token": "u", "X-Roles": "admin,member,reader", "OpenStack-System-Scope": "all"},
		{"X-Auth-Token": "u", "X-Roles": "reader", "OpenStack-System-Scope": "all"},
		{"X-Auth-Token": "u"},
		{},
	}
	requests := []struct{ method, path string }{
		{"GET", "/resource_providers"},
		{"PUT", "/traits/CUSTOM_A"},
		{"GET", "/usages?project_id=p"},
		{"GET", "/usages?project_id=q"},
	}
	for policy, want := range map[string][][]int{ // by caller, by request
		PolicyDefault: {
			{200, 201, 200, 200}, {200, 204, 200, 200}, {403, 403, 200, 403}, {200, 204, 200, 200}, {200, 403, 200, 200}, {403, 403, 403, 403}, {401, 401, 401, 401},
		},
		PolicyScoped: {
			{403, 403, 403, 403}, {403, 403, 200, 403}, {403, 403, 200, 403}, {200, 201, 200, 200}, {200, 403, 200, 200}, {403, 403, 403, 403}, {401, 401, 401, 401},
		},
		PolicyOpen: {
			{200, 201, 200, 200}, {200, 204, 200, 200}, {200, 204, 200, 200}, {200, 204, 200, 200}, {200, 204, 200, 200}, {200, 204, 200, 200}, {401, 401, 401, 401},
		},
	} {
		t.Run(policy, func(t *testing.T) {
			s, err := New(Options{Listen: "127.0.0.1:0", Policy: policy})
			must(t, err)
			got := make([][]int, len(callers))
			for i, headers := range callers {
				for _, r := range requests {
					w := answerTo(s, r.method, r.path, headers)
					got[i] = append(got[i], w.Code)
					// Scoped rules look at the scope first, and name nothing but the rule then.
					if w.Code == 403 && policy == PolicyScoped && headers["OpenStack-System-Scope"] == "" && !strings.HasPrefix(r.path, "/usages") &&
						strings.Contains(w.Body.String(), "Policy does not allow") {
						t.Errorf("%v %s %s: %s", headers, r.method, r.path, w.Body)
					}
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestPolicy_OpenIsNotForTheBackup(t *testing.T) {
	s, err := New(Options{Listen: "127.0.0.1:0", Policy: PolicyOpen})
	must(t, err)
	if w := answerTo(s, "GET", backupPath, map[string]string{"X-Auth-Token": "u"}); w.Code != http.StatusForbidden {
		t.Errorf("a user's backup: %d", w.Code)
	}
}

func answerTo(s *Server, method, path string, headers map[string]string) *httptest.ResponseRecorder {
	return answerWith(s, method, path, headers, "")
}

// answerWith is the server's answer to a request at the newest microversion.
func answerWith(s *Server, method, path string, headers map[string]string, body string) *httptest.ResponseRecorder {
	w, q := httptest.NewRecorder(), httptest.NewRequest(method, path, strings.NewReader(body))
	for k, v := range headers {
		q.Header.Set(k, v)
	}
	q.Header.Set("OpenStack-API-Version", "placement 1.39")
	s.ServeHTTP(w, q)
	return w
}
