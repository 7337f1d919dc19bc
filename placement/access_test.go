package placement

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/runtime"
	pc "berth/placementclient"
)

// letIn is Beside that answers whoever gets there.
type letIn struct{ recorded }

func (*letIn) ServeHTTP(http.ResponseWriter, *http.Request) {}

// TestMTLS_EveryRouteAsEachVisitor asks every route over real TLS about the provider and the consumer
// of host-a: as a caller without a certificate, a reader, host-x with a good certificate, host-a and an operator. It is
// the second table of docs/threat-model.md.
func TestMTLS_EveryRouteAsEachVisitor(t *testing.T) {
	site := newSite(t)
	site.issue(t, "host-x")
	must(t, os.Mkdir(filepath.Join(site.dir, "carol"), 0o700))
	_, err := site.authority.IssueReader(filepath.Join(site.dir, "carol"), "carol", time.Now())
	must(t, err)
	o := site.options()
	o.Beside = func(context.Context, Store, runtime.Runtime, *slog.Logger) (Beside, error) { return &letIn{}, nil }
	s := running(t, o)
	ctx := t.Context()
	a := site.client(t, s.Addr(), "host-a")
	_, err = a.CreateProvider(ctx, pc.NewProvider{UUID: id(1), Name: "host-a"})
	must(t, err)
	_, err = a.PutInventories(ctx, id(1), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}})
	must(t, err)
	must(t, a.PutAllocations(ctx, id(100), holding(id(1), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil)))

	// What a body must name for the route to concern host-a; the rest is in the path.
	wants := `{"allocations":{"` + id(1) + `":{"resources":{"VCPU":1}}}}`
	bodies := map[string]string{
		"POST /resource_providers":       `{"name":"host-a-numa0","parent_provider_uuid":"` + id(1) + `"}`,
		"PUT /resource_providers/{uuid}": `{"name":"host-a"}`,
		"POST /allocations":              `{"` + id(100) + `":` + wants + `}`,
		"PUT /allocations/{consumer}":    wants,
		"POST /reshaper":                 `{"inventories":{"` + id(1) + `":{"inventories":{},"resource_provider_generation":1}},"allocations":{}}`,
	}
	// Names that every host may make, and no host takes away.
	named := map[string]bool{"POST /resource_classes": true, "PUT /resource_classes/{name}": true, "PUT /traits/{name}": true}
	type ask struct {
		name, verb, path string
		write            bool
	}
	var asks []ask
	path := strings.NewReplacer("{uuid}", id(1), "{consumer}", id(100), "{name}", "CUSTOM_A", "{class}", "VCPU")
	for _, r := range routes() {
		for _, m := range r.methods {
			asks = append(asks, ask{m.verb + " " + r.path, m.verb, path.Replace(r.path), m.write})
		}
	}
	asks = append(asks, ask{"backup", http.MethodGet, backupPath, true}, ask{"beside", http.MethodPost, BesidePath + "v1/get", false})
	for _, who := range []string{"none", "carol", "host-x", "host-a", "op"} {
		config := &tls.Config{RootCAs: site.pool}
		if who != "none" {
			name := map[string]string{"op": "operator", "carol": "operator"}[who]
			if name == "" {
				name = "host"
			}
			pair, err := tls.LoadX509KeyPair(filepath.Join(site.dir, who, name+".crt"), filepath.Join(site.dir, who, name+".key"))
			must(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
		tr := &http.Transport{TLSClientConfig: config}
		for _, q := range asks {
			want := who == "op"
			switch takes := q.verb == http.MethodDelete && (strings.HasPrefix(q.path, "/traits/") || strings.HasPrefix(q.path, "/resource_classes/")); {
			case who == "host-x":
				want = !q.write || named[q.name]
			case who == "host-a":
				want = q.name != "backup" && !takes
			}
			req, err := http.NewRequestWithContext(ctx, q.verb, "https://"+s.Addr()+q.path, strings.NewReader(bodies[q.name]))
			must(t, err)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Accept", "application/json")
			req.Header.Set("Openstack-Api-Version", "placement 1.39")
			req.Header.Set("X-Auth-Token", "admin") // believed of nobody
			resp, err := tr.RoundTrip(req)
			if err != nil {
				if who != "none" {
					t.Errorf("%s as %s: %v", q.name, who, err)
				}
				continue
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			must(t, err)
			if may := resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusUnauthorized; may != want || resp.StatusCode >= 500 {
				t.Errorf("%s as %s: %d %s, want it let in: %v", q.name, who, resp.StatusCode, text, want)
			}
		}
		tr.CloseIdleConnections()
	}
}
