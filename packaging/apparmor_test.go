package packaging

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A kernel without AppArmor parses profiles all the same: what they mean is found,
// that they are obeyed is not.
func TestAppArmor_GuestsMayReachTheirStream(t *testing.T) {
	tool := ""
	for _, path := range []string{"/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"} {
		if _, err := os.Stat(path); err == nil {
			tool = path
		}
	}
	if tool == "" {
		t.Skip("apparmor_parser is not installed (package apparmor)")
	}
	rules, err := os.ReadFile("apparmor/berth-stream")
	if err != nil {
		t.Fatal(err)
	}
	// What is in the way of Debian's tunables and abstractions, in the order of the
	// parser's search.
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("local/abstractions/libvirt-qemu", "include <abstractions/berth-stream>\n")
	guest := "include <abstractions/base>\n  network inet stream,\n  include <local/abstractions/libvirt-qemu>\n"
	if _, err := os.Stat("/etc/apparmor.d/abstractions/libvirt-qemu"); err == nil {
		guest = "include <abstractions/libvirt-qemu>\n" // Debian's own, where it is installed
	}
	profile := "include <tunables/global>\nprofile libvirt-11111111-2222-4333-8444-555555555555 flags=(attach_disconnected) {\n  " + guest + "}\n"
	parse := func(rules string) (string, error) {
		put("abstractions/berth-stream", rules)
		cmd := exec.Command(tool, "-Q", "-K", "--skip-kernel-load", "--debug", "-I", dir, "-I", "/etc/apparmor.d")
		cmd.Stdin = strings.NewReader(profile)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		return string(out) + errs.String(), err
	}
	out, err := parse(string(rules))
	if err != nil {
		t.Fatalf("parse: %v\n%s", err, out)
	}
	for _, socket := range []string{"memory.sock", "disks.sock"} {
		rule := "(/{,var/}run/berth/streams/*/qemu/" + socket + ")"
		line := ""
		for l := range strings.Lines(out) {
			if strings.Contains(l, rule) {
				line = l
			}
		}
		if !strings.Contains(line, "rwa:rwa") {
			t.Errorf("the profile says of %s %q, want reading and writing", socket, line)
		}
	}
	if n := strings.Count(out, "/berth/"); n != 2 {
		t.Errorf("%d rules name Berth's folders, want 2", n)
	}
	if out, err := parse(string(rules) + "\n  /run/berth/** rwx\n"); err == nil {
		t.Errorf("a rule without its end was taken: %s", out)
	}
}
