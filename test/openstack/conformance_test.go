package openstack

import (
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"berth/placement"
	"berth/placement/placementtest"
	"berth/test/shared"
)

// embedded is an empty Placement of ours, in memory.
func embedded(t *testing.T) placementtest.Server {
	t.Helper()
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0"})
	must(t, err)
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return placementtest.Server{URL: h.URL}
}

// TestPlacement_AnswersLikeOpenStacks runs what every Placement must pass on
// OpenStack's own, over each database, and compares its answers with ours.
func TestPlacement_AnswersLikeOpenStacks(t *testing.T) {
	recorded := shared.Path(t, "placement-traffic", "golden-8.0.0.jsonl")
	for _, c := range []struct {
		database Database
		seed     uint64 // of random traffic
		rounds   int
	}{{SQLite, 1, 8}, {MariaDB, 101, 8}} {
		t.Run(string(c.database), func(t *testing.T) {
			t.Parallel()
			theirs := placementtest.Server{URL: StartPlacement(t, PlacementOptions{Database: c.database}).URL}
			both := func(t *testing.T) (placementtest.Server, placementtest.Server) {
				placementtest.Empty(t, theirs)
				return embedded(t), theirs
			}
			t.Run("client", func(t *testing.T) {
				placementtest.ClientSuite(t, placementtest.Beside(t, embedded(t), theirs))
			})
			t.Run("recorded", func(t *testing.T) {
				placementtest.ReplayBeside(t, recorded, 299, func() (ours, other placementtest.Server) { return both(t) })
			})
			t.Run("odd", func(t *testing.T) {
				ours, theirs := both(t)
				placementtest.OddHeaders(t, ours, theirs)
				placementtest.OddRequests(t, ours, theirs)
			})
			if c.database == SQLite { // neither who may do what nor what a microversion brings depends on the database
				t.Run("callers", func(t *testing.T) {
					ours, theirs := both(t)
					n := placementtest.Callers(t, ours, theirs)
					t.Logf("%d answers are equal", n)
				})
				t.Run("every version", func(t *testing.T) {
					ours, theirs := both(t)
					n := placementtest.EveryVersion(t, ours, theirs, os.Getenv("BERTH_PLACEMENT_ALL_VERSIONS") != "")
					t.Logf("%d answers are equal", n)
				})
			}
			t.Run("bad network", func(t *testing.T) {
				choices := rand.New(rand.NewPCG(1, uint64(c.rounds)))
				doubts := 0
				for range 12 {
					doubts += placementtest.BadNetwork(t, theirs, choices.IntN)
				}
				if doubts == 0 {
					t.Error("no write was ever in doubt: the network was not bad enough")
				}
			})
			t.Run("random", func(t *testing.T) {
				// Always the same: what is found by others, with more time, is no accident of one
				// run.
				placementtest.RandomTraffic(t, c.seed, c.rounds, func() (ours, other placementtest.Server) { return both(t) })
			})
		})
	}
}

// The traffic kept in the project is a part of the recorded one.
func TestPlacement_RecordedMigrationsAreOfOpenStacks(t *testing.T) {
	theirs := placementtest.Server{URL: StartPlacement(t, PlacementOptions{}).URL}
	placementtest.Replay(t, filepath.Join("..", "..", "placement", "testdata", "recorded.jsonl"), 93, func() placementtest.Server {
		placementtest.Empty(t, theirs)
		return theirs
	})
}
