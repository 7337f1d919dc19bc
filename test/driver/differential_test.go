//go:build native

package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"berth/driver/libvirt"
	"berth/driver/libvirt/native"
	"berth/driver/libvirt/rpc"
	"berth/test/guest"
	"berth/test/lab"
)

// both are the two bindings on one daemon.
type both struct{ rpc, native libvirt.Conn }

func dialBoth(t *testing.T, h *lab.Host, uri string) both {
	t.Helper()
	dial := func(d libvirt.Dialer, uri string) libvirt.Conn {
		c, err := d(within(t, 2*time.Minute), libvirt.Target{Socket: h.LibvirtSocket(), URI: uri})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	through := uri
	if name, path, ok := strings.Cut(uri, ":///"); ok && name == "test" {
		// Without a socket in it, the C library would run the driver itself.
		through = "test+unix:///" + path + "?socket=" + h.LibvirtSocket()
	}
	return both{dial(rpc.Dial, uri), dial(native.Dial, through)}
}

// unknown is what libvirt adds to "Domain not found". It differs with the method,
// and only rpc calls one about a domain without looking it up before.
var unknown = regexp.MustCompile(`: no domain with matching uuid '[^']*'( \([^)]*\))?`)

// said is an error as the driver above sees it.
func said(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*libvirt.Error](err)
	if !ok {
		t.Fatalf("%v is no answer of libvirt's", err)
	}
	return fmt.Sprintf("%d: %s", e.Code, unknown.ReplaceAllString(e.Message, ""))
}

// same asks both and compares answers and refusals.
func (b both) same(t *testing.T, what string, ask func(libvirt.Conn) (any, error)) {
	t.Helper()
	one, oerr := ask(b.rpc)
	two, terr := ask(b.native)
	if diff := cmp.Diff(one, two, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-rpc +native):\n%s", what, diff)
	}
	const noSupport, noDomain = "3: ", "42: "
	if strings.HasPrefix(said(t, oerr), noSupport) && strings.HasPrefix(said(t, terr), noDomain) {
		return // the hypervisor has no such method, and the domain is unknown: native looks for that first
	}
	if diff := cmp.Diff(said(t, oerr), said(t, terr)); diff != "" {
		t.Errorf("%s refused (-rpc +native):\n%s", what, diff)
	}
	t.Logf("%s: %.60q %s", what, fmt.Sprint(one), said(t, oerr))
}

// host asks everything about the daemon itself.
func (b both) host(t *testing.T) {
	b.same(t, "Type", func(c libvirt.Conn) (any, error) { return c.Type() })
	b.same(t, "Version", func(c libvirt.Conn) (any, error) { return c.Version() })
	b.same(t, "LibVersion", func(c libvirt.Conn) (any, error) { return c.LibVersion() })
	b.same(t, "Hostname", func(c libvirt.Conn) (any, error) { return c.Hostname() })
	b.same(t, "Capabilities", func(c libvirt.Conn) (any, error) { return c.Capabilities() })
	for _, with := range [][4]string{{}, {"", "x86_64", "q35", "qemu"}, {"", "aarch64"}, {"/usr/bin/qemu-system-x86_64"}, {"/none"}, {"", "pdp11"}, {"", "", "vax"}} {
		b.same(t, fmt.Sprint("DomainCapabilities ", with), func(c libvirt.Conn) (any, error) {
			return c.DomainCapabilities(with[0], with[1], with[2], with[3], 0)
		})
	}
	cpu := func(model string) string {
		return "<cpu mode='custom' match='exact'><model fallback='forbid'>" + model + "</model></cpu>"
	}
	const failIncompatible, expandFeatures = 1, 1
	for _, model := range []string{"qemu64", "Skylake-Server", "none"} {
		c := libvirt.CPU{Arch: "x86_64", Machine: "q35", VirtType: "qemu", XML: cpu(model)}
		b.same(t, "CompareCPU "+model, func(l libvirt.Conn) (any, error) { return nil, l.CompareCPU(c, failIncompatible) })
		b.same(t, "BaselineHypervisorCPU "+model, func(l libvirt.Conn) (any, error) {
			return l.BaselineHypervisorCPU(c, []string{cpu(model), cpu("qemu64")}, expandFeatures)
		})
	}
	b.same(t, "BaselineHypervisorCPU of none", func(l libvirt.Conn) (any, error) { return l.BaselineHypervisorCPU(libvirt.CPU{}, nil, 0) })
	var devices []string
	b.same(t, "Devices", func(c libvirt.Conn) (any, error) {
		names, err := c.Devices()
		slices.Sort(names) // libvirt lists them from a hash table
		devices = names
		return names, err
	})
	for _, name := range append(devices, "none") {
		b.same(t, "DeviceXML "+name, func(c libvirt.Conn) (any, error) { return c.DeviceXML(name) })
	}
}

// domains asks everything that reads of the domains named, and what is refused.
func (b both) domains(t *testing.T, ids ...string) {
	for _, flags := range []uint32{0, 1, 2, 1 << 2, 1 << 10, 1 << 31} {
		b.same(t, fmt.Sprintf("List %#x", flags), func(c libvirt.Conn) (any, error) {
			refs, err := c.List(flags)
			slices.SortFunc(refs, func(a, b libvirt.Ref) int { return strings.Compare(a.UUID, b.UUID) })
			return refs, err
		})
	}
	for _, group := range []uint32{1, 2, 4, 8, 16, 32, 63, 1 << 30} {
		b.same(t, fmt.Sprintf("Stats %#x", group), func(c libvirt.Conn) (any, error) {
			all, err := c.Stats(group, 0)
			slices.SortFunc(all, func(a, b libvirt.Stats) int { return strings.Compare(a.UUID, b.UUID) })
			for _, s := range all {
				for name, v := range s.Values {
					if moving(name) {
						s.Values[name] = fmt.Sprintf("a %T", v)
					}
				}
			}
			return all, err
		})
	}
	b.same(t, "Stats with a flag that is none", func(c libvirt.Conn) (any, error) { return c.Stats(1, 1<<27) })
	b.same(t, "LookupName of none", func(c libvirt.Conn) (any, error) { return c.LookupName("none") })
	for _, id := range append(ids, "11111111-2222-4333-8444-555555555555", "no uuid") {
		ask := func(what string, f func(libvirt.Conn) (any, error)) { b.same(t, what+" "+id, f) }
		ask("LookupUUID", func(c libvirt.Conn) (any, error) { return c.LookupUUID(id) })
		if r, err := b.rpc.LookupUUID(id); err == nil {
			ask("LookupName", func(c libvirt.Conn) (any, error) { return c.LookupName(r.Name) })
		}
		ask("State", func(c libvirt.Conn) (any, error) { return c.State(id) })
		ask("Info", func(c libvirt.Conn) (any, error) { return c.Info(id) })
		ask("IsPersistent", func(c libvirt.Conn) (any, error) { return c.IsPersistent(id) })
		ask("Autostart", func(c libvirt.Conn) (any, error) { return c.Autostart(id) })
		xmlFlags := []uint32{0, 1, 2, 3, 8, 9} // secure, inactive, migratable
		if slices.Contains(ids, id) {
			// rpc does not look a domain up before, and is told of the flags first.
			xmlFlags = append(xmlFlags, 1<<30)
		}
		for _, flags := range xmlFlags {
			ask(fmt.Sprintf("XML %#x", flags), func(c libvirt.Conn) (any, error) { return c.XML(id, flags) })
		}
		for _, flags := range []uint32{0, 1} { // completed
			ask(fmt.Sprintf("JobStats %#x", flags), func(c libvirt.Conn) (any, error) {
				kind, params, err := c.JobStats(id, flags)
				return []any{kind, len(params), params}, err
			})
		}
		for _, disk := range []string{"vda", "vdq"} {
			ask("BlockJob "+disk, func(c libvirt.Conn) (any, error) {
				j, found, err := c.BlockJob(id, disk)
				return []any{j, found}, err
			})
		}
		ask("MaxDowntime", func(c libvirt.Conn) (any, error) { return c.MaxDowntime(id) })
		ask("Monitor", func(c libvirt.Conn) (any, error) {
			answer, err := c.Monitor(id, `{"execute":"query-version"}`)
			return serial.ReplaceAllString(answer, "libvirt-N"), err
		})
		ask("Agent", func(c libvirt.Conn) (any, error) { return c.Agent(id, `{"execute":"guest-ping"}`, 1) })
	}
}

// serial is libvirt's number of a monitor command, in the answer too.
var serial = regexp.MustCompile(`libvirt-\d+`)

// moving are counters that go on although the guest stands still.
func moving(name string) bool {
	return strings.HasPrefix(name, "cpu.") || strings.HasPrefix(name, "vcpu.0.") || name == "balloon.rss" || strings.HasPrefix(name, "balloon.last")
}

// refusals orders what libvirt refuses and so changes nothing.
func (b both) refusals(t *testing.T, running, stopped string) {
	const none = "11111111-2222-4333-8444-555555555555"
	b.same(t, "Define", func(c libvirt.Conn) (any, error) { return nil, c.Define("<domain/>") })
	b.same(t, "Define no XML", func(c libvirt.Conn) (any, error) { return nil, c.Define("<domain") })
	for _, id := range []string{running, stopped, none} {
		ask := func(what string, f func(libvirt.Conn, string) error) {
			b.same(t, what+" "+id, func(c libvirt.Conn) (any, error) { return nil, f(c, id) })
		}
		if id != none {
			ask("Undefine", func(c libvirt.Conn, id string) error { return c.Undefine(id, 1<<30) })
			ask("Create", func(c libvirt.Conn, id string) error { return c.Create(id, 1<<30) })
		}
		ask("AbortJob", func(c libvirt.Conn, id string) error { return c.AbortJob(id, 0) })
		ask("AbortJob post-copy", func(c libvirt.Conn, id string) error { return c.AbortJob(id, 1) })
		ask("StartPostCopy", libvirt.Conn.StartPostCopy)
		ask("SetMaxDowntime", func(c libvirt.Conn, id string) error { return c.SetMaxDowntime(id, 0) })
		ask("SetMaxSpeed", func(c libvirt.Conn, id string) error { return c.SetMaxSpeed(id, 1<<63, 0) })
		ask("SetMaxSpeed post-copy", func(c libvirt.Conn, id string) error { return c.SetMaxSpeed(id, 1<<63, 1) })
		ask("Migrate", func(c libvirt.Conn, id string) error {
			return c.Migrate(id, "qemu+tcp://127.0.0.1:1/system", []libvirt.Param{{Name: "bandwidth", Value: uint64(1)}}, 1|2)
		})
		if id == running {
			continue
		}
		ask("Suspend", libvirt.Conn.Suspend)
		ask("Resume", libvirt.Conn.Resume)
		ask("Shutdown", libvirt.Conn.Shutdown)
		ask("Destroy", libvirt.Conn.Destroy)
	}
	b.same(t, "Create of a running one", func(c libvirt.Conn) (any, error) { return nil, c.Create(running, 0) })
	b.same(t, "SetAutostart of none", func(c libvirt.Conn) (any, error) { return nil, c.SetAutostart(none, true) })
}

func TestNative_AnswersAsRPC(t *testing.T) {
	h := lab.Start(t, lab.Options{Names: []string{"host-a"}}).Hosts[0]
	g, err := guest.Build(within(t, 2*time.Minute), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("QEMU", func(t *testing.T) {
		image := "/var/lib/libvirt/images/same.qcow2"
		if err := os.MkdirAll(filepath.Dir(h.Path(image)), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Exec(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", image, "8M"); err != nil {
			t.Fatal(err)
		}
		b := dialBoth(t, h, "qemu:///system")
		// The sequence of both, whose calls take turns.
		events := b.record(t)
		d := open(t, options(t, h))
		running := defined(t, d, guest.Options{Guest: g, MemoryMiB: 96, Disks: []guest.Disk{{Path: image}},
			Metadata: "<b:x xmlns:b='urn:berth'>ä &lt; ß</b:x>"})
		stopped := defined(t, d, guest.Options{Guest: g, MemoryMiB: 96, VCPUs: 2})
		if err := d.Start(within(t, 2*time.Minute), running, false); err != nil {
			t.Fatal(err)
		}
		if err := d.Suspend(within(t, 2*time.Minute), running); err != nil {
			t.Fatal(err)
		}
		b.host(t)
		b.domains(t, running, stopped)
		b.refusals(t, running, stopped)
		for _, args := range [][]string{
			{"vcpupin", running, "0", "0", "--live"}, {"desc", running, "--live", "--config", "--new-desc", "x"},
			{"attach-disk", running, image + ".none", "vdx", "--live"}, // refused: there is no such file
			{"vcpupin", stopped, "0", "1", "--config"},
		} {
			if out, err := h.Virsh(t.Context(), args...); err != nil && args[0] != "attach-disk" {
				t.Fatalf("virsh %s: %v: %s", args, err, out)
			}
		}
		if _, err := h.Exec(t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", image+".2", "8M"); err != nil {
			t.Fatal(err)
		}
		for _, args := range [][]string{{"attach-disk", running, image + ".2", "vdx", "--driver", "qemu", "--subdriver", "qcow2", "--live"}, {"resume", running}, {"destroy", running}, {"undefine", running}} {
			if out, err := h.Virsh(t.Context(), args...); err != nil {
				t.Fatalf("virsh %s: %v: %s", args, err, out)
			}
		}
		got := events(running, func(e libvirt.Event) bool { return e.ID == libvirt.LifecycleEvent && e.Event == 1 }) // undefined
		for _, id := range []libvirt.EventID{libvirt.LifecycleEvent, libvirt.TunableEvent, libvirt.MetadataChangeEvent, libvirt.DeviceAddedEvent} {
			if !slices.ContainsFunc(got, func(e libvirt.Event) bool { return e.ID == id }) {
				t.Errorf("there is no event %d among %+v", id, got)
			}
		}
	})
	t.Run("test driver", func(t *testing.T) {
		b := dialBoth(t, h, "test:///default")
		events := b.record(t)
		refs, err := b.rpc.List(0)
		if err != nil || len(refs) != 1 {
			t.Fatalf("domains %v, %v, want libvirt's one", refs, err)
		}
		const stopped = "22222222-2222-4333-8444-555555555555"
		if err := b.native.Define("<domain type='test'><name>stopped</name><uuid>" + stopped + "</uuid><memory>65536</memory><os><type>hvm</type></os></domain>"); err != nil {
			t.Fatal(err)
		}
		b.host(t)
		b.domains(t, refs[0].UUID, stopped)
		for i, c := range []libvirt.Conn{b.rpc, b.native} {
			for _, order := range []error{c.Create(stopped, 0), c.Suspend(stopped), c.Resume(stopped), c.Destroy(stopped)} {
				if order != nil {
					t.Errorf("binding %d: %v", i, order)
				}
			}
		}
		if err := b.rpc.Undefine(stopped, 0); err != nil {
			t.Fatal(err)
		}
		events(stopped, func(e libvirt.Event) bool { return e.ID == libvirt.LifecycleEvent && e.Event == 1 })
	})
	t.Run("connections", func(t *testing.T) { leaveNothing(t, h) })
	t.Run("devices of the test driver", func(t *testing.T) { dialBoth(t, h, "test:///default").sameDeviceEvents(t, h) })
}

// leaveNothing opens, uses and ends connections. One of the C library's stays open,
// with its socket, as long as anything of it was not freed.
func leaveNothing(t *testing.T, h *lab.Host) {
	files := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	for name, dial := range map[string]libvirt.Dialer{"rpc": rpc.Dial, "native": native.Dial} {
		before := files()
		for range 50 {
			c, err := dial(within(t, 2*time.Minute), libvirt.Target{Socket: h.LibvirtSocket(), URI: "qemu:///system"})
			if err != nil {
				t.Fatal(err)
			}
			_, listed := c.List(0)
			_, counted := c.Stats(1, 0)
			_, found := c.Devices()
			if err := errors.Join(listed, counted, found, c.Subscribe(func(libvirt.Event) {}), c.SubscribeDevices(func(libvirt.DeviceEvent) {})); err != nil {
				t.Error(err)
			}
			if _, err := c.DeviceXML("computer"); err != nil {
				t.Error(err)
			}
			c.Close()
		}
		ctx := within(t, 2*time.Minute)
		for files() > before {
			select {
			case <-time.After(10 * time.Millisecond): // sockets are closed on other threads
			case <-ctx.Done():
				t.Fatalf("%s: %d descriptors, were %d before 50 connections", name, files(), before)
			}
		}
	}
}

// record subscribes both; what it gives waits for the last event of a domain and
// compares what both saw of it, in order.
func (b both) record(t *testing.T) func(id string, last func(libvirt.Event) bool) []libvirt.Event {
	t.Helper()
	var mu sync.Mutex // guards seen
	var seen [2][]libvirt.Event
	news := make(chan struct{}, 1)
	for i, c := range []libvirt.Conn{b.rpc, b.native} {
		if err := c.Subscribe(func(e libvirt.Event) {
			mu.Lock()
			seen[i] = append(seen[i], e)
			mu.Unlock()
			select {
			case news <- struct{}{}:
			default:
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	return func(id string, last func(libvirt.Event) bool) []libvirt.Event {
		t.Helper()
		ctx := within(t, 2*time.Minute)
		of := func(i int) (out []libvirt.Event, over bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range seen[i] {
				if e.UUID == id {
					out = append(out, e)
				}
			}
			return out, slices.ContainsFunc(out, last)
		}
		for {
			one, done := of(0)
			two, also := of(1)
			if done && also || ctx.Err() != nil {
				if diff := cmp.Diff(one, two); diff != "" || !done {
					t.Errorf("events (-rpc +native), over %v, %v:\n%s", done, also, diff)
				}
				t.Logf("events %+v", one)
				return one
			}
			select {
			case <-news:
			case <-ctx.Done():
			}
		}
	}
}

// sameDeviceEvents makes and ends a device of the test driver's.
func (b both) sameDeviceEvents(t *testing.T, h *lab.Host) {
	type event struct {
		binding int
		libvirt.DeviceEvent
	}
	seen := make(chan event, 64)
	for i, c := range []libvirt.Conn{b.rpc, b.native} {
		if err := c.SubscribeDevices(func(e libvirt.DeviceEvent) { seen <- event{i, e} }); err != nil {
			t.Fatal(err)
		}
	}
	name := makeDevice(t, h)
	b.same(t, "DeviceXML of the new one", func(c libvirt.Conn) (any, error) { return c.DeviceXML(name) })
	virshTest(t, h, "nodedev-destroy", name)
	var got [2][]libvirt.DeviceEvent
	ctx := within(t, 2*time.Minute)
	for len(got[0]) < 2 || len(got[1]) < 2 {
		select {
		case e := <-seen:
			got[e.binding] = append(got[e.binding], e.DeviceEvent)
		case <-ctx.Done():
			t.Fatalf("device events %+v", got)
		}
	}
	want := []libvirt.DeviceEvent{{Name: name, Event: 0}, {Name: name, Event: 1}} // created, deleted
	for i := range got {
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("binding %d, events (-want +got):\n%s", i, diff)
		}
	}
}

// makeDevice makes a virtual host bus adapter, the one device that can be made on
// libvirt's test driver, in the daemon of a host.
func makeDevice(t *testing.T, h *lab.Host) (name string) {
	t.Helper()
	const xml = `<device><parent>scsi_host1</parent><capability type='scsi_host'><capability type='fc_host'>
<wwnn>2000000012341234</wwnn><wwpn>1000000012341234</wwpn></capability></capability></device>`
	path := "/var/log/libvirt/vhba.xml"
	if err := os.WriteFile(h.Path(path), []byte(xml), 0o644); err != nil {
		t.Fatal(err)
	}
	out := virshTest(t, h, "nodedev-create", path)
	words := strings.Fields(out) // Node device scsi_host12 created from …
	if len(words) < 3 {
		t.Fatalf("virsh nodedev-create: %s", out)
	}
	return words[2]
}

func virshTest(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := h.Exec(ctx, append([]string{"virsh", "-c", "test+unix:///default?socket=/run/libvirt/libvirt-sock"}, args...)...)
	if err != nil {
		t.Fatalf("virsh %s: %v: %s", args, err, out)
	}
	return out
}
