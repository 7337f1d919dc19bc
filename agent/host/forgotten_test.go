package host_test

import (
	"testing"

	"berth/driver"
	"berth/internal/fault"
	"berth/migration/operation"
)

// leaveForgotten lets a guest leave whose agent was restarted in mid-stream, and its
// libvirtd restart before anybody has looked.
func (m *move) leaveForgotten() {
	m.t.Helper()
	m.fleet.HealData("a", "b")
	waitFor(m.t, "the guest to leave", func() bool {
		d, err := m.a.fake.Domain(m.t.Context(), m.ref.Instance)
		return err == nil && d.State == driver.ShutOff
	})
	m.a.fake.KillDaemon()
	m.a.fake.StartDaemon()
	m.state("a", m.ref.Instance, driver.ShutOff)
}

// cutMidStream is a move whose stream stands still, and whose source's agent was
// restarted since.
func cutMidStream(t *testing.T) (*lab, *move) {
	t.Helper()
	l := newLab(t, "a", "b")
	m := newMove(l, l.guest("a", "vm1").UUID)
	m.prepare()
	l.fleet.CutData("a", "b")
	l.must("start stream", m.start())
	m.a = l.restart("a")
	return l, m
}

// The rollback that follows a reclaim ends the destination's copy: here the only one.
func TestReclaim_DoesNotKeepAGuestThatWentOffWhileItLooked(t *testing.T) {
	l, m := cutMidStream(t)
	left := false
	m.a.fake.Fault(func(call, _ string) error {
		if call == "AbortJob" && !left {
			left = true
			m.leaveForgotten()
		}
		return nil
	})
	l.wantKind("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.InDoubt)
	if !left {
		t.Fatal("the guest did not leave in between: the test shows nothing")
	}
	l.state("b", m.ref.Instance, driver.Paused)
}

// The conductor asks the destination only where it was told that the domain is off.
func TestReclaim_OfAGuestThatIsOffOnlyWhereItsConductorWasToldSo(t *testing.T) {
	l, m := cutMidStream(t)
	if st := m.status(); st.Domain.State == string(driver.ShutOff) {
		t.Fatalf("it has left already: %+v", st)
	}
	m.leaveForgotten()
	l.wantKind("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.InDoubt)
	l.state("b", m.ref.Instance, driver.Paused)
	if st := m.status(); st.Domain.State != string(driver.ShutOff) || st.Left {
		t.Fatalf("told %+v", st)
	}
	l.must("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref))
}

// A QEMU that dies under an abort may have died after its guest had left.
func TestReclaim_DoesNotKeepAGuestWhoseQEMUDiedWhileItLooked(t *testing.T) {
	l, m := cutMidStream(t)
	died := false
	m.a.fake.Fault(func(call, _ string) error {
		if call == "AbortJob" && !died {
			died = true
			m.a.fake.CrashGuest(m.ref.Instance)
		}
		return nil
	})
	l.wantKind("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.InDoubt)
	waitFor(t, "the job to be seen over", func() bool { return !m.status().InFlight })
	if st := m.status(); st.Domain.Reason != string(driver.ReasonCrashed) {
		t.Fatalf("told %+v, want a guest that crashed", st)
	}
	l.must("reclaim once its conductor was told", operation.Reclaim.Ask(t.Context(), m.a, m.ref))
}
