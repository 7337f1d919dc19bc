package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"berth/internal/fault"
)

// asideTime is how the name of a file that was set aside tells when.
const asideTime = "20060102T150405Z"

// SetAside keeps the file at path beside it, under a name with the date, and puts
// a new database with these records in its place. Where there is no file, it makes
// one with these records; kept is empty then.
//
// A crash at any moment leaves at path either the old file, and a second call does
// all of it again, with the same name, or the new database with all records. The
// file must not be open here; one that another process has is fault.Busy.
func SetAside(path string, at time.Time, records []Record) (kept string, err error) {
	return setAside(path, at, records, current, func(string) error { return nil })
}

// setAside calls reached after each thing that it has done; an error stops it there,
// as a crash would.
func setAside(path string, at time.Time, records []Record, s schema, reached func(step string) error) (kept string, err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return "", explain(path, err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if err := lock(dir); err != nil {
		return "", explain(path, err)
	}
	old, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", explain(path, err)
	default:
		defer func() { err = errors.Join(err, old.Close()) }()
		if err := lock(old); err != nil {
			return "", explain(path, err)
		}
		if kept, err = keepBeside(path, at); err != nil {
			return "", explain(path, fmt.Errorf("keep the damaged file: %w", err))
		}
		if err := dir.Sync(); err != nil {
			return "", explain(path, err)
		}
		if err := reached("kept"); err != nil {
			return kept, err
		}
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return kept, explain(path, err)
	}
	err = fill(fresh, records, s)
	if stop := reached("made"); stop != nil {
		return kept, stop
	}
	if err != nil {
		return kept, explain(path, errors.Join(err, os.Remove(fresh)))
	}
	// The new one has no life yet: without the old one's note it is nobody's copy.
	if err := forgetLatest(path); err != nil {
		return kept, explain(path, errors.Join(err, os.Remove(fresh)))
	}
	if err := os.Rename(fresh, path); err != nil {
		return kept, explain(path, errors.Join(err, os.Remove(fresh)))
	}
	if err := reached("in place"); err != nil {
		return kept, err
	}
	if err := dir.Sync(); err != nil {
		return kept, explain(path, err)
	}
	return kept, nil
}

// keepBeside gives the file at path a second name. Who was stopped after that finds
// it by the file itself, and makes no third.
func keepBeside(path string, at time.Time) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	names, err := Kept(path)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if other, err := os.Stat(name); err == nil && os.SameFile(st, other) {
			return name, nil
		}
	}
	name := path + ".damaged-" + at.UTC().Format(asideTime)
	for n := 2; ; n++ {
		err := os.Link(path, name)
		if !errors.Is(err, fs.ErrExist) {
			return name, err
		}
		name = fmt.Sprintf("%s.damaged-%s-%d", path, at.UTC().Format(asideTime), n)
	}
}

// Kept are the files that were set aside from path, oldest first.
func Kept(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(path)+".damaged-") {
			out = append(out, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	return out, nil
}

// fill makes a database of these records, durable when it returns.
func fill(path string, records []Record, s schema) error {
	for _, r := range records {
		if err := Put(r.Bucket, r.Key, r.Value).validate(); err != nil {
			return err
		}
	}
	b, err := bbolt.Open(path, fileMode, &bbolt.Options{NoStatistics: true})
	if err != nil {
		return err
	}
	err = b.Update(func(tx *bbolt.Tx) error {
		if err := writeIdentity(tx, identity{application: application, version: s.version}); err != nil {
			return err
		}
		w, err := newWriter(tx, map[record][]byte{})
		if err != nil {
			return err
		}
		for _, r := range records {
			if err := w.write(Put(r.Bucket, r.Key, r.Value)); err != nil {
				return err
			}
		}
		return w.finish()
	})
	return errors.Join(err, b.Close())
}

// The codes of the reasons for which Open refuses a file.
const (
	CodeDamaged = "database_damaged" // cut, garbled, or none of Berth's
	CodeNewer   = "database_newer"   // written by a newer Berth: whole, and not this program's to touch
	CodeForeign = "database_foreign" // a database of another program
)

// Lost says whether an error of Open means that what the file held is lost to this
// program for good, so that another may take its place: it is damaged, foreign or
// not there. A file that is another process's, of a newer Berth, or that could not
// be read is none of these.
func Lost(err error) bool {
	if errors.Is(err, fault.NotFound) {
		return true
	}
	for _, r := range fault.ReasonsOf(err) {
		if r.Code == CodeDamaged || r.Code == CodeForeign {
			return true
		}
	}
	return false
}

// Keep gives the file at path its second name alone, for whoever has to know it
// before SetAside, which finds it; empty where there is no file.
func Keep(path string, at time.Time) (kept string, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if kept, err = keepBeside(path, at); err != nil {
		return "", explain(path, fmt.Errorf("keep the damaged file: %w", err))
	}
	return kept, nil
}
