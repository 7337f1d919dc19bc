package host

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/agent/host/streams"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/options"
)

// minPostCopyLibvirt is the libvirt that can go on with a post-copy that broke
// (VIR_MIGRATE_POSTCOPY_RESUME). Before it a network that breaks costs the guest.
const minPostCopyLibvirt = 8_005_000

// From libvirt 11.2.0 on the destination's daemon died of being asked to go on with a
// post-copy; 11.4.0 mended it (libvirt's release notes; seen with 11.3.0).
const (
	diesOfRecovery     = 11_002_000
	diesOfRecoveryEnds = 11_004_000
)

// postCopyNode is what a host by itself has against any guest's coming or going by post-copy.
// Whether QEMU may ask for pages that are missing (userfaultfd) is QEMU's own to find out,
// by kernel, user and guest: it refuses when the second job is prepared, with the guest whole.
func postCopyNode(d driver.Driver, node driver.Node, host string) []fault.Reason {
	var out []fault.Reason
	if node.Hypervisor == "QEMU" && node.LibraryVersion < minPostCopyLibvirt {
		out = append(out, tooOld("post_copy_libvirt_too_old", "libvirt", host, uint64(node.LibraryVersion), minPostCopyLibvirt, " to go on with a post-copy whose network broke"))
	}
	for _, find := range []func() error{
		func() error { _, err := driver.PostCopy(d, node); return err },
		func() error { _, err := driver.PostCopyRecovery(d, node); return err },
	} {
		out = append(out, fault.ReasonsOf(find())...)
	}
	return out
}

// postCopyComing is what a host has against a guest's coming, and not its going, by post-copy.
func postCopyComing(node driver.Node, host string) []fault.Reason {
	v := node.LibraryVersion
	if node.Hypervisor != "QEMU" || v < diesOfRecovery || v >= diesOfRecoveryEnds {
		return nil
	}
	return []fault.Reason{tooOld("post_copy_libvirt_dies", "libvirt", host, uint64(v), diesOfRecoveryEnds,
		": since "+version(diesOfRecovery)+" its daemon dies when a post-copy whose network broke is to go on")}
}

// postCopyGuest is what keeps a guest from going by post-copy, whatever the hosts.
func postCopyGuest(doc document, g migration.Guest, copies []string) []fault.Reason {
	var out []fault.Reason
	add := func(code, message, change string) {
		out = append(out, fault.Reason{Code: code, Message: message, Change: change})
	}
	if g.PowerState == migration.PowerPaused {
		add(streams.CodePostCopyPaused, "guest "+g.Name+" is paused, and post-copy lets it run at the destination", "resume it first, or move it without post-copy")
	}
	// Memory that a device reads and writes by itself cannot be asked for page by page.
	if len(doc.Devices.Hostdevs) > 0 {
		add("post_copy_device", "guest "+g.Name+" has a device of its host, whose accesses to memory that has not come yet nobody can hold up", "move it without post-copy")
	}
	if doc.MemoryBacking.Locked != nil {
		add("post_copy_locked", "the memory of guest "+g.Name+" is locked, and post-copy takes it away page by page", "move it without post-copy")
	}
	if len(copies) > 0 {
		add("post_copy_disks", "disks of guest "+g.Name+" are copied with it ("+strings.Join(copies, ", ")+"), and their copy does not outlive a post-copy that breaks",
			"put them on storage that both hosts share, or move the guest without post-copy")
	}
	return out
}

// optionReasons refuse options that this host's hypervisor does not know, before anything
// moves; each by its name.
func optionReasons(o migration.Options, copies []string, node driver.Node, host string) []fault.Reason {
	used := map[string]bool{
		"auto_converge_initial":                o.AutoConverge == options.On && o.AutoConvergeInitial > 0,
		"auto_converge_increment":              o.AutoConverge == options.On && o.AutoConvergeIncrement > 0,
		"postcopy_bandwidth_bytes":             o.PostCopy == options.On && o.PostCopyBandwidth > 0,
		"parallel_connections":                 o.Parallel > 1,
		"zero_copy":                            o.ZeroCopy == options.On,
		"copy_storage_synchronous_writes":      len(copies) > 0 && o.SynchronousWrites == options.On,
		"migrate_disks_detect_zeroes":          len(copies) > 0 && o.DetectZeroes == options.On,
		"available_switchover_bandwidth_bytes": o.AvailableSwitchover > 0,
		"xbzrle_cache_bytes":                   o.XBZRLECache > 0,
		"compression_mt_level":                 o.MTLevel > 0,
		"compression_mt_threads":               o.MTThreads > 0,
		"compression_mt_dthreads":              o.MTUnpack > 0,
		"compression_zlib_level":               o.ZlibLevel > 0,
		"compression_zstd_level":               o.ZstdLevel > 0,
	}
	for _, method := range o.Compression {
		used["compression."+method] = true
	}
	var out []fault.Reason
	for name, why := range node.MigrationOptions {
		if used[name] {
			out = append(out, fault.Reason{
				Code: "option_unknown", Message: fmt.Sprintf("the hypervisor of %s has no %s: %s", host, name, why), Want: name,
				Change: "leave the option out, or upgrade libvirt and QEMU on " + host,
			})
		}
	}
	slices.SortFunc(out, func(a, b fault.Reason) int { return cmp.Compare(a.Want, b.Want) })
	return out
}

// zeroCopyReasons refuse zero copy for a guest of whose memory QEMU may not lock enough. libvirt
// lifts the limit itself for as long as the job takes (VIR_MIGRATE_ZEROCOPY), as far as the
// guest's hard limit goes and where it may lift limits at all.
func zeroCopyReasons(doc document, g migration.Guest, o migration.Options, mayLift bool, host string) []fault.Reason {
	if o.ZeroCopy != options.On {
		return nil
	}
	reason := fault.Reason{Code: "zero_copy_memory_lock", Want: fmt.Sprintf("%d MiB", g.Resources.MemoryMB)}
	if limit, err := strconv.ParseInt(strings.TrimSpace(doc.MemTune.HardLimit), 10, 64); err == nil && limit>>10 < g.Resources.MemoryMB {
		reason.Message = fmt.Sprintf("zero copy locks the guest's memory, and its hard limit lets QEMU lock %d MiB", limit>>10)
		reason.Have, reason.Change = fmt.Sprintf("%d MiB", limit>>10), "raise <memtune><hard_limit> (virsh memtune "+fault.Quote(g.Name)+" --hard-limit KIB), or move it without zero copy"
		return []fault.Reason{reason}
	}
	if mayLift || doc.MemoryBacking.Locked != nil {
		return nil
	}
	reason.Message = "zero copy locks the guest's memory, and libvirt on " + host + " may not lift the limit of what QEMU may lock"
	reason.Change = "give libvirt's daemon CAP_SYS_RESOURCE there, or move the guest without zero copy"
	return []fault.Reason{reason}
}

// liftsLimits reports whether the daemon behind a socket may lift limits of other processes
// (CAP_SYS_RESOURCE). Of one that cannot be seen all is believed: libvirt refuses it then,
// before any memory moves.
func liftsLimits(socket string) bool {
	if socket == "" {
		return true
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return true
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || cerr != nil {
		return true
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cred.Pid))
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(text)) {
		if hex, is := strings.CutPrefix(line, "CapEff:"); is {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err != nil || set&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return true
}

// dropOrRefuse holds what a guest cannot have of post-copy against who asked for it: by name,
// and the move is refused; by a flavor or the configuration, and the guest goes without.
func dropOrRefuse(no *refusal, asked bool, reasons []fault.Reason) (dropped []fault.Reason) {
	if asked {
		no.add(fault.Forbidden, reasons...)
		return nil
	}
	return reasons
}

// checkOptionsHere is what the destination has against the options of a move.
func (h *Host) checkOptionsHere(no *refusal, c migration.CheckRequest, doc document, node driver.Node) (dropped []fault.Reason) {
	no.add(fault.Forbidden, optionReasons(c.Options, nil, node, h.o.Name)...)
	if c.Options.PostCopy != options.On {
		return nil
	}
	reasons := append(postCopyNode(h.driver, node, h.o.Name), postCopyComing(node, h.o.Name)...)
	return dropOrRefuse(no, c.PostCopyAsked, append(reasons, postCopyGuest(doc, c.Guest, nil)...))
}

// checkOptionsThere is what the source has against them.
func (h *Host) checkOptionsThere(no *refusal, a migration.CheckAnswer, doc document, g migration.Guest, node driver.Node, copies []string) (dropped []fault.Reason) {
	no.add(fault.Forbidden, optionReasons(a.Options, copies, node, h.o.Name)...)
	no.add(fault.Forbidden, zeroCopyReasons(doc, g, a.Options, a.Options.ZeroCopy != options.On || liftsLimits(node.Socket), h.o.Name)...)
	no.add(fault.Forbidden, zeroCopyWay(a.Options, a.Destination, h.o.StreamTLS)...)
	no.add(fault.Forbidden, storageReasons(a.Options, g.Disks, copies, a.Destination.Name)...)
	if a.Options.PostCopy != options.On {
		return nil
	}
	return dropOrRefuse(no, a.PostCopyAsked, append(postCopyNode(h.driver, node, h.o.Name), postCopyGuest(doc, g, copies)...))
}
