package soak

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is what a soak came to.
type Report struct {
	Rounds []Result
	Took   time.Duration
	// Stopped is why it ended before all rounds were done; nil for done.
	Stopped error
}

// Failed are the rounds that did not hold.
func (r Report) Failed() []Result {
	return slices.DeleteFunc(slices.Clone(r.Rounds), func(r Result) bool { return r.Outcome != Failed })
}

// row is one line of the table.
type row struct {
	name          string
	count, missed int
	outcomes      map[Outcome]int
	settle, whole []time.Duration
}

// Write prints the table, the failed rounds, and one line at the end.
func (r Report) Write(w io.Writer) {
	rows := map[string]*row{}
	var names []string
	for _, res := range r.Rounds {
		for i, s := range res.Plan.Strikes {
			x := rows[s.Fault]
			if x == nil {
				x = &row{name: s.Fault, outcomes: map[Outcome]int{}}
				rows[s.Fault] = x
				names = append(names, s.Fault)
			}
			if !res.Struck[i] && res.Outcome != Failed {
				x.missed++
				continue
			}
			x.count++
			x.outcomes[res.Outcome]++
			if res.Outcome != Failed {
				x.settle, x.whole = append(x.settle, res.Settle), append(x.whole, res.Whole)
			}
		}
	}
	order := map[string]int{}
	for i, f := range Faults() {
		order[f.Name] = i
	}
	slices.SortFunc(names, func(a, b string) int { return order[a] - order[b] })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "fault\ttimes\tcompleted\tundone\trefused\tin doubt, settled\tFAILED\tover after: median\tworst\tall true after: worst\tcame too late")
	for _, name := range names {
		x := rows[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%d\n", name, x.count, x.outcomes[Completed], x.outcomes[Undone], x.outcomes[Refused],
			x.outcomes[Settled], x.outcomes[Failed], seconds(median(x.settle)), seconds(worst(x.settle)), seconds(worst(x.whole)), x.missed)
	}
	_ = t.Flush() // w has the error, if any
	for _, res := range r.Failed() {
		fmt.Fprintf(w, "\nFAILED seed %d: %s\n  %s\n", res.Plan.Seed, res.Plan, indent(res.Err))
	}
	if r.Stopped != nil {
		fmt.Fprintf(w, "\nended early: %v\n", r.Stopped)
	}
	fmt.Fprintln(w, r.Line())
}

// Line is the whole soak in one line.
func (r Report) Line() string {
	struck := 0
	count := map[Outcome]int{}
	var longest Result
	for _, res := range r.Rounds {
		count[res.Outcome]++
		for _, yes := range res.Struck {
			if yes {
				struck++
			}
		}
		if res.Settle > longest.Settle {
			longest = res
		}
	}
	return fmt.Sprintf("soak: %d rounds, %d faults struck: %d completed, %d undone, %d refused, %d in doubt and settled, %d FAILED; longest recovery %s (seed %d: %s); %.0f s",
		len(r.Rounds), struck, count[Completed], count[Undone], count[Refused], count[Settled], count[Failed],
		seconds(longest.Settle), longest.Plan.Seed, longest.Plan, r.Took.Seconds())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func worst(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	return slices.Max(list)
}

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
