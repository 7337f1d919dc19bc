package lab

import (
	"os"
	"path/filepath"
	"testing"
)

func TestUp_HostsHaveNoKVM(t *testing.T) {
	l := Start(t, Options{Names: []string{"one"}, NoLibvirtd: true})
	if out, err := l.Hosts[0].Exec(t.Context(), "setpriv", "--reuid", "libvirt-qemu", "--regid", "libvirt-qemu", "--clear-groups", "test", "!", "-w", "/dev/kvm"); err != nil {
		t.Errorf("QEMU's user may write to the host's /dev/kvm: %s, %v", out, err)
	}
}

// TestUp_WhatLibvirtdKnowsOfEachQEMUIsKept: a libvirtd that does not believe what it finds asks
// every QEMU anew, and writes that down.
func TestUp_WhatLibvirtdKnowsOfEachQEMUIsKept(t *testing.T) {
	kept := func(h *Host) map[string]os.FileInfo {
		t.Helper()
		files, err := filepath.Glob(h.Path(capabilities) + "/*.xml")
		if err != nil || len(files) == 0 {
			t.Fatalf("nothing is written down: %v, %v", files, err)
		}
		out := map[string]os.FileInfo{}
		for _, file := range files {
			if out[file], err = os.Stat(file); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	asked := func(h *Host) map[string]os.FileInfo {
		t.Helper()
		if _, err := h.Virsh(t.Context(), "domcapabilities", "--virttype", "qemu"); err != nil {
			t.Fatal(err)
		}
		return kept(h)
	}
	same := func(when string, was, is map[string]os.FileInfo) {
		t.Helper()
		for file := range was {
			if is[file] == nil || !os.SameFile(was[file], is[file]) || !was[file].ModTime().Equal(is[file].ModTime()) {
				t.Errorf("%s: %s was written anew", when, filepath.Base(file))
			}
		}
	}
	l := Start(t, Options{Names: []string{"one"}})
	h := l.Hosts[0]
	was := asked(h)
	for range 3 { // on whatever processor
		if err := h.StopLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.StartLibvirtd(t.Context()); err != nil {
			t.Fatal(err)
		}
		same("by a daemon that was started again", was, asked(h))
	}
	// A host that is new finds it, as one that was up before.
	if err := h.keepCapabilities(); err != nil {
		t.Fatal(err)
	}
	if err := h.StopLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(h.Path(capabilities)); err != nil {
		t.Fatal(err)
	}
	if err := h.recallCapabilities(); err != nil {
		t.Fatal(err)
	}
	was = kept(h)
	if err := h.StartLibvirtd(t.Context()); err != nil {
		t.Fatal(err)
	}
	same("by a new host's daemon", was, asked(h))
}
