package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/host"
	"berth/driver"
	"berth/fleet"
	"berth/internal/fault"
	"berth/migration"
	"berth/topology"
)

// TestKeeper_OldDiskOfAnEvacuatedInstance_StaysAndIsNamed: the record alone says that another host has
// it, and any host of an etcd can write that.
func TestKeeper_OldDiskOfAnEvacuatedInstance_StaysAndIsNamed(t *testing.T) {
	t.Parallel()
	b := newFleetBench(t, "host-a", "host-b")
	a := b.up["host-a"]
	dir := b.conf["host-a"].Host.DiskPath
	disk, kernel := filepath.Join(dir, "data.raw"), filepath.Join(dir, "vmlinuz")
	b.must(os.WriteFile(kernel, []byte("kernel"), 0o644))
	v, err := a.host.Create(t.Context(), host.CreateRequest{
		Name: "gone", Flavor: topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 64, DiskGB: 1}, ProjectID: "p", UserID: "u", Kernel: kernel, Start: true,
		Disks: []host.CreateDisk{{Path: disk, SizeGB: 1, Format: "raw"}},
	})
	b.must(err)
	definition, err := b.fakes.Host("host-a").XML(t.Context(), v.UUID, driver.Persistent)
	b.must(err)
	b.round("host-a")
	b.round("host-b")
	b.evacuate(v.UUID)
	b.reboot("host-a")
	b.round("host-a")
	b.lives(v.UUID)
	in := b.record(v.UUID)
	var g migration.Guest
	b.must(json.Unmarshal(in.Guest, &g))
	for i := range g.Disks {
		g.Disks[i].Filesystem = "kernel/other/1" // made anew on host-b
	}
	in.Guest, err = json.Marshal(g)
	b.must(err)
	_, err = fleet.New(b.store.Client("test"), b.rt).PutInstance(t.Context(), in)
	b.must(err)
	b.round("host-a")
	b.clean(v.UUID)
	if _, err := os.Stat(disk); err != nil {
		t.Fatalf("the only copy of what it wrote: %v", err)
	}
	named := func() (out []fault.Reason) {
		c, _ := b.up["host-a"].keeper.condition()
		for _, r := range c.Reasons {
			if r.Code == "old_disk" {
				out = append(out, r)
			}
		}
		return out
	}
	if got := named(); len(got) != 1 || !strings.HasPrefix(got[0].Change, "rm "+disk) || !strings.Contains(got[0].Message, "host-b") {
		t.Errorf("named: %+v", got)
	}
	fake := b.fakes.Host("host-a")
	b.must(fake.Define(t.Context(), definition))
	b.up["host-a"].keeper.old.again = 0
	b.round("host-a")
	if got := named(); len(got) > 0 {
		t.Errorf("named while a definition uses it again: %+v", got)
	}
	b.must(fake.Undefine(t.Context(), v.UUID))
	b.up["host-a"].keeper.old.again = 0
	b.round("host-a")
	if got := named(); len(got) != 1 {
		t.Errorf("named once nothing uses it: %+v", got)
	}
	b.must(os.Remove(disk))
	b.round("host-a")
	if got := named(); len(got) > 0 {
		t.Errorf("named after it was removed: %+v", got)
	}
}
