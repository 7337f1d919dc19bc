package agent

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"berth/agent/api"
	"berth/agent/inventory"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/internal/store"
	"berth/topology"
)

func TestDoubts_AReadErrorNeverMakesTheHostSmaller(t *testing.T) {
	machine := func(cpus int, memory int64, reasons ...topology.Reason) *topology.Host {
		h := &topology.Host{Health: topology.HealthOK, Reasons: reasons, Cells: []topology.Cell{{MemoryBytes: memory}}}
		for c := range cpus {
			h.Cores = append(h.Cores, topology.NewCPUSet(c))
		}
		for _, r := range reasons {
			if r.Degrades {
				h.Health = topology.HealthDegraded
			}
		}
		return h
	}
	missing := topology.Reason{Code: "file_missing", File: "sys/x", Degrades: true}
	device := missing
	device.Device = &topology.PCIAddress{}
	clash := topology.Reason{Code: "memory_contradicts", Degrades: true}
	cells := func(n int, h *topology.Host) *topology.Host {
		for len(h.Cells) < n {
			h.Cells = append(h.Cells, topology.Cell{ID: topology.CellID(len(h.Cells))})
		}
		return h
	}
	pages := func(large, small int64, h *topology.Host) *topology.Host {
		h.BasePageSize, h.Cells[0].Pages = 4096, topology.Pages{4096: 1000 - small, topology.PageSize2M: small, topology.PageSize1G: large}
		return h
	}
	dead := topology.Reason{Code: "pci_dead", Device: &topology.PCIAddress{}, Degrades: true}
	remark := topology.Reason{Code: "ghw_differs"}
	for _, tt := range []struct {
		name      string
		got, good *topology.Host
		believed  bool
	}{
		{"all well", machine(4, 8), nil, true},
		{"a remark", machine(4, 8, remark), machine(4, 8), true},
		{"a smaller machine, all well: memory was taken out", machine(2, 4), machine(4, 8), true},
		{"a file is missing on the first start", machine(4, 8, missing), nil, false},
		{"a file is missing later", machine(4, 8, missing), machine(4, 8), false},
		{"a device's file is missing", machine(4, 8, device), nil, true},
		{"tables that always contradicted", machine(4, 8, clash), nil, true},
		{"tables that contradict and give less", machine(2, 8, clash), machine(4, 8), false},
		{"tables that contradict as they did and give less", machine(2, 8, clash), machine(4, 8, clash), true},
		{"tables that contradict and give fewer cells", machine(4, 8, clash), cells(2, machine(4, 8)), false},
		{"tables that contradict and give fewer large pages", pages(1, 100, machine(4, 8, clash)), pages(2, 10, machine(4, 8)), false},
		{"tables that contradict and give fewer small pages", pages(2, 10, machine(4, 8, clash)), pages(2, 100, machine(4, 8)), false},
		{"tables that contradict and give more of everything", pages(2, 100, cells(2, machine(5, 9, clash))), pages(2, 10, machine(4, 8)), true},
		{"smaller pools, all well", pages(1, 1, machine(4, 8)), pages(2, 10, machine(4, 8)), true},
		{"a device died when CPUs went", machine(2, 8, dead), machine(4, 8), true},
		{"a file is missing as it was", machine(2, 8, missing), machine(4, 8, missing), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := doubts(tt.got, tt.good); (len(got) == 0) != tt.believed {
				t.Errorf("doubts %v, want believed %v", got, tt.believed)
			}
		})
	}
}

func TestAgent_HardwareThatCannotBeReadGivesNoClaimsAndNoInventory(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	c.Host.Root = t.TempDir() // neither sys nor proc
	client, _ := start(t, agentOptions(t, c))
	s, err := client.Status(t.Context())
	if err != nil || s.Usage.Free.VCPUs != 0 || s.Usage.Total.VCPUs != 0 {
		t.Errorf("usage %+v, %v", s.Usage, err)
	}
	for _, part := range s.Conditions {
		if part.Name == "hardware" && (part.Health != api.HealthDegraded || !strings.Contains(part.Detail, "no new claims")) {
			t.Errorf("hardware: %+v", part)
		}
		if part.Name == "placement" && part.Health == api.HealthOK {
			t.Errorf("placement: %+v", part)
		}
	}
}

func TestDiskGB_OfAFolderThatIsNotThereYet(t *testing.T) {
	dir := t.TempDir()
	have, err := diskGB(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := diskGB(filepath.Join(dir, "a", "b")); err != nil || got != have {
		t.Errorf("%d, %v; want its parent's %d", got, err, have)
	}
}

// tinyMachine is a tree of one CPU and 1 GiB, and a function that writes one of
// its files.
func tinyMachine(t *testing.T) (root string, put func(path, text string)) {
	t.Helper()
	root = t.TempDir()
	put = func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("sys/devices/system/cpu/online", "0\n")
	put("sys/devices/system/cpu/cpu0/topology/core_id", "0\n")
	put("sys/devices/system/cpu/cpu0/topology/physical_package_id", "0\n")
	put("sys/devices/system/cpu/cpu0/topology/thread_siblings", "1\n")
	put("sys/devices/system/cpu/cpu0/topology/core_siblings", "1\n")
	put("proc/cpuinfo", "processor\t: 0\n\n")
	put("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 524288 kB\n")
	return root, put
}

// TestHardware_AnUnreadableDiskFolderNeverMakesTheHostSmaller restarts an agent
// whose folder for disks cannot be read any more.
func TestHardware_AnUnreadableDiskFolderNeverMakesTheHostSmaller(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	root, put := tinyMachine(t)
	c.Host.Root = root
	put("file", "no folder")
	good, bad := t.TempDir(), filepath.Join(root, "file", "below")
	total := func(path string) (gb int64, claim error) {
		t.Helper()
		c.Host.DiskPath = path
		a := &Agent{opt: agentOptions(t, c), log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		a.rt = a.opt.Runtime
		a.conf.Store(&c)
		if err := a.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := a.close(); err != nil {
				t.Error(err)
			}
		}()
		return a.tracker.Usage().Capacity.Total.DiskGB, a.tracker.Check(topology.Resources{VCPUs: 1, MemoryMB: 1})
	}
	if gb, err := total(bad); gb != 0 || !errors.Is(err, fault.Unavailable) {
		t.Errorf("first start without a readable folder: %d GiB, claims: %v; want none given", gb, err)
	}
	want, err := total(good)
	if err != nil || want == 0 {
		t.Fatalf("%d GiB, claims: %v", want, err)
	}
	if got, err := total(bad); got != want || err != nil {
		t.Errorf("folder unreadable after a restart: %d GiB, claims: %v; want %d as last read", got, err, want)
	}
}

// TestHardware_AReportOfWhatWasBelievedBeforeDoesNotTakeTheLedgerBack: Placement
// takes its time to answer, and the hardware changes meanwhile.
func TestHardware_AReportOfWhatWasBelievedBeforeDoesNotTakeTheLedgerBack(t *testing.T) {
	onMadeUpMachine(t, func(b *hardwareBench) {
		in, _, _ := b.a.hardware.input()
		late := inventory.Compute(in, nil)
		late.Capacity.Ratios.RAM = 1.25
		b.memory(1, 1<<19)
		b.online(0, 1, 2)
		b.put("proc/meminfo", "MemTotal: 1572864 kB\nMemFree: 1048576 kB\n")
		b.event("offline", "memory")
		b.within("the ledger follows", func() bool { return b.a.tracker.Usage().Capacity.Total.MemoryMB == 1536 })
		synctest.Wait()
		b.a.hardware.found(late)
		c := b.a.tracker.Usage().Capacity
		if c.Total.MemoryMB != 1536 || c.Total.PCPUs != 2 || c.RAMRatio != 1.25 {
			b.Errorf("the ledger has %+v, want what is believed now with the report's ratio", c)
		}
	})
}

// TestHardware_ARestartBelievesTheLastGoodReadingAndARebootDoesNot restarts an
// agent on a machine that contradicts itself and has less than before.
func TestHardware_ARestartBelievesTheLastGoodReadingAndARebootDoesNot(t *testing.T) {
	t.Parallel()
	c := settings(t, nowhere(t))
	m := newMachineTree(t)
	c.Host.Root = m.root
	run := func(what string, cpus int, memory int64, and func(a *Agent)) {
		t.Helper()
		a := &Agent{opt: agentOptions(t, c), log: slog.New(slog.NewTextHandler(io.Discard, nil))}
		a.rt = a.opt.Runtime
		a.conf.Store(&c)
		if err := a.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		if good := a.believed(); good.CPUs().Len() != cpus || good.MemoryBytes()>>20 != memory {
			t.Errorf("%s: believed are %d CPUs and %d MiB, want %d and %d", what, good.CPUs().Len(), good.MemoryBytes()>>20, cpus, memory)
		}
		if and != nil {
			and(a)
		}
		if err := a.close(); err != nil {
			t.Error(err)
		}
	}
	run("first start", 4, 2048, func(a *Agent) {
		m.memory(0, 2<<20)
		m.put("proc/meminfo", "MemTotal: 3145728 kB\n")
		a.hardware.read(t.Context(), true)
	})
	m.remove(m.node(1, "meminfo"))
	run("a file is gone", 4, 3072, nil)
	m.memory(1, 1<<20)
	m.online(0, 1, 2)
	m.put("proc/cpuinfo", "processor\t: 0\n\n")
	run("fewer CPUs, and two tables contradict", 4, 3072, func(a *Agent) {
		if err := a.db.Put(t.Context(), store.BucketAgent, keyBoot, []byte(`"another"`)); err != nil {
			t.Fatal(err)
		}
	})
	run("so it is since the machine was booted", 3, 3072, nil)
}

// TestHardware_WhatAReadingLacksIsReservedInPlacement, as the claim lock keeps it.
func TestHardware_WhatAReadingLacksIsReservedInPlacement(t *testing.T) {
	b := newGuardBench(t, config.Observe)
	device := topology.PCIAddress{Bus: 0x81}
	believed, now, disk := &topology.Host{PCI: []topology.PCIDevice{{Address: device}}}, &topology.Host{}, int64(10)
	h := b.a.hardware
	h.mu.Lock()
	h.good, h.now, h.disk = believed, now, &disk
	h.mu.Unlock()
	in, known, why := h.input()
	if !known || len(in.Unusable) != 1 || in.Unusable[0].Device == nil || *in.Unusable[0].Device != device {
		t.Errorf("known %v (%s), unusable %+v; want %s", known, why, in.Unusable, device)
	}
}
