package agent

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/agent/host/fileusers"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/migration"
	"berth/topology"
)

// TestDelete_AFileThatOthersSeeStaysWhereTheyUseIt, or do not answer; two agents over TLS.
func TestDelete_AFileThatOthersSeeStaysWhereTheyUseIt(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (Debian: qemu-utils)")
	}
	dir := t.TempDir()
	store := fleettest.NewMemory(&runtime.System{})
	p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
		o.FleetStore = func(config.Config) (fleet.Store, error) { return store.Client("host-a"), nil }
		o.Config.Host.DiskPath, o.Config.Host.SharedDirs = dir, []string{dir}
	})
	other := p.fleet.Host("host-b")
	uses := func(path string) {
		t.Helper()
		p.must(other.Define(t.Context(), `<domain type='kvm'><name>other</name><uuid>44444444-4444-4444-8444-444444444444</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
			<os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
			<devices><disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='`+path+`'/><target dev='vda' bus='virtio'/></disk></devices></domain>`))
	}
	for _, c := range []struct {
		name  string
		there func(disk string)
		want  string // in the reason; empty: the file goes
	}{
		{"its own disk", uses, "other"},
		{"below its disk", func(disk string) {
			clone := filepath.Join(dir, "clone.qcow2")
			if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", disk, clone).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			uses(clone)
		}, "other"},
		{"by another path", func(disk string) {
			elsewhere := t.TempDir()
			p.must(os.Symlink(dir, elsewhere+"/mounted"))
			uses(elsewhere + "/mounted/" + filepath.Base(disk))
		}, "other"},
		{"nobody", func(string) { p.must(other.Undefine(t.Context(), "44444444-4444-4444-8444-444444444444")) }, ""},
		{"silent", func(string) { p.must(p.stop["host-b"]()) }, "host-b does not say"},
		{"dead", func(string) {
			_, err := p.clients["host-a"].DeclareDead(t.Context(), "host-b", api.DeclareDead{Because: "burnt", Force: true})
			p.must(err)
		}, "counts as dead"},
		{"forgotten", func(string) {
			_, err := p.clients["host-a"].ForgetHost(t.Context(), "host-b", api.ForgetHost{})
			p.must(err)
		}, ""},
	} {
		r := api.CreateInstance{}
		r.Name, r.Kernel = "web", p.kernel
		r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
		disk := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-")+".qcow2")
		r.Disks = []host.CreateDisk{{Path: disk, Format: "qcow2", SizeGB: 1}}
		_, err := p.clients["host-a"].CreateInstance(t.Context(), r)
		p.must(err)
		c.there(disk)
		left, err := p.clients["host-a"].DeleteInstance(t.Context(), "web", api.DeleteInstance{Disks: true})
		p.must(err)
		_, err = os.Stat(disk)
		switch {
		case c.want == "" && (err == nil || len(left.Kept) > 0):
			t.Errorf("%s: the file stays: %+v", c.name, left.Kept)
		case c.want != "" && (err != nil || len(left.Kept) != 1 || !strings.Contains(left.Kept[0].Reason, "host-b") || !strings.Contains(left.Kept[0].Reason, c.want) || left.Kept[0].Change == ""):
			t.Errorf("%s: %v, kept %+v", c.name, err, left.Kept)
		}
	}
}

func TestUsersInRecords_NamesWhoeverHasAFile(t *testing.T) {
	record := func(uuid string, d migration.Disk) fleet.Instance {
		g, err := json.Marshal(migration.Guest{UUID: uuid, Disks: []migration.Disk{d}})
		if err != nil {
			t.Fatal(err)
		}
		return fleet.Instance{UUID: uuid, Name: uuid, Host: "host-b", Guest: g}
	}
	const nfs, other = "nfs/server:/x/1/aa", "nfs/server:/x/1/bb"
	file := fileusers.Question{Path: "/shared/t", Identity: nfs}
	for name, c := range map[string]struct {
		in   fleet.Instance
		want bool
	}{
		"the same file":                 {record("i", migration.Disk{Path: "/mnt/t", Filesystem: nfs}), true},
		"below":                         {record("i", migration.Disk{Path: "/mnt/c", Filesystem: other, Chain: []migration.BackingFile{{Path: "/mnt/t", Filesystem: nfs}}}), true},
		"that name, another identity":   {record("i", migration.Disk{Path: "/shared/t", Filesystem: other}), true},
		"by another name of its server": {record("i", migration.Disk{Path: "/mnt/t", Filesystem: "nfs/10.0.0.5:/x/1/aa"}), true},
		"that name, and nothing else":   {record("i", migration.Disk{Path: "/shared/t"}), true},
		"below, by an older agent":      {record("i", migration.Disk{Path: "/mnt/c", Filesystem: other, BackingFile: "/shared/t"}), true},
		"its own":                       {record("mine", migration.Disk{Path: "/shared/t", Filesystem: nfs}), false},
		"a record that cannot be read":  {fleet.Instance{UUID: "i", Guest: json.RawMessage("{")}, true},
		"another":                       {record("i", migration.Disk{Path: "/shared/u", Filesystem: other}), false},
	} {
		got := usersInRecords([]fleet.Instance{c.in}, "mine", []fileusers.Question{file})
		if used := len(got["/shared/t"]) > 0; used != c.want {
			t.Errorf("%s: used %v (%v)", name, used, got)
		}
	}
}

// A host of Placement on which Berth never ran does not answer for ever. An operator's line of
// configuration excuses it, unless the fleet's records show that Berth runs there.
func TestDelete_AHostWithoutBerth_IsExcusedByTheOperatorAlone(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (Debian: qemu-utils)")
	}
	for _, c := range []struct {
		listed         []string
		recorded, goes bool
	}{{[]string{"host-b"}, false, true}, {[]string{"host-b"}, true, false}, {nil, false, false}} {
		recorded := c.recorded
		dir := t.TempDir()
		store := fleettest.NewMemory(&runtime.System{})
		p := newHosts(t, time.Hour, []string{"host-a", "host-b"}, func(o *Options) {
			o.FleetStore = func(config.Config) (fleet.Store, error) { return store.Client("host-a"), nil }
			if o.Config.Agent.Name == "host-b" { // it is to have no record
				o.FleetStore = func(config.Config) (fleet.Store, error) {
					return fleettest.NewMemory(&runtime.System{}).Client("host-b"), nil
				}
			}
			o.Config.Host.DiskPath, o.Config.Host.SharedDirs, o.Config.Host.HostsWithoutBerth = dir, []string{dir}, c.listed
		})
		p.must(p.stop["host-b"]())
		if recorded {
			p.must(fleet.New(store.Client("test"), &runtime.System{}).PutHost(t.Context(), fleet.Host{Name: "host-b", ProviderUUID: "b", Boot: "boot"}))
		}
		disk := filepath.Join(dir, "disk.qcow2")
		r := api.CreateInstance{}
		r.Name, r.Kernel = "web", p.kernel
		r.Flavor = topology.Flavor{Name: "small", VCPUs: 1, MemoryMB: 128, DiskGB: 1}
		r.Disks = []host.CreateDisk{{Path: disk, Format: "qcow2", SizeGB: 1}}
		_, err := p.clients["host-a"].CreateInstance(t.Context(), r)
		p.must(err)
		left, err := p.clients["host-a"].DeleteInstance(t.Context(), "web", api.DeleteInstance{Disks: true})
		p.must(err)
		if _, err := os.Stat(disk); (err != nil) != c.goes || (len(left.Kept) == 0) != c.goes {
			t.Errorf("%+v: the file %v, kept %+v", c, err, left.Kept)
		}
	}
}
