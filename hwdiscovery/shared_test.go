package hwdiscovery

import (
	"archive/tar"
	"compress/bzip2"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/test/shared"
	"berth/topology"
)

// expectation is what hwloc reads from a machine, as the shared folder has it.
type expectation struct {
	Cells    []expectedCell     `json:"cells"`
	Cores    []topology.CPUSet  `json:"cores"`
	Packages []topology.Package `json:"packages"`
	PCI      []expectedDevice   `json:"pci"`
}

type expectedCell struct {
	ID          topology.CellID `json:"id"`
	CPUs        topology.CPUSet `json:"cpus"`
	MemoryBytes int64           `json:"memory_bytes"`
	Pages       topology.Pages  `json:"pages"`
}

type expectedDevice struct {
	Address  topology.PCIAddress `json:"address"`
	Vendor   string              `json:"vendor"`
	Product  string              `json:"product"`
	Class    string              `json:"class"`
	NUMANode topology.CellID     `json:"numa_node"`
}

// answer is the part of a Host that an expectation tells of.
func answer(h topology.Host) expectation {
	e := expectation{Cells: []expectedCell{}, Cores: h.Cores, Packages: h.Packages, PCI: []expectedDevice{}}
	for _, c := range h.Cells {
		e.Cells = append(e.Cells, expectedCell{c.ID, c.CPUs, c.MemoryBytes, c.Pages})
	}
	for _, d := range h.PCI {
		e.PCI = append(e.PCI, expectedDevice{d.Address, d.Vendor, d.Product, d.Class, d.NUMANode})
	}
	return e
}

// unpacked are the files worth unpacking: those that Discover looks at. Whole
// machines have thousands of others (caches, memory blocks, power management).
var unpacked = regexp.MustCompile(`^(proc(/[^/]+)?|proc/driver/.*` +
	`|sys/devices/system/cpu(/[a-z]+|/cpu[0-9]+(/online|/node[0-9]+|/topology(/.*)?|/cache|/cache/index[0-9]+(/(level|type|shared_cpu_(list|map)))?)?)?` +
	`|sys/devices/system/node(/[a-z_]+|/node[0-9]+(/cpu[a-z0-9]+|/distance|/meminfo|/hugepages(/.*)?)?)?` +
	`|sys/kernel/mm/hugepages(/.*)?` +
	`|sys/bus/pci/devices(/.*)?` +
	`|sys/devices/pci.*/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](/(vendor|device|class|modalias|numa_node|subsystem_[a-z]+|vpd|driver|iommu_group|physfn|(sriov_|virtfn).*))?)$`)

// machineDir is a new folder for thousands of small files: in memory where there
// is a tmpfs, since making a file on a disk can take a millisecond.
func machineDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-machine-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// unpack puts a machine's archive into dir and gives its root: the folder that
// holds sys. Writing goes through os.Root, so an archive cannot leave dir.
func unpack(t testing.TB, archive, dir string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	top := ""
	made := map[string]bool{}
	mkdir := func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		return root.MkdirAll(dir, 0o755)
	}
	for r := tar.NewReader(bzip2.NewReader(f)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("unpack %s: %v", archive, err)
		}
		name := filepath.Clean(h.Name)
		if _, below, _ := strings.Cut(name, "/"); !unpacked.MatchString(below) {
			continue
		}
		if first, rest, ok := strings.Cut(name, "/"); ok && (rest == "sys" || strings.HasPrefix(rest, "sys/")) {
			top = first
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = mkdir(name)
		case tar.TypeReg:
			if err = mkdir(filepath.Dir(name)); err != nil {
				break
			}
			var w *os.File
			if w, err = root.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644); err == nil {
				_, err = io.Copy(w, r)
				err = errors.Join(err, w.Close())
			}
		case tar.TypeSymlink:
			if err = mkdir(filepath.Dir(name)); err == nil {
				err = root.Symlink(h.Linkname, name)
			}
		}
		if err != nil {
			t.Fatalf("unpack %s: %v", archive, err)
		}
	}
	if top == "" {
		t.Fatalf("unpack %s: no sys folder in it", archive)
	}
	return filepath.Join(dir, top)
}

func sharedMachines(t testing.TB) []string {
	archives, err := filepath.Glob(shared.Path(t, "hosts") + "/*.tar.bz2")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no machine in the shared folder: %v", err)
	}
	slices.Sort(archives)
	return archives
}

// TestDiscover_ReadsTheSharedMachinesAsHwlocDoes holds every copied machine to
// hwloc's answer, and its caches to what is known of them.
func TestDiscover_ReadsTheSharedMachinesAsHwlocDoes(t *testing.T) {
	// Machines that contradict themselves; every other one must be ok.
	degraded := map[string]string{
		"40intel64-4n10c+pci-conflicts": "cpu3/topology/core_siblings",
		"2i386-2t-hugepagesizecount":    "proc/meminfo", // has no huge page where sysfs has one
		"16em64t-4s2c2t-offlines":       "proc/cpuinfo", // names the CPUs that sysfs shows as offline
	}
	for _, archive := range sharedMachines(t) {
		name := strings.TrimSuffix(filepath.Base(archive), ".tar.bz2")
		t.Run(name, func(t *testing.T) {
			root := unpack(t, archive, machineDir(t))
			data, err := os.ReadFile(strings.TrimSuffix(archive, ".tar.bz2") + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var want expectation
			if err := json.Unmarshal(data, &want); err != nil {
				t.Fatal(err)
			}
			got, err := Discover(root)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, answer(got)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			holdCaches(t, name, got)
			for _, r := range got.Reasons {
				t.Logf("%+v", r)
			}
			if file, ok := degraded[name]; ok {
				if !slices.ContainsFunc(got.Reasons, func(r topology.Reason) bool { return r.Degrades && strings.Contains(r.File, file) }) {
					t.Errorf("no reason that degrades names %s", file)
				}
			} else if got.Health != topology.HealthOK {
				t.Errorf("health %s, want ok", got.Health)
			}
		})
	}
}
