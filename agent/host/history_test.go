package host_test

import (
	"context"
	"testing"

	"berth/agent/host"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
)

// remembering is a hypervisor whose log outlives its daemon.
type remembering struct {
	*drivertest.Fake
	end driver.Reason // of every domain's last run; empty where its log says nothing
}

func (r remembering) LastEnd(context.Context, string) (driver.Reason, error) {
	if r.end == "" {
		return "", fault.New(fault.NotFound, "its log has no end of the last run")
	}
	return r.end, nil
}

// TestHistory_AGuestWhoseLibvirtForgetsThatItLeft kills agent and libvirtd of the source
// right after the guest has left: what libvirt's log says settles it, or where that says
// nothing what the conductor's journal has seen, and nothing else.
func TestHistory_AGuestWhoseLibvirtForgetsThatItLeft(t *testing.T) {
	for _, tt := range []struct {
		end     driver.Reason // as the log has it
		started bool          // somebody has started and ended the guest at the source since
		journal migration.Conduct
		left    bool
		commits bool
	}{
		{driver.ReasonMigrated, false, migration.ConductGoing, true, true}, {driver.ReasonMigrated, true, migration.ConductSeen, false, false},
		{driver.ReasonCrashed, false, migration.ConductSeen, false, false}, {"", false, migration.ConductGoing, false, false},
		{"", true, migration.ConductSeen, false, false}, {"", false, migration.ConductSeen, false, true},
	} {
		end, left := tt.end, tt.left
		l := newLab(t, "a", "b")
		v := l.guest("a", "vm1")
		m := newMove(l, v.UUID)
		m.prepare()
		l.fleet.CutData("a", "b")
		l.must("start stream", m.start())
		m.a.Close()
		m.a.store = m.a.store.Crash()
		l.fleet.HealData("a", "b")
		waitFor(t, "the guest to leave", func() bool {
			d, err := m.a.fake.Domain(t.Context(), v.UUID)
			return err == nil && d.State == driver.ShutOff && d.Reason == driver.ReasonMigrated
		})
		m.a.fake.KillDaemon()
		m.a.fake.StartDaemon()
		l.boot("a", func(o *host.Options) {
			o.Driver = remembering{m.a.fake, end}
			o.Conducts = func(string, int) migration.Conduct { return tt.journal }
		})
		if d, err := m.a.fake.Domain(t.Context(), v.UUID); err != nil || d.Reason != driver.ReasonUnknown {
			t.Fatalf("libvirt has not forgotten: %+v, %v", d, err)
		}
		if tt.started {
			l.must("start", m.a.fake.Start(t.Context(), v.UUID, true))
			l.must("destroy", m.a.fake.Destroy(t.Context(), v.UUID))
		}
		l.must("adopt the stream", m.start())
		if st := m.status(); st.Left != left {
			t.Errorf("the log says %q: left %v", end, st.Left)
		}
		_, err := operation.Commit.Ask(t.Context(), m.a, m.ref)
		if !tt.commits {
			l.wantKind("commit", err, fault.Forbidden)
			continue
		}
		l.must("commit", err)
		l.wantKind("reclaim", operation.Reclaim.Ask(t.Context(), m.a, m.ref), fault.Forbidden)
		m.handOver()
		l.state("b", v.UUID, driver.Running)
	}
}
