package host

import (
	"context"
	"maps"
	"testing"

	"berth/agent/host/volumes"
	"berth/driver"
	"berth/internal/fault"
)

func TestWrittenBy_FindsVolumesToo(t *testing.T) {
	const definition = `<domain type='kvm'><name>i</name><uuid>11111111-2222-4333-8444-555555555555</uuid><memory>1024</memory><vcpu>1</vcpu><devices>
		<disk type='file'><source file='/a'/><target dev='vda'/></disk><disk type='block'><source dev='/dev/b'/><target dev='vdb'/></disk>
		<disk type='volume'><source pool='p' volume='c'/><target dev='vdc'/></disk><disk type='volume'><source pool='gone' volume='d'/><target dev='vdd'/></disk>
		<disk type='volume'><source pool='p' volume='e'/><target dev='vde'/><readonly/></disk><disk type='volume'><source pool='p' volume='f'/><target dev='vdf'/><shareable/></disk></devices></domain>`
	find := func(_ context.Context, d volumes.Disk) (string, bool, error) {
		if d.Pool == "gone" {
			return "", false, fault.New(fault.NotFound, "no pool")
		}
		return "/pool/" + d.Volume, false, nil
	}
	got, err := writtenBy(t.Context(), definition, find)
	if want := map[string]string{"/a": "vda", "/dev/b": "vdb", "/pool/c": "vdc"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	silent := func(context.Context, volumes.Disk) (string, bool, error) {
		return "", false, fault.New(fault.Unavailable, "libvirt does not answer")
	}
	if _, err := writtenBy(t.Context(), definition, silent); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("silent: %v", err)
	}
}

// A pool that another host reaches, too, has its volumes here as files or devices where libvirt
// mounts or attaches them.
func TestVolumePath_OfPoolsInTheNetwork(t *testing.T) {
	p := newBed(t)
	a := p.fleet.Host("a")
	for _, pool := range []driver.Pool{{Name: "nfs", Type: "netfs"}, {Name: "luns", Type: "iscsi"}, {Name: "ceph", Type: "rbd"}, {Name: "away", Type: "netfs"}} {
		a.SetPool(pool, driver.Volume{Name: "v", Path: map[string]string{"nfs": "/mnt/v", "away": "/mnt/v", "luns": "/dev/disk/by-path/v", "ceph": "pool/v"}[pool.Name]})
		if pool.Name != "away" {
			if err := a.OpenPool(t.Context(), pool.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct{ pool, want string }{{"nfs", "/mnt/v"}, {"luns", "/dev/disk/by-path/v"}, {"ceph", ""}, {"away", ""}} {
		path, network, err := p.volumePath(t.Context(), volumes.Disk{Pool: tt.pool, Volume: "v"})
		if path != tt.want || !network || err != nil {
			t.Errorf("%s: %q, %v, %v; want %q", tt.pool, path, network, err, tt.want)
		}
	}
}
