package stuck

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth/internal/fault"
	"berth/internal/stuck/stucktest"
)

// short is how long a call on a hung file system is waited for; one that answers has it too.
const short = time.Second

func stat(path string) func() (os.FileInfo, error) {
	return func() (os.FileInfo, error) { return os.Stat(path) }
}

// underWay counts the calls that have not come back from the file system mounted at a folder. A
// call that was given up may still be on its way there, on another one.
func (c *Calls) underWay(point string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, p := range c.places {
		for w := range p.calls {
			if w.at.point == point {
				n++
			}
		}
	}
	return n
}

// age makes calls that are under way long silent, and keeps their file system from being asked
// again, however slow this machine is.
func (c *Calls) age() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.places {
		for w := range p.calls {
			p.calls[w] = time.Now().Add(-time.Hour)
		}
		p.tried = time.Now().Add(time.Hour)
	}
}

func TestRead_HungFileSystem_NamesItAndAddsNoThread(t *testing.T) {
	dir, end := stucktest.Hang(t)
	c := &Calls{Limit: short}
	_, err := Read(c, filepath.Join(dir, "disk"), stat(filepath.Join(dir, "disk")))
	reasons := fault.ReasonsOf(err)
	if !errors.Is(err, fault.Unavailable) || len(reasons) != 1 || reasons[0].Code != "filesystem_silent" ||
		!strings.Contains(reasons[0].Message, dir) || !strings.Contains(reasons[0].Message, "berth-test-server:/export") {
		t.Fatalf("got %v", err)
	}
	c.age()
	for range 100 {
		if _, again := Read(c, dir, stat(dir)); !errors.Is(again, fault.Unavailable) {
			t.Fatalf("got %v", again)
		}
	}
	if n := c.underWay(dir); n != 1 {
		t.Errorf("%d calls wait for it, want 1", n)
	}
	// Others are as they were.
	if _, err := Read(c, t.TempDir(), stat("/")); err != nil {
		t.Error(err)
	}
	end()
	for c.underWay(dir) > 0 { // ends with the calls, or with the test's time
		time.Sleep(time.Millisecond)
	}
	if _, err := Read(c, dir, stat(dir)); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("it answers again, and the caller has %v", err)
	}
}

func TestRead_LinkToHungFileSystem_BlamesWhereItLeads(t *testing.T) {
	dir, _ := stucktest.Hang(t)
	local := t.TempDir()
	if err := os.Symlink("../../"+strings.TrimPrefix(dir, filepath.Dir(filepath.Dir(local))+"/"), filepath.Join(local, "images")); err != nil {
		t.Fatal(err)
	}
	c := &Calls{Limit: short}
	_, err := Read(c, filepath.Join(local, "images", "disk"), stat(filepath.Join(local, "images", "disk")))
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v, want the mount %s named", err, dir)
	}
	if _, err := Read(c, local, stat(local)); err != nil {
		t.Errorf("the file system that has the link: %v", err)
	}
}

func TestRead_ManyAtOnce_AreBounded(t *testing.T) {
	dir, _ := stucktest.Hang(t)
	c := &Calls{Limit: short}
	var all sync.WaitGroup
	for range 20 * width {
		all.Go(func() {
			if _, err := Read(c, dir, stat(dir)); !errors.Is(err, fault.Unavailable) {
				t.Errorf("got %v", err)
			}
		})
	}
	all.Wait()
	if n := c.underWay(dir); n > width {
		t.Errorf("%d calls wait for it, want at most %d", n, width)
	}
}

func TestLong_HungFileSystem_IsNotBegun(t *testing.T) {
	dir, _ := stucktest.Hang(t)
	c := &Calls{Limit: short}
	_, err := Long(t.Context(), c, dir, func() (int, error) {
		t.Error("it was begun")
		return 0, nil
	})
	if !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if err := c.Answers(filepath.Join(dir, "new", "disk")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
}

func TestLong_ContextEnds_BlamesNobody(t *testing.T) {
	c := &Calls{Limit: short}
	dir := t.TempDir()
	release := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*short) // longer than Limit: it may take long
	defer cancel()
	_, err := Long(ctx, c, dir, func() (int, error) { <-release; return 0, nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := c.Answers(dir); err != nil {
		t.Errorf("after a long call: %v", err)
	}
	close(release)
}

// More long calls than width, all begun before any asks the file system again: none waits for
// another's end.
func TestLong_ManyThatAskAgain_AllEnd(t *testing.T) {
	c := &Calls{Limit: time.Minute}
	dir := t.TempDir()
	const many = 40
	var all, inside sync.WaitGroup
	inside.Add(many)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute/2)
	defer cancel()
	for range many {
		all.Go(func() {
			_, err := Long(ctx, c, dir, func() (int, error) {
				inside.Done()
				inside.Wait()
				return 0, c.Answers(dir)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// A call that is stuck for a reason of its own, or on a mount that came after the table was
// read, must not have the file system refused for ever.
func TestRead_OneStuckCallOfAFileSystemThatAnswers_IsForgiven(t *testing.T) {
	c := &Calls{Limit: time.Minute}
	dir := t.TempDir()
	release, stuck := make(chan struct{}), make(chan struct{})
	go func() {
		_, _ = Read(c, dir, func() (int, error) { close(stuck); <-release; return 0, nil })
	}()
	<-stuck
	c.mu.Lock()
	for _, p := range c.places {
		for w := range p.calls {
			p.calls[w] = time.Now().Add(-time.Hour)
		}
	}
	c.mu.Unlock()
	for range 2 {
		if _, err := Read(c, dir, stat(dir)); err != nil {
			t.Errorf("got %v", err)
		}
	}
	close(release)
}

func TestOfProcess_Silent_IsBoundedByPID(t *testing.T) {
	c := &Calls{Limit: short}
	release := make(chan struct{})
	if _, err := OfProcess(c, 7, func() (int, error) { <-release; return 0, nil }); fault.ReasonsOf(err)[0].Code != "process_silent" {
		t.Errorf("got %v", err)
	}
	if n, err := OfProcess(c, 8, func() (int, error) { return 8, nil }); n != 8 || err != nil {
		t.Errorf("another process: %d, %v", n, err)
	}
	close(release)
}

func TestMounts_At_FollowsWhatIsMountedOver(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := `27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / /mnt/a rw - nfs4 server:/a\040b rw
41 40 0:41 / /mnt/a/in rw - nfs4 server:/in rw
42 40 0:42 / /mnt/a rw - tmpfs over rw
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := ReadMounts(file)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/": "254:0", "/mnt": "254:0", "/mnt/a": "0:42", "/mnt/a/in/x": "0:42", "/mnt/ab": "254:0"} {
		if got := m.at(path).Device; got != want {
			t.Errorf("%s is on %s, want %s", path, got, want)
		}
	}
	if nfs, ok := m.ByID(40); !ok || nfs.Source != "server:/a b" {
		t.Errorf("got %+v", nfs)
	}
}
