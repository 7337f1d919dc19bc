package diskstest

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// grown is a disk of 1 MiB that was made anew as one of 4 MiB, as far as a step.
func grown(t *testing.T, s Subject, step string) (recorded disks.Replaced) {
	t.Helper()
	r, err := s.Files.PlanReplace("m1", disks.PartName(1, "vda"), "/img/disk")
	if err != nil {
		t.Fatal(err)
	}
	if recorded = r; step == "planned" {
		return recorded
	}
	if err := s.Files.BuildCopy(t.Context(), &r, "raw", 4<<20); err != nil {
		t.Fatal(err)
	}
	if step == "half built" {
		return recorded
	}
	if step == "built" {
		return r
	}
	for range map[string]int{"replaced": 1, "replaced twice": 2}[step] {
		if err := s.Files.Replace(r); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func replaced(t *testing.T, fresh func(t *testing.T) Subject) {
	const text = "a guest's own"
	sizeOf := func(s Subject) int64 {
		img, err := s.Files.Image(t.Context(), "/img/disk", "raw")
		if err != nil {
			t.Fatal(err)
		}
		return img.VirtualSize
	}
	for _, step := range []string{"planned", "half built", "built", "replaced", "replaced twice"} {
		t.Run(step+", then put back", func(t *testing.T) {
			s := fresh(t)
			s.Put("/img/disk", text)
			before, size := s.List(), sizeOf(s)
			was, err := s.Files.Stamp("/img/disk")
			if err != nil {
				t.Fatal(err)
			}
			r := grown(t, s, step)
			if in := sizeOf(s) == 4<<20; in != (step == "replaced" || step == "replaced twice") {
				t.Errorf("the new file is in the place: %t", in)
			}
			for range 2 {
				if err := s.Files.PutBack(r); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(before, s.List()); diff != "" {
				t.Errorf("left (-want +got):\n%s", diff)
			}
			if now, err := s.Files.Stamp("/img/disk"); err != nil || !now.Equals(was) || sizeOf(s) != size {
				t.Errorf("not the old file: %+v, %v", now, err)
			}
		})
	}
	t.Run("confirmed", func(t *testing.T) {
		s := fresh(t)
		s.Put("/img/disk", text)
		before := s.List()
		r := grown(t, s, "replaced")
		if got := s.List(); !slices.Contains(got, r.Kept) || slices.Contains(got, r.Part) {
			t.Errorf("while both are kept: %v", got)
		}
		for range 2 {
			if err := s.Files.DropKept(r); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(before, s.List()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
		if sizeOf(s) != 4<<20 {
			t.Errorf("the guest's disk has %d bytes", sizeOf(s))
		}
		if err := s.Files.PutBack(r); !errors.Is(err, fault.Forbidden) {
			t.Errorf("put back what is not kept any more: %v", err)
		}
	})
	t.Run("somebody else's files stay", func(t *testing.T) {
		s := fresh(t)
		if _, err := s.Files.PlanReplace("m1", "1-vda", "/img/none"); !errors.Is(err, fault.NotFound) {
			t.Errorf("replace nothing: %v", err)
		}
		s.Put("/img/disk", text)
		r := grown(t, s, "built")
		s.Put("/img/new", "restored from a backup")
		s.Rename("/img/new", "/img/disk")
		for name, try := range map[string]func() error{
			"replace": func() error { return s.Files.Replace(r) },
			"copy":    func() error { again := r; return s.Files.BuildCopy(t.Context(), &again, "raw", 4<<20) },
		} {
			if err := try(); !errors.Is(err, fault.Forbidden) {
				t.Errorf("%s over another file: %v, want forbidden", name, err)
			}
		}
		if err := errors.Join(s.Files.DropKept(r), s.Files.PutBack(r)); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]string{"/img", "/img/disk"}, s.List()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
	t.Run("nor goes a file that came since", func(t *testing.T) {
		s := fresh(t)
		s.Put("/img/disk", text)
		r := grown(t, s, "replaced")
		s.Put("/img/new", "restored from a backup")
		s.Rename("/img/new", "/img/disk")
		if err := s.Files.PutBack(r); !errors.Is(err, fault.Forbidden) {
			t.Errorf("put back over another file: %v, want forbidden", err)
		}
		if diff := cmp.Diff([]string{"/img", r.Kept, "/img/disk"}, s.List()); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
}
