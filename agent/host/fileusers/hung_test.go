package fileusers

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/agent/host/disks"
	"berth/internal/fault"
	"berth/internal/stuck"
	"berth/internal/stuck/stucktest"
)

// A dead file server keeps files, and is named. It keeps no operation from its end.
func TestLook_DisksOnAHungFileSystem_AreDoubts(t *testing.T) {
	dir, _ := stucktest.Hang(t)
	h := newHost(t)
	h.files = disks.Files{BootID: "boot"}.Bounded(&stuck.Calls{Limit: time.Second})
	local := filepath.Join(t.TempDir(), "disk")
	h.image("-f", "raw", local, "1M")
	for _, name := range []string{"a", "b", "c"} {
		h.off(name, diskOf("qcow2", filepath.Join(dir, name)))
	}
	h.off("local", diskOf("raw", local))
	a := h.ask(local, "local")
	if a.Verdict(Replace) != Go || a.Verdict(Remove) != Leave || !strings.Contains(a.Why(), dir) {
		t.Errorf("replace %s, remove %s: %s", a.Verdict(Replace), a.Verdict(Remove), a.Why())
	}
	// Of one that is there nothing can be said.
	s, err := Look(t.Context(), Sources{Definitions: h, Files: h.files, Pools: func(context.Context) (Pools, error) { return h, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Of(filepath.Join(dir, "a"), "a"); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a file on it: %v", err)
	}
}
