package disks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"berth/internal/fault"
)

func TestResolve_FollowsLinksAlsoOfWhatIsNotThereYet(t *testing.T) {
	f := files(t)
	put(t, f, "/images/d", "disk")
	put(t, f, "/etc/secret", "x")
	for at, to := range map[string]string{"/images/link": "../etc/secret", "/images/folder": "/etc", "/images/lost": "/etc/new", "/data": "/images"} {
		if err := os.Symlink(to, f.Real(at)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/images/d": "/images/d", "/images/new": "/images/new", "/images/a/b/c": "/images/a/b/c", "/images": "/images",
		"/images/link": "/etc/secret", "/images/folder/new": "/etc/new", "/data/d": "/images/d", "/none": "/none", "/images/d/below": "/images/d/below",
	} {
		if got, err := f.Resolve(path); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	// A serial port into it would make the file that it leads to.
	for _, path := range []string{"/images/lost", "/images/lost/x"} {
		if got, err := f.Resolve(path); !errors.Is(err, fault.Forbidden) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if err := os.Symlink(filepath.Join(t.TempDir(), "outside"), f.Real("/images/out")); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Resolve("/images/out"); err == nil {
		t.Errorf("a link out of the root leads to %q", got)
	}
}
