package store

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"berth/internal/fault"
)

func TestOpen_TellsAnOlderCopy(t *testing.T) {
	options := quiet()
	options.TellCopies = true
	path := newPath(t)
	read := func() []byte {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// session opens the database, makes a commit or none, and closes it.
	session := func(commit bool) string {
		t.Helper()
		db, err := Open(path, options)
		if err != nil {
			t.Fatal(err)
		}
		if commit {
			err = db.Put(t.Context(), "claims", "a", []byte(time.Now().String()))
		}
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		return db.Older()
	}
	want := func(what, older string) {
		t.Helper()
		got := session(false)
		if older == "" && got != "" || !strings.Contains(got, older) {
			t.Fatalf("%s: %q, want %q", what, got, older)
		}
	}
	session(true)
	want("the database itself", "")
	backup := read()
	want("the database itself, read once more", "")
	session(true)
	write(backup)
	want("a backup", "older copy of itself")
	want("a backup that nothing was written to yet", "another")
	session(true)
	want("a backup that goes on", "")
	mine := read()
	write(backup)
	want("the backup again", "another")
	write(mine)
	session(true)
	if err := os.Remove(latestPath(path)); err != nil {
		t.Fatal(err)
	}
	want("a file that came alone", "came without")
	session(true)
	want("it goes on", "")

	if _, err := SetAside(path, time.Now(), nil); err != nil {
		t.Fatal(err)
	}
	want("a new one in the place of the old one", "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("a first start where a database once was", "")
}

// A loss of power may take away what was noted last, never more.
func TestOpen_ANoteThatIsBehindIsNoCopy(t *testing.T) {
	path := newPath(t)
	options := quiet()
	options.TellCopies = true
	db, err := Open(path, options)
	if err != nil {
		t.Fatal(err)
	}
	note, err := os.ReadFile(latestPath(path))
	if err == nil {
		err = db.Put(t.Context(), "claims", "a", nil)
	}
	if err := errors.Join(err, db.Close(), os.WriteFile(latestPath(path), note, 0o600)); err != nil {
		t.Fatal(err)
	}
	if db, err = Open(path, options); err != nil || db.Older() != "" {
		t.Fatal(db.Older(), err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// What is written to a file that is not there any more nobody would find again.
func TestDB_AFileThatIsReplacedTakesNothing(t *testing.T) {
	for name, replace := range map[string]func(path string, old []byte) error{
		"taken away":          func(path string, _ []byte) error { return os.Remove(path) },
		"another in its name": func(path string, old []byte) error { return replaceFile(path, old) },
		"written over":        func(path string, old []byte) error { return writeOver(path, old) },
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			db := mustOpen(t, path)
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"a", "b", "c"} {
				if err := db.Put(t.Context(), "claims", key, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := replace(path, old); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				err = db.Put(t.Context(), "claims", "d", nil)
				if reasons := fault.ReasonsOf(err); len(reasons) != 1 || reasons[0].Code != "database_replaced" {
					t.Fatalf("write: %v, want it refused with what became of the file", err)
				}
			}
			if err := db.Room(); !errors.Is(err, fault.Internal) {
				t.Errorf("room: %v, want none", err)
			}
			if _, there, err := db.Get(t.Context(), "claims", "d"); there {
				t.Errorf("what was refused is shown: %v", err)
			}
		})
	}
}

func replaceFile(path string, data []byte) error {
	return errors.Join(os.WriteFile(path+".backup", data, 0o600), os.Rename(path+".backup", path))
}

// writeOver leaves the file its length, as cp(1) does not: a page that the map lost
// is another case.
func writeOver(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Close())
}
