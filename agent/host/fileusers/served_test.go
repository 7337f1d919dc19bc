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
