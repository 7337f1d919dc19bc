package fleet

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/test/lab"
	"berth/topology"
)

func TestUp_HostsDifferAsToldAndSeeTheirCellsAndPages(t *testing.T) {
	lab.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	f, err := Up(ctx, Options{
		Dir: filepath.Join(lab.TempDir(t), "fleet"), Cells: 2, HugePages: 32,
		Config: map[string]string{
			"":       "[host]\nreserved_vcpus = 0\nreserved_memory_mb = 300\n",
			"host-b": "[host]\nreserved_memory_mb = 400\n",
		},
		Flavors: map[string]string{"tiny": "name = \"tiny\"\nvcpus = 1\nmemory_mb = 64\ndisk_gb = 1\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Down(); err != nil {
			t.Error(err)
		}
	})
	reserved := map[string]int64{}
	for _, h := range f.Hosts {
		var info api.HostInfo
		if err := f.JSON(ctx, h.Name, &info, "host", "show"); err != nil {
			t.Fatal(err)
		}
		for _, p := range info.Providers {
			if inv, ok := p.Inventories["MEMORY_MB"]; ok {
				reserved[h.Name] += int64(inv.Reserved)
			}
		}
		if info.Topology == nil {
			t.Fatalf("%s has read no hardware", h.Name)
		}
		pages := map[topology.CellID]int64{}
		for _, c := range info.Topology.Cells {
			pages[c.ID] = c.Pages[2<<20]
		}
		if diff := cmp.Diff(map[topology.CellID]int64{0: 16, 1: 16}, pages); diff != "" {
			t.Errorf("pages of 2 MiB by cell of %s (-want +got):\n%s", h.Name, diff)
		}
		if _, err := os.Stat(h.Path("/etc/berth/flavors.d/tiny.toml")); err != nil {
			t.Error(err)
		}
	}
	if more := reserved["host-b"] - reserved["host-a"]; more != 100 {
		t.Errorf("Placement has %v MEMORY_MB as reserved, %d more on host-b; its configuration says 100", reserved, more)
	}
}
