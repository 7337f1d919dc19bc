package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// smallDisk is a file system of that many bytes, and a function that fills it up.
func smallDisk(t *testing.T, size int) (dir string, fill func(), empty func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small tmpfs")
	}
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	filler := filepath.Join(dir, "filler")
	fill = func() {
		t.Helper()
		if err := os.WriteFile(filler, make([]byte, size), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
	}
	empty = func() {
		t.Helper()
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
	return dir, fill, empty
}

func TestDB_KeepsAReserveForWhatGivesBack(t *testing.T) {
	dir, fill, empty := smallDisk(t, 8<<20)
	path := filepath.Join(dir, "berth.db")
	db := mustOpen(t, path)
	value := bytes.Repeat([]byte("x"), 400)
	const held = 300
	for i := range held {
		if err := errors.Join(db.Room(), db.Put(t.Context(), "claims", fmt.Sprintf("%036d", i), value)); err != nil {
			t.Fatal(err)
		}
	}
	fill()
	// The blocks of the reserve are the file's: what takes may have half of it before
	// it is filled up again, and then it is told.
	taken := held
	for ; db.Room() == nil; taken++ {
		if err := db.Put(t.Context(), "claims", fmt.Sprintf("%036d", taken), value); err != nil {
			t.Fatalf("claim %d: %v, though there was room", taken, err)
		}
	}
	err := db.Room()
	if !errors.Is(err, fault.Unavailable) || !errors.Is(err, unix.ENOSPC) && fault.ReasonsOf(err)[0].Code != "disk_full" {
		t.Fatalf("full: %v, want unavailable for want of space", err)
	}
	// Undos write tombstones, releases delete: none of it may fail for want of room.
	for i := range taken {
		err := db.Enqueue(Delete("claims", fmt.Sprintf("%036d", i)), Put("halves", fmt.Sprintf("%036d", i), []byte(`{"buried":{"claim":1}}`))).Wait()
		if err != nil {
			t.Fatalf("release %d of %d on a full disk: %v", i, taken, err)
		}
	}
	if db.Room() == nil {
		t.Error("there is room while the disk is full and the reserve is not whole")
	}
	empty()
	if err := db.Room(); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, path)
	if n, m := len(list(t, again, "claims")), len(list(t, again, "halves")); n != 0 || m != taken {
		t.Errorf("after reopening: %d claims and %d halves, want 0 and %d", n, m, taken)
	}
	if err := again.Room(); err != nil {
		t.Errorf("after reopening: %v", err)
	}
}

func TestDB_OpensOnAFullDiskAndSaysSo(t *testing.T) {
	dir, fill, empty := smallDisk(t, 4<<20)
	path := filepath.Join(dir, "berth.db")
	small := quiet()
	small.Reserve = 16 << 10
	db, err := Open(path, small)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Put(t.Context(), "claims", "a", []byte("1")), db.Close()); err != nil {
		t.Fatal(err)
	}
	fill()
	db = mustOpen(t, path)
	if err := db.Room(); !errors.Is(err, fault.Unavailable) {
		t.Errorf("room on a full disk: %v", err)
	}
	if err := db.Delete(t.Context(), "claims", "a"); err != nil {
		t.Errorf("release: %v", err)
	}
	empty()
	if err := db.Room(); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// Blocks that were promised and are not there (a file system that cannot promise, a
// sparse copy): the first write that fails tells, and it is told until there is room.
func TestDB_AWriteThatFailsTakesTheRoom(t *testing.T) {
	dir, fill, empty := smallDisk(t, 4<<20)
	db := mustOpen(t, filepath.Join(dir, "berth.db"))
	if err := unix.Fallocate(int(db.space.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8<<12, db.space.covered-8<<12); err != nil {
		t.Fatal(err)
	}
	fill()
	var err error
	for i := 0; err == nil && i < 100; i++ {
		err = db.Put(t.Context(), "claims", fmt.Sprint(i), bytes.Repeat([]byte("x"), 9000))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("write: %v, want a full disk", err)
	}
	if err := db.Room(); !errors.Is(err, fault.Unavailable) || fault.ReasonsOf(err)[0].Code != "disk_full" {
		t.Errorf("room: %v, want it said that the disk is full", err)
	}
	empty()
	if err := errors.Join(db.Room(), db.Put(t.Context(), "claims", "again", nil)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
