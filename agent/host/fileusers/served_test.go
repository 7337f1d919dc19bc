package fileusers

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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

// seen are files that have other identities than they have: those of a client of NFS.
type seen struct {
	disks.Files
	as map[string]string
}

func (s seen) Identity(path string) (string, error) {
	if id := s.as[path]; id != "" {
		return id, nil
	}
	return s.Files.Identity(path)
}

func (seen) Shared(string) (bool, error) { return true, nil }

// overNFS is the identity of a file for a client, by the inode that its server has it under.
func overNFS(server string, inode uint64) string {
	handle := binary.LittleEndian.AppendUint32(nil, uint32(inode>>32))
	handle = binary.LittleEndian.AppendUint32(handle, uint32(inode))
	handle = binary.LittleEndian.AppendUint32(handle, 0o100000)
	return "nfs/" + server + "/1/" + hex.EncodeToString(append(handle, 0xaa, 0xbb))
}

// A hypervisor that is the NFS server of others, too, tells its files from theirs by the inode,
// whoever of the two is asked. Where the inode is the same, it may be the same file.
func TestAsked_FilesOfAServerAndItsClient_AreToldApart(t *testing.T) {
	h := newHost(t)
	dir := t.TempDir()
	for _, sub := range []string{"vm1", "vm2"} {
		must(t, os.Mkdir(filepath.Join(dir, sub), 0o755))
		h.image("-f", "raw", filepath.Join(dir, sub, "disk.qcow2"), "1M")
	}
	own, asked := filepath.Join(dir, "vm1/disk.qcow2"), filepath.Join(dir, "vm2/disk.qcow2")
	h.off("a", diskOf("raw", own))
	files := disks.Files{BootID: "boot"}
	kernel := func(path string) string {
		id, err := files.Identity(path)
		must(t, err)
		return id
	}
	inode := func(path string) uint64 {
		info, err := os.Stat(path)
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Ino
	}
	for _, tt := range []struct {
		name     string
		as       map[string]string // of this host's files
		question Question
		used     bool
	}{
		{"the server is asked for another", nil, Question{Path: "/mnt/vm2/disk.qcow2", Identity: overNFS("s:/srv", inode(asked))}, false},
		{"the server is asked for its own", nil, Question{Path: "/mnt/vm1/disk.qcow2", Identity: overNFS("s:/srv", inode(own))}, true},
		{"the server is asked for its own by another folder", nil, Question{Path: "/mnt/vm2/disk.qcow2", Identity: overNFS("s:/srv", inode(own))}, true},
		{"the server is asked for the same name", nil, Question{Path: own, Identity: overNFS("s:/srv", inode(asked))}, false},
		{"a client is asked for another", map[string]string{own: overNFS("s:/srv", inode(own))}, Question{Path: "/srv/vm2/disk.qcow2", Identity: kernel(asked)}, false},
		{"a client is asked for its own", map[string]string{own: overNFS("s:/srv", inode(own))}, Question{Path: "/srv/vm1/disk.qcow2", Identity: kernel(own)}, true},
		{"a handle that tells no inode", nil, Question{Path: "/mnt/vm2/disk.qcow2", Identity: "nfs/s:/srv/1/0011223344"}, true},
		{"no identity", nil, Question{Path: "/mnt/vm2/disk.qcow2"}, true},
	} {
		h.files = seen{files, tt.as}
		s, err := Look(t.Context(), Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil }})
		must(t, err)
		r, err := s.Asked(tt.question, "a", "other")
		must(t, err)
		if (r.Why != "") != tt.used {
			t.Errorf("%s: %+v, want used: %v", tt.name, r, tt.used)
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
