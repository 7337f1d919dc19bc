// Command sim plays runs of the simulated fleet: random ones by seed, every single
// point of every story, or mutants that must be noticed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"berth/test/sim"
)

func main() {
	runs := flag.Int("runs", 100_000, "random runs")
	seed := flag.Uint64("seed", 1, "of the first run; the next has the next")
	verbose := flag.Bool("verbose", false, "print the trace of each run, and what the agents log")
	workers := flag.Int("workers", 0, "runs at a time; 0 for one a processor")
	mutant := flag.String("mutant", "", "a deliberate breakage; list for their names, all for how many runs each needs")
	enumerate := flag.Bool("enumerate", false, "every point of every story, in place of random runs")
	story := flag.String("story", "", "with enumerate, only stories whose names have this")
	how := flag.String("how", "", "with enumerate, only what breaks so")
	first := flag.Bool("first", false, "end with the first violation")
	flag.Parse()
	debug.SetGCPercent(1600) // runs are short and their memory is small
	if err := play(*runs, *seed, *workers, *verbose, *mutant, *enumerate, *first, *story, *how); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

func play(runs int, seed uint64, workers int, verbose bool, mutant string, enumerate, first bool, story, how string) error {
	began := time.Now()
	if mutant == "list" {
		for _, m := range sim.Mutants() {
			fmt.Printf("%-32s %s\n", m.Name, m.What)
		}
		return nil
	}
	if mutant == "all" {
		return table(seed, runs, workers)
	}
	var broken *sim.Mutant
	if mutant != "" {
		if broken = sim.MutantNamed(mutant); broken == nil {
			return fmt.Errorf("no mutant is named %s: see mutant list", mutant)
		}
	}
	options := func(i int) sim.Options {
		o := sim.Options{Seed: seed + uint64(i), Chaos: true, Mutant: broken, KeepTrace: verbose}
		if verbose {
			o.Log = os.Stdout
		}
		return o
	}
	replay := func(r sim.Result) string {
		return fmt.Sprintf("make sim SEED=%d RUNS=1 VERBOSE=1", r.Seed)
	}
	if enumerate {
		stories := slices.DeleteFunc(sim.Stories(), func(s *sim.Story) bool { return !strings.Contains(s.Name, story) })
		hows := slices.DeleteFunc(sim.Hows(), func(h sim.How) bool { return !strings.Contains(h.Name, how) })
		cases := sim.CasesOf(stories, hows)
		runs = len(cases)
		options = func(i int) sim.Options {
			o := cases[i].Options()
			o.Seed, o.Mutant, o.KeepTrace = seed, broken, verbose
			return o
		}
	}
	var stop func(sim.Result) bool
	if first {
		stop = func(r sim.Result) bool { return len(r.Violations) > 0 }
	}
	s := sim.Many(runs, workers, options, stop)
	for i, r := range s.Failed {
		if broken != nil && i == 3 && !verbose {
			break // they are meant to be found; a few tell how
		}
		fmt.Printf("seed %d (%s):\n", r.Seed, r.Story)
		for _, v := range r.Violations {
			fmt.Println("   ", v)
		}
		if !enumerate {
			fmt.Println("    replay:", replay(r))
		}
	}
	if verbose {
		for i := range min(runs, 3) {
			fmt.Print(sim.Run(options(i)).Trace)
		}
	}
	fmt.Fprintf(os.Stderr, "%.1f s, %d turns\n", time.Since(began).Seconds(), s.Turns)
	fmt.Println(s)
	if (s.Violations > 0) != (broken != nil) {
		os.Exit(1)
	}
	return nil
}

// apart is how far the seeds of a table's columns are from each other.
const apart = 1_000_000

// table tells how many runs notice each mutant, from three seeds.
func table(seed uint64, runs, workers int) error {
	fmt.Printf("%-32s %8s %8s %8s   runs until it is noticed, from seed %d and each %d later\n", "mutant", "", "", "", seed, apart)
	missed := 0
	for _, m := range sim.Mutants() {
		fmt.Printf("%-32s", m.Name)
		for i := range uint64(3) {
			n := sim.Needed(&m, seed+i*apart, runs, workers)
			if n == 0 {
				missed++
			}
			fmt.Printf(" %8d", n)
		}
		fmt.Println()
	}
	if missed > 0 {
		return fmt.Errorf("%d times, %d runs did not notice a mutant (0 above)", missed, runs)
	}
	return nil
}
