package sim

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
)

// Summary is what came of many runs.
type Summary struct {
	Runs       int
	Violations int // runs with one
	Faults     int
	Sum        [sha256.Size]byte // of the runs' traces, in the order of their seeds
	Turns      int
	// Failed are the first runs with a violation, in the order of their seeds.
	Failed []Result
}

// String is the line that a command ends with.
func (s Summary) String() string {
	return fmt.Sprintf("%d runs, %d violations, %d faults injected, trace %x", s.Runs, s.Violations, s.Faults, s.Sum)
}

// maxFailed bounds what a summary keeps.
const maxFailed = 50

// Many plays runs, options of which come from make, on so many workers; 0 for one a
// processor. stop, which may be nil, is asked after each and ends it early.
func Many(runs, workers int, make func(i int) Options, stop func(Result) bool) Summary {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var next, ended atomic.Int64
	var wg sync.WaitGroup
	ended.Store(int64(runs))
	results := newOrder(runs)
	for range workers {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < int(ended.Load()); i = int(next.Add(1)) - 1 {
				r := Run(make(i))
				if stop != nil && stop(r) {
					for was := ended.Load(); int64(i+1) < was && !ended.CompareAndSwap(was, int64(i+1)); was = ended.Load() {
					}
				}
				results.put(i, r)
			}
		})
	}
	wg.Wait()
	return results.sum(int(ended.Load()))
}

// order joins results in the order of their runs.
type order struct {
	mu      sync.Mutex // guards results; nothing else happens under it
	results []brief
}

// brief is what is kept of a run.
type brief struct {
	sum    [sha256.Size]byte
	faults int
	turns  int
	failed *Result
}

func newOrder(n int) *order { return &order{results: make([]brief, n)} }

func (o *order) put(i int, r Result) {
	b := brief{sum: r.Sum, faults: r.Faults, turns: r.Turns}
	if len(r.Violations) > 0 {
		b.failed = &r
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.results[i] = b
}

func (o *order) sum(n int) Summary {
	s := Summary{Runs: n}
	all := sha256.New()
	for _, b := range o.results[:n] {
		all.Write(b.sum[:])
		s.Faults += b.faults
		s.Turns += b.turns
		if b.failed != nil {
			s.Violations++
			if len(s.Failed) < maxFailed {
				s.Failed = append(s.Failed, *b.failed)
			}
		}
	}
	all.Sum(s.Sum[:0])
	return s
}

// Needed is how many random runs a mutant was not noticed in before one noticed it,
// that one included; 0 when so many did not.
func Needed(m *Mutant, seed uint64, runs, workers int) int {
	s := Many(runs, workers, func(i int) Options {
		return Options{Seed: seed + uint64(i), Chaos: true, Mutant: m}
	}, func(r Result) bool { return len(r.Violations) > 0 })
	if s.Violations == 0 {
		return 0
	}
	return s.Runs
}
