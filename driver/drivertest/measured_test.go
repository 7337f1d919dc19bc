package drivertest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"berth/driver/drivertest"
	"berth/internal/fault"
)

// What was measured of libvirt 9.0 and QEMU 10, row by row: what was done in the middle of
// a migration, who noticed it and when, and what both sides said. Rows of a daemon killed
// between two phases follow libvirt's qemuProcessRecoverMigrationOut and In.
func TestFleet_FailsInTheMiddleAsMeasured(t *testing.T) {
	lost := errors.New("the reply was lost")
	for name, row := range map[string]struct {
		pace drivertest.Pace
		do   func(l *lab)
	}{
		"an abort": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.want("in the middle", moving)
			if err := l.a.AbortJob(context.Background(), labGuest); err != nil {
				l.t.Error(err)
			}
			l.wait(200 * time.Millisecond)
			l.ended(fault.Undone, 3*time.Second)
			l.want("after it", runsHere)
		}},
		"SIGKILL of the client: nobody notices, and another can abort": {never, func(l *lab) {
			client := l.migrate()
			l.wait(3 * time.Second)
			client.Kill()
			l.wait(10 * time.Second)
			l.want("without it", moving)
			if !l.inFlight() {
				l.t.Error("the job does not go on")
			}
			if err := l.a.AbortJob(context.Background(), labGuest); err != nil {
				l.t.Error(err)
			}
			l.wait(200 * time.Millisecond)
			l.want("after the abort", runsHere)
		}},
		"kill -9 of the destination's libvirtd": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.b.KillDaemon()
			l.wait(200 * time.Millisecond)
			l.ended(fault.Undone, 3*time.Second)
			l.want("at once", "running (booted) ?")
			if err := l.b.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", runsHere)
		}},
		"kill -9 of the destination's QEMU": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.b.CrashGuest(labGuest)
			l.wait(200 * time.Millisecond)
			l.ended(fault.Undone, 3*time.Second)
			l.want("at once", runsHere)
		}},
		"kill -9 of the source's libvirtd": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.a.KillDaemon()
			l.wait(200 * time.Millisecond)
			l.ended(fault.InDoubt, 3*time.Second)
			l.want("at once", "? paused (migrating)")
			l.wait(4 * time.Second)
			l.want("later", "? -")
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", runsHere)
			if l.inFlight() {
				l.t.Error("it has a job")
			}
		}},
		"SIGTERM of the source's libvirtd": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.a.StopDaemon()
			l.wait(200 * time.Millisecond)
			l.ended(fault.InDoubt, 3*time.Second)
			l.wait(25 * time.Second)
			l.want("while it lingers", "? paused (migrating)")
			if err := l.a.StartDaemon(); !errors.Is(err, fault.Busy) {
				l.t.Errorf("a start while it lingers: %v", err)
			}
			l.wait(10 * time.Second)
			l.want("when it has ended", "? -")
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", runsHere)
		}},
		"kill -9 of the source's QEMU": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.a.CrashGuest(labGuest)
			l.wait(200 * time.Millisecond)
			l.ended(fault.InDoubt, 3*time.Second)
			l.want("at once", "shut off (crashed) -")
		}},
		"the data link cut: nobody notices, and an abort works": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.CutData("a", "b")
			l.wait(time.Minute)
			l.want("a minute later", moving)
			if !l.inFlight() {
				l.t.Error("the job has ended")
			}
			if err := l.a.AbortJob(context.Background(), labGuest); err != nil {
				l.t.Error(err)
			}
			l.wait(200 * time.Millisecond)
			l.want("after the abort", runsHere)
		}},
		"the data link cut for five seconds": {quick, func(l *lab) {
			l.migrate()
			l.wait(300 * time.Millisecond)
			l.CutData("a", "b")
			l.wait(5 * time.Second)
			l.want("meanwhile", moving)
			l.HealData("a", "b")
			l.wait(3 * time.Second)
			l.ended("", 6*time.Second)
			l.want("at the end", goneThere)
		}},
		"the management link cut": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.CutManagement("a", "b")
			l.wait(7 * time.Second)
			l.want("before the keepalive", moving)
			l.wait(2 * time.Second)
			l.ended(fault.Undone, 11*time.Second)
			l.wait(time.Second)
			l.want("after it", runsHere)
		}},
		"both links cut": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.CutData("a", "b")
			l.CutManagement("a", "b")
			l.wait(10 * time.Second)
			l.ended(fault.Undone, 11*time.Second)
			l.want("after the keepalive", runsHere)
		}},
		"SIGSTOP of the destination's libvirtd": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.b.Hang(true)
			l.wait(10 * time.Second)
			l.ended(fault.Undone, 11*time.Second)
			l.b.Hang(false)
			l.wait(2 * time.Second)
			l.want("when it goes on", runsHere)
		}},
		"SIGSTOP of the source's libvirtd": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.a.Hang(true)
			l.wait(time.Minute)
			l.a.Hang(false)
			l.want("when it goes on", moving)
		}},
		"the source's machine crashes": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.a.Crash()
			l.wait(3 * time.Second)
			l.ended(fault.InDoubt, 3*time.Second)
			l.want("after the keepalive", "? -")
		}},
		"the destination's machine crashes": {never, func(l *lab) {
			l.migrate()
			l.wait(3 * time.Second)
			l.b.Crash()
			l.wait(9 * time.Second)
			l.ended(fault.Undone, 11*time.Second)
			l.b.Boot()
			l.want("when it is back", runsHere)
		}},

		"nothing fails": {quick, func(l *lab) {
			l.migrate()
			l.wait(5 * time.Second)
			l.ended("", 2*time.Second)
			l.want("at the end", goneThere)
		}},
		"a job is seen before the destination is asked": {quick, func(l *lab) {
			l.when(drivertest.PhaseBegin, func() error {
				if !l.inFlight() {
					l.t.Error("no job")
				}
				l.want("meanwhile", runsHere)
				return l.a.AbortJob(context.Background(), labGuest)
			})
			l.migrate()
			l.wait(3 * time.Second)
			l.ended(fault.Undone, time.Second)
			l.want("after an abort", runsHere)
			if l.inFlight() {
				l.t.Error("the job has not ended")
			}
		}},
		"Prepare's reply lost: the arrival goes soon": {quick, func(l *lab) {
			l.when(drivertest.PhasePrepareReply, func() error { return lost })
			l.migrate()
			l.wait(3 * time.Second)
			l.ended(fault.Undone, time.Second)
			l.want("at the end", runsHere)
		}},
		"Finish's request lost": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error { return lost })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.Undone, 2*time.Second)
			l.want("at the end", canceled)
		}},
		"Finish's reply lost: the source runs beside a paused copy": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinishReply, func() error { return lost })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.Undone, 2*time.Second)
			l.want("at the end", doubled)
			// The paused copy outlives its libvirtd.
			l.b.KillDaemon()
			if err := l.b.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("after a restart there", doubled)
		}},
		"the management link cut while Finish is asked for": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error { l.CutManagement("a", "b"); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.want("before the keepalive", "paused (migrating) paused (migrating)")
			l.wait(7 * time.Second)
			l.ended(fault.Undone, 10*time.Second)
			l.want("at the end", canceled)
		}},
		"the management link cut while Finish's reply is awaited": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinishReply, func() error { l.CutManagement("a", "b"); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.want("before the keepalive", "paused (migrating) paused (user)")
			l.wait(6 * time.Second)
			l.ended(fault.Undone, 10*time.Second)
			l.want("at the end", doubled)
		}},
		"… and back in time": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinishReply, func() error { l.CutManagement("a", "b"); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.HealManagement("a", "b")
			l.wait(time.Second)
			l.ended("", 5*time.Second)
			l.want("at the end", goneThere)
		}},
		"the source's libvirtd killed while Finish's reply is awaited": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinishReply, func() error { l.a.KillDaemon(); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.InDoubt, 2*time.Second)
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.wait(8 * time.Second)
			l.want("eight seconds after it is back", "paused (migrating) paused (user)")
		}},
		"the source's libvirtd killed before Finish is asked for": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error { l.a.KillDaemon(); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", "paused (migrating) -")
		}},
		"the source's libvirtd killed when it has heard of Finish": {quick, func(l *lab) {
			l.when(drivertest.PhaseConfirm, func() error { return lost })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.InDoubt, 2*time.Second)
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", "shut off (daemon) paused (user)")
		}},
		"the destination's libvirtd killed in the midst of Finish": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error {
				l.p.Go("kills", func() { l.wait(50 * time.Millisecond); l.b.KillDaemon() })
				return nil
			})
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.Undone, 2*time.Second)
			if err := l.b.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", canceled)
		}},
		"the destination's libvirtd killed while the source awaits Finish's reply": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinishReply, func() error { l.b.KillDaemon(); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.Undone, 2*time.Second)
			if err := l.b.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("when it is back", doubled)
		}},
		"the source's QEMU killed when all was sent": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error { l.a.CrashGuest(labGuest); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.InDoubt, 2*time.Second)
			l.want("at the end", "shut off (crashed) paused (user)")
		}},
		"the destination's QEMU killed before Finish": {quick, func(l *lab) {
			l.when(drivertest.PhaseFinish, func() error { l.b.CrashGuest(labGuest); return nil })
			l.migrate()
			l.wait(5 * time.Second)
			l.ended(fault.Undone, 2*time.Second)
			l.want("at the end", canceled)
		}},
		"a restart forgets why a guest stopped, and what a job did": {quick, func(l *lab) {
			l.migrate()
			l.wait(5 * time.Second)
			l.want("at the end", goneThere)
			l.a.KillDaemon()
			if err := l.a.StartDaemon(); err != nil {
				l.t.Error(err)
			}
			l.want("after a restart of the source's", "shut off (unknown) paused (user)")
			if _, err := l.a.CompletedJob(context.Background(), labGuest); !errors.Is(err, fault.NotFound) {
				l.t.Errorf("the job's statistics: %v", err)
			}
		}},
		"a guest that its user had paused": {quick, func(l *lab) {
			if err := l.a.Suspend(context.Background(), labGuest); err != nil {
				l.t.Error(err)
			}
			l.m.Paused = false
			l.migrate()
			l.wait(5 * time.Second)
			l.want("at the end", goneThere)
		}},
		"reads that fail": {quick, func(l *lab) {
			l.a.FailReads(true)
			l.want("meanwhile", "? -")
			if err := l.a.Suspend(context.Background(), labGuest); err != nil {
				l.t.Errorf("a change: %v", err)
			}
			l.a.FailReads(false)
			l.want("afterwards", "paused (user) -")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, row.pace, func(l *lab) {
				row.do(l)
				if v := l.Violations(); len(v) > 0 {
					t.Errorf("runs twice: %v", v)
				}
			})
		})
	}
}

// What a libvirtd that hangs was asked to change it changes when it wakes, though
// nobody waits for the answer any more; but not after its death.
func TestFleet_AHungDaemonObeysLate(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inLab(t, quick, func(l *lab) {
			ctx, cancel := l.p.WithTimeout(context.Background(), time.Second)
			defer cancel()
			l.a.Hang(true)
			if err := l.a.Suspend(ctx, labGuest); !errors.Is(err, fault.InDoubt) {
				t.Errorf("Suspend: %v, want in doubt", err)
			}
			want := "paused (user) -"
			if killed {
				l.a.KillDaemon()
				if err := l.a.StartDaemon(); err != nil {
					t.Error(err)
				}
				want = runsHere
			}
			l.a.Hang(false)
			l.wait(time.Second)
			l.want("when it wakes", want)
		})
	}
}

// disksOf are one host's, by path.
type disksOf map[string]string

func (d disksOf) Data(path string) (string, int64, bool) {
	data, ok := d[path]
	return data, 1 << 20, ok
}

func (d disksOf) Write(path, data string) bool {
	_, ok := d[path]
	d[path] = data
	return ok
}

func TestFleet_DisksAreCopiedIntoWhatIsThere(t *testing.T) {
	const doc = "<domain type='kvm'><name>g</name><uuid>" + labGuest + "</uuid><memory unit='MiB'>128</memory><vcpu>1</vcpu>" +
		"<devices><disk type='file'><source file='/img/vda'/><target dev='vda'/></disk></devices></domain>"
	for _, there := range []bool{false, true} {
		inLab(t, quick, func(l *lab) {
			ctx := context.Background()
			hosts := map[string]disksOf{"a": {}, "b": {}}
			l.SetStorage(func(host string) drivertest.Storage { return hosts[host] })
			if err := errors.Join(l.a.Destroy(ctx, labGuest), l.a.Define(ctx, doc)); err != nil {
				t.Error(err)
			}
			if err := l.a.Start(ctx, labGuest, false); err == nil {
				t.Error("a guest starts without its disk")
			}
			hosts["a"]["/img/vda"] = "written"
			if err := l.a.Start(ctx, labGuest, false); err != nil {
				t.Error(err)
			}
			if there {
				hosts["b"]["/img/vda"] = ""
			}
			l.m.DestinationXML, l.m.PersistentXML, l.m.CopyDisks = doc, doc, []string{"vda"}
			l.migrate()
			l.wait(10 * time.Second)
			if there {
				l.want("moved", goneThere)
				if hosts["b"]["/img/vda"] != "written" {
					t.Errorf("the copy is %q", hosts["b"])
				}
				return
			}
			l.ended(fault.Undone, 0)
			l.want("no disk there", runsHere)
		})
	}
}
