package drivertest

import (
	"fmt"

	"berth/internal/fault"
)

// Storage is the disks of one host.
type Storage interface {
	// Data gives a file's contents and the size that a guest sees; false where there
	// is none.
	Data(path string) (data string, size int64, exists bool)
	// Write changes a file's contents in its place; false where there is none.
	Write(path, data string) bool
}

// SetStorage gives the hosts disks: guests start only where their disks are, a disk is
// copied into a file that is there and as large, as libvirt wants it, and has its
// contents from the moment on at which the destination is complete. Without it disks
// are only counted. of is called and used under the fleet's lock: it must not call the
// fleet.
func (f *Fleet) SetStorage(of func(host string) Storage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.storage = of
}

// disksHereLocked is what QEMU says when it opens a guest's disks.
func (h *machine) disksHereLocked(def *definition) error {
	if h.fleet.storage == nil {
		return nil
	}
	s := h.fleet.storage(h.name)
	for _, d := range def.disks {
		if _, _, exists := s.Data(d.path); !exists {
			return fault.New(fault.Internal, "start %s: Cannot access storage file '%s': No such file or directory", def.uuid, d.path)
		}
	}
	return nil
}

// disksFitLocked is what libvirt looks at before it sends a guest.
func (f *Fleet) disksFitLocked(j *job, here, there *definition) error {
	if f.storage == nil {
		return nil
	}
	from, to := f.storage(j.source.name), f.storage(j.dest.name)
	copied := map[string]bool{}
	for _, target := range j.m.CopyDisks {
		copied[target] = true
		_, want, _ := from.Data(here.disk(target))
		path := there.disk(target)
		switch _, have, exists := to.Data(path); {
		case !exists:
			return fmt.Errorf("storage pool not found: no storage pool with matching target path '%s'", path)
		case have != want:
			return fmt.Errorf("source and target image have different sizes: %d and %d", want, have)
		}
	}
	for _, d := range there.disks {
		if _, _, exists := to.Data(d.path); !exists && !copied[d.target] {
			return fmt.Errorf("cannot access storage file '%s'", d.path)
		}
	}
	return nil
}

// copyDisksLocked is the mirror of each disk at its end.
func (f *Fleet) copyDisksLocked(j *job) {
	if f.storage == nil {
		return
	}
	there := j.dest.domains[j.uuid].live
	for _, target := range j.m.CopyDisks {
		data, _, _ := f.storage(j.source.name).Data(j.from.disk(target))
		f.storage(j.dest.name).Write(there.disk(target), data)
	}
}
