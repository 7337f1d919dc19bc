package disks

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/stuck"
	"berth/internal/stuck/stucktest"
)

// Every way to a hung file system ends, names it, and adds no thread after the first.
func TestBounded_HungFileSystem_EveryCallEndsAndNamesIt(t *testing.T) {
	dir, _ := stucktest.Hang(t)
	at := filepath.Join(dir, "vm1", "disk")
	b := Files{BootID: "boot"}.Bounded(&stuck.Calls{Limit: time.Second})
	m := Made{Path: at, Part: at + ".part", Migration: "m1", Stamp: &Stamp{Inode: 1}}
	r := Replaced{Made: m, Kept: at + ".kept"}
	for name, call := range map[string]func() error{
		"Image":       func() error { _, err := b.Image(t.Context(), at, "raw"); return err },
		"Layer":       func() error { _, err := b.Layer(t.Context(), at, "qcow2"); return err },
		"Identity":    func() error { _, err := b.Identity(at); return err },
		"Stamp":       func() error { _, err := b.Stamp(at); return err },
		"Exists":      func() error { _, err := b.Exists(at); return err },
		"Empty":       func() error { _, err := b.Empty(dir); return err },
		"Resolve":     func() error { _, err := b.Resolve(at); return err },
		"Space":       func() error { _, err := b.Space(at); return err },
		"Shared":      func() error { _, err := b.Shared(at); return err },
		"Lookup":      func() error { _, _, _, err := b.Lookup(at); return err },
		"Writers":     func() error { _, err := b.Writers(at); return err },
		"Openers":     func() error { _, err := b.Openers(at); return err },
		"ReadBlock":   func() error { _, err := b.ReadBlock(at, 0, 4096, 4096); return err },
		"Plan":        func() error { _, err := b.Plan("m1", "1-vda", at); return err },
		"PlanReplace": func() error { _, err := b.PlanReplace("m1", "1-vda", at); return err },
		"CopyNeeds":   func() error { _, err := b.CopyNeeds(at); return err },
		"Build":       func() error { return b.Build(t.Context(), &m, "raw", 1<<20) },
		"BuildFrom":   func() error { return b.BuildFrom(t.Context(), &m, "raw", 1<<20, "", "") },
		"BuildCopy":   func() error { return b.BuildCopy(t.Context(), &r, "raw", 1<<20) },
		"Publish":     func() error { return b.Publish(m) },
		"Unmake":      func() error { return b.Unmake(m) },
		"Replace":     func() error { return b.Replace(r) },
		"PutBack":     func() error { return b.PutBack(r) },
		"DropKept":    func() error { return b.DropKept(r) },
		"Remove":      func() error { return b.Remove(at, Stamp{Inode: 1}) },
		"Grow":        func() error { return b.Grow(t.Context(), at, "raw", 1<<20) },
		"GiveTo":      func() error { _, err := b.GiveTo(at, 0, 0); return err },
		"OpenPart":    func() error { _, err := b.OpenPart(m); return err },
	} {
		err := call()
		if reasons := fault.ReasonsOf(err); !errors.Is(err, fault.Unavailable) || len(reasons) != 1 || !strings.Contains(reasons[0].Message, dir) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if b.Keep(m); b.Size(at) != 0 {
		t.Error("a file that nobody sees has a size")
	}
	// One on another file system is as it was.
	local := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(local, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if w, err := b.Writers(local); err != nil || len(w) > 0 {
		t.Errorf("Writers = %v, %v", w, err)
	}
	if id, err := b.Identity(local); err != nil || id == "" {
		t.Errorf("Identity = %q, %v", id, err)
	}
}

// What is added to Files is added to Bounded.
func TestBounded_HasEveryMethodOfFiles(t *testing.T) {
	files, bounded := reflect.TypeFor[Files](), reflect.TypeFor[Bounded]()
	for m := range files.Methods() {
		if _, ok := bounded.MethodByName(m.Name); !ok && m.Name != "Real" && m.Name != "Bounded" {
			t.Errorf("Bounded has no %s", m.Name)
		}
	}
}

// Every image of OpenStack's is called "disk": one with that name on a dead server, open in
// another process, is not looked at.
func TestWriters_SameNameOpenOnAHungFileSystem_IsNotFollowed(t *testing.T) {
	dir, end := stucktest.Hang(t)
	local := filepath.Join(t.TempDir(), filepath.Base(dir))
	held, err := os.OpenFile(local, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	// O_PATH needs no answer from the server. Its flags are made to count below.
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("cannot hold a descriptor of it: %v", err)
	}
	defer unix.Close(fd)
	var f Files // without limits
	w, err := f.watch(local)
	if err != nil || w == nil {
		t.Fatalf("watch = %v, %v", w, err)
	}
	found := make(chan error, 1)
	go func() {
		_, err := f.holdersIn("/proc", []watched{*w}, func(int64) bool { return true })
		found <- err
	}()
	select {
	case err := <-found:
		if err != nil {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		end()
		t.Error("it waits for the hung file system")
	}
}
