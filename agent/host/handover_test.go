package host_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

func TestReclaim_ResumesUnlessTheUserHadPaused(t *testing.T) {
	for _, paused := range []bool{false, true} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		if paused {
			l.must("suspend", l.hosts["a"].fake.Suspend(t.Context(), v.UUID))
		}
		m := newMove(l, v.UUID)
		m.prepare()
		// The source's libvirtd dies in the hand-over and leaves its domain
		// `paused (migrating)`.
		l.fleet.FaultPhase(func(phase, _ string) error {
			if phase == drivertest.PhaseFinish {
				m.a.fake.KillDaemon()
			}
			return nil
		})
		l.must("start stream", m.start())
		waitFor(t, "libvirtd's death", func() bool { _, err := operation.StreamStatus.Ask(t.Context(), m.a, m.ref); return err != nil })
		l.wantKind("reclaim with libvirt away", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Unavailable)
		l.fleet.FaultPhase(nil)
		m.a.fake.StartDaemon()
		l.state("a", v.UUID, driver.Paused)
		m.back()
		want := driver.Running
		if paused {
			want = driver.Paused
		}
		l.state("a", v.UUID, want)
	}
}

// An abort that comes while the guest leaves has begun the undo: the stream's step is
// buried, the guest is gone, and the conductor goes forward from that step again.
func TestStartStream_GoesOnWithAGuestThatLeftBeforeItsUndo(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	l.wantKind("reclaim of a guest that has left", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
	m.a = l.restart("a")
	l.must("start the stream again", m.start())
	m.handOver()
	l.state("b", v.UUID, driver.Running)
}

func TestCommitAndReclaim_ExactlyOneWins(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.wantKind("commit before the stream", err, fault.Forbidden)
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	_, err = operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.wantKind("commit in mid-stream", err, fault.Forbidden)
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return m.status().Domain.Reason == "migrated" })
	l.wantKind("reclaim of a guest that has left", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
	waitFor(t, "the outcome on record", func() bool { return !m.status().InFlight })

	// libvirtd forgets why the domain is off; the record has it.
	l.must("start", m.a.fake.Start(t.Context(), v.UUID, true)) // by virsh: the token is still here
	l.must("destroy", m.a.fake.Destroy(t.Context(), v.UUID))
	if _, err := operation.Commit.Ask(t.Context(), m.a, m.ref); err != nil {
		t.Errorf("commit of a guest that was seen to have left: %v", err)
	}
	l.wantKind("reclaim after commit", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
	if st := m.status(); st.Ledger != migration.LedgerSurrendered {
		t.Errorf("ledger %s, want surrendered", st.Ledger)
	}
}

func TestStream_LostFinishReplyNeverRunsTwice(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	before := l.picture()
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			return errors.New("the reply was lost")
		}
		return nil
	})
	l.must("start stream", m.start())
	waitFor(t, "the end", func() bool { return !m.status().InFlight })
	l.state("a", v.UUID, driver.Running)
	l.state("b", v.UUID, driver.Paused)
	_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.wantKind("commit", err, fault.Forbidden)
	m.back()
	l.same("left behind", before)
}

func TestStream_EndsTogetherWithWhatTheHypervisorSaid(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	// The stream ends and is recorded in the middle of a look.
	looking := true
	m.a.fake.Fault(func(call, _ string) error {
		if call != "Job" || !looking {
			return nil
		}
		looking = false
		m.b.fake.KillDaemon()
		waitFor(t, "the end", func() bool { return !m.status().InFlight })
		return nil
	})
	for range 2 {
		if st := m.status(); !st.InFlight && st.Error == "" {
			t.Errorf("over, and no word why: %+v", st)
		}
	}
	if st := m.status(); st.InFlight {
		t.Errorf("the end is not seen: %+v", st)
	}
}

// jobs is how many jobs to b have begun.
func (l *lab) jobs() (n int) {
	for _, e := range l.fleet.History() {
		if strings.Contains(e.What, "migration to b begins") {
			n++
		}
	}
	return n
}

func TestStream_IsAdoptedByARestartedAgent(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	m.a = l.restart("a")
	if !m.status().InFlight {
		t.Error("the job in flight is not seen")
	}
	l.must("tune", operation.TuneStream.Ask(t.Context(), m.a, m.ref, migration.Tuning{Bandwidth: 1 << 30, MaxDowntime: time.Second}))
	l.must("adopt", m.start())
	waitFor(t, "the job", func() bool { return l.jobs() > 0 })
	if n := l.jobs(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return m.status().Domain.Reason == "migrated" })
	m.handOver()
	l.state("b", v.UUID, driver.Running)
}

func TestStream_BegunLateIsAdoptedToo(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	// The record stands, and the call is lost with its agent on the way to a
	// hypervisor that hangs.
	m.a.fake.Fault(func(call, _ string) error {
		if call == "Migrate" {
			return fault.New(fault.InDoubt, "on its way")
		}
		return nil
	})
	l.must("start stream", m.start())
	m.a.Close()
	l.must("forget the outcome", m.a.tracker.Unremember(t.Context(), migration.Ref{Migration: m.ref.Migration, Instance: m.ref.Instance, Attempt: m.ref.Attempt, Step: "stream_result"}))
	m.a = l.restart("a")
	var looks atomic.Int32
	m.a.fake.Fault(func(call, _ string) error {
		if call == "Job" && looks.Add(1) == 2 {
			l.rt.Go("late", func() {
				_ = m.a.fake.Migrate(context.WithoutCancel(t.Context()), v.UUID, driver.Migration{
					DestinationURI: m.prepared.LibvirtURI, DestinationXML: m.prepared.DestinationXML, PersistentXML: m.prepared.PersistentXML, Paused: true,
				})
			})
			for end := time.Now().Add(patience); l.jobs() == 0 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		}
		return nil
	})
	l.must("start again", m.start())
	if st := m.status(); !st.InFlight || st.Error != "" {
		t.Errorf("the job that began late was taken for over: %+v", st)
	}
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return m.status().Domain.Reason == "migrated" })
	m.handOver()
	l.state("b", v.UUID, driver.Running)
}

func TestStream_EndedWhileNobodyWatched(t *testing.T) {
	for _, fails := range []bool{false, true} {
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		m := newMove(l, v.UUID)
		m.prepare()
		l.fleet.CutData("a", "b")
		l.must("start stream", m.start())
		m.a.Close()
		if fails {
			l.must("abort by virsh", m.a.fake.AbortJob(t.Context(), v.UUID))
		}
		l.fleet.HealData("a", "b")
		waitFor(t, "the job's end", func() bool {
			j, err := m.a.fake.Job(t.Context(), v.UUID)
			return err == nil && j.Kind == driver.JobNone
		})
		m.a = l.restart("a")
		l.must("start again", m.start())
		if m.status().InFlight {
			t.Error("a stream that is over is in flight")
		}
		if fails {
			_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
			l.wantKind("commit", err, fault.Forbidden)
			m.back()
			l.state("a", v.UUID, driver.Running)
			continue
		}
		m.handOver()
		l.state("b", v.UUID, driver.Running)
	}
}

func TestDestination_AcceptsOnlyItsOwnCommit(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	c, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.must("commit", err)
	for _, change := range []func(*migration.Ref, *migration.Commit){
		func(r *migration.Ref, c *migration.Commit) { r.Attempt, c.Attempt = 2, 2 },
		func(_ *migration.Ref, c *migration.Commit) { c.Migration = "44444444-2222-4222-8222-222222222222" },
		func(_ *migration.Ref, c *migration.Commit) { c.To = "c" },
	} {
		ref, c := m.ref, c
		change(&ref, &c)
		l.wantKind("accept another's commit", operation.AcceptToken.Ask(t.Context(), m.b, ref, c), fault.Forbidden)
		l.state("b", v.UUID, driver.Paused)
	}
	l.wantKind("finish before the token", operation.FinishDestination.Ask(t.Context(), m.b, m.ref), fault.Forbidden)
	// The answer to resume is lost: it is looked at, not believed.
	m.b.fake.LoseReply("Resume")
	l.must("accept", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, c))
	l.state("b", v.UUID, driver.Running)
	// The agent dies between token and claim.
	m.b = l.restart("b")
	l.must("finish", operation.FinishDestination.Ask(t.Context(), m.b, m.ref))
	l.must("clean up", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
}

func TestDestination_GuestThatDiedAfterTheCommitLivesHereStopped(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	m.b.fake.CrashGuest(v.UUID)
	m.handOver()
	l.state("b", v.UUID, driver.ShutOff)
	l.must("start", m.b.Start(t.Context(), "vm1", false))
}

func TestCleanUpSource_EndsASecondCopyAndKeepsAReplacedDisk(t *testing.T) {
	requireQemuImg(t)
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1", host.CreateDisk{SizeGB: 1})
	m := newMove(l, v.UUID)
	m.prepare()
	m.stream()
	l.wantKind("clean up before commit", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
	_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	l.must("commit", err)
	// Somebody starts the source's definition with virsh, and restores its disk.
	l.must("start", m.a.fake.Start(t.Context(), v.UUID, false))
	l.must("remove", os.Remove(m.a.path("/images/vm1-vda.qcow2")))
	m.a.put(t, "/images/vm1-vda.qcow2", "restored", 0o644)
	l.must("clean up", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
	if _, err := m.a.fake.Domain(t.Context(), v.UUID); !errors.Is(err, fault.NotFound) {
		t.Errorf("the second copy: %v", err)
	}
	if text, err := os.ReadFile(m.a.path("/images/vm1-vda.qcow2")); string(text) != "restored" {
		t.Errorf("the restored disk: %q, %v", text, err)
	}
	if len(m.a.tracker.List()) != 0 {
		t.Error("the source's claim is left")
	}
}

func TestPreLive_MakesDocumentsFitForAnotherHost(t *testing.T) {
	l := newLab(t, "a", "b")
	v, err := l.hosts["a"].Create(t.Context(), host.CreateRequest{XML: foreignXML("screen",
		`<graphics type='vnc' listen='192.0.2.7'><listen type='address' address='192.0.2.7'/></graphics>`, ""), Start: true})
	l.must("create", err)
	m := newMove(l, v.UUID)
	m.prepare()
	for _, text := range []string{m.prepared.DestinationXML, m.prepared.PersistentXML} {
		if strings.Contains(text, "192.0.2.7") || !strings.Contains(text, "127.0.0.1") || !strings.Contains(text, "<something xmlns='urn:x'/>") {
			t.Errorf("document:\n%s", text)
		}
	}
	if c, ok := m.b.tracker.ByOwner(claims.Owner{Instance: v.UUID, Migration: m.ref.Migration, Attempt: 1, Kind: claims.KindLiveMigration}); !ok || c.State != claims.Arriving {
		t.Errorf("claim %+v, %v; want arriving", c.Redacted(), ok)
	}
	m.back()
}

func TestReclaim_RepeatedLateLeavesTheNextAttemptAlone(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm1")
	m := newMove(l, v.UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	m.back()
	late := m.ref
	m.ref.Attempt = 2
	m.prepare()
	l.must("start stream", m.start())
	l.must("reclaim of the first attempt", operation.Reclaim.Ask(t.Context(), m.a, late))
	if !m.status().InFlight {
		t.Error("a late reclaim aborted the next attempt's job")
	}
	l.fleet.HealData("a", "b")
	waitFor(t, "the end", func() bool { return !m.status().InFlight })
	m.handOver()
	l.state("b", v.UUID, driver.Running)
}
