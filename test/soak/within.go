package soak

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/test/lab"
)

// inNet runs f on a thread in a host's network.
func inNet[T any](h *lab.Host, f func() (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	done := make(chan answer)
	go func() {
		// Locked and never unlocked: the thread ends with the goroutine, so that
		// nobody else runs in that network.
		runtime.LockOSThread()
		v, err := func() (v T, err error) {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", h.InitPID()))
			if err != nil {
				return v, err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return v, fmt.Errorf("enter the network of %s: %w", h.Name, err)
			}
			return f()
		}()
		done <- answer{v, err}
	}()
	a := <-done
	return a.v, a.err
}

// listenIn opens a listener in a host's network.
func listenIn(h *lab.Host, address string) (net.Listener, error) {
	return inNet(h, func() (net.Listener, error) { return net.Listen("tcp", address) })
}

// process is one process of a host, with its pid outside.
type process struct {
	pid  int
	args []string
}

// name is what people call it: the program, and of berth its command.
func (p process) name() string {
	name := filepath.Base(p.args[0])
	if strings.HasPrefix(name, "berth") && len(p.args) > 1 {
		name = "berth " + p.args[1]
	}
	return name
}

// processes are all that run in a host, zombies and its first one left out.
func processes(h *lab.Host) ([]process, error) {
	want, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.InitPID()))
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var out []process
	for _, dir := range dirs {
		// Processes come and go while we look: what cannot be read is not there.
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != want {
			continue
		}
		text, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(text) == 0 {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil || pid == h.InitPID() {
			continue
		}
		out = append(out, process{pid: pid, args: strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")})
	}
	return out, nil
}

// streamProcesses are the host's forwarding processes.
func streamProcesses(h *lab.Host) []int {
	all, err := processes(h)
	if err != nil {
		return nil // the host is off
	}
	var out []int
	for _, p := range all {
		if p.name() == "berth stream" {
			out = append(out, p.pid)
		}
	}
	return out
}

// signalAll signals processes; those that have ended are no error.
func signalAll(pids []int, sig syscall.Signal) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
			return err
		}
	}
	return nil
}
