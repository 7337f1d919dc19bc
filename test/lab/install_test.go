package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func itoa(i int) string { return strconv.Itoa(i) }

func TestDebianSources_ReadBothSpellings(t *testing.T) {
	const key = "/usr/share/keyrings/debian-archive-keyring.gpg"
	for name, tc := range map[string]struct {
		files map[string]string
		want  []source
	}{
		"one line": {
			files: map[string]string{
				"sources.list":             "# comment\ndeb http://a.example/debian bookworm main contrib # note\ndeb-src http://a.example/debian bookworm main\ndeb http://a.example/debian bookworm-updates contrib\n",
				"sources.list.d/more.list": "deb [arch=amd64 signed-by=/k.gpg] http://s.example/security bookworm-security main\ndeb http://vendor.example stable main\n",
			},
			want: []source{{"http://a.example/debian", "bookworm", ""}, {"http://s.example/security", "bookworm-security", "/k.gpg"}},
		},
		"stanzas": {
			files: map[string]string{"sources.list.d/debian.sources": "Types: deb\n# a remark\nURIs: http://a.example/debian\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: " + key +
				"\n\nTypes: deb deb-src\nURIs: http://a.example/debian\nSuites: bookworm-proposed\nComponents: main\nEnabled: no\n\nTypes: deb\nURIs: http://v.example\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN PGP-----\n .\n abc\n"},
			want: []source{{"http://a.example/debian", "bookworm", key}, {"http://a.example/debian", "bookworm-updates", key}, {"http://v.example", "bookworm", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range tc.files {
				path = filepath.Join(dir, path)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			got, err := debianSources(dir, "bookworm")
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(source{})); d != "" {
				t.Errorf("sources (-want +got):\n%s", d)
			}
		})
	}
	if _, err := debianSources(t.TempDir(), "bookworm"); err == nil {
		t.Error("a machine without sources gave no error")
	}
}

func TestTrees_AreNeededBelowAVersion(t *testing.T) {
	t.Setenv("BERTH_LAB_CACHE", "/cache")
	for version, want := range map[string]string{
		"1:7.2+dfsg-7+deb12u18": "/cache/qemu", "1:10.0.2+ds-2+deb13u1": "", "9.1.0": "", "8.2": "/cache/qemu", "": "/cache/qemu",
	} {
		if got, err := qemuTree(version); err != nil || got != want {
			t.Errorf("qemuTree(%q) = %q, %v; want %q", version, got, err, want)
		}
	}
	for version, want := range map[string]string{"9.0.0-4+deb12u2": "/cache/libvirt", "11.3.0-3": "", "12.1.0": ""} {
		if got, err := libvirtTree(version); err != nil || got != want {
			t.Errorf("libvirtTree(%q) = %q, %v; want %q", version, got, err, want)
		}
	}
	if _, err := qemuTree("strange"); err == nil {
		t.Error("a version without a number gave no error")
	}
}

func TestFetch_LeavesTheTargetAbsentOrWhole(t *testing.T) {
	target := filepath.Join(t.TempDir(), "qemu")
	broken := errors.New("the line went down")
	err := fetch(t.Context(), target, func(tmp string) error {
		_ = os.WriteFile(filepath.Join(tmp, "half"), nil, 0o644)
		return broken
	})
	if !errors.Is(err, broken) || exists(target) {
		t.Errorf("after a failure: %v, target there: %v", err, exists(target))
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := fetch(ctx, target, func(string) error { cancel(); return nil }); err == nil || exists(target) {
		t.Errorf("after an interrupt: %v, target there: %v", err, exists(target))
	}
	if err := fetch(t.Context(), target, func(tmp string) error { return os.WriteFile(filepath.Join(tmp, "whole"), nil, 0o644) }); err != nil || !exists(filepath.Join(target, "whole")) {
		t.Errorf("fetch: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(target), ".tmp-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestTakeKernel_FindsKernelAndModules(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, text := range map[string]string{
		"./boot/vmlinuz-6.1.0-9-cloud-amd64":                               "kernel",
		"./boot/config-6.1.0-9-cloud-amd64":                                "x",
		"./lib/modules/6.1.0-9/kernel/drivers/block/virtio_blk.ko":         "blk",
		"./lib/modules/6.1.0-9/kernel/drivers/block/virtio_blk_no.ko":      "x",
		"./lib/modules/6.1.0-9/kernel/drivers/virtio/virtio.ko":            "v",
		"./lib/modules/6.1.0-9/kernel/drivers/char/hw_random/virtio-rng.k": "x",
	} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "modules"), 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := takeKernel(&b, dir)
	if err != nil || len(found) != 2 {
		t.Fatalf("found %q, %v", found, err)
	}
	for path, want := range map[string]string{"vmlinuz": "kernel", "modules/virtio_blk.ko": "blk", "modules/virtio.ko": "v"} {
		if got, err := os.ReadFile(filepath.Join(dir, path)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v", path, got, err)
		}
	}
}

func TestInstall_WithEverythingThereUsesNoNetwork(t *testing.T) {
	Require(t)
	var log bytes.Buffer
	if err := Install(t.Context(), &log, Packages()...); err != nil || !strings.Contains(log.String(), "everything is there") {
		t.Errorf("%v: %s", err, log.String())
	}
}

func TestWithEntries_AddsOnlyMissingNames(t *testing.T) {
	got := withEntries([]byte("root:x:0:\nkvm:x:104:"), "kvm:x:1:", "berth:x:2:")
	if want := "root:x:0:\nkvm:x:104:\nberth:x:2:\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
