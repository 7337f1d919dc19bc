package packages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

func itoa(i int) string { return strconv.Itoa(i) }

// built is a folder with the packages of one version.
type built struct{ dir, version string }

func (b built) deb() string  { return filepath.Join(b.dir, "berth_"+b.version+"_amd64.deb") }
func (b built) rpm() string  { return filepath.Join(b.dir, "berth-"+b.version+"-1.x86_64.rpm") }
func (b built) sbom() string { return filepath.Join(b.dir, "berth_"+b.version+"_amd64.cdx.json") }

// older and newer are two versions of the packages, newer with the older's binary: built
// once for all tests.
var (
	older = built{version: "1.0~a"}
	newer = built{version: "1.0~b"}
)

var makeAll = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "berth-packages-test-")
	if err != nil {
		return err
	}
	older.dir, newer.dir = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if err := build(nil, "-out", older.dir, "-version", older.version); err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if out, err := exec.Command("dpkg-deb", "-x", older.deb(), tree).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb -x: %w\n%s", err, out)
	}
	return build(nil, "-out", newer.dir, "-version", newer.version, "-binary", filepath.Join(tree, "usr/bin/berth"))
})

func TestMain(m *testing.M) {
	code := m.Run()
	if older.dir != "" {
		os.RemoveAll(filepath.Dir(older.dir))
	}
	os.Exit(code)
}

func packages(t *testing.T) {
	t.Helper()
	require(t)
	if err := makeAll(); err != nil {
		t.Fatal(err)
	}
}

// build runs the project's own command for it.
func build(env []string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./packaging/build"}, args...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build packages: %w\n%s", err, out)
	}
	return nil
}

// A second build, from nothing but the Go tool's cache, in other folders, another time
// zone and under another umask.
func TestPackages_AreTheSameBytesTwice(t *testing.T) {
	packages(t)
	again := built{t.TempDir(), older.version}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", `umask 077; exec go run ./packaging/build "$@"`, "sh", "-out", again.dir, "-version", again.version)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), "TZ=Pacific/Kiritimati", "LANG=C", "BERTH_CONNECT=elsewhere")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build packages: %v\n%s", err, out)
	}
	for _, pair := range [][2]string{{older.deb(), again.deb()}, {older.rpm(), again.rpm()}, {older.sbom(), again.sbom()}} {
		a, err := os.ReadFile(pair[0])
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes, sha256 %x; a second time %d bytes, %x", filepath.Base(pair[0]), len(a), sha256.Sum256(a), len(b), sha256.Sum256(b))
		}
		t.Logf("%s %d bytes", filepath.Base(pair[0]), len(a))
	}
}
