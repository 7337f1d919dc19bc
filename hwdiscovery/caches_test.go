package hwdiscovery

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/topology"
)

// TestDiscover_DamagedCacheFilesAreRemarks damages every file of every cache: the
// host stays as it is and ok, each group that is still told is a right one, and
// where one is lost a remark names the file.
func TestDiscover_DamagedCacheFilesAreRemarks(t *testing.T) {
	root := fixture(t, "last-level-caches")
	whole, err := Discover(root, withoutGHW())
	if err != nil {
		t.Fatal(err)
	}
	want := []topology.CPUSet{{0, 1}, {2, 3}, {4, 5}}
	if diff := cmp.Diff(want, whole.LastLevelCaches); diff != "" {
		t.Fatalf("before any damage (-want +got):\n%s", diff)
	}
	var files []string
	err = filepath.WalkDir(filepath.Join(root, cpuDir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(path, "/cache/") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range damages {
			if d.to == nil {
				err = os.Remove(path)
			} else {
				err = os.WriteFile(path, d.to(data), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := Discover(root, withoutGHW())
			if err != nil {
				t.Fatalf("%s %s: %v", path, d.name, err)
			}
			if got.Health != topology.HealthOK {
				t.Errorf("%s %s: health %s: %+v", path, d.name, got.Health, got.Reasons)
			}
			if diff := cmp.Diff(facts(whole), facts(got)); diff != "" {
				t.Errorf("%s %s (-whole +damaged):\n%s", path, d.name, diff)
			}
			lost := topology.NewCPUSet(slices.Concat(want...)...)
			for _, group := range got.LastLevelCaches {
				lost = lost.Difference(group)
				if !slices.ContainsFunc(want, group.SameAs) {
					t.Errorf("%s %s: CPUs %s share no last-level cache", path, d.name, group)
				}
			}
			file, _ := filepath.Rel(root, path)
			named := slices.ContainsFunc(got.Reasons, func(r topology.Reason) bool { return r.File == file && !r.Degrades })
			if !lost.IsEmpty() && d.to != nil && !named {
				t.Errorf("%s %s: CPUs %s are in no cache and no remark names the file: %+v", path, d.name, lost, got.Reasons)
			}
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// caches is how many CPUs are in a last-level cache → how many such caches.
type caches map[int]int

// cachesOfMachines is what the machines' own names and data sheets say of their
// last-level caches.
var cachesOfMachines = map[string]caches{
	"128arm-2pa2n8cluster4co":         {32: 4}, // one a cell
	"16em64t-4s2c2t-offlines":         {2: 2, 4: 2},
	"20em64t-hybrid-1p6c2t+2ca4co1t":  {20: 1},
	"256ppc-8n8s4t":                   {4: 64}, // one a core
	"2i386-2c-nohugepage":             {2: 1},
	"2i386-2t-hugepagesizecount":      {2: 1},
	"32em64t-2n8c+dax+nvme+mic+dimms": {8: 2},
	"32intel64-2p8co2t+8ve":           {16: 2},
	"40intel64-4n10c+pci-conflicts":   {10: 4},
	"48amd64-4pa2n6c-sparse":          {6: 8},
	"64amd64-4s2n4ca2co":              {8: 8},
	"8ia64-2n2s2c":                    {}, // its level 3 caches name no CPU at all
	"fakepcilocalities":               {}, // its copy has no cache
}

// holdCaches holds the last-level caches of a copied machine to those.
func holdCaches(t *testing.T, machine string, got topology.Host) {
	t.Helper()
	found := caches{}
	var seen topology.CPUSet
	for _, c := range got.LastLevelCaches {
		found[c.Len()]++
		if seen.Intersects(c) || !got.CPUs().ContainsAll(c) {
			t.Errorf("cache of CPUs %s: in another one too, or not online", c)
		}
		seen = seen.Union(c)
	}
	if diff := cmp.Diff(cachesOfMachines[machine], found); diff != "" {
		t.Errorf("caches by their number of CPUs (-want +got):\n%s", diff)
	}
}
