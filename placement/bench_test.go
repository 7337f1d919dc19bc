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
