package drivertest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/driver"
	"berth/driver/drivertest"
	"berth/internal/fault"
)

// postCopied is a migration whose guest runs at the destination, while half of its
// memory is still here and nothing moves.
func postCopied(t *testing.T) (v *mover, done <-chan error) {
	v = newMover(t)
	v.m.Paused, v.m.PostCopy = false, true
	v.SetPace(drivertest.Pace{Tick: 2 * time.Millisecond, Rate: 100 << 20, Keepalive: 10 * time.Millisecond})
	ended := make(chan error, 1)
	go func() { ended <- v.a.Migrate(context.Background(), v.id, v.m) }()
	wait(t, func() bool { return v.a.StartPostCopy(t.Context(), v.id) == nil })
	wait(t, func() bool { d, err := v.b.Domain(t.Context(), v.id); return err == nil && d.State == driver.Running })
	v.CutData("a", "b")
	return v, ended
}

func wait(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); <-time.After(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not within 10 s")
		}
	}
}

// There is no way back, and whatever breaks leaves two halves, of which one runs at
// most. With the data link cut no destination hears of it.
func TestFleet_BreaksInPostCopyAsLibvirtDoes(t *testing.T) {
	for name, tt := range map[string]struct {
		breakIt func(v *mover)
		kind    fault.Kind
		want    string
	}{
		"nothing":                     {func(v *mover) { v.HealData("a", "b") }, "", "shut off/migrated running/migrated"},
		"management link cut":         {func(v *mover) { v.CutManagement("a", "b") }, fault.InDoubt, "paused/post-copy failed running/post-copy"},
		"source's libvirtd dies":      {func(v *mover) { v.a.KillDaemon(); v.a.StartDaemon() }, fault.InDoubt, "paused/post-copy failed running/post-copy"},
		"destination's libvirtd dies": {func(v *mover) { v.b.KillDaemon(); v.b.StartDaemon() }, fault.InDoubt, "paused/post-copy failed running/post-copy"},
		"source crashes":              {func(v *mover) { v.a.Crash(); v.a.Boot() }, fault.InDoubt, "shut off/unknown running/post-copy"},
		"destination crashes":         {func(v *mover) { v.b.Crash(); v.b.Boot() }, fault.InDoubt, "paused/post-copy failed -"},
		"destination's guest dies":    {func(v *mover) { v.b.CrashGuest(v.id) }, fault.InDoubt, "paused/post-copy failed -"},
	} {
		t.Run(name, func(t *testing.T) {
			v, done := postCopied(t)
			if err := v.a.AbortJob(t.Context(), v.id); !errors.Is(err, fault.Invalid) {
				t.Errorf("abort in post-copy: %v, want it refused", err)
			}
			tt.breakIt(v)
			if err := <-done; fault.KindOf(err) != tt.kind {
				t.Errorf("Migrate: %v, want kind %q", err, tt.kind)
			}
			if got := v.states(t); got != tt.want {
				t.Errorf("states %q, want %q", got, tt.want)
			}
			if bad := v.Violations(); len(bad) > 0 {
				t.Errorf("violations %q", bad)
			}
		})
	}
}

func TestFake_RefusesWhatItsNodeCannot(t *testing.T) {
	v := newMover(t)
	n, err := v.a.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.Cannot = map[driver.Ability]string{}
	for _, a := range driver.Abilities() {
		n.Cannot[a] = "it is old"
	}
	v.a.SetNode(n)
	_, copies := v.a.DiskCopies(t.Context(), v.id)
	_, usage := v.a.Statistics(t.Context())
	_, events := v.a.DeviceEvents(t.Context())
	for name, err := range map[string]error{
		"Migrate": v.a.Migrate(t.Context(), v.id, v.m), "AbortJob": v.a.AbortJob(t.Context(), v.id), "DiskCopies": copies,
		"StartPostCopy": v.a.StartPostCopy(t.Context(), v.id), "PingAgent": v.a.PingAgent(t.Context(), v.id),
		"Statistics": usage, "DeviceEvents": events,
	} {
		if !errors.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), "it is old") {
			t.Errorf("%s: %v, want it forbidden with the reason", name, err)
		}
	}
}

func TestFake_ASilentAgentCostsADeadline(t *testing.T) {
	v := newMover(t)
	h := harness(t)
	if err := v.a.Define(t.Context(), h.AgentXML("g", v.id)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(v.a.Destroy(t.Context(), v.id), v.a.Start(t.Context(), v.id, false)); err != nil {
		t.Fatal(err)
	}
	v.a.SetAgent(v.id, 3, true)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if err := v.a.PingAgent(short(), v.id); !errors.Is(err, fault.Unavailable) {
		t.Errorf("ping: %v, want unavailable", err)
	}
	if _, err := v.a.FreezeFilesystems(short(), v.id); !errors.Is(err, fault.InDoubt) {
		t.Errorf("freeze: %v, want in doubt", err)
	}
	v.a.SetAgent(v.id, 3, false)
	if n, err := v.a.FreezeFilesystems(t.Context(), v.id); n != 3 || err != nil {
		t.Errorf("freeze: %d, %v, want the three", n, err)
	}
}

func TestFake_TellsTheUsageItWasGiven(t *testing.T) {
	v := newMover(t)
	v.a.SetUsage(v.id, driver.Usage{CPUTime: time.Minute, Memory: 64 << 20, RSS: 70 << 20, DiskWritten: 5, Received: 6})
	got, err := v.a.Statistics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []driver.Usage{{UUID: v.id, Name: "g", State: driver.Running, CPUTime: time.Minute, VCPUs: 1, VCPUsMax: 1,
		Memory: 64 << 20, MemoryMax: 128 << 20, RSS: 70 << 20, DiskWritten: 5, Received: 6}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("usage (-want +got):\n%s", d)
	}
}
