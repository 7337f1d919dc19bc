package sim_test

import (
	"sync"
	"testing"

	"berth/test/sim"
)

// One seed is one run, whoever else runs beside it: what depends on the order of a map, or
// on the machine's own time, shows now and then only, so many are compared.
func TestRun_OneSeedIsOneRunBesideOthers(t *testing.T) {
	const seeds, first = 60, 9
	var mu sync.Mutex // guards sums; nothing else happens under it
	sums := map[uint64][32]byte{}
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for seed := uint64(first); seed < first+(seeds+few-1)/few; seed++ {
				got := sim.Run(sim.Options{Seed: seed, Chaos: true}).Sum
				mu.Lock()
				want, known := sums[seed]
				sums[seed] = got
				mu.Unlock()
				if known && got != want {
					t.Errorf("seed %d: two runs differ", seed)
				}
			}
		})
	}
	all.Wait()
}
