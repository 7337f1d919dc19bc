package disks

import (
	"golang.org/x/sys/unix"

	"berth/internal/fault"
)

// GiveTo makes a plain file or a device a user's, and says whether it was not his before.
// fault.NotFound when there is no such file.
func (f Files) GiveTo(path string, uid, gid int) (bool, error) {
	fd, err := f.open(path, unix.O_PATH, unix.RESOLVE_NO_MAGICLINKS)
	if err != nil {
		return false, openError(path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fault.New(fault.Internal, "look at %s: %w", path, err)
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case kind != unix.S_IFREG && kind != unix.S_IFBLK:
		return false, notPlain(path)
	case int(st.Uid) == uid && int(st.Gid) == gid:
		return false, nil
	}
	if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		return false, fault.New(fault.Internal, "give %s to user %d: %w", path, uid, err)
	}
	return true, nil
}
