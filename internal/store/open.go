package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

const (
	// lockPatience is how long a restart waits for its predecessor to let go.
	lockPatience = 800 * time.Millisecond
	lockRetry    = 20 * time.Millisecond

	fileMode = 0o600 // tickets of migrations are in it
)

// DB is an open database. All methods may be called by many goroutines.
type DB struct {
	path    string
	created bool
	behind  bool
	log     *slog.Logger
	bolt    *bbolt.DB
	space   *space

	// mu guards queue and closing. Nothing slow happens under it: Enqueue is
	// called under the claim lock, which is above it.
	mu      sync.Mutex
	queue   []entry
	closing bool
	wake    chan struct{} // a token in it: there is something in queue, or closing
	done    chan struct{} // closed when the committer has ended
	closed  error         // of bbolt's Close; read after done

	// view is held for writing while a transaction is committed, and for
	// reading while records are read: bbolt shows a transaction before it is
	// synced, and Berth must not. Below mu in no order: neither is taken under
	// the other.
	view    sync.RWMutex
	doubt   map[record][]byte // what failed commits may have overwritten; nil values were absent
	commits uint64
	latest  latest
	older   string

	// broken is set when the file turned out to be impossible, or not to be the one that
	// was opened; nothing is written any more.
	broken atomic.Pointer[error]
}

// record names one record.
type record struct{ bucket, key string }

// Open opens the database at path, or makes it (see Options.MustExist). The
// directory must exist. Errors: fault.Busy when another process has it (after
// less than a second), naming that process where the kernel tells;
// fault.NotFound; fault.Forbidden when the file's mode forbids it;
// fault.Internal, with reason database_damaged, when the file is not wholly what
// a Berth wrote. The caller closes it.
func Open(path string, o Options) (*DB, error) { return open(path, o, current) }

func open(path string, o Options, s schema) (*DB, error) {
	db := &DB{path: path, log: o.Logger, wake: make(chan struct{}, 1), done: make(chan struct{}), doubt: map[record][]byte{}}
	if db.log == nil {
		db.log = slog.Default()
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if o.MustExist {
			return nil, fault.New(fault.NotFound, "open database %s: %w", path, fs.ErrNotExist)
		}
		if db.created, err = create(path, s); err != nil {
			return nil, explain(path, err)
		}
	}
	version := 0
	b, err := openBolt(path, o.MaxBytes, func(f *os.File) error {
		var warnings []string
		var err error
		version, db.behind, warnings, err = inspect(f, s)
		for _, w := range warnings {
			db.log.Warn("database was repaired", "path", path, "reason", w)
		}
		db.space = newSpace(f, o)
		return err
	})
	if err != nil {
		return nil, explain(path, err)
	}
	if err := s.upgrade(b, version); err != nil {
		return nil, explain(path, errors.Join(err, b.Close()))
	}
	db.bolt = b
	if err := db.compare(o.TellCopies); err != nil {
		return nil, explain(path, errors.Join(err, b.Close()))
	}
	db.keepReserve()
	go db.committer()
	return db, nil
}

// Created reports whether Open found no file and made one. Where a ledger was
// expected this is not a first start but a loss.
func (db *DB) Created() bool { return db.created }

// Behind reports whether Open found one of the two pages damaged that say which
// commit is the last: what it shows may be the commit before. A write that a crash
// cut leaves that too, and then nothing is missing that anybody was told of.
func (db *DB) Behind() bool { return db.behind }

// Path is the file.
func (db *DB) Path() string { return db.path }

// openBolt locks the file, has it inspected as bytes, and only then lets bbolt
// map it. bbolt takes the lock again, which the same descriptor already has.
func openBolt(path string, maxBytes int, inspect func(*os.File) error) (*bbolt.DB, error) {
	return bbolt.Open(path, fileMode, &bbolt.Options{
		Timeout:      lockPatience,
		FreelistType: bbolt.FreelistMapType,
		MaxSize:      maxBytes,
		NoStatistics: true,
		OpenFile: func(path string, _ int, _ os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return nil, err
			}
			if err = lock(f); err == nil {
				// A process that was killed between a write and its sync left pages that
				// only the kernel has: nobody goes by what a power cut may take back.
				err = f.Sync()
			}
			if err == nil {
				err = inspect(f)
			}
			if err != nil {
				return nil, errors.Join(err, f.Close())
			}
			return f, nil
		},
	})
}

// inspect refuses a file that is not whole.
func inspect(f *os.File, s schema) (version int, behind bool, warnings []string, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, false, nil, err
	}
	if !info.Mode().IsRegular() {
		return 0, false, nil, errors.New("it is not a regular file")
	}
	if info.Mode().Perm()&0o077 != 0 {
		if err := f.Chmod(fileMode); err != nil {
			return 0, false, nil, err
		}
		warnings = append(warnings, fmt.Sprintf("mode was %#o", info.Mode().Perm()))
	}
	im, err := readImage(f, info.Size())
	if errors.Is(err, unix.EIO) {
		return 0, false, nil, err // the disk, not the file: another time it may be read
	}
	if err != nil {
		return 0, false, nil, damaged{err}
	}
	if version, err = s.examine(im); err != nil {
		return 0, false, nil, damaged{err}
	}
	return version, len(im.warnings) > 0, append(warnings, im.warnings...), nil
}

// create makes the file whole under another name and moves it into place, so
// that a crash leaves either no database or a good one, and an empty file is
// always damage. A lock on the directory keeps two processes apart; the second
// finds the first one's file and reports false.
func create(path string, s schema) (created bool, err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := lock(dir); err != nil {
		return false, err
	}
	if _, err := os.Lstat(path); err == nil {
		return false, nil
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err // what a crash left here
	}
	if err := forgetLatest(path); err != nil {
		return false, err
	}
	b, err := bbolt.Open(fresh, fileMode, &bbolt.Options{NoStatistics: true})
	if err != nil {
		return false, err
	}
	err = b.Update(func(tx *bbolt.Tx) error {
		return writeIdentity(tx, identity{application: application, version: s.version})
	})
	if err := errors.Join(err, b.Close()); err != nil {
		return false, errors.Join(err, os.Remove(fresh))
	}
	if err := os.Rename(fresh, path); err != nil {
		return false, errors.Join(err, os.Remove(fresh))
	}
	// The name is durable only when the directory is.
	return true, dir.Sync()
}

// lock takes the exclusive lock of an open file or directory, or says in less
// than a second who has it.
func lock(f *os.File) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockRetry) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if time.Now().After(deadline) {
			return locked{holder(f)}
		}
	}
}

// holder names the process that holds the lock of f, from /proc/locks: the
// device and inode are its sixth field, the process its fifth (proc(5)). Some
// filesystems (btrfs, overlayfs) show another device there than stat does; then
// it is not known.
func holder(f *os.File) string {
	var st unix.Stat_t
	table, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return "another process"
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(table)) {
		// "1: FLOCK  ADVISORY  WRITE 4711 fd:00:1234 0 EOF"; waiters have "->".
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		pid, err := strconv.Atoi(fields[4])
		if err != nil || pid <= 0 { // 0: of another pid namespace
			break
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return fmt.Sprintf("process %d", pid)
		}
		return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
	}
	return "another process"
}

// locked is the refusal of lock.
type locked struct{ holder string }

func (l locked) Error() string { return "in use by " + l.holder }

// damaged marks what is wrong with the file itself.
type damaged struct{ error }

func (d damaged) Unwrap() error { return d.error }

// newer marks a file of a schema that this program does not know.
type newer struct{ error }

// foreign marks a database of another program.
type foreign struct{ error }

// explain gives an error of Open its kind and the file's name.
func explain(path string, err error) error {
	doing := "open database " + path
	if l, ok := errors.AsType[locked](err); ok {
		return fault.Refuse(fault.Busy, doing, fault.Reason{
			Code:    "database_locked",
			Message: "it is in use by " + l.holder,
			Have:    l.holder,
			Change:  "stop the other process, or give this one a state directory of its own",
		})
	}
	if d, ok := errors.AsType[damaged](err); ok {
		r := fault.Reason{
			Code: CodeDamaged, Message: d.Error(), Change: "keep the file for inspection and put a good copy in its place; nothing was changed",
		}
		if n, ok := errors.AsType[newer](err); ok {
			r.Code, r.Have, r.Change = CodeNewer, n.Error(), "install the newer Berth again; nothing was changed"
		} else if _, ok := errors.AsType[foreign](err); ok {
			r.Code = CodeForeign
		}
		return fault.Refuse(fault.Internal, doing, r)
	}
	kind := fault.Internal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = fault.NotFound
	case errors.Is(err, fs.ErrPermission):
		kind = fault.Forbidden
	}
	return fault.New(kind, "%s: %w", doing, err)
}
