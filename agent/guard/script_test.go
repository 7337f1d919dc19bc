package guard_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"berth/agent/guard"
)

// script is the hook as it is shipped, with its three paths in a test's folder,
// and a berth that answers as told.
type script struct {
	t         *testing.T
	path, dir string
}

func newScript(t *testing.T, berth string) *script {
	t.Helper()
	text, err := os.ReadFile("../../packaging/hooks/qemu.d/50-berth")
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t: t, dir: t.TempDir()}
	s.path = filepath.Join(s.dir, "50-berth")
	for from, to := range map[string]string{
		"berth=/usr/bin/berth\n": "berth=" + s.dir + "/berth\n", "state=/var/lib/berth\n": "state=" + s.dir + "\n", "run=/run/berth/guard\n": "run=" + s.dir + "\n",
	} {
		if !strings.Contains(string(text), "\n"+from) {
			t.Fatalf("the script has no line %q", from)
		}
		text = bytes.Replace(text, []byte("\n"+from), []byte("\n"+to), 1)
	}
	if err := os.WriteFile(s.path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if berth != "" {
		if err := os.WriteFile(filepath.Join(s.dir, "berth"), []byte("#!/bin/sh\n"+berth+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *script) manage() *script {
	s.t.Helper()
	if err := guard.MarkManaged(s.dir); err != nil {
		s.t.Fatal(err)
	}
	return s
}

func (s *script) call(op, document string) (code int, out, errs string) {
	s.t.Helper()
	cmd := exec.Command("sh", s.path, "web", op, "begin", "-")
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(document), &o, &e
	if err := cmd.Run(); err != nil {
		if _, exited := err.(*exec.ExitError); !exited {
			s.t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

func TestScript_PassesQuestionAndAnswerOn(t *testing.T) {
	s := newScript(t, `echo "$@" >>"${0%/*}/args"; cat >"${0%/*}/document"; echo "<domain>new</domain>"`).manage()
	for _, op := range operations {
		code, out, errs := s.call(string(op), document(true, ours))
		if code != 0 || out != "<domain>new</domain>\n" || errs != "" {
			t.Errorf("%s: exit %d, %q, %q", op, code, out, errs)
		}
	}
	args, _ := os.ReadFile(filepath.Join(s.dir, "args"))
	if want := "guard -- web migrate begin -\nguard -- web restore begin -\nguard -- web prepare begin -\nguard -- web start begin -\n"; string(args) != want {
		t.Errorf("called with %q, want %q", args, want)
	}
	got, _ := os.ReadFile(filepath.Join(s.dir, "document"))
	if string(got) != document(true, ours)+"\n" {
		t.Errorf("it read %q", got)
	}
}

func TestScript_RefusesWithTheReasons(t *testing.T) {
	s := newScript(t, `cat >/dev/null; echo "berth: no room" >&2; exit 1`).manage()
	if code, out, errs := s.call("migrate", document(false, "")); code != 1 || out != "" || errs != "berth: no room\n" {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
}

func TestScript_AnyOtherOperationIsLetThroughUnread(t *testing.T) {
	s := newScript(t, `exit 1`).manage()
	for _, op := range []string{"reconnect", "stopped", "release", "started", "attach", "", "migrate begin"} {
		if code, out, errs := s.call(op, document(true, ours)); code != 0 || out != "" || errs != "" {
			t.Errorf("%s: exit %d, %q, %q", op, code, out, errs)
		}
	}
}

func TestScript_HostThatWasNeverManagedLetsEverythingThrough(t *testing.T) {
	s := newScript(t, `exit 1`)
	for _, op := range operations {
		if code, out, errs := s.call(string(op), document(true, ours)); code != 0 || out != "" || errs != "" {
			t.Errorf("%s: exit %d, %q, %q", op, code, out, errs)
		}
	}
}

func TestScript_GuardThatDoesNotDecide(t *testing.T) {
	for name, berth := range map[string]string{"missing": "", "crashes": "kill -9 $$", "usage": "exit 2", "half an answer": "echo '<domain'; exit 7"} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, berth).manage()
			for _, op := range []string{"prepare", "start", "restore"} {
				if code, out, errs := s.call(op, document(true, ours)); code != 1 || out != "" || !strings.Contains(errs, "nothing proves") {
					t.Errorf("%s of a managed guest: exit %d, %q, %q", op, code, out, errs)
				}
				if code, out, _ := s.call(op, document(false, "")); code != 0 || out != "" {
					t.Errorf("%s of another guest: exit %d, %q", op, code, out)
				}
			}
			if code, out, errs := s.call("migrate", document(false, "")); code != 1 || out != "" || !strings.Contains(errs, "may not arrive") {
				t.Errorf("arrival: exit %d, %q, %q", code, out, errs)
			}
		})
	}
}

func TestScript_NotesWhoCalls(t *testing.T) {
	s := newScript(t, "")
	s.call("reconnect", "")
	text, err := os.ReadFile(filepath.Join(s.dir, "daemon"))
	if err != nil || !strings.Contains(string(text), "(guard.test)") {
		t.Errorf("noted %q %v", text, err)
	}
	// And does not mind when it cannot.
	if err := os.Remove(filepath.Join(s.dir, "daemon")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "daemon"), 0o700); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := s.call("reconnect", ""); code != 0 || out != "" || errs != "" {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
	// A pipe that nobody reads must not hold libvirt up.
	if err := os.Remove(filepath.Join(s.dir, "daemon")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(s.dir, "daemon"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := s.call("reconnect", ""); code != 0 || out != "" || errs != "" {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
}
