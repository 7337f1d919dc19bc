package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// openAndDie is what the agent of the next test does: it opens a stream and is
// killed.
func openAndDie(dir, order string) {
	text, err := os.ReadFile(order)
	if err == nil {
		var o Order
		if err = json.Unmarshal(text, &o); err == nil {
			var m *Manager
			self, _ := os.Executable()
			s := Children{Command: []string{self, "stream-process"}}
			if m, err = NewManager(dir, s, &runtime.System{}); err == nil {
				_, err = m.Open(context.Background(), o)
			}
		}
	}
	if err != nil {
		panic(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func TestStream_OutlivesTheAgentThatOpenedIt(t *testing.T) {
	p := newPair(t, own(t))
	text, err := json.Marshal(p.in)
	if err != nil {
		t.Fatal(err)
	}
	order := filepath.Join(p.root, "order")
	if err := os.WriteFile(order, text, 0o600); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.Command(self, "stream-agent", filepath.Join(p.root, "b"), order)
	out, err := agent.CombinedOutput()
	if agent.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the agent ended with %v: %s", err, out)
	}
	// Another agent finds it by the migration's uuid, and it is the one that was
	// asked for: nothing is started a second time.
	ids, err := p.dst.Find(testMigration)
	if diff := cmp.Diff([]ID{testID}, ids); err != nil || diff != "" {
		t.Fatalf("found %v, %v (-want +got)\n%s", ids, err, diff)
	}
	before := p.status(p.dst)
	st := p.openDestination()
	if st.PID != before.PID || st.Port != before.Port {
		t.Errorf("it was process %d on port %d, and is %d on %d", before.PID, before.Port, st.PID, st.Port)
	}
	if pgid, err := syscall.Getpgid(st.PID); err != nil || pgid != st.PID {
		t.Errorf("its process group is %d, %v: a signal to the agent's would reach it", pgid, err)
	}
	if _, err := p.src.Open(t.Context(), p.out); err != nil {
		t.Fatal(err)
	}
	a, b := p.connected(p.memory())
	p.says(a, b, "still forwarding")
	if err := p.dst.Close(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	p.ends(a)
	if _, err := p.dst.Status(t.Context(), testID); !errors.Is(err, fault.NotFound) {
		t.Errorf("after its end: %v, want %v", err, fault.NotFound)
	}
}

func TestStream_EitherSideKilled(t *testing.T) {
	for _, victim := range []Role{Source, Destination} {
		t.Run(string(victim), func(t *testing.T) {
			p := newPair(t, own(t))
			p.open()
			a, b := p.connected(p.memory())
			p.says(a, b, "x")
			m, other := p.src, p.dst
			if victim == Destination {
				m, other = p.dst, p.src
			}
			if err := syscall.Kill(p.status(m).PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			// QEMU on both sides sees the end, and the other process stays for what
			// is asked next.
			p.ends(a)
			p.ends(b)
			p.until(other, "closed", func(st Status) bool { return st.Open == 0 })
			// The kernel closes its files one after the other: its lock may be the last.
			if err := m.fallen(t.Context(), m.Paths(testID)); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Status(t.Context(), testID); !errors.Is(err, fault.NotFound) {
				t.Errorf("of the killed one is said %v, want %v", err, fault.NotFound)
			}
			alive, err := m.Sweep()
			if err != nil || len(alive) > 0 {
				t.Errorf("sweep found %v, %v alive", alive, err)
			}
			if left, err := os.ReadDir(m.dir); err != nil || len(left) > 0 {
				t.Errorf("sweep left %v, %v", left, err)
			}
			if alive, err := other.Sweep(); err != nil || !slices.Equal(alive, []ID{testID}) {
				t.Errorf("sweep of the living one: %v, %v", alive, err)
			}
		})
	}
}

func TestManager_ClosesAProcessThatDoesNotAnswer(t *testing.T) {
	p := newPair(t, own(t))
	p.openDestination()
	pid := p.status(p.dst).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// Its threads stop one after the other.
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := p.dst.Status(ctx, testID)
		cancel()
		if err == nil {
			continue
		}
		if !errors.Is(err, fault.Unavailable) {
			t.Errorf("of a stopped process is said %v, want %v", err, fault.Unavailable)
		}
		break
	}
	p.dst.patience = 50 * time.Millisecond
	if err := p.dst.Close(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("tcp", p.out.Address); err == nil {
		c.Close()
		t.Error("its port is still open")
	}
	if err := p.dst.Close(t.Context(), testID); err != nil {
		t.Errorf("a second close: %v", err)
	}
}

// hasty is a clock on which every limit is over early.
type hasty struct{ runtime.System }

func (h *hasty) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return h.System.WithTimeout(ctx, d/100)
}

func TestManager_WaitsForNoProcessThatTheKernelHolds(t *testing.T) {
	root, err := os.MkdirTemp("", "s") // t.TempDir's name is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	m, err := NewManager(root, nil, &hasty{})
	if err != nil {
		t.Fatal(err)
	}
	p := m.Paths(testID)
	if err := os.Mkdir(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	life, err := holdLife(p)
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	// So that a signal changes nothing.
	if err := os.WriteFile(p.process(), []byte(`{"pid": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(context.Background(), testID); !errors.Is(err, fault.Busy) || !strings.Contains(err.Error(), "has not ended yet") {
		t.Errorf("closed with %v, want %v", err, fault.Busy)
	}
	if _, err := os.Stat(p.Dir); err != nil {
		t.Errorf("the folder of a process that lives: %v", err)
	}
}

func TestManager_KillsNobodyElse(t *testing.T) {
	dir := t.TempDir()
	p := PathsOf(dir, testID)
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	start, err := startOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot := (&runtime.System{}).Boot().ID
	for name, r := range map[string]record{
		"a number that was given again":  {PID: os.Getpid(), Start: start - 1, Boot: boot},
		"a number of another boot":       {PID: os.Getpid(), Start: start, Boot: "another"},
		"process 1":                      {PID: 1, Boot: boot},
		"nobody":                         {PID: 1 << 22, Start: start, Boot: boot},
		"every process of its own group": {PID: 0, Boot: boot},
	} {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p.process(), text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := kill(p); err != nil { // that this line is reached is the test
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestManager_OpenAgain(t *testing.T) {
	p := newPair(t, inside(t))
	first := p.openDestination()
	again := p.in
	again.Lease = time.Hour
	st, err := p.dst.Open(t.Context(), again)
	if err != nil || st.Port != first.Port || st.Lease <= time.Minute {
		t.Errorf("an equal order with another lease: %+v, %v", st, err)
	}
	again.Ticket = NewTicket()
	if _, err := p.dst.Open(t.Context(), again); !errors.Is(err, fault.Exists) {
		t.Errorf("another ticket: %v, want %v", err, fault.Exists)
	}
	if err := p.dst.Close(t.Context(), testID); err != nil {
		t.Fatal(err)
	}
	if _, err := p.dst.Open(t.Context(), again); err != nil {
		t.Errorf("another ticket after the end: %v", err)
	}
	// A second process of one session, whoever started it.
	err = Run(t.Context(), p.dst.Paths(testID).Dir, RunOptions{Log: nil})
	if !errors.Is(err, fault.Busy) {
		t.Errorf("a second process: %v, want %v", err, fault.Busy)
	}
	if _, err := os.Stat(p.dst.Paths(testID).failure()); !os.IsNotExist(err) {
		t.Error("the second process left its failure in the first one's folder")
	}
}

func TestManager_SaysWhyAProcessDidNotBegin(t *testing.T) {
	for name, starter := range map[string]func(testing.TB) Starter{"inside": inside, "own": own} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, starter(t))
			taken, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			p.in.FirstPort = taken.Addr().(*net.TCPAddr).Port
			p.in.LastPort = p.in.FirstPort
			_, err = p.dst.Open(t.Context(), p.in)
			if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "address already in use") {
				t.Errorf("with its port taken: %v", err)
			}
			if left, err := os.ReadDir(p.dst.dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
	p := newPair(t, Children{Command: []string{"/bin/sh", "-c", "echo it is broken >&2; exit 1"}})
	_, err := p.dst.Open(t.Context(), p.in)
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), `ended before it served: "it is broken"`) {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestProcess_LeavesNoTicketBehindAndTakesNoSecrets(t *testing.T) {
	t.Setenv("OS_PASSWORD", "a secret of the agent's") // as Keystone's clients have it
	p := newPair(t, own(t))
	p.open()
	for _, m := range []*Manager{p.src, p.dst} {
		dir := m.Paths(testID).Dir
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.Type().IsRegular() {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil || strings.Contains(string(text), string(p.ticket)) {
				t.Errorf("%s holds the ticket, or %v", e.Name(), err)
			}
		}
		for _, f := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.status(m).PID, f))
			if err != nil || strings.Contains(string(text), string(p.ticket)) || strings.Contains(string(text), "secret") {
				t.Errorf("%s is %q, %v", f, text, err)
			}
		}
	}
}

func TestProcess_EndsWithItsFolder(t *testing.T) {
	t.Parallel() // it waits for the process's next look

	p := newPair(t, inside(t))
	p.open()
	a, b := p.connected(p.memory())
	p.says(a, b, "x")
	if err := os.RemoveAll(p.dst.Paths(testID).Dir); err != nil {
		t.Fatal(err)
	}
	p.ends(a)
	p.ends(b)
}

func TestProcess_EndsAtASignal(t *testing.T) {
	p := newPair(t, own(t))
	p.open()
	a, b := p.connected(p.memory())
	p.says(a, b, "x")
	if err := syscall.Kill(p.status(p.src).PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.ends(a)
	p.gone(p.src)
}

func TestSource_AsksTheKernelWhoConnects(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	p := newPair(t, inside(t))
	p.out.QEMU = Owner{UID: 64055, GID: 64055}
	p.open()
	paths := p.src.Paths(testID)
	// The modes alone would keep them out.
	for _, path := range []string{p.root, paths.QEMU, paths.Memory, paths.Control, paths.agent()} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	p.memory()
	for _, tt := range []struct {
		path    string
		uid     int
		refused bool
	}{{paths.Memory, 65534, true}, {paths.Control, 64055, true}, {paths.agent(), 64055, true}, {paths.Memory, 64055, false}} {
		before := p.status(p.src)
		if err := connectAs(tt.path, tt.uid); err != nil {
			t.Fatal(err)
		}
		p.until(p.src, "seen", func(st Status) bool {
			return st.Refused > before.Refused == tt.refused && (tt.refused || st.Of(Memory).Total > 0)
		})
	}
}

// connectAs connects as another user. It does so in a thread that then ends.
func connectAs(path string, uid int) error {
	done := make(chan error)
	go func() {
		done <- asUser(uid, func() error {
			c, err := net.Dial("unix", path)
			if err == nil {
				_, _ = io.WriteString(c, "x")
				c.Close()
			}
			return err
		})
	}()
	return <-done
}

// The unit's capabilities, without its manager: what berth-stream@.service leaves of
// root must be enough.
func TestProcess_NeedsNoMoreOfRootThanItsUnitLeaves(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give most of it away")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("setpriv is not installed (package util-linux)")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit, err := os.ReadFile("../systemd/berth-stream@.service")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	list, _, _ = strings.Cut(list, "\n")
	if !ok {
		t.Fatal("the unit has no bounding set")
	}
	set := "-all"
	for _, c := range strings.Fields(list) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	p := newPair(t, Children{Command: []string{setpriv, "--bounding-set", set, "--inh-caps", "-all", "--no-new-privs", self, "stream-process"}})
	p.in.QEMU = Owner{UID: 64055, GID: 64055}
	p.out.QEMU = p.in.QEMU
	p.open()
	l := p.memory()
	// As QEMU makes it: its own, for itself.
	path := p.dst.Paths(testID).Memory
	if err := errors.Join(os.Chown(path, 64055, 64055), os.Chmod(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	out, in := p.connected(l)
	p.says(out, in, "with little")
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.status(p.dst).PID))
	if err != nil || !strings.Contains(string(text), "CapEff:\t0000000000000003\n") {
		t.Errorf("it has other capabilities: %s, %v", text, err)
	}
	for _, m := range []*Manager{p.src, p.dst} {
		if err := m.Close(t.Context(), testID); err != nil {
			t.Error(err)
		}
	}
}
