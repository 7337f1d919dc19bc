package placement

import (
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	pc "berth/placementclient"
)

// filled is a server with n flat hosts.
func filled(b *testing.B, db string, n int) (*pc.Client, *Server) {
	b.Helper()
	s, err := New(Options{Listen: "127.0.0.1:0", DB: db})
	if err != nil {
		b.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	c, err := pc.New(pc.Config{URL: h.URL, Token: "admin"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); h.Close(); _ = s.Close() })
	for i := range n {
		if _, err := c.CreateProvider(b.Context(), pc.NewProvider{UUID: id(i), Name: fmt.Sprint("host", i)}); err != nil {
			b.Fatal(err)
		}
		if _, err := c.PutInventories(b.Context(), id(i), pc.Inventories{Inventories: map[string]pc.Inventory{
			pc.ClassVCPU: {Total: 1 << 20}, pc.ClassMemoryMB: {Total: 1 << 30}, pc.ClassDiskGB: {Total: 1 << 20}}}); err != nil {
			b.Fatal(err)
		}
	}
	return c, s
}

func BenchmarkCandidates1000Hosts(b *testing.B) {
	c, _ := filled(b, "", 1000)
	ask := pc.CandidateRequest{RequestGroup: pc.RequestGroup{Resources: pc.Resources{pc.ClassVCPU: 2, pc.ClassMemoryMB: 2048, pc.ClassDiskGB: 20}}}
	for b.Loop() {
		got, err := c.AllocationCandidates(b.Context(), ask)
		if err != nil || len(got.Candidates) != 1000 {
			b.Fatalf("%d candidates, %v", len(got.Candidates), err)
		}
	}
}

// BenchmarkClaims is 8 clients at a time, each claim durable before its answer.
func BenchmarkClaims(b *testing.B) {
	c, _ := filled(b, b.TempDir()+"/placement.db", 1)
	var n atomic.Int64
	b.SetParallelism(8)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			consumer := id(1000 + int(n.Add(1)))
			if err := c.PutAllocations(b.Context(), consumer, holding(id(0), pc.Resources{pc.ClassVCPU: 1}, pc.ConsumerInstance, nil)); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// The benchmarks below are of the server alone, without network and client: the
// processor time of a request.

func answered(b *testing.B, s *Server, method, path string, body func(i int) (string, string), want int) {
	admin := map[string]string{"X-Auth-Token": "admin", "Content-Type": "application/json"}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		suffix, text := "", ""
		if body != nil {
			suffix, text = body(i)
		}
		if w := answerWith(s, method, path+suffix, admin, text); w.Code != want {
			b.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
}

func BenchmarkServer_Claim(b *testing.B) {
	_, s := filled(b, "", 100)
	answered(b, s, "PUT", "/allocations/", func(i int) (string, string) {
		return id(1000 + i), fmt.Sprintf(`{"allocations":{%q:{"resources":{"VCPU":2,"MEMORY_MB":2048,"DISK_GB":20}}},"project_id":"p","user_id":"u",`+
			`"consumer_generation":null,"consumer_type":"INSTANCE"}`, id(i%100))
	}, 204)
}

func BenchmarkServer_Candidates(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, s := filled(b, "", n)
			answered(b, s, "GET", "/allocation_candidates?resources=VCPU:2,MEMORY_MB:2048,DISK_GB:20", nil, 200)
		})
	}
}

func BenchmarkServer_TreeOfOne(b *testing.B) {
	_, s := filled(b, "", 1000)
	answered(b, s, "GET", "/resource_providers?in_tree="+id(3), nil, 200)
}

// Each host has two cells, each with processors, memory and devices below it.
func BenchmarkServer_CandidatesOfNestedHosts(b *testing.B) {
	c, s := filled(b, "", 0)
	ctx := b.Context()
	make := func(n, parent int, inv map[string]pc.Inventory) {
		p := pc.NewProvider{UUID: id(n), Name: fmt.Sprint("p", n)}
		if parent != n {
			p.ParentProviderUUID = id(parent)
		}
		if _, err := c.CreateProvider(ctx, p); err != nil {
			b.Fatal(err)
		}
		if _, err := c.PutInventories(ctx, id(n), pc.Inventories{Inventories: inv}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 1000 {
		root := 10 * i
		make(root, root, map[string]pc.Inventory{pc.ClassDiskGB: {Total: 1000}})
		for k := range 2 {
			make(root+1+k, root, map[string]pc.Inventory{pc.ClassVCPU: {Total: 64}, pc.ClassMemoryMB: {Total: 64000}})
			make(root+3+k, root+1+k, map[string]pc.Inventory{"PCI_DEVICE": {Total: 8}})
		}
	}
	answered(b, s, "GET", "/allocation_candidates?resources=DISK_GB:20&resources_N=VCPU:2,MEMORY_MB:2048&resources_P=PCI_DEVICE:1&same_subtree=_N,_P&group_policy=none", nil, 200)
}
