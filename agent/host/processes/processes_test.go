package processes_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/agent/host/disks"
	"berth/agent/host/processes"
	"berth/internal/fault"
	"berth/internal/stuck"
)

const uuid = "11111111-2222-4333-8444-555555555555"

// proc makes the /proc of a host, by pid, with the command line of each.
func proc(t *testing.T, lines map[string]string) processes.Table {
	t.Helper()
	root := t.TempDir()
	for pid, line := range lines {
		dir := filepath.Join(root, "proc", pid)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(strings.ReplaceAll(line, " ", "\x00")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return processes.Table{Root: root}
}

func TestTable_FindsQEMUByItsUUID(t *testing.T) {
	qemu := "/usr/bin/qemu-system-x86_64 -name guest=vm1,debug-threads=on -uuid " + uuid + " -no-user-config "
	for _, c := range []struct {
		name  string
		lines map[string]string
		want  []int
	}{
		{"none", map[string]string{"1": "/sbin/init "}, nil},
		{"one", map[string]string{"1": "/sbin/init ", "42": qemu}, []int{42}},
		{"in capitals", map[string]string{"1": "", "42": strings.ToUpper(strings.TrimSuffix(qemu, " ")) + " "}, nil},
		{"uuid in capitals", map[string]string{"1": "", "42": strings.ReplaceAll(qemu, uuid, strings.ToUpper(uuid))}, []int{42}},
		{"another instance", map[string]string{"1": "", "42": strings.ReplaceAll(qemu, "5555", "6666")}, nil},
		{"a command that names it", map[string]string{"1": "", "42": "berth instance start " + uuid + " "}, nil},
		{"a command that makes it", map[string]string{"1": "", "42": "berth instance create web --uuid " + uuid + " "}, nil},
		{"the option is last", map[string]string{"1": "", "42": "qemu -uuid"}, nil},
		{"a zombie and what is no process", map[string]string{"1": "", "43": "", "self": qemu}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := proc(t, c.lines).Of(uuid)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("Of = %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestTable_WhatCannotBeReadIsNotOff(t *testing.T) {
	hidden := proc(t, map[string]string{"42": "x "}) // no process 1: hidepid
	if _, err := hidden.Of(uuid); !errors.Is(err, fault.Unavailable) {
		t.Errorf("hidden processes: %v", err)
	}
	broken := proc(t, map[string]string{"1": ""})
	if err := os.MkdirAll(filepath.Join(broken.Root, "proc", "42", "cmdline"), 0o755); err != nil { // a read of it fails
		t.Fatal(err)
	}
	if _, err := broken.Of(uuid); !errors.Is(err, fault.Unavailable) {
		t.Errorf("unreadable command line: %v", err)
	}
	if _, err := (processes.Table{Root: t.TempDir()}).Of(uuid); !errors.Is(err, fault.Unavailable) {
		t.Errorf("no /proc: %v", err)
	}
}

// TestTable_AProcessThatDoesNotAnswer_IsPassedOverUnlessItMayBeQEMU: a FIFO is a file whose reader
// waits in the kernel, like the command line of a process that waits for a dead file server.
func TestTable_AProcessThatDoesNotAnswer_IsPassedOverUnlessItMayBeQEMU(t *testing.T) {
	for name, c := range map[string]struct {
		comm, exe string
		open      string
		want      error
	}{
		"a backup program":       {comm: "rsync", exe: "/usr/bin/rsync", open: "/mnt/nfs/file"},
		"qemu by its name":       {comm: "qemu-system-x86", exe: "/opt/emulator", want: fault.Unavailable},
		"qemu by its program":    {comm: "vm", exe: "/usr/libexec/qemu-kvm", want: fault.Unavailable},
		"qemu by what it opened": {comm: "vm", exe: "/opt/emulator", open: "anon_inode:kvm-vm", want: fault.Unavailable},
		"unreadable":             {comm: "vm", want: fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			table := proc(t, map[string]string{"1": "", "42": "", "43": "qemu\x00-uuid\x00" + uuid + "\x00"})
			table.Calls = &stuck.Calls{Limit: 20 * time.Millisecond}
			dir := filepath.Join(table.Root, "proc", "42")
			line := filepath.Join(dir, "cmdline")
			err := errors.Join(os.Remove(line), unix.Mkfifo(line, 0o600), os.Mkdir(filepath.Join(dir, "fd"), 0o700),
				os.WriteFile(filepath.Join(dir, "comm"), []byte(c.comm+"\n"), 0o600), os.Symlink(c.open, filepath.Join(dir, "fd", "3")))
			if c.open == "" {
				err = nil // no link to nothing
			}
			if c.exe != "" {
				err = errors.Join(err, os.Symlink(c.exe, filepath.Join(dir, "exe")))
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // the reader that was left behind
				if f, err := os.OpenFile(line, os.O_WRONLY, 0); err == nil {
					_ = f.Close()
				}
			})
			for range 3 {
				got, err := table.Of(uuid)
				if c.want == nil && (err != nil || !slices.Equal(got, []int{43})) || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("Of = %v, %v, want %v", got, err, c.want)
				}
			}
		})
	}
}

// TestTable_FindsARealProcess: a real process of this machine, by the real /proc.
func TestTable_FindsARealProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x", "-uuid", uuid)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got, err := processes.Table{}.Of(uuid)
	if err != nil || !slices.Equal(got, []int{cmd.Process.Pid}) {
		t.Errorf("Of = %v, %v, want %d", got, err, cmd.Process.Pid)
	}
	_ = in.Close()
	_ = cmd.Wait()
	if got, err := (processes.Table{}).Of(uuid); err != nil || len(got) > 0 {
		t.Errorf("Of = %v, %v after its end", got, err)
	}
}

type finder struct {
	pids []int
	err  error
}

func (f finder) Of(string) ([]int, error) { return f.pids, f.err }

type writers struct {
	asked []string
	found []disks.Writer
	err   error
}

func (w *writers) Writers(paths ...string) ([]disks.Writer, error) {
	w.asked = paths
	return w.found, w.err
}

func TestWitness_Off(t *testing.T) {
	files := map[string]string{"/images/b": "vdb", "/images/a": "vda"}
	by := []disks.Writer{{Path: "/images/b", Name: "qemu-nbd", PID: 7}}
	silent := fault.New(fault.Unavailable, "silent")
	for _, c := range []struct {
		name    string
		finder  finder
		writers writers
		files   map[string]string
		kind    fault.Kind
		codes   []string
		says    string
	}{
		{"off", finder{}, writers{}, files, "", nil, ""},
		{"QEMU runs", finder{pids: []int{42, 43}}, writers{found: by}, files, fault.Forbidden, []string{"qemu_runs"}, "kill 42 43"},
		{"a disk is open for writing", finder{}, writers{found: by}, files, fault.Forbidden, []string{"disk_open_for_writing"}, "ps 7"},
		{"processes cannot be read", finder{err: silent}, writers{}, files, fault.Unavailable, nil, ""},
		{"writers cannot be read", finder{}, writers{err: silent}, files, fault.Unavailable, nil, ""},
		{"disks are not asked about", finder{}, writers{err: silent}, nil, "", nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := processes.Witness{Finder: c.finder, Writers: &c.writers}.Off(uuid, "vm1", c.files)
			var codes []string
			change := ""
			for _, r := range fault.ReasonsOf(err) {
				codes, change = append(codes, r.Code), change+r.Change+strconv.Itoa(len(codes))
			}
			if fault.KindOf(err) != c.kind || !slices.Equal(codes, c.codes) || !strings.Contains(change, c.says) {
				t.Errorf("Off = %v: kind %q, codes %v, changes %q", err, fault.KindOf(err), codes, change)
			}
			if c.kind == "" && c.files != nil && !slices.Equal(c.writers.asked, []string{"/images/a", "/images/b"}) {
				t.Errorf("asked for %v", c.writers.asked)
			}
		})
	}
}
