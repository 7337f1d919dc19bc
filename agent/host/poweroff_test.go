package host_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"berth/agent/host"
	"berth/driver"
	"berth/internal/fault"
	"berth/internal/runtime"
	"berth/migration"
	"berth/migration/operation"
)

// poweredLab is a cold move up to where its guest is about to be powered off.
func poweredLab(t *testing.T) *cold {
	l, v := coldLab(t)
	c := newCold(t, l, v.UUID, &large)
	c.run(c.there(), "prep resize")
	return c
}

func (c *cold) off(timeout time.Duration) (migration.PoweredOff, error) {
	return operation.PowerOff.Ask(c.t.Context(), c.a, c.ref, migration.PowerOffRequest{Timeout: timeout, Kind: c.kind(), Destination: "b"})
}

// TestPowerOff_AGuestIsAskedFirst: one that obeys is not pulled; one that does not, or is
// given no time, or is paused, is.
func TestPowerOff_AGuestIsAskedFirst(t *testing.T) {
	deaf := func(call, _ string) error {
		if call == "Shutdown" {
			return fault.New(fault.Internal, "the guest does not listen")
		}
		return nil
	}
	for _, tt := range []struct {
		name    string
		set     func(c *cold)
		timeout time.Duration
		pulled  bool
		power   migration.PowerState
	}{
		{"obeys", func(*cold) {}, time.Minute, false, migration.PowerRunning},
		{"no time", func(*cold) {}, 0, true, migration.PowerRunning},
		{"deaf", func(c *cold) { c.a.fake.Fault(deaf) }, time.Minute, true, migration.PowerRunning},
		{"paused", func(c *cold) { c.must("suspend", c.a.fake.Suspend(c.t.Context(), c.ref.Instance)) }, time.Minute, true, migration.PowerPaused},
		{"off", func(c *cold) { c.must("destroy", c.a.fake.Destroy(c.t.Context(), c.ref.Instance)) }, time.Minute, false, migration.PowerShutOff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := poweredLab(t)
			tt.set(c)
			got, err := c.off(tt.timeout)
			c.must("power off", err)
			if got.Pulled != tt.pulled || got.PowerState != tt.power {
				t.Errorf("%+v, want pulled %v, %s", got, tt.pulled, tt.power)
			}
			c.state("a", c.ref.Instance, driver.ShutOff)
			again, err := c.off(tt.timeout)
			c.must("power off again", err)
			if again != got {
				t.Errorf("again %+v, want %+v", again, got)
			}
		})
	}
}

// hourOn is the clock of a host an hour later in the same boot.
type hourOn struct{ *clock }

func (l hourOn) Boot() runtime.BootTime {
	b := l.clock.Boot()
	b.Since += time.Hour
	return b
}

// TestPowerOff_ItsTimeRunsOnThroughRestarts: a guest that does not obey is given its time
// once, however often the verb is asked for.
func TestPowerOff_ItsTimeRunsOnThroughRestarts(t *testing.T) {
	c := poweredLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.a.fake.Fault(func(call, _ string) error {
		if call == "Shutdown" {
			cancel() // its caller goes, and the guest has not obeyed
			return fault.New(fault.InDoubt, "no answer")
		}
		return nil
	})
	_, err := operation.PowerOff.Ask(ctx, c.a, c.ref, migration.PowerOffRequest{Timeout: time.Minute, Kind: c.kind(), Destination: "b"})
	if err == nil {
		t.Fatal("powered off, though its caller has gone")
	}
	c.state("a", c.ref.Instance, driver.Running)
	c.a.fake.Fault(nil)
	c.restart("a").Close()
	c.a = c.boot("a", func(o *host.Options) { o.Runtime = hourOn{c.rt} })
	got, err := c.off(time.Minute)
	c.must("power off", err)
	if !got.Pulled {
		t.Error("given its time anew")
	}
}

// TestPowerOff_UsersHaveTheLastWord: what somebody does to the guest while it is powered
// off for a move is what it goes back to, and nobody starts it twice.
func TestPowerOff_UsersHaveTheLastWord(t *testing.T) {
	c := poweredLab(t)
	_, err := c.off(time.Minute)
	c.must("power off", err)
	// Started by hand: handing it over is refused, and it is powered off anew.
	c.must("start", c.a.fake.Start(t.Context(), c.ref.Instance, true))
	_, err = operation.HandOver.Ask(t.Context(), c.a, c.ref, migration.HandOverRequest{To: "b"})
	c.wantKind("hand over a guest that is active", err, fault.Forbidden)
	got, err := c.off(time.Minute)
	c.must("power off again", err)
	if got.PowerState != migration.PowerPaused {
		t.Errorf("power state %s, it was started with its CPUs stopped", got.PowerState)
	}
	c.must("power on", operation.PowerOn.Ask(t.Context(), c.a, c.ref))
	c.state("a", c.ref.Instance, driver.Paused)
	// Its user ends it; a repeated undo starts nothing.
	c.must("destroy", c.a.fake.Destroy(t.Context(), c.ref.Instance))
	c.must("power on again", operation.PowerOn.Ask(t.Context(), c.a, c.ref))
	c.state("a", c.ref.Instance, driver.ShutOff)
	_, err = c.off(time.Minute)
	c.wantKind("a late power off", err, fault.Forbidden)
}

// TestPowerOff_RefusesWhatWouldBeLost names guests of which nothing would be left, or
// whose memory lies on their host.
func TestPowerOff_RefusesWhatWouldBeLost(t *testing.T) {
	t.Run("transient", func(t *testing.T) {
		c := poweredLab(t)
		c.must("undefine", c.a.fake.Undefine(t.Context(), c.ref.Instance))
		_, err := c.off(time.Minute)
		c.wantKind("power off", err, fault.Forbidden)
		if got := codes(err); len(got) != 1 || got[0] != "not_persistent" {
			t.Errorf("reasons %v", got)
		}
		c.state("a", c.ref.Instance, driver.Running)
	})
	t.Run("nothing recorded", func(t *testing.T) {
		l, v := coldLab(t)
		_, err := operation.PowerOff.Ask(t.Context(), l.hosts["a"], refFor(v.UUID, 1), migration.PowerOffRequest{Kind: migration.TypeResize})
		l.wantKind("power off", err, fault.Forbidden)
		l.state("a", v.UUID, driver.Running)
	})
	t.Run("token elsewhere", func(t *testing.T) {
		l, v := coldLab(t)
		c := newCold(t, l, v.UUID, nil)
		c.run(c.there(), "")
		_, err := operation.PowerOff.Ask(t.Context(), c.a, c.back, migration.PowerOffRequest{Kind: c.kind()})
		l.wantKind("power off at the source", err, fault.Forbidden)
		l.wantKind("power on at the source", operation.PowerOn.Ask(t.Context(), c.a, c.ref), fault.Forbidden)
		l.state("a", v.UUID, driver.ShutOff)
		l.state("b", v.UUID, driver.Running)
	})
}

// TestPowerOn_AHookThatFailsKeepsNobodyOff: the hooks of the undo run before the guest is
// started; one that fails is asked again, and the guest runs meanwhile.
func TestPowerOn_AHookThatFailsKeepsNobodyOff(t *testing.T) {
	c := poweredLab(t)
	log := c.a.path("/log")
	c.a.put(t, "/hooks/resize_instance/10-detach", "#!/bin/sh\necho detach >>"+log+"\necho '{\"data\":{\"port\":7}}'\n", 0o755)
	c.a.put(t, "/hooks/rollback_resize_instance/10-attach", "#!/bin/sh\ngrep -o '\"port\":7' >>"+log+"\ntest -e "+c.a.path("/good")+"\n", 0o755)
	_, err := c.off(time.Minute)
	c.must("power off", err)
	if err := operation.PowerOn.Ask(t.Context(), c.a, c.ref); err == nil {
		t.Error("the failed hook was not told of")
	}
	c.state("a", c.ref.Instance, driver.Running)
	c.a = c.restart("a")
	c.a.put(t, "/good", "", 0o644)
	c.must("power on", operation.PowerOn.Ask(t.Context(), c.a, c.ref))
	c.state("a", c.ref.Instance, driver.Running)
	raw, err := os.ReadFile(log)
	c.must("read the log", err)
	if got := strings.Fields(string(raw)); len(got) != 3 || got[0] != "detach" || got[2] != `"port":7` {
		t.Errorf("hooks said %q", got)
	}
}

// TestPowerOff_AHookThatFailsLeavesTheGuestRunning: it is asked before anything is done to
// the guest.
func TestPowerOff_AHookThatFailsLeavesTheGuestRunning(t *testing.T) {
	c := poweredLab(t)
	before := c.picture()
	c.a.put(t, "/hooks/resize_instance/10-no", "#!/bin/sh\nexit 1\n", 0o755)
	if _, err := c.off(time.Minute); err == nil {
		t.Fatal("powered off, though a hook refused")
	}
	c.state("a", c.ref.Instance, driver.Running)
	c.must("power on", operation.PowerOn.Ask(t.Context(), c.a, c.ref))
	c.state("a", c.ref.Instance, driver.Running)
	c.same("left by a power off that was refused", before)
}
