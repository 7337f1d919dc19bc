package hwdiscovery

import (
	"bytes"
	"errors"
	"io"
	"os"
	"slices"

	"berth/internal/fault"
)

// Watch notices that a pool of huge pages got another size, and that a CPU or a
// node came or went. The kernel sends no event for the first, and nobody hears of
// the others where its events cannot be listened to.
//
// It keeps each file open and reads it again from the start, which sysfs answers
// with the value of the moment: one system call for each pool of each node, about
// a microsecond. Only sizes are looked at: free pages change with every guest,
// and change nothing of what a host has.
//
// It is for one goroutine.
type Watch struct {
	root  *os.Root
	files []watched
	buf   []byte
}

// watched is one file as it was last read. text is the reason why not where it
// could not be.
type watched struct {
	file *os.File
	text []byte
}

// NewWatch begins to watch the host below root; "" and "/" are the live machine.
// What Changed compares with first is what is read here. fault.NotFound where
// root is not there.
func NewWatch(root string) (*Watch, error) {
	if root == "" {
		root = "/"
	}
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, fault.New(fault.NotFound, "watch %s: open root: %w", root, plain(err))
	}
	w := &Watch{root: r, buf: make([]byte, 4096)}
	w.scan()
	return w, nil
}

// Close ends it.
func (w *Watch) Close() error {
	w.forget()
	return w.root.Close()
}

// Files says how many files one look reads.
func (w *Watch) Files() int { return len(w.files) }

// Changed reports whether anything is not as it was at the last call. That a file
// cannot be read is a change too, once.
func (w *Watch) Changed() bool {
	for i := range w.files {
		if !bytes.Equal(w.look(w.files[i].file), w.files[i].text) {
			// A node that comes or goes brings or takes pools: which files there are
			// is found anew, with their values.
			w.scan()
			return true
		}
	}
	return false
}

// look reads a file; the answer is good until the next look.
func (w *Watch) look(file *os.File) []byte {
	n, err := file.ReadAt(w.buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return []byte(plain(err).Error()) // ENODEV: its node went
	}
	return w.buf[:n]
}

func (w *Watch) forget() {
	for _, f := range w.files {
		f.file.Close()
	}
	w.files = nil
}

// scan finds the files that there are now and reads them.
func (w *Watch) scan() {
	w.forget()
	t := &tree{root: w.root} // what it complains of is Discover's to tell
	defer t.close()
	names := []string{cpuOnline, nodeOnline}
	pools := func(dir string) {
		found, _ := t.names(dir)
		slices.Sort(found)
		for _, name := range found {
			if _, err := parsePoolName(name); err == nil {
				names = append(names, dir+"/"+name+"/nr_hugepages")
			}
		}
	}
	pools(hugepagesDir)
	nodes, _ := t.numbered(nodeDir, "node")
	for _, id := range nodes {
		pools(nodeFile(id, "hugepages"))
	}
	for _, name := range names {
		// One that cannot be opened makes the host degraded, which is read again
		// anyway until it is sound.
		if file, err := w.root.Open(name); err == nil {
			w.files = append(w.files, watched{file: file, text: bytes.Clone(w.look(file))})
		}
	}
}
