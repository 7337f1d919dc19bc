package hwdiscovery

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"

	"berth/topology"

	"github.com/jaypipes/ghw"
	"github.com/jaypipes/ghw/pkg/cpu"
	"github.com/jaypipes/ghw/pkg/linuxpath"
	"github.com/jaypipes/ghw/pkg/memory"
)

// Codes of the remarks on ghw, which stand behind all other reasons.
const (
	codeGHWDiffers = "ghw_differs" // ghw and sysfs tell different values of one fact
	codeGHWFailed  = "ghw_failed"  // ghw panicked, or has no list of PCI functions
)

// ghwFacts are what ghw tells of a host. The zero value of each of them means that
// ghw does not tell it.
type ghwFacts struct {
	cells   map[int]cellFacts
	devices map[topology.PCIAddress]deviceFacts
}

// cellFacts are what ghw tells of a cell: its online CPUs, which of them share a
// core, its memory in bytes, and its huge pages by size.
type cellFacts struct {
	cpus   topology.CPUSet
	cores  []topology.CPUSet
	memory int64
	pages  map[topology.PageSize]int64
}

// deviceFacts are what ghw tells of a PCI function: ids as in its modalias, and
// what its links end in.
type deviceFacts struct {
	vendor, product, class, driver, iommuGroup string
}

// readGHW asks ghw for the facts of the tree. What ghw does not tell goes to log at
// debug level and is no remark: it wants files that sound kernels do not have (the
// line Hugetlb of Linux 4.20, hugepages of a node without memory), and the sysfs
// pass names each file that is broken.
//
// Each cell is asked for by itself, and is told whole or not at all: remarks on a
// kernel that ghw half knows would be about ghw. ghw.Topology gives up, without an
// error, at the first node that it cannot read, and reads some twenty cache files of
// every CPU.
func (t *tree) readGHW(root string, log *slog.Logger) {
	t.ghw = ghwFacts{cells: map[int]cellFacts{}, devices: map[topology.PCIAddress]deviceFacts{}}
	ctx := ghw.WithLogger(slog.New(quiet{log.Handler()}))(context.Background())
	ctx = ghw.WithDisableTopology()(ghw.WithDisableTools()(ghw.WithChroot(root)(ctx)))
	paths := linuxpath.New(ctx)
	// Physical memory is no fact of a Host, and is summed up from every memory block
	// or looked for in the system's log.
	paths.SysDevicesSystemMemory, paths.VarLog = os.DevNull, os.DevNull

	ids, _ := (&tree{root: t.root}).numbered(nodeDir, "node") // the sysfs pass tells what is wrong with it
	for _, id := range ids {
		var c cellFacts
		t.askGHW(path.Clean(nodeFile(id, "")), cellOf(id), func() error {
			if err := c.readMemory(paths, id); err != nil {
				log.Debug("ghw does not tell a cell", "cell", id, "error", err)
				return nil
			}
			c.readCPUs(ctx, id)
			return nil
		})
		t.ghw.cells[id] = c
	}
	t.askGHW(pciDir, about{}, func() error { return t.ghw.readDevices(ctx) })
}

// askGHW remarks on an error or a panic of f: what f would have told is as sysfs
// alone reads it.
func (t *tree) askGHW(file string, a about, f func() error) {
	var err error
	if failed := contain(func() { err = f() }); failed != nil {
		err = fmt.Errorf("panic: %v", failed)
	}
	if err != nil {
		t.remark(codeGHWFailed, file, a, "%s: ghw failed: %v; what sysfs reads is used", file, err)
	}
}

// contain runs f and gives the value of a panic in it, nil for none: ghw indexes
// into what it has read.
func contain(f func()) (failed any) {
	defer func() { failed = recover() }()
	f()
	return nil
}

// readCPUs reads the CPUs of a node. A core of which ghw cannot read the number has
// the number -1, and then its cores tell nothing.
func (c *cellFacts) readCPUs(ctx context.Context, id int) {
	cores, err := cpu.CoresForNode(ctx, id)
	if err != nil {
		return // the folder cannot be listed, which the sysfs pass tells
	}
	numbered := true
	for _, core := range cores {
		cpus := topology.NewCPUSet(core.LogicalProcessors...)
		c.cpus, c.cores = c.cpus.Union(cpus), append(c.cores, cpus)
		numbered = numbered && core.ID >= 0
	}
	if !numbered {
		c.cores = nil
	}
}

// readMemory reads the memory of a node. TotalHugePageBytes is left out, which is
// the host's and told of each node.
func (c *cellFacts) readMemory(paths *linuxpath.Paths, id int) error {
	area, err := memory.AreaForNode(paths, id)
	if err != nil {
		return err
	}
	c.memory, c.pages = area.TotalUsableBytes, map[topology.PageSize]int64{}
	for size, amounts := range area.HugePageAmountsBySize {
		c.pages[topology.PageSize(size)] = amounts.Total
	}
	return nil
}

// readDevices reads the PCI functions, all or, where ghw does not understand one of
// them, none. Their cells are left out: ghw tells them only after it has read the
// whole topology, caches included.
//
// ghw looks names up in a file pci.ids, gives up where there is none, and may be told
// by the environment to fetch one. Berth uses no names, so the file is an empty one.
// The environment is the only way to say so: ghw 0.26 ignores its option WithPCIDB.
func (f *ghwFacts) readDevices(ctx context.Context) error {
	for key, value := range map[string]string{"PCIDB_PATH": os.DevNull, "PCIDB_ENABLE_NETWORK_FETCH": "0"} {
		if os.Getenv(key) != value {
			if err := os.Setenv(key, value); err != nil {
				return err
			}
		}
	}
	info, err := ghw.PCI(ctx)
	if err != nil {
		return err
	}
	for _, d := range info.Devices {
		if address, err := topology.ParsePCIAddress(d.Address); err == nil {
			f.devices[address] = deviceFacts{"0x" + d.Vendor.ID, "0x" + d.Product.ID, "0x" + d.Class.ID + d.Subclass.ID + d.ProgrammingInterface.ID, d.Driver, d.IOMMUGroup}
		}
	}
	return nil
}

// confirm gives a fact of the host: ghw's where sysfs reads the same, and what sysfs
// reads where ghw does not tell it. Where both tell it and differ sysfs's is used
// and a remark names both, unless the sysfs pass has named the file already. What
// sysfs cannot read nobody confirms: it stays unknown, and a reason tells why.
func confirm[T comparable](t *tree, a about, file, fact string, first, read T) T {
	var untold T
	if first == read || first == untold || read == untold ||
		slices.ContainsFunc(t.reasons, func(r topology.Reason) bool { return r.Degrades && r.File == file }) {
		return read
	}
	where := ""
	switch {
	case a.cell != nil:
		where = fmt.Sprintf("cell %d: ", *a.cell)
	case a.device != nil:
		where = fmt.Sprintf("device %s: ", a.device)
	}
	t.remark(codeGHWDiffers, file, a, "%s%s: ghw reads %v, sysfs %v, which is used", where, fact, first, read)
	return read
}

// confirmCPUs confirms the CPUs of a node and, of the same CPUs, which share a core:
// ghw goes by core_id alone, so it joins cores of two packages in one node.
func (t *tree) confirmCPUs(id int, cpus topology.CPUSet, cores []topology.CPUSet) topology.CPUSet {
	first, a := t.ghw.cells[id], cellOf(id)
	confirm(t, a, nodeFile(id, "cpumap"), "cpus", first.cpus.String(), cpus.String())
	if first.cpus.SameAs(cpus) && len(first.cores) > 0 && len(cores) > 0 {
		confirm(t, a, cpuDir, "cores", coresAmong(cpus, first.cores), coresAmong(cpus, cores))
	}
	return cpus
}

// coresAmong lists the cores of these CPUs as text, in one order for equal cores.
func coresAmong(cpus topology.CPUSet, cores []topology.CPUSet) string {
	var among []string
	for _, core := range cores {
		if in := core.Intersection(cpus); !in.IsEmpty() {
			among = append(among, in.String())
		}
	}
	slices.Sort(among)
	return fmt.Sprint(among)
}

// quiet logs at debug level whatever the level: ghw warns of what is no fault.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}
