package hwdiscovery

import (
	"fmt"
	"io/fs"
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

// damage is one way in which a file goes bad.
type damage struct {
	name string
	to   func(data []byte) []byte // nil removes the file
}

var damages = []damage{
	{"removed", nil},
	{"emptied", func([]byte) []byte { return nil }},
	{"cut in half", func(data []byte) []byte { return data[:len(data)/2] }},
	{"without its last byte", func(data []byte) []byte { return data[:max(0, len(data)-1)] }},
	{"garbled", func([]byte) []byte { return []byte("garbage\n") }},
	{"binary", func([]byte) []byte { return []byte("\xff\x00\x01\n") }},
	{"a huge range", func([]byte) []byte { return []byte("0-4294967295\n") }},
}

// facts are what must never change without a word: the part of a Host that
// mandatory files give.
func facts(h topology.Host) topology.Host {
	f := topology.Host{Cores: h.Cores, Packages: h.Packages, Dies: h.Dies}
	for _, c := range h.Cells {
		f.Cells = append(f.Cells, topology.Cell{ID: c.ID, CPUs: c.CPUs, MemoryBytes: c.MemoryBytes, Pages: c.Pages, Distances: c.Distances})
	}
	for _, d := range h.PCI {
		var kinds []topology.MdevType
		for _, m := range d.Mdev {
			kinds = append(kinds, topology.MdevType{Name: m.Name, Available: m.Available})
		}
		f.PCI = append(f.PCI, topology.PCIDevice{Address: d.Address, Vendor: d.Vendor, Product: d.Product, Class: d.Class,
			NUMANode: d.NUMANode, PhysFn: d.PhysFn, VFs: d.VFs, TotalVFs: d.TotalVFs, Mdev: kinds})
	}
	return f
}

// TestDiscover_NoDamagedFileMakesASmallerHostInSilence damages every file of a
// tree, one at a time and in every way: the facts stay the same, or there is an
// error, or the host is degraded by a reason that names the file.
func TestDiscover_NoDamagedFileMakesASmallerHostInSilence(t *testing.T) {
	for _, name := range []string{"two-sockets", "old-kernel", "offline-cpus", "no-nodes", "sparse-cells", "amd-compute-units", "node-pool-in-meminfo"} {
		t.Run(name, func(t *testing.T) {
			damageEachFile(t, fixture(t, name), func(string) bool { return true }, thinned)
		})
	}
	t.Run("sriov", func(t *testing.T) {
		damageEachFile(t, fixture(t, "sriov"), func(file string) bool { return strings.HasPrefix(file, pciDir) }, thinned)
	})
	// Of the copied machines, the files of two CPUs and one PCI function stand for
	// those of all.
	otherCPU := regexp.MustCompile(`/cpu([2-9]|[1-9][0-9]+)/`)
	some := func(file string) bool {
		if strings.HasPrefix(file, "sys/devices/pci") {
			return strings.Contains(file, "/0000:1a:00.0/")
		}
		return !otherCPU.MatchString(file) && !strings.Contains(file, "/cache/") // see TestDiscover_DamagedCacheFilesAreRemarks
	}
	for _, archive := range []string{"8ia64-2n2s2c", "20em64t-hybrid-1p6c2t+2ca4co1t", "32intel64-2p8co2t+8ve"} {
		t.Run(archive, func(t *testing.T) {
			root := unpack(t, shared.Path(t, "hosts", archive+".tar.bz2"), machineDir(t))
			damageEachFile(t, root, some, inTurn)
		})
	}
}

// thinned is inTurn in a short run, else all: test/run makes both.
func thinned(file, damage int) bool { return !testing.Short() || inTurn(file, damage) }

// inTurn damages each file in one way, the next in the next: a copied machine has many
// files of each kind.
func inTurn(file, damage int) bool { return file%len(damages) == damage }

// damageEachFile damages those files below root, named from there, that pick
// chooses, in every way, or in those only that ways allow by the numbers of file and
// damage.
func damageEachFile(t *testing.T, root string, pick func(file string) bool, ways ...func(file, damage int) bool) {
	whole, err := Discover(root, withoutGHW())
	if err != nil {
		t.Fatal(err)
	}
	if whole.Health != topology.HealthOK {
		t.Fatalf("before any damage: %+v", whole.Reasons)
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		file, err := filepath.Rel(root, path)
		if pick(filepath.ToSlash(file)) {
			files = append(files, file)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for i, file := range files {
		path := filepath.Join(root, file)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for j, d := range damages {
			if slices.ContainsFunc(ways, func(way func(file, damage int) bool) bool { return !way(i, j) }) {
				continue
			}
			if d.to == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, d.to(data), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			if complaint := judge(root, file, whole); complaint != "" {
				t.Errorf("%s %s: %s", file, d.name, complaint)
			}
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// judge reads a damaged tree again and says what is wrong with the answer.
func judge(root, file string, whole topology.Host) string {
	got, err := Discover(root, withoutGHW())
	if err != nil {
		if !strings.Contains(err.Error(), file) && !strings.Contains(err.Error(), filepath.Dir(file)) {
			return fmt.Sprintf("error %v does not name the file", err)
		}
		return ""
	}
	diff := cmp.Diff(facts(whole), facts(got))
	if diff == "" {
		return ""
	}
	if got.Health != topology.HealthDegraded {
		return fmt.Sprintf("health %s, and (-whole +damaged):\n%s", got.Health, diff)
	}
	if dir, base := filepath.Split(file); strings.HasPrefix(file, "sys/devices/pci") {
		file = filepath.Join(pciDir, filepath.Base(dir), base) // the name by which it is read
	}
	named := slices.ContainsFunc(got.Reasons, func(r topology.Reason) bool { return r.Degrades && strings.Contains(r.Message, file) })
	if !named {
		return fmt.Sprintf("degraded, but no reason names the file: %+v", got.Reasons)
	}
	return ""
}

// TestDiscover_SurvivesATreeOfLinksThatLeadOut: a copied tree must not make
// Discover read the machine it runs on.
func TestDiscover_SurvivesATreeOfLinksThatLeadOut(t *testing.T) {
	root := fixture(t, "no-nodes")
	outside := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(outside, []byte("MemTotal: 123456 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(root, "proc", "meminfo")
	if err := os.Remove(inside); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, inside); err != nil {
		t.Fatal(err)
	}
	got, err := Discover(root)
	if err != nil {
		t.Fatal(err)
	}
	if got.Health != topology.HealthDegraded || got.Cells[0].MemoryBytes != 0 {
		t.Errorf("health %s, memory %d: the link out of the tree was followed", got.Health, got.Cells[0].MemoryBytes)
	}
}
