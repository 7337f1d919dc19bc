package agent

import (
	"errors"
	"slices"
	"testing"
	"time"

	"berth/agent/api"
	"berth/agent/host"
	"berth/internal/config"
	"berth/internal/fault"
	"berth/migration"
	"berth/migration/operation"
	"berth/placementclient"
)

func TestSetHost_DisabledOutlivesARestartAndRefusesNewGuests(t *testing.T) {
	t.Parallel()
	quick := settings(t, nowhere(t))
	quick.Placement.Timeout = config.Duration(100 * time.Millisecond)
	o := agentOptions(t, quick)
	c, stop := start(t, o)
	yes, no := true, false
	if _, err := c.SetHost(t.Context(), api.SetHost{Disabled: &yes}); !errors.Is(err, fault.Invalid) {
		t.Errorf("disabled for no reason: %v, want %v", err, fault.Invalid)
	}
	got, err := c.SetHost(t.Context(), api.SetHost{Disabled: &yes, Reason: "a fan is loud"})
	if err != nil || got.Disabled == nil || got.Disabled.By != "local" || got.Disabled.At.IsZero() {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c, stop = start(t, o)
	s, err := c.Status(t.Context())
	if err != nil || s.Disabled == nil || s.Disabled.Reason != "a fan is loud" {
		t.Fatalf("after a restart: %+v, %v", s.Disabled, err)
	}
	hosts, err := c.Hosts(t.Context())
	if err != nil || len(hosts) != 1 || hosts[0].Disabled != "a fan is loud" {
		t.Errorf("listed as %+v, %v", hosts, err)
	}
	_, err = c.CreateInstance(t.Context(), api.CreateInstance{CreateRequest: host.CreateRequest{Name: "web"}})
	if !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Code != "host_disabled" {
		t.Errorf("a new guest on it: %v, want %v", err, fault.Forbidden)
	}
	if got, err = c.SetHost(t.Context(), api.SetHost{Disabled: &no}); err != nil || got.Disabled != nil {
		t.Errorf("enabled: %+v, %v", got, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	c, _ = start(t, o)
	if s, err = c.Status(t.Context()); err != nil || s.Disabled != nil {
		t.Errorf("enabled, after a restart: %+v, %v", s.Disabled, err)
	}
}

// answersChecks is a host that takes every guest.
type answersChecks struct{ migration.Host }

func TestVerbs_ADisabledHostRefusesAMoveToIt(t *testing.T) {
	b := newGuardBench(t, config.Observe)
	b.a.disabled.Store(&api.Disabled{Reason: "a fan is loud"})
	v := verbs{answersChecks{}, b.a}
	_, err := operation.CheckDestination.Ask(t.Context(), v, migration.Ref{Migration: "m", Instance: "i"}, migration.CheckRequest{})
	if !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Code != "host_disabled" {
		t.Errorf("a move to it: %v, want %v", err, fault.Forbidden)
	}
}

func TestVerbs_AHostThatObservesGivesNoGuestToAnotherThatConducts(t *testing.T) {
	v := verbs{answersChecks{}, newGuardBench(t, config.Observe).a}
	err := operation.RecordContext.Ask(t.Context(), v, migration.Ref{Migration: "m", Instance: "i"}, migration.Context{})
	if !errors.Is(err, fault.Forbidden) || fault.ReasonsOf(err)[0].Code != "mode_observe" {
		t.Errorf("a move from it: %v, want %v", err, fault.Forbidden)
	}
}

// TestSetHost_PlacementFollowsAtOnce: and goes back to what it was.
func TestSetHost_PlacementFollowsAtOnce(t *testing.T) {
	t.Parallel()
	onMadeUpMachine(t, func(b *hardwareBench) {
		disabled := func() bool {
			got, err := b.placement.Traits(b.Context(), b.a.uuid)
			return err == nil && slices.Contains(got.Traits, placementclient.TraitComputeStatusDisabled)
		}
		if err := b.a.setDisabled(b.Context(), "set host", true, "a fan is loud"); err != nil {
			b.Fatal(err)
		}
		b.within("the trait is set", disabled)
		if err := b.a.setDisabled(b.Context(), "set host", false, ""); err != nil {
			b.Fatal(err)
		}
		b.within("the trait is gone", func() bool { return !disabled() })
	})
}
