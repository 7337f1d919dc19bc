package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/topology"
)

// A made-up view of cells (Options.Cells, Options.HugePages): files that are
// mounted over the kernel's in a host's own namespace, so that libvirtd, QEMU's
// tools and the agent there read them as the kernel's:
//
//	/sys/devices/system/node    node0…, with cpulist, cpumap, distance, meminfo, hugepages, links to CPUs
//	/sys/kernel/mm/hugepages    the 2 MiB pool, the sum of the nodes'
//	/proc/meminfo               the machine's, with that pool
//
// They are written when the host boots and do not change: the free memory is
// that of the moment, and a pool's free pages are always all of it. The kernel's
// own idea stays as it is: it still has one node, so memory lies where it lies,
// and the calls that bind it are answered for the kernel (see ignoreNodes).

// viewDir is where a host's made-up files lie.
func (h *Host) viewDir() string { return filepath.Join(h.dir, "view") }

// view writes the host's made-up files and returns what is mounted where; nil
// for a host that sees the machine's own.
func (h *Host) view() ([][2]string, error) {
	cells, pages := h.lab.cells, h.lab.hugePages
	if cells == 0 && pages == 0 {
		return nil, nil
	}
	cells = max(cells, 1)
	online, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	cpus, err := topology.ParseCPUSet(strings.TrimSpace(string(online)))
	if err != nil {
		return nil, fmt.Errorf("/sys/devices/system/cpu/online: %w", err)
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	files, links, err := viewFiles(cells, pages, cpus, string(meminfo))
	if err != nil {
		return nil, err
	}
	dir := h.viewDir()
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return nil, err
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	return [][2]string{
		{filepath.Join(dir, "node"), "/sys/devices/system/node"},
		{filepath.Join(dir, "hugepages"), "/sys/kernel/mm/hugepages"},
		{filepath.Join(dir, "meminfo"), "/proc/meminfo"},
	}, nil
}

// viewFiles makes the files of a view, by name, and its symbolic links. CPUs
// are dealt to the cells in turn, as many servers' firmware numbers them, so
// that CPU 0 is in cell 0 and CPU 1 in cell 1 however many there are.
func viewFiles(cells, pages int, cpus topology.CPUSet, meminfo string) (files, links map[string]string, err error) {
	if cells > cpus.Len() {
		return nil, nil, fmt.Errorf("%d cells want a CPU each, and the machine has %d", cells, cpus.Len())
	}
	if pages%cells != 0 {
		return nil, nil, fmt.Errorf("%d huge pages cannot be shared evenly by %d cells", pages, cells)
	}
	total, err := meminfoKiB(meminfo, "MemTotal")
	if err != nil {
		return nil, nil, err
	}
	free, err := meminfoKiB(meminfo, "MemFree")
	if err != nil {
		return nil, nil, err
	}
	// The pages are part of what the kernel counts as total and not as free.
	if free -= pages * hugePageKiB; free < 0 {
		return nil, nil, fmt.Errorf("%d huge pages are more than the machine's free memory", pages)
	}
	all := "0"
	if cells > 1 {
		all = "0-" + strconv.Itoa(cells-1)
	}
	files, links = map[string]string{"node/has_generic_initiator": "\n", "meminfo": withPool(meminfo, pages)}, map[string]string{}
	for _, f := range []string{"has_cpu", "has_memory", "has_normal_memory", "online", "possible"} {
		files["node/"+f] = all + "\n"
	}
	pool := func(dir string, n int) {
		dir += "/hugepages-2048kB/"
		files[dir+"nr_hugepages"] = fmt.Sprintln(n)
		files[dir+"free_hugepages"] = fmt.Sprintln(n)
		files[dir+"surplus_hugepages"] = "0\n"
	}
	pool("hugepages", pages)
	files["hugepages/hugepages-2048kB/resv_hugepages"] = "0\n"
	files["hugepages/hugepages-2048kB/nr_overcommit_hugepages"] = "0\n"
	for n := range cells {
		dir := fmt.Sprintf("node/node%d", n)
		var mine topology.CPUSet
		for i, cpu := range cpus {
			if i%cells == n {
				mine = append(mine, cpu)
				links[fmt.Sprintf("%s/cpu%d", dir, cpu)] = fmt.Sprintf("../../cpu/cpu%d", cpu)
			}
		}
		var row []string
		for other := range cells {
			row = append(row, map[bool]string{true: "10", false: "21"}[n == other])
		}
		files[dir+"/cpulist"] = mine.String() + "\n"
		files[dir+"/cpumap"] = cpuMask(mine, cpus[len(cpus)-1]) + "\n"
		files[dir+"/distance"] = strings.Join(row, " ") + "\n"
		var b strings.Builder
		for _, l := range []struct {
			key string
			n   int
		}{{"MemTotal", total / cells}, {"MemFree", free / cells}, {"MemUsed", (total - free) / cells}} {
			fmt.Fprintf(&b, "Node %d %-15s %8d kB\n", n, l.key+":", l.n)
		}
		for _, key := range []string{"HugePages_Total", "HugePages_Free"} {
			fmt.Fprintf(&b, "Node %d %s %5d\n", n, key+":", pages/cells)
		}
		fmt.Fprintf(&b, "Node %d HugePages_Surp:  %5d\n", n, 0)
		files[dir+"/meminfo"] = b.String()
		pool(dir+"/hugepages", pages/cells)
	}
	return files, links, nil
}

// cpuMask is a set in the kernel's mask form: words of 32 bits in hexadecimal,
// the highest first.
func cpuMask(set topology.CPUSet, highest int) string {
	words := make([]uint32, highest/32+1)
	for _, cpu := range set {
		words[cpu/32] |= 1 << (cpu % 32)
	}
	var out []string
	for i := len(words) - 1; i >= 0; i-- {
		out = append(out, fmt.Sprintf("%08x", words[i]))
	}
	return strings.Join(out, ",")
}

// meminfoKiB reads one number of /proc/meminfo.
func meminfoKiB(text, key string) (int, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key+":"); ok {
			return strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", key)
}

// withPool is /proc/meminfo with another pool of 2 MiB pages.
func withPool(text string, pages int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(line, ":")
		switch key {
		case "HugePages_Total", "HugePages_Free":
			line = fmt.Sprintf("%-16s%8d\n", key+":", pages)
		case "HugePages_Rsvd", "HugePages_Surp":
			line = fmt.Sprintf("%-16s%8d\n", key+":", 0)
		case "Hugepagesize":
			line = fmt.Sprintf("%-16s%8d kB\n", key+":", hugePageKiB)
		case "Hugetlb":
			line = fmt.Sprintf("%-16s%8d kB\n", key+":", pages*hugePageKiB)
		}
		b.WriteString(line)
	}
	return b.String()
}

// ignoreNodes makes the calling thread's mbind and set_mempolicy, and those of
// all it starts, succeed without doing anything. A host with a made-up view is
// told by the kernel, which knows of no node 1, that it cannot bind memory
// there, and QEMU then does not start. A filter of system calls answers in the
// kernel's place; a preloaded library would need a C compiler.
func ignoreNodes() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("hosts with made-up cells do not run on %s", runtime.GOARCH)
	}
	// The offsets are those of struct seccomp_data, seccomp(2).
	const number, architecture = 0, 4
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ifEqual := func(k uint32, then, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: then, Jf: otherwise}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	program := []unix.SockFilter{
		load(architecture),
		ifEqual(arch, 0, 3),
		load(number),
		ifEqual(unix.SYS_MBIND, 2, 0),
		ifEqual(unix.SYS_SET_MEMPOLICY, 1, 0),
		ret(unix.SECCOMP_RET_ALLOW),
		ret(unix.SECCOMP_RET_ERRNO), // with errno 0: the call returns 0
	}
	f := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// Not unix.Prctl, which takes the address as a number: what it points to may
	// move on the way.
	if _, _, errno := unix.RawSyscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&f))); errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
