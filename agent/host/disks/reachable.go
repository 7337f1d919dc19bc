package disks

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
)

// Reachable reports whether an identity (see Files.Identity) is of storage that more than one
// machine may mount.
func Reachable(identity string) bool {
	kind, _, _ := strings.Cut(identity, "/")
	switch kind {
	case "nfs", "ceph", "glusterfs", "cluster", "block":
		return true
	}
	return false
}

// SameFile reports whether two identities are of one file. Of two that only one kernel knows the
// boot does not count: a file outlives it.
func SameFile(a, b string) bool {
	return a != "" && beyondBoot(a) == beyondBoot(b)
}

func beyondBoot(identity string) string {
	rest, ofKernel := strings.CutPrefix(identity, "kernel/")
	if !ofKernel {
		return identity
	}
	_, thing, _ := strings.Cut(rest, "/")
	return "kernel//" + thing
}

// MayBeSameFile reports whether two identities may be of one file though they differ: hosts mount
// one server by several names and addresses, and NFS and GlusterFS identities begin with that name.
func MayBeSameFile(a, b string) bool {
	return SameFile(a, b) || a != "" && withoutServer(a) == withoutServer(b)
}

// Differ reports whether two identities, one of a client of NFS and one of a server's own kernel,
// are of two files for certain: the inode number that the server gives its clients is the one that
// it has itself (FATTR4_WORD0_FILEID in fs/nfsd/nfs4xdr.c, nfs_encode_fh in fs/nfs/export.c). Equal
// numbers prove nothing, since other filesystems have them too.
func Differ(a, b string) bool {
	if strings.HasPrefix(b, "nfs/") {
		a, b = b, a
	}
	there, known := fileid(a)
	here, local := inode(b)
	return known && local && there != here
}

// fileid is the inode number in an identity of NFS, as its server tells it. The client writes its
// words in the order of its processor, which the type of the file tells.
func fileid(identity string) (uint64, bool) {
	if !strings.HasPrefix(identity, "nfs/") {
		return 0, false
	}
	handle, err := hex.DecodeString(identity[strings.LastIndex(identity, "/")+1:])
	if err != nil || len(handle) <= nfsOwnBytes {
		return 0, false
	}
	const regular = 0o100000 // S_IFREG
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if order.Uint32(handle[8:]) == regular {
			return uint64(order.Uint32(handle))<<32 | uint64(order.Uint32(handle[4:])), true
		}
	}
	return 0, false
}

// inode is the inode number in an identity of a file that one kernel alone knows.
func inode(identity string) (uint64, bool) {
	parts := strings.Split(identity, "/") // kernel, boot, device, inode, birth
	if len(parts) != 5 || parts[0] != "kernel" {
		return 0, false
	}
	n, err := strconv.ParseUint(parts[3], 10, 64)
	return n, err == nil
}

// withoutServer leaves the kind and what the server itself says of the file; see Files.Identity.
func withoutServer(identity string) string {
	kind, rest, _ := strings.Cut(identity, "/")
	parts := strings.Split(rest, "/")
	own := map[string]int{"nfs": 2, "glusterfs": 1}[kind] // parts at the end: type and handle; inode
	if own == 0 || len(parts) <= own {
		return identity
	}
	return kind + "/" + strings.Join(parts[len(parts)-own:], "/")
}
