package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// twoCells gives a test guest two cells with a vCPU each: firstCell and secondCell, see inFirstCell.
const twoCells = `<cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model><numa>
    <cell id='0' cpus='0' memory='96' unit='MiB'/><cell id='1' cpus='1' memory='32' unit='MiB'/></numa></cpu>`

// elements are pins and 2 MiB pages in libvirt's words.
func (p pins) elements() string {
	var b strings.Builder
	b.WriteString("  <memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>\n  <cputune>")
	for n := range len(p.VCPUs) {
		fmt.Fprintf(&b, "<vcpupin vcpu='%d' cpuset='%s'/>", n, p.VCPUs[n])
	}
	fmt.Fprintf(&b, "<emulatorpin cpuset='%s'/></cputune>\n  <numatune>", p.Emulator)
	for n := range len(p.Memory) {
		mode, nodes, _ := strings.Cut(p.Memory[n], " ")
		fmt.Fprintf(&b, "<memnode cellid='%d' mode='%s' nodeset='%s'/>", n, mode, nodes)
	}
	b.WriteString("</numatune>\n")
	return b.String()
}

// This is about the lab: that on its made-up cells real libvirt and QEMU pin,
// bind and move a guest as on real ones, and that the witnesses see it.
func TestCells_PlainLibvirtMovesAPinnedGuestWithNewPins(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testMost)
	defer cancel()
	l := lab.Start(t, lab.Options{Cells: 2, HugePages: (firstCell + secondCell) / 2, Listen: true})
	g, err := guest.Build(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, Fleet: &fleet.Fleet{Lab: l}, ctx: ctx, a: l.Hosts[0], b: l.Hosts[1]}

	onA := pins{VCPUs: map[int]string{0: "0", 1: "1"}, Emulator: "1", Memory: map[int]string{0: "strict 0", 1: "strict 1"}}
	onB := pins{VCPUs: map[int]string{0: "1", 1: "0"}, Emulator: "0", Memory: map[int]string{0: "strict 1", 1: "strict 0"}}
	o := guest.Options{Name: "p1", Guest: g, VCPUs: 2, CPU: twoCells, Beat: 100 * time.Millisecond, Dirty: dirtied, Rate: dirtyRate}
	write := func(name string, p pins) string {
		o := o
		o.Name, o.Elements = name, p.elements()
		path := "/var/lib/libvirt/" + name + ".xml"
		if err := os.WriteFile(w.a.Path(path), []byte(strings.Replace(guest.DomainXML(o), "<cmdline>", "<cmdline>"+inFirstCell+" ", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	w.virsh(w.a, "define", write("p1", onA))
	w.virsh(w.a, "start", "p1")
	w.beats(w.a, "p1", 3)
	ram := map[string]string{"ram-node0": "48 pages of 2048 kB", "ram-node1": "16 pages of 2048 kB"}
	w.requirePins(w.a, "p1", onA)
	w.requireRAM(w.a, "p1", ram)

	// The guest has the host's share to the last page.
	w.virsh(w.a, "define", write("p2", onA))
	if _, err := w.a.Virsh(ctx, "start", "p2"); err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("a guest beyond the host's huge pages started: %v", err)
	}

	next := strings.NewReplacer(
		"vcpu='0' cpuset='0'", "vcpu='0' cpuset='1'", "vcpu='1' cpuset='1'", "vcpu='1' cpuset='0'", "emulatorpin cpuset='1'", "emulatorpin cpuset='0'",
		"cellid='0' mode='strict' nodeset='0'", "cellid='0' mode='strict' nodeset='1'", "cellid='1' mode='strict' nodeset='1'", "cellid='1' mode='strict' nodeset='0'",
	).Replace(w.virsh(w.a, "dumpxml", "--migratable", "p1"))
	const path = "/var/lib/libvirt/p1-next.xml"
	if err := os.WriteFile(w.a.Path(path), []byte(next), 0o644); err != nil {
		t.Fatal(err)
	}
	w.virsh(w.a, "migrate", "--live", "--p2p", "--tls", "--persistent", "--undefinesource", "--xml", path, "--persistent-xml", path,
		"p1", "qemu+tls://"+w.b.Name+"/system")
	w.requirePins(w.b, "p1", onB)
	w.requireRAM(w.b, "p1", ram)
	t.Log(w.alive("p1", w.a, w.b))
	w.require("state on host-a", w.domain(w.a, "p1"), "")
}
