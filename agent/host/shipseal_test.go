package host_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/driver"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// TestShip_ComparesABackingFileBehindALink: where hosts keep their base images behind a
// link, what was compared is what is looked at once more when all is sealed.
func TestShip_ComparesABackingFileBehindALink(t *testing.T) {
	for _, late := range []bool{false, true} {
		l, v := chained(t)
		behind := func() {
			l.copy(t, base)
			l.must("move it", os.Rename(l.hosts["b"].path(base), l.hosts["b"].path("/images/pool.qcow2")))
			l.must("link it", os.Symlink("pool.qcow2", l.hosts["b"].path(base)))
		}
		if !late {
			behind()
		}
		c := newCold(t, l, v.UUID, nil)
		c.run(c.there(), "power off")
		l.must("ship", c.pump(func(verb string) error {
			if late && verb == "SealDisks" { // another guest's chain brings it
				behind()
			}
			return nil
		}))
		c.arrived(disk)
	}
}

// TestCold_DataApartStaysWhereItIs: an image that keeps its data in another file is neither
// shipped without it, nor copied to grow.
func TestCold_DataApartStaysWhereItIs(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	a.put(t, "/images/there", "", 0o644)
	a.qemuImg(t, "create", "-q", "-f", "qcow2", "-o", "data_file="+a.path("/images/vm1.data"), a.path(disk), "8M")
	v := l.guest("a", "vm1", host.CreateDisk{Path: disk, Format: "qcow2"})
	grown := topology.Flavor{Name: "grown", VCPUs: 1, MemoryMB: 64, DiskGB: 50}
	_, err := operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Flavor: &grown})
	if diff := cmp.Diff([]string{"disk_data_apart"}, codes(err)); diff != "" {
		t.Errorf("grow it (-want +got):\n%s\n%v", diff, err)
	}
	if diff := cmp.Diff([]string{"disk_data_apart"}, codes(newCold(t, l, v.UUID, nil).check())); diff != "" {
		t.Errorf("ship it (-want +got):\n%s", diff)
	}
}

// TestConfirm_ADiskThatOthersNeedStays: clones stand on the disk of their template, which
// may move while it is off, and another guest may have it too, by whatever name.
func TestConfirm_ADiskThatOthersNeedStays(t *testing.T) {
	for name, by := range map[string]func(a *node) host.CreateDisk{
		"stands on it": func(a *node) host.CreateDisk {
			a.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "vm1.qcow2", "-F", "qcow2", a.path("/images/clone.qcow2"))
			return host.CreateDisk{Path: "/images/clone.qcow2", Format: "qcow2"}
		},
		"stands on it by a link": func(a *node) host.CreateDisk {
			if err := os.Symlink("vm1.qcow2", a.path("/images/link.qcow2")); err != nil {
				t.Fatal(err)
			}
			a.qemuImg(t, "create", "-q", "-f", "qcow2", "-b", "link.qcow2", "-F", "qcow2", a.path("/images/clone.qcow2"))
			return host.CreateDisk{Path: "/images/clone.qcow2", Format: "qcow2"}
		},
		"has it by a link": func(a *node) host.CreateDisk {
			if err := os.Symlink("vm1.qcow2", a.path("/images/link.qcow2")); err != nil {
				t.Fatal(err)
			}
			return host.CreateDisk{Path: "/images/link.qcow2", Format: "qcow2"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, v := chained(t)
			l.guest("a", "other", by(l.hosts["a"]))
			c := newCold(t, l, v.UUID, nil)
			c.run(c.there(), "finish resize")
			l.must("confirm", operation.ConfirmSource.Ask(t.Context(), c.a, c.ref))
			if _, err := os.Stat(c.a.path(disk)); err != nil {
				t.Errorf("the other guest has lost what it needs: %v", err)
			}
		})
	}
}

// TestConfirm_ADiskBehindALinkGoesWithIt: where the guest names its disk by a link, both are
// removed.
func TestConfirm_ADiskBehindALinkGoesWithIt(t *testing.T) {
	l, c := shipLab(t)
	l.must("move it", os.Rename(c.a.path(disk), c.a.path("/images/real.raw")))
	l.must("link it", os.Symlink("real.raw", c.a.path(disk)))
	c.run(c.there(), "finish resize")
	l.must("confirm", operation.ConfirmSource.Ask(t.Context(), c.a, c.ref))
	if diff := cmp.Diff([]string{"/images"}, l.picture()["a files"]); diff != "" {
		t.Errorf("files at the source (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/images", disk}, l.picture()["b files"]); diff != "" {
		t.Errorf("files at the destination (-want +got):\n%s", diff)
	}
}

// TestHandOver_RefusesADiskThatWasWrittenTo: a guest that was started and stopped after its
// disks were shipped keeps what it wrote, and stays.
func TestHandOver_RefusesADiskThatWasWrittenTo(t *testing.T) {
	for _, shared := range []bool{false, true} {
		l, world := storedLab(t, shared)
		v := l.storedGuest(small)
		c := newCold(t, l, v.UUID, nil)
		steps := c.there()
		c.run(steps, "ship disks")
		l.must("start it", c.a.fake.Start(t.Context(), v.UUID, false))
		world.Host("a").Write("/images/vm1.raw", "written meanwhile")
		l.must("stop it", c.a.fake.Destroy(t.Context(), v.UUID))
		_, err := operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"})
		if shared {
			l.must("hand over a guest on shared storage", err)
			continue
		}
		if diff := cmp.Diff([]string{"disk_changed"}, codes(err)); diff != "" || !strings.Contains(err.Error(), "vda") {
			t.Fatalf("hand over (-want +got):\n%s\n%v", diff, err)
		}
		for _, s := range slices.Backward(steps) {
			if s.undo != nil {
				l.must("undo "+s.name, s.undo())
			}
		}
		c.lives(c.a, driver.Running, small, 1)
		if data, _, _ := world.Host("a").Data("/images/vm1.raw"); data != "written meanwhile" {
			t.Errorf("its disk: %q", data)
		}
	}
}
