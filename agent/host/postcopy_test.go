package host_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/claims"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/migration/options"
)

// newBusy is a move of a guest that writes faster than its memory can be sent.
func newBusy(t *testing.T) *move {
	t.Helper()
	l := newLab(t, "a", "b")
	l.fleet.SetPace(drivertest.Pace{Tick: time.Millisecond, Rate: 64 << 20, DirtyRate: 256 << 20})
	m := newMove(l, l.guest("a", "busy").UUID)
	m.options.PostCopy = options.On
	m.prepare()
	return m
}

func (m *move) sent() migration.Stream {
	return migration.Stream{Prepared: m.prepared, Ticket: m.claim.Ticket, CopyDisks: m.source.CopyDisks, Shared: m.source.Shared, Options: m.options}
}

// fast lets what is in flight come to its end.
func (m *move) fast() { m.fleet.SetPace(drivertest.Pace{Tick: time.Millisecond}) }

// half brings the guest into post-copy, each verb twice.
func (m *move) half() {
	m.t.Helper()
	m.must("start stream", m.start())
	for range 2 {
		m.must("end stream", m.a.EndStream(m.t.Context(), m.ref))
	}
	if st := m.status(); st.InFlight || !st.EndWanted || st.PostCopy || st.Domain.State != "running" {
		m.t.Fatalf("after the first job: %+v", st)
	}
	for range 2 {
		m.must("start post-copy", m.a.StartPostCopy(m.t.Context(), m.ref, m.sent()))
	}
	m.isHalf("post-copy", true)
}

// isHalf looks at a guest whose memory is on both sides.
func (m *move) isHalf(phase string, inFlight bool) {
	m.t.Helper()
	waitFor(m.t, phase, func() bool {
		st := m.status()
		return st.PostCopy && st.InFlight == inFlight && st.Progress.Phase == phase && st.Domain.Reason == phase && !st.Left
	})
}

// whole waits until all has come, and looks at what is left.
func (m *move) whole() {
	m.t.Helper()
	m.fast()
	waitFor(m.t, "all memory", func() bool { st := m.status(); return st.Left && !st.InFlight })
	ctx := m.t.Context()
	m.must("finish", operation.FinishDestination.Ask(ctx, m.b, m.ref))
	m.must("clean up", operation.CleanUpSource.Ask(ctx, m.a, m.ref))
	if d, err := m.b.fake.Domain(ctx, m.ref.Instance); err != nil || d.State != driver.Running || d.Reason != driver.ReasonMigrated {
		m.t.Errorf("at the destination it is %s (%s), %v", d.State, d.Reason, err)
	}
	if len(m.a.tracker.List()) > 0 || len(m.a.tracker.Contexts()) > 0 {
		m.t.Errorf("left at the source: %v, %v", m.a.tracker.List(), m.a.tracker.Contexts())
	}
}

func TestPostCopy_GoesForwardOnly(t *testing.T) {
	m := newBusy(t)
	m.half()
	ctx := t.Context()
	m.wantKind("reclaim of half a guest", operation.Reclaim.Ask(ctx, m.a, m.ref), fault.Forbidden)
	m.wantKind("clean up without a commit", operation.CleanUpSource.Ask(ctx, m.a, m.ref), fault.Forbidden)
	m.wantKind("roll back what runs there", operation.RollbackPreLiveMigration.Ask(ctx, m.b, m.ref), fault.Busy)
	m.wantKind("suspend", operation.TuneStream.Ask(ctx, m.a, m.ref, migration.Tuning{Suspend: true}), fault.Forbidden)
	m.must("bandwidth", operation.TuneStream.Ask(ctx, m.a, m.ref, migration.Tuning{Bandwidth: 32 << 20}))
	var err error
	m.commit, err = operation.Commit.Ask(ctx, m.a, m.ref)
	m.must("commit", err)
	for range 2 {
		m.must("accept token", operation.AcceptToken.Ask(ctx, m.b, m.ref, m.commit))
	}
	m.wantKind("finish", operation.FinishDestination.Ask(ctx, m.b, m.ref), fault.Busy)
	m.wantKind("clean up", operation.CleanUpSource.Ask(ctx, m.a, m.ref), fault.Busy)
	m.isHalf("post-copy", true)
	m.whole()
}

// TestPostCopy_GoesOnAfterABreak loses the connection, with either agent dying meanwhile.
func TestPostCopy_GoesOnAfterABreak(t *testing.T) {
	m := newBusy(t)
	m.half()
	ctx := t.Context()
	commit, err := operation.Commit.Ask(ctx, m.a, m.ref)
	m.must("commit", err)
	m.must("accept token", operation.AcceptToken.Ask(ctx, m.b, m.ref, commit))
	m.must("recover what is whole", m.a.RecoverPostCopy(ctx, m.ref, m.sent()))
	for _, dies := range []string{"", "a", "b"} {
		m.fleet.BreakPostCopy(m.ref.Instance)
		m.isHalf("post-copy failed", false)
		if dies != "" {
			m.restart(dies)
			m.a, m.b = m.hosts["a"], m.hosts["b"]
			m.must("adopt it", m.a.StartPostCopy(ctx, m.ref, m.sent()))
			m.isHalf("post-copy failed", false)
		}
		waitFor(t, "the recovery", func() bool {
			err := m.a.RecoverPostCopy(ctx, m.ref, m.sent())
			if err != nil {
				m.wantKind("recover", err, fault.Unavailable)
			}
			return err == nil
		})
		m.isHalf("post-copy", true)
	}
	// A link that swallows everything: nobody notices but who watches.
	m.fleet.CutData("a", "b")
	m.isHalf("post-copy", true)
	waitFor(t, "its break by a dead link", func() bool {
		// The hypervisor's call for it lasts until the destination knows, too.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		m.wantKind("recover by a dead link", m.a.RecoverPostCopy(ctx, m.ref, m.sent()), fault.Unavailable)
		return m.status().Progress.Phase == "post-copy failed"
	})
	m.isHalf("post-copy failed", false)
	m.fleet.HealData("a", "b")
	m.fleet.BreakPostCopy(m.ref.Instance) // the destination's QEMU notices
	waitFor(t, "the recovery", func() bool { return m.a.RecoverPostCopy(ctx, m.ref, m.sent()) == nil })
	m.whole()
}

// TestPostCopy_AnAgentThatDiesFindsItsJob kills the source's agent after each record and
// effect, and asks the next one for the same.
func TestPostCopy_AnAgentThatDiesFindsItsJob(t *testing.T) {
	t.Run("in the first job, whose end was wanted", func(t *testing.T) {
		m := newBusy(t)
		m.must("start stream", m.start())
		ctx, cancel := context.WithCancel(t.Context())
		m.a.fake.Fault(func(call, _ string) error {
			if call == "AbortJob" {
				cancel()
				return fault.New(fault.Unavailable, "the agent dies")
			}
			return nil
		})
		if err := m.a.EndStream(ctx, m.ref); err == nil {
			t.Fatal("the job was ended")
		}
		m.a.fake.Fault(nil)
		m.a = m.restart("a")
		if st := m.status(); !st.EndWanted || !st.InFlight {
			t.Errorf("the next agent says %+v", st)
		}
		m.must("end stream", m.a.EndStream(t.Context(), m.ref))
		m.must("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()))
		m.isHalf("post-copy", true)
		m.over()
	})
	t.Run("before the second was asked for", func(t *testing.T) {
		m := newBusy(t)
		m.must("start stream", m.start())
		m.must("end stream", m.a.EndStream(t.Context(), m.ref))
		m.a.fake.Fault(func(call, _ string) error {
			if call == "Migrate" {
				return fault.New(fault.Undone, "the agent dies")
			}
			return nil
		})
		m.wantKind("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Undone)
		m.a.fake.Fault(nil)
		m.a = m.restart("a")
		// It was asked for, and is never asked for again.
		m.wantKind("start post-copy again", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Undone)
		m.back()
		m.state("a", m.ref.Instance, driver.Running)
	})
	t.Run("before it switched", func(t *testing.T) {
		m := newBusy(t)
		m.must("start stream", m.start())
		m.must("end stream", m.a.EndStream(t.Context(), m.ref))
		ctx, cancel := context.WithCancel(t.Context())
		m.a.fake.Fault(func(call, _ string) error {
			if call == "StartPostCopy" {
				cancel()
				return fault.New(fault.Internal, "QEMU has not begun")
			}
			return nil
		})
		m.wantKind("start post-copy", m.a.StartPostCopy(ctx, m.ref, m.sent()), fault.Unavailable)
		m.a.fake.Fault(nil)
		m.a = m.restart("a")
		if st := m.status(); !st.PostCopy || !st.InFlight || st.Domain.State != "running" {
			t.Errorf("the next agent says %+v", st)
		}
		m.must("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()))
		m.isHalf("post-copy", true)
		m.over()
	})
	t.Run("in post-copy, which ends without it", func(t *testing.T) {
		m := newBusy(t)
		m.half()
		m.a = m.restart("a")
		m.must("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()))
		m.isHalf("post-copy", true)
		m.over()
	})
}

// TestPostCopy_OfAGuestThatEndsThere: nobody else stops, starts or deletes what is half a guest.
// When it has ended where it ran, it is that host's, off, and what is left at the source goes on
// the conductor's word alone.
func TestPostCopy_OfAGuestThatEndsThere(t *testing.T) {
	m := newBusy(t)
	m.half()
	ctx := t.Context()
	commit, err := operation.Commit.Ask(ctx, m.a, m.ref)
	m.must("commit", err)
	m.must("accept token", operation.AcceptToken.Ask(ctx, m.b, m.ref, commit))
	for name, h := range map[string]*node{"a": m.a, "b": m.b} {
		for verb, err := range map[string]error{
			"start":  h.Start(ctx, m.ref.Instance, false),
			"stop":   h.Stop(ctx, m.ref.Instance, host.StopOptions{Force: true}),
			"delete": h.Delete(ctx, m.ref.Instance, host.DeleteOptions{Force: true}),
		} {
			m.wantKind(verb+" on "+name, err, fault.Busy)
		}
	}
	m.isHalf("post-copy", true)
	m.must("destroy", m.b.fake.Destroy(ctx, m.ref.Instance))
	m.isHalf("post-copy failed", false)
	here, there := migration.Settlement{GuestIsAt: "a", Why: "as far as it came"}, migration.Settlement{GuestIsAt: "b", Why: "it ended there"}
	err = m.a.TakeWord(ctx, m.ref, here)
	if m.wantKind("half a guest", err, fault.Forbidden); !slices.Equal(codes(err), []string{"half_here"}) {
		t.Errorf("reasons %v", codes(err))
	}
	m.must("finish", operation.FinishDestination.Ask(ctx, m.b, m.ref))
	m.wantKind("clean up", operation.CleanUpSource.Ask(ctx, m.a, m.ref), fault.Busy)
	m.must("take word", m.a.TakeWord(ctx, m.ref, there))
	m.must("clean up", operation.CleanUpSource.Ask(ctx, m.a, m.ref))
	m.state("b", m.ref.Instance, driver.ShutOff)
	if _, err := m.a.fake.Domain(ctx, m.ref.Instance); !errors.Is(err, fault.NotFound) || len(m.a.tracker.List()) > 0 {
		t.Errorf("left at the source: %v, %v", err, m.a.tracker.List())
	}
	m.must("start it anew", m.b.Start(ctx, m.ref.Instance, false))
}

// TestReclaim_OfAGuestThatItsSecondJobHandedOver: it ended before it was post-copy, and libvirtd
// was killed before it heard that the guest runs at the destination. Here it goes on only when
// who asks has been told how it stands, and so has asked the destination.
func TestReclaim_OfAGuestThatItsSecondJobHandedOver(t *testing.T) {
	m := newBusy(t)
	m.must("start stream", m.start())
	ctx := t.Context()
	m.must("end stream", m.a.EndStream(ctx, m.ref))
	m.fleet.SetPace(drivertest.Pace{Tick: time.Millisecond})
	m.a.fake.Fault(func(call, _ string) error {
		if call != "StartPostCopy" {
			return nil
		}
		// Of an idle guest: what holds it back is not enough. It may be over by now.
		_ = m.a.fake.SetBandwidth(ctx, m.ref.Instance, 1<<40)
		_ = m.a.fake.SetMaxDowntime(ctx, m.ref.Instance, time.Minute)
		return fault.New(fault.Internal, "QEMU has not begun")
	})
	m.fleet.FaultPhase(func(phase, _ string) error {
		if phase == drivertest.PhaseFinishReply {
			m.a.fake.KillDaemon()
		}
		return nil
	})
	if err := m.a.StartPostCopy(ctx, m.ref, m.sent()); err == nil {
		t.Fatal("the guest has switched")
	}
	m.must("start libvirtd", m.a.fake.StartDaemon())
	if d, err := m.a.fake.Domain(ctx, m.ref.Instance); err != nil || d.State != driver.Paused || d.Reason != driver.ReasonMigrating {
		t.Fatalf("here it is %s (%s), %v", d.State, d.Reason, err)
	}
	m.state("b", m.ref.Instance, driver.Running)
	m.wantKind("reclaim", operation.Reclaim.Ask(ctx, m.a, m.ref), fault.InDoubt)
	m.state("a", m.ref.Instance, driver.Paused)
	if st := m.status(); st.InFlight || !st.PostCopy || st.Domain.State != "paused" {
		t.Errorf("it is said to be %+v", st)
	}
	m.must("destroy there", m.b.fake.Destroy(ctx, m.ref.Instance))
	m.back()
	m.state("a", m.ref.Instance, driver.Running)
}

// over hands the guest over, and ends the move.
func (m *move) over() {
	m.t.Helper()
	commit, err := operation.Commit.Ask(m.t.Context(), m.a, m.ref)
	m.must("commit", err)
	m.must("accept token", operation.AcceptToken.Ask(m.t.Context(), m.b, m.ref, commit))
	m.whole()
}

func TestEndStream_IsTooLateForAGuestThatHasLeft(t *testing.T) {
	l := newLab(t, "a", "b")
	m := newMove(l, l.guest("a", "vm").UUID)
	m.options.PostCopy = options.On
	m.prepare()
	m.stream()
	l.wantKind("end stream", m.a.EndStream(t.Context(), m.ref), fault.Forbidden)
	l.wantKind("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
	m.handOver()
}

// TestStartPostCopy_NeedsTheFirstJobsEnd: neither beside a stream, nor after one that failed by
// itself.
func TestStartPostCopy_NeedsTheFirstJobsEnd(t *testing.T) {
	m := newBusy(t)
	m.wantKind("before any stream", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
	m.wantKind("recover nothing", m.a.RecoverPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
	m.must("start stream", m.start())
	m.wantKind("beside the stream", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
	m.must("abort", m.a.fake.AbortJob(t.Context(), m.ref.Instance))
	waitFor(t, "its end", func() bool { return !m.status().InFlight })
	m.wantKind("after a stream that failed", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
	m.back()
	m.wantKind("after the undo", m.a.StartPostCopy(t.Context(), m.ref, m.sent()), fault.Forbidden)
}

func TestStartPostCopy_RefusesAGuestThatItsUserPausedMeanwhile(t *testing.T) {
	m := newBusy(t)
	m.must("start stream", m.start())
	m.must("end stream", m.a.EndStream(t.Context(), m.ref))
	m.must("suspend", m.a.fake.Suspend(t.Context(), m.ref.Instance))
	err := m.a.StartPostCopy(t.Context(), m.ref, m.sent())
	m.wantKind("start post-copy", err, fault.Forbidden)
	if got := codes(err); len(got) != 1 || got[0] != "post_copy_paused" {
		t.Errorf("reasons %v", got)
	}
	m.back()
	m.state("a", m.ref.Instance, driver.Paused)
}

// TestTuneStream_SuspendsUntilTheMoveIsOver: who takes the guest, or keeps it, lets it run
// again, unless its user had paused it.
func TestTuneStream_SuspendsUntilTheMoveIsOver(t *testing.T) {
	suspended := func(t *testing.T) *move {
		m := newBusy(t)
		m.must("start stream", m.start())
		waitFor(t, "its first page", func() bool { return m.status().Progress.MemoryProcessed > 0 })
		m.must("suspend", operation.TuneStream.Ask(t.Context(), m.a, m.ref, migration.Tuning{Suspend: true}))
		m.state("a", m.ref.Instance, driver.Paused)
		return m
	}
	t.Run("kept", func(t *testing.T) {
		m := suspended(t)
		m.a = m.restart("a")
		m.must("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref))
		m.state("a", m.ref.Instance, driver.Running)
		m.wantKind("suspend after all", operation.TuneStream.Ask(t.Context(), m.a, m.ref, migration.Tuning{Suspend: true}), fault.NotFound)
		m.state("a", m.ref.Instance, driver.Running)
	})
	t.Run("given away", func(t *testing.T) {
		m := suspended(t)
		m.fast()
		waitFor(t, "the stream's end", func() bool { return !m.status().InFlight })
		m.handOver()
		m.state("b", m.ref.Instance, driver.Running)
	})
	t.Run("sent by post-copy after all", func(t *testing.T) {
		m := suspended(t)
		m.must("end stream", m.a.EndStream(t.Context(), m.ref))
		m.state("a", m.ref.Instance, driver.Running)
		m.must("start post-copy", m.a.StartPostCopy(t.Context(), m.ref, m.sent()))
		m.over()
	})
}

// TestSides_WaitForTheRestOfAGuest: a destination that is alone in post-copy, with or without the
// token, ends nothing, finishes nothing, and says what it waits for.
func TestSides_WaitForTheRestOfAGuest(t *testing.T) {
	m := newBusy(t)
	m.half()
	commit, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
	m.must("commit", err)
	m.must("accept token", operation.AcceptToken.Ask(t.Context(), m.b, m.ref, commit))
	m.b.Close()
	m.b = m.boot("b", func(o *host.Options) {
		o.Silence = time.Millisecond
		o.Side = func(context.Context, string) (migration.Side, error) { return m.a, nil }
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.b.FollowSides(ctx) }()
	waitFor(t, "its word", func() bool {
		w := m.b.Waiting()
		return len(w) == 1 && strings.Contains(w[0].For, "post-copy") && !w[0].InDoubt
	})
	if c := m.b.tracker.ByMigration(m.ref.Migration); len(c) != 1 || c[0].State != claims.Arriving {
		t.Errorf("its claim: %+v", c)
	}
	m.fast()
	waitFor(t, "its end", func() bool {
		c, bound := m.b.tracker.ByOwner(claims.Owner{Instance: m.ref.Instance, Kind: claims.KindInstance})
		return bound && c.State == claims.Bound
	})
	cancel()
	m.must("follow sides", <-ended)
	m.must("clean up", operation.CleanUpSource.Ask(t.Context(), m.a, m.ref))
}

func TestCheck_PostCopyIsRefusedOrDropped(t *testing.T) {
	l := newLab(t, "a", "b")
	v := l.guest("a", "vm")
	l.must("suspend", l.hosts["a"].fake.Suspend(t.Context(), v.UUID))
	m := newMove(l, v.UUID)
	here, err := m.a.Describe(t.Context())
	l.must("describe", err)
	c := migration.CheckRequest{Guest: m.guest, Source: here, Options: migration.Options{PostCopy: options.On}}
	a, err := operation.CheckDestination.Ask(t.Context(), m.b, m.ref, c)
	l.must("check destination", err)
	s, err := operation.CheckSource.Ask(t.Context(), m.a, m.ref, a)
	l.must("check source", err)
	for _, dropped := range [][]fault.Reason{a.Dropped, s.Dropped} {
		if len(dropped) != 1 || dropped[0].Code != "post_copy_paused" {
			t.Errorf("dropped %+v", dropped)
		}
	}
	if !migration.PostCopyDropped(a, s) {
		t.Error("it is not said that post-copy is dropped")
	}
	c.PostCopyAsked = true
	_, err = operation.CheckDestination.Ask(t.Context(), m.b, m.ref, c)
	l.wantKind("check destination", err, fault.Forbidden)
	a.PostCopyAsked = true
	_, err = operation.CheckSource.Ask(t.Context(), m.a, m.ref, a)
	l.wantKind("check source", err, fault.Forbidden)
	if got := codes(err); len(got) != 1 || got[0] != "post_copy_paused" {
		t.Errorf("reasons %v", got)
	}
}
