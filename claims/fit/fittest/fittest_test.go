package fittest_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/claims/fit"
	"berth/claims/fit/fittest"
	"berth/topology"
)

// show writes a question so that it can be asked again.
func show(r fit.Request, m *fit.Machine) string {
	text, err := json.MarshalIndent(struct {
		Request fit.Request
		Machine *fit.Machine
	}{r, m}, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// judge holds an answer against the checker.
func judge(r fit.Request, m *fit.Machine, a fit.Answer) error {
	switch {
	case a.Undecided:
		return fmt.Errorf("undecided after %d steps", a.Steps)
	case a.Fits():
		return fittest.Check(m, r, a.Placement)
	}
	for _, reason := range a.Reasons {
		if reason.Code == "" || reason.Message == "" {
			return fmt.Errorf("reason without words: %+v", reason)
		}
	}
	return nil
}

func TestPlace_EveryPlacementIsValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom(fittest.Classes).Draw(t, "class")
		cells := rapid.SampledFrom([]int{1, 2, 4, 8, 16, 64}).Draw(t, "cells")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r, m := fittest.Random(rng, class, cells)
		if err := judge(r, m, fit.Place(r, m)); err != nil {
			t.Fatalf("%v\n%s", err, show(r, m))
		}
	})
}

// tiny makes machines small enough to try everything on.
func tiny(t *rapid.T) (fit.Request, *fit.Machine) {
	m := &fit.Machine{}
	if rapid.Bool().Draw(t, "limits") {
		m.Limits = &fit.Limits{
			CPURatio: rapid.SampledFrom([]float64{0.5, 1, 1.5, 2}).Draw(t, "cpu ratio"),
			RAMRatio: rapid.SampledFrom([]float64{0.9, 1, 1.5}).Draw(t, "ram ratio"),
		}
	}
	hosts := rapid.IntRange(1, 4).Draw(t, "host cells")
	for h := range hosts {
		c := fit.Cell{ID: topology.CellID(h * 2), MemoryMB: rapid.Int64Range(0, 8).Draw(t, "memory") * 2}
		if rapid.IntRange(0, 5).Draw(t, "socket known") > 0 {
			socket := rapid.IntRange(0, 1).Draw(t, "socket")
			c.Socket = &socket
		}
		threads, next := rapid.IntRange(1, 3).Draw(t, "threads"), h*10
		for range rapid.IntRange(0, 3).Draw(t, "cores") {
			var core topology.CPUSet
			for range rapid.IntRange(1, threads).Draw(t, "threads of the core") {
				core = append(core, next)
				next++
			}
			if rapid.IntRange(0, 7).Draw(t, "siblings told") > 0 {
				c.Cores = append(c.Cores, core)
			}
			c.Dedicated = c.Dedicated.Union(core)
		}
		c.Shared = c.Dedicated
		if rapid.IntRange(0, 2).Draw(t, "sets apart") == 0 {
			c.Shared = topology.NewCPUSet(rapid.SliceOfN(rapid.IntRange(h*10+7, h*10+9), 0, 3).Draw(t, "shared")...)
		}
		for _, cpu := range c.Dedicated {
			if rapid.IntRange(0, 5).Draw(t, "taken") == 0 {
				c.Pinned = append(c.Pinned, cpu)
			}
		}
		c.MemoryUsedMB = rapid.Int64Range(0, c.MemoryMB/2).Draw(t, "memory used")
		c.SharedUsed = rapid.IntRange(0, 2).Draw(t, "shared used")
		for _, size := range []topology.PageSize{4 << 10, 1 << 20, 2 << 20} {
			if rapid.Bool().Draw(t, "has pages") {
				total := rapid.Int64Range(0, 12<<20/int64(size)).Draw(t, "pages")
				c.Pages = append(c.Pages, fit.Pages{Size: size, Total: total, Used: rapid.Int64Range(0, total/2).Draw(t, "pages used"), Reserved: rapid.Int64Range(0, 1).Draw(t, "reserved")})
			}
		}
		if rapid.Bool().Draw(t, "network") {
			c.Network = &fit.Network{Tunneled: rapid.Bool().Draw(t, "tunneled")}
			for _, name := range []string{"a", "b"} {
				if rapid.Bool().Draw(t, name) {
					c.Network.Physical = append(c.Network.Physical, name)
				}
			}
		}
		m.Cells = append(m.Cells, c)
	}
	if m.Limits != nil && rapid.Bool().Draw(t, "networks") {
		m.Limits.Network = &fit.Network{Physical: rapid.SampledFrom([][]string{nil, {"a"}, {"a", "b"}, {"c"}}).Draw(t, "physnets"), Tunneled: rapid.Bool().Draw(t, "tunneled")}
	}
	var r fit.Request
	if rapid.IntRange(0, 9).Draw(t, "topology") > 0 {
		r.Topology = tinyGuest(t, hosts)
	}
	tinyDevices(t, m, &r)
	return r, m
}

func tinyGuest(t *rapid.T, hosts int) *topology.GuestTopology {
	policy := rapid.SampledFrom([]topology.CPUPolicy{topology.CPUPolicyNone, topology.CPUPolicyShared, topology.CPUPolicyDedicated, topology.CPUPolicyDedicated, topology.CPUPolicyMixed}).Draw(t, "policy")
	guest, threads := &topology.GuestTopology{}, topology.ThreadPolicyNone
	if policy.Pins() {
		threads = rapid.SampledFrom([]topology.ThreadPolicy{topology.ThreadPolicyNone, topology.ThreadPolicyPrefer, topology.ThreadPolicyIsolate, topology.ThreadPolicyRequire}).Draw(t, "threads")
		guest.Emulator = rapid.SampledFrom([]topology.EmulatorPolicy{topology.EmulatorNone, topology.EmulatorShare, topology.EmulatorIsolate}).Draw(t, "emulator")
	}
	next := 0
	for range rapid.IntRange(1, hosts/2+1).Draw(t, "guest cells") {
		c := topology.GuestCell{
			MemoryMB: rapid.Int64Range(1, 5).Draw(t, "memory"), CPUPolicy: policy, ThreadPolicy: threads,
			PageSize: rapid.SampledFrom([]topology.PageRequest{0, 0, -1, -2, -3, 1 << 20, 2 << 20}).Draw(t, "page size"),
		}
		for range rapid.IntRange(1, 3).Draw(t, "vcpus") {
			if policy == topology.CPUPolicyDedicated || policy == topology.CPUPolicyMixed && rapid.Bool().Draw(t, "dedicated") {
				c.DedicatedVCPUs = append(c.DedicatedVCPUs, next)
			} else {
				c.SharedVCPUs = append(c.SharedVCPUs, next)
			}
			next++
		}
		guest.Cells = append(guest.Cells, c)
	}
	return guest
}

func tinyDevices(t *rapid.T, m *fit.Machine, r *fit.Request) {
	types := []topology.PCIType{topology.PCITypeFunction, topology.PCITypeVF, topology.PCITypePF}
	for range rapid.IntRange(0, 4).Draw(t, "pools") {
		p := fit.Pool{
			Vendor: "8086", Product: rapid.SampledFrom([]string{"10ed", "10fb"}).Draw(t, "product"), Type: rapid.SampledFrom(types).Draw(t, "type"),
			Cell: topology.CellID(rapid.IntRange(-1, 2*len(m.Cells)).Draw(t, "cell")), Count: rapid.IntRange(0, 3).Draw(t, "count"),
		}
		if rapid.Bool().Draw(t, "tagged") {
			p.Tags = map[string]string{"physical_network": "A"}
		}
		m.Pools = append(m.Pools, p)
	}
	for i := range m.Pools {
		if len(m.Pools) > 1 && rapid.IntRange(0, 4).Draw(t, "excludes") == 0 {
			if other := rapid.IntRange(0, len(m.Pools)-1).Draw(t, "pool"); other != i {
				m.Pools[i].Excludes = append(m.Pools[i].Excludes, other)
				m.Pools[other].Excludes = append(m.Pools[other].Excludes, i)
			}
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "requests") {
		q := topology.PCIRequest{
			ID: strconv.Itoa(i), Count: rapid.IntRange(0, 3).Draw(t, "want"),
			Affinity: rapid.SampledFrom([]topology.PCIAffinity{"", topology.AffinityLegacy, topology.AffinityPreferred, topology.AffinityRequired, topology.AffinitySocket}).Draw(t, "affinity"),
		}
		for range rapid.IntRange(1, 2).Draw(t, "specs") {
			s := topology.PCISpec{
				Product: rapid.SampledFrom([]string{"", "10ED", "10fb"}).Draw(t, "spec product"),
				Type:    rapid.SampledFrom([]topology.PCIType{"", topology.PCITypeVF, topology.PCITypePF}).Draw(t, "spec type"),
			}
			if rapid.IntRange(0, 3).Draw(t, "spec tagged") == 0 {
				s.Tags = map[string]string{"physical_network": "a"}
			}
			q.Specs = append(q.Specs, s)
		}
		r.PCI = append(r.PCI, q)
	}
}

func TestPlace_IsExact(t *testing.T) {
	asked, fits := 0, 0
	defer func() { t.Logf("%d of %d fit", fits, asked) }()
	rapid.Check(t, func(t *rapid.T) {
		r, m := tiny(t)
		a := fit.Place(r, m)
		asked++
		if a.Fits() {
			fits++
		}
		if err := judge(r, m, a); err != nil {
			t.Fatalf("%v\n%s", err, show(r, m))
		}
		if want := fittest.Possible(m, r); a.Fits() != want {
			t.Fatalf("fits %v, want %v: %+v\n%s", a.Fits(), want, a.Reasons, show(r, m))
		}
	})
}

// flood asks n random requests of every size and gives the slowest answer.
func flood(tb testing.TB, n int, seed uint64) (slowest time.Duration) {
	fits := 0
	for i := range n {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		r, m := fittest.Random(rng, fittest.Classes[i%len(fittest.Classes)], 64)
		start := time.Now()
		a := fit.Place(r, m)
		took := time.Since(start)
		// The clock counts what others do on the same machine: a slow one is timed anew.
		for again := 0; again < 3 && took > 10*time.Millisecond; again++ {
			start = time.Now()
			fit.Place(r, m)
			took = min(took, time.Since(start))
		}
		slowest = max(slowest, took)
		if err := judge(r, m, a); err != nil {
			tb.Fatalf("seed %d, request %d (%s): %v", seed, i, fittest.Classes[i%len(fittest.Classes)], err)
		}
		if a.Fits() {
			fits++
		}
	}
	tb.Logf("%d requests, %d fit, slowest %v", n, fits, slowest)
	if fits < n/20 || fits > n-n/20 {
		tb.Errorf("%d of %d fit: the requests are all of one kind", fits, n)
	}
	return slowest
}

// TestPlace_DecidesRandomRequests is the short form of BenchmarkPlace_Flood.
func TestPlace_DecidesRandomRequests(t *testing.T) {
	n := 3000
	if text := os.Getenv("BERTH_FIT_REQUESTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	flood(t, n, 1)
}

// BenchmarkPlace_Flood asks 100,000 random requests, all of which must be
// decided, none in more than 100 ms.
func BenchmarkPlace_Flood(b *testing.B) {
	const requests, most = 100_000, 100 * time.Millisecond
	for i := 0; b.Loop(); i++ {
		slowest := flood(b, requests, uint64(2+i))
		b.ReportMetric(float64(slowest.Microseconds())/1000, "slowest-ms")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests*(i+1)), "ns/request")
		if slowest > most {
			b.Errorf("slowest %v, want at most %v", slowest, most)
		}
	}
}
