package disks_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

const (
	block = 64 << 10
	hole4 = 4096 // the smallest hole that is kept
)

// sparse makes a file of that size with text at some places.
func sparse(t *testing.T, f disks.Files, path string, size int64, at map[int64]string) {
	t.Helper()
	put(t, f, path, "")
	file, err := os.OpenFile(f.Real(path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for offset, text := range at {
		if _, err := file.WriteAt([]byte(text), offset); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil { // what it occupies is known then
		t.Fatal(err)
	}
}

// occupied is what a file takes of its filesystem.
func occupied(t *testing.T, f disks.Files, path string) int64 {
	t.Helper()
	_, _, n, err := f.Lookup(path)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReadBlock_TellsDataFromZeros(t *testing.T) {
	f := files(t)
	// Data in block 1, zeros that are written in block 4, a hole, and a short last block.
	size := int64(20*block + 100)
	sparse(t, f, "/d", size, map[int64]string{block + 7: "data", 4 * block: strings.Repeat("\x00", block), 20*block + 3: "end"})
	type piece struct {
		At, Length int64
		Zero       bool
	}
	var got []piece
	var all bytes.Buffer
	for at := int64(0); ; {
		b, err := f.ReadBlock("/d", at, 10*block, block)
		if err != nil {
			t.Fatal(err)
		}
		if b.Size != size || b.Version == "" || b.Zero != (b.Data == nil) && b.Length > 0 {
			t.Fatalf("at %d: %+v", at, b)
		}
		if b.Length == 0 {
			break
		}
		got = append(got, piece{at, b.Length, b.Zero})
		all.Write(b.Data)
		all.Write(make([]byte, b.Length-int64(len(b.Data))))
		at += b.Length
	}
	for i := 0; i+1 < len(got); { // how far a hole goes is the filesystem's to say
		if got[i].Zero && got[i+1].Zero {
			got[i].Length += got[i+1].Length
			got = append(got[:i+1], got[i+2:]...)
			continue
		}
		i++
	}
	want := []piece{{0, block, true}, {block, block, false}, {2 * block, 18 * block, true}, {20 * block, 100, false}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pieces (-want +got):\n%s", diff)
	}
	if raw, err := os.ReadFile(f.Real("/d")); err != nil || !bytes.Equal(raw, all.Bytes()) {
		t.Errorf("the pieces together are not the file (%v)", err)
	}
	if b, err := f.ReadBlock("/d", 0, 0, block); err != nil || b.Size != size || b.Length != 0 {
		t.Errorf("a look at it: %+v, %v", b, err)
	}
	if _, err := f.ReadBlock("/d", 5, block, block); !errors.Is(err, fault.Invalid) {
		t.Errorf("an odd place: %v", err)
	}
}

func TestReadBlock_VersionChangesWithTheContents(t *testing.T) {
	f := files(t)
	put(t, f, "/d", "one")
	look := func() string {
		b, err := f.ReadBlock("/d", 0, 0, block)
		if err != nil {
			t.Fatal(err)
		}
		return b.Version
	}
	before := look()
	if err := os.Chmod(f.Real("/d"), 0o600); err != nil {
		t.Fatal(err)
	}
	if look() != before {
		t.Error("another mode is another version")
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, f.Real("/d"), []unix.Timespec{{Sec: 1}, {Sec: 1}}, 0); err != nil {
		t.Fatal(err)
	}
	old := look()
	put(t, f, "/d", "two")
	if look() == old {
		t.Error("other contents are no other version")
	}
}

func TestLookup_StaysBelowTheRoot(t *testing.T) {
	f := files(t)
	put(t, f, "/images/d", "disk")
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(to, at string) {
		t.Helper()
		if err := os.Symlink(to, f.Real(at)); err != nil {
			t.Fatal(err)
		}
	}
	link("d", "/images/near")
	link("/images/d", "/images/whole") // the hypervisor's /
	link(outside, "/images/far")
	link("../../../../../../.."+outside, "/images/up")
	for _, path := range []string{"/images/d", "/images/near", "/images/whole"} {
		real, size, _, err := f.Lookup(path)
		if err != nil || real != "/images/d" || size != 4 {
			t.Errorf("%s leads to %s, %d bytes, %v", path, real, size, err)
		}
	}
	for _, path := range []string{"/images/far", "/images/up"} {
		if real, _, _, err := f.Lookup(path); err == nil {
			t.Errorf("%s leads to %s", path, real)
		}
	}
	if _, _, _, err := f.Lookup("/images"); !errors.Is(err, fault.Invalid) {
		t.Errorf("a folder: %v", err)
	}
	if _, _, _, err := f.Lookup("/images/none"); !errors.Is(err, fault.NotFound) {
		t.Errorf("nothing: %v", err)
	}
	if _, err := f.ReadBlock("/images/near", 0, block, block); err == nil {
		t.Error("a link was read")
	}
}

func TestPart_KeepsHolesAndForgetsWhatWasNotDurable(t *testing.T) {
	requireQemuImg(t)
	f := files(t)
	size := int64(8 * block)
	sparse(t, f, "/from", size, map[int64]string{block + hole4: "data", 5 * block: "more"})
	m, err := f.Plan("m1", disks.PartName(1, "vda"), "/to")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Build(t.Context(), &m, "raw", 0); err != nil {
		t.Fatal(err)
	}
	copyAll := func(kept int64) {
		t.Helper()
		p, err := f.OpenPart(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Trim(kept, size); err != nil {
			t.Fatal(err)
		}
		for at := kept; at < size; {
			b, err := f.ReadBlock("/from", at, size, block)
			if err != nil {
				t.Fatal(err)
			}
			if !b.Zero {
				if err := p.WriteAt(b.Data, at); err != nil {
					t.Fatal(err)
				}
			}
			at += b.Length
		}
		if err := errors.Join(p.Sync(), p.Close()); err != nil {
			t.Fatal(err)
		}
	}
	copyAll(0)
	// A power cut leaves garbage behind what is durable.
	dirty, err := os.OpenFile(f.Real(m.Part), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dirty.WriteAt([]byte("garbage"), 3*block); err != nil {
		t.Fatal(err)
	}
	dirty.Close()
	copyAll(2 * block)
	if err := f.Publish(m); err != nil {
		t.Fatal(err)
	}
	want, _ := os.ReadFile(f.Real("/from"))
	if got, err := os.ReadFile(f.Real("/to")); err != nil || !bytes.Equal(want, got) {
		t.Errorf("the copy is another file (%v)", err)
	}
	if from, to := occupied(t, f, "/from"), occupied(t, f, "/to"); to > from || from >= size {
		t.Errorf("the copy occupies %d bytes, its source %d of %d", to, from, size)
	}
	if _, err := f.OpenPart(m); !errors.Is(err, fault.NotFound) {
		t.Errorf("open it once it has its place: %v", err)
	}
}
