package diskstest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// Subject is what the suite holds to account, and what it needs of the world around
// it.
type Subject struct {
	Files interface {
		Image(ctx context.Context, path, format string) (disks.Image, error)
		Stamp(path string) (disks.Stamp, error)
		Exists(path string) (bool, error)
		Plan(migration, part, path string) (disks.Made, error)
		Build(ctx context.Context, m *disks.Made, format string, size int64) error
		Publish(m disks.Made) error
		Unmake(m disks.Made) error
		Remove(path string, s disks.Stamp) error
		PlanReplace(migration, part, path string) (disks.Replaced, error)
		BuildCopy(ctx context.Context, r *disks.Replaced, format string, size int64) error
		Replace(r disks.Replaced) error
		PutBack(r disks.Replaced) error
		DropKept(r disks.Replaced) error
		Grow(ctx context.Context, path, format string, size int64) error
		GiveTo(path string, uid, gid int) (bool, error)
	}
	Put    func(path, text string) // a raw file, in a new file of that name, with the folders above
	Rename func(old, new string)   // over what is there
	List   func() []string         // all files and folders
}

// Run holds files to what a move relies on. Each test gets a subject without files.
func Run(t *testing.T, fresh func(t *testing.T) Subject) {
	t.Run("make, then unmake, leaves the rest alone", func(t *testing.T) { unmade(t, fresh) })
	t.Run("never touches what somebody else put there", func(t *testing.T) { untouched(t, fresh(t)) })
	t.Run("replaces a file, and puts the old one back", func(t *testing.T) { replaced(t, fresh) })
	t.Run("grows a file that stays the same one", func(t *testing.T) { grows(t, fresh(t)) })
	t.Run("gives a file to a user", func(t *testing.T) { given(t, fresh(t)) })
	t.Run("removes only the file of that stamp", func(t *testing.T) { removed(t, fresh(t)) })
}

func unmade(t *testing.T, fresh func(t *testing.T) Subject) {
	s := fresh(t)
	s.Put("/img/there/file", "stays")
	before := s.List()
	for _, stop := range []string{"planned", "built", "published", "published again"} {
		t.Run(stop, func(t *testing.T) {
			m, err := s.Files.Plan("m1", disks.PartName(1, "vda"), "/img/new/deep/disk.qcow2")
			if err != nil {
				t.Fatal(err)
			}
			recorded := m // what a crash would leave on record
			if stop != "planned" {
				if err := s.Files.Build(t.Context(), &m, "qcow2", 8<<20); err != nil {
					t.Fatal(err)
				}
				if stop != "built" {
					recorded = m
				}
			}
			if strings.HasPrefix(stop, "published") {
				if err := s.Files.Publish(m); err != nil {
					t.Fatal(err)
				}
				img, err := s.Files.Image(t.Context(), m.Path, "qcow2")
				if err != nil || img.VirtualSize != 8<<20 {
					t.Fatalf("made image: %+v, %v", img, err)
				}
				want := append(slices.Clone(before), "/img/new", "/img/new/deep", m.Path)
				slices.Sort(want)
				if diff := cmp.Diff(want, s.List()); diff != "" {
					t.Errorf("published (-want +got):\n%s", diff)
				}
			}
			if stop == "published again" {
				if err := s.Files.Publish(m); err != nil {
					t.Fatalf("publish again: %v", err)
				}
			}
			for range 2 {
				if err := s.Files.Unmake(recorded); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, s.List()); diff != "" {
				t.Errorf("left behind (-want +got):\n%s", diff)
			}
		})
	}
}

func untouched(t *testing.T, s Subject) {
	s.Put("/img/occupied", "mine")
	if _, err := s.Files.Plan("m1", "1-vda", "/img/occupied"); !errors.Is(err, fault.Exists) {
		t.Errorf("plan for an occupied place: %v, want exists", err)
	}
	m, err := s.Files.Plan("m1", "1-vda", "/img/raced")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Files.Build(t.Context(), &m, "raw", 1<<20); err != nil {
		t.Fatal(err)
	}
	s.Put("/img/raced", "somebody else's")
	if err := s.Files.Publish(m); !errors.Is(err, fault.Exists) {
		t.Errorf("publish into a taken place: %v, want exists", err)
	}
	if err := s.Files.Unmake(m); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/img", "/img/occupied", "/img/raced"}, s.List()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	// Replaced after it was made: the new file is not ours either.
	n, err := s.Files.Plan("m1", "1-vdb", "/img/swapped")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Files.Build(t.Context(), &n, "raw", 1<<20), s.Files.Publish(n)); err != nil {
		t.Fatal(err)
	}
	s.Put("/img/new", "restored from a backup")
	s.Rename("/img/new", "/img/swapped")
	if err := s.Files.Unmake(n); err != nil {
		t.Fatal(err)
	}
	if there, err := s.Files.Exists("/img/swapped"); !there || err != nil {
		t.Errorf("a file that replaced ours was removed: %v", err)
	}
}

func removed(t *testing.T, s Subject) {
	s.Put("/a", "old")
	stamp, err := s.Files.Stamp("/a")
	if err != nil {
		t.Fatal(err)
	}
	s.Put("/b", "new")
	s.Rename("/b", "/a")
	if err := s.Files.Remove("/a", stamp); !errors.Is(err, fault.Forbidden) {
		t.Errorf("remove another file: %v, want forbidden", err)
	}
	if stamp, err = s.Files.Stamp("/a"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Files.Remove("/a", stamp); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if got := s.List(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func grows(t *testing.T, s Subject) {
	const path = "/images/disk"
	s.Put(path, strings.Repeat("x", 512))
	before, err := s.Files.Stamp(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{1 << 20, 1 << 20, 4096} { // again, and smaller
		if err := s.Files.Grow(t.Context(), path, "raw", want); err != nil {
			t.Fatal(err)
		}
		img, err := s.Files.Image(t.Context(), path, "raw")
		if err != nil || img.VirtualSize != 1<<20 {
			t.Errorf("asked for %d bytes: %d, %v", want, img.VirtualSize, err)
		}
	}
	if after, err := s.Files.Stamp(path); err != nil || !after.Equals(before) {
		t.Errorf("another file: %+v, %v, was %+v", after, err, before)
	}
	if err := s.Files.Grow(t.Context(), "/images/none", "raw", 1<<20); !errors.Is(err, fault.NotFound) {
		t.Errorf("grew what is not there: %v", err)
	}
}

func given(t *testing.T, s Subject) {
	const path, uid, gid = "/images/disk", 64055, 109
	s.Put(path, "guest's")
	before, err := s.Files.Stamp(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := s.Files.GiveTo(path, uid, gid); changed != want || err != nil {
			t.Errorf("given: %v, %v, want %v", changed, err, want)
		}
	}
	if after, err := s.Files.Stamp(path); err != nil || !after.Equals(before) {
		t.Errorf("another file: %+v, %v, was %+v", after, err, before)
	}
	if _, err := s.Files.GiveTo("/images/none", uid, gid); !errors.Is(err, fault.NotFound) {
		t.Errorf("gave what is not there: %v", err)
	}
}
