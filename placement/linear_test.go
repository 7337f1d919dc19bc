package placement

import (
	"math/rand/v2"
	"testing"

	"berth/placement/placementtest"
)

func TestAllocations_AreLinearizable(t *testing.T) {
	seed := rand.Uint64()
	for name, s := range map[string]placementtest.Server{
		"memory": inMemory(t), "database": onDisk(t),
	} {
		t.Run(name, func(t *testing.T) {
			for _, exact := range []bool{true, false} {
				counts := placementtest.Linearizable(t, s, placementtest.Linear{
					Seed: seed, Histories: (9 + stride) / stride, Clients: 4, Requests: 15, AtOnce: 2, Exact: exact,
				})
				t.Logf("seed %d: %v", seed, counts)
			}
		})
	}
}

func TestLinearizable_FindsAFault(t *testing.T) {
	for name, exact := range map[string]bool{"exact": true, "as OpenStack's is asked": false} {
		t.Run(name, func(t *testing.T) {
			placementtest.LinearFaults(t, inMemory(t), placementtest.Linear{
				Seed: rand.Uint64(), Histories: 20, Clients: 4, Requests: 15, Exact: exact,
			})
		})
	}
}
