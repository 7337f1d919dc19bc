package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/claims"
	"berth/migration"
	"berth/placementclient"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
	"berth/topology"
)

// Two hosts of two cells each that are mirror images: what guests may have to
// themselves is CPU 0, in cell 0, on host-a and CPU 1, in cell 1, on host-b.
const (
	dedicatedA, dedicatedB = "0", "1"
	sharedA, sharedB       = "1", "0"
)

// pagesPerHost are enough for two guests of 64 pages, but for the larger cell of
// one only: each of the host's cells has half of them.
const pagesPerHost = 128

// Guests use the memory of their first cell alone (mem=), which is the larger.
// Without KVM, QEMU 10 loses what a guest writes to its second cell while its
// memory is sent: after it has copied the dirty bitmap of a block of memory it
// makes the vCPUs note writes again, but takes the block's offset for an address
// (physical_memory_sync_dirty_bitmap in migration/ram.c), so that it is right for
// the first block only. virsh migrate crashes such a guest alike.
const (
	firstCell, secondCell = 96, 32 // MiB
	inFirstCell           = "mem=96M"

	// They write little, so that a stream that a busy machine slows down ends after few passes.
	dirtied, dirtyRate = 8, 2 // MiB, MiB/s
)

// pinnedFlavors are a vCPU with a CPU to itself and one that shares, each in a
// cell of its own with memory in pages of 2 MiB; with the emulator's threads
// where the vCPUs run, or kept to the shared CPUs.
var pinnedFlavors = map[string]string{
	"mixed":       mixedFlavor("mixed", ""),
	"mixed-share": mixedFlavor("mixed-share", "\"hw:emulator_threads_policy\" = \"share\"\n"),
}

func mixedFlavor(name, more string) string {
	return fmt.Sprintf(`name = %q
vcpus = 2
memory_mb = 128
disk_gb = 1
[extra_specs]
"hw:cpu_policy" = "mixed"
"hw:cpu_dedicated_mask" = "0"
"hw:numa_nodes" = "2"
"hw:numa_cpus.0" = "0"
"hw:numa_mem.0" = "%d"
"hw:numa_cpus.1" = "1"
"hw:numa_mem.1" = "%d"
"hw:mem_page_size" = "2048"
%s`, name, firstCell, secondCell, more)
}

// sharedOf are a host's shared CPUs.
func (w *world) sharedOf(h *lab.Host) string {
	if h == w.a {
		return sharedA
	}
	return sharedB
}

// claimOf is the claim of a guest that lives on a host.
func (w *world) claimOf(h *lab.Host, name string) claims.Claim {
	w.Helper()
	c := ask[api.InstanceDetail](w, h, "instance", "show", name).Claim
	if c == nil {
		w.Fatalf("%s has no claim on %s", name, h.Name)
	}
	return *c
}

// pinsOf is where a claim puts a guest on a host, and ramOf with which pages.
func (w *world) pinsOf(h *lab.Host, t *topology.GuestTopology, a topology.Assignment) pins {
	w.Helper()
	p := pins{VCPUs: map[int]string{}, Memory: map[int]string{}}
	if t == nil || len(t.Cells) != len(a.Cells) {
		w.Fatalf("a claim on %s has the topology %+v and the assignment %+v", h.Name, t, a)
	}
	var all topology.CPUSet
	for i, c := range a.Cells {
		for _, pin := range c.Pins {
			p.VCPUs[pin.VCPU] = fmt.Sprint(pin.CPU)
		}
		for _, v := range t.Cells[i].SharedVCPUs {
			p.VCPUs[v] = w.sharedOf(h)
		}
		p.Memory[i] = fmt.Sprintf("strict %d", c.HostCell)
	}
	for _, cpus := range p.VCPUs {
		set, err := topology.ParseCPUSet(cpus)
		if err != nil {
			w.Fatal(err)
		}
		all = all.Union(set)
	}
	p.Emulator = all.String()
	if t.Emulator == topology.EmulatorShare {
		p.Emulator = w.sharedOf(h)
	}
	return p
}

func ramOf(a topology.Assignment) map[string]string {
	out := map[string]string{}
	for i, c := range a.Cells {
		out[fmt.Sprintf("ram-node%d", i)] = fmt.Sprintf("%d pages of %d kB", c.MemoryMB<<20/int64(c.PageSize), c.PageSize>>10)
	}
	return out
}

// asClaimed requires that a guest is where its claim on a host says, by every
// witness, and gives the pins.
func (w *world) asClaimed(h *lab.Host, name string) pins {
	w.Helper()
	c := w.claimOf(h, name)
	want := w.pinsOf(h, c.Topology, c.Assignment)
	w.requirePins(h, name, want)
	w.requireRAM(h, name, ramOf(c.Assignment))
	w.Logf("%s on %s:\n%s", name, h.Name, w.table(h, name, want))
	return want
}

// table shows a guest's pins as each witness tells them.
func (w *world) table(h *lab.Host, name string, claim pins) string {
	w.Helper()
	var b strings.Builder
	row := func(witness string, p pins) {
		var vcpus, memory []string
		for v := range len(p.VCPUs) {
			vcpus = append(vcpus, fmt.Sprintf("%d→%s", v, p.VCPUs[v]))
		}
		for c := range len(p.Memory) {
			memory = append(memory, fmt.Sprintf("%d→%s", c, p.Memory[c]))
		}
		fmt.Fprintf(&b, "  %-27s vCPU→CPU %-9s emulator %-4s cell→node %s\n", witness, strings.Join(vcpus, " "), p.Emulator, strings.Join(memory, ", "))
	}
	row("claim", claim)
	row("libvirt, live", w.libvirtPins(h, name))
	row("libvirt, persistent", w.definedPins(h, name))
	row("kernel (task) and memdev", w.actualPins(h, name))
	ram := w.ramPages(h, name)
	for cell := range len(ram) {
		fmt.Fprintf(&b, "  %-27s cell %d: %s\n", "kernel (numa_maps)", cell, ram[fmt.Sprintf("ram-node%d", cell)])
	}
	return b.String()
}

// createArgs make a guest from its flavor alone: Berth writes the document.
func (w *world) createArgs(name, flavor, disk string) []string {
	o := guest.Options{Beat: 100 * time.Millisecond, Dirty: dirtied, Rate: dirtyRate}
	return []string{
		"instance", "create", name, "--flavor", flavor, "--machine", guest.Machine, "--kernel", shared.g.Kernel, "--initrd", shared.g.Initrd,
		"--cmdline", inFirstCell + " " + o.Cmdline(), "--serial-file", "/var/log/libvirt/" + name + ".console", "--disk-file", disk, "--virt-type", "qemu", "--start",
	}
}

// make makes a guest by its flavor and waits for its heartbeat.
func (w *world) make(h *lab.Host, name, flavor string) {
	w.Helper()
	disk := images + "/" + name + ".qcow2"
	if err := os.MkdirAll(h.Path(images), 0o755); err != nil {
		w.Fatal(err)
	}
	if _, err := h.Exec(w.ctx, "qemu-img", "create", "-q", "-f", "qcow2", disk, "32M"); err != nil {
		w.Fatal(err)
	}
	w.berth(h, w.createArgs(name, flavor, "path="+disk+",format=qcow2")...)
	w.beats(h, name, 3)
}

// floatsOn requires that all threads of a guest that floats may use these CPUs: the
// cpuset of <vcpu>, live and persistent, and what the kernel allows them.
func (w *world) floatsOn(h *lab.Host, name, cpus string) {
	w.Helper()
	for _, args := range [][]string{{"dumpxml", name}, {"dumpxml", name, "--inactive"}} {
		if text := w.virsh(h, args...); !strings.Contains(text, "<vcpu placement='static' cpuset='"+cpus+"'>1</vcpu>") || strings.Contains(text, "vcpupin") {
			w.Errorf("virsh %s on %s has not the cpuset %s alone:\n%s", strings.Join(args, " "), h.Name, cpus, text)
		}
	}
	for _, t := range w.threads(h, name) {
		w.require(fmt.Sprintf("CPUs of thread %q of %s on %s", t.Name, name, h.Name), t.CPUs, cpus)
	}
}

// shape has a host change how it shows itself in Placement, and waits until it stands so
// and all agree.
func (w *world) shape(h *lab.Host, shape string) {
	w.Helper()
	path := h.Path("/etc/berth/berth.toml.d/80-shape.toml")
	if err := os.WriteFile(path, []byte(fmt.Sprintf("[placement]\nnuma = %q\n", shape)), 0o644); err != nil {
		w.Fatal(err)
	}
	if err := w.Agent(h.Name).Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		w.Fatal(err)
	}
	w.eventually(h.Name+" "+shape, func() string {
		s := ask[api.HostInfo](w, h, "host", "show").Placement
		if string(s.Shape) == shape && s.InSync {
			return ""
		}
		return fmt.Sprintf("%s, in sync %v: %s", s.Shape, s.InSync, s.Error)
	})
	// While the shape changes again, as after a conflict, nobody can tell: exit code 6.
	w.eventually("an audit of "+h.Name, func() string {
		r := w.run(h, "audit", "--all")
		if r.Code == 7 {
			w.Fatalf("%s%s", r.Stdout, r.Stderr)
		}
		if r.Code != 0 {
			return r.Stdout + r.Stderr
		}
		return ""
	})
}

// counted is what Placement counts of a guest: "host-a: DISK_GB 1; host-a_NUMA0: PCPU 1".
func (w *world) counted(h *lab.Host, name string) string {
	w.Helper()
	var out []string
	for _, a := range ask[api.InstanceDetail](w, h, "instance", "show", name).Allocations {
		text := a.Provider + ":"
		for _, class := range slices.Sorted(maps.Keys(a.Resources)) {
			text += fmt.Sprintf(" %s %d", class, a.Resources[class])
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// over waits for the end of a migration that host-a conducts.
func (w *world) over(m migration.Migration) migration.Migration {
	w.Helper()
	return w.migration(w.a, m.InstanceName, "is over", func(n migration.Migration) bool { return n.UUID == m.UUID && n.Done() })
}

// holdings are all claims of a host, as far as they concern room.
func (w *world) holdings(h *lab.Host) []string {
	w.Helper()
	var out []string
	for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
		out = append(out, fmt.Sprintf("%s %s %s %s %+v", c.Name, c.Kind, c.State, c.Resources, c.Assignment))
	}
	slices.Sort(out)
	return out
}

// consoles shows what the guests said last when the test failed.
func (w *world) consoles() {
	if !w.Failed() {
		return
	}
	for _, h := range w.Hosts {
		files, _ := filepath.Glob(h.Path("/var/log/libvirt/*.console"))
		for _, f := range files {
			text, _ := os.ReadFile(f)
			w.Logf("--- the end of %s on %s\n%s", filepath.Base(f), h.Name, text[max(0, len(text)-2500):])
		}
	}
}

// refusal runs a command that must be refused with this exit code, and gives
// every reason in an operator's words.
func (w *world) refusal(code int, h *lab.Host, args ...string) []string {
	w.Helper()
	r := w.run(h, append(args, "--json")...)
	if r.Code != code {
		w.Fatalf("berth %s on %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), h.Name, r.Code, code, r.Stdout, r.Stderr)
	}
	var out []string
	for _, reason := range decodeError(w, r).Reasons {
		out = append(out, reason.Code+": "+reason.Message)
		w.Logf("%s: %s\n  change: %s", reason.Code, reason.Message, reason.Change)
	}
	return out
}

// noRoomOnA is why host-a has no room for a second guest of flavor mixed, and
// noRoomOnB why host-b has none.
var (
	noRoomOnA = []string{
		"pcpu_short: pcpus: want 1, 0 free",
		"pages_short: guest cell 0 on cell 0: 16 of 64 pages of 2MiB free (0 reserved), the guest cell needs 48",
		"cell_dedicated_cpus_short: guest cell 0 on cell 0: 0 of 1 dedicated CPU free, the guest cell needs 1 dedicated vCPU",
		"cell_dedicated_cpus_short: guest cell 0 on cell 1: 0 of 0 dedicated CPUs free, the guest cell needs 1 dedicated vCPU",
	}
	noRoomOnB = []string{
		"pcpu_short: pcpus: want 1, 0 free",
		"cell_dedicated_cpus_short: guest cell 0 on cell 0: 0 of 0 dedicated CPUs free, the guest cell needs 1 dedicated vCPU",
		"pages_short: guest cell 0 on cell 1: 16 of 64 pages of 2MiB free (0 reserved), the guest cell needs 48",
		"cell_dedicated_cpus_short: guest cell 0 on cell 1: 0 of 1 dedicated CPU free, the guest cell needs 1 dedicated vCPU",
	}
)

// TestPinned_MovesByItsClaim is a story on one fleet; each part begins where
// the one before it ended.
func TestPinned_MovesByItsClaim(t *testing.T) {
	w := ownWith(t, fleet.Options{
		Cells: 2, HugePages: pagesPerHost, Flavors: pinnedFlavors,
		Config: map[string]string{
			"":       "[placement]\ncpu_allocation_ratio = 4.0\n",
			"host-a": "[host]\ndedicated_cpus = \"" + dedicatedA + "\"\nshared_cpus = \"" + sharedA + "\"\n",
			"host-b": "[host]\ndedicated_cpus = \"" + dedicatedB + "\"\nshared_cpus = \"" + sharedB + "\"\n",
		},
	})
	t.Cleanup(w.consoles)
	part := func(name string, f func(w *world)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			sub := *w
			sub.TB = t
			f(&sub)
		}) {
			t.FailNow()
		}
	}
	onA := pins{VCPUs: map[int]string{0: "0", 1: "1"}, Emulator: "1", Memory: map[int]string{0: "strict 0", 1: "strict 1"}}
	onB := pins{VCPUs: map[int]string{0: "1", 1: "0"}, Emulator: "0", Memory: map[int]string{0: "strict 1", 1: "strict 0"}}
	same := func(w *world, what string, got, want any) {
		w.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			w.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}

	part("a flavor gets what its claim says", func(w *world) {
		w.make(w.a, "p1", "mixed-share")
		same(w, "pins of p1", w.asClaimed(w.a, "p1"), onA)
		w.livesOn("p1", w.a, w.b)
		for _, h := range w.Hosts {
			inv := ask[api.HostInfo](w, h, "host", "show").Providers[0].Inventories
			w.require("PCPU of "+h.Name, inv["PCPU"].Total, 1)
			w.require("VCPU of "+h.Name, inv["VCPU"].Total, 1)
		}
		d := ask[api.InstanceDetail](w, w.a, "instance", "show", "p1")
		same(w, "allocation", d.Allocations[0].Resources, placementclient.Resources{"PCPU": 1, "VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1})
	})
	part("a guest that floats keeps off dedicated CPUs", func(w *world) {
		w.make(w.a, "f1", "small")
		w.floatsOn(w.a, "f1", sharedA)
	})
	part("their host shows its cells in Placement while they run", func(w *world) {
		w.shape(w.a, "nested")
		w.require("p1 in Placement", w.counted(w.a, "p1"), "host-a: DISK_GB 1; host-a_NUMA0: PCPU 1; host-a_NUMA0_2MiB: MEMORY_MB 96; host-a_NUMA1: VCPU 1; host-a_NUMA1_2MiB: MEMORY_MB 32")
		w.livesOn("p1", w.a, w.b)
		w.alive("p1", w.a, w.a)
	})
	part("a second one is refused with every reason", func(w *world) {
		before := w.holdings(w.a)
		no := w.refusal(3, w.a, w.createArgs("p2", "mixed-share", "path="+images+"/p2.qcow2,size=1")...)
		same(w, "reasons", no, noRoomOnA)
		same(w, "claims", w.holdings(w.a), before)
		w.require("domain", w.domain(w.a, "p2"), "")
		if files, _ := filepath.Glob(w.a.Path(images) + "/p2*"); len(files) > 0 {
			w.Errorf("left behind: %v", files)
		}
		if r := w.run(w.a, "instance", "show", "p2"); r.Code != 4 {
			w.Errorf("the instance is there: %s", r.Stdout)
		}
	})
	part("a move that is aborted changes nothing", func(w *world) {
		before := [][]string{w.holdings(w.a), w.holdings(w.b)}
		w.berth(w.a, "migrate", "p1", "host-b", "--detach", "--bandwidth", "6MiB/s")
		m := w.migration(w.a, "p1", "sends memory", flowing)
		w.berth(w.a, "migration", "abort", m.UUID)
		m = w.over(m)
		w.require("status", m.Status, migration.StatusCancelled)
		same(w, "claims", [][]string{w.holdings(w.a), w.holdings(w.b)}, before)
		same(w, "pins", w.asClaimed(w.a, "p1"), onA)
		w.livesOn("p1", w.a, w.b)
		w.alive("p1", w.a, w.a)
	})
	part("a move gives it the destination's", func(w *world) {
		w.berth(w.a, "migrate", "p1", "host-b", "--detach", "--bandwidth", "32MiB/s")
		m := w.migration(w.a, "p1", "sends memory", flowing)
		arriving := ask[api.Claim](w, w.b, "claim", "show", ask[api.InstanceDetail](w, w.a, "instance", "show", "p1").UUID)
		w.require("the claim on host-b", arriving.Kind+" "+arriving.State, "live-migration arriving")
		c := arriving.Context
		if c == nil {
			w.Fatal("the arriving claim has no context")
		}
		same(w, "what it had", w.pinsOf(w.a, c.OldTopology, c.OldAssignment), onA)
		same(w, "what it gets", w.pinsOf(w.b, c.NewTopology, c.NewAssignment), onB)
		w.Logf("context while it moves: old cells %+v\nnew cells %+v", c.OldAssignment.Cells, c.NewAssignment.Cells)
		m = w.over(m)
		w.require("outcome", m.Outcome, migration.OutcomeCompleted)
		same(w, "pins", w.asClaimed(w.b, "p1"), onB)
		w.livesOn("p1", w.b, w.a)
		w.Log(w.alive("p1", w.a, w.b))
	})
	part("and back on a host that Placement offers", func(w *world) {
		w.berth(w.b, "migrate", "p1")
		same(w, "pins", w.asClaimed(w.a, "p1"), onA)
		w.livesOn("p1", w.a, w.b)
		beats := w.beats(w.a, "p1", len(w.beats(w.a, "p1", 1))+3)
		if first, last := beats[0], beats[len(beats)-1]; last.Boot != first.Boot || last.Bad+last.DiskBad != 0 {
			w.Errorf("back on host-a it says %+v; its first words there were %+v", last, first)
		}
	})
	part("a guest that floats gets the shared CPUs of its next host", func(w *world) {
		w.berth(w.a, "migrate", "f1", "host-b")
		w.floatsOn(w.b, "f1", sharedB)
		w.livesOn("f1", w.b, w.a)
	})
	part("a move to a taken CPU is refused before anything changes", func(w *world) {
		w.make(w.b, "p2", "mixed")
		with := onB
		with.Emulator = "0-1" // of no policy: where its vCPUs run
		same(w, "pins of p2", w.asClaimed(w.b, "p2"), with)
		before := [][]string{w.holdings(w.a), w.holdings(w.b)}
		same(w, "reasons", w.refusal(3, w.a, "migrate", "p1", "host-b"), noRoomOnB)
		same(w, "reasons", w.refusal(3, w.b, "migrate", "p2", "host-a"), noRoomOnA)
		w.refusal(3, w.a, "migrate", "p1") // and Placement offers no other
		same(w, "claims", [][]string{w.holdings(w.a), w.holdings(w.b)}, before)
		same(w, "pins of p1", w.asClaimed(w.a, "p1"), onA)
		w.livesOn("p1", w.a, w.b)
		w.livesOn("p2", w.b, w.a)
	})
	part("what a guest leaves is another's", func(w *world) {
		w.remove("p1")
		w.berth(w.b, "migrate", "p2", "host-a")
		with := onA
		with.Emulator = "0-1"
		same(w, "pins", w.asClaimed(w.a, "p2"), with)
		w.livesOn("p2", w.a, w.b)
		w.Log(w.alive("p2", w.b, w.a))
	})
	part("and a host is one again while a guest runs", func(w *world) {
		w.shape(w.a, "flat")
		w.require("p2 in Placement", w.counted(w.a, "p2"), "host-a: DISK_GB 1 MEMORY_MB 128 PCPU 1 VCPU 1")
		w.livesOn("p2", w.a, w.b)
		w.remove("p2")
		w.remove("f1")
	})
	part("adopted guests have what virsh gave them", func(w *world) {
		own := onA
		own.Emulator = "0-1"
		w.virshPinned("own", firstCell, secondCell, own)
		w.beats(w.a, "own", 3)
		w.berth(w.a, "instance", "adopt", "own")
		same(w, "pins", w.asClaimed(w.a, "own"), own)
		c := w.claimOf(w.a, "own")
		w.require("what is held", c.Resources, topology.Resources{VCPUs: 1, PCPUs: 1, MemoryMB: 128})
		w.require("forced", c.Forced, false)
		w.claimsSay("ok")

		// It never boots, and needs little.
		w.virshPinned("thief", 16, 16, own, "--paused")
		w.berth(w.a, "instance", "adopt", "thief")
		w.require("forced", w.claimOf(w.a, "thief").Forced, true)
		said := []string{"guest thief was adopted though it does not fit", "cpu 0 of cell 0: held by own and thief"}
		w.claimsSay("degraded", said...)

		before := w.holdings(w.a)
		if err := w.Agent("host-a").Stop(w.ctx); err != nil {
			w.Fatal(err)
		}
		if err := w.StartAgent(w.ctx, "host-a"); err != nil {
			w.Fatal(err)
		}
		if err := w.WaitReady(w.ctx, "host-a"); err != nil {
			w.Fatal(err)
		}
		same(w, "claims after a restart", w.holdings(w.a), before)
		w.claimsSay("degraded", said...)
		w.remove("thief")
		w.claimsSay("ok")
	})
	part("and move by their claims from then on", func(w *world) {
		w.berth(w.a, "migrate", "own", "host-b")
		with := onB
		with.Emulator = "0-1"
		same(w, "pins", w.asClaimed(w.b, "own"), with)
		w.Log(w.alive("own", w.a, w.b))
		w.remove("own")
	})
	w.requireEmpty()
}

// virshPinned defines and starts a guest on host-a by hands that know nothing of
// Berth, with two cells of so many MiB.
func (w *world) virshPinned(name string, first, second int, p pins, flags ...string) {
	w.Helper()
	o := guest.Options{
		Name: name, VCPUs: 2, MemoryMiB: first + second, Dirty: dirtied, Rate: dirtyRate, Disks: []guest.Disk{}, Elements: p.elements(),
		CPU: fmt.Sprintf(`<cpu mode='custom' match='exact'><model fallback='forbid'>qemu64</model><numa>
    <cell id='0' cpus='0' memory='%d' unit='MiB'/><cell id='1' cpus='1' memory='%d' unit='MiB'/></numa></cpu>`, first, second),
	}
	w.xml(w.a, &o)
	path := "/var/lib/libvirt/" + name + ".xml"
	text := strings.Replace(guest.DomainXML(o), "<cmdline>", "<cmdline>"+inFirstCell+" ", 1)
	if err := os.WriteFile(w.a.Path(path), []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	w.virsh(w.a, "define", path)
	w.virsh(w.a, append([]string{"start", name}, flags...)...)
}

// claimsSay waits until the status of host-a says this of its claims.
func (w *world) claimsSay(health api.Health, reasons ...string) {
	w.Helper()
	w.eventually("status of the claims", func() string {
		for _, c := range ask[api.Status](w, w.a, "status").Conditions {
			if c.Name != "claims" {
				continue
			}
			var said []string
			for _, r := range c.Reasons {
				said = append(said, r.Message)
			}
			if c.Health == health && slices.Equal(said, reasons) {
				return ""
			}
			return fmt.Sprintf("%s: %s %q", c.Health, c.Detail, said)
		}
		return "nothing"
	})
}
