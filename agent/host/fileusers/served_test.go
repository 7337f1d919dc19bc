package fileusers

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/host/disks"
)

// served are files of which those in one folder are seen by other hosts.
type served struct {
	disks.Files
	dir string
}

func (s served) Shared(path string) (bool, error) { return filepath.Dir(path) == s.dir, nil }

// A host that exports its own disk knows a file by its inode; whoever has mounted it knows it by
// its server, and by another path.
func TestAsked_FileThatThisHostServes_IsFoundByItsName(t *testing.T) {
	h := newHost(t)
	dir, other := t.TempDir(), t.TempDir()
	h.files = served{disks.Files{BootID: "boot"}, dir}
	h.image("-f", "raw", dir+"/shared.raw", "1M")
	h.image("-f", "raw", other+"/own.raw", "1M")
	h.off("a", diskOf("raw", dir+"/shared.raw"))
	h.off("b", diskOf("raw", other+"/own.raw"))
	s, err := Look(t.Context(), Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil }})
	must(t, err)
	for path, user := range map[string]string{"/mnt/nfs/shared.raw": "a", "/mnt/nfs/own.raw": "", "/mnt/nfs/third.raw": ""} {
		r, err := s.Asked(Question{Path: path, Identity: "nfs/server:" + dir + "/1/0011223344"}, "a", "other")
		if err != nil || (r.Why == "") != (user == "") || !strings.Contains(r.Why, user) {
			t.Errorf("%s: %+v, %v; want user %q", path, r, err, user)
		}
	}
}

func TestSameName_FoldersOfInstancesTellFilesApart(t *testing.T) {
	const one, other = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"/export/shared.raw", "/mnt/nfs/shared.raw", true},
		{"/export/shared.raw", "/mnt/nfs/own.raw", false},
		{"/var/lib/nova/instances/" + one + "/disk", "/mnt/" + one + "/disk", true},
		{"/var/lib/nova/instances/" + one + "/disk", "/mnt/" + other + "/disk", false},
		{"/export/" + one + "/disk", "/mnt/disk", true}, // the folder itself may be mounted
	} {
		if got := sameName(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %t", c.a, c.b, got)
		}
	}
}
