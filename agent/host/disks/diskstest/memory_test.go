package diskstest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"berth/agent/host"
	"berth/agent/host/disks/diskstest"
	"berth/internal/fault"
)

var _ host.Files = (*diskstest.Files)(nil)

func TestMemory_BehavesAsRealFiles(t *testing.T) {
	diskstest.Run(t, func(*testing.T) diskstest.Subject {
		f := diskstest.NewWorld().Host("a")
		return diskstest.Subject{
			Files: f, List: f.List,
			Put:    func(path, text string) { f.Put(path, "raw", int64(len(text)), text) },
			Rename: f.Rename,
		}
	})
}

func TestMemory_ASharedFolderHoldsTheSameFiles(t *testing.T) {
	w := diskstest.NewWorld()
	w.Share("/shared", "a", "b")
	a, b, c := w.Host("a"), w.Host("b"), w.Host("c")
	a.Put("/shared/disk", "raw", 1, "x")
	a.Put("/disk", "raw", 1, "x")
	b.Put("/disk", "raw", 1, "x")
	same := func(path string, x, y *diskstest.Files) bool {
		one, err1 := x.Identity(path)
		two, err2 := y.Identity(path)
		return err1 == nil && err2 == nil && one == two
	}
	if !same("/shared/disk", a, b) || same("/disk", a, b) {
		t.Error("a file is the same for two hosts where the folder is, and there alone")
	}
	if _, err := c.Identity("/shared/disk"); !errors.Is(err, fault.NotFound) {
		t.Errorf("a host that does not have the folder: %v", err)
	}
}

// A crash at every step, then the undo from what was on record.
func TestMemory_EveryStepCanBeTheLast(t *testing.T) {
	steps := 0
	for stop := 1; stop == 1 || stop <= steps+1; stop++ {
		w := diskstest.NewWorld()
		f := w.Host("a")
		n := 0
		w.OnStep(func(host, step, path string) error {
			if n++; n == stop {
				return errors.New("crashed")
			}
			return nil
		})
		m, err := f.Plan("m", "1-vda", "/img/vm/disk")
		if err != nil {
			t.Fatal(err)
		}
		recorded := m
		err = f.Build(context.Background(), &m, "qcow2", 1<<20)
		if err == nil {
			recorded = m
			err = f.Publish(m)
		}
		if steps = max(steps, n); stop <= n && err == nil {
			t.Errorf("step %d failed, and nobody was told", stop)
		}
		w.OnStep(nil)
		if err := f.Unmake(recorded); err != nil {
			t.Error(err)
		}
		if left := f.List(); len(left) > 0 {
			t.Errorf("stopped at step %d: left %v", stop, left)
		}
	}
	if steps < 5 {
		t.Errorf("only %d steps", steps)
	}
}

func TestMemory_MarksWhatIsNobodysYet(t *testing.T) {
	f := diskstest.NewWorld().Host("a")
	f.Put("/img/base", "raw", 7, "content")
	m, err := f.Plan("m", "0", "/img/disk")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.BuildFrom(t.Context(), &m, "qcow2", 100, "/img/base", "raw"), f.Publish(m)); err != nil {
		t.Fatal(err)
	}
	if got := f.Marked(); !slices.Equal(got, []string{"/img/disk"}) {
		t.Errorf("marked: %v", got)
	}
	f.Keep(m)
	data, size, _ := f.Data("/img/disk")
	if got := fmt.Sprintf("%v %s %d", f.Marked(), data, size); got != "[] content 100" {
		t.Errorf("kept: %s", got)
	}
}
