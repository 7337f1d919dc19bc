package diskstest

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"

	"berth/agent/host/disks"
	"berth/internal/fault"
)

// The steps of a file that is filled from elsewhere, before which a hook is asked.
const (
	StepTrim  = "trim"
	StepWrite = "write"
	StepSync  = "sync"
)

// image is what a file's bytes tell of it: zeros for as many whole blocks as a guest
// sees, and then, in the last piece, all there is to know. So a file that is shipped
// has at least two pieces, none of them large, and one whose last is missing is no
// image.
type image struct {
	Format  string `json:"format"`
	Size    int64  `json:"size"`
	Data    string `json:"data"`
	Backing string `json:"backing,omitempty"`
}

// bytes gives a file's last piece and where it begins.
func (n *inode) bytes(block int64) (tail []byte, at int64) {
	tail, err := json.Marshal(image{Format: n.format, Size: n.size, Data: n.data, Backing: n.backing})
	if err != nil {
		panic(err) // strings and a number always have a JSON form
	}
	return tail, n.size - n.size%block
}

// arriving is the contents of a file that is being filled.
type arriving struct {
	pieces map[int64][]byte // written, by offset
	synced map[int64][]byte // what a power cut leaves of them
}

// Resolve is disks.Files': there are no links in memory.
func (f *Files) Resolve(path string) (string, error) { return path, nil }

// Lookup is disks.Files'.
func (f *Files) Lookup(path string) (string, int64, int64, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	switch {
	case n == nil:
		return "", 0, 0, fault.New(fault.NotFound, "look at %s: no such file", path)
	case n.folder:
		return "", 0, 0, fault.New(fault.Invalid, "look at %s: not a plain file", path)
	}
	tail, at := n.bytes(1)
	return path, at + int64(len(tail)), int64(len(n.data)), nil
}

// ReadBlock is disks.Files'.
func (f *Files) ReadBlock(path string, offset, most, block int64) (disks.Block, error) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(path)
	if n == nil || n.folder {
		return disks.Block{}, fault.New(fault.NotFound, "read %s: no such file", path)
	}
	tail, at := n.bytes(block)
	sum := fnv.New64a()
	_, _ = sum.Write(tail) // never fails
	b := disks.Block{Size: at + int64(len(tail)), Version: fmt.Sprintf("%d:%x", n.number, sum.Sum64())}
	switch {
	case most == 0 || offset >= b.Size:
	case offset < 0 || offset%block != 0 || most < 0:
		return disks.Block{}, fault.New(fault.Invalid, "read %s: %d bytes at %d: want a multiple of %d", path, most, offset, block)
	case offset < at:
		b.Zero, b.Length = true, min(at-offset, max(block, most-most%block))
	default:
		b.Data, b.Length = tail, int64(len(tail))
	}
	return b, nil
}

// OpenPart is disks.Files'.
func (f *Files) OpenPart(m disks.Made) (disks.Part, error) {
	if !f.is(m.Part, m) {
		return nil, fault.New(fault.NotFound, "open %s: no such file", m.Part)
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	n := f.atLocked(m.Part)
	if n.arriving == nil {
		n.arriving = &arriving{pieces: map[int64][]byte{}, synced: map[int64][]byte{}}
	}
	return &part{f: f, path: m.Part, n: n}, nil
}

// part implements disks.Part.
type part struct {
	f    *Files
	path string
	n    *inode
}

// Trim is disks.Part's.
func (p *part) Trim(kept, _ int64) error {
	return p.f.change(StepTrim, p.path, func(*volume) error {
		maps.DeleteFunc(p.n.arriving.pieces, func(at int64, _ []byte) bool { return at >= kept })
		return nil
	})
}

// WriteAt is disks.Part's.
func (p *part) WriteAt(data []byte, offset int64) error {
	return p.f.change(StepWrite, p.path, func(v *volume) error {
		if int64(len(data)) > v.free {
			return fault.Refuse(fault.DoesNotFit, "", fault.Reason{Code: "disk_room_short", Message: "no room for " + p.path})
		}
		p.n.arriving.pieces[offset] = append([]byte(nil), data...)
		return nil
	})
}

// Sync is disks.Part's.
func (p *part) Sync() error {
	return p.f.change(StepSync, p.path, func(*volume) error {
		p.n.arriving.synced = maps.Clone(p.n.arriving.pieces)
		p.n.read()
		return nil
	})
}

// Close is disks.Part's.
func (p *part) Close() error { return nil }

// read makes of a file what its bytes say that it is.
func (n *inode) read() {
	n.format, n.size, n.data, n.backing = "", 0, "", ""
	for _, piece := range n.arriving.pieces {
		var img image
		if json.Unmarshal(piece, &img) == nil {
			n.format, n.size, n.data, n.backing = img.Format, img.Size, img.Data, img.Backing
		}
	}
}

// PowerCut takes away what had been written to a host's files that are being filled
// and was not durable yet.
func (w *World) PowerCut(host string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.volumes["of "+host].entries {
		if n.arriving != nil {
			n.arriving.pieces = maps.Clone(n.arriving.synced)
			n.read()
		}
	}
}
