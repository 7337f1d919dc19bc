package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

	"berth/internal/fault"
)

// A backup that is put in a database's place is whole, and says what was so once. It
// is told from the database by a small file beside it, which names the file by its
// life (a random word of its meta bucket) and its last commit (bbolt's number of the
// transaction). It is written after each commit, in place and without a sync: after a
// loss of power it may be behind the database, never before it. A copy of both files
// together is not told.

// keyLife is the record of the meta bucket that tells this file from every other.
const keyLife = "life"

// latest is the file beside the database. Its fields are guarded by DB.view.
type latest struct {
	life   string
	file   *os.File // nil where it could not be had: then nothing is noted
	commit uint64   // the last of the open file
}

func latestPath(path string) string { return path + ".latest" }

const latestForm = "%s %020d\n" // of one length, so that it is always written in place

// readLatest gives what is noted; false where nothing is, or what makes no sense.
func readLatest(path string) (life string, commit uint64, found bool) {
	data, err := os.ReadFile(latestPath(path))
	if err != nil {
		return "", 0, false
	}
	_, err = fmt.Sscanf(string(data), "%s %d", &life, &commit)
	return life, commit, err == nil
}

// forgetLatest takes the note away, before a new database is put in place.
func forgetLatest(path string) error {
	if err := os.Remove(latestPath(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// compare notes whether a later commit than the last of this file was seen, and gives
// a new or older file a life of its own. What cannot be written is logged: a full disk must
// not keep a ledger from being read.
func (db *DB) compare(tell bool) error {
	var commit uint64
	err := db.bolt.View(func(tx *bbolt.Tx) error {
		commit = uint64(tx.ID())
		if b := tx.Bucket([]byte(bucketMeta)); b != nil {
			db.latest.life = string(b.Get([]byte(keyLife)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if db.latest.commit = commit; !tell {
		return nil
	}
	life, seen, found := readLatest(db.path)
	switch {
	case found && life == db.latest.life && commit >= seen, !found && db.latest.life == "":
	case found && life == db.latest.life:
		db.older = fmt.Sprintf("the database is an older copy of itself: its last commit is %d, and %d was made", commit, seen)
	case found:
		db.older = "the database is another one than was here last"
	default:
		db.older = "the database came without " + latestPath(db.path) + ", so it may be an older copy"
	}
	if err := db.openLatest(commit); err != nil {
		db.log.Warn("an older copy of the database would not be told from it", "path", db.path, "error", err)
	}
	return nil
}

func (db *DB) openLatest(commit uint64) error {
	if db.latest.life == "" || db.older != "" {
		life := rand.Text() // a copy goes on as another file, and one whose word was garbled too
		err := db.bolt.Update(func(tx *bbolt.Tx) error {
			commit = uint64(tx.ID())
			return tx.Bucket([]byte(bucketMeta)).Put([]byte(keyLife), []byte(life))
		})
		if err != nil {
			return err
		}
		db.latest.life, db.latest.commit = life, commit
	}
	f, err := os.OpenFile(latestPath(db.path), os.O_WRONLY|os.O_CREATE, fileMode)
	if err != nil {
		return err
	}
	db.latest.file = f
	if db.older != "" {
		return nil // until who opened it has made durable that it is
	}
	return errors.Join(db.note(commit), f.Sync(), syncDirectory(db.path))
}

func syncDirectory(path string) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// note writes down the last commit.
func (db *DB) note(commit uint64) error {
	_, err := db.latest.file.WriteAt(fmt.Appendf(nil, latestForm, db.latest.life, commit), 0)
	return err
}

// committed is called after each commit, before anybody is told of it. A file that
// somebody has put in the place of the open one, or has taken away, ends the writing:
// what was written to the open one nobody would find again.
func (db *DB) committed(commit uint64) error {
	open, err := db.space.file.Stat()
	if err != nil {
		return nil // closed
	}
	there, err := os.Stat(db.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(open, there) {
		return db.replaced()
	}
	db.latest.commit = commit
	if db.latest.file != nil && db.note(commit) != nil {
		_ = db.latest.file.Close() // it is said below, once
		db.latest.file = nil
		db.log.Warn("an older copy of the database would not be told from it", "path", db.path)
	}
	return nil
}

// replaced ends the writing.
func (db *DB) replaced() error {
	return db.breaks(fault.Reason{
		Code: "database_replaced", Message: "the file of the database was taken away or replaced while it was open",
		Change: "put this host's own file there, and restart: what is missing is asked of others",
	})
}

// Older says why the database must be taken for an older copy; empty where it need not
// be, or where nobody wanted to know (Options.TellCopies). It is said by every Open until the next commit is made: who opened it makes
// durable with that what follows from it.
func (db *DB) Older() string { return db.older }
