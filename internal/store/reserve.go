package store

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// A commit writes pages anew: those it frees can be used by the commit after the
// next. So a release needs room before it gives any, and a disk that is full would
// refuse it with the claim. Behind its last page in use the file therefore has
// blocks of the disk that are its own already (fallocate(2)), and bbolt goes on
// there: it truncates a file only to make it longer. Who takes asks Room first, and
// is refused while the reserve is not whole; releases, undos and journals do not
// ask, and live on it.

// defaultReserve is some 250 pages: a release changes about ten, most of which it
// gives back. Arbitrary, and small beside a disk.
const defaultReserve = 1 << 20

// space is what the file has of its disk. Its fields are guarded by DB.view, but
// for short.
type space struct {
	file    *os.File
	reserve int64
	most    int64 // Options.MaxBytes; 0 for no bound
	covered int64 // up to here the blocks are the file's
	short   atomic.Pointer[error]
}

func newSpace(f *os.File, o Options) *space {
	s := &space{file: f, reserve: int64(o.Reserve), most: int64(o.MaxBytes)}
	if s.reserve <= 0 {
		s.reserve = defaultReserve
	}
	return s
}

// keepReserve sees to it that the reserve is whole, and notes why it is not. It is
// called with view held, or before anybody else has the database.
func (db *DB) keepReserve() {
	s := db.space
	var used int64
	if err := db.bolt.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil }); err != nil {
		return // closed
	}
	// Not with every commit: half of it may be used before it is filled up again.
	if s.covered >= used+s.reserve/2 && s.short.Load() == nil {
		return
	}
	err := s.cover(used + s.reserve)
	switch was := s.short.Load(); {
	case err == nil && was != nil:
		s.short.Store(nil)
		db.log.Info("the database has its reserve again", "path", db.path)
	case err != nil && was == nil:
		db.log.Error("the database has no room left but its reserve: what takes is refused, what gives back goes on", "path", db.path, "error", err)
		fallthrough
	case err != nil:
		s.short.Store(&err)
	}
}

// cover makes the blocks up to end the file's.
func (s *space) cover(end int64) error {
	if s.most > 0 && end > s.most {
		return fmt.Errorf("%d bytes with the reserve, of at most %d", end, s.most)
	}
	err := unix.Fallocate(int(s.file.Fd()), 0, 0, end)
	switch {
	case err == nil:
		s.covered = end
		return nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		// A file system that cannot promise blocks (some over a network, ZFS) is asked
		// what is free, which another may take the next moment.
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(s.file.Fd()), &st); err != nil {
			return err
		}
		if free := int64(st.Bavail) * st.Bsize; free < s.reserve {
			return fmt.Errorf("%d bytes free of the reserve of %d: %w", free, s.reserve, unix.ENOSPC)
		}
		return nil
	}
	return err
}

// Room says whether the database can take more: nil, or fault.Unavailable with the
// reason when the disk is full and only the reserve is left; where nothing can be
// written any more, fault.Internal with why. Who takes something (a
// claim, a new migration) asks first; who gives something back or ends something
// does not. It does not block while there is room; where there was none it waits
// for a commit in flight and looks again.
func (db *DB) Room() error {
	if err := db.broken.Load(); err != nil {
		return *err
	}
	if db.space.short.Load() == nil {
		return nil
	}
	db.view.Lock()
	db.keepReserve()
	db.view.Unlock()
	err := db.space.short.Load()
	if err == nil {
		return nil
	}
	return fault.Refuse(fault.Unavailable, "write to database "+db.path, fault.Reason{
		Code: "disk_full", Message: fmt.Sprintf("the disk of %s is full, and what is left is kept for releases and undos: %v", db.path, *err),
		Want: fmt.Sprintf("%d bytes", db.space.reserve), Change: "make room on it",
	})
}
