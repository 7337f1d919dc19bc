package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"berth/agent/api"
	"berth/claims"
	"berth/placementclient"
	"berth/test/fleet"
	"berth/test/guest"
	"berth/test/lab"
)

// three is how the document of such a guest says how many vCPUs it may have.
const three = "<vcpu placement='static'>3<"

// byVirsh writes the document of a guest that virsh alone knows: one vCPU of three,
// 96 MiB, a SCSI controller, no disk.
func (w *world) byVirsh(h *lab.Host, name string, edit ...string) string {
	w.Helper()
	o := guest.Options{
		Name: name, MemoryMiB: 96, VCPUs: 3, Dirty: 4, Disks: []guest.Disk{},
		Devices: "    <controller type='scsi' model='virtio-scsi'/>\n",
	}
	w.xml(h, &o)
	text := strings.NewReplacer(append(edit,
		three, "<vcpu placement='static' current='1'>3<", "<on_reboot>destroy<", "<on_reboot>restart<")...).Replace(guest.DomainXML(o))
	path := "/var/lib/libvirt/" + name + ".xml"
	if err := os.WriteFile(h.Path(path), []byte(text), 0o644); err != nil {
		w.Fatal(err)
	}
	return path
}

// held says what a guest holds on a host, in a line; the allocation is told only
// where it is not what is claimed.
func (w *world) held(h *lab.Host, name string) string {
	w.Helper()
	r := w.run(h, "instance", "show", name, "--json")
	if r.Code == 4 {
		return "unknown"
	}
	var d api.InstanceDetail
	if err := json.Unmarshal([]byte(r.Stdout), &d); r.Code != 0 || err != nil {
		return fmt.Sprintf("exit code %d: %v %s", r.Code, err, r.Stderr)
	}
	if !d.Managed {
		return "unmanaged"
	}
	c := d.Claim
	if c == nil || c.State != claims.Bound || d.Token.State != claims.TokenHere {
		return r.Stdout
	}
	out := fmt.Sprintf("%d+%d cpus, %d MiB, %d GiB", c.Resources.VCPUs, c.Resources.PCPUs, c.Resources.MemoryMB, c.Resources.DiskGB)
	for _, cell := range c.Assignment.Cells {
		out += ", pinned to " + cell.Exclusive().String()
	}
	if c.Forced {
		out += ", forced"
	}
	if c.ByHand {
		out += ", by hand"
	}
	want := placementclient.Resources{}
	for class, n := range map[string]int64{"VCPU": int64(c.Resources.VCPUs), "PCPU": int64(c.Resources.PCPUs), "MEMORY_MB": c.Resources.MemoryMB, "DISK_GB": c.Resources.DiskGB} {
		if n > 0 {
			want[class] = n
		}
	}
	if c.Forced {
		return out // Placement gives no more than there is
	}
	if len(d.Allocations) != 1 || d.Allocations[0].Provider != h.Name || fmt.Sprint(d.Allocations[0].Resources) != fmt.Sprint(want) {
		out += fmt.Sprintf("; allocations %+v %s", d.Allocations, d.AllocationsError)
	}
	return out
}

func (w *world) holdsSoon(h *lab.Host, name, want string) {
	w.Helper()
	w.eventually(name+" holds "+want, func() string {
		if got := w.held(h, name); got != want {
			return "it holds " + got
		}
		return ""
	})
}

// saysSoon waits until a part of the status names a reason with these words, or,
// with health ok, no longer.
func (w *world) saysSoon(h *lab.Host, part, words string, says bool) {
	w.Helper()
	w.eventually(fmt.Sprintf("%s says %q: %t", part, words, says), func() string {
		for _, c := range ask[api.Status](w, h, "status").Conditions {
			if c.Name != part {
				continue
			}
			text := c.Detail
			for _, r := range c.Reasons {
				text += "\n" + r.Message
			}
			if strings.Contains(text, words) == says {
				return ""
			}
			return text
		}
		return "no such part"
	})
}

func (w *world) owners(h *lab.Host) []string {
	files, _ := filepath.Glob(h.Path("/run/berth/guard/owners/*"))
	var out []string
	for _, f := range files {
		out = append(out, filepath.Base(f))
	}
	return out
}

// TestVirsh_ClaimFollowsTheDomain does to guests what people do with virsh, where no
// hook asks; each part begins where the one before it ended. Guests stay paused
// where their own doing is not asked for.
func TestVirsh_ClaimFollowsTheDomain(t *testing.T) {
	const config = "[placement]\ncpu_allocation_ratio = 4.0\n"
	w := ownWith(t, fleet.Options{Listen: true, Config: map[string]string{
		"host-a": config + "[host]\ndedicated_cpus = \"0\"\nshared_cpus = \"1\"\n", "host-b": config,
	}})
	t.Cleanup(w.consoles)
	a := w.a
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
	const plain = "1+0 cpus, 96 MiB, 0 GiB"
	pinned := []string{"create", "one", "--vcpus", "1", "--memory", "96", "--extra-spec", "hw:cpu_policy=dedicated"}

	part("an unknown guest that is started is adopted", func(w *world) {
		w.virsh(a, "define", w.byVirsh(a, "web"))
		w.require("defined only", w.held(a, "web"), "unmanaged")
		w.virsh(a, "start", "web", "--paused")
		w.holdsSoon(a, "web", plain)
		w.virsh(a, "create", w.byVirsh(a, "job"), "--paused")
		w.holdsSoon(a, "job", plain)
		w.virsh(a, "define", w.byVirsh(a, "idle"))
	})
	part("saved and restored it keeps its claim, a transient one gets a new one", func(w *world) {
		before := w.claimOf(a, "web").ID
		w.virsh(a, "save", "web", "/var/lib/libvirt/web.save")
		w.virsh(a, "save", "job", "/var/lib/libvirt/job.save")
		w.holdsSoon(a, "job", "unknown")
		w.virsh(a, "restore", "/var/lib/libvirt/web.save", "--paused")
		// Restored paused it would be "paused (migrating)", as one that arrives is.
		w.virsh(a, "restore", "/var/lib/libvirt/job.save", "--running")
		w.virsh(a, "suspend", "job")
		w.holdsSoon(a, "job", plain)
		w.require("the claim of web", w.claimOf(a, "web").ID, before)
	})
	part("shutdown, crash and reset keep it", func(w *world) {
		before := w.claimOf(a, "web").ID
		w.virsh(a, "reset", "web")
		pid, err := a.QEMUPID("web")
		if err != nil {
			w.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			w.Fatal(err)
		}
		w.eventually("libvirt sees the crash", func() string {
			if s := w.domain(a, "web"); !strings.HasPrefix(s, "shut off") {
				return s
			}
			return ""
		})
		w.virsh(a, "start", "web", "--paused")
		w.virsh(a, "destroy", "web")
		w.holdsSoon(a, "web", plain)
		w.require("the claim", w.claimOf(a, "web").ID, before)
	})
	part("of one that is off it follows the next start", func(w *world) {
		w.virsh(a, "setmaxmem", "web", "128M", "--config")
		w.virsh(a, "setmem", "web", "128M", "--config")
		w.virsh(a, "start", "web", "--paused")
		w.holdsSoon(a, "web", "1+0 cpus, 128 MiB, 0 GiB, by hand")
	})
	part("a disk and a vCPU plugged in", func(w *world) {
		// Here, where two CPUs are shared.
		b := w.b
		if err := os.MkdirAll(b.Path(images), 0o755); err != nil {
			w.Fatal(err)
		}
		if _, err := b.Exec(w.ctx, "qemu-img", "create", "-q", "-f", "raw", images+"/more.raw", "2G"); err != nil {
			w.Fatal(err)
		}
		w.virsh(b, "define", w.byVirsh(b, "plug"))
		w.virsh(b, "start", "plug", "--paused")
		w.holdsSoon(b, "plug", plain)
		w.virsh(b, "attach-disk", "plug", images+"/more.raw", "sda", "--targetbus", "scsi", "--driver", "qemu", "--subdriver", "raw", "--live")
		w.holdsSoon(b, "plug", "1+0 cpus, 96 MiB, 2 GiB, by hand")
		w.virsh(b, "setvcpus", "plug", "2", "--live") // libvirt tells nobody
		w.holdsSoon(b, "plug", "2+0 cpus, 96 MiB, 2 GiB, by hand")
		w.virsh(b, "detach-disk", "plug", "sda", "--live")
		w.holdsSoon(b, "plug", "2+0 cpus, 96 MiB, 0 GiB, by hand")
		w.virsh(b, "destroy", "plug")
		w.holdsSoon(b, "plug", "1+0 cpus, 96 MiB, 0 GiB, by hand") // what the next start takes
		w.virsh(b, "undefine", "plug")
	})
	part("pinned by hand it has the CPU to itself", func(w *world) {
		w.virsh(a, "vcpupin", "web", "0", "0", "--live")
		w.holdsSoon(a, "web", "0+1 cpus, 128 MiB, 0 GiB, pinned to 0, by hand")
		w.refused(3, a, append([]string{"instance"}, append(pinned, "--xml", w.byVirsh(a, "one", three, "<vcpu>1<"))...)...)
		w.holdsSoon(w.b, "plug", "unknown")
	})
	part("onto another's CPU it is forced and named, and relaxed", func(w *world) {
		w.virsh(a, "vcpupin", "web", "0", "0-1", "--live")
		w.holdsSoon(a, "web", "1+0 cpus, 128 MiB, 0 GiB, by hand")
		w.berth(a, append([]string{"instance"}, append(pinned, "--xml", w.byVirsh(a, "one", three, "<vcpu>1<"))...)...)
		w.holdsSoon(a, "one", "0+1 cpus, 96 MiB, 0 GiB, pinned to 0")
		w.virsh(a, "vcpupin", "web", "0", "0", "--live")
		w.holdsSoon(a, "web", "0+1 cpus, 128 MiB, 0 GiB, pinned to 0, forced, by hand")
		w.saysSoon(a, "claims", "cpu 0 of cell 0: held by ", true)
		w.saysSoon(a, "claims", "guest web was changed by hand though it does not fit", true)
		w.saysSoon(a, "placement", "make the allocation of guest web follow its claim", true)
		w.virsh(a, "vcpupin", "web", "0", "1", "--live") // a shared CPU
		w.holdsSoon(a, "web", "1+0 cpus, 128 MiB, 0 GiB, by hand")
		w.saysSoon(a, "claims", "guest web", false)
		w.saysSoon(a, "placement", "guest web", false)
		w.berth(a, "instance", "delete", "one")
	})
	part("one that does not fit runs in quarantine, and is counted", func(w *world) {
		free := ask[api.Status](w, a, "status").Usage.Free
		w.berth(a, append([]string{"instance"}, append(pinned, "--xml", w.byVirsh(a, "one", three, "<vcpu>1<"))...)...)
		w.virsh(a, "create", w.byVirsh(a, "thief", "<os>", "<cputune><vcpupin vcpu='0' cpuset='0'/></cputune><os>"), "--paused")
		w.saysSoon(a, "guard", "guest thief runs here and has no claim", true)
		w.saysSoon(a, "guard", "another guest has CPU 0 to itself", true)
		w.require("thief", w.held(a, "thief")+", "+w.domain(a, "thief"), "unmanaged, paused (user)")
		w.require("free memory", ask[api.Status](w, a, "status").Usage.Free.MemoryMB, free.MemoryMB-2*96)
		// Its CPU is not free, whoever claims it.
		w.berth(a, "instance", "delete", "one")
		w.holdsSoon(a, "thief", "0+1 cpus, 96 MiB, 0 GiB, pinned to 0") // it fits now
		w.saysSoon(a, "guard", "thief", false)
		w.virsh(a, "destroy", "thief")
		w.holdsSoon(a, "thief", "unknown")
	})
	part("renamed, or defined anew, it keeps its claim", func(w *world) {
		w.virsh(a, "destroy", "web")
		before := w.claimOf(a, "web").ID
		w.virsh(a, "domrename", "web", "shop")
		w.eventually("the record has the new name", func() string {
			for _, i := range ask[api.ClaimList](w, a, "claim", "list").Claims {
				if i.Name == "shop" {
					return ""
				}
			}
			return "not yet"
		})
		text := w.virsh(a, "dumpxml", "--inactive", "shop")
		if err := os.WriteFile(a.Path("/var/lib/libvirt/again.xml"), []byte(strings.Replace(text, "<name>shop<", "<name>store<", 1)), 0o644); err != nil {
			w.Fatal(err)
		}
		if out, err := a.Virsh(w.ctx, "define", "/var/lib/libvirt/again.xml"); err == nil {
			w.Errorf("libvirt defined a second domain of the same uuid: %s", out)
		}
		w.virsh(a, "undefine", "shop")
		w.virsh(a, "define", "/var/lib/libvirt/again.xml")
		w.eventually("the record has the new name", func() string {
			if d := w.claimNamed(a, "store"); d.ID != before {
				return "claim " + strconv.Quote(d.ID)
			}
			return ""
		})
	})
	part("undefined while it runs it is kept until it ends", func(w *world) {
		w.virsh(a, "start", "store", "--paused")
		w.virsh(a, "undefine", "store")
		uuid := w.virsh(a, "domuuid", "store")
		// While that is looked at: what happens with no agent to see it.
		w.virsh(a, "undefine", "idle")
		w.virsh(a, "define", w.byVirsh(a, "late", "<memballoon model='none'/>", "<memballoon model='virtio'/>"))
		w.virsh(a, "define", w.byVirsh(a, "gone"))
		w.virsh(a, "start", "gone", "--paused")
		w.holdsSoon(a, "gone", plain)
		if !slices.Contains(w.owners(a), uuid) {
			w.Errorf("no owner file of %s: %v", uuid, w.owners(a))
		}
		if err := w.Agent("host-a").Stop(w.ctx); err != nil {
			w.Fatal(err)
		}
		w.virsh(a, "destroy", "gone")
		w.virsh(a, "undefine", "gone")
		w.virsh(a, "start", "late", "--paused")
		w.virsh(a, "vcpupin", "job", "0", "0", "--live")
		if err := w.StartAgent(w.ctx, "host-a"); err != nil {
			w.Fatal(err)
		}
		if err := w.WaitReady(w.ctx, "host-a"); err != nil {
			w.Fatal(err)
		}
		w.holdsSoon(a, "gone", "unknown")
		w.holdsSoon(a, "late", plain)
		w.holdsSoon(a, "job", "0+1 cpus, 96 MiB, 0 GiB, pinned to 0, by hand")
		w.require("kept", w.claimNamed(a, "store").State, "bound")
		w.virsh(a, "destroy", "store")
		w.holdsSoon(a, "store", "unknown")
		if slices.Contains(w.owners(a), uuid) {
			w.Error("its owner file is still there")
		}
	})
	part("a balloon gives memory back, and takes it", func(w *world) {
		w.virsh(a, "destroy", "late")
		w.virsh(a, "start", "late")
		w.beats(a, "late", 3)
		w.virsh(a, "setmem", "late", "80M", "--live")
		w.eventually("its claim is smaller", func() string { // the guest gives what it can
			if mb := w.claimNamed(a, "late").Resources.MemoryMB; mb < 80 || mb > 90 {
				return fmt.Sprint(mb, " MiB")
			}
			return ""
		})
		w.virsh(a, "setmem", "late", "96M", "--live")
		w.holdsSoon(a, "late", plain+", by hand")
	})
	part("migrated away by virsh its claim goes with its domain", func(w *world) {
		w.virsh(a, "destroy", "job")
		w.holdsSoon(a, "job", "unknown")
		w.virsh(a, "migrate", "--live", "--p2p", "--persistent", "--undefinesource", "late", uri(w.b))
		w.ownedBy("late", w.b)
		w.holdsSoon(w.b, "late", plain)
		w.holdsSoon(a, "late", "unknown")
		w.alive("late", a, w.b)
	})
	w.remove("late") // the only one that is left
	if err := os.Remove(w.b.Path(images + "/more.raw")); err != nil {
		t.Error(err)
	}
	w.requireEmpty()
}

// claimNamed is the claim of a guest by the name that its record has.
func (w *world) claimNamed(h *lab.Host, name string) api.Claim {
	w.Helper()
	for _, c := range ask[api.ClaimList](w, h, "claim", "list").Claims {
		if c.Name == name {
			return c
		}
	}
	return api.Claim{}
}
