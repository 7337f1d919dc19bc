package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/lab"
)

// TestNative_IsBuiltAndPackedFromACleanClone makes the binary with libvirt's C library by
// the line of docs/how-to/native-binding.md, and its packages say what they need for it.
func TestNative_IsBuiltAndPackedFromACleanClone(t *testing.T) {
	require(t)
	if missing, err := lab.Missing(t.Context(), lab.NativePackages()...); err != nil || len(missing) > 0 {
		t.Skipf("run `go run ./test/lab/cmd/lab install -native`: %v %v", missing, err)
	}
	clone, out := filepath.Join(t.TempDir(), "clone"), t.TempDir()
	command(t, "git", "clone", "-q", "--shared", "../..", clone)
	command(t, "make", "-s", "-C", clone, "build", "NATIVE=1")
	binary := filepath.Join(clone, "bin/berth")
	if said := command(t, binary, "version"); !strings.Contains(said, "libvirt.org/go/libvirt (cgo)") {
		t.Errorf("berth version says %q", said)
	}
	if err := build("-native", "-out", out, "-version", "1.0", "-binary", binary); err != nil {
		t.Fatal(err)
	}
	deb := command(t, "dpkg-deb", "--field", filepath.Join(out, "berth_1.0+native_amd64.deb"), "Depends")
	rpm := command(t, "rpm", "-qp", "--requires", filepath.Join(out, "berth-1.0+native-1.x86_64.rpm"))
	for _, want := range []string{"systemd (>= 249)", "libvirt0 (>= ", "libc6 (>= 2."} {
		if !strings.Contains(deb, want) {
			t.Errorf("the deb depends on %q, want also %q", deb, want)
		}
	}
	for _, want := range []string{"systemd >= 249", "libvirt-libs >= ", "glibc >= 2."} {
		if !strings.Contains(rpm, want) {
			t.Errorf("the rpm requires %q, want also %q", rpm, want)
		}
	}
}

// TestNative_NeedsAreWhatTheLabInstalls: two places name the packages, since one of them
// has to work without Go's cache of modules.
func TestNative_NeedsAreWhatTheLabInstalls(t *testing.T) {
	text, err := os.ReadFile("../../packaging/native-needs")
	if err != nil {
		t.Fatal(err)
	}
	if want := `debian="` + strings.Join(lab.NativePackages(), " ") + `"`; !strings.Contains(string(text), want) {
		t.Errorf("packaging/native-needs has no line %s", want)
	}
}
