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
