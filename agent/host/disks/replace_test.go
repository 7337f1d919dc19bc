package disks_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// A disk that grows keeps what it has, its chain included.
func TestBuildCopy_GrowsAnImageAndKeepsItsChain(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/img/base.raw", strings.Repeat("x", 64<<10))
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw", f.Real("/img/disk.qcow2"), "8M")
	if err := errors.Join(os.Chmod(f.Real("/img/disk.qcow2"), 0o640), os.Chown(f.Real("/img/disk.qcow2"), os.Getuid(), os.Getgid())); err != nil {
		t.Fatal(err)
	}
	r, err := f.PlanReplace("m1", disks.PartName(1, "vda"), "/img/disk.qcow2")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.BuildCopy(t.Context(), &r, "qcow2", 32<<20), f.Replace(r)); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(f.Real("/img/disk.qcow2")); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v: want the old file's", fi.Mode(), err)
	}
	for path, size := range map[string]int64{"/img/disk.qcow2": 32 << 20, r.Kept: 8 << 20} {
		img, err := f.Image(t.Context(), path, "qcow2")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"/img/base.raw"}, img.Backing); diff != "" || img.VirtualSize != size {
			t.Errorf("%s: %d bytes, chain (-want +got):\n%s", path, img.VirtualSize, diff)
		}
	}
	qemuImg(t, "compare", "-q", "-f", "qcow2", "-F", "qcow2", f.Real("/img/disk.qcow2"), f.Real(r.Kept))
}

func TestBuildCopy_HolesStayHoles(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/disk", "head")
	if err := os.Truncate(f.Real("/disk"), 1<<30); err != nil {
		t.Fatal(err)
	}
	if need, err := f.CopyNeeds("/disk"); err != nil || need > 1<<20 {
		t.Errorf("a copy needs %d bytes, %v", need, err)
	}
	r, err := f.PlanReplace("m1", "1-vda", "/disk")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.BuildCopy(t.Context(), &r, "raw", 2<<30); err != nil {
		t.Fatal(err)
	}
	if img, err := f.Image(t.Context(), r.Part, "raw"); err != nil || img.VirtualSize != 2<<30 || img.ActualSize > 1<<20 {
		t.Errorf("copy: %+v, %v", img, err)
	}
	for _, path := range []string{"/disk", r.Part} {
		file, err := os.Open(f.Real(path))
		if err != nil {
			t.Fatal(err)
		}
		head := make([]byte, 8)
		if _, err := file.ReadAt(head, 0); err != nil || string(head) != "head\x00\x00\x00\x00" {
			t.Errorf("%s begins with %q, %v", path, head, err)
		}
		file.Close()
	}
}

// A filesystem that is full is a refusal, and the copy is gone.
func TestBuildCopy_WithoutRoomLeavesNothing(t *testing.T) {
	f := files(t)
	put(t, f, "/tool", "#!/bin/sh\necho 'qemu-img: Failed to grow the L1 table: No space left on device' >&2\nexit 1\n")
	if err := os.Chmod(f.Real("/tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.Tool = f.Real("/tool")
	put(t, f, "/disk", "data")
	before := tree(t, f)
	r, err := f.PlanReplace("m1", "1-vda", "/disk")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.BuildCopy(t.Context(), &r, "raw", 1<<20); !errors.Is(err, fault.DoesNotFit) {
		t.Errorf("without room: %v, want does not fit", err)
	}
	if diff := cmp.Diff(before, tree(t, f)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func TestPlanReplace_NeedsAPlainFile(t *testing.T) {
	f := files(t)
	put(t, f, "/disk", "data")
	if err := os.Symlink(f.Real("/disk"), f.Real("/link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/link", "/"} {
		if _, err := f.PlanReplace("m1", "1-vda", path); !errors.Is(err, fault.Forbidden) {
			t.Errorf("replace %s: %v, want forbidden", path, err)
		}
	}
}

// An image that keeps its data elsewhere says so, as one with a backing file does.
func TestImage_NamesDataKeptApart(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	for _, tt := range []struct{ named, want string }{{f.Real("/data.raw"), f.Real("/data.raw")}, {"data.raw", "/data.raw"}} {
		create := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+tt.named, f.Real("/image.qcow2"), "1M")
		create.Dir = f.Real("/")
		if out, err := create.CombinedOutput(); err != nil {
			t.Fatalf("make the image: %v\n%s", err, out)
		}
		got, err := f.Image(t.Context(), "/image.qcow2", "qcow2")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{tt.want}, got.Outside); diff != "" {
			t.Errorf("files apart (-want +got):\n%s", diff)
		}
	}
}

// TestReplace_RefusesADiskThatWasWrittenTo: a guest that somebody started while its disk was
// copied loses nothing of what it wrote.
func TestReplace_RefusesADiskThatWasWrittenTo(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/img/disk.raw", "before")
	r, err := f.PlanReplace("m1", disks.PartName(1, "vda"), "/img/disk.raw")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.BuildCopy(t.Context(), &r, "raw", 1<<20); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(f.Real("/img/disk.raw"), later, later); err != nil {
		t.Fatal(err)
	}
	if err := f.Replace(r); !errors.Is(err, fault.Forbidden) {
		t.Fatalf("replace a disk that was written to: %v, want forbidden", err)
	}
	for range 2 {
		if err := f.PutBack(r); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"/img", "/img/disk.raw"}, tree(t, f)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestPartName_StaysInItsFolder also where a document from elsewhere names its disk so that
// it would lead to another.
func TestPartName_StaysInItsFolder(t *testing.T) {
	f := files(t)
	put(t, f, "/img/disk.raw", "x")
	r, err := f.PlanReplace("m1", disks.PartName(1, "/../../etc/vda"), "/img/disk.raw")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.Part, r.Kept} {
		if filepath.Dir(path) != "/img" {
			t.Errorf("%s is not beside the disk", path)
		}
	}
	if got := disks.PartName(2, "vda.1"); got != "2-vda.1" {
		t.Errorf("PartName: %s", got)
	}
}
