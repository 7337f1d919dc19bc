package watchdog_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/internal/watchdog"
	"berth/internal/watchdog/watchdogtest"
)

// TestMain is also a process that holds a watchdog, and says so when it has it.
func TestMain(m *testing.M) {
	path := os.Getenv("WATCHDOG_TEST_HOLD")
	if path == "" {
		os.Exit(m.Run())
	}
	d, err := watchdog.Open(path, time.Minute)
	for err == nil {
		fmt.Println("fed")
		time.Sleep(100 * time.Millisecond)
		err = d.Feed()
	}
	fmt.Println(err)
	os.Exit(1)
}

func listen(t *testing.T, action func()) *watchdogtest.Standin {
	t.Helper()
	s, err := watchdogtest.Listen(filepath.Join(t.TempDir(), "watchdog"), action)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func said(s *watchdogtest.Standin) []string {
	var out []string
	for _, l := range s.Lines() {
		out = append(out, l.Said)
	}
	return out
}

func TestDaemon_IsArmedFedAndDisarmed(t *testing.T) {
	s := listen(t, nil)
	d, err := watchdog.Open(s.Path, 60*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if want := (watchdog.Facts{Path: s.Path, Identity: "stand-in", Timeout: time.Minute}); d.Facts != want {
		t.Errorf("facts %+v, want %+v", d.Facts, want)
	}
	if _, err := watchdog.Open(s.Path, time.Minute); !errors.Is(err, fault.Busy) {
		t.Errorf("a second holder: %v", err)
	}
	if err := errors.Join(d.Feed(), d.Feed()); err != nil || !s.Armed() {
		t.Errorf("feed: %v, armed %v", err, s.Armed())
	}
	if err := d.Disarm(); err != nil || s.Armed() {
		t.Errorf("disarm: %v, armed %v", err, s.Armed())
	}
	if diff := cmp.Diff([]string{"arm 60", "feed", "feed", "disarm"}, said(s)); diff != "" {
		t.Errorf("what it was told (-want +got):\n%s", diff)
	}
}

func TestDaemon_AHolderThatIsKilledEndsNothing(t *testing.T) {
	t.Parallel()
	reset := make(chan struct{})
	s := listen(t, func() { close(reset) })
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "WATCHDOG_TEST_HOLD="+s.Path)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 3 {
		if !lines.Scan() || lines.Text() != "fed" {
			t.Fatalf("the child says %q", lines.Text())
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	if s.Reset() {
		t.Fatal("reset in its time")
	}
	if !s.Armed() {
		t.Fatal("its holder was killed, and the countdown with it")
	}
	// The next holder is in time, and goes without a word.
	d, err := watchdog.Reopen(s.Path, time.Second)
	for end := time.Now().Add(2 * time.Minute); errors.Is(err, fault.Busy) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		d, err = watchdog.Reopen(s.Path, time.Second) // it had not seen yet that the child is gone
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Abandon(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reset:
	case <-time.After(2 * time.Minute):
		t.Fatal("nobody feeds it, and the host is not reset")
	}
	last := s.Lines()[len(s.Lines())-1]
	if took := time.Since(last.At); last.Said != "arm 1" || took < time.Second {
		t.Errorf("reset %s after %q", took, last.Said)
	}
}

func TestDaemon_WhatAnswersOtherwiseIsRefused(t *testing.T) {
	for _, tt := range []struct {
		answer string
		kind   fault.Kind
		code   string
	}{
		{"armed 60 slow", fault.Invalid, "watchdog_timeout"},
		{"armed soon", fault.Invalid, "watchdog_timeout"},
		{"refused not today", fault.Invalid, "watchdog_none"},
		{"HTTP/1.1 400 Bad Request", fault.Invalid, "watchdog_none"},
		{"busy", fault.Busy, "watchdog_busy"},
	} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		heard := make(chan []string)
		go func() {
			c, err := l.Accept()
			if err != nil {
				close(heard)
				return
			}
			in, got := bufio.NewScanner(c), []string(nil)
			for in.Scan() {
				got = append(got, in.Text())
				answer := tt.answer
				if in.Text() == "disarm" {
					answer = "disarmed"
				}
				_, _ = fmt.Fprintln(c, answer) // the other end may have gone
			}
			_ = c.Close()
			heard <- got
		}()
		_, err = watchdog.Open(path, 10*time.Second)
		if reasons := fault.ReasonsOf(err); !errors.Is(err, tt.kind) || len(reasons) != 1 || reasons[0].Code != tt.code {
			t.Errorf("answered %q: %v, reasons %+v; want %s", tt.answer, err, reasons, tt.code)
		}
		if got := <-heard; tt.code == "watchdog_timeout" && len(got) != 2 {
			t.Errorf("answered %q: it was told %q, and not disarmed", tt.answer, got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := watchdog.Open(path, 10*time.Second); !errors.Is(err, fault.NotFound) {
			t.Errorf("nobody listens: %v", err)
		}
	}
}
