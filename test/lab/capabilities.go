package lab

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// capabilities is where libvirtd keeps what it has found out about each QEMU. Without it a new
// daemon asks them all, two seconds of a processor for each host (measured). It believes a
// file there only of the same QEMU, kernel and libvirtd (virQEMUCapsIsValid), so hosts of one
// machine may hand theirs on, as one host does to itself over a reboot.
const capabilities = "/var/cache/libvirt/qemu/capabilities"

// keptCapabilities is where they are between labs. Two libvirts would take turns in
// overwriting one folder.
func (h *Host) keptCapabilities() string {
	if h.backports {
		return filepath.Join(CacheDir(), "capabilities", "backports")
	}
	return filepath.Join(CacheDir(), "capabilities", "release")
}

// recallCapabilities gives a host what an earlier one has found out, before its libvirtd starts.
func (h *Host) recallCapabilities() error {
	return copyCapabilities(h.keptCapabilities(), h.Path(capabilities))
}

// keepCapabilities keeps what the host's libvirtd has found out.
func (h *Host) keepCapabilities() error {
	return copyCapabilities(h.Path(capabilities), h.keptCapabilities())
}

// copyCapabilities copies what is not the same in both; each file is there whole or not at all,
// whoever copies beside.
func copyCapabilities(from, to string) error {
	files, err := filepath.Glob(filepath.Join(from, "*.xml"))
	if err != nil || len(files) == 0 {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // libvirtd has just thrown it away
		}
		if err != nil {
			return err
		}
		out := filepath.Join(to, filepath.Base(file))
		if was, err := os.ReadFile(out); err == nil && bytes.Equal(was, text) {
			continue
		}
		tmp, err := os.CreateTemp(to, ".tmp-") // of mode 0600, as libvirtd's
		if err != nil {
			return err
		}
		_, err = tmp.Write(text)
		if err = errors.Join(err, tmp.Close()); err == nil {
			err = os.Rename(tmp.Name(), out)
		}
		if err != nil {
			return errors.Join(err, os.Remove(tmp.Name()))
		}
	}
	return nil
}
