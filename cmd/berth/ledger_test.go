package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rogpeppe/go-internal/testscript"

	"berth/claims"
	"berth/claims/fit"
	"berth/internal/runtime"
	"berth/internal/store"
	"berth/topology"
)

// writeLedger makes the ledger of an agent of script claims.txtar: ledger DIR.
// Its host has two cells, CPUs 1 and 3 dedicated, and 64 huge pages in cell 1.
func writeLedger(ts *testscript.TestScript, _ bool, args []string) {
	dir, ctx := ts.MkAbs(args[0]), context.Background()
	ts.Check(os.MkdirAll(dir, 0o700))
	db, err := store.Open(filepath.Join(dir, "berth.db"), store.Options{Logger: slog.New(slog.DiscardHandler)})
	ts.Check(err)
	defer func() { ts.Check(db.Close()) }()
	cell := func(id topology.CellID, shared, dedicated int, huge int64) fit.Cell {
		return fit.Cell{
			ID: id, Shared: topology.NewCPUSet(shared), Dedicated: topology.NewCPUSet(dedicated), MemoryMB: 1024,
			Pages: []fit.Pages{{Size: topology.PageSize4K, Total: 200000}, {Size: topology.PageSize2M, Total: huge}},
		}
	}
	rt := &runtime.System{}
	defer rt.Wait()
	tracker, err := claims.Open(ctx, claims.Options{Store: db, Runtime: rt, Host: "host-t", Logger: slog.New(slog.DiscardHandler), Capacity: claims.Capacity{
		Total: topology.Resources{VCPUs: 2, PCPUs: 2, MemoryMB: 2048, DiskGB: 100}, CPURatio: 4, RAMRatio: 1, DiskRatio: 1,
		Cells: []fit.Cell{cell(0, 0, 1, 0), cell(1, 2, 3, 64)},
	}})
	ts.Check(err)
	set := topology.NewCPUSet
	mixed := func(cpu int) claims.Found {
		return claims.Found{
			Resources: topology.Resources{VCPUs: 1, PCPUs: 1, MemoryMB: 128},
			Topology: &topology.GuestTopology{Cells: []topology.GuestCell{
				{DedicatedVCPUs: set(0), MemoryMB: 64, PageSize: topology.PagesLarge, CPUPolicy: topology.CPUPolicyMixed, ThreadPolicy: topology.ThreadPolicyPrefer},
				{SharedVCPUs: set(1), MemoryMB: 64, PageSize: topology.PagesAny, CPUPolicy: topology.CPUPolicyMixed},
			}},
			Assignment: topology.Assignment{Cells: []topology.AssignedCell{
				{HostCell: 1, MemoryMB: 64, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: cpu}}},
				{HostCell: 0, MemoryMB: 64, PageSize: topology.PageSize4K, Shared: 1},
			}},
		}
	}
	gpu := mixed(3)
	gpu.PCI = []topology.PCIRequest{{ID: "gpu", Count: 1, Specs: []topology.PCISpec{{Vendor: "10de", Product: "2330"}}, Affinity: topology.AffinityRequired}}
	gpu.Assignment.Devices = []topology.AssignedDevice{{
		Request: "gpu", Address: topology.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction, Cell: 1, Managed: true,
	}}
	for i, g := range []struct {
		name  string
		found claims.Found
	}{
		{"web-1", claims.Found{Resources: topology.Resources{VCPUs: 2, MemoryMB: 256, DiskGB: 10}}},
		{"db-1", mixed(3)},
		{"gpu-1", gpu},
	} {
		_, err := tracker.Adopt(ctx, claims.Instance{
			UUID: fmt.Sprintf("00000000-0000-4000-8000-00000000000%d", i), Name: g.name,
			Flavor: topology.Flavor{Name: "m", VCPUs: 2, MemoryMB: g.found.Resources.MemoryMB, DiskGB: g.found.Resources.DiskGB},
		}, g.found)
		ts.Check(err)
	}
}

// cutFile cuts a file to so many bytes: cut FILE BYTES.
func cutFile(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}
