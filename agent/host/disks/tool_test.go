package disks

import (
	"slices"
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
		u := unit([]string{"/usr/bin/qemu-img", "info", tt.path})
		for _, dir := range hidden {
			if hides := slices.Contains(u.Properties, "InaccessiblePaths=-"+dir); hides == (dir == tt.seen) {
				t.Errorf("%s: %s is hidden: %v", tt.path, dir, hides)
			}
		}
	}
}
