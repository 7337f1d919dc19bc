package disks

import (
	"slices"
	"strings"
	"testing"
)

// An operator who keeps disks in a folder that is hidden otherwise has them seen, and no more.
func TestUnit_SeesDisksWhereverTheyLie(t *testing.T) {
	for _, tt := range []struct {
		path string
		seen string // of hidden; empty for none
	}{
		{"/srv/images/a.qcow2", ""}, {"/var/lib/berth-images/a.qcow2", ""}, {"/var/lib/berth/disks/a", "/var/lib/berth"},
	} {
		u := unit(nil, []string{"/usr/bin/qemu-img", "info", tt.path})
		for _, dir := range hidden {
			if hides := slices.Contains(u.Properties, "InaccessiblePaths=-"+dir); hides == (dir == tt.seen) {
				t.Errorf("%s: %s is hidden: %v", tt.path, dir, hides)
			}
		}
	}
}

// As QEMU's user it could reach every instance of the host.
func TestUnit_AsAnImagesOwnerReachesNoOtherProcess(t *testing.T) {
	command := []string{"/usr/bin/qemu-img", "info", "/srv/images/a.qcow2"}
	u := unit(&user{64055, 107}, command)
	for _, p := range append(slices.Concat(confined, reads, asOwner), "User=64055", "Group=107") {
		if !slices.Contains(u.Properties, p) {
			t.Errorf("it has not %s", p)
		}
	}
	for _, p := range unit(nil, command).Properties {
		if slices.Contains(asOwner, p) || strings.HasPrefix(p, "User=") {
			t.Errorf("the agent's own has %s", p)
		}
	}
}
