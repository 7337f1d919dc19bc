package host_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// wantRuns checks that a verb was refused because QEMU lives though libvirt says off, and
// that the refusal says which process it is and what to do.
func wantRuns(t *testing.T, what string, err error) {
	t.Helper()
	reasons := fault.ReasonsOf(err)
	i := slices.IndexFunc(reasons, func(r fault.Reason) bool { return r.Code == "qemu_runs" })
	if i < 0 || !strings.Contains(reasons[i].Message, "pid 10") || !strings.Contains(reasons[i].Change, "kill 10") {
		t.Errorf("%s: %v, want qemu_runs with the pid and a remedy", what, err)
	}
}

// TestOff_LibvirtAloneIsNotBelieved: libvirtd has lost a process and calls its domain off.
// Each path that would start a second copy, change or remove what the process uses refuses.
func TestOff_LibvirtAloneIsNotBelieved(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	a := l.hosts["a"]
	c := newCold(t, l, v.UUID, &large)
	a.fake.Forget(v.UUID)
	before := l.picture()

	_, err := operation.PlanChange.Ask(t.Context(), a, migration.Ref{Instance: v.UUID}, migration.Change{Flavor: &large})
	l.must("plan", err)
	wantRuns(t, "check of a cold move", c.check())
	wantRuns(t, "start", a.Start(t.Context(), v.UUID, false))
	wantRuns(t, "delete", a.Delete(t.Context(), v.UUID, host.DeleteOptions{Force: true, Disks: true}))
	l.same("after what was refused", before)

	c.run(c.there()[1:], "prep resize")
	_, err = operation.PowerOff.Ask(t.Context(), a, c.ref, migration.PowerOffRequest{Kind: c.kind(), Destination: "b"})
	wantRuns(t, "power off", err)
	a.fake.EndForgotten(v.UUID)
	c.run(c.there()[4:], "")
}

// TestOff_LostBetweenPowerOffAndHandOver: what was proven then is asked again before the
// token leaves, before the source's definition goes, and before the way back.
func TestOff_LostBetweenPowerOffAndHandOver(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	a := l.hosts["a"]
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "power off")
	lose := func() func() {
		l.must("its user starts it", a.fake.Start(t.Context(), v.UUID, false))
		a.fake.Forget(v.UUID)
		return func() { a.fake.EndForgotten(v.UUID) }
	}
	end := lose()
	_, err := operation.HandOver.Ask(t.Context(), a, c.ref, migration.HandOverRequest{To: "b"})
	wantRuns(t, "hand over", err)
	wantRuns(t, "power on", operation.PowerOn.Ask(t.Context(), a, migration.Ref{Migration: c.ref.Migration, Instance: c.ref.Instance, Attempt: 1}))
	end()
	l.must("power on", operation.PowerOn.Ask(t.Context(), a, c.ref))
	l.state("a", v.UUID, driver.Running)
}

// TestOff_SourceOfAMoveIsKeptWhileItsProcessLives: the copy runs twice by the time that this
// is seen, and the definition and the disks of the one that libvirtd lost stay.
func TestOff_SourceOfAMoveIsKeptWhileItsProcessLives(t *testing.T) {
	t.Parallel()
	l, v := coldLab(t)
	a := l.hosts["a"]
	l.must("shut off", a.fake.Destroy(t.Context(), v.UUID))
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "")
	l.must("somebody starts it at its source", a.fake.Start(t.Context(), v.UUID, false))
	a.fake.Forget(v.UUID)
	wantRuns(t, "confirm", operation.ConfirmSource.Ask(t.Context(), a, c.ref))
	wantRuns(t, "await return", operation.AwaitReturn.Ask(t.Context(), a, c.back))
	l.state("a", v.UUID, driver.ShutOff)
	a.fake.EndForgotten(v.UUID)
	l.must("confirm", operation.ConfirmSource.Ask(t.Context(), a, c.ref))
}

// TestOff_AForgottenDiskWriter: nobody hands an instance over whose disk a process of
// another kind has open for writing, nor starts it.
func TestOff_AForgottenDiskWriter(t *testing.T) {
	t.Parallel()
	x := newApart(t)
	x.run(x.there(), "power off")
	x.world.OnWriters(func(on, path string) []string {
		if on == "a" && path == vm1Disk {
			return []string{"qemu-nbd"}
		}
		return nil
	})
	_, err := operation.HandOver.Ask(t.Context(), x.a, x.ref, migration.HandOverRequest{To: "b"})
	if got := codes(err); !slices.Equal(got, []string{"disk_open_for_writing"}) {
		t.Errorf("hand over beside a writer: %v", err)
	}
	err = operation.PowerOn.Ask(t.Context(), x.a, x.ref)
	if got := codes(err); !slices.Equal(got, []string{"disk_open_for_writing"}) {
		t.Errorf("start beside a writer: %v", err)
	}
	x.world.OnWriters(nil)
	x.must("power on", operation.PowerOn.Ask(t.Context(), x.a, x.ref))
}

// TestOff_AChangeInPlaceLooksTwice: before the disks are exchanged, and before they are put
// back.
func TestOff_AChangeInPlaceLooksTwice(t *testing.T) {
	t.Parallel()
	b := newChange(t, floats2, driver.ShutOff, migration.Change{Image: &migration.Image{Path: newImage, Format: "raw"}})
	lose := func() {
		b.must("somebody starts it", b.a.fake.Start(t.Context(), b.uuid, false))
		b.a.fake.Forget(b.uuid)
	}
	verbs := b.verbs()
	at := slices.IndexFunc(verbs, func(v verb) bool { return v.name == "apply" })
	if at < 0 {
		t.Fatalf("no such verb among %+v", verbs)
	}
	b.look()
	for _, v := range verbs[:at] {
		b.must(v.name, v.do())
	}
	lose()
	wantRuns(t, "apply", verbs[at].do())
	b.a.fake.EndForgotten(b.uuid)
	b.must("apply", verbs[at].do())
	lose()
	wantRuns(t, "unapply", verbs[at].undo())
	b.must("somebody undefines it", b.a.fake.Undefine(t.Context(), b.uuid))
	wantRuns(t, "unapply without a domain", verbs[at].undo())
	b.a.fake.EndForgotten(b.uuid)
	b.must("unapply", verbs[at].undo())
}

// TestOff_ACreationThatBrokeOffAsksTheKernel: libvirt has no domain of it, and its QEMU runs. Its
// claim and its disks stay, the rest of the host does not wait, and status names it.
func TestOff_ACreationThatBrokeOffAsksTheKernel(t *testing.T) {
	t.Parallel()
	l := newLab(t, "a")
	a := l.hosts["a"]
	const uuid = "33333333-3333-4333-8333-333333333333"
	_, err := a.tracker.Claim(t.Context(), claims.Request{Owner: claims.Owner{Instance: uuid, Kind: claims.KindInstance}, Resources: small.Resources()})
	l.must("claim", err)
	l.must("define", a.fake.Define(t.Context(), foreignXML("late", "", "")))
	l.must("start", a.fake.Start(t.Context(), uuid, false))
	a.fake.Forget(uuid)
	l.must("undefine", a.fake.Undefine(t.Context(), uuid))
	l.must("settle", a.Settle(t.Context()))
	if n := len(a.tracker.List()); n != 1 {
		t.Errorf("%d claims, want the one of the instance that runs", n)
	}
	wantRuns(t, "status", a.Unsettled()[uuid])
	a.fake.EndForgotten(uuid)
	laterFollow(l, a)
	waitFor(t, "its claim to go", func() bool { return len(a.tracker.List()) == 0 && len(a.Unsettled()) == 0 })
}

// laterFollow has a host look again at what waits.
func laterFollow(l *lab, n *node) {
	l.rt.booted = l.rt.booted.Add(-time.Minute)
	ctx, cancel := context.WithCancel(l.t.Context())
	over := make(chan error, 1)
	go func() { over <- n.FollowSides(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		<-over
	})
}

// TestSettle_AFileSystemThatDoesNotAnswer_HoldsUpItsInstancesAlone: the host is settled, the others
// are started, and those that wait are started when it answers.
func TestSettle_AFileSystemThatDoesNotAnswer_HoldsUpItsInstancesAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t, "a")
	a := l.hosts["a"]
	var mu sync.Mutex
	silent := ""
	a.Close()
	a = l.boot("a", func(o *host.Options) {
		real := o.Processes
		o.Processes = kernel(func(uuid string) ([]int, error) {
			mu.Lock()
			defer mu.Unlock()
			if uuid == silent {
				return nil, fault.Refuse(fault.Unavailable, "", fault.Reason{Code: "filesystem_silent", Message: "the file system at /nfs has not answered"})
			}
			return real.Of(uuid)
		})
	})
	hung, fine := l.guest("a", "hung"), l.guest("a", "fine")
	for _, v := range []host.InstanceView{hung, fine} {
		l.must("stop", a.fake.Destroy(t.Context(), v.UUID))
		l.autostarts("a", v.UUID)
	}
	mu.Lock()
	silent = hung.UUID
	mu.Unlock()
	l.must("settle", a.Settle(t.Context()))
	l.state("a", fine.UUID, driver.Running)
	l.state("a", hung.UUID, driver.ShutOff)
	if why := a.Unsettled()[hung.UUID]; fault.KindOf(why) != fault.Unavailable {
		t.Errorf("status says %v", why)
	}
	l.must("stop what was started", a.Stop(t.Context(), "fine", host.StopOptions{Force: true}))
	mu.Lock()
	silent = ""
	mu.Unlock()
	laterFollow(l, a)
	waitFor(t, "it to be started", func() bool {
		d, err := a.fake.Domain(t.Context(), hung.UUID)
		return err == nil && d.State == driver.Running && len(a.Unsettled()) == 0
	})
	l.state("a", fine.UUID, driver.ShutOff)
}

// kernel is what a host's kernel tells of processes, as a test has it.
type kernel func(uuid string) ([]int, error)

func (k kernel) Of(uuid string) ([]int, error) { return k(uuid) }

// TestOff_AutostartAsksTheKernel: after the host's reboot nothing starts by itself beside a
// process that libvirtd has lost, nor while the kernel does not answer.
func TestOff_AutostartAsksTheKernel(t *testing.T) {
	t.Parallel()
	l := newLab(t, "a")
	a := l.hosts["a"]
	silent := true
	a.Close()
	a = l.boot("a", func(o *host.Options) {
		real := o.Processes
		o.Processes = kernel(func(uuid string) ([]int, error) {
			if silent {
				return nil, fault.New(fault.Unavailable, "/proc cannot be read")
			}
			return real.Of(uuid)
		})
	})
	silent = false
	lost, off := l.guest("a", "lost"), l.guest("a", "off")
	for _, v := range []host.InstanceView{lost, off} {
		l.autostarts("a", v.UUID)
	}
	a.fake.Forget(lost.UUID)
	l.must("stop", a.fake.Destroy(t.Context(), off.UUID))

	silent = true
	l.wantKind("settle while the kernel is silent", a.Settle(t.Context()), fault.Unavailable)
	l.state("a", lost.UUID, driver.ShutOff)
	l.state("a", off.UUID, driver.ShutOff)
	silent = false
	l.must("settle", a.Settle(t.Context()))
	l.state("a", lost.UUID, driver.ShutOff)
	l.state("a", off.UUID, driver.Running)
}

// TestOff_ACreationAsksTheKernel: before it makes anything, and again before it starts what it
// made. One whose start broke off is not taken back while a process of it may use the disks.
func TestOff_ACreationAsksTheKernel(t *testing.T) {
	t.Parallel()
	requireQemuImg(t)
	l := newLab(t, "a")
	a := l.hosts["a"]
	var calls sync.Map // of libvirt, in one creation
	from := ""         // the call from which on a process of it runs; empty for never
	a.Close()
	a = l.boot("a", func(o *host.Options) {
		o.Processes = kernel(func(string) ([]int, error) {
			if _, called := calls.Load(from); called {
				return []int{1042}, nil
			}
			return nil, nil
		})
	})
	a.put(t, "/boot/vmlinuz", "kernel", 0o644)
	before := l.picture()
	create := func() error {
		calls.Clear()
		_, err := a.Create(t.Context(), host.CreateRequest{
			Name: "vm1", Flavor: small, Kernel: "/boot/vmlinuz", Disks: []host.CreateDisk{{Path: "/images/disk", SizeGB: 1}}, Start: true,
		})
		return err
	}
	a.fake.Fault(func(call, _ string) error { calls.Store(call, true); return nil })

	from = "Node"
	wantRuns(t, "create", create())
	l.same("after the refusal", before)
	from = "SetAutostart"
	wantRuns(t, "start of what was made", create())
	l.same("after what was taken back", before)

	a.fake.FaultReply(func(call, _ string) error {
		if call == "Start" {
			return fault.New(fault.InDoubt, "the answer was lost")
		}
		return nil
	})
	from = "Destroy"
	wantRuns(t, "create", create())
	if _, err := os.Stat(a.path("/images/disk")); err != nil {
		t.Errorf("the disk of a process that lives: %v", err)
	}
	if len(a.tracker.List()) != 1 {
		t.Errorf("claims %v, want what the process uses", a.tracker.List())
	}
	from = ""
	l.must("delete", a.Delete(t.Context(), "vm1", host.DeleteOptions{Force: true, Disks: true}))
	l.same("at last", before)
}
