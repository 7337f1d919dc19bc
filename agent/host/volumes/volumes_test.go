package volumes_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/volumes"
	"berth/driver"
	"berth/internal/fault"
)

const document = `<domain><devices>
<disk type='file' device='disk'><source file='/images/a.qcow2'/><target dev='vda'/>
  <encryption format='luks'><secret type='passphrase' usage='a'/></encryption></disk>
<disk type='block' device='disk'><source dev='/dev/mapper/b'/><target dev='vdb'/></disk>
<disk type='volume' device='disk'><source pool='images' volume='c'/><target dev='vdc'/></disk>
<disk type='network' device='disk'><source protocol='rbd' name='pool/d'><host name='mon1' port='6789'/><host name='mon2'/>
  <auth username='libvirt'><secret type='ceph' uuid='457eb676-33da-42ec-9a8c-9293d545c337'/></auth></source><target dev='vdd'/></disk>
<disk type='network' device='disk'><auth username='old'><secret type='iscsi' usage='libvirtiscsi'/></auth>
  <source protocol='iscsi' name='iqn.2013-07.com.example:iscsi-pool/1'><host name='example.com'/></source><target dev='vde'/></disk>
<disk type='network' device='disk'><source protocol='nbd'><host transport='unix' socket='/run/nbd.sock'/></source><target dev='vdf'/></disk>
<disk type='file' device='cdrom'><target dev='sda'/></disk>
</devices></domain>`

func TestOf_ReadsDisks(t *testing.T) {
	got, err := volumes.Of(document)
	if err != nil {
		t.Fatal(err)
	}
	want := []volumes.Disk{
		{Target: "vda", Type: "file", Path: "/images/a.qcow2", Secrets: []driver.SecretRef{{Type: "volume", Usage: "a"}}},
		{Target: "vdb", Type: "block", Path: "/dev/mapper/b"},
		{Target: "vdc", Type: "volume", Pool: "images", Volume: "c"},
		{Target: "vdd", Type: "network", Protocol: "rbd", Name: "pool/d", Hosts: []string{"mon1", "mon2"},
			Secrets: []driver.SecretRef{{UUID: "457eb676-33da-42ec-9a8c-9293d545c337", Type: "ceph"}}},
		{Target: "vde", Type: "network", Protocol: "iscsi", Name: "iqn.2013-07.com.example:iscsi-pool/1", Hosts: []string{"example.com"},
			Secrets: []driver.SecretRef{{Type: "iscsi", Usage: "libvirtiscsi"}}},
		{Target: "vdf", Type: "network", Protocol: "nbd", Hosts: []string{"/run/nbd.sock"}},
		{Target: "sda", Type: "file", ReadOnly: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("disks (-want +got):\n%s", diff)
	}
	if _, err := volumes.Of("<domain>"); !errors.Is(err, fault.Invalid) {
		t.Errorf("half a document: %v, want invalid", err)
	}
}

// host is what a host has: pools with what they show when they are read, secrets, files
// with their identities.
type host struct {
	pools   map[string]*driver.Pool
	volumes map[string]bool // POOL/NAME
	secrets map[driver.SecretRef]bool
	files   map[string]string
}

func newHost() *host {
	return &host{
		pools: map[string]*driver.Pool{
			"up": {Name: "up", Active: true}, "down": {Name: "down"}, "auto": {Name: "auto", Autostart: true, Persistent: true},
		},
		volumes: map[string]bool{"up/v": true, "auto/v": true},
		secrets: map[driver.SecretRef]bool{{UUID: "u"}: true},
		files:   map[string]string{"/images/a": "nfs/x/1", "/etc/ceph/ceph.conf": ""},
	}
}

func (h *host) Pool(_ context.Context, name string) (driver.Pool, error) {
	if p := h.pools[name]; p != nil {
		return *p, nil
	}
	return driver.Pool{}, fault.New(fault.NotFound, "pool %s", name)
}

func (h *host) set(name string, active bool) error {
	if h.pools[name] == nil {
		return fault.New(fault.NotFound, "pool %s", name)
	}
	h.pools[name].Active = active
	return nil
}

func (h *host) OpenPool(_ context.Context, name string) error  { return h.set(name, true) }
func (h *host) ClosePool(_ context.Context, name string) error { return h.set(name, false) }

func (h *host) Volume(_ context.Context, pool, name string) (driver.Volume, error) {
	if !h.volumes[pool+"/"+name] {
		return driver.Volume{}, fault.New(fault.NotFound, "volume %s", name)
	}
	return driver.Volume{Name: name}, nil
}

func (h *host) Secret(_ context.Context, s driver.SecretRef) error {
	if !h.secrets[s] {
		return fault.New(fault.NotFound, "secret %+v", s)
	}
	return nil
}

func (h *host) Exists(path string) (bool, error) { _, ok := h.files[path]; return ok, nil }

func (h *host) Identity(path string) (string, error) {
	id, ok := h.files[path]
	if !ok {
		return "", fault.New(fault.NotFound, "file %s", path)
	}
	return id, nil
}

func TestCheck_GivesTheReasonOfEachKind(t *testing.T) {
	for _, tt := range []struct {
		name string
		disk volumes.Disk
		want string // codes; empty for none
	}{
		{"a pool that is active", volumes.Disk{Type: "volume", Pool: "up", Volume: "v"}, ""},
		{"a pool that is to be started", volumes.Disk{Type: "volume", Pool: "auto", Volume: "v"}, ""},
		{"a pool that somebody stopped", volumes.Disk{Type: "volume", Pool: "down", Volume: "v"}, "pool_inactive"},
		{"a pool that is not there", volumes.Disk{Type: "volume", Pool: "none", Volume: "v"}, "pool_missing"},
		{"a secret", volumes.Disk{Type: "network", Protocol: "rbd", Hosts: []string{"mon"}, Secrets: []driver.SecretRef{{UUID: "u"}}}, ""},
		{"secrets that are not there, all of them", volumes.Disk{Type: "network", Protocol: "rbd", Hosts: []string{"mon"},
			Secrets: []driver.SecretRef{{UUID: "w"}, {Type: "ceph", Usage: "x"}}}, "secret_missing secret_missing"},
		{"monitors of the host's own file", volumes.Disk{Type: "network", Protocol: "rbd"}, ""},
		{"monitors of a file that is not there", volumes.Disk{Type: "network", Protocol: "rbd", Config: "/etc/ceph/b.conf"}, "ceph_conf_missing"},
		{"no host", volumes.Disk{Type: "network", Protocol: "iscsi"}, "disk_host_unnamed"},
		{"the same file", volumes.Disk{Type: "file", Path: "/images/a", Identity: "nfs/x/1"}, ""},
		{"another file of that name", volumes.Disk{Type: "file", Path: "/images/a", Identity: "nfs/x/2"}, "disk_not_shared"},
		{"no file", volumes.Disk{Type: "block", Path: "/dev/b", Identity: "wwn/1"}, "disk_not_shared"},
		{"a file of which nobody has told", volumes.Disk{Type: "file", Path: "/images/b"}, ""},
		{"an empty drive", volumes.Disk{Type: "file"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost()
			var got []string
			for _, kind := range volumes.All(h, h, nil) {
				if !kind.Serves(tt.disk) {
					continue
				}
				reasons, err := kind.Check(t.Context(), tt.disk)
				if err != nil {
					t.Error(err)
				}
				for _, r := range reasons {
					if r.Message == "" || r.Change == "" {
						t.Errorf("reason %+v says too little", r)
					}
					got = append(got, r.Code)
				}
			}
			if text := strings.Join(got, " "); text != tt.want {
				t.Errorf("reasons %q, want %q", text, tt.want)
			}
			if h.pools["auto"].Active {
				t.Error("the check has started a pool")
			}
		})
	}
}

func TestPools_AreLeftAsTheyWereFound(t *testing.T) {
	unused := func(driver.Pool) (bool, error) { return false, nil }
	used := func(driver.Pool) (bool, error) { return true, nil }
	for _, tt := range []struct {
		name, pool string
		inUse      func(driver.Pool) (bool, error)
		active     bool
	}{
		{"one that was started is stopped", "auto", unused, false},
		{"unless another guest uses it by now", "auto", used, true},
		{"one that was active stays so", "up", unused, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost()
			p := volumes.Pools{Lookup: h}
			m, err := p.Plan(t.Context(), volumes.Disk{Target: "vda", Type: "volume", Pool: tt.pool, Volume: "v"})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := p.Prepare(t.Context(), *m); err != nil {
					t.Fatal(err)
				}
			}
			if !h.pools[tt.pool].Active {
				t.Fatal("the pool was not started")
			}
			for range 2 {
				if err := p.Undo(t.Context(), *m, tt.inUse); err != nil {
					t.Fatal(err)
				}
			}
			if got := h.pools[tt.pool].Active; got != tt.active {
				t.Errorf("active %v, want %v", got, tt.active)
			}
		})
	}
}

// started are the pools that were started here.
type started map[string]bool

func (s started) Note(_ context.Context, pool string) error { s[pool] = true; return nil }
func (s started) Drop(_ context.Context, pool string) error { delete(s, pool); return nil }
func (s started) Has(pool string) (bool, error)             { return s[pool], nil }

func TestPools_ThatWereStartedAreGivenUpWithTheirGuest(t *testing.T) {
	for _, tt := range []struct {
		name, pool string
		used       bool
		taken      bool
		active     bool // while the guest is away
	}{
		{"one that was started here", "auto", false, true, false},
		{"unless another guest may want it", "auto", true, true, true},
		{"one that was active before stays", "up", false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, s := newHost(), started{}
			p := volumes.Pools{Lookup: h, Started: s}
			d := volumes.Disk{Target: "vda", Type: "volume", Pool: tt.pool, Volume: "v"}
			if err := p.Activate(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			x, err := p.Attached(t.Context(), d)
			if err != nil || (x != nil) != tt.taken {
				t.Fatalf("attached %+v, %v", x, err)
			}
			if x == nil {
				return
			}
			for range 2 {
				if err := p.Take(t.Context(), *x, func(driver.Pool) (bool, error) { return tt.used, nil }); err != nil {
					t.Fatal(err)
				}
			}
			if got := h.pools[tt.pool].Active; got != tt.active || s[tt.pool] != tt.active {
				t.Errorf("active %v, noted %v while the guest is away; want %v", got, s[tt.pool], tt.active)
			}
			for range 2 {
				if err := p.Restore(t.Context(), *x); err != nil {
					t.Fatal(err)
				}
			}
			if !h.pools[tt.pool].Active || !s[tt.pool] {
				t.Error("it is not active, or not known for one that was started here, after the undo")
			}
			delete(h.pools, tt.pool)
			if err := p.Restore(t.Context(), *x); err != nil {
				t.Errorf("a pool that somebody has removed meanwhile: %v", err)
			}
		})
	}
}

func TestActivate_RefusesAGuestWhoseDiskIsNotThere(t *testing.T) {
	for _, tt := range []struct {
		name string
		disk volumes.Disk
		want string
	}{
		{"a volume that is not in its pool", volumes.Disk{Target: "vda", Type: "volume", Pool: "up", Volume: "w"}, "volume_missing"},
		{"a file that is not there", volumes.Disk{Target: "vda", Type: "file", Path: "/images/b"}, "disk_missing"},
		{"all there", volumes.Disk{Target: "vda", Type: "file", Path: "/images/a"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost()
			var codes []string
			for _, kind := range volumes.All(h, h, nil) {
				if !kind.Serves(tt.disk) {
					continue
				}
				for _, r := range fault.ReasonsOf(kind.Activate(t.Context(), tt.disk)) {
					codes = append(codes, r.Code)
				}
			}
			if got := strings.Join(codes, " "); got != tt.want {
				t.Errorf("reasons %q, want %q", got, tt.want)
			}
		})
	}
}
