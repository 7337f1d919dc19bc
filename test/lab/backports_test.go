package lab

import (
	"context"
	"regexp"
	"testing"
	"time"
)

var libraryVersion = regexp.MustCompile(`(?m)^Using API: .*|^Running against daemon: (.*)$`)

// One host of two runs another libvirt, the tools included.
func TestBackports_GiveOneHostANewerLibvirt(t *testing.T) {
	l := Start(t, Options{Backports: []string{"host-b"}})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	daemon := map[string]string{}
	for _, h := range l.Hosts {
		out, err := h.Virsh(ctx, "version", "--daemon")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range libraryVersion.FindAllStringSubmatch(out, -1) {
			daemon[h.Name] = m[1]
		}
		t.Logf("%s runs libvirt %s", h.Name, daemon[h.Name])
	}
	have, err := installed(ctx, []string{"libvirt-daemon"})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := libvirtTree(have["libvirt-daemon"])
	if err != nil {
		t.Fatal(err)
	}
	if tree == "" {
		t.Logf("libvirt %s of the machine is as new: every host runs it", have["libvirt-daemon"])
	}
	if same := daemon["host-a"] == daemon["host-b"]; daemon["host-b"] == "" || same != (tree == "") {
		t.Errorf("daemons %v; libvirt from backports in %q", daemon, tree)
	}
}
