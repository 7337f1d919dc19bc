package host_test

import (
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/migration"
)

// clone defines an instance of other hands that stands on the changed one's disk.
func (b *changeBed) clone() {
	b.t.Helper()
	b.files.Put("/images/clone.qcow2", "qcow2", 1<<30, "little")
	b.files.Back("/images/clone.qcow2", rootFile)
	b.other("/images/clone.qcow2")
}

func (b *changeBed) other(path string) {
	b.t.Helper()
	b.must("define", b.a.fake.Define(b.t.Context(), foreignXML("foreign",
		`<disk type='file'><driver name='qemu' type='qcow2'/><source file='`+path+`'/><target dev='vda'/></disk>`, "")))
}

// TestChange_ADiskThatOthersStandOn_IsNotReplaced: neither where they were there before, nor
// where they came while the change was prepared.
func TestChange_ADiskThatOthersStandOn_IsNotReplaced(t *testing.T) {
	for name, plan := range map[string]migration.Change{"rebuild": {Image: &migration.Image{Path: newImage}}, "resize": {Flavor: &pinned3}} {
		for _, late := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				b := newChange(t, floats2, driver.Running, plan)
				b.look()
				if !late {
					b.clone()
				}
				var err error
				at := 0
				for i, v := range b.verbs() {
					if v.name == "apply" && late {
						b.clone()
					}
					if at, err = i, v.do(); err != nil {
						break
					}
				}
				if want := map[bool]string{false: "prep", true: "apply"}[late]; b.verbs()[at].name != want {
					t.Fatalf("it ended at %s (%v), want %s", b.verbs()[at].name, err, want)
				}
				if diff := gocmp.Diff([]string{"disk_used_by_others"}, codes(err)); diff != "" || !strings.Contains(err.Error(), "foreign") {
					t.Errorf("reasons (-want +got):\n%s\n%v", diff, err)
				}
				b.back(at)
				b.state("a", b.uuid, driver.Running)
				if data, _, _ := b.files.Data(rootFile); data != "old system" {
					t.Errorf("the disk has %q", data)
				}
			})
		}
	}
}

// TestChange_ADoubtKeepsTheOldFile, and does not hold up the change: an image of another
// instance cannot be read.
func TestChange_ADoubtKeepsTheOldFile(t *testing.T) {
	b := newChange(t, floats2, driver.Running, migration.Change{Image: &migration.Image{Path: newImage}})
	b.files.Put("/images/broken.qcow2", "garbage", 1<<30, "?")
	b.other("/images/broken.qcow2")
	b.look()
	b.must("change", b.forward(0))
	b.finish()
	if data, _, _ := b.files.Data(rootFile); data != "new system" {
		t.Errorf("the disk has %q", data)
	}
	kept := slices.DeleteFunc(b.files.List(), func(path string) bool { return !strings.HasSuffix(path, ".kept") })
	if len(kept) != 1 {
		t.Fatalf("files %v: the old disk is not kept", b.files.List())
	}
	if data, _, _ := b.files.Data(kept[0]); data != "old system" {
		t.Errorf("kept is %q", data)
	}
	if left := b.picture()["a memories"]; len(left) > 0 {
		t.Errorf("left of the change: %v", left)
	}
}
