package systemd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"

	"berth/internal/fault"
	"berth/systemd"
)

// logind stands in for systemd-logind on a bus of its own.
type logind struct {
	conn  *dbus.Conn
	mute  atomic.Bool      // no lock is answered
	taken chan [2]*os.File // the locks that were given: the end to look at, and its own copy of the other
	asked chan [4]string
}

// Inhibit is what org.freedesktop.login1(5) says of it.
func (l *logind) Inhibit(what, who, why, mode string) (dbus.UnixFD, *dbus.Error) {
	if l.mute.Load() {
		<-l.conn.Context().Done()
	}
	r, w, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	fd := dbus.UnixFD(w.Fd())
	l.asked <- [4]string{what, who, why, mode}
	l.taken <- [2]*os.File{r, w}
	return fd, nil
}

// bus starts a private bus, and gives its address.
func bus(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("no dbus-daemon: `lab install -dbus` adds Debian's")
	}
	dir := t.TempDir()
	address := "unix:path=" + filepath.Join(dir, "bus")
	config := fmt.Sprintf(`<busconfig><type>system</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/><allow send_type="signal"/><allow send_type="method_return"/><allow send_type="error"/><allow receive_type="method_call"/><allow receive_type="signal"/><allow receive_type="method_return"/><allow receive_type="error"/></policy></busconfig>`, address)
	path := filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config-file="+path, "--nofork", "--nosyslog", "--print-address=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil { // it prints its address once it listens
		t.Fatalf("dbus-daemon: %v", err)
	}
	return address
}

func newLogind(t *testing.T, address string, delay uint64, going bool) *logind {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &logind{conn: conn, taken: make(chan [2]*os.File, 4), asked: make(chan [4]string, 4)}
	if err := conn.Export(l, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := prop.Export(conn, "/org/freedesktop/login1", prop.Map{"org.freedesktop.login1.Manager": {
		"InhibitDelayMaxUSec":  {Value: delay},
		"PreparingForShutdown": {Value: going},
	}}); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("take logind's name: %v, %v", reply, err)
	}
	return l
}

func (l *logind) tell(t *testing.T, signal string, down bool) {
	t.Helper()
	if err := l.conn.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager."+signal, down); err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T, what string, f func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !f(ctx) {
		t.Fatalf("%s did not come within 20 s", what)
	}
}

func TestLogind_HasTheMachineWaitUntilTheLockIsReleased(t *testing.T) {
	address := bus(t)
	stand := newLogind(t, address, 5_000_000, true)
	l, err := systemd.DialLogind(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if d, err := l.Delay(t.Context()); err != nil || d != 5*time.Second {
		t.Errorf("delay %s, %v", d, err)
	}
	if down, err := l.Down(t.Context()); err != nil || !down {
		t.Errorf("going down: %v, %v", down, err)
	}
	lock, err := l.Inhibit(t.Context(), "berth", "guests are moved away")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-stand.asked, [4]string{"shutdown:sleep", "berth", "guests are moved away", "delay"}; got != want {
		t.Errorf("asked for %v, want %v", got, want)
	}
	held := <-stand.taken
	defer held[0].Close()
	_ = held[1].Close() // the answer has come, and with it the lock's own descriptor
	if err := held[0].SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := held[0].Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the lock is not held: %v", err)
	}

	for _, c := range []struct {
		signal string
		down   bool
		want   systemd.Going
	}{
		{"PrepareForShutdown", true, systemd.Going{Down: true}}, {"PrepareForShutdown", false, systemd.Going{}},
		{"PrepareForSleep", true, systemd.Going{Sleep: true, Down: true}}, {"PrepareForSleep", false, systemd.Going{Sleep: true}},
	} {
		stand.tell(t, c.signal, c.down)
		within(t, c.signal, func(ctx context.Context) bool {
			select {
			case got := <-l.Going():
				if got != c.want {
					t.Errorf("%s %v is told as %+v", c.signal, c.down, got)
				}
				return true
			case <-ctx.Done():
				return false
			}
		})
	}
	if err := errors.Join(lock.Release(), lock.Release()); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := held[0].SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := held[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the lock is held after its release: %v", err)
	}
}

func TestLogind_NoBusAndNoLogindAreUnavailable(t *testing.T) {
	if _, err := systemd.DialLogind(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without a bus: %v", err)
	}
	if _, err := systemd.DialLogind(t.Context(), bus(t)); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without logind: %v", err)
	}
}

func TestOnBus_SaysWhetherTheManagerAnswers(t *testing.T) {
	if err := systemd.OnBus(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without a bus: %v", err)
	}
	address := bus(t)
	if err := systemd.OnBus(t.Context(), address); !errors.Is(err, fault.Unavailable) {
		t.Errorf("without a manager on it: %v", err)
	}
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if r, err := conn.RequestName("org.freedesktop.systemd1", dbus.NameFlagDoNotQueue); err != nil || r != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(r, err)
	}
	if err := systemd.OnBus(t.Context(), address); err != nil {
		t.Errorf("a manager that answers: %v", err)
	}
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := systemd.OnBus(short, "unix:path="+silent.Addr().String()); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a silent bus: %v", err)
	}
}

// TestLogind_WhoDoesNotAnswerIsWaitedForSoLong has a bus that takes the connection and says
// nothing, and a logind that gives no lock.
func TestLogind_WhoDoesNotAnswerIsWaitedForSoLong(t *testing.T) {
	silent, err := net.Listen("unix", filepath.Join(t.TempDir(), "bus"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := systemd.DialLogindPatient(t.Context(), "unix:path="+silent.Addr().String(), 50*time.Millisecond); !errors.Is(err, fault.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent bus: %v", err)
	}

	address := bus(t)
	stand := newLogind(t, address, 1, false)
	stand.mute.Store(true)
	l, err := systemd.DialLogindPatient(t.Context(), address, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Inhibit(t.Context(), "berth", "guests are moved away"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a lock that is not answered: %v", err)
	}
}

func TestLogind_TheEndOfTheBusIsSeen(t *testing.T) {
	address := bus(t)
	newLogind(t, address, 1, false)
	ctx, cancel := context.WithCancel(t.Context())
	l, err := systemd.DialLogind(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cancel()
	within(t, "the end", func(ctx context.Context) bool {
		select {
		case _, open := <-l.Going():
			return !open
		case <-ctx.Done():
			return false
		}
	})
}
