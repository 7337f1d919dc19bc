package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/agent/api"
	"berth/agent/host"
	"berth/claims"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/drain"
	"berth/topology"
)

// TestDrain_EmptiesAHostAndLeavesItDisabled drains one host of three: live, and what is off by a
// cold move that leaves nothing behind to be confirmed.
func TestDrain_EmptiesAHostAndLeavesItDisabled(t *testing.T) {
	t.Parallel()
	f := newPlanFleet(t, func(string, *config.Config, *machineTree) {})
	a := f.clients["host-a"]
	f.guest("host-a", host.CreateRequest{Name: "web"})
	off := f.guest("host-a", host.CreateRequest{Name: "off"})
	_, err := a.StopInstance(t.Context(), off.UUID, api.StopInstance{Force: true})
	f.must(err)

	plan, err := a.PlanDrain(t.Context(), api.DrainRequest{})
	f.must(err)
	how := map[string]api.DrainHow{}
	for _, g := range plan.Guests {
		how[g.Name] = g.How
		if g.To == "" || len(g.Blockers) != 0 {
			t.Errorf("planned %+v", g)
		}
	}
	if diff := cmp.Diff(map[string]api.DrainHow{"web": api.DrainLive, "off": api.DrainCold}, how); diff != "" || plan.Disabled != nil || plan.MaxOutbound != 2 {
		t.Errorf("plan %+v (-want +got):\n%s", plan, diff)
	}

	d, err := a.BeginDrain(t.Context(), api.DrainRequest{})
	f.must(err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f.must(a.WatchDrain(ctx, "host-a", time.Second, func(seen api.Drain) error { d = seen; return nil }))
	for _, g := range d.Guests {
		if g.State != api.DrainedMoved {
			t.Errorf("%s is %s: %+v", g.Name, g.State, g.Reasons)
		}
	}
	if d.State != api.DrainDone || len(d.Guests) != 2 {
		t.Errorf("drain %+v", d)
	}
	list, err := a.Instances(t.Context())
	f.must(err)
	s, err := a.Status(t.Context())
	f.must(err)
	if len(list.Instances) != 0 || s.Claims != 0 || s.Disabled == nil || s.Disabled.Reason != "drain "+d.UUID {
		t.Errorf("left on the host: %d guests, %d claims; disabled %+v", len(list.Instances), s.Claims, s.Disabled)
	}
	moves, err := a.Migrations(t.Context())
	f.must(err)
	for _, m := range moves {
		if m.Queue != d.UUID || m.By != d.By || m.By == "" || m.Outcome != migration.OutcomeCompleted {
			t.Errorf("move %+v", m)
		}
	}
	if _, err := a.AbortDrain(t.Context(), "host-a"); !errors.Is(err, fault.Forbidden) {
		t.Errorf("abort of one that is over: %v", err)
	}
	if _, err := a.BeginDrain(t.Context(), api.DrainRequest{Evacuate: true, Host: "host-down"}); !errors.Is(err, fault.Forbidden) {
		t.Errorf("evacuation of a host without a proof that it is dead: %v", err)
	}
}

func TestPresentOf_NamesWhatADrainCannotMove(t *testing.T) {
	t.Parallel()
	here := claims.Token{State: claims.TokenHere}
	away := claims.Token{State: claims.TokenSurrendered, Holder: "b"}
	in := claims.Instance{UUID: "u", Name: "g", Flavor: topology.Flavor{MemoryMB: 64}, Token: here}
	with := func(k claims.Token, change func(*host.InstanceView)) host.InstanceView {
		v := host.InstanceView{Instance: in, Managed: true, State: "running", Status: "ACTIVE"}
		v.Token = k
		change(&v)
		return v
	}
	waits := func(half host.ResizeHalf) func(*host.InstanceView) {
		return func(v *host.InstanceView) {
			v.Status, v.Resize = "VERIFY_RESIZE", &host.ResizeView{Migration: "m", Half: half, Next: []string{"berth resize confirm g", "berth resize revert g"}}
		}
	}
	for _, c := range []struct {
		name          string
		view          host.InstanceView
		here          bool
		blocked, wait string
	}{
		{"one that runs", with(here, func(*host.InstanceView) {}), true, "", ""},
		{"one that is off", with(here, func(v *host.InstanceView) { v.State = "shut off" }), true, "", ""},
		{"a stranger", with(claims.Token{}, func(v *host.InstanceView) { v.Managed = false }), true, "not_managed", ""},
		{"a stranger that a tool brings", with(claims.Token{}, func(v *host.InstanceView) { v.Managed, v.Migration = false, "m" }), false, "", ""},
		{"one that waits to be confirmed", with(here, waits(host.HalfGuest)), true, "migration_unfinished", ""},
		{"one that was resized in its place", with(here, waits(host.HalfBoth)), true, "migration_unfinished", ""},
		{"what is kept of one that has left", with(away, waits(host.HalfKept)), true, "migration_unfinished", ""},
		{"one in doubt", with(claims.Token{State: claims.TokenDoubt}, func(*host.InstanceView) {}), true, "token_in_doubt", ""},
		{"one on a move", with(here, func(v *host.InstanceView) { v.Status, v.Migration = "MIGRATING", "m" }), true, "", "moving"},
		{"one that is just leaving", with(away, func(v *host.InstanceView) { v.Migration = "m" }), true, "", "moving"},
		{"one that has left", with(away, func(*host.InstanceView) {}), false, "", ""},
		{"one that is to come", with(away, func(v *host.InstanceView) { v.Hidden, v.Migration = true, "m" }), false, "", ""},
		{"one without a domain", with(here, func(v *host.InstanceView) { v.State = "" }), true, "domain_missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, present := presentOf(c.view)
			if present != c.here {
				t.Fatalf("here: %v, want %v", present, c.here)
			}
			if !present {
				return
			}
			if got := codesOf(p.Blocked); got != c.blocked {
				t.Errorf("blocked by %q, want %q", got, c.blocked)
			}
			if got := codesOf(p.Waits); got != c.wait {
				t.Errorf("waits for %q, want %q", got, c.wait)
			}
			for _, r := range append(p.Blocked, p.Waits...) {
				if r.Message == "" || r.Change == "" {
					t.Errorf("a reason without words: %+v", r)
				}
			}
		})
	}
}

func TestWayOf(t *testing.T) {
	t.Parallel()
	takes := func(name string) migration.PlanHost {
		return migration.PlanHost{Name: name, Verdict: migration.VerdictTakes}
	}
	full := migration.PlanHost{Name: "c", Verdict: migration.VerdictRefuses, Reasons: []fault.Reason{{Code: "memory_short", Message: "no room"}}}
	p := drain.Present{Instance: "u", Name: "g"}
	for _, c := range []struct {
		name  string
		plan  migration.Plan
		to    []string
		want  drain.How
		dest  string
		codes string
		err   error
	}{
		{"to the one that is chosen", migration.Plan{Chosen: "b", Hosts: []migration.PlanHost{takes("b"), full}}, nil, drain.HowLive, "b", "", nil},
		{"to one of those that were named", migration.Plan{Chosen: "b", Hosts: []migration.PlanHost{takes("b"), takes("d")}}, []string{"c", "d"}, drain.HowLive, "d", "", nil},
		{"nobody has room at present", migration.Plan{Hosts: []migration.PlanHost{full}}, nil, drain.HowLive, "", "memory_short", nil},
		{"there is nobody", migration.Plan{}, nil, drain.HowLive, "", "no_candidate", nil},
		{"there is nobody of those that were named", migration.Plan{Chosen: "b", Hosts: []migration.PlanHost{takes("b")}}, []string{"x", "y"}, drain.HowLive, "", "no_candidate", nil},
		{"it cannot leave", migration.Plan{Blockers: []fault.Reason{{Code: "device_not_migratable"}}}, nil, drain.HowStays, "", "device_not_migratable", nil},
		{"its data would be lost", migration.Plan{Hosts: []migration.PlanHost{{
			Name: "b", Verdict: migration.VerdictRefuses, Reasons: []fault.Reason{{Code: migration.ReasonDataLost}}, Disks: &migration.EvacuatedDisks{Lost: []string{"vda"}},
		}}}, nil, drain.HowStays, "", migration.ReasonDataLost, nil},
		{"Placement does not answer", migration.Plan{Blockers: []fault.Reason{{Code: "unavailable"}}}, nil, "", "", "", fault.Busy},
		{"it has been shut off meanwhile", migration.Plan{Blockers: []fault.Reason{{Code: "guest_not_running"}}}, nil, "", "", "", fault.Busy},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, err := wayOf(c.plan, drain.Request{To: c.to}, p, drain.HowLive)
			if c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("error %v, want %v", err, c.err)
				}
				return
			}
			for _, name := range c.to {
				if c.codes == "no_candidate" && !strings.Contains(w.Reasons[0].Message, name) {
					t.Errorf("%s was named, and is not told of: %+v", name, w.Reasons)
				}
			}
			if err != nil || w.How != c.want || w.To != c.dest || codesOf(w.Reasons) != c.codes {
				t.Errorf("%+v, %v; want %s to %q because of %q", w, err, c.want, c.dest, c.codes)
			}
		})
	}
}
