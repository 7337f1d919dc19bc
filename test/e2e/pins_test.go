package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"berth/test/lab"
	"berth/topology"
)

// pins is where a guest's threads and memory belong, as one witness tells.
// There are three, which should agree: libvirtPins, definedPins, actualPins.
type pins struct {
	VCPUs    map[int]string // host CPUs by vCPU, "0" or "2-3,8"
	Emulator string         // host CPUs of all other threads; with "; " between when they differ
	Memory   map[int]string // by guest cell, libvirt's mode and the host's nodes: "strict 1"
}

// libvirtPins is what libvirt says of a running guest: virsh vcpupin and
// emulatorpin, and the memnodes of the live XML, which virsh numatune does not
// show.
func (w *world) libvirtPins(h *lab.Host, name string) pins {
	w.Helper()
	p := w.xmlPins(h, name)
	p.VCPUs = map[int]string{}
	for line := range strings.Lines(w.virsh(h, "vcpupin", name)) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		if n, err := strconv.Atoi(f[0]); err == nil {
			p.VCPUs[n] = w.cpuList(f[1])
		}
	}
	for line := range strings.Lines(w.virsh(h, "emulatorpin", name)) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "*:"); ok {
			p.Emulator = w.cpuList(list)
		}
	}
	return p
}

// definedPins is what the guest's persistent definition says, with which its
// next start begins; only what is written there.
func (w *world) definedPins(h *lab.Host, name string) pins {
	w.Helper()
	return w.xmlPins(h, name, "--inactive")
}

// xmlPins reads a guest's XML.
func (w *world) xmlPins(h *lab.Host, name string, flags ...string) pins {
	w.Helper()
	var d libvirtxml.Domain
	if err := d.Unmarshal(w.virsh(h, append([]string{"dumpxml", name}, flags...)...)); err != nil {
		w.Fatal(err)
	}
	p := pins{VCPUs: map[int]string{}, Memory: map[int]string{}}
	if d.CPUTune != nil {
		for _, v := range d.CPUTune.VCPUPin {
			p.VCPUs[int(v.VCPU)] = w.cpuList(v.CPUSet)
		}
		if d.CPUTune.EmulatorPin != nil {
			p.Emulator = w.cpuList(d.CPUTune.EmulatorPin.CPUSet)
		}
	}
	if d.NUMATune != nil {
		for _, m := range d.NUMATune.MemNodes {
			p.Memory[int(m.CellID)] = m.Mode + " " + w.cpuList(m.Nodeset)
		}
	}
	return p
}

// actualPins is what is so: the kernel's affinity of each thread of the guest's
// QEMU, and QEMU's own record of how it bound each cell's memory
// (query-memdev, which `info memdev` prints). The kernel's numa_maps cannot
// tell the latter where the host's cells are made up.
func (w *world) actualPins(h *lab.Host, name string) pins {
	w.Helper()
	vcpuOf := map[int]int{} // by thread, in the host's pid namespace
	for _, c := range qmp[[]struct {
		Index  int `json:"cpu-index"`
		Thread int `json:"thread-id"`
	}](w, h, name, "query-cpus-fast") {
		vcpuOf[c.Thread] = c.Index
	}
	p := pins{VCPUs: map[int]string{}, Memory: map[int]string{}}
	others := map[string]bool{}
	for _, t := range w.threads(h, name) {
		if n, ok := vcpuOf[t.ID]; ok {
			p.VCPUs[n] = t.CPUs
		} else if !strings.HasPrefix(t.Name, "TC ") {
			// Thread contexts (TC …) touched a cell's memory at the start, from its
			// node's CPUs, and idle ever after.
			others[t.CPUs] = true
		}
	}
	p.Emulator = strings.Join(slices.Sorted(maps.Keys(others)), "; ")
	for _, m := range qmp[[]memdev](w, h, name, "query-memdev") {
		var cell int
		if _, err := fmt.Sscanf(m.ID, "ram-node%d", &cell); err != nil || m.Policy == "default" {
			continue
		}
		mode := m.Policy
		if mode == "bind" {
			mode = "strict" // libvirt's word for it
		}
		p.Memory[cell] = mode + " " + topology.NewCPUSet(m.Nodes...).String()
	}
	return p
}

type memdev struct {
	ID     string `json:"id"`
	Size   int64  `json:"size"`
	Policy string `json:"policy"`
	Nodes  []int  `json:"host-nodes"`
}

// thread is one thread of a QEMU, read from /proc/PID/task.
type thread struct {
	ID   int    // in the host's pid namespace, as QEMU and libvirt tell it
	Name string // "CPU 0/TCG", "IO mon_iothread", "qemu-system-x86" for the main one
	CPUs string // Cpus_allowed_list
}

// threads are those of a running guest's QEMU.
func (w *world) threads(h *lab.Host, name string) []thread {
	w.Helper()
	pid, err := h.QEMUPID(name)
	if err != nil {
		w.Fatal(err)
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		w.Fatalf("threads of QEMU %d: %v", pid, err)
	}
	var out []thread
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // QEMU's workers come and go
		}
		var t thread
		for line := range strings.Lines(string(b)) {
			key, value, _ := strings.Cut(line, ":")
			switch value = strings.TrimSpace(value); key {
			case "Name":
				t.Name = value
			case "NSpid": // the innermost namespace's comes last
				f := strings.Fields(value)
				t.ID, _ = strconv.Atoi(f[len(f)-1])
			case "Cpus_allowed_list":
				t.CPUs = w.cpuList(value)
			}
		}
		out = append(out, t)
	}
	return out
}

// ramPages is how the memory of a running guest is mapped, by QEMU's memory
// backend ("ram-node0" for guest cell 0, "pc.ram" for a guest without cells):
// "32 pages of 2048 kB". It comes from the kernel's numa_maps, and holds the
// backends that lie in files, as those of huge pages do; the others have no
// name there.
func (w *world) ramPages(h *lab.Host, name string) map[string]string {
	w.Helper()
	pid, err := h.QEMUPID(name)
	if err != nil {
		w.Fatal(err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/numa_maps", pid))
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	out, err := parseRAMPages(f)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// parseRAMPages reads numa_maps (proc(5), numa(7)): the pages on every node,
// N0=32, in kernelpagesize_kB each.
func parseRAMPages(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	s := bufio.NewScanner(r)
	for s.Scan() {
		_, file, ok := strings.Cut(s.Text(), "/qemu_back_mem.")
		if !ok {
			continue
		}
		backend, rest, _ := strings.Cut(file, " ")
		// What mkstemp added, and that the file is deleted.
		backend, _, _ = strings.Cut(backend, `\040`)
		backend = strings.TrimSuffix(backend, filepath.Ext(backend))
		pages, size := 0, ""
		for field := range strings.FieldsSeq(rest) {
			key, value, _ := strings.Cut(field, "=")
			if key == "kernelpagesize_kB" {
				size = value
			} else if n, isNode := strings.CutPrefix(key, "N"); isNode {
				if _, err := strconv.Atoi(n); err != nil {
					continue
				}
				n, err := strconv.Atoi(value)
				if err != nil {
					return nil, fmt.Errorf("numa_maps: %q: %w", s.Text(), err)
				}
				pages += n
			}
		}
		out[backend] = fmt.Sprintf("%d pages of %s kB", pages, size)
	}
	return out, s.Err()
}

// requirePins requires that libvirt, the persistent definition, and kernel and
// QEMU all say the same of a running guest.
func (w *world) requirePins(h *lab.Host, name string, want pins) {
	w.Helper()
	for witness, got := range map[string]pins{
		"libvirt":         w.libvirtPins(h, name),
		"the definition":  w.definedPins(h, name),
		"kernel and QEMU": w.actualPins(h, name),
	} {
		if diff := cmp.Diff(want, got); diff != "" {
			w.Errorf("pins of %s on %s, as told by %s (-want +got):\n%s", name, h.Name, witness, diff)
		}
	}
}

// requireRAM requires the pages under a running guest's memory.
func (w *world) requireRAM(h *lab.Host, name string, want map[string]string) {
	w.Helper()
	if diff := cmp.Diff(want, w.ramPages(h, name)); diff != "" {
		w.Errorf("pages of %s on %s (-want +got):\n%s", name, h.Name, diff)
	}
}

// qmp asks a guest's QEMU one question.
func qmp[T any](w *world, h *lab.Host, name, command string) T {
	w.Helper()
	text := w.virsh(h, "qemu-monitor-command", name, `{"execute":"`+command+`"}`)
	var answer struct {
		Return *T `json:"return"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || answer.Return == nil {
		w.Fatalf("%s of %s on %s: %v: %s", command, name, h.Name, err, text)
	}
	return *answer.Return
}

// virsh runs a virsh command that must succeed.
func (w *world) virsh(h *lab.Host, args ...string) string {
	w.Helper()
	out, err := h.Virsh(w.ctx, args...)
	if err != nil {
		w.Fatal(err)
	}
	return out
}

// cpuList is a list of CPUs or nodes in the one form that can be compared.
func (w *world) cpuList(text string) string {
	w.Helper()
	set, err := topology.ParseCPUSet(strings.TrimSpace(text))
	if err != nil {
		w.Fatal(err)
	}
	return set.String()
}

func TestParseRAMPages_NamesBackendsAndCountsAllNodes(t *testing.T) {
	got, err := parseRAMPages(strings.NewReader(`7fc76be00000 default file=/run/hugepages/libvirt/qemu/1-g1/qemu_back_mem.ram-node1.JrhqEf\040(deleted) huge anon=32 dirty=32 N0=30 N1=2 kernelpagesize_kB=2048
7fc777e00000 bind:0 file=/dev/hugepages/libvirt/qemu/1-g1/qemu_back_mem.pc.ram.aodzha huge dirty=3 N0=3 kernelpagesize_kB=1048576
7fc7a0000000 default anon=4 dirty=4 N0=4 kernelpagesize_kB=4
7fc7b0000000 default file=/usr/lib/libc.so.6 mapped=4 N0=4 kernelpagesize_kB=4
`))
	want := map[string]string{"ram-node1": "32 pages of 2048 kB", "pc.ram": "3 pages of 1048576 kB"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
