// Package diskstest holds what simulations use in place of the files of hosts, and
// the suite that holds it and the real ones (disks.Files) to one behaviour.
//
// A World is the storage of a fleet in memory: each host's own, and folders that
// several have in common. It outlives the processes that use it, as a disk does; it
// starts no goroutine and reads no clock. Every change that a crash can come before
// or after is a step of its own, before which a hook is asked.
package diskstest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// World is the storage of a fleet.
type World struct {
	// mu guards all below, of every Files of the world. Hooks are called without it.
	mu      sync.Mutex
	volumes map[string]*volume
	shares  map[string]map[string]string // by host: folder → volume
	hook    func(host, step, path string) error
	writers func(host, path string) []string
	inodes  uint64
}

// volume is one filesystem. Its folders are where they were made or have a file
// below them from the start.
type volume struct {
	name    string
	entries map[string]*inode
	free    int64
}

type inode struct {
	number  uint64
	folder  bool
	format  string
	size    int64 // bytes, what a guest sees
	data    string
	marked  string // disks.Mark
	backing string
	owner   [2]int // user and group
	// arriving is what a file that is being filled has so far; nil for all others.
	arriving *arriving
}

// NewWorld gives one without files, and with room for everything.
func NewWorld() *World {
	return &World{volumes: map[string]*volume{}, shares: map[string]map[string]string{}}
}

// The steps that a hook is asked before.
const (
	StepMakeFolder   = "make folder"
	StepMakeFile     = "make file"
	StepLink         = "link"
	StepRemove       = "remove"
	StepRemoveFolder = "remove folder"
)

// OnStep has f be asked before every change of any host; an error is the change's,
// which then does not happen. f may end the process that changes. nil ends that.
func (w *World) OnStep(f func(host, step, path string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = f
}

// Share gives hosts one folder in common; what is in it is one file for all.
func (w *World) Share(folder string, hosts ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range hosts {
		if w.shares[h] == nil {
			w.shares[h] = map[string]string{}
		}
		w.shares[h][folder] = "shared " + folder
	}
}

// Host gives the files of one host: the same ones whenever it is asked.
func (w *World) Host(name string) *Files { return &Files{w: w, host: name} }

// Files are one host's. It implements agent/host.Files.
type Files struct {
	w    *World
	host string
}

func (f *Files) volumeLocked(path string) *volume {
	name := "of " + f.host
	for folder, shared := range f.w.shares[f.host] {
		if path == folder || strings.HasPrefix(path, folder+"/") {
			name = shared
		}
	}
	v := f.w.volumes[name]
	if v == nil {
		v = &volume{name: name, entries: map[string]*inode{}, free: 1 << 50}
		f.w.volumes[name] = v
	}
	return v
}

func (f *Files) atLocked(path string) *inode { return f.volumeLocked(path).entries[path] }

// change runs one step of a change.
func (f *Files) change(step, path string, do func(v *volume) error) error {
	f.w.mu.Lock()
	hook := f.w.hook
	f.w.mu.Unlock()
	if hook != nil {
		if err := hook(f.host, step, path); err != nil {
			return fault.New(fault.Internal, "%s %s: %w", step, path, err)
		}
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return do(f.volumeLocked(path))
}

func (f *Files) newLocked() *inode {
	f.w.inodes++
	return &inode{number: f.w.inodes}
}

// Put makes a file of a format and a size a guest's, with contents by which it is
// known again, and the folders above it. It asks no hook.
func (f *Files) Put(path, format string, size int64, data string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.volumeLocked(path)
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if v.entries[dir] == nil {
			n := f.newLocked()
			n.folder = true
			v.entries[dir] = n
		}
	}
	n := f.newLocked()
	n.format, n.size, n.data = format, size, data
	v.entries[path] = n
}

// Back says that a file has another below it, as a copy-on-write image does.
func (f *Files) Back(path, below string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.atLocked(path).backing = below
}

// Data gives a file's contents and size; false where there is none.
func (f *Files) Data(path string) (data string, size int64, exists bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	if n == nil || n.folder {
		return "", 0, false
	}
	return n.data, n.size, true
}

// Write changes a file's contents in its place, as a guest or a copy does; false
// where there is none.
func (f *Files) Write(path, data string) bool {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	if n == nil || n.folder {
		return false
	}
	n.data = data
	return true
}

// Rename gives a file another name of the same filesystem, over what is there.
func (f *Files) Rename(old, new string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.volumeLocked(old)
	v.entries[new] = v.entries[old]
	delete(v.entries, old)
}

// SetFree says how much room the filesystem of a path has, bytes.
func (f *Files) SetFree(path string, bytes int64) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.volumeLocked(path).free = bytes
}

// List gives all files and folders that the host sees, sorted.
func (f *Files) List() []string {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	all := slices.Collect(maps.Keys(f.volumeLocked("/").entries))
	for folder := range f.w.shares[f.host] {
		all = slices.AppendSeq(all, maps.Keys(f.volumeLocked(folder).entries))
	}
	slices.Sort(all)
	return all
}

// Image is disks.Files'.
func (f *Files) Image(_ context.Context, path, format string) (disks.Image, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if format == "" {
		format = "raw"
	}
	img := disks.Image{Format: format}
	for at := path; ; {
		n := f.atLocked(at)
		switch {
		case n == nil || n.folder:
			return disks.Image{}, fault.New(fault.NotFound, "read image %s: no such file", at)
		case at == path && format != "raw" && n.format != format:
			return disks.Image{}, fault.New(fault.Invalid, "read image %s as %s: it is %s: %w", path, format, n.format, disks.ErrOtherFormat)
		case at == path:
			img.VirtualSize = n.size
			if format == "raw" && n.format != "raw" {
				img.Looks = n.format
			}
		}
		img.ActualSize += int64(len(n.data))
		if n.backing == "" || format == "raw" {
			return img, nil
		}
		if slices.Contains(img.Backing, n.backing) || n.backing == path {
			return disks.Image{}, fault.New(fault.Invalid, "read image %s: its chain of backing files leads back to %s", path, n.backing)
		}
		img.Backing = append(img.Backing, n.backing)
		at = n.backing
	}
}

// Layer is disks.Files'.
func (f *Files) Layer(_ context.Context, path, format string) (disks.Layer, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	switch {
	case n == nil || n.folder:
		return disks.Layer{}, fault.New(fault.NotFound, "read image %s: no such file", path)
	case format == "raw" && n.format != "raw":
		return disks.Layer{Looks: n.format}, nil
	case format == "raw":
		return disks.Layer{}, nil
	case n.format != format:
		return disks.Layer{}, fault.New(fault.Invalid, "read image %s as %s: it is %s: %w", path, format, n.format, disks.ErrOtherFormat)
	}
	out := disks.Layer{Below: n.backing}
	if below := f.atLocked(n.backing); n.backing != "" && below != nil {
		out.Format = below.format
	}
	return out, nil
}

// Identity is disks.Files': a file in a shared folder has the same for all.
func (f *Files) Identity(path string) (string, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	switch {
	case n == nil:
		return "", fault.New(fault.NotFound, "identify %s: no such file", path)
	case n.folder:
		return "", fault.New(fault.Invalid, "identify %s: neither a file nor a block device", path)
	}
	return fmt.Sprintf("memory/%s/%d", f.volumeLocked(path).name, n.number), nil
}

// Stamp is disks.Files'.
func (f *Files) Stamp(path string) (disks.Stamp, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	if n == nil {
		return disks.Stamp{}, fault.New(fault.NotFound, "stamp %s: no such file", path)
	}
	return n.stamp(), nil
}

// stamp tells every file ever made from every other.
func (n *inode) stamp() disks.Stamp {
	return disks.Stamp{Inode: n.number, Birth: time.Unix(1_600_000_000+int64(n.number), 0).UTC()}
}

// Exists is disks.Files'.
func (f *Files) Exists(path string) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return f.atLocked(path) != nil, nil
}

// Shared is disks.Files': a folder that hosts have in common.
func (f *Files) Shared(path string) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	return strings.HasPrefix(f.volumeLocked(path).name, "shared "), nil
}

// Empty is disks.Files'.
func (f *Files) Empty(dir string) (bool, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for path := range f.volumeLocked(dir + "/x").entries {
		if strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			return false, nil
		}
	}
	return true, nil
}

// Size is disks.Files'.
func (f *Files) Size(path string) int64 {
	_, size, _ := f.Data(path)
	return size
}

// Space is disks.Files'.
func (f *Files) Space(path string) (disks.Space, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.volumeLocked(path)
	return disks.Space{Device: v.name, Bytes: v.free}, nil
}

// Plan is disks.Files'.
func (f *Files) Plan(migration, part, path string) (disks.Made, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.atLocked(path) != nil {
		return disks.Made{}, disks.Occupied(path)
	}
	m := disks.Made{Path: path, Migration: migration, Part: filepath.Join(filepath.Dir(path), ".berth-"+migration+"-"+part+".part")}
	for dir := filepath.Dir(path); dir != "/" && f.atLocked(dir) == nil; dir = filepath.Dir(dir) {
		m.Dirs = append(m.Dirs, dir)
	}
	slices.Reverse(m.Dirs)
	return m, nil
}

// Build is disks.Files'.
func (f *Files) Build(ctx context.Context, m *disks.Made, format string, size int64) error {
	return f.build(ctx, m, format, size, "")
}

// BuildFrom is disks.Files'.
func (f *Files) BuildFrom(ctx context.Context, m *disks.Made, format string, size int64, image, imageFormat string) error {
	if image == "" {
		return f.Build(ctx, m, format, size)
	}
	img, err := f.Image(ctx, image, imageFormat)
	if err != nil {
		return err
	}
	if err := disks.Whole(image, imageFormat, img); err != nil {
		return err
	}
	data, _, _ := f.Data(image)
	return f.build(ctx, m, format, max(size, img.VirtualSize), data)
}

func (f *Files) build(ctx context.Context, m *disks.Made, format string, size int64, data string) error {
	if err := ctx.Err(); err != nil {
		return fault.New(fault.Unavailable, "make disk %s: %w", m.Path, context.Cause(ctx))
	}
	for _, dir := range m.Dirs {
		if err := f.change(StepMakeFolder, dir, func(v *volume) error {
			if v.entries[dir] == nil {
				v.entries[dir] = f.newLocked()
				v.entries[dir].folder = true
			}
			return nil
		}); err != nil {
			return err
		}
	}
	if err := f.unlink(m.Part); err != nil {
		return err
	}
	return f.change(StepMakeFile, m.Part, func(v *volume) error {
		if len(m.Dirs) == 0 && filepath.Dir(m.Part) != "/" && v.entries[filepath.Dir(m.Part)] == nil {
			return fault.New(fault.Internal, "make disk %s: its folder is gone", m.Path)
		}
		n := f.newLocked()
		n.format, n.size, n.data, n.marked = format, size, data, m.Migration
		v.entries[m.Part] = n
		stamp := n.stamp()
		m.Stamp, m.Marked = &stamp, true
		return nil
	})
}

func (f *Files) unlink(path string) error {
	return f.change(StepRemove, path, func(v *volume) error {
		delete(v.entries, path)
		return nil
	})
}

// is reports whether path is the file that m made.
func (f *Files) is(path string, m disks.Made) bool {
	got, err := f.Stamp(path)
	return err == nil && m.Stamp != nil && got.Equals(*m.Stamp)
}

// Publish is disks.Files'.
func (f *Files) Publish(m disks.Made) error {
	err := f.change(StepLink, m.Path, func(v *volume) error {
		switch n := v.entries[m.Part]; {
		case v.entries[m.Path] != nil:
			return disks.Occupied(m.Path)
		case n == nil:
			return fault.New(fault.Internal, "make disk %s: it was not built", m.Path)
		default:
			v.entries[m.Path] = n
			return nil
		}
	})
	if err != nil && !f.is(m.Path, m) {
		return err
	}
	return f.unlink(m.Part)
}

// Keep is disks.Files'.
func (f *Files) Keep(m disks.Made) {
	if !f.is(m.Path, m) {
		return
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.atLocked(m.Path).marked = ""
}

// Marked lists the files that a migration made and that are nobody's yet.
func (f *Files) Marked() []string {
	return slices.DeleteFunc(f.List(), func(path string) bool {
		f.w.mu.Lock()
		defer f.w.mu.Unlock()
		return f.atLocked(path).marked == ""
	})
}

// Unmake is disks.Files'.
func (f *Files) Unmake(m disks.Made) error {
	errs := []error{f.unlink(m.Part)}
	if f.is(m.Path, m) {
		errs = append(errs, f.unlink(m.Path))
	}
	for _, dir := range slices.Backward(m.Dirs) {
		errs = append(errs, f.change(StepRemoveFolder, dir, func(v *volume) error {
			for path := range v.entries {
				if strings.HasPrefix(path, dir+"/") {
					return nil // not empty
				}
			}
			delete(v.entries, dir)
			return nil
		}))
	}
	return errors.Join(errs...)
}

// Remove is disks.Files'.
func (f *Files) Remove(path string, s disks.Stamp) error {
	got, err := f.Stamp(path)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if !got.Equals(s) {
		return fault.New(fault.Forbidden, "remove disk %s: the file there is not the one that moved (inode %d, want %d)", path, got.Inode, s.Inode)
	}
	return f.unlink(path)
}
