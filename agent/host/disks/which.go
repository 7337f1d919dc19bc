package disks

import (
	"cmp"
	"errors"
	"path/filepath"

	"berth/internal/fault"
)

// Finder tells files apart; Files does, and says what each promises.
type Finder interface {
	Lookup(path string) (real string, size, occupies int64, err error)
	Identity(path string) (string, error)
	Stamp(path string) (Stamp, error)
}

// Which tells a file from all others here, by whichever path, link or mount it is
// reached; it is the path where nothing is there.
func Which(f Finder, path string) (string, error) {
	if !filepath.IsAbs(path) {
		return path, nil // reached through the network
	}
	real, _, _, err := f.Lookup(path)
	switch {
	case errors.Is(err, fault.Invalid):
		real = path // a device
	case errors.Is(err, fault.NotFound), errors.Is(err, fault.Forbidden):
		return path, nil
	case err != nil:
		return "", err
	}
	id, err := f.Identity(real)
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Invalid) {
		return path, nil
	}
	return cmp.Or(id, real), err
}

// Moved is a file that goes when its guest's disk has moved, and no other of its name.
type Moved struct {
	Target  string `json:"target"`
	Path    string `json:"path"`
	Stamp   Stamp  `json:"stamp"`
	Version string `json:"version,omitempty"` // of a shipped one: as its first byte was read
}

// MovedFiles are the files that go when a disk has moved: its own, of which real is the path
// without links, and the link by which its guest names it. The file is first: while the
// link is there, it is found again.
func MovedFiles(f Finder, target, path, real string) ([]Moved, error) {
	own, err := f.Stamp(real)
	if err != nil {
		return nil, err
	}
	named, err := f.Stamp(path)
	if err != nil || named.Equals(own) {
		return []Moved{{Target: target, Path: path, Stamp: own}}, err
	}
	return []Moved{{Target: target, Path: real, Stamp: own}, {Target: target, Path: path, Stamp: named}}, nil
}
