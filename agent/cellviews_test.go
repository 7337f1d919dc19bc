package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/claims"
	"berth/claims/fit"
	"berth/claims/pci"
	"berth/topology"
)

// twoCells is an open agent on a machine of two cells with one device, and two
// guests that were found pinned to the same CPU.
func twoCells(t *testing.T) (*Agent, claims.Capacity) {
	t.Helper()
	o := agentOptions(t, settings(t, nowhere(t)))
	a := &Agent{opt: o, log: o.Logger, rt: o.Runtime}
	a.conf.Store(&o.Config)
	if err := a.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.close(); err != nil {
			t.Error(err)
		}
	})
	if a.health == nil {
		a.health = newHealth(a)
	}
	cell := func(id topology.CellID, shared, dedicated topology.CPUSet) fit.Cell {
		return fit.Cell{
			ID: id, Shared: shared, Dedicated: dedicated, MemoryMB: 1024,
			Pages: []fit.Pages{{Size: topology.PageSize4K, Total: 131072}, {Size: topology.PageSize2M, Total: 256, Reserved: 6}},
		}
	}
	c := claims.Capacity{
		Total: topology.Resources{VCPUs: 8, PCPUs: 8, MemoryMB: 2048, DiskGB: 10}, CPURatio: 1, RAMRatio: 1, DiskRatio: 1,
		Cells: []fit.Cell{cell(0, topology.NewCPUSet(0, 1), topology.NewCPUSet(2, 3)), cell(1, topology.NewCPUSet(4), topology.NewCPUSet(5, 6, 7))},
		Devices: []pci.Device{
			{Address: topology.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction, Cell: 1},
			{Address: topology.PCIAddress{Bus: 0x3c}, Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction, Cell: topology.UnknownCell},
		},
	}
	a.tracker.SetCapacity(c)
	for i, name := range []string{"db", "web"} {
		_, err := a.tracker.Adopt(t.Context(), claims.Instance{
			UUID: "00000000-0000-4000-8000-00000000000" + string(rune('1'+i)), Name: name, Flavor: topology.Flavor{Name: "f", VCPUs: 1, MemoryMB: 64},
		}, claims.Found{
			Resources: topology.Resources{PCPUs: 1, MemoryMB: 64},
			Assignment: topology.Assignment{
				Cells: []topology.AssignedCell{{
					HostCell: 1, MemoryMB: 64, PageSize: topology.PageSize2M, Pins: []topology.Pin{{VCPU: 0, CPU: 6}},
				}},
				Devices: []topology.AssignedDevice{{Address: topology.PCIAddress{Bus: 0x3b}, Cell: 1}}[:i],
			},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, c
}

func TestCellViews_SayWhatEachCellHasAndHolds(t *testing.T) {
	t.Parallel()
	a, _ := twoCells(t)
	const db, web = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	cells, loose := a.cellViews()
	pages := func(used int64) []api.HostPages {
		return []api.HostPages{
			{Size: topology.PageSize4K, Total: 131072, Free: 131072},
			{Size: topology.PageSize2M, Total: 256, Reserved: 6, Used: used, Free: 250 - used},
		}
	}
	want := []api.HostCell{
		{
			ID: 0, Dedicated: topology.NewCPUSet(2, 3), DedicatedFree: topology.NewCPUSet(2, 3), Shared: topology.NewCPUSet(0, 1),
			MemoryMB: 1024, Pages: pages(0), Devices: []api.HostDevice{}, Instances: []string{},
		},
		{
			ID: 1, Dedicated: topology.NewCPUSet(5, 6, 7), DedicatedFree: topology.NewCPUSet(5, 7), Pinned: topology.NewCPUSet(6), Shared: topology.NewCPUSet(4),
			MemoryMB: 1024, MemoryUsedMB: 128, Pages: pages(64), Instances: []string{db, web},
			Devices: []api.HostDevice{{Address: topology.PCIAddress{Bus: 0x3b}, Vendor: "10de", Product: "2330", Type: topology.PCITypeFunction, Instances: []string{web}}},
		},
	}
	if diff := cmp.Diff(want, cells); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(loose) != 1 || loose[0].Address.Bus != 0x3c || len(loose[0].Instances) != 0 {
		t.Errorf("devices of no cell: %+v, want 0000:3c:00.0 free", loose)
	}
}

func TestExplain_NamesTheCPUsThatSharedVCPUsRunOn(t *testing.T) {
	t.Parallel()
	a, _ := twoCells(t)
	c, err := claimService{a}.Explain(t.Context(), "web")
	if err != nil || c.Name != "web" || len(c.Cells) != 1 || len(c.Devices) != 1 {
		t.Fatalf("%+v, %v; want web's one cell and device", c, err)
	}
	if diff := cmp.Diff(map[topology.CellID]topology.CPUSet{1: topology.NewCPUSet(4)}, c.SharedCPUs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHealth_NamesWhatIsHeldTwiceAndWhatIsGone(t *testing.T) {
	t.Parallel()
	a, capacity := twoCells(t)
	codes := func() (out []string, words string) {
		c := a.health.claims()
		for _, r := range c.Reasons {
			out, words = append(out, r.Code), words+r.Message+"\n"
		}
		return out, words
	}
	got, words := codes()
	if !slices.Equal(got, []string{"claim_forced", "cpus_doubled"}) || !strings.Contains(words, "cpu 6 of cell 1: held by db and web") {
		t.Errorf("%v:\n%s", got, words)
	}
	// What is gone from the host is found by the next audit, not by a request.
	capacity.Devices = capacity.Devices[1:]
	capacity.Cells[1].Dedicated = topology.NewCPUSet(5, 7)
	a.tracker.SetCapacity(capacity)
	if wait := a.health.audit(); wait < auditEvery {
		t.Errorf("the next audit is due in %s, want %s at least", wait, auditEvery)
	}
	got, words = codes()
	for _, want := range []string{
		"guest db holds CPUs 6, which the host no longer has", "guest web holds CPUs 6", "guest web holds PCI device 0000:3b:00.0, which the host no longer has",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("%v does not say %q:\n%s", got, want, words)
		}
	}
	if s := a.health.audited.Load(); s.Claims != 2 || s.Took <= 0 {
		t.Errorf("audit %+v, want two claims and what it took", s)
	}
}
