package host

import (
	"slices"

	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

// zeroCopyWay refuses zero copy where memory does not leave by a plain TCP connection of
// QEMU's own. A stream takes it from a unix socket, on which Linux has no SO_ZEROCOPY
// (EOPNOTSUPP from setsockopt(2), seen with Linux 6.18), and QEMU encrypts nothing that it does
// not copy (migrate_caps_check).
func zeroCopyWay(o migration.Options, dest migration.Description, tls bool) []fault.Reason {
	switch {
	case o.ZeroCopy != options.On:
	case dest.Transport == migration.TransportStream:
		return []fault.Reason{{
			Code: "zero_copy_stream", Message: "zero copy needs a connection of QEMU's own, and guests come to " + dest.Name + " through a stream",
			Want: string(migration.TransportLibvirtTLS), Have: string(dest.Transport),
			Change: `leave out zerocopy, or set [migration] transport = "libvirt-tls" and tls = false on ` + dest.Name,
		}}
	case tls:
		return []fault.Reason{{
			Code: "zero_copy_tls", Message: "zero copy sends memory as it is, and [migration] tls has it encrypted",
			Want: "tls = false", Have: "tls = true", Change: "leave out zerocopy, or set [migration] tls = false on this host",
		}}
	}
	return nil
}

// storageReasons hold disks that are to be copied against how disks may be copied. A copy is
// made into a new file of the disk's format and size that has nothing below it, so that what
// is above a backing file cannot be copied alone: the rest of the disk would be missing.
func storageReasons(o migration.Options, list []migration.Disk, copies []string, dest string) []fault.Reason {
	var out []fault.Reason
	for _, target := range copies {
		i := slices.IndexFunc(list, func(d migration.Disk) bool { return d.Target == target })
		switch {
		case o.CopyStorage == options.StorageNone:
			out = append(out, fault.Reason{
				Code: "storage_copy_none", Message: "disk " + target + " is not shared with " + dest + ", and copy-storage none copies none", Want: "a shared disk",
				Change: "say copy-storage all, or put it on storage that both hosts share",
			})
		case o.CopyStorage == options.StorageInc && i >= 0 && list[i].BackingFile != "":
			out = append(out, fault.Reason{
				Code:    "storage_copy_inc",
				Message: "disk " + target + " is above " + list[i].BackingFile + ": copy-storage inc needs a file at " + dest + " above the same one, and Berth makes one that has nothing below it",
				Have:    list[i].BackingFile, Want: "a disk without a backing file, or a shared one",
				Change: "say copy-storage all, which copies what is below too, or put the disk on storage that both hosts share",
			})
		}
	}
	return out
}
