// Package shared finds what tests compare with and the project does not carry:
// copied machines, placement cases, recorded traffic. They lie in the folder
// `shared` beside the checkout, or where BERTH_SHARED says, and may be absent:
// nothing needs them to build, and a test without them is skipped with the
// reason.
package shared

import (
	"os"
	"path/filepath"
	"testing"
)

// Path gives the path of a file or folder there; it ends the test as skipped
// where that is absent.
func Path(t testing.TB, parts ...string) string {
	t.Helper()
	dir := os.Getenv("BERTH_SHARED")
	if dir == "" {
		dir = filepath.Join(moduleRoot(t), "..", "shared")
	}
	path := filepath.Join(append([]string{dir}, parts...)...)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("needs %s of ../shared (or BERTH_SHARED): %v", filepath.Join(parts...), err)
	}
	return path
}

// moduleRoot is the folder of go.mod above the test.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}
