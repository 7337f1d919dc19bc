package disks

import "strings"

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
