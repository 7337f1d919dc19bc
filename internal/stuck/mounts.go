package stuck

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Mount is a line of mountinfo (proc_pid_mountinfo(5)).
type Mount struct {
	ID, parent int
	Device     string // major:minor of its superblock; other mounts of the same one have it, too
	Point      string // where it is mounted
	Kind       string // nfs4, ext4, fuse.sshfs
	Source     string // server:/export, a device
}

// Mounts are those that a process sees.
type Mounts []Mount

// ReadMounts reads a file like /proc/self/mountinfo. It touches no mounted file system.
func ReadMounts(file string) (Mounts, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var out Mounts
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		before, after, _ := strings.Cut(sc.Text(), " - ")
		own, fs := strings.Fields(before), strings.Fields(after)
		if len(own) < 5 || len(fs) < 2 {
			continue // no kernel writes it
		}
		id, err := strconv.Atoi(own[0])
		parent, parentErr := strconv.Atoi(own[1])
		if err == nil && parentErr == nil {
			out = append(out, Mount{ID: id, parent: parent, Device: own[2], Point: Unescape(own[4]), Kind: fs[0], Source: Unescape(fs[1])})
		}
	}
	return out, nil
}

// Unescape reads a path as the kernel and exportfs write it: \040 for blanks, likewise tabs, line
// ends, backslashes.
func Unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// ByID finds a mount; false where this process does not see it, or it was taken off.
func (t Mounts) ByID(id int) (Mount, bool) {
	for _, m := range t {
		if m.ID == id {
			return m, true
		}
	}
	return Mount{}, false
}

// over is the topmost mount at a point of another one.
func (t Mounts) over(m Mount, point string) Mount {
	for found := true; found; {
		found = false
		for _, n := range t {
			if n.parent == m.ID && n.ID != m.ID && n.Point == point {
				m, found = n, true
				break
			}
		}
	}
	return m
}

// root is the mount at /.
func (t Mounts) root() Mount {
	for _, m := range t {
		if _, below := t.ByID(m.parent); m.Point == "/" && (!below || m.parent == m.ID) {
			return t.over(m, "/")
		}
	}
	return Mount{Device: "unknown", Point: "/"}
}

// at is the mount on which a path without links lies.
func (t Mounts) at(path string) Mount {
	m, at := t.root(), "/"
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		at = filepath.Join(at, name)
		m = t.over(m, at)
	}
	return m
}

// mostLinks is how many symbolic links the kernel follows in a path (path_resolution(7)).
const mostLinks = 40

// walk goes along a path and calls enter with each mount before anything on it is touched.
// It ends where the path does, or with enter's error.
func (t Mounts) walk(path string, enter func(Mount) error) error {
	m, at := t.root(), "/"
	if err := enter(m); err != nil {
		return err
	}
	rest := strings.Split(path, "/")
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		if at = filepath.Join(at, name); name == ".." {
			m = t.at(at)
		} else {
			m = t.over(m, at)
		}
		if err := enter(m); err != nil {
			return err
		}
		if m.Point == at || name == ".." {
			continue // no link is mounted on
		}
		link, err := os.Readlink(at)
		switch {
		case os.IsNotExist(err):
			return nil
		case err != nil:
			continue // no link
		}
		if links++; links > mostLinks {
			return nil // whoever opens it is told
		}
		if at = filepath.Dir(at); filepath.IsAbs(link) {
			at = "/"
		}
		m, rest = t.at(at), append(strings.Split(link, "/"), rest...)
	}
	return nil
}
