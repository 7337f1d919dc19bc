package placement

import (
	"path/filepath"
	"testing"

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
	placementtest.RandomTraffic(t, 3, func() (ours, theirs placementtest.Server) { return inMemory(t), onDisk(t) })
}

func TestDatabase_AnswersOddRequestsLikeMemory(t *testing.T) {
	placementtest.OddRequests(t, inMemory(t), onDisk(t))
}

func TestDatabase_AnswersTheClientLikeMemory(t *testing.T) {
	placementtest.ClientSuite(t, placementtest.Beside(t, inMemory(t), onDisk(t)))
}
