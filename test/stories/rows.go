package stories

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"berth/migration"
	"berth/migration/conductor"
	"berth/test/sim"
)

// Row is what came of one fault in one step of one story.
type Row struct {
	Story   string            `json:"story"`
	Step    string            `json:"step"`
	Fault   sim.Way           `json:"fault"`
	Outcome migration.Outcome `json:"outcome"`
	// Left is what is there when all is over and should not be, by what it is: claims,
	// allocations, disks, domains.
	Left map[string]int `json:"left"`
	// Violations are what else was not held, at any moment; none in a good row.
	Violations []string `json:"violations,omitempty"`
	// Missing: no run of the story came to the step with the fault.
	Missing bool `json:"missing,omitempty"`
}

// Good says whether a row is there, and nothing is left.
func (r Row) Good() bool {
	for _, n := range r.Left {
		if n > 0 {
			return false
		}
	}
	return !r.Missing && len(r.Violations) == 0
}

func (r Row) String() string { return fmt.Sprintf("%s, %s, %s", r.Story, r.Step, r.Fault) }

// Expected are the rows that there must be, without what comes of them: every story of
// package migration, each of its steps, each fault; and everything that is written of a drain.
func Expected() []Row {
	var out []Row
	for _, s := range conductor.Stories() {
		for _, step := range s.Steps {
			for _, way := range sim.Ways() {
				out = append(out, Row{Story: s.Name, Step: step.Name, Fault: way})
			}
		}
	}
	drains := sim.DrainStories()
	for _, name := range slices.Sorted(maps.Keys(drains)) {
		for _, point := range drains[name] {
			for _, way := range sim.Ways() {
				out = append(out, Row{Story: name, Step: point, Fault: way})
			}
		}
	}
	return out
}

// Play fills rows, one run or more for each, on every processor.
func Play(rows []Row) []Row {
	out := make([]Row, len(rows))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rows); i = int(next.Add(1)) - 1 {
				out[i] = play(rows[i])
			}
		})
	}
	wg.Wait()
	return out
}

// play plays one row.
func play(row Row) Row {
	row.Missing, row.Left = true, map[string]int{}
	for _, what := range sim.Leftovers() {
		row.Left[what] = 0
	}
	for _, o := range Options(row) {
		r := sim.Run(o)
		if !r.Spoiled {
			continue
		}
		row.Missing, row.Violations = false, r.Violations
		for what, n := range r.Left {
			row.Left[what] = n
		}
		if len(r.Outcomes) > 0 { // of a drain its first move's
			row.Outcome = r.Outcomes[0]
		}
		break
	}
	return row
}

// Options are those of a row's runs, of which the first counts that comes to the fault:
// in each fleet of its story what the step asks goes wrong, and where it asks nothing in
// any, what is written down of it.
func Options(row Row) []sim.Options {
	var out []sim.Options
	if _, drain := sim.DrainStories()[row.Story]; drain {
		for _, s := range sim.StoriesOf(row.Story) {
			out = append(out, sim.Options{Seed: 1, Story: s, Spoil: &sim.Spoil{Step: row.Step, Way: row.Fault, Drain: true}})
		}
		return out
	}
	for _, journal := range []bool{false, true} {
		for _, s := range sim.StoriesOf(row.Story) {
			out = append(out, sim.Options{Seed: 1, Story: s, Spoil: &sim.Spoil{Step: row.Step, Way: row.Fault, In: sim.PartOf(row.Story), Journal: journal}})
		}
	}
	return out
}
