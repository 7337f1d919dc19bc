package stream

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime"
)

// An agent may die after it has made the folder and before its mode is right.
func TestManager_MendsItsFolder(t *testing.T) {
	p := newPair(t, inside(t))
	if err := os.Mkdir(p.dst.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	p.openDestination()
	if fi, err := os.Stat(p.dst.dir); err != nil || fi.Mode().Perm() != 0o711 {
		t.Errorf("its folder is %v, %v", fi, err)
	}
}

func TestManager_RefusesFoldersThatQEMUCannotPass(t *testing.T) {
	p := newPair(t, inside(t))
	p.in.QEMU = Owner{UID: 64055, GID: 64055}
	if err := os.Chmod(p.root, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := p.dst.Open(t.Context(), p.in)
	if !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "cannot pass "+p.root+" (mode 0700)") {
		t.Errorf("below a folder of mode 0700: %v", err)
	}
	if err := errors.Join(os.RemoveAll(p.dst.dir), os.Symlink("/", p.dst.dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.dst.Open(t.Context(), p.in); !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "is no folder of user") {
		t.Errorf("with a link in its place: %v", err)
	}
	m, err := NewManager(filepath.Join(p.root, "nothing", "streams"), inside(t), &runtime.System{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Open(t.Context(), p.in); err == nil || !strings.Contains(err.Error(), m.dir+": no such file") {
		t.Errorf("without the folder above it: %v", err)
	}
}

func TestManager_WhatARemovalLeftIsNotInTheWay(t *testing.T) {
	p := newPair(t, inside(t))
	for range 2 {
		p.openDestination()
		// As if it broke off: QEMU's user may make files while its folder is removed.
		left := filepath.Join(p.dst.dir, removedPrefix+testID.String()+"-"+strconv.Itoa(os.Getpid()), "qemu")
		if err := os.MkdirAll(left, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := p.dst.Close(t.Context(), testID); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.dst.Sweep(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(p.dst.dir); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// The first agent died after it had a process started; the second one removes the
// folder, and makes another, while that process begins.
func TestProcess_LeavesAnothersOrderAlone(t *testing.T) {
	p := newPair(t, inside(t))
	paths := p.dst.Paths(testID)
	if err := p.dst.prepare(paths, p.in); err != nil {
		t.Fatal(err)
	}
	life, err := holdLife(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	if err := p.dst.prepare(paths, p.in); err != nil {
		t.Fatal(err)
	}
	refused := func() {
		t.Helper()
		if _, _, err := begin(testID, paths, life, RunOptions{}); !errors.Is(err, fault.NotFound) || !strings.Contains(err.Error(), "not its own") {
			t.Errorf("the first process began: %v", err)
		}
		if _, err := os.Stat(paths.order()); err != nil {
			t.Fatalf("it took the second one's order: %v", err)
		}
	}
	refused()
	second, err := holdLife(paths)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	refused()
}

func TestManager_SocketsAreQEMUsAndRootsAlone(t *testing.T) {
	p := newPair(t, inside(t))
	if os.Geteuid() == 0 {
		p.out.QEMU = Owner{UID: 64055, GID: 64055}
	}
	p.open()
	paths := p.src.Paths(testID)
	for path, want := range map[string]struct {
		mode os.FileMode
		uid  int
	}{
		p.src.dir: {0o711, os.Geteuid()}, paths.Dir: {0o711, os.Geteuid()}, paths.QEMU: {0o700, p.out.QEMU.UID},
		paths.Memory: {0o600, p.out.QEMU.UID}, paths.Disks: {0o600, p.out.QEMU.UID},
		paths.Control: {0o600, os.Geteuid()}, paths.agent(): {0o600, os.Geteuid()}, paths.process(): {0o600, os.Geteuid()},
	} {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := int(fi.Sys().(*syscall.Stat_t).Uid); got != want.uid || fi.Mode().Perm() != want.mode {
			t.Errorf("%s is %v of user %d, want %v of %d", path, fi.Mode(), got, want.mode, want.uid)
		}
	}
}

// Its folder was removed, and another process has one of the same name.
func TestProcess_TouchesNothingOfItsSuccessor(t *testing.T) {
	t.Parallel() // it waits for the process's next look
	p := newPair(t, inside(t))
	p.open()
	a, b := p.connected(p.memory())
	p.says(a, b, "x")
	dir := p.dst.Paths(testID).Dir
	if err := errors.Join(os.Rename(dir, dir+".away"), os.Mkdir(dir, 0o711)); err != nil {
		t.Fatal(err)
	}
	successor, err := holdLife(p.dst.Paths(testID))
	if err != nil {
		t.Fatal(err)
	}
	p.ends(a)
	p.ends(b)
	// Its lock falls last of all.
	if err := p.dst.fallen(t.Context(), Paths{Dir: dir + ".away"}); err != nil {
		t.Fatal(err)
	}
	if !lies(successor, p.dst.Paths(testID)) {
		t.Error("it removed its successor's folder")
	}
	successor.Close()
	if err := p.dst.Close(t.Context(), testID); err != nil {
		t.Error(err)
	}
}

func TestProcess_CarriesNothingOnceItDrains(t *testing.T) {
	p := newPair(t, inside(t))
	far := p.dial(p.libvirt.Addr().String())
	local := p.accept(p.libvirt)
	network, _ := net.Pipe()
	proc := &process{draining: true, log: slog.New(slog.DiscardHandler)}
	proc.carry(&link{channel: Control, local: local, batch: newBatch(network)})
	p.ends(far)
}

func TestNewManager_RefusesAFolderThatNoSocketOrURIHolds(t *testing.T) {
	for dir, why := range map[string]string{
		"/run/a?b/streams":                    "holds a '?'",
		"/run/" + strings.Repeat("x", 50):     "too long for a unix socket",
		"/run/a-b+c.d_e~f/streams":            "",
		"/var/lib/cloud/berth/agent-1/stream": "",
	} {
		_, err := NewManager(dir, nil, nil)
		if why == "" && err != nil || why != "" && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), why)) {
			t.Errorf("%s: %v, want %q", dir, err, why)
		}
	}
}
