package diskstest

import "berth/internal/fault"

// GiveTo implements agent/host.Files.
func (f *Files) GiveTo(path string, uid, gid int) (given bool, err error) {
	err = f.change("give", path, func(v *volume) error {
		i := v.entries[path]
		switch {
		case i == nil:
			return fault.New(fault.NotFound, "open %s: it does not exist", path)
		case i.folder:
			return fault.New(fault.Invalid, "%s is no plain file", path)
		}
		given = i.owner != [2]int{uid, gid}
		i.owner = [2]int{uid, gid}
		return nil
	})
	return given, err
}
