package host

import (
	"log/slog"
	"testing"

	"berth/claims"
	"berth/driver/drivertest"
	"berth/internal/runtime"
	"berth/internal/store/storetest"
	"berth/topology"
)

const (
	phaseMigration = "11111111-1111-4111-8111-111111111101"
	phaseInstance  = "22222222-2222-4222-8222-222222222202"
)

// bed is a host whose agent may die between two verbs.
type bed struct {
	*Host
	t     *testing.T
	rt    *runtime.System
	fleet *drivertest.Fleet
	store *storetest.Memory
}

func newBed(t *testing.T) *bed {
	p := &bed{t: t, rt: new(runtime.System), store: storetest.NewMemory()}
	p.fleet = drivertest.NewFleet(p.rt)
	t.Cleanup(func() {
		p.Close()
		p.fleet.Close()
		p.rt.Wait()
	})
	p.boot()
	return p
}

// boot starts an agent on what is durable.
func (p *bed) boot() {
	p.t.Helper()
	tracker, err := claims.Open(p.t.Context(), claims.Options{
		Store: p.store, Runtime: p.rt, Host: "a", Capacity: claims.Capacity{Total: topology.Resources{VCPUs: 4, MemoryMB: 1024, DiskGB: 100}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.Host = New(Options{Name: "a", Tracker: tracker, Driver: p.fleet.Host("a"), Runtime: p.rt, Logger: slog.New(slog.DiscardHandler)})
}
