package disks

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLease_RefusedByAServerNamesNoWriter: a guest on NFSv4 or SMB, whose server has not
// delegated its disk, is not taken for one that somebody writes to.
func TestLease_RefusedByAServerNamesNoWriter(t *testing.T) {
	for _, tt := range []struct {
		name           string
		err            error
		filesystem     int64
		alone, written bool
	}{
		{"given on ext4", nil, unix.EXT4_SUPER_MAGIC, true, false},
		{"refused on ext4", unix.EAGAIN, unix.EXT4_SUPER_MAGIC, false, true},
		{"refused on overlayfs", unix.EAGAIN, unix.OVERLAYFS_SUPER_MAGIC, false, true},
		{"no leases", unix.EINVAL, unix.EXT4_SUPER_MAGIC, false, false},
		{"not the owner", unix.EACCES, unix.TMPFS_MAGIC, false, false},
		{"delegated by NFS", nil, unix.NFS_SUPER_MAGIC, true, false},
		{"not delegated by NFS", unix.EAGAIN, unix.NFS_SUPER_MAGIC, false, false},
		{"no oplock by SMB", unix.EAGAIN, unix.SMB2_SUPER_MAGIC, false, false},
		{"no oplock by CIFS", unix.EAGAIN, unix.CIFS_SUPER_MAGIC, false, false},
	} {
		if alone, written := leaseSays(tt.err, tt.filesystem); alone != tt.alone || written != tt.written {
			t.Errorf("%s: alone %v, written %v; want %v, %v", tt.name, alone, written, tt.alone, tt.written)
		}
	}
}

// TestLasting_LooksAgainForAChildBeforeItsExec: it is gone at the next look; whoever has a
// name or stays is told.
func TestLasting_LooksAgainForAChildBeforeItsExec(t *testing.T) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	unnamed, child := Writer{Path: "a"}, Writer{Path: "a", PID: 1 << 30, Name: strings.TrimSpace(string(comm))}
	other := Writer{Path: "a", PID: 7, Name: "qemu-nbd"}
	own := Writer{Path: "a", PID: os.Getpid(), Name: child.Name}
	for _, c := range []struct {
		name  string
		looks [][]Writer // the last for ever
		limit time.Duration
		asked int // 0 for any number
		want  []Writer
	}{
		{"none", [][]Writer{nil}, time.Hour, 1, nil},
		{"a child", [][]Writer{{unnamed}, {child}, {child, unnamed}, nil}, time.Hour, 4, nil},
		{"another program", [][]Writer{{other}}, time.Hour, 1, []Writer{other}},
		{"this process", [][]Writer{{own}}, time.Hour, 1, []Writer{own}},
		{"a child and another", [][]Writer{{unnamed, other}}, time.Hour, 1, []Writer{unnamed, other}},
		{"one that stays", [][]Writer{{unnamed}}, 20 * time.Millisecond, 0, []Writer{unnamed}},
	} {
		asked := 0
		got, err := lasting(func() ([]Writer, error) {
			asked++
			return c.looks[min(asked, len(c.looks))-1], nil
		}, c.limit)
		if err != nil || !slices.Equal(got, c.want) || c.asked > 0 && asked != c.asked {
			t.Errorf("%s: %v, %v after %d looks, want %v after %d", c.name, got, err, asked, c.want, c.asked)
		}
	}
}
