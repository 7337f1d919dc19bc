package disks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/fault"
	"berth/internal/stuck"
)

// exportTables are what exportfs(8) has exported by NFS, and what the kernel's server has been
// asked for. A server in user space (NFS-Ganesha, Samba) has neither.
var exportTables = []string{"/var/lib/nfs/etab", "/proc/fs/nfsd/exports"}

// ExportsUnreadable is the code of the refusal where a table cannot be read.
const ExportsUnreadable = "exports_unreadable"

// exported reports whether a file lies in a folder that this host exports by NFS. A host without
// the tables exports nothing; one whose table cannot be read is an error.
func (f Files) exported(path string) (bool, error) {
	var folders []string
	for _, table := range exportTables {
		text, err := stuck.Read(f.calls, f.Real(table), func() ([]byte, error) { return os.ReadFile(f.Real(table)) })
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			var more []string
			more, err = exportsIn(string(text))
			folders = append(folders, more...)
		}
		if err != nil {
			return false, fault.Refuse(fault.Unavailable, "", fault.Reason{
				Code: ExportsUnreadable, Message: "whether this host exports " + path + " by NFS cannot be told: read " + table + ": " + err.Error(),
				Have: table, Change: "exportfs -v shows what is exported; have the agent read " + table + ", and try again",
			})
		}
	}
	if len(folders) == 0 {
		return false, nil
	}
	known := map[folder]bool{}
	for _, e := range folders {
		at, err := stuck.Read(f.calls, f.Real(e), func() (folder, error) { return folderAt(f.Real(e)) })
		switch {
		case err == nil:
			known[at] = true
		case errors.Is(err, fault.Unavailable), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.ESTALE):
			// It exports nothing now, or is on a file system that does not answer, where the file is not.
		default:
			return false, fault.New(fault.Unavailable, "look at %s, which this host exports by NFS: %w", e, err)
		}
	}
	return stuck.Read(f.calls, f.Real(path), func() (bool, error) { return f.below(path, known) })
}

// folder is a folder by what it is.
type folder struct{ dev, inode uint64 }

func folderAt(real string) (folder, error) {
	var st unix.Stat_t
	err := unix.Stat(real, &st)
	return folder{st.Dev, st.Ino}, err
}

// below reports whether a path lies in one of the folders. They are compared by what they are, since
// NFSv4 exports are often bind mounts elsewhere. What is mounted below an export counts, too:
// crossmnt shows it.
func (f Files) below(path string, folders map[folder]bool) (bool, error) {
	real, err := f.Resolve(path)
	if err != nil {
		return false, err
	}
	for at := real; ; at = filepath.Dir(at) {
		is, err := folderAt(f.Real(at))
		switch {
		case err == nil && folders[is]:
			return true, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return false, fault.New(fault.Unavailable, "look at %s: %w", at, err)
		case at == "/":
			return false, nil
		}
	}
}

// exportsIn reads a table: on each line a folder and, behind a tab or a blank, clients and options.
// Blanks and the like in a name are written as \\040.
func exportsIn(text string) (folders []string, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		if !strings.HasPrefix(name, "/") {
			return nil, errors.New("a line names no folder: " + line)
		}
		folders = append(folders, stuck.Unescape(name))
	}
	return folders, nil
}
