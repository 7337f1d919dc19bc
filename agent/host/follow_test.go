package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/host"
	"berth/claims"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

// followed runs a host's Follow for as long as the test, or until stop.
func (l *lab) followed(on string) (stop func()) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.t.Context()))
	done := make(chan error, 1)
	n := l.hosts[on].Host
	l.rt.Go("test follows", func() { done <- n.Follow(ctx) })
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			l.must("stop following", <-done)
		}
	}
	l.t.Cleanup(stop)
	return stop
}

// holds is what a guest holds, in a line, and what Placement has for it where that
// is something else.
func (l *lab) holds(on, uuid string) string {
	n := l.hosts[on]
	if _, known := n.tracker.Instance(uuid); !known {
		return "nothing"
	}
	var out []string
	for _, c := range n.tracker.ByInstance(uuid) {
		s := c.Resources.String()
		for _, cell := range c.Assignment.Cells {
			s += " on " + cell.Exclusive().String()
		}
		for _, d := range c.Assignment.Devices {
			s += " with " + d.Address.String() + " as " + d.Request
		}
		if c.Forced {
			s += " forced"
		}
		if c.ByHand {
			s += " by hand"
		}
		for rp, r := range l.placement.all()[uuid].Allocations {
			if r["VCPU"] != int64(c.Resources.VCPUs) || r["MEMORY_MB"] != c.Resources.MemoryMB || r["DISK_GB"] != c.Resources.DiskGB {
				s += fmt.Sprintf("; %v of %s", r, rp)
			}
		}
		out = append(out, s)
	}
	return strings.Join(out, ", ")
}

func (l *lab) soon(on, uuid, want string) {
	l.t.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if got = l.holds(on, uuid); got == want {
			return
		}
	}
	l.t.Fatalf("it holds %s, want %s", got, want)
}

func swap(old, now string) func(string) string {
	return func(doc string) string { return strings.Replace(doc, old, now, 1) }
}

// stranger defines a guest by hands that know nothing of Berth: a guest of a host's
// own with other names in it.
func (l *lab) stranger(on, name, uuid string, edit func(string) string) {
	l.t.Helper()
	text := fmt.Sprintf(`<domain type='qemu'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>128</memory><vcpu>1</vcpu>
<os><type arch='x86_64'>hvm</type></os><devices><memballoon model='virtio'/></devices></domain>`, name, uuid)
	if edit != nil {
		text = edit(text)
	}
	l.must("define "+name, l.hosts[on].fake.Define(l.t.Context(), text))
}

const asMade = "1 vcpus, 128 MiB, 1 GiB"

func TestFollow_ClaimAndAllocationFollowTheDocument(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	l.followed("a")
	for _, step := range []struct {
		what, old, now, want string
	}{
		{"vCPUs plugged in", ">1</vcpu>", " current='3'>4</vcpu>", "3 vcpus, 128 MiB, 1 GiB by hand"},
		{"and taken out", " current='3'>4<", " current='2'>4<", "2 vcpus, 128 MiB, 1 GiB by hand"},
		{"memory beyond what there is", "<memory unit='MiB'>128<", "<memory unit='MiB'>2048<", "2 vcpus, 2048 MiB, 1 GiB forced by hand"},
		{"and back", "<memory unit='MiB'>2048<", "<memory unit='MiB'>128<", "2 vcpus, 128 MiB, 1 GiB by hand"},
		{"a balloon blown up", "</vcpu>", "</vcpu><currentMemory unit='KiB'>65536</currentMemory>", "2 vcpus, 64 MiB, 1 GiB by hand"},
		{"one that lets go by itself", "<memballoon ", "<memballoon autodeflate='on' ", "2 vcpus, 128 MiB, 1 GiB by hand"},
	} {
		a.fake.ChangeGuest(v.UUID, func(doc string) string {
			if !strings.Contains(doc, "<memballoon") {
				doc = strings.Replace(doc, "</devices>", "<memballoon model='virtio'/></devices>", 1)
			}
			if !strings.Contains(doc, step.old) {
				t.Errorf("%s: the document has no %s:\n%s", step.what, step.old, doc)
			}
			return strings.Replace(doc, step.old, step.now, 1)
		})
		t.Log(step.what)
		l.soon("a", v.UUID, step.want)
	}
	if inst, _ := a.tracker.Instance(v.UUID); inst.Flavor.VCPUs != 1 {
		t.Errorf("what was asked for was written over: %+v", inst.Flavor)
	}
}

// Where nothing was done nothing is written, in whatever shape guests were made.
func TestFollow_SteadyStateWritesNothing(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	a.Close()
	a = l.boot("a", func(o *host.Options) {
		capacity := cellsOf(0)
		o.SharedCPUs = func() topology.CPUSet { return capacity.Cells[0].Shared.Union(capacity.Cells[1].Shared) }
		o.Tracker.SetCapacity(capacity)
	})
	a.put(t, "/boot/vmlinuz", "kernel", 0o644)
	var uuids []string
	for _, f := range []topology.Flavor{
		{Name: "pinned", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "hw:mem_page_size": "2048"}},
		{Name: "emulator", VCPUs: 1, MemoryMB: 64, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated", "hw:emulator_threads_policy": "isolate"}},
		{Name: "two-cells", VCPUs: 2, MemoryMB: 128, ExtraSpecs: map[string]string{"hw:numa_nodes": "2"}},
		{Name: "floating", VCPUs: 2, MemoryMB: 128, DiskGB: 7},
	} {
		v, err := a.Create(t.Context(), host.CreateRequest{Name: f.Name, Flavor: f, ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Start: true})
		l.must("create "+f.Name, err)
		uuids = append(uuids, v.UUID)
	}
	generation := func() (out []int) {
		for _, uuid := range uuids {
			out = append(out, *l.placement.all()[uuid].ConsumerGeneration)
		}
		return out
	}
	before := a.tracker.List()
	stop := l.followed("a")
	waitFor(t, "every guest to be looked at", func() bool {
		return !slices.ContainsFunc(a.tracker.List(), func(c claims.Claim) bool { return c.Seen == nil })
	})
	// The first look compares allocations; this Placement counts each as a write.
	waitFor(t, "every allocation to be looked at", func() bool { return !slices.Contains(generation(), 1) })
	stop()
	after := a.tracker.List()
	for i := range after {
		after[i].Seen = nil
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("claims changed though nobody did anything (-want +got):\n%s", diff)
	}
	was := generation()
	commits := a.store.Commits()
	looks := atomic.Int64{}
	a.fake.Fault(func(call, _ string) error {
		if call == "Domains" {
			looks.Add(1)
		}
		return nil
	})
	l.followed("a")
	waitFor(t, "a few looks around", func() bool { return looks.Load() > 4 })
	if n := a.store.Commits() - commits; n > 0 {
		t.Errorf("%d writes to the ledger", n)
	}
	if diff := cmp.Diff(was, generation()); diff != "" {
		t.Errorf("allocations were written: %s", diff)
	}
}

func TestFollow_PinnedByHandIsForcedNamedAndRelaxed(t *testing.T) {
	l := newLab(t, "a")
	l.hosts["a"].Close()
	a := l.boot("a", func(o *host.Options) { o.Tracker.SetCapacity(cellsOf(0)) })
	a.put(t, "/boot/vmlinuz", "kernel", 0o644)
	create := func(name string) string {
		v, err := a.Create(t.Context(), host.CreateRequest{
			Name: name, ProjectID: "project", UserID: "user", Kernel: "/boot/vmlinuz", Start: true,
			Flavor: topology.Flavor{Name: "pinned", VCPUs: 1, MemoryMB: 64, ExtraSpecs: map[string]string{"hw:cpu_policy": "dedicated"}},
		})
		l.must("create "+name, err)
		return v.UUID
	}
	one, two := create("one"), create("two")
	l.followed("a")
	cpu := func(uuid string) string {
		c := a.tracker.ByInstance(uuid)[0].Assignment.Cells[0]
		return c.Exclusive().String()
	}
	first, second := cpu(one), cpu(two)
	const small = "0 vcpus, 1 pcpus, 64 MiB, 0 GiB on "
	a.fake.ChangeGuest(two, func(doc string) string {
		return strings.ReplaceAll(strings.ReplaceAll(doc, `cpuset="`+second+`"`, `cpuset="`+first+`"`), `cpuset='`+second+`'`, `cpuset='`+first+`'`)
	})
	waitFor(t, "the claim to follow", func() bool { return a.tracker.ByInstance(two)[0].Forced })
	u := a.tracker.Usage()
	if len(u.Doubled) != 1 || !slices.Equal(u.Forced, []string{two}) || fmt.Sprint(*u.Doubled[0].CPU) != first {
		t.Errorf("usage names %+v, forced %v", u.Doubled, u.Forced)
	}
	if !strings.HasPrefix(l.holds("a", one), small+first) {
		t.Errorf("the other holds %s", l.holds("a", one))
	}
	// The other goes: what was forced fits.
	l.must("delete", a.Delete(t.Context(), "one", host.DeleteOptions{Force: true}))
	waitFor(t, "the mark to go", func() bool { return !a.tracker.ByInstance(two)[0].Forced })
	if u := a.tracker.Usage(); len(u.Doubled)+len(u.Forced) > 0 {
		t.Errorf("usage still names %+v", u)
	}
}

func TestFollow_HostDevicesComeAndGo(t *testing.T) {
	l := newLab(t, "a")
	l.hosts["a"].Close()
	a := l.boot("a", func(o *host.Options) { o.Tracker.SetCapacity(cellsOf(0)) })
	v := l.guest("a", "web")
	l.followed("a")
	hostdev := func(slot int) string {
		return fmt.Sprintf("<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0x0000' bus='0x10' slot='0x%02x' function='0x0'/></source></hostdev>", slot)
	}
	a.fake.ChangeGuest(v.UUID, swap("</devices>", hostdev(0)+"</devices>"))
	l.soon("a", v.UUID, asMade+" with 0000:10:00.0 as by-hand-0000:10:00.0 by hand")
	a.fake.ChangeGuest(v.UUID, swap("</devices>", hostdev(1)+"</devices>"))
	l.soon("a", v.UUID, asMade+" with 0000:10:00.0 as by-hand-0000:10:00.0 with 0000:10:01.0 as by-hand-0000:10:01.0 by hand")
	a.fake.ChangeGuest(v.UUID, swap(hostdev(0), ""))
	l.soon("a", v.UUID, asMade+" with 0000:10:01.0 as by-hand-0000:10:01.0 by hand")
	// Another's device is named.
	other := l.guest("a", "other")
	a.fake.ChangeGuest(other.UUID, swap("</devices>", hostdev(1)+"</devices>"))
	l.soon("a", other.UUID, asMade+" with 0000:10:01.0 as by-hand-0000:10:01.0 forced by hand")
	if u := a.tracker.Usage(); len(u.Doubled) != 1 || u.Doubled[0].Device == nil || len(u.Doubled[0].Instances) != 2 {
		t.Errorf("usage names %+v", u.Doubled)
	}
}

// What happened while the agent was down is followed at its start; what comes as a
// storm of events is one claim.
func TestFollow_AfterARestartAndThroughAStorm(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v, w := l.guest("a", "web"), l.guest("a", "gone")
	stop := l.followed("a")
	waitFor(t, "the first sighting", func() bool { return a.tracker.ByInstance(v.UUID)[0].Seen != nil })
	stop()
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">3</vcpu>"))
	l.must("end", a.fake.Destroy(t.Context(), w.UUID))
	l.must("undefine", a.fake.Undefine(t.Context(), w.UUID))
	const late = "cccccccc-0000-4000-8000-000000000001"
	l.stranger("a", "late", late, nil)
	l.must("start", a.fake.Start(t.Context(), late, false))
	a = l.restart("a")
	l.must("settle", a.Settle(t.Context()))
	stop = l.followed("a")
	l.soon("a", v.UUID, "3 vcpus, 128 MiB, 1 GiB by hand")
	l.soon("a", w.UUID, "nothing")
	if _, held := l.placement.all()[w.UUID]; held {
		t.Error("its allocation is still there")
	}
	l.soon("a", late, "1 vcpus, 128 MiB, 0 GiB")
	l.must("end", a.fake.Destroy(t.Context(), late))
	for i := range 1000 {
		a.fake.ChangeGuest(v.UUID, swap(fmt.Sprintf(">%d</vcpu>", 3-i%2), fmt.Sprintf(">%d</vcpu>", 3-(i+1)%2)))
	}
	a.fake.ChangeGuest(v.UUID, func(doc string) string {
		return strings.NewReplacer(">3</vcpu>", ">1</vcpu>", ">2</vcpu>", ">1</vcpu>").Replace(doc)
	})
	l.soon("a", v.UUID, asMade+" by hand")
	stop()
}

// A change that comes while the guest moves waits for the move's end; one that was
// undone has it followed then.
func TestFollow_LeavesAMoveAlone(t *testing.T) {
	l := newLab(t, "a", "b")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	stop := l.followed("a")
	waitFor(t, "the first sighting", func() bool { return a.tracker.ByInstance(v.UUID)[0].Seen != nil })
	ref := migration.Ref{Migration: "4f2f0a1e-0d6e-4c51-9f0e-1b7f0f6c9a01", Instance: v.UUID, Attempt: 1}
	l.must("record a move", operation.RecordContext.Ask(t.Context(), a, ref, contextOf("a", "b")))
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	looks := atomic.Int64{}
	a.fake.Fault(func(call, _ string) error {
		if call == "Domains" {
			looks.Add(1)
		}
		return nil
	})
	waitFor(t, "a few looks around", func() bool { return looks.Load() > 3 })
	if got := l.holds("a", v.UUID); got != asMade {
		t.Errorf("while it moves it holds %s", got)
	}
	l.must("give the move up", operation.DropContext.Ask(t.Context(), a, ref))
	l.soon("a", v.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
	stop()
}

func TestFollow_RenamedAndDefinedAnewIsKept(t *testing.T) {
	l := newLab(t, "a")
	// Its uuid is gone between the two calls, for as long as a busy machine likes.
	a := l.boot("a", func(o *host.Options) { o.Agree, o.Look = 5*time.Second, 4*time.Millisecond })
	v := l.guest("a", "web")
	before := a.tracker.ByInstance(v.UUID)[0].ID
	text := l.definition("a", v.UUID)
	l.must("stop", a.fake.Destroy(t.Context(), v.UUID))
	l.followed("a")
	l.must("undefine", a.fake.Undefine(t.Context(), v.UUID))
	l.must("define", a.fake.Define(t.Context(), strings.Replace(text, "<name>web<", "<name>shop<", 1)))
	waitFor(t, "the record to have the name", func() bool {
		inst, _ := a.tracker.Instance(v.UUID)
		return inst.Name == "shop"
	})
	if got := a.tracker.ByInstance(v.UUID)[0].ID; got != before {
		t.Errorf("it has claim %s, had %s", got, before)
	}
}

// Nothing is released or shrunk while libvirt cannot be asked.
func TestFollow_UnaskedIsNotGone(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	stop := l.followed("a")
	waitFor(t, "the first sighting", func() bool { return a.tracker.ByInstance(v.UUID)[0].Seen != nil })
	for _, broken := range []string{"Domain", "Domains", "XML"} {
		asked := atomic.Int64{}
		a.fake.Fault(func(call, _ string) error {
			if call == broken {
				asked.Add(1)
				return fault.New(fault.Unavailable, "libvirt does not answer")
			}
			return nil
		})
		a.fake.ChangeGuest(v.UUID, func(doc string) string { return doc + " " })
		waitFor(t, "it to be asked in vain", func() bool { return asked.Load() > 2 })
		if got := l.holds("a", v.UUID); got != asMade {
			t.Errorf("without %s it holds %s", broken, got)
		}
	}
	a.fake.Fault(nil)
	a.fake.KillDaemon()
	a.fake.StartDaemon()
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	l.soon("a", v.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
	stop()
}

// A disk that does not answer keeps nobody from its guest, nor others from theirs.
func TestFollow_WhatIsSlowHoldsNobodyUp(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v, w := l.guest("a", "slow"), l.guest("a", "quick")
	release := make(chan struct{})
	asked := make(chan struct{}, 100)
	a.fake.Fault(func(call, uuid string) error {
		if call == "XML" && uuid == v.UUID {
			asked <- struct{}{}
			<-release
		}
		return nil
	})
	stop := l.followed("a")
	<-asked
	ctx, cancel := l.rt.WithTimeout(t.Context(), patience)
	defer cancel()
	l.must("stop a guest that is being looked at", a.Stop(ctx, "slow", host.StopOptions{Force: true}))
	a.fake.ChangeGuest(w.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	l.soon("a", w.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
	close(release)
	stop()
}

// Placement refuses what there is not room for: that is told, and is over when the
// guest is as it was.
func TestFollow_AllocationThatIsRefusedIsTold(t *testing.T) {
	l := newLab(t, "a")
	a := l.hosts["a"]
	v := l.guest("a", "web")
	l.followed("a")
	waitFor(t, "the first sighting", func() bool { return a.tracker.ByInstance(v.UUID)[0].Seen != nil })
	waitFor(t, "its allocation to be looked at", func() bool { return *l.placement.all()[v.UUID].ConsumerGeneration > 1 })
	l.placement.breakWith(fault.New(fault.GenerationConflict, "the requested amount would exceed the capacity"))
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">3</vcpu>"))
	waitFor(t, "it to be told", func() bool { return a.Behind()[v.UUID] != nil })
	if c := a.tracker.ByInstance(v.UUID)[0]; c.Resources.VCPUs != 3 {
		t.Errorf("the claim is %s", c.Resources)
	}
	a.fake.ChangeGuest(v.UUID, swap(">3</vcpu>", ">1</vcpu>"))
	waitFor(t, "it to be over", func() bool { return len(a.Behind()) == 0 })
	l.placement.breakWith(fault.New(fault.Unavailable, "placement does not answer"))
	a.fake.ChangeGuest(v.UUID, swap(">1</vcpu>", ">2</vcpu>"))
	waitFor(t, "the claim to follow", func() bool { return a.tracker.ByInstance(v.UUID)[0].Resources.VCPUs == 2 })
	l.placement.breakWith(nil)
	l.soon("a", v.UUID, "2 vcpus, 128 MiB, 1 GiB by hand")
	if behind := a.Behind(); len(behind) > 0 {
		t.Errorf("told though Placement said nothing: %v", behind)
	}
}
