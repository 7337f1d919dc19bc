package fileusers

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"berth/agent/host/disks"
	"berth/internal/stuck/stucktest"
)

// Two hosts with one file on storage of a program (sshfs, GlusterFS): each has mounted it itself, so
// device and inode differ. The kernel's own FUSE mounts, one for each host.
func TestAsked_FileOnFUSE_IsKeptForTheHostThatUsesIt(t *testing.T) {
	const file = "shared.raw"
	onA, onB := stucktest.Serve(t, file), stucktest.Serve(t, file)
	a, b := newHost(t), disks.Files{BootID: "b"}
	a.files = disks.Files{BootID: "a"}
	a.off("vm-a", diskOf("raw", filepath.Join(onA, file)))
	s, err := Look(t.Context(), Sources{Definitions: a, Files: a.files, Pools: func(context.Context) (Pools, error) { return a, nil }})
	must(t, err)

	path := filepath.Join(onB, file)
	if shared, err := b.Shared(path); err != nil || !shared {
		t.Fatalf("Shared = %t, %v: the other hosts would not be asked", shared, err)
	}
	id, err := b.Identity(path)
	must(t, err)
	r, err := s.Asked(Question{Path: path, Identity: id}, "a", "vm-b")
	if err != nil || !strings.Contains(r.Why, "vm-a") {
		t.Errorf("a answers %+v, %v", r, err)
	}
	// A doubt keeps a file from being removed, and not from being replaced, as on one host.
	s.unresolved = []Unresolved{{Instance: "vm-c", Name: "vm-c", Doubt: DoubtChain, What: "/c.qcow2", Why: "broken"}}
	for act, want := range map[Act]string{Remove: "vm-c", Replace: ""} {
		r, err = s.Asked(Question{Path: filepath.Join(onB, "other.raw"), Identity: id + "0", Act: act}, "a", "vm-b")
		if err != nil || (r.Why == "") != (want == "") || !strings.Contains(r.Why, want) {
			t.Errorf("%s with a doubt: %+v, %v", act, r, err)
		}
	}
	s.unresolved = nil
	// One of which nobody has a disk goes.
	r, err = s.Asked(Question{Path: filepath.Join(onB, "other.raw"), Identity: id + "0"}, "a", "vm-b")
	if err != nil || r.Why != "" {
		t.Errorf("another file: %+v, %v", r, err)
	}
}
