package disks

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/stuck"
	"berth/internal/stuck/stucktest"
)

func TestShared_FileOfAFolderThatThisHostExports_IsShared(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"srv/my images", "srv/images", "var/lib/nfs", "export/bound", "proc/fs/nfsd", "nfsd"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"srv/my images/a", "srv/images/b", "srv/c"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := Files{Root: root}
	want := func(what, path string, want bool) {
		t.Helper()
		if got, err := f.Shared(path); err != nil || got != want {
			t.Errorf("%s: Shared(%s) = %t, %v", what, path, got, err)
		}
	}
	etab, kernel := filepath.Join(root, exportTables[0]), filepath.Join(root, exportTables[1])
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want("no table", "/srv/images/b", false)
	write(etab, "")
	want("nothing exported", "/srv/images/b", false)
	write(etab, "/srv/my\\040images\t10.0.0.0/24(rw,sync,wdelay,hide)\n/gone\t*(ro)\n")
	want("a name with a blank", "/srv/my images/a", true)
	want("another folder", "/srv/images/b", false)
	write(kernel, "# Version 1.1\n# Path Client(Flags) # IPs\n/srv/images\t*(rw,sync)\n")
	want("by the kernel's table", "/srv/images/b", true)
	want("beside it", "/srv/c", false)
	write(kernel, "")
	if err := os.Symlink("srv/images", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	write(etab, "/srv/images *(rw)\n")
	want("by a link", "/link/b", true)

	hung, _ := stucktest.Hang(t)
	write(etab, hung+" *(rw)\n/srv/images *(rw)\n")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(hung)), 0o755), os.Symlink(hung, filepath.Join(root, hung))); err != nil {
		t.Fatal(err)
	}
	b := f.Bounded(&stuck.Calls{Limit: time.Second})
	for file, want := range map[string]bool{"/srv/images/b": true, "/srv/c": false} {
		if got, err := b.Shared(file); got != want || err != nil {
			t.Errorf("beside an export that does not answer: Shared(%s) = %t, %v", file, got, err)
		}
	}

	write(etab, "srv\n")
	if _, err := f.Shared("/srv/images/b"); !errors.Is(err, fault.Unavailable) || len(fault.ReasonsOf(err)) != 1 {
		t.Errorf("malformed: %v", err)
	}
	if err := errors.Join(os.Remove(etab), os.Mkdir(etab, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Shared("/srv/images/b"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("unreadable: %v", err)
	}

	// NFSv4 exports are bind mounts below one root.
	if err := os.Remove(etab); err != nil {
		t.Fatal(err)
	}
	write(etab, "/export/bound *(rw)\n")
	bound := filepath.Join(root, "export/bound")
	if err := unix.Mount(filepath.Join(root, "srv/images"), bound, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	defer unix.Unmount(bound, unix.MNT_DETACH)
	want("bound elsewhere", "/srv/images/b", true)
	want("not bound", "/srv/c", false)
}
