package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	"berth/internal/fault"
)

func TestOpen_UpgradesStepByStep(t *testing.T) {
	path := newPath(t)
	db := mustOpen(t, path)
	if err := errors.Join(db.Put(t.Context(), "claims", "a", []byte("1")), db.Close()); err != nil {
		t.Fatal(err)
	}
	rename := func(from, to string) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error {
			w, err := newWriter(tx, map[record][]byte{})
			if err != nil {
				return err
			}
			v, _, _ := unsealed(tx.Bucket([]byte(from)).Get([]byte("a")))
			v = bytes.Clone(v)
			return errors.Join(w.write(Delete(from, "a")), w.write(Put(to, "a", v)))
		}
	}
	future := schema{version: 3, upgrades: map[int]func(*bbolt.Tx) error{1: rename("claims", "second"), 2: rename("second", "third")}}
	up, err := open(path, quiet(), future)
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, up, "third")["a"]; got != "1" {
		t.Errorf("record after two upgrades: %q", got)
	}
	if err := up.Close(); err != nil {
		t.Fatal(err)
	}
	if again, err := open(path, quiet(), future); err != nil || again.Close() != nil {
		t.Errorf("upgraded file does not open: %v", err)
	}
	if _, err := Open(path, quiet()); err == nil || !strings.Contains(err.Error(), "newer Berth") {
		t.Errorf("older program on a newer file: %v, want it said", err)
	}
}

func TestOpen_FailedUpgradeChangesNothing(t *testing.T) {
	path := newPath(t)
	db := mustOpen(t, path)
	if err := errors.Join(db.Put(t.Context(), "claims", "a", []byte("1")), db.Close()); err != nil {
		t.Fatal(err)
	}
	broken := schema{version: 2, upgrades: map[int]func(*bbolt.Tx) error{1: func(tx *bbolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte("claims")), errors.New("no"))
	}}}
	if _, err := open(path, quiet(), broken); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one with the path", err)
	}
	if got := list(t, mustOpen(t, path), "claims")["a"]; got != "1" {
		t.Errorf("record after a failed upgrade: %q", got)
	}
}

func TestOpen_ReadsSchema1(t *testing.T) {
	data, err := os.ReadFile("testdata/schema-1.db")
	if err != nil {
		t.Fatal(err)
	}
	path := newPath(t)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	db := mustOpen(t, path)
	for bucket, want := range map[string]int{"claims": 4, "instances": 3, "halves": 3, "verbs": 1, "journal": 2} {
		if got := len(list(t, db, bucket)); got != want {
			t.Errorf("bucket %s: %d records, want %d", bucket, got, want)
		}
	}
}

// sample is a database with a branch page, inline buckets and free pages.
func sample(t testing.TB) []byte {
	path := filepath.Join(t.TempDir(), "berth.db")
	db, err := Open(path, quiet())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		err = errors.Join(err, db.Put(t.Context(), "claims", fmt.Sprintf("%036d", i), bytes.Repeat([]byte{byte('a' + i%26)}, 150)))
	}
	err = errors.Join(err, db.Put(t.Context(), "instances", "small", []byte("inline")), db.Delete(t.Context(), "claims", fmt.Sprintf("%036d", 7)), db.Close())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	im, err := readImage(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return data[:im.highWater*im.pageSize] // behind it is the reserve, of zeros
}

func openBytes(t *testing.T, data []byte) (*DB, error) {
	path := newPath(t)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := Open(path, quiet())
	if err != nil {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("error does not name the file: %v", err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, data) {
			t.Error("a refused file was changed")
		}
		return nil, err
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, nil
}

func TestOpen_RefusesACutFile(t *testing.T) {
	data := sample(t)
	im, err := readImage(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	inUse := int(im.highWater * im.pageSize)
	for _, n := range []int{0, 1, 100, 4096, 5000, 8192, 12288, inUse - 4096, inUse - 1} {
		if _, err := openBytes(t, data[:n]); !errors.Is(err, fault.Internal) || fault.ReasonsOf(err) == nil {
			t.Errorf("cut to %d of %d bytes: %v, want damage with a reason", n, inUse, err)
		}
	}
}

func TestOpen_RefusesForeignFiles(t *testing.T) {
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	b, err := bbolt.Open(foreign, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket([]byte("somebody"))
		return err
	})
	if err := errors.Join(err, b.Close()); err != nil {
		t.Fatal(err)
	}
	bolt, _ := os.ReadFile(foreign)
	for name, data := range map[string][]byte{
		"text": []byte(strings.Repeat("not a database\n", 1000)), "zeros": make([]byte, 1<<16), "another bbolt database": bolt,
	} {
		if _, err := openBytes(t, data); err == nil || !errors.Is(err, fault.Internal) {
			t.Errorf("%s: %v, want refused", name, err)
		}
	}
}

// A bit of every seventh byte of the file is flipped. Either the damage is found, or nothing
// was lost: all records are there, or those before the last commit, with a
// warning.
func TestOpen_FindsFlippedBits(t *testing.T) {
	data := sample(t)
	records := func(data []byte) (content map[string]string, warned bool, err error) {
		im, err := readImage(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return nil, false, err
		}
		if _, err := current.examine(im); err != nil {
			return nil, false, err
		}
		again, _ := readImage(bytes.NewReader(data), int64(len(data)))
		content = map[string]string{}
		err = again.walk(func(b, k, v []byte) error {
			if string(k) == keyLife {
				return nil // one that is garbled is another file's: see Older
			}
			content[string(b)+"/"+string(k)] = string(v)
			return nil
		})
		return content, len(im.warnings) > 0, err
	}
	want, _, err := records(data)
	if err != nil || len(want) != 60+4 {
		t.Fatalf("sound file: %d records, %v", len(want), err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	found, harmless := 0, 0
	for at := 0; at < len(data); at += 7 * stride { // 7 divides no size in the format
		flipped := bytes.Clone(data)
		flipped[at] ^= 1 << random.IntN(8)
		got, warned, err := records(flipped)
		switch {
		case err != nil:
			found++
			continue
		case !warned && !maps.Equal(want, got):
			t.Fatalf("byte %d: other records and no error", at)
		}
		harmless++
		if harmless%300 != 0 {
			continue
		}
		db, err := openBytes(t, flipped) // bbolt must read the same
		if err != nil {
			t.Errorf("byte %d: examined well, opened with %v", at, err)
			continue
		}
		if n := len(list(t, db, "claims")); !warned && n != 59 {
			t.Errorf("byte %d: bbolt reads %d records, want 59", at, n)
		}
	}
	t.Logf("%d flips found, %d harmless", found, harmless)
	if found < 1000/stride {
		t.Errorf("only %d of %d flips found", found, len(data))
	}
}

func FuzzExamine(f *testing.F) {
	f.Add(sample(f))
	f.Add([]byte("text"))
	f.Fuzz(func(t *testing.T, data []byte) {
		im, err := readImage(bytes.NewReader(data), int64(len(data)))
		if err == nil {
			_, _ = current.examine(im)
		}
	})
}
