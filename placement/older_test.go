package placement

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// written are the requests by which earlier versions made the databases of testdata/databases.
var written = []string{
	`POST /resource_providers {"name":"host-a","uuid":"11111111-1111-4111-8111-111111111111"}`,
	`POST /resource_providers {"name":"host-b","uuid":"22222222-2222-4222-8222-222222222222"}`,
	`POST /resource_providers {"name":"host-b_0000:3b:00.0","uuid":"33333333-3333-4333-8333-333333333333","parent_provider_uuid":"22222222-2222-4222-8222-222222222222"}`,
	`PUT /resource_classes/CUSTOM_PCI_15B3_101E `,
	`PUT /traits/CUSTOM_FAST `,
	`PUT /resource_providers/11111111-1111-4111-8111-111111111111/inventories {"resource_provider_generation":0,"inventories":{"VCPU":{"total":8,"allocation_ratio":4.0},"MEMORY_MB":{"total":4096,"reserved":512}}}`,
	`PUT /resource_providers/22222222-2222-4222-8222-222222222222/inventories {"resource_provider_generation":0,"inventories":{"VCPU":{"total":16},"MEMORY_MB":{"total":8192}}}`,
	`PUT /resource_providers/33333333-3333-4333-8333-333333333333/inventories {"resource_provider_generation":0,"inventories":{"CUSTOM_PCI_15B3_101E":{"total":8}}}`,
	`PUT /resource_providers/22222222-2222-4222-8222-222222222222/traits {"resource_provider_generation":1,"traits":["CUSTOM_FAST","COMPUTE_STATUS_DISABLED"]}`,
	`PUT /resource_providers/11111111-1111-4111-8111-111111111111/aggregates {"resource_provider_generation":1,"aggregates":["5f2e3c1a-0b5e-4a53-9a51-0d6d1c0f7a11"]}`,
	`POST /allocations {"aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa":{"allocations":{"22222222-2222-4222-8222-222222222222":{"resources":{"VCPU":2,"MEMORY_MB":1024}},"33333333-3333-4333-8333-333333333333":{"resources":{"CUSTOM_PCI_15B3_101E":1}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"INSTANCE"},` +
		`"bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb":{"allocations":{"11111111-1111-4111-8111-111111111111":{"resources":{"VCPU":2,"MEMORY_MB":1024}}},"project_id":"p","user_id":"u","consumer_generation":null,"consumer_type":"MIGRATION"}}`,
}

// asked is all that can be read of them.
var asked = []string{
	"GET /resource_providers ", "GET /resource_classes ", "GET /traits?name=startswith:CUSTOM_ ",
	"GET /allocations/aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa ", "GET /allocations/bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb ",
	"GET /resource_providers/11111111-1111-4111-8111-111111111111/inventories ", "GET /resource_providers/22222222-2222-4222-8222-222222222222/inventories ",
	"GET /resource_providers/33333333-3333-4333-8333-333333333333/inventories ", "GET /resource_providers/11111111-1111-4111-8111-111111111111/usages ",
	"GET /resource_providers/22222222-2222-4222-8222-222222222222/traits ", "GET /resource_providers/11111111-1111-4111-8111-111111111111/aggregates ",
	"GET /usages?project_id=p ",
}

// saysTo is what a server says to a request, "METHOD PATH BODY".
func saysTo(t *testing.T, s *Server, line string) string {
	t.Helper()
	part := strings.SplitN(line, " ", 3)
	var body io.Reader
	if part[2] != "" {
		body = strings.NewReader(part[2])
	}
	r := httptest.NewRequest(part[0], part[1], body)
	r.Header.Set("X-Auth-Token", "admin")
	r.Header.Set("OpenStack-API-Version", "placement 1.39")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code >= http.StatusBadRequest {
		t.Fatalf("%s: %d %s", line, w.Code, w.Body)
	}
	return w.Body.String()
}

// TestNew_ReadsTheDatabaseOfEveryOlderBerth opens databases that earlier versions wrote, and wants
// of them what a server answers to which the same was said today.
func TestNew_ReadsTheDatabaseOfEveryOlderBerth(t *testing.T) {
	today := memory(t)
	for _, line := range written {
		saysTo(t, today, line)
	}
	files, err := filepath.Glob("testdata/databases/*.db.gz")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d databases, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			packed, err := os.Open(file)
			must(t, err)
			defer packed.Close()
			z, err := gzip.NewReader(packed)
			must(t, err)
			data, err := io.ReadAll(z)
			path := filepath.Join(t.TempDir(), "placement.db")
			must(t, errors.Join(err, os.WriteFile(path, data, 0o600)))
			s := on(t, path)
			for _, line := range asked {
				same(t, saysTo(t, today, line), saysTo(t, s, line))
			}
		})
	}
}
