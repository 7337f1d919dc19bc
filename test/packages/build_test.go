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
	if err := build("-out", older.dir, "-version", older.version); err != nil {
		return err
	}
	tree := filepath.Join(dir, "tree")
	if out, err := exec.Command("dpkg-deb", "-x", older.deb(), tree).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb -x: %w\n%s", err, out)
	}
	return build("-out", newer.dir, "-version", newer.version, "-binary", filepath.Join(tree, "usr/bin/berth"))
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
func build(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./packaging/build"}, args...)...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build packages: %w\n%s", err, out)
	}
	return nil
}

// Two builds of one commit, in two folders, under another umask, in another time zone and
// with other temporary folders. Of a checkout in which somebody works both are of clones.
func TestPackages_AreTheSameBytesTwice(t *testing.T) {
	packages(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var twice [2]built
	from := "../.."
	for i, surroundings := range []struct {
		umask string
		env   []string
	}{
		{"022", []string{"TMPDIR=" + t.TempDir(), "TZ=UTC"}},
		{"077", []string{"TMPDIR=" + t.TempDir(), "TZ=Pacific/Kiritimati", "LC_ALL=C", "BERTH_CONNECT=elsewhere"}},
	} {
		if i == 0 && committed(t) {
			twice[0] = older
			continue
		}
		clone := filepath.Join(t.TempDir(), "clone"+itoa(i))
		twice[i] = built{filepath.Join(clone, "build/packages"), older.version}
		cmd := exec.CommandContext(ctx, "sh", "-ec", `git clone -q --shared "$3" "$1"; cd "$1"; umask "$2"; exec go run ./packaging/build -version "$4"`, "sh", clone, surroundings.umask, from, older.version)
		cmd.Env = append(os.Environ(), surroundings.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build packages: %v\n%s", err, out)
		}
		from = clone
	}
	for _, name := range []func(built) string{built.deb, built.rpm, built.sbom} {
		a, err := os.ReadFile(name(twice[0]))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name(twice[1]))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a, b) {
			t.Errorf("%s: %d bytes, sha256 %x; a second time %d bytes, %x", filepath.Base(name(twice[0])), len(a), sha256.Sum256(a), len(b), sha256.Sum256(b))
		}
		t.Logf("%s: %d bytes", filepath.Base(name(twice[0])), len(a))
	}
}

// committed says whether the checkout is its commit and nothing else, and the Go tool can
// see that: it looks for a folder .git.
func committed(t *testing.T) bool {
	t.Helper()
	if info, err := os.Stat("../../.git"); err != nil || !info.IsDir() {
		return false
	}
	out, err := exec.CommandContext(t.Context(), "git", "status", "--porcelain").Output()
	if err != nil {
		t.Fatal(err)
	}
	return len(out) == 0
}
