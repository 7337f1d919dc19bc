package placement

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"

	"berth/internal/fault"
	"berth/internal/runtime"
	pc "berth/placementclient"
)

// recorded is Beside with the record of one instance.
type recorded struct {
	http.Handler
	instance, host, moving string
	elsewhere              bool // the fleet's records are in etcd
}

func (*recorded) Backup() map[string]json.RawMessage { return nil }
func (*recorded) Dead(string) bool                   { return false }
func (r *recorded) Holder(instance string) (host, moving string, found bool) {
	return r.host, r.moving, instance == r.instance
}

func (r *recorded) Kept() bool { return !r.elsewhere }

// TestMTLS_AHostTakesNoInstanceOfAnother has host-a try to count an instance of host-b on itself.
func TestMTLS_AHostTakesNoInstanceOfAnother(t *testing.T) {
	one := pc.Resources{pc.ClassVCPU: 1}
	pull := func(c *pc.Client, ctx context.Context) error {
		return c.PutAllocations(ctx, id(100), holding(id(1), one, pc.ConsumerInstance, pc.Generation(1)))
	}
	swap := func(c *pc.Client, ctx context.Context) error {
		return c.PostAllocations(ctx, map[string]pc.Allocations{
			id(200): {ProjectID: "p", UserID: "u", ConsumerType: pc.ConsumerMigration, ConsumerGeneration: pc.Generation(1)},
			id(100): holding(id(1), one, pc.ConsumerInstance, pc.Generation(1)),
		})
	}
	for _, c := range []struct {
		name    string
		records *recorded // nil for a server that keeps none
		try     func(c *pc.Client, ctx context.Context) error
		good    bool
	}{
		{"without a record, because it says so", nil, pull, false},
		{"by the record of the other", &recorded{instance: id(100), host: "host-b"}, pull, false},
		{"by its own record, which it was given", &recorded{instance: id(100), host: "host-a"}, pull, true},
		{"in exchange for a migration of its own, by the record of another migration", &recorded{instance: id(100), host: "host-b", moving: id(201)}, swap, false},
		{"in exchange for a migration of its own, the instance is on none", &recorded{instance: id(100), host: "host-b"}, swap, false},
		{"back, by a revert", &recorded{instance: id(100), host: "host-b", moving: id(200)}, swap, true},
		{"by an evacuation that etcd's records allow", &recorded{elsewhere: true}, pull, true},
		{"back, by a revert, where nobody keeps records", nil, swap, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			site := newSite(t)
			o := site.options()
			if c.records != nil {
				o.Beside = func(context.Context, Store, runtime.Runtime, *slog.Logger) (Beside, error) { return c.records, nil }
			}
			s := running(t, o)
			ctx := t.Context()
			for n, host := range map[int]string{1: "host-a", 2: "host-b"} {
				h := site.client(t, s.Addr(), host)
				_, err := h.CreateProvider(ctx, pc.NewProvider{UUID: id(n), Name: host})
				must(t, err)
				_, err = h.PutInventories(ctx, id(n), pc.Inventories{Inventories: map[string]pc.Inventory{pc.ClassVCPU: inventory(8)}})
				must(t, err)
			}
			a, b := site.client(t, s.Addr(), "host-a"), site.client(t, s.Addr(), "host-b")
			must(t, b.PutAllocations(ctx, id(100), holding(id(2), one, pc.ConsumerInstance, nil)))
			must(t, a.PutAllocations(ctx, id(200), holding(id(1), one, pc.ConsumerMigration, nil)))
			if err := c.try(a, ctx); c.good && err != nil || !c.good && fault.KindOf(err) != fault.Forbidden {
				t.Errorf("%v, want it allowed: %v", err, c.good)
			}
		})
	}
}
