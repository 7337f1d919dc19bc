package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/agent/inventory"
	"berth/agent/reporter"
	"berth/claims"
	"berth/claims/pci"
	"berth/driver"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/placement"
	"berth/placementclient"
	"berth/topology"
)

// machineTree is a /sys and /proc of a test's own: two cells of two CPUs and 1
// GiB, 64 pages of 2 MiB in each, and one card, whose files the test changes as
// the kernel would.
type machineTree struct {
	t    *testing.T
	root string
}

const card = "0000:3b:00.0"

func newMachineTree(t *testing.T) *machineTree {
	t.Helper()
	m := &machineTree{t: t, root: t.TempDir()}
	for cpu := range 4 {
		m.put(fmt.Sprintf("sys/devices/system/cpu/cpu%d/node%d/x", cpu, cpu/2), "a link on a real machine\n")
	}
	m.online(0, 1, 2, 3)
	for cell := range 2 {
		m.memory(cell, 1<<20)
		m.put(m.node(cell, "distance"), []string{"10 20\n", "20 10\n"}[cell])
	}
	m.put("proc/meminfo", "MemTotal: 2097152 kB\nMemFree: 1048576 kB\n")
	m.pool(64, 64)
	m.plug(card, 1, 8)
	return m
}

func (m *machineTree) put(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machineTree) remove(name string) {
	m.t.Helper()
	if err := os.RemoveAll(filepath.Join(m.root, name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machineTree) rename(from, to string) {
	m.t.Helper()
	if err := os.Rename(filepath.Join(m.root, from), filepath.Join(m.root, to)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machineTree) link(target, name string) {
	m.t.Helper()
	if err := os.Symlink(target, filepath.Join(m.root, name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machineTree) node(cell int, name string) string {
	return fmt.Sprintf("sys/devices/system/node/node%d/%s", cell, name)
}

// online leaves these CPUs online, of 0 to 3; a CPU that is switched off loses
// its topology.
func (m *machineTree) online(cpus ...int) {
	m.t.Helper()
	on, info := topology.NewCPUSet(cpus...), ""
	for cpu := range 4 {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		if !on.Contains(cpu) {
			m.remove(dir)
			continue
		}
		package0 := on.Intersection(topology.NewCPUSet(cpu&^1, cpu|1))
		for name, text := range map[string]string{
			"core_id": fmt.Sprint(cpu), "physical_package_id": fmt.Sprint(cpu / 2),
			"thread_siblings_list": fmt.Sprint(cpu), "core_siblings_list": package0.String(),
		} {
			m.put(dir+name, text+"\n")
		}
		info += fmt.Sprintf("processor\t: %d\n\n", cpu)
	}
	for cell := range 2 {
		m.put(m.node(cell, "cpulist"), on.Intersection(topology.NewCPUSet(2*cell, 2*cell+1)).String()+"\n")
	}
	m.put("proc/cpuinfo", info)
	m.put("sys/devices/system/cpu/online", on.String()+"\n")
}

func (m *machineTree) memory(cell, kib int) {
	m.put(m.node(cell, "meminfo"), fmt.Sprintf("Node %d MemTotal: %d kB\nNode %d MemFree: %d kB\n", cell, kib, cell, kib/2))
}

// pool sets the pages of 2 MiB of both cells.
func (m *machineTree) pool(first, second int) {
	set := func(dir string, n int) {
		m.put(dir+"/hugepages-2048kB/nr_hugepages", fmt.Sprintln(n))
		m.put(dir+"/hugepages-2048kB/free_hugepages", fmt.Sprintln(n))
	}
	set("sys/kernel/mm/hugepages", first+second)
	set(m.node(0, "hugepages"), first)
	set(m.node(1, "hugepages"), second)
}

func pciPath(address, name string) string { return "sys/bus/pci/devices/" + address + "/" + name }

// plug adds a card that can have some virtual functions, none for no SR-IOV.
func (m *machineTree) plug(address string, cell, vfs int) {
	for name, text := range map[string]string{"vendor": "0x8086", "device": "0x1563", "class": "0x020000", "numa_node": fmt.Sprint(cell)} {
		m.put(pciPath(address, name), text+"\n")
	}
	m.put(pciPath(address, "config"), "\x86\x80\x63\x15")
	if vfs > 0 {
		m.put(pciPath(address, "sriov_totalvfs"), fmt.Sprintln(vfs))
		m.put(pciPath(address, "sriov_numvfs"), "0\n")
	}
	m.listFunctions()
}

func (m *machineTree) unplug(address string) {
	m.remove(pciPath(address, ""))
	m.listFunctions()
}

// listFunctions writes the kernel's other list of what is plugged in.
func (m *machineTree) listFunctions() {
	m.t.Helper()
	there, err := filepath.Glob(filepath.Join(m.root, pciPath("*", "")))
	if err != nil {
		m.t.Fatal(err)
	}
	m.put("proc/bus/pci/devices", strings.Repeat("3b00\t80861563\t0\n", len(there)))
}

// vf is the address of the card's virtual function.
func vf(n int) string { return fmt.Sprintf("0000:3b:01.%x", n) }

// virtual makes so many virtual functions of the card.
func (m *machineTree) virtual(n int) {
	for i := range 8 {
		m.unplug(vf(i))
		m.remove(pciPath(card, fmt.Sprintf("virtfn%d", i)))
	}
	for i := range n {
		m.plug(vf(i), 1, 0)
		m.put(pciPath(vf(i), "device"), "0x1565\n")
		m.put(pciPath(vf(i), "config"), "\xff\xff\xff\xff") // as SR-IOV has it
		m.link("../"+card, pciPath(vf(i), "physfn"))
		m.link("../"+vf(i), pciPath(card, fmt.Sprintf("virtfn%d", i)))
	}
	m.put(pciPath(card, "sriov_numvfs"), fmt.Sprintln(n))
}

// hardwareBench is an agent whose hardware parts and reporter run on a made-up
// machine, with a Placement in memory, on the test's clock.
type hardwareBench struct {
	*machineTree
	*testing.T
	a         *Agent
	placement *placementclient.Client
	devices   chan driver.DeviceEvent // what libvirt tells
	log       *lockedBuffer
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// telling is a hypervisor that knows nothing but its host's devices.
type telling struct {
	absent
	events chan driver.DeviceEvent
}

// streamEnds is the name of the device with which the stream of events ends.
const streamEnds = "the stream ends"

func (telling) Health() error                             { return nil }
func (telling) Node(context.Context) (driver.Node, error) { return driver.Node{Hostname: "h"}, nil }

func (telling) HostDevices(context.Context) ([]driver.HostDevice, error) { return nil, nil }

func (d telling) DeviceEvents(ctx context.Context) (<-chan driver.DeviceEvent, error) {
	out := make(chan driver.DeviceEvent)
	go func() {
		defer close(out)
		for {
			select {
			case e := <-d.events:
				if e.Name == streamEnds {
					return
				}
				out <- e
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// onMadeUpMachine runs a test on a bench in a bubble of scripted time.
func onMadeUpMachine(t *testing.T, story func(b *hardwareBench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &hardwareBench{T: t, machineTree: newMachineTree(t), devices: make(chan driver.DeviceEvent), log: &lockedBuffer{}}
		c := settings(t, "http://127.0.0.1:8778")
		c.Agent.Mode = config.Observe // asks nobody at the start; the reporter below writes
		c.Host.Root, c.Host.ReservedMemoryMB = b.root, 0
		c.Host.DedicatedCPUs, c.Host.SharedCPUs = topology.NewCPUSet(1, 2, 3), topology.NewCPUSet(0)
		c.PCI.DeviceSpec = []pci.Spec{{VendorID: "8086"}}
		o := agentOptions(t, c)
		o.Logger = slog.New(slog.NewTextHandler(b.log, nil))
		o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return telling{events: b.devices} }
		b.a = &Agent{opt: o, log: o.Logger, rt: o.Runtime}
		b.a.conf.Store(&c)
		if err := b.a.open(t.Context()); err != nil {
			t.Fatal(err)
		}
		server, err := placement.New(placement.Options{Listen: "127.0.0.1:0", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if b.placement, err = placementclient.New(placementclient.Config{URL: c.Placement.URL, Token: "admin", Transport: served{server}}); err != nil {
			t.Fatal(err)
		}
		options := b.a.reporting(c, reporter.Remembered{})
		options.Placement, options.Interval, options.Observe = b.placement, time.Hour, false
		b.a.reporter = reporter.New(options)
		if err := b.a.reporter.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		for _, run := range []func(context.Context) error{b.a.hardware.run, b.a.hardware.runPools, b.a.hardware.runHeld, b.a.hardware.runDevices, b.a.reporter.Run} {
			running.Go(func() {
				if err := run(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		t.Cleanup(func() {
			cancel()
			running.Wait()
			if err := b.a.close(); err != nil {
				t.Error(err)
			}
			b.placement.Close()
			if t.Failed() {
				t.Log(b.log)
			}
		})
		time.Sleep(5 * time.Second) // everything has settled
		synctest.Wait()
		story(b)
	})
}

// event gives the agent a kernel's event.
func (b *hardwareBench) event(action, subsystem string, more ...string) {
	lines := append([]string{action + "@/devices/x", "ACTION=" + action, "SUBSYSTEM=" + subsystem}, more...)
	b.a.hardware.takeUevent([]byte(strings.Join(lines, "\x00") + "\x00"))
}

// within requires that something holds within two seconds from now and says when.
func (b *hardwareBench) within(what string, holds func() bool) {
	b.Helper()
	start := time.Now()
	for !holds() {
		if time.Since(start) > 2*time.Second {
			b.Fatalf("not within two seconds: %s\n%s", what, b.log)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
	b.Logf("%s: %s", what, time.Since(start))
}

// total is what Placement has of a class.
func (b *hardwareBench) total(class string) int64 {
	b.Helper()
	inv, err := b.placement.Inventories(b.Context(), b.a.uuid)
	if err != nil {
		b.Fatal(err)
	}
	return inv.Inventories[class].Total
}

// totals are what Placement has of everything, by provider and class.
func (b *hardwareBench) totals() map[string]int64 {
	b.Helper()
	list, err := b.placement.ProvidersInTree(b.Context(), b.a.uuid)
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]int64{}
	for _, p := range list {
		inv, err := b.placement.Inventories(b.Context(), p.UUID)
		if err != nil {
			b.Fatal(err)
		}
		for class, i := range inv.Inventories {
			out[p.Name+" "+class] = i.Total
		}
	}
	return out
}

// files are all files of the machine.
func (b *hardwareBench) files() []string {
	b.Helper()
	var out []string
	err := filepath.WalkDir(b.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			out = append(out, strings.TrimPrefix(path, b.root+"/"))
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// reserved is what Placement keeps back of a class of the card.
func (b *hardwareBench) reserved(class string) int64 {
	b.Helper()
	inv, err := b.placement.Inventories(b.Context(), inventory.ChildUUID(b.a.uuid, card))
	if err != nil {
		b.Fatal(err)
	}
	return inv.Inventories[class].Reserved
}

// free are the PCI functions that a claim could get.
func (b *hardwareBench) free() int {
	n := 0
	for _, p := range b.a.tracker.Machine().Pools {
		n += p.Count
	}
	return n
}

// pagesFree are the pages of 2 MiB that a claim could get of a cell.
func (b *hardwareBench) pagesFree(cell int) int64 {
	for _, p := range b.a.tracker.Machine().Cells[cell].Pages {
		if p.Size == topology.PageSize2M {
			return p.Free()
		}
	}
	return -1
}

const (
	tenant = "8ccd3f5e-4bd3-4b3a-8f3a-0b1f0d5f7c21"
	second = "8ccd3f5e-4bd3-4b3a-8f3a-0b1f0d5f7c22"
)

// pins asks for some CPUs to itself and memory in pages of 2 MiB.
func pins(cpus int, mb int64) *topology.GuestTopology {
	c := topology.GuestCell{MemoryMB: mb, PageSize: topology.PageRequest(topology.PageSize2M), CPUPolicy: topology.CPUPolicyDedicated}
	for v := range cpus {
		c.DedicatedVCPUs = append(c.DedicatedVCPUs, v)
	}
	return &topology.GuestTopology{Cells: []topology.GuestCell{c}}
}

// claim asks for a guest: pinned where a topology is given, with some devices of
// a product.
func (b *hardwareBench) claim(instance string, guest *topology.GuestTopology, product string, devices int) (claims.Claim, error) {
	r := claims.Request{
		Owner: claims.Owner{Instance: instance, Kind: claims.KindInstance}, Topology: guest,
		Resources: topology.Resources{VCPUs: 1, MemoryMB: 64}, Lease: time.Hour,
	}
	if guest != nil {
		r.Resources = topology.Resources{PCPUs: guest.Cells[0].DedicatedVCPUs.Len(), MemoryMB: guest.Cells[0].MemoryMB}
	}
	if devices > 0 {
		kind := map[string]topology.PCIType{"1563": topology.PCITypePF, "1565": topology.PCITypeVF}[product]
		r.PCI = []topology.PCIRequest{{ID: "d", Count: devices, Specs: []topology.PCISpec{{Vendor: "8086", Product: product, Type: kind}}, Affinity: topology.AffinityPreferred}}
	}
	return b.a.tracker.Claim(b.Context(), r)
}

func (b *hardwareBench) mustClaim(instance string, guest *topology.GuestTopology, product string, devices int) claims.Claim {
	b.Helper()
	c, err := b.claim(instance, guest, product, devices)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// named says that the health of claims has a reason of this code about something.
func (b *hardwareBench) named(code, about string) bool {
	for _, r := range b.a.health.claims().Reasons {
		if r.Code == code && strings.Contains(r.Message, about) {
			return true
		}
	}
	return false
}

// kept requires that the guest's claim is what it was.
func (b *hardwareBench) kept(c claims.Claim) {
	b.Helper()
	if list := b.a.tracker.ByInstance(c.Owner.Instance); len(list) != 1 || list[0].ID != c.ID || fmt.Sprint(list[0].Assignment) != fmt.Sprint(c.Assignment) {
		b.Errorf("the claim did not stay: %+v, was %+v", list, c)
	}
}
