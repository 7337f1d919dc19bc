package host_test

import (
	"slices"
	"testing"

	"berth/agent/host/allocation"
	"berth/driver"
	"berth/internal/fault"
	"berth/migration/operation"
	"berth/placementclient"
	"berth/topology"
)

// arrivedAtB gives an instance that starts with its host, which came from a and is off at b, as after a
// power failure.
func arrivedAtB(t *testing.T) *twoSides {
	t.Helper()
	s := newSides(t)
	ctx := t.Context()
	s.guest.Autostart = true
	s.left()
	c, err := operation.Commit.Ask(ctx, s.a, s.ref)
	s.must("commit", err)
	s.must("accept token", operation.AcceptToken.Ask(ctx, s.b, s.ref, c))
	s.must("finish", operation.FinishDestination.Ask(ctx, s.b, s.ref))
	s.must("power failure", s.b.fake.Destroy(ctx, s.ref.Instance))
	return s
}

// TestOrigin_PlacementDoesNotCountItHere_Waits: the old host is silent, and what Placement has of the
// instance is nothing, or of other hosts while the move's consumer holds something still.
func TestOrigin_PlacementDoesNotCountItHere_Waits(t *testing.T) {
	t.Parallel()
	held := map[string]placementclient.Resources{"rp-a": {"VCPU": 1}}
	for name, now := range map[string]struct {
		inst, mig map[string]placementclient.Resources
	}{
		"emptied":                    {nil, nil},
		"emptied but for the move":   {nil, held},
		"elsewhere, the move stands": {held, held},
	} {
		t.Run(name, func(t *testing.T) {
			s := arrivedAtB(t)
			ctx := t.Context()
			s.must("change Placement", s.placement.of("b").settle(ctx, s.ref.Instance, s.ref.Migration, func(inst, mig *placementclient.Allocations) {
				inst.Allocations, mig.Allocations = now.inst, now.mig
			}))
			s.silent.Store(true)
			s.b = s.rebootAlone("b", "boot-2", s.options)
			s.must("settle", s.b.Settle(ctx))
			s.state("b", s.ref.Instance, driver.ShutOff)
			if why, waits := s.b.Unconfirmed(s.ref.Instance); !waits {
				t.Errorf("it does not wait: %q", why)
			}
			s.silent.Store(false)
			s.follow("the instance to be started", func() bool {
				d, err := s.b.fake.Domain(ctx, s.ref.Instance)
				return err == nil && d.State == driver.Running
			})
		})
	}
}

// TestOrigin_OldHostSilentAfterABoot_WaitsForAWitness: an instance came by a move, its host is
// rebooted, and there is no store of the fleet's records. It is started once the old host, or
// Placement, or an operator has said that it is here.
func TestOrigin_OldHostSilentAfterABoot_WaitsForAWitness(t *testing.T) {
	t.Parallel()
	down := fault.New(fault.Unavailable, "placement is down")
	for name, answer := range map[string]func(*twoSides){
		"the old host answers":   func(s *twoSides) { s.silent.Store(false) },
		"Placement answers":      func(s *twoSides) { s.placement.breakWith(nil) },
		"an operator's decision": func(s *twoSides) {},
		"as soon as it is asked": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s := arrivedAtB(t)
			ctx := t.Context()
			half := s.placement.of("b") // as a conductor leaves it
			s.must("count it at b", half.SettleHere(ctx, allocation.Allocation{Consumer: s.ref.Instance, Resources: topology.Resources{VCPUs: 1, MemoryMB: 128, DiskGB: 1}, ProjectID: "project", UserID: "user"}, s.ref.Migration))
			s.silent.Store(answer != nil)
			if answer != nil {
				s.placement.breakWith(down)
			}
			s.b = s.rebootAlone("b", "boot-2", s.options)
			s.must("settle", s.b.Settle(ctx))
			if answer == nil {
				s.state("b", s.ref.Instance, driver.Running)
				return
			}
			s.state("b", s.ref.Instance, driver.ShutOff)
			if err := s.b.Start(ctx, s.ref.Instance, false); !slices.Contains(codes(err), "not_confirmed") {
				t.Errorf("start: %v", err)
			}
			if name == "an operator's decision" {
				s.must("confirm by hand", s.b.ConfirmByHand(ctx, s.ref.Instance, "a is scrap", "operator:o"))
				s.must("start", s.b.Start(ctx, s.ref.Instance, false))
			} else {
				answer(s)
				s.follow("the instance to be started", func() bool {
					d, err := s.b.fake.Domain(ctx, s.ref.Instance)
					return err == nil && d.State == driver.Running
				})
			}
			s.state("b", s.ref.Instance, driver.Running)
			// Another process of the same boot asks nobody.
			s.silent.Store(true)
			s.placement.breakWith(down)
			s.b = s.rebootAlone("b", "boot-2", s.options)
			if why, waits := s.b.Unconfirmed(s.ref.Instance); waits {
				t.Errorf("it waits again: %s", why)
			}
		})
	}
}
