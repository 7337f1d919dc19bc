// Package guest is a small real Linux guest for tests and demonstrations, and
// the proof that it survived: it boots in a few seconds without KVM, checks its
// own memory and disk, and prints heartbeats that carry an id drawn at boot.
//
// Build makes kernel and initrd, DomainXML a domain that boots them,
// ParseConsole reads what the guest printed, and Continuity proves from the
// consoles of two hosts that one boot went on with nothing lost. libvirt's word
// is never taken for a guest's health.
//
// It reads the kernel that lab.Install fetched, and alone writes the folder
// guest in the cache.
package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	_ "embed" // the guest's init
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"berth/test/lab"
)

//go:embed init/main.go
var initSource []byte

// AgentChannel is a device by which the hypervisor reaches the guest's agent (see
// Options.Devices). Without it the guest has none.
const AgentChannel = `    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
`

// Guest is what a domain boots.
type Guest struct {
	Kernel string // path of a bzImage
	Initrd string // path of a compressed cpio archive
}

// Build makes the initrd in cache (empty: lab.CacheDir), once per content of
// kernel and init. It needs lab.Install to have fetched the kernel, and the Go
// command the first time.
func Build(ctx context.Context, cache string) (Guest, error) {
	if cache == "" {
		cache = lab.CacheDir()
	}
	kernel := filepath.Join(cache, filepath.Base(lab.KernelDir()))
	order, err := os.ReadFile(filepath.Join(kernel, "modules/order"))
	if err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w (lab install fetches its kernel)", err)
	}
	bin, err := lab.BuildStatic(ctx, cache, "guest-init", initSource)
	if err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	files := []file{{"dev", nil}, {"proc", nil}, {"sys", nil}, {"modules", nil}, {"modules/order", order}}
	program, err := os.ReadFile(bin)
	if err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	files = append(files, file{"init", program})
	for name := range strings.FieldsSeq(string(order)) {
		b, err := os.ReadFile(filepath.Join(kernel, "modules", name))
		if err != nil {
			return Guest{}, fmt.Errorf("build the guest: %w", err)
		}
		files = append(files, file{"modules/" + name, b})
	}
	archive := cpio(files)
	sum := sha256.Sum256(archive)
	g := Guest{
		Kernel: filepath.Join(kernel, "vmlinuz"),
		Initrd: filepath.Join(cache, "guest", "initrd-"+hex.EncodeToString(sum[:6])+".gz"),
	}
	if _, err := os.Stat(g.Initrd); err == nil {
		return g, nil
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(archive) // a buffer takes everything
	if err := w.Close(); err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(g.Initrd), 0o755); err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(g.Initrd), ".initrd-")
	if err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(packed.Bytes())
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Chmod(tmp.Name(), 0o644)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), g.Initrd)
	}
	if err != nil {
		return Guest{}, fmt.Errorf("build the guest: %w", err)
	}
	return g, nil
}
