package host_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/claims"
	"berth/driver"
	"berth/migration"
	"berth/migration/operation"
)

// From what a guest's disks were made is known for as long as it lives: a host that makes it anew
// has nobody to ask.
func TestImages_FollowARebuildAndItsRevert(t *testing.T) {
	b := newChange(t, floats2, driver.ShutOff, migration.Change{Image: &migration.Image{Path: newImage, Format: "raw"}})
	want := func(when string, image claims.Image) {
		t.Helper()
		inst, _ := b.a.tracker.Instance(b.uuid)
		if diff := gocmp.Diff(map[string]claims.Image{"vda": image}, inst.Images); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
		g, err := operation.Inspect.Ask(t.Context(), b.a, migration.Ref{Instance: b.uuid})
		b.must("inspect", err)
		if diff := gocmp.Diff(&migration.Image{Path: image.Path, Format: image.Format}, g.Disks[0].Image); diff != "" {
			t.Errorf("%s, as a conductor is told (-want +got):\n%s", when, diff)
		}
	}
	want("created", claims.Image{Path: baseImage, Format: "qcow2"})
	b.look()
	b.must("change", b.forward(0))
	b.crash()
	want("rebuilt", claims.Image{Path: newImage, Format: "raw"})
	b.back(len(b.verbs()) - 1)
	want("taken back", claims.Image{Path: baseImage, Format: "qcow2"})
}

func TestImages_GoAlongWithAMove(t *testing.T) {
	l, v := coldLab(t)
	inst, _ := l.hosts["a"].tracker.Instance(v.UUID)
	inst.Images = map[string]claims.Image{"vda": {Path: baseImage, Format: "qcow2"}}
	_, err := l.hosts["a"].tracker.PutInstance(t.Context(), inst)
	l.must("put its record", err)
	c := newCold(t, l, v.UUID, nil)
	if len(c.guest.Disks) > 0 {
		t.Fatalf("the guest has disks: %+v", c.guest.Disks)
	}
	c.guest.Disks = []migration.Disk{{Target: "vda", Network: true, Image: &migration.Image{Path: baseImage, Format: "qcow2"}}}
	for _, s := range c.there() {
		l.must(s.name, s.do())
	}
	got, _ := c.b.tracker.Instance(v.UUID)
	if diff := gocmp.Diff(inst.Images, got.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}
