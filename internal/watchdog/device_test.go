package watchdog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// softdog behaves as the kernel's driver of that name and the watchdog core do
// (drivers/watchdog/softdog.c, watchdog_dev.c): opening starts it, one holder at a time; it
// stops on a close after the magic letter, or on any close without WDIOF_MAGICCLOSE, but never
// with nowayout.
type softdog struct {
	options  uint32
	noWayOut bool
	max      int // seconds; a time above it is refused and changes nothing
	coarse   int // times are rounded up to a multiple of it; 0 for no rounding
	denied   error
	noTime   bool // WDIOC_GETTIMEOUT is not answered

	seconds int
	held    bool
	running bool
	letGo   bool
	pings   int
}

const softdogOptions = unix.WDIOF_SETTIMEOUT | unix.WDIOF_KEEPALIVEPING | unix.WDIOF_MAGICCLOSE

func (s *softdog) stat(string) (fs.FileInfo, error) { return os.Stat("/dev/null") } // a character device

func (s *softdog) attribute(_, name string) string {
	if name == "nowayout" && s.noWayOut {
		return "1"
	}
	return ""
}

func (s *softdog) open(path string) (handle, error) {
	switch {
	case s.denied != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: s.denied}
	case s.held:
		return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EBUSY}
	}
	s.held, s.running, s.letGo = true, true, false
	s.pings++
	return s, nil
}

func (s *softdog) support() (unix.WatchdogInfo, error) {
	info := unix.WatchdogInfo{Options: s.options}
	copy(info.Identity[:], "Software Watchdog")
	return info, nil
}

func (s *softdog) setTimeout(seconds int) error {
	if s.options&unix.WDIOF_SETTIMEOUT == 0 {
		return syscall.EOPNOTSUPP
	}
	if seconds > s.max {
		return syscall.EINVAL
	}
	if s.seconds = seconds; s.coarse > 0 {
		s.seconds = (seconds + s.coarse - 1) / s.coarse * s.coarse
	}
	s.pings++
	return nil
}

func (s *softdog) timeout() (int, error) {
	if s.noTime {
		return 0, syscall.EOPNOTSUPP
	}
	return s.seconds, nil
}

func (s *softdog) keepAlive() error { s.letGo = false; s.pings++; return nil }

func (s *softdog) write(text string) error {
	s.letGo = strings.Contains(text, "V")
	s.pings++
	return nil
}

func (s *softdog) close() error {
	if !s.noWayOut && (s.letGo || s.options&unix.WDIOF_MAGICCLOSE == 0) {
		s.running = false
	}
	s.held = false
	return nil
}

func healthy() *softdog { return &softdog{options: softdogOptions, max: 65535, seconds: 60} }

const dev = "/dev/watchdog0"

func TestDevice_IsArmedFedAndDisarmed(t *testing.T) {
	s := healthy()
	d, err := open(dev, 10*time.Second, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Facts{Path: dev, Identity: "Software Watchdog", Timeout: 10 * time.Second}); d.Facts != want {
		t.Errorf("facts %+v, want %+v", d.Facts, want)
	}
	before := s.pings
	if err := d.Feed(); err != nil || s.pings != before+1 || !s.running {
		t.Errorf("feed: %v, %d keep-alives, running %v", err, s.pings-before, s.running)
	}
	if err := d.Disarm(); err != nil || s.running || s.held {
		t.Errorf("disarm: %v, running %v, held %v", err, s.running, s.held)
	}
}

func TestDevice_ThatIsAbandonedGoesOnAndIsTakenOver(t *testing.T) {
	s := healthy()
	d, err := open(dev, 10*time.Second, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(dev, 10*time.Second, s, true); !errors.Is(err, fault.Busy) {
		t.Errorf("a second holder: %v", err)
	}
	if err := d.Abandon(); err != nil || !s.running {
		t.Fatalf("abandon: %v, running %v", err, s.running)
	}
	if d, err = open(dev, 10*time.Second, s, true); err != nil {
		t.Fatal(err)
	}
	if err := d.Disarm(); err != nil || s.running {
		t.Errorf("disarm: %v, running %v", err, s.running)
	}
}

func TestDevice_WithNoWayOutSaysSo(t *testing.T) {
	s := healthy()
	s.noWayOut, s.options = true, softdogOptions&^unix.WDIOF_MAGICCLOSE // which it needs not, then
	d, err := open(dev, 10*time.Second, s, false)
	if err != nil {
		t.Fatal(err)
	}
	if !d.NoWayOut {
		t.Error("the facts do not tell")
	}
	if err := d.Disarm(); !errors.Is(err, fault.Forbidden) || s.held || !s.running {
		t.Errorf("disarm: %v, held %v, running %v", err, s.held, s.running)
	}
}

func TestDevice_WhatCannotPromiseWhatIsNeededIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spoil   func(*softdog)
		kind    fault.Kind
		code    string // of the first reason; empty for none
		running bool   // afterwards, where it was not armed before
	}{
		{"a kill would stop it", func(s *softdog) { s.options &^= unix.WDIOF_MAGICCLOSE }, fault.Invalid, "watchdog_ends_with_holder", false},
		{"the time is too long for it", func(s *softdog) { s.max = 5 }, fault.Invalid, "watchdog_timeout", false},
		{"it takes a longer one", func(s *softdog) { s.coarse = 16 }, fault.Invalid, "watchdog_timeout", false},
		{"it cannot be set", func(s *softdog) { s.options &^= unix.WDIOF_SETTIMEOUT }, fault.Invalid, "watchdog_timeout", false},
		{"its time is not known", func(s *softdog) { s.noTime = true }, fault.Invalid, "", false},
		{"with no way out it goes on", func(s *softdog) { s.max, s.noWayOut = 5, true }, fault.Invalid, "watchdog_timeout", true},
		{"somebody has it", func(s *softdog) { s.held, s.running = true, true }, fault.Busy, "watchdog_busy", true},
		{"no permission", func(s *softdog) { s.denied = syscall.EPERM }, fault.Forbidden, "watchdog_permission", false},
		{"no driver behind the node", func(s *softdog) { s.denied = syscall.ENODEV }, fault.Internal, "", false},
	} {
		for _, armed := range []bool{false, true} {
			s := healthy()
			tt.spoil(s)
			if armed {
				s.running = true
			}
			_, err := open(dev, 10*time.Second, s, armed)
			if fault.KindOf(err) != tt.kind {
				t.Errorf("%s, armed before %v: %v, want %s", tt.name, armed, err, tt.kind)
			}
			if reasons := fault.ReasonsOf(err); tt.code != "" && (len(reasons) == 0 || reasons[0].Code != tt.code || reasons[0].Change == "") {
				t.Errorf("%s: reasons %+v, want %s with a remedy", tt.name, reasons, tt.code)
			}
			// Without magic close any close stops it, and nothing can be done about that.
			want := tt.running || armed && s.options&unix.WDIOF_MAGICCLOSE != 0
			if s.running != want {
				t.Errorf("%s, armed before %v: running %v, want %v", tt.name, armed, s.running, want)
			}
		}
	}
}

func TestDevice_AShorterTimeAlreadySetWillDo(t *testing.T) {
	s := healthy()
	s.options, s.seconds = softdogOptions&^unix.WDIOF_SETTIMEOUT, 8
	d, err := open(dev, 10*time.Second, s, false)
	if err != nil || d.Timeout != 8*time.Second {
		t.Fatalf("%+v, %v", d, err)
	}
}

// The machine's own kernel, as far as one without a watchdog can be asked.
func TestOpen_WhatIsNoWatchdogIsNamed(t *testing.T) {
	dir := t.TempDir()
	plain, fifo := filepath.Join(dir, "plain"), filepath.Join(dir, "fifo")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, code, says string }{
		{filepath.Join(dir, "absent"), "watchdog_absent", "modprobe softdog"},
		{plain, "watchdog_none", "neither a character device"},
		{fifo, "watchdog_none", "neither a character device"},
		{dir, "watchdog_none", "neither a character device"},
		{"/dev/null", "watchdog_none", "WDIOC_GETSUPPORT: inappropriate ioctl for device"},
		{"/dev/zero", "watchdog_none", "WDIOC_GETSUPPORT: inappropriate ioctl for device"},
	} {
		_, err := Open(tt.path, 10*time.Second)
		reasons := fault.ReasonsOf(err)
		if len(reasons) != 1 || reasons[0].Code != tt.code || !strings.Contains(reasons[0].Message+reasons[0].Change, tt.says) {
			t.Errorf("%s: %v, reasons %+v; want %s, which says %q", tt.path, err, reasons, tt.code, tt.says)
		}
	}
	if _, err := Open("/dev/null", 1500*time.Millisecond); !errors.Is(err, fault.Invalid) {
		t.Errorf("a timeout of a second and a half: %v", err)
	}
}
