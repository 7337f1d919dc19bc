package disks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/agent/host/disks"
)

// TestWriters_NamesWhoeverHasAFileOpenForWriting: this process, by whatever name of the
// file; who reads is none.
func TestWriters_NamesWhoeverHasAFileOpenForWriting(t *testing.T) {
	root := t.TempDir()
	f := disks.Files{Root: root}
	for _, name := range []string{"read", "written", "free"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Link(filepath.Join(root, "written"), filepath.Join(root, "other")), os.Symlink("other", filepath.Join(root, "link"))); err != nil {
		t.Fatal(err)
	}
	r, err := os.Open(filepath.Join(root, "read"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := os.OpenFile(filepath.Join(root, "written"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	got, err := f.Writers("/read", "/free", "/gone", "/link", "/written")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Path != "/link" || got[1].Path != "/written" || got[0].PID != os.Getpid() || got[0].Name == "" {
		t.Errorf("writers %+v, want this process, of /link and /written", got)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Writers("/read", "/free", "/gone", "/link", "/written"); len(got) > 0 || err != nil {
		t.Errorf("writers %+v, %v after it was closed", got, err)
	}
}

// TestWriters_SeesQEMUsLock: a process that has the permission to write by QEMU's
// protocol is one, though it has opened the file for reading so far.
func TestWriters_SeesQEMUsLock(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "image"), make([]byte, 512), 0o644); err != nil {
		t.Fatal(err)
	}
	q, err := os.Open(filepath.Join(root, "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	lock := func(at int64) {
		t.Helper()
		if err := unix.FcntlFlock(q.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}); err != nil {
			t.Skipf("no locks of open files here: %v", err)
		}
	}
	f := disks.Files{Root: root}
	lock(100) // it reads, consistently
	lock(201) // nobody else shall write
	if got, err := f.Writers("/image"); len(got) > 0 || err != nil {
		t.Errorf("writers %+v, %v: it only reads", got, err)
	}
	lock(101)
	got, err := f.Writers("/image")
	if err != nil || len(got) != 1 || got[0].PID != 0 || got[0].String() == "" {
		t.Errorf("writers %+v, %v; want one that has no name", got, err)
	}
}
