package hwdiscovery

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/topology"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

func TestDiscover_RefusesARootThatIsNotThere(t *testing.T) {
	_, err := Discover(filepath.Join(t.TempDir(), "nowhere"))
	if !errors.Is(err, fault.NotFound) {
		t.Errorf("error %v, want kind not found", err)
	}
	_, err = Discover(t.TempDir())
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "sys/devices/system/cpu") {
		t.Errorf("an empty root: error %v, want kind invalid that names the folder of CPUs", err)
	}
	_, err = Discover(fixture(t, "no-nodes"), WithBasePageSize(-1))
	if !errors.Is(err, fault.Invalid) {
		t.Errorf("a negative page size: error %v, want kind invalid", err)
	}
}

func TestDiscover_CountsBasePagesOfTheSizeItIsTold(t *testing.T) {
	got, err := Discover(fixture(t, "sparse-cells"), WithBasePageSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	// 8 GiB less four pages of 16 MiB.
	want := topology.Pages{64 << 10: (8<<30 - 4*16<<20) / (64 << 10), 16 << 20: 4}
	if diff := cmp.Diff(want, got.Cells[0].Pages); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	if got.BasePageSize != 64<<10 || got.PageSizes[0] != 64<<10 {
		t.Errorf("base page size %s, sizes %v", got.BasePageSize, got.PageSizes)
	}
}

// TestDiscover_ReadsTheLiveMachine holds what is true of any Linux machine, with
// the kernel's own page size.
func TestDiscover_ReadsTheLiveMachine(t *testing.T) {
	if _, err := os.Stat("/" + cpuDir); err != nil {
		t.Skipf("this machine shows no CPUs in sysfs: %v", err)
	}
	got, err := Discover("/")
	if err != nil {
		t.Fatal(err)
	}
	if got.BasePageSize != topology.PageSize(os.Getpagesize()) {
		t.Errorf("base page size %s, the kernel's is %d", got.BasePageSize, os.Getpagesize())
	}
	if got.CPUs().IsEmpty() || got.MemoryBytes() <= 0 {
		t.Errorf("CPUs %s, memory %d", got.CPUs(), got.MemoryBytes())
	}
	for _, c := range got.Cells {
		var bytes int64
		for size, n := range c.Pages {
			bytes += int64(size) * n
		}
		if got.Health == topology.HealthOK && (bytes > c.MemoryBytes || c.MemoryBytes-bytes >= int64(got.BasePageSize)) {
			t.Errorf("cell %d: pages of %d bytes in all, memory %d", c.ID, bytes, c.MemoryBytes)
		}
	}
}

// bigMachine is a tree of many sockets, a cell each, eight cores of two threads
// in every one.
func bigMachine(nodes int) *txtar.Archive {
	const perNode = 16
	a := &txtar.Archive{}
	add := func(name, format string, args ...any) {
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(fmt.Sprintf(format, args...) + "\n")})
	}
	mask := func(cpus ...int) string {
		words := make([]uint32, nodes*perNode/32)
		for _, c := range cpus {
			words[len(words)-1-c/32] |= 1 << (c % 32)
		}
		var groups []string
		for _, w := range words {
			groups = append(groups, fmt.Sprintf("%08x", w))
		}
		return strings.Join(groups, ",")
	}
	add(cpuOnline, "0-%d", nodes*perNode-1)
	add(nodeOnline, "0-%d", nodes-1)
	add(procMeminfo, "MemTotal: %d kB", nodes<<24)
	for n := range nodes {
		var cpus []int
		var row []string
		for c := range perNode {
			cpus = append(cpus, n*perNode+c)
		}
		for m := range nodes {
			row = append(row, map[bool]string{true: "10", false: "20"}[m == n])
		}
		add(nodeFile(n, "cpumap"), "%s", mask(cpus...))
		add(nodeFile(n, "meminfo"), "Node %d MemTotal: %d kB", n, 1<<24)
		add(nodeFile(n, "distance"), "%s", strings.Join(row, " "))
		add(nodeFile(n, "hugepages/hugepages-2048kB/nr_hugepages"), "%d", 16)
		for i, c := range cpus {
			add(cpuTopology(c, "core_cpus"), "%s", mask(c-i%2, c-i%2+1))
			add(cpuTopology(c, "package_cpus"), "%s", mask(cpus...))
			add(cpuTopology(c, "core_id"), "%d", i/2)
			add(cpuTopology(c, "physical_package_id"), "%d", n)
		}
	}
	return a
}

func TestDiscover_ReadsSixtyFourCellsQuickly(t *testing.T) {
	root := machineDir(t)
	plant(t, bigMachine(64), root)
	begin := time.Now()
	got, err := Discover(root)
	took := time.Since(begin)
	if err != nil || got.Health != topology.HealthOK {
		t.Fatalf("health %s, error %v, reasons %v", got.Health, err, got.Reasons)
	}
	if len(got.Cells) != 64 || len(got.Cores) != 512 || len(got.Packages) != 64 || got.CPUs().Len() != 1024 {
		t.Errorf("%d cells, %d cores, %d packages, %d CPUs", len(got.Cells), len(got.Cores), len(got.Packages), got.CPUs().Len())
	}
	if d, ok := got.Distance(63, 0); !ok || d != 20 {
		t.Errorf("distance from 63 to 0: %d, %v", d, ok)
	}
	// About 0.15 s where this was written; the bound leaves room for a loaded
	// machine with the race detector, and still fails on anything quadratic.
	if took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	t.Logf("64 cells, 1024 CPUs: %s", took)
}

func BenchmarkDiscover_SixtyFourCells(b *testing.B) {
	root := machineDir(b)
	plant(b, bigMachine(64), root)
	for b.Loop() {
		if _, err := Discover(root); err != nil {
			b.Fatal(err)
		}
	}
}

// TestDiscover_ShutsInABrokenGHW: ghw may panic or loop over rubbish; nothing of
// it may show but remarks.
func TestDiscover_ShutsInABrokenGHW(t *testing.T) {
	ran := false
	contain(func() {
		ran = true
		panic("index out of range")
	})
	if !ran {
		t.Error("contain did not run its function")
	}
	root := fixture(t, "ghw-joins-cores")
	with, err := Discover(root)
	if err != nil {
		t.Fatal(err)
	}
	without, err := Discover(root, withoutGHW())
	if err != nil {
		t.Fatal(err)
	}
	said := slices.ContainsFunc(with.Reasons, func(r topology.Reason) bool {
		return r.Code == "ghw_differs" && !r.Degrades && strings.Contains(r.Message, "0,2") && strings.Contains(r.Message, "[0 1 2 3]")
	})
	if !said {
		t.Errorf("no remark names both readings of the cores: %+v", with.Reasons)
	}
	with.Reasons, without.Reasons = nil, nil
	if diff := cmp.Diff(without, with); diff != "" {
		t.Errorf("ghw changed the host (-without +with):\n%s", diff)
	}
}
