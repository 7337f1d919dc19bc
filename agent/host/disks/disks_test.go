package disks_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
	"berth/agent/host/disks/diskstest"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/systemd/systemdtest"
)

func requireQemuImg(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("qemu-img"); err != nil {
		t.Skip("qemu-img is not installed (Debian: qemu-utils)")
	}
}

func files(t *testing.T) disks.Files {
	return disks.Files{Root: t.TempDir(), BootID: new(runtime.System).Boot().ID}
}

func qemuImg(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
}

// tree lists all files and folders below root.
func tree(t *testing.T, f disks.Files) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(f.Root, func(path string, _ os.DirEntry, err error) error {
		if path != f.Root {
			out = append(out, strings.TrimPrefix(path, f.Root))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func put(t *testing.T, f disks.Files, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.Real(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.Real(path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestImage_ReadsTheChain(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/img/base.raw", strings.Repeat("x", 64<<10))
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.raw", f.Real("/img/mid.qcow2"), "8M")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", "mid.qcow2", f.Real("/img/top.qcow2"), "16M")
	got, err := f.Image(t.Context(), "/img/top.qcow2", "qcow2")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/img/mid.qcow2", "/img/base.raw"}, got.Backing); diff != "" {
		t.Errorf("backing files (-want +got):\n%s", diff)
	}
	if got.VirtualSize != 16<<20 || got.ActualSize < 64<<10 {
		t.Errorf("virtual %d, actual %d; want 16 MiB and at least the base's 64 KiB", got.VirtualSize, got.ActualSize)
	}
}

func TestImage_NeverProbes(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/secret", "secret")
	// The guest owns a raw disk and writes an image with a backing file into it.
	qemuImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", f.Real("/secret"), f.Real("/disk.raw"), "8M")
	for _, format := range []string{"", "raw"} {
		got, err := f.Image(t.Context(), "/disk.raw", format)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Backing) > 0 || got.VirtualSize == 8<<20 {
			t.Errorf("format %q: the guest's own header was believed: %+v", format, got)
		}
	}
}

func TestImage_Failures(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	put(t, f, "/plain", "not an image")
	qemuImg(t, "create", "-q", "-f", "qcow2", "-u", "-F", "qcow2", "-b", "loop", f.Real("/loop"), "1M")
	for _, tt := range []struct {
		path string
		tool string
		kind fault.Kind
	}{
		{"/absent", "", fault.NotFound},
		{"/plain", "", fault.Invalid},
		{"/loop", "", fault.Invalid},
		{"/plain", "/nowhere/qemu-img", fault.Unavailable},
	} {
		f := disks.Files{Root: f.Root, Tool: tt.tool}
		if _, err := f.Image(t.Context(), tt.path, "qcow2"); !errors.Is(err, tt.kind) {
			t.Errorf("image %s with tool %q: %v, want %s", tt.path, tt.tool, err, tt.kind)
		}
	}
}

// Where there is a manager, images are read and made by units of their own, which are confined.
func TestTool_RunsAsAUnitOfItsOwn(t *testing.T) {
	requireQemuImg(t)
	m := systemdtest.New(t)
	f := files(t)
	f.Manager = &m.Units
	qemuImg(t, "create", "-q", "-f", "qcow2", f.Real("/a $HOME disk"), "1M")
	put(t, f, "/plain", "not an image")
	if err := f.Grow(t.Context(), "/a $HOME disk", "qcow2", 2<<20); err != nil {
		t.Error(err)
	}
	img, err := f.Image(t.Context(), "/a $HOME disk", "qcow2")
	if err != nil || img.VirtualSize != 2<<20 {
		t.Errorf("%+v, %v", img, err)
	}
	if _, err := f.Image(t.Context(), "/plain", "qcow2"); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "not in qcow2 format") {
		t.Errorf("what is no image: %v", err)
	}
	calls := strings.Split(m.Asked(), "--quiet\n")[1:]
	if len(calls) != 4 {
		t.Fatalf("%d units: %q", len(calls), calls)
	}
	for i, want := range []struct{ unit, system, network string }{
		{"--unit=berth-disk-info-", "ProtectSystem=strict", "PrivateNetwork=yes"}, {"--unit=berth-disk-resize-", "ProtectSystem=full", ""},
		{"--unit=berth-disk-info-", "ProtectSystem=strict", "PrivateNetwork=yes"}, {"--unit=berth-disk-info-", "ProtectSystem=strict", "PrivateNetwork=yes"},
	} {
		for _, word := range []string{want.unit, want.system, want.network, "MemoryMax=1G", "RuntimeMaxSec=", "InaccessiblePaths=-/var/lib/berth\n", "NoNewPrivileges=yes"} {
			if !strings.Contains(calls[i], word) {
				t.Errorf("unit %d is not asked for %q: %s", i, word, calls[i])
			}
		}
	}
	m.Refuses("Failed to connect to bus: No such file or directory")
	if _, err := f.Image(t.Context(), "/plain", "qcow2"); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "Failed to connect to bus") {
		t.Errorf("without a manager nothing is known of the image: %v", err)
	}
}

func TestIdentity_SameFileOnlyWhereItIsTheSame(t *testing.T) {
	a := files(t)
	b := disks.Files{Root: t.TempDir(), BootID: a.BootID}
	elsewhere := disks.Files{Root: b.Root, BootID: "another-machine"}
	put(t, a, "/disk", "data")
	put(t, b, "/other", "data")
	if err := os.Link(a.Real("/disk"), b.Real("/disk")); err != nil {
		t.Fatal(err)
	}
	id := func(f disks.Files, path string) string {
		t.Helper()
		s, err := f.Identity(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if id(a, "/disk") == "" || id(a, "/disk") != id(b, "/disk") {
		t.Errorf("one file in two namespaces of a kernel: %q and %q, want equal", id(a, "/disk"), id(b, "/disk"))
	}
	if id(a, "/disk") == id(b, "/other") {
		t.Error("two files with equal contents count as one")
	}
	if id(a, "/disk") == id(elsewhere, "/disk") {
		t.Error("equal inodes on two machines count as one file")
	}
	if got := id(disks.Files{Root: a.Root}, "/disk"); got != "" {
		t.Errorf("without a boot id: %q, want no identity", got)
	}
	if _, err := a.Identity("/absent"); !errors.Is(err, fault.NotFound) {
		t.Errorf("identity of nothing: %v, want not found", err)
	}
}

func TestFiles_AreMadeAndUnmade(t *testing.T) {
	requireQemuImg(t)
	diskstest.Run(t, func(t *testing.T) diskstest.Subject {
		f := files(t)
		return diskstest.Subject{
			Files: f,
			List:  func() []string { return tree(t, f) },
			Put:   func(path, text string) { put(t, f, path, text) },
			Rename: func(old, new string) {
				if err := os.Rename(f.Real(old), f.Real(new)); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

func TestSpace_LooksAtTheNearestFolderThatExists(t *testing.T) {
	f := files(t)
	deep, err := f.Space("/not/there/yet/disk")
	if err != nil {
		t.Fatal(err)
	}
	near, err := f.Space("/disk")
	if err != nil {
		t.Fatal(err)
	}
	if deep.Device != near.Device || deep.Bytes <= 0 {
		t.Errorf("deep %+v, near %+v", deep, near)
	}
}

func TestImage_EndsWithItsContext(t *testing.T) {
	f := files(t)
	put(t, f, "/slow", "#!/bin/sh\nexec sleep 60\n")
	if err := os.Chmod(f.Real("/slow"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.Tool = f.Real("/slow")
	put(t, f, "/disk", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Image(ctx, "/disk", "raw"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("image with a context that ended: %v, want unavailable", err)
	}
}

// A definition may give a device as a file, and devices of volume groups are links: neither goes.
func TestRemove_LeavesADevice(t *testing.T) {
	f := disks.Files{Root: t.TempDir()}
	if err := os.Symlink("/dev/null", f.Real("/lv")); err != nil {
		t.Fatal(err)
	}
	stamp, err := f.Stamp("/lv")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Remove("/lv", stamp); err != nil {
		t.Fatal(err)
	}
	if there, err := f.Exists("/lv"); err != nil || !there {
		t.Errorf("the link to the device is there: %v, %v", there, err)
	}
}
