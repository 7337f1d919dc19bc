// Command hostinit is pid 1 of one lab host. It is started in new net, mount,
// uts, ipc and pid namespaces with the path of its plan (JSON), builds the
// host's own view of the file system, says so on descriptor 3, and from then on
// only reaps. With the second argument "owned" it ends when the process behind
// descriptor 4 (a pidfd) ends; the kernel then ends everything else in its pid
// namespace.
//
// It needs only the standard library, because the lab compiles it from its
// embedded source.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// plan is written by package lab; the names are its JSON.
type plan struct {
	Hostname string
	Upper    string            // folder that a tmpfs is mounted on to hold the overlays' upper layers
	Usr      []string          // layers laid over /usr, topmost first
	UsrHide  []string          // files below /usr that the host does not have
	UsrWhole []string          // folders below /usr taken from the first layer that has them, not merged
	Overlays []string          // folders that get a private, volatile layer
	Binds    [][2]string       // source, target; targets are made
	Keep     []string          // paths that must show what they showed before
	Files    map[string]string // written at the end, into the private layers
	HugeKiB  int               // size of the hugetlbfs; 0: as much as the machine has, where it has any
}

const (
	statusFD = 3
	ownerFD  = 4
)

func main() {
	status := os.NewFile(statusFD, "status")
	p, err := read(os.Args[1])
	if err == nil {
		err = p.mount()
	}
	if err != nil {
		fmt.Fprintln(status, err)
		os.Exit(1)
	}
	if len(os.Args) > 2 && os.Args[2] == "owned" {
		go exitWith(ownerFD)
	}
	fmt.Fprintln(status, "ok")
	status.Close()
	reap()
}

func read(path string) (*plan, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := new(plan)
	return p, json.Unmarshal(b, p)
}

// mount builds the host's file system. Sources and kept paths are opened before
// anything is mounted, since the mounts hide some of them.
func (p *plan) mount() error {
	if err := mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	var sources, kept []int
	for _, b := range p.Binds {
		fd, err := syscall.Open(b[0], pathOnly, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", b[0], err)
		}
		sources = append(sources, fd)
	}
	for _, k := range p.Keep {
		fd, err := syscall.Open(k, pathOnly, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", k, err)
		}
		kept = append(kept, fd)
	}
	if err := syscall.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	if err := mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	// A fresh sysfs shows this net namespace's links and none of the machine's
	// cgroup mounts, so nothing in the host can reach the machine's cgroups.
	if err := mount("sysfs", "/sys", "sysfs", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return err
	}
	// The upper layers live in memory: a tmpfs can always be one, while the
	// lab's own folder cannot where it lies on an overlay itself.
	if err := mount("tmpfs", p.Upper, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	if err := p.mountUsr(); err != nil {
		return err
	}
	for _, o := range p.Overlays {
		name := filepath.Join(p.Upper, strings.ReplaceAll(o[1:], "/", "-"))
		if err := errors.Join(os.Mkdir(name, 0o755), os.Mkdir(name+".work", 0o755)); err != nil {
			return err
		}
		if err := mount("overlay", o, "overlay", 0, "lowerdir="+o+",upperdir="+name+",workdir="+name+".work"); err != nil {
			return err
		}
	}
	for i, b := range p.Binds {
		if err := bind(sources[i], b[1]); err != nil {
			return err
		}
	}
	for i, k := range p.Keep {
		var was, is syscall.Stat_t
		if err := syscall.Fstat(kept[i], &was); err != nil {
			return fmt.Errorf("stat %s: %w", k, err)
		}
		if err := syscall.Stat(k, &is); err == nil && was.Dev == is.Dev && was.Ino == is.Ino {
			continue
		}
		if err := bind(kept[i], k); err != nil {
			return err
		}
	}
	for _, fd := range slices.Concat(sources, kept) {
		syscall.Close(fd)
	}
	for path, content := range p.Files {
		// Replaced by rename: some of these are symbolic links on the machine.
		tmp := path + ".lab"
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o644), os.Rename(tmp, path)); err != nil {
			return err
		}
	}
	data := "pagesize=2M"
	if p.HugeKiB > 0 {
		data += fmt.Sprintf(",size=%dK", p.HugeKiB)
	}
	err := os.MkdirAll("/run/hugepages", 0o755)
	if err == nil {
		err = mount("hugetlbfs", "/run/hugepages", "hugetlbfs", 0, data)
	}
	if p.HugeKiB > 0 {
		return err
	}
	return nil // only guests with huge pages need it, and not every kernel has it
}

// mountUsr lays the layers over /usr. What is hidden is hidden by a topmost
// layer with whiteouts, character devices 0:0; in the tmpfs, since an overlay
// lets none be made.
func (p *plan) mountUsr() error {
	layers := p.Usr
	if len(p.UsrHide) > 0 {
		layers = append([]string{filepath.Join(p.Upper, "usr-hide")}, layers...)
	}
	for _, path := range p.UsrHide {
		path = filepath.Join(layers[0], path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := syscall.Mknod(path, syscall.S_IFCHR, 0); err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	if len(layers) == 0 {
		return nil
	}
	if err := mount("overlay", "/usr", "overlay", syscall.MS_RDONLY, "lowerdir="+strings.Join(layers, ":")+":/usr"); err != nil {
		return err
	}
	for _, dir := range p.UsrWhole {
		for _, layer := range p.Usr {
			if from := filepath.Join(layer, dir); exists(from) {
				if err := mount(from, filepath.Join("/usr", dir), "", syscall.MS_BIND, ""); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// bind mounts what was opened as fd on target; a folder that is absent is made.
func bind(fd int, target string) error {
	if !exists(target) {
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
	}
	return mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", syscall.MS_BIND|syscall.MS_REC, "")
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s %s on %s (%s): %w", kind, source, target, data, err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

const pathOnly = 0x200000 | syscall.O_CLOEXEC // O_PATH

// exitWith ends this host when the process behind the pidfd ends. A pidfd
// becomes readable then (pidfd_open(2)); it works across pid namespaces, where
// a parent-death signal would follow the thread that started us instead of the
// process.
func exitWith(fd int) {
	type pollFD struct {
		fd      int32
		events  int16
		revents int16
	}
	for {
		p := pollFD{fd: int32(fd), events: 1 /* POLLIN */}
		n, _, errno := syscall.Syscall(syscall.SYS_POLL, uintptr(unsafe.Pointer(&p)), 1, ^uintptr(0))
		if errno == 0 && n == 1 {
			os.Exit(0)
		}
		if errno != 0 && errno != syscall.EINTR && errno != syscall.EAGAIN {
			os.Exit(2)
		}
	}
}

// reap waits for whatever is orphaned in this pid namespace, for ever.
func reap() {
	child := make(chan os.Signal, 1)
	signal.Notify(child, syscall.SIGCHLD)
	// Two children that end together may send one signal, so each wake-up reaps
	// all; the ticker covers one lost between the two calls.
	tick := time.NewTicker(10 * time.Second)
	for {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if pid <= 0 && err != syscall.EINTR {
				break
			}
		}
		select {
		case <-child:
		case <-tick.C:
		}
	}
}
