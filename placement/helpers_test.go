package placement

import (
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/fault"
	"berth/placement/placementtest"
	pc "berth/placementclient"
)

// memory is a server with nothing but memory.
func memory(t *testing.T) *Server {
	t.Helper()
	s, err := New(Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func serve(t *testing.T, s *Server) *httptest.Server {
	t.Helper()
	h := httptest.NewServer(s.Handler())
	t.Cleanup(h.Close)
	return h
}

func client(t *testing.T, url string, v pc.Microversion) *pc.Client {
	t.Helper()
	return placementtest.Server{URL: url}.Client(t, v)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, err error, kind fault.Kind, conflict pc.Conflict) {
	t.Helper()
	if fault.KindOf(err) != kind || pc.ConflictOf(err) != conflict {
		t.Errorf("got %v (%s, %s), want %s, %s", err, fault.KindOf(err), pc.ConflictOf(err), kind, conflict)
	}
}

func same(t *testing.T, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func inventory(total int64) pc.Inventory {
	return pc.Inventory{Total: total, MaxUnit: total}.WithDefaults()
}

func holding(rp string, r pc.Resources, kind string, generation *int) pc.Allocations {
	return pc.Allocations{Allocations: map[string]pc.Resources{rp: r}, ProjectID: "suite-project", UserID: "suite-user",
		ConsumerType: kind, ConsumerGeneration: generation}
}
