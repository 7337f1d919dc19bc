package diskstest

import "berth/agent/host/disks"

// OnWriters has f be asked who has a file of a host open for writing, by name: the fleet
// that starts guests knows. nil ends that. It is called without any lock of the world.
func (w *World) OnWriters(f func(host, path string) []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writers = f
}

// Writers is disks.Files'.
func (f *Files) Writers(paths ...string) ([]disks.Writer, error) {
	f.w.mu.Lock()
	ask := f.w.writers
	var there []string
	for _, path := range paths {
		if f.atLocked(path) != nil {
			there = append(there, path)
		}
	}
	f.w.mu.Unlock()
	var out []disks.Writer
	if ask == nil {
		return nil, nil
	}
	for _, path := range there {
		for _, name := range ask(f.host, path) {
			out = append(out, disks.Writer{Path: path, Name: name, PID: 1})
		}
	}
	return out, nil
}

// Openers is disks.Files': whoever writes has a file open, too.
func (f *Files) Openers(paths ...string) ([]disks.Writer, error) { return f.Writers(paths...) }
