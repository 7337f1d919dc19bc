package contention_test

import (
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"testing"

	"berth/placement"
	"berth/test/contention"
)

func TestRun_EmbeddedPlacementKeepsEveryAllocation(t *testing.T) {
	s, err := placement.New(placement.Options{Listen: "127.0.0.1:0", DB: t.TempDir() + "/placement.db", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		h.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	o := contention.Options{Seed: rand.Uint64(), Agents: 32, Hosts: 6, Room: 4, Moves: 5, Lose: 40}
	t.Logf("seed %d: %v", o.Seed, contention.Run(t, h.URL, nil, o))
}
