package placement

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

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

// TestOwnConsumers_ManyInOneRequest_CostAsMuchAsTheyAre: whether a host may write its allocations is decided
// under the write lock. Each consumer was held against all others.
func TestOwnConsumers_ManyInOneRequest_CostAsMuchAsTheyAre(t *testing.T) {
	const n = 2000
	s := memory(t)
	do := func(method, path, body string, want int) {
		t.Helper()
		if w := answerWith(s, method, path, asAdmin, body); w.Code != want {
			t.Fatalf("%s %s: %d %.300s", method, path, w.Code, w.Body)
		}
	}
	for i, name := range []string{"a", "b"} {
		do("POST", "/resource_providers", fmt.Sprintf(`{"uuid":%q,"name":%q}`, id(i+1), name), 200)
		do("PUT", "/resource_providers/"+id(i+1)+"/inventories", fmt.Sprintf(`{"resource_provider_generation":0,"inventories":{"VCPU":{"total":%d}}}`, n), 200)
	}
	do("POST", "/allocations", many(100, n, id(2), "null"), 204)
	do("POST", "/allocations", many(99, 1, id(1), "null"), 204)
	// All consumers of b go to a, in exchange for the one that a has.
	body := strings.TrimSuffix(many(100, n, id(1), "1"), "}") + fmt.Sprintf(`,%q:{"allocations":{}}}`, id(99))
	said, err := parseJSON([]byte(body))
	must(t, err)
	asked := 0
	mine := func(p *provider) bool { asked++; return p.Name == "a" }
	may := s.ownConsumers(newTx(s.state.b, time.Now()), &request{said: said.(*object)}, mine, func(*provider) bool { return false })
	if !may || asked > 10*n {
		t.Errorf("allowed %v after %d looks at %d consumers", may, asked, n)
	}
}
