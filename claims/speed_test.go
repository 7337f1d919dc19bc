package claims_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/internal/store"
	"berth/migration"
	"berth/topology"
)

// large is a host of 8 cells of 48 cores with two threads: 768 CPUs, of which
// one core of each cell is shared, 64 GiB of huge pages a cell, and 256 virtual
// functions.
func large() claims.Capacity {
	c := claims.Capacity{Total: topology.Resources{VCPUs: 16, PCPUs: 752, MemoryMB: 8 * 96 << 10, DiskGB: 1 << 20}}
	for id := range 8 {
		socket := id / 4
		cell := fit.Cell{ID: topology.CellID(id), Socket: &socket, MemoryMB: 96 << 10, Pages: []fit.Pages{
			{Size: topology.PageSize4K, Total: 32 << 18}, {Size: topology.PageSize2M, Total: 32 << 10}, {Size: topology.PageSize1G},
		}}
		var all []int
		for core := range 48 {
			cpu := 48*id + core
			cell.Cores = append(cell.Cores, topology.NewCPUSet(cpu, cpu+384))
			if core > 0 {
				all = append(all, cpu, cpu+384)
			} else {
				cell.Shared = topology.NewCPUSet(cpu, cpu+384)
			}
		}
		cell.Dedicated = topology.NewCPUSet(all...)
		for first := 0; first < 48; first += 8 { // eight cores share a last-level cache
			var cache topology.CPUSet
			for _, core := range cell.Cores[first : first+8] {
				cache = cache.Union(core)
			}
			cell.Caches = append(cell.Caches, cache)
		}
		for bus := range uint8(4) {
			c.Devices = append(c.Devices, virtual(uint8(id)<<4|bus, topology.CellID(id), 8)...)
		}
		c.Cells = append(c.Cells, cell)
	}
	return c
}

// virtual are the virtual functions of a card whose physical one guests never
// get.
func virtual(bus uint8, at topology.CellID, n uint8) []pci.Device {
	var out []pci.Device
	for f := range n {
		out = append(out, pci.Device{
			Address: topology.PCIAddress{Bus: bus, Device: 1, Function: f}, Vendor: "8086", Product: "1565", Type: topology.PCITypeVF, Cell: at,
			Parent: &topology.PCIAddress{Bus: bus}, Tags: map[string]string{"physical_network": "net"}, Managed: true,
		})
	}
	return out
}

// crowded is that host with 500 guests of a pinned vCPU each, on a disk.
func crowded(b *testing.B) (*claims.Tracker, *store.DB) {
	tracker, db := onDisk(b, filepath.Join(b.TempDir(), "berth.db"), 1)
	tracker.SetCapacity(large())
	var setup sync.WaitGroup
	for i := range 500 {
		setup.Go(func() {
			if _, err := tracker.Claim(ctx, request(instanceOwner(fmt.Sprint("held-", i)), pinned(huge, 1))); err != nil {
				b.Error(err)
			}
			if _, err := tracker.Bind(ctx, instanceOwner(fmt.Sprint("held-", i))); err != nil {
				b.Error(err)
			}
		})
	}
	setup.Wait()
	return tracker, db
}

// spent is the CPU time of this process so far, the kernel's on its behalf
// included: unlike the clock it does not count others' work on the same machine.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTracker_PinnedClaim makes durable claims of a pinned vCPU beside 500
// guests. The bounds are 0.3 ms of CPU for each, and 5,000 a second from 32
// callers.
func BenchmarkTracker_PinnedClaim(b *testing.B) {
	const round = 224 // what is free, and then given back apart from the measuring
	for _, tt := range []struct {
		callers int
		devices []topology.PCIRequest
	}{{1, nil}, {32, nil}, {1, vfs(1)}, {32, vfs(1)}} {
		b.Run(fmt.Sprintf("callers=%d,devices=%d", tt.callers, len(tt.devices)), func(b *testing.B) {
			callers := tt.callers
			tracker, db := crowded(b)
			defer db.Close()
			var cpu, wall time.Duration
			b.ResetTimer()
			b.StopTimer()
			for done := 0; done < b.N; done += round {
				n := min(round, b.N-done)
				each := func(f func(owner claims.Owner) error) {
					var wg sync.WaitGroup
					for c := range callers {
						wg.Go(func() {
							for i := c; i < n; i += callers {
								if err := f(instanceOwner(fmt.Sprint("new-", i))); err != nil {
									b.Error(err)
								}
							}
						})
					}
					wg.Wait()
				}
				before, start := spent(), time.Now()
				b.StartTimer()
				each(func(o claims.Owner) error {
					_, err := tracker.Claim(ctx, request(o, pinned(huge, 1), tt.devices...))
					return err
				})
				b.StopTimer()
				cpu, wall = cpu+spent()-before, wall+time.Since(start)
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { _ = tracker.Abort(ctx, migration.Ref{Instance: fmt.Sprint("new-", i)}) })
				}
				wg.Wait()
			}
			b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/claim")
			b.ReportMetric(float64(b.N)/wall.Seconds(), "claims/s")
		})
	}
}

// BenchmarkTracker_Audit500 adds up the claims of 500 guests anew; the bound is
// 50 ms.
func BenchmarkTracker_Audit500(b *testing.B) {
	tracker, db := crowded(b)
	defer db.Close()
	for b.Loop() {
		if a := tracker.Audit(); a.Claims != 500 || !a.Agrees() {
			b.Fatalf("audit %+v", a)
		}
	}
}
