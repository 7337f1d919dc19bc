package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"berth/agent/api"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/topology"
)

func (h *fakeHost) PlanChange(_ context.Context, r migration.Ref, c migration.Change) (migration.Wanted, error) {
	return migration.Wanted{Flavor: *c.Flavor}, h.note("PlanChange", r)
}

// PowerOff is pulled where the guest has all the time that it is given.
func (h *fakeHost) PowerOff(ctx context.Context, r migration.Ref, p migration.PowerOffRequest) (migration.PoweredOff, error) {
	until, _ := ctx.Deadline()
	return migration.PoweredOff{PowerState: migration.PowerPaused, Pulled: time.Until(until) > p.Timeout}, h.note("PowerOff", r)
}
func (h *fakeHost) PowerOn(_ context.Context, r migration.Ref) error { return h.note("PowerOn", r) }

func (h *fakeHost) HandOver(_ context.Context, r migration.Ref, q migration.HandOverRequest) (migration.Commit, error) {
	return migration.Commit{To: q.To, Epoch: 8}, h.note("HandOver", r)
}
func (h *fakeHost) KeepGuest(_ context.Context, r migration.Ref) error { return h.note("KeepGuest", r) }
func (h *fakeHost) ConfirmSource(_ context.Context, r migration.Ref) error {
	return h.note("ConfirmSource", r)
}
func (h *fakeHost) AwaitReturn(_ context.Context, r migration.Ref) error {
	return h.note("AwaitReturn", r)
}
func (h *fakeHost) CancelReturn(_ context.Context, r migration.Ref) error {
	return h.note("CancelReturn", r)
}
func (h *fakeHost) FinishRevert(_ context.Context, r migration.Ref) error {
	return h.note("FinishRevert", r)
}

func (h *fakeHost) PrepResize(_ context.Context, r migration.Ref, p migration.PrepRequest) (migration.PreparedCold, error) {
	return migration.PreparedCold{Files: []migration.ShipFile{{Target: p.CopyDisks[0]}}}, h.note("PrepResize", r)
}
func (h *fakeHost) RollbackPrepResize(_ context.Context, r migration.Ref) error {
	return h.note("RollbackPrepResize", r)
}
func (h *fakeHost) AcceptHanded(_ context.Context, r migration.Ref, _ migration.Commit) error {
	return h.note("AcceptHanded", r)
}
func (h *fakeHost) FinishResize(_ context.Context, r migration.Ref) error {
	return h.note("FinishResize", r)
}
func (h *fakeHost) ConfirmDestination(_ context.Context, r migration.Ref) error {
	return h.note("ConfirmDestination", r)
}
func (h *fakeHost) CleanUpReverted(_ context.Context, r migration.Ref) error {
	return h.note("CleanUpReverted", r)
}

func (h *fakeHost) PrepChange(_ context.Context, r migration.Ref, _ migration.PrepRequest) error {
	return h.note("PrepChange", r)
}
func (h *fakeHost) RollbackPrepChange(_ context.Context, r migration.Ref) error {
	return h.note("RollbackPrepChange", r)
}
func (h *fakeHost) ApplyChange(_ context.Context, r migration.Ref) error {
	return h.note("ApplyChange", r)
}
func (h *fakeHost) UnapplyChange(_ context.Context, r migration.Ref) error {
	return h.note("UnapplyChange", r)
}
func (h *fakeHost) StartChanged(_ context.Context, r migration.Ref) error {
	return h.note("StartChanged", r)
}
func (h *fakeHost) FinishChange(_ context.Context, r migration.Ref) error {
	return h.note("FinishChange", r)
}

// conductorsVerbs calls each cold verb that only the host which conducts the move may
// ask, of either side.
func conductorsVerbs(c *api.Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"PowerOff": func(ctx context.Context) error {
			p, err := operation.PowerOff.Ask(ctx, c, ref, migration.PowerOffRequest{Timeout: time.Hour, Kind: migration.TypeResize})
			if err == nil && p != (migration.PoweredOff{PowerState: migration.PowerPaused, Pulled: true}) {
				err = fmt.Errorf("answer %+v", p)
			}
			return err
		},
		"PowerOn": func(ctx context.Context) error { return operation.PowerOn.Ask(ctx, c, ref) },
		"HandOver": func(ctx context.Context) error {
			m, err := operation.HandOver.Ask(ctx, c, ref, migration.HandOverRequest{To: "host-b"})
			if err == nil && (m.To != "host-b" || m.Epoch != 8) {
				err = fmt.Errorf("answer %+v", m)
			}
			return err
		},
		"KeepGuest":          func(ctx context.Context) error { return operation.KeepGuest.Ask(ctx, c, ref) },
		"ConfirmSource":      func(ctx context.Context) error { return operation.ConfirmSource.Ask(ctx, c, ref) },
		"AwaitReturn":        func(ctx context.Context) error { return operation.AwaitReturn.Ask(ctx, c, ref) },
		"CancelReturn":       func(ctx context.Context) error { return operation.CancelReturn.Ask(ctx, c, ref) },
		"FinishRevert":       func(ctx context.Context) error { return operation.FinishRevert.Ask(ctx, c, ref) },
		"PrepChange":         func(ctx context.Context) error { return operation.PrepChange.Ask(ctx, c, ref, migration.PrepRequest{}) },
		"RollbackPrepChange": func(ctx context.Context) error { return operation.RollbackPrepChange.Ask(ctx, c, ref) },
		"ApplyChange":        func(ctx context.Context) error { return operation.ApplyChange.Ask(ctx, c, ref) },
		"UnapplyChange":      func(ctx context.Context) error { return operation.UnapplyChange.Ask(ctx, c, ref) },
		"StartChanged":       func(ctx context.Context) error { return operation.StartChanged.Ask(ctx, c, ref) },
		"FinishChange":       func(ctx context.Context) error { return operation.FinishChange.Ask(ctx, c, ref) },
	}
}

// arrivalsVerbs calls each cold verb that the source asks of the destination.
func arrivalsVerbs(c *api.Client, source string) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"PrepResize": func(ctx context.Context) error {
			p, err := operation.PrepResize.Ask(ctx, c, ref, migration.PrepRequest{Source: source, CopyDisks: []string{"vdb"}})
			if err == nil && (len(p.Files) != 1 || p.Files[0].Target != "vdb") {
				err = fmt.Errorf("answer %+v", p)
			}
			return err
		},
		"RollbackPrepResize": func(ctx context.Context) error { return operation.RollbackPrepResize.Ask(ctx, c, ref) },
		"AcceptHanded": func(ctx context.Context) error {
			return operation.AcceptHanded.Ask(ctx, c, ref, migration.Commit{From: source})
		},
		"FinishResize":       func(ctx context.Context) error { return operation.FinishResize.Ask(ctx, c, ref) },
		"ConfirmDestination": func(ctx context.Context) error { return operation.ConfirmDestination.Ask(ctx, c, ref) },
		"CleanUpReverted":    func(ctx context.Context) error { return operation.CleanUpReverted.Ask(ctx, c, ref) },
	}
}

func TestColdVerbs_TheSourceConductsAndNobodyElse(t *testing.T) {
	ours := newCA(t, "ours")
	w := serve(t, "host-a", ours.host("host-a"))
	as := func(name string) *api.Client {
		return client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.host(name), As: name})
	}
	b, third := as("host-b"), as("host-c")
	refused := func(what string, verbs map[string]func(context.Context) error) {
		t.Helper()
		for name, call := range verbs {
			if err := call(t.Context()); !errors.Is(err, fault.Forbidden) || len(fault.ReasonsOf(err)) != 1 || w.verbs.count(name) != 0 {
				t.Errorf("%s of %s: %v (%d calls), want it refused with its reason", name, what, err, w.verbs.count(name))
			}
		}
	}
	// Nobody powers off a guest by a migration that he has made up.
	refused("a migration of which nothing is recorded", conductorsVerbs(b))
	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	refused("a third host", conductorsVerbs(third))
	refused("a third host that names itself", arrivalsVerbs(third, "host-c"))
	refused("a third host that names the true source", arrivalsVerbs(third, "host-b"))
	refused("an operator", conductorsVerbs(client(t, api.ClientOptions{Address: w.address, Name: "host-a", Identity: ours.operator("alice")})))
	refused("the local socket", arrivalsVerbs(client(t, api.ClientOptions{Socket: w.socket}), "host-b"))
	// Of the move that leaves this host its destination decides nothing.
	w.parties["m-1"] = [2]string{"host-a", "host-b"}
	refused("the destination", conductorsVerbs(b))

	w.parties["m-1"] = [2]string{"host-b", "host-a"}
	for name, call := range conductorsVerbs(b) {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("%s: %v, %d calls", name, err, w.verbs.count(name))
		}
	}
	for name, call := range arrivalsVerbs(b, "host-b") {
		if err := call(t.Context()); err != nil || w.verbs.count(name) != 1 {
			t.Errorf("%s: %v, %d calls", name, err, w.verbs.count(name))
		}
	}
	for i, r := range w.verbs.refs {
		if r != ref {
			t.Errorf("%s got ref %+v", w.verbs.calls[i], r)
		}
	}
	w.parties["instance i-1"] = w.parties["m-1"]
	big := topology.Flavor{Name: "big", VCPUs: 4}
	if got, err := operation.PlanChange.Ask(t.Context(), b, migration.Ref{Instance: "i-1"}, migration.Change{Flavor: &big}); err != nil || got.Flavor.Name != "big" {
		t.Errorf("plan-change: %+v, %v", got, err)
	}
}
