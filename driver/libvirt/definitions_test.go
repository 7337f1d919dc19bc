package libvirt

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
)

func TestDefinitionDir_ByConnection(t *testing.T) {
	env := func(key string) string { return map[string]string{"HOME": "/home/op"}[key] }
	xdg := func(key string) string { return map[string]string{"HOME": "/home/op", "XDG_CONFIG_HOME": "/cfg"}[key] }
	for _, c := range []struct {
		uri  string
		env  func(string) string
		want string
	}{
		{"qemu:///system", env, "/etc/libvirt/qemu"},
		{"qemu:///system?socket=/run/libvirt/virtqemud-sock", env, "/etc/libvirt/qemu"},
		{"qemu:///session", env, "/home/op/.config/libvirt/qemu"},
		{"qemu:///session", xdg, "/cfg/libvirt/qemu"},
		{"qemu:///embed?root=/srv/e", env, "/srv/e/etc/qemu"},
		{"test:///default", env, ""},
		{"qemu:///session", func(string) string { return "" }, ""},
	} {
		if got := definitionDir(c.uri, c.env); got != c.want {
			t.Errorf("%s: %q, want %q", c.uri, got, c.want)
		}
	}
}

func TestReadDefinitions_WhatCannotBeReadIsThere(t *testing.T) {
	dir := t.TempDir()
	const id = "6f1c1a52-8c8e-4b9c-9a55-0b4a1a8f2f11"
	for name, text := range map[string]string{
		"web.xml": "<!--\nnote\n-->\n<domain type='kvm'>\n  <name>web</name>\n  <uuid>" + id + "</uuid>\n", "cut.xml": "<domain type='kvm'>\n  <name>c", "empty.xml": "",
		"notes.txt": "<uuid>" + id + "</uuid>", "odd.xml": "<uuid>zzzz</uuid>",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link.xml": "web.xml", "nowhere.xml": "/nowhere/x.xml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"autostart", "networks", "dir.xml"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readDefinitions(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []driver.DefinitionFile{{Name: "cut"}, {Name: "empty"}, {Name: "link", UUID: id}, {Name: "nowhere"}, {Name: "odd"}, {Name: "web", UUID: id}}
	if diff := cmp.Diff(want, got.Files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	other, err := readDefinitions(t.TempDir())
	if err != nil || other.Identity == got.Identity {
		t.Errorf("another folder is %s too: %v", other.Identity, err)
	}
	if _, err := readDefinitions(filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there is read")
	}
}
