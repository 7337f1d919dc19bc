package agent

import (
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/agent/api"
	"berth/driver"
	"berth/driver/drivertest"
	"berth/fleet"
	"berth/fleet/fleettest"
	"berth/internal/config"
	"berth/internal/runtime"
	"berth/internal/watchdog/watchdogtest"
	"berth/placement"
)

// TestAgent_FencesItselfFromItsStartToItsStop is the whole agent over a socket: what the parts do
// in time, package lease says.
func TestAgent_FencesItselfFromItsStartToItsStop(t *testing.T) {
	t.Parallel()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	front := httptest.NewServer(s.Handler())
	t.Cleanup(front.Close)
	dog, err := watchdogtest.Listen(filepath.Join(t.TempDir(), "dog"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dog.Close(); err != nil {
			t.Error(err)
		}
	})
	rt := &runtime.System{}
	fakes, store := drivertest.NewFleet(rt), fleettest.NewMemory(rt)
	t.Cleanup(func() { fakes.Close(); rt.Wait() })
	c := settings(t, front.URL)
	c.Fleet.Etcd, c.Fleet.SelfFence = []string{"http://127.0.0.1:1"}, dog.Path // what stands in for it is below
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	o := agentOptions(t, c)
	o.Driver = func(config.Libvirt, runtime.Runtime) driver.Driver { return fakes.Host("host-t") }
	o.FleetStore = func(config.Config) (fleet.Store, error) { return store.Client("host-t"), nil }
	client, stop := start(t, o)

	records := fleet.New(store.Client("test"), rt)
	fences := func() bool {
		h, err := records.Host(t.Context(), "host-t")
		return err == nil && h.SelfFence
	}
	for end := time.Now().Add(patience); time.Now().Before(end) && !(fences() && dog.Count("feed") > 0); time.Sleep(20 * time.Millisecond) {
	}
	alive, err := records.Alive(t.Context())
	if err != nil || alive["host-t"] == "" || !fences() || dog.Count("feed") == 0 {
		t.Fatalf("alive %v (%v), on record %v, told %v", alive, err, fences(), dog.Lines())
	}
	status, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(status.Conditions, func(c api.Condition) bool { return c.Name == "watchdog" })
	if i < 0 || status.Conditions[i].Health != api.HealthOK || !strings.HasPrefix(status.Conditions[i].Detail, "armed: "+dog.Path+" (stand-in), 10s") {
		t.Errorf("conditions %+v", status.Conditions)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	lines := dog.Lines()
	if last := lines[len(lines)-1].Said; last != "disarm" || dog.Armed() || dog.Reset() || fences() {
		t.Errorf("after its stop the last word is %q, armed %v, reset %v, on record %v", last, dog.Armed(), dog.Reset(), fences())
	}
}
