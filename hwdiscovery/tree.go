package hwdiscovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth/topology"

	"golang.org/x/sys/unix"
)

// Limits on what a broken tree may cost.
const (
	maxFileBytes  = 16 << 20 // proc/cpuinfo of 8192 CPUs has about 12 MiB
	maxDirEntries = 1 << 17
)

// need says what an absent or broken file means.
type need int

const (
	mandatory need = iota // absent or broken degrades
	expected              // may be absent; broken degrades
	optional              // may be absent; broken is a remark
)

// about is the part of the host a file speaks of; the zero value is all of it.
type about struct {
	cell   *topology.CellID
	device *topology.PCIAddress
}

// tree reads files below one root and collects what is wrong with them.
type tree struct {
	root    *os.Root
	ghw     ghwFacts // to be confirmed
	reasons []topology.Reason

	// dir is the folder of the file read last. Files are read folder by folder,
	// and walking from the root anew costs a dozen system calls for each.
	dir     *os.Root
	dirName string

	serials map[serialKey]string // see WithSerialNumbersOf
}

// serialKey is what a card must have kept for its serial number to be believed
// without asking it.
type serialKey struct {
	address         topology.PCIAddress
	vendor, product string
}

// close lets go of the folder of the last file.
func (t *tree) close() {
	if t.dir != nil {
		t.dir.Close()
		t.dir, t.dirName = nil, ""
	}
}

// open opens a file by way of its folder, which the next file may share.
func (t *tree) open(file string) (*os.File, error) {
	dir, base := path.Split(file)
	if dir != t.dirName || t.dir == nil {
		t.close()
		d, err := t.root.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		t.dir, t.dirName = d, dir
	}
	f, err := t.dir.Open(base)
	if err != nil && !isAbsent(err) {
		// A link may lead out of the folder and stay below the root.
		return t.root.Open(file)
	}
	return f, err
}

// remark records something worth knowing that does not degrade the host.
func (t *tree) remark(code, file string, a about, format string, args ...any) {
	t.reasons = append(t.reasons, topology.Reason{Code: code, Message: fmt.Sprintf(format, args...), File: file, Cell: a.cell, Device: a.device})
}

// degrade records something that makes the host degraded. The message names the
// file, since some readers show only messages.
func (t *tree) degrade(code, file string, a about, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if file != "" && !strings.Contains(message, file) {
		message = file + ": " + message
	}
	t.reasons = append(t.reasons, topology.Reason{Code: code, Message: message, File: file, Cell: a.cell, Device: a.device, Degrades: true})
}

// complain records a file that is absent or broken, as its need says.
func (t *tree) complain(n need, code, file string, a about, format string, args ...any) {
	if n == optional {
		t.remark(code, file, a, "%s: %s", file, fmt.Sprintf(format, args...))
		return
	}
	t.degrade(code, file, a, format, args...)
}

// bytes reads a whole file.
func (t *tree) bytes(file string) ([]byte, error) {
	f, err := t.open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("larger than %d bytes", maxFileBytes)
	}
	return data, nil
}

// isAbsent reports whether a file is not there. A name below something that is
// no directory is not there either.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// text reads a text attribute without its last newline; false when it is absent
// or broken, which is recorded as the need says.
func (t *tree) text(n need, file string, a about) (string, bool) {
	data, err := t.bytes(file)
	switch {
	case err != nil && isAbsent(err):
		if n == mandatory {
			t.degrade("file_missing", file, a, "missing")
		}
		return "", false
	case err != nil:
		t.complain(n, "file_unreadable", file, a, "unreadable: %v", plain(err))
		return "", false
	}
	// Some copies of sysfs carry NULs behind the text.
	s := strings.TrimRight(string(data), "\x00")
	if s == "" {
		t.complain(n, "file_truncated", file, a, "empty")
		return "", false
	}
	if strings.ContainsRune(s, 0) {
		t.complain(n, "file_malformed", file, a, "holds binary data")
		return "", false
	}
	if !strings.HasSuffix(s, "\n") {
		// The value is still the best there is, and hwloc would take it.
		t.complain(n, "file_truncated", file, a, "truncated: no newline at its end")
	}
	return strings.TrimRight(s, "\n"), true
}

// plain drops the path that os puts into its errors: the reason names the file
// already, below the root.
func plain(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// parsed reads an attribute and gives it to a parser; false when it is absent
// or broken.
func parsed[T any](t *tree, n need, file string, a about, parse func(string) (T, error)) (T, bool) {
	var zero T
	s, ok := t.text(n, file, a)
	if !ok {
		return zero, false
	}
	v, err := parse(s)
	if err != nil {
		t.complain(n, "file_malformed", file, a, "%v", err)
		return zero, false
	}
	return v, true
}

// names lists a directory in no particular order; nil and false when absent. A
// directory that is there and cannot be listed degrades the host.
func (t *tree) names(dir string) ([]string, bool) { return t.listed(expected, dir) }

// listed is names with its own word on what a directory means that is there and
// cannot be listed.
func (t *tree) listed(n need, dir string) ([]string, bool) {
	f, err := t.root.Open(dir)
	if err != nil {
		if !isAbsent(err) {
			t.complain(n, "file_unreadable", dir, about{}, "unreadable: %v", plain(err))
		}
		return nil, false
	}
	defer f.Close()
	names, err := f.Readdirnames(maxDirEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		if !errors.Is(err, unix.ENOTDIR) {
			t.complain(n, "file_unreadable", dir, about{}, "unreadable: %v", plain(err))
		}
		return nil, false
	}
	return names, true
}

// numbered lists the numbers N of the entries prefixN of a directory, ascending.
func (t *tree) numbered(dir, prefix string) (topology.CPUSet, bool) {
	names, ok := t.names(dir)
	if !ok {
		return nil, false
	}
	var numbers []int
	for _, name := range names {
		digits, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(digits, 10, 31); err == nil && n <= topology.MaxCPU {
			numbers = append(numbers, int(n))
		}
	}
	return topology.NewCPUSet(numbers...), true
}

// exists reports whether a file or directory is there.
func (t *tree) exists(file string) bool {
	_, err := t.root.Stat(file)
	return err == nil
}

// link gives the last element of a symbolic link, "" when there is none.
func (t *tree) link(file string) string {
	target, err := t.root.Readlink(file)
	if err != nil || target == "" {
		return ""
	}
	return path.Base(target)
}

// sortedReasons puts what degrades first and what is about ghw last, and keeps the
// order of reading else.
func (t *tree) sortedReasons() []topology.Reason {
	rank := func(r topology.Reason) int {
		switch {
		case r.Degrades:
			return 0
		case r.Code == codeGHWDiffers || r.Code == codeGHWFailed:
			return 2
		}
		return 1
	}
	out := slices.Clone(t.reasons)
	slices.SortStableFunc(out, func(a, b topology.Reason) int { return rank(a) - rank(b) })
	return out
}
