package placement

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"berth/placement/placementtest"
	"berth/test/shared"
)

// The same tests run against OpenStack's own Placement in test/openstack.

func inMemory(t *testing.T) placementtest.Server {
	return placementtest.Server{URL: serve(t, memory(t)).URL}
}

func onDisk(t *testing.T) placementtest.Server {
	return placementtest.Server{URL: serve(t, on(t, filepath.Join(t.TempDir(), "placement.db"))).URL}
}

func TestClientSuite(t *testing.T) { placementtest.ClientSuite(t, inMemory(t)) }

func TestGolden_AnswersLikeOpenStackPlacement8(t *testing.T) {
	placementtest.Replay(t, shared.Path(t, "placement-traffic", "golden-8.0.0.jsonl"), 299, func() placementtest.Server { return inMemory(t) })
}

// The part of the traffic that a live migration makes, kept in the project so
// that it is replayed also where the whole is not at hand.
func TestGolden_MigrationScenarios(t *testing.T) {
	placementtest.Replay(t, filepath.Join("testdata", "recorded.jsonl"), 93, func() placementtest.Server { return inMemory(t) })
}

// A server on a database must answer like one in memory.

func TestDatabase_AnswersRandomTrafficLikeMemory(t *testing.T) {
	placementtest.RandomTraffic(t, rand.Uint64(), 3, func() (ours, theirs placementtest.Server) { return inMemory(t), onDisk(t) })
}

func TestDatabase_AnswersOddRequestsLikeMemory(t *testing.T) {
	placementtest.OddRequests(t, inMemory(t), onDisk(t))
}

func TestDatabase_AnswersTheClientLikeMemory(t *testing.T) {
	placementtest.ClientSuite(t, placementtest.Beside(t, inMemory(t), onDisk(t)))
}

// inProcess carries requests to a handler without a network.
type inProcess struct{ h http.Handler }

func (p inProcess) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(q.Context(), q.Method, q.URL.String(), q.Body)
	r.Header, r.ContentLength = q.Header.Clone(), q.ContentLength
	p.h.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = q
	return resp, nil
}

func TestClient_SaysTheTruthOverABadNetwork(t *testing.T) {
	doubts := 0
	rapid.Check(t, func(t *rapid.T) {
		s, err := New(Options{Listen: "127.0.0.1:0"})
		if err != nil {
			t.Fatal(err)
		}
		doubts += placementtest.BadNetwork(t, placementtest.Server{URL: "http://placement", Transport: inProcess{s.Handler()}},
			func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
	})
	if doubts == 0 {
		t.Error("no write was ever in doubt: the network was not bad enough")
	}
}
